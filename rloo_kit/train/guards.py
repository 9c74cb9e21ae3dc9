"""Validate a configuration before GPU time is spent: values alone, and values that go together.

For ``RLOOConfig`` and the trainer.  Each check raises a :class:`ConfigError` with the culprit and the mend, and changes
nothing.  Datasets and rewards are checked by :mod:`rloo_kit.inputs`.  What stock TRL under unsloth makes of
the same inputs: benchmarks/results/bad_inputs.md.
"""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from rloo_kit import values
from rloo_kit.errors import ConfigError
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.train import fields
from rloo_kit.train.own import HANDLERS, Own
from rloo_kit.watch.callbacks import checked

import_unsloth()

import torch  # noqa: E402 - unsloth first
from transformers import GenerationConfig, get_scheduler  # noqa: E402
from transformers.integrations.integration_utils import (  # noqa: E402
    INTEGRATION_TO_CALLBACK,
    get_available_reporting_integrations,
)
from transformers.utils import is_liger_kernel_available  # noqa: E402

if TYPE_CHECKING:
    import trl


def _refuse(what: str, where: str, todo: str) -> NoReturn:
    raise ConfigError(what, where=f"RLOOConfig({where})", todo=todo)


def check_config(args: trl.RLOOConfig, own: Own, processes: int = 1) -> None:
    """Check the values of a configuration, each alone and against each other.

    Args:
        args: the configuration, the kit's or TRL's, or anything with its attributes.
        own: the kit's own settings of it.
        processes: of the run; each has its own batch.

    Raises:
        ConfigError: the first value that is wrong.
    """
    given = {name: getattr(args, name) for name in vars(args) if not name.startswith("_")}
    fields.checked(given | dataclasses.asdict(own))
    _check_clipping(args)
    _check_generation(args)
    _check_engine(args, own)
    _check_choices(args, own)
    _check_best(args)
    _check_folder(args)
    _check_batch(args, processes)


def _check_clipping(args: trl.RLOOConfig) -> None:
    clip = args.reward_clip_range
    if clip is not None and not clip[0] < clip[1]:
        _refuse(
            "the range that rewards are clipped to is inverted or empty, so every reward would be the same",
            f"reward_clip_range={clip}",
            fields.ADVICE["reward_clip_range"],
        )


ONE_EACH = {
    "do_sample": "remove it: completions are sampled, since greedy ones of a prompt are all equal",
    "num_beams": "remove it: completions are sampled one by one, and a beam's are not samples of the policy",
    "num_beam_groups": "remove it: completions are sampled one by one",
    "num_return_sequences": "set num_generations: the trainer repeats each prompt so many times",
    "max_new_tokens": "set max_completion_length",
    "max_length": "set max_completion_length",
    "min_length": "use min_new_tokens, which does not count the prompt",
    "num_assistant_tokens": "remove it: completions are sampled from the policy alone",
    "custom_generate": "remove it; fast_sampling=True is the kit's",
    "return_dict_in_generate": "remove it: the trainer reads the token ids alone",
    "pad_token_id": "set it in the tokenizer: tokenizer.pad_token",
    "eos_token_id": "set it in model.generation_config.eos_token_id",
    "bos_token_id": "set it in the tokenizer: tokenizer.bos_token",
}
"""What ``generation_kwargs`` must not say, since the trainer does, and what to do instead."""


HARMLESS = ("cache_config", "use_cache", "prefill_chunk_size")
"""Of ``generation_kwargs``: how the same distribution is computed."""


def _check_generation(args: trl.RLOOConfig) -> None:
    """Works around: TRL lets generation_kwargs override its own settings, whatever was checked of those."""
    given = fields.as_dict("generation_kwargs", args.generation_kwargs)
    if args.use_vllm:
        return
    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    for name, value in given.items():
        if name in HARMLESS:
            continue
        if name in fields.hints():
            todo = f"set RLOOConfig({name}=...) itself"
        elif name in ONE_EACH:
            todo = ONE_EACH[name]
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            todo = f"did you mean {near[0]}?" if near else "remove it: GenerationConfig does not have it"
        else:
            continue
        _refuse(
            f"generation_kwargs cannot set {name}" + ("" if name in known else ", which does not exist"),
            f"generation_kwargs={{{name!r}: {value!r}}}",
            todo,
        )
    try:
        GenerationConfig(**given, cache_implementation=args.cache_implementation)
    except Exception as error:  # transformers raises by the setting
        settings = given | (
            {"cache_implementation": args.cache_implementation} if args.cache_implementation else {}
        )
        said = " ".join(str(error).split())[:300]
        _refuse(
            f"generate would refuse its settings: {said}", f"{settings}", "change or remove what it names"
        )


def _check_engine(args: trl.RLOOConfig, own: Own) -> None:
    for engine in ("use_vllm", "use_transformers_continuous_batching"):
        if own.generation_rows is not None and getattr(args, engine):
            _refuse(
                "generation_rows cuts the batch for generate, and that engine schedules its completions itself",
                f"generation_rows={own.generation_rows}, {engine}=True",
                f"remove generation_rows, or {engine}",
            )


def _check_choices(args: trl.RLOOConfig, own: Own) -> None:
    if own.on_unhealthy not in HANDLERS:
        checked(own.on_unhealthy, where="RLOOConfig")
    if args.fp16 and args.bf16:
        _refuse(
            "fp16 and bf16 are two precisions", "fp16=True, bf16=True", "leave both out: the device decides"
        )
    if args.dataloader_prefetch_factor is not None and not args.dataloader_num_workers:
        where = f"dataloader_prefetch_factor={args.dataloader_prefetch_factor}, dataloader_num_workers=0"
        _refuse("without workers no batch is fetched ahead", where, "remove dataloader_prefetch_factor")
    if args.remove_unused_columns:
        _refuse(
            "rewards would get none of the dataset's columns: transformers leaves the prompt alone",
            "remove_unused_columns=True",
            "leave it out; what is not needed goes with dataset.remove_columns(...)",
        )
    _check_loggers(args)
    _check_kernels(args)
    _check_schedule(args)
    if own.use_bias_correction_kl and args.beta and own.kl_placement != "loss":
        _refuse(
            "use_bias_correction_kl multiplies a KL term in the loss by the ratio, and it is in the reward",
            f"use_bias_correction_kl=True, kl_placement={own.kl_placement!r}",
            "set kl_placement='loss' and kl_estimator='k3', as GRPO has it, or remove use_bias_correction_kl",
        )
    _check_correction(own)


def _check_correction(own: Own) -> None:
    """As TRL's GRPOConfig has it."""
    low, high = own.vllm_importance_sampling_clip_min, own.vllm_importance_sampling_clip_max
    where = f"vllm_importance_sampling_clip_min={low}, vllm_importance_sampling_clip_max={high}"
    if low is not None and high is not None and low >= high:
        _refuse("the range of vLLM's weights is inverted or empty", where, "give a clip_min below clip_max")
    mode = own.vllm_importance_sampling_mode
    if own.vllm_importance_sampling_correction and mode.endswith("truncate") and low is None and high is None:
        _refuse(
            f"vllm_importance_sampling_mode={mode!r} has no bound to truncate weights to",
            where,
            "set vllm_importance_sampling_clip_max, 3.0 in TRL; a mode that masks needs no bound",
        )


LOGGERS = {"trackio": "trackio", "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
LOGGERS |= {"swanlab": "swanlab", "clearml": "clearml", "dvclive": "dvclive", "comet_ml": "comet-ml"}
"""Loggers, and the package that pip installs for each; the rest are transformers' to refuse."""


def _check_loggers(args: trl.RLOOConfig) -> None:
    """Works around: transformers looks for a logger's package when the trainer is made, after the policy is loaded."""
    known = ("all", "none", *sorted(INTEGRATION_TO_CALLBACK))
    asked = [args.report_to] if isinstance(args.report_to, str) else args.report_to or []
    for name in asked:
        if name not in known:
            near = values.nearest("report_to", name, Literal[known])
            _refuse(
                f"there is no logger {name!r}", f"report_to={name!r}", near or f"one of {', '.join(known)}"
            )
        if name in LOGGERS and name not in get_available_reporting_integrations():
            _refuse(
                f"the logger {name} is not installed",
                f"report_to={name!r}",
                f"pip install {LOGGERS[name]}, and restart the process; or remove report_to",
            )


def _check_kernels(args: trl.RLOOConfig) -> None:
    """Works around: transformers looks for the package when the first step begins."""
    if args.use_liger_kernel and not is_liger_kernel_available():
        todo = "remove it: unsloth has kernels of its own; or pip install liger-kernel, for a model without unsloth"
        _refuse("liger-kernel is not installed", "use_liger_kernel=True", todo)


def _check_schedule(args: trl.RLOOConfig) -> None:
    """Works around: transformers makes scheduler and optimizer in ``train()``, and says what it was not given there."""
    given = fields.as_dict("lr_scheduler_kwargs", args.lr_scheduler_kwargs)
    if given:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
        try:
            get_scheduler(args.lr_scheduler_type, optimizer, 0, 2, scheduler_specific_kwargs=given)
        except Exception as error:  # of whichever scheduler it is
            said = " ".join(str(error).split())[:300]
            where = f"lr_scheduler_type={args.lr_scheduler_type!r}, lr_scheduler_kwargs={given}"
            _refuse(
                f"the schedule does not take its arguments: {said}", where, "remove what the message names"
            )
    for part in filter(None, (args.optim_args or "").replace(" ", "").split(",")):
        if part.count("=") != 1:
            where = f"optim_args={args.optim_args!r}"
            _refuse(
                f"optim_args are name=value, and {part!r} is not",
                where,
                "write optim_args='name=value,name=value'",
            )


def _check_best(args: trl.RLOOConfig) -> None:
    """Works around: transformers chooses the best checkpoint by the loss, which reads about 0 in every RLOO run."""
    if args.load_best_model_at_end and args.eval_strategy == "no":
        _refuse(
            "the best checkpoint is that of the best evaluation, and there is none",
            "load_best_model_at_end=True, eval_strategy='no'",
            "set eval_strategy='steps' and eval_steps, or remove load_best_model_at_end",
        )
    asked = args.load_best_model_at_end or args.save_strategy == "best"
    if asked and args.metric_for_best_model in ("loss", "eval_loss"):
        _refuse(
            "the best checkpoint would be chosen by the loss, which reads about 0 in every RLOO run",
            f"metric_for_best_model={args.metric_for_best_model!r}",
            "metric_for_best_model='eval_reward', greater_is_better=True",
        )


def _check_folder(args: trl.RLOOConfig) -> None:
    folder = Path(args.output_dir or ".").expanduser()
    taken = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if taken.exists() and not taken.is_dir():
        _refuse(
            f"{taken} is a file, not a folder", f"output_dir={args.output_dir!r}", "give another output_dir"
        )


def _check_batch(args: trl.RLOOConfig, processes: int) -> None:
    """The completions of a generation batch must be whole groups; unsloth would change the batch instead."""
    per_step = args.per_device_train_batch_size * processes
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    size, k = args.generation_batch_size or per_step * steps, args.num_generations
    evaluated, k_eval = args.per_device_eval_batch_size * processes, args.num_generations_eval or k
    if args.eval_strategy != "no" and evaluated % k_eval:
        _refuse(
            f"an evaluation's batch of {evaluated} completions does not divide into groups of {k_eval}",
            f"per_device_eval_batch_size={args.per_device_eval_batch_size}, processes={processes}, "
            f"{'num_generations_eval' if args.num_generations_eval else 'num_generations'}={k_eval}",
            f"set per_device_eval_batch_size={k_eval}, or leave it out",
        )
    if size % k:
        fitting = sorted({max(k, size // k * k), (size // k + 1) * k})
        _refuse(
            f"a generation batch of {size} completions does not divide into groups of {k}",
            f"per_device_train_batch_size={args.per_device_train_batch_size}, processes={processes}, "
            f"steps_per_generation={steps}, num_generations={k}",
            f"make batch x accumulation a multiple of {k}: {' or '.join(map(str, fitting))}",
        )


def _bends(args: trl.RLOOConfig) -> dict[str, Any]:
    given = {} if args.use_vllm else fields.as_dict("generation_kwargs", args.generation_kwargs)
    return {name: value for name, value in given.items() if name not in HARMLESS}


CUT = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
"""Settings that change what is sampled, at the values that change nothing."""


HIGHEST_RATE = 0.1
"""Of a learning rate that may be meant; plain SGD's steps are as large as the gradient's."""


def doubts(args: trl.RLOOConfig, own: Own) -> list[str]:
    """Combinations that are legal but probably unintended, a sentence or two each; the caller warns of them."""
    found = []
    if args.learning_rate > HIGHEST_RATE and "sgd" not in str(args.optim).lower():
        found.append(
            f"learning_rate={args.learning_rate:g}: {args.optim} moves each weight by about that much in a step, and a "
            "LoRA's are some hundredths. Usual values are 1e-6 to 1e-3."
        )
    in_loss = own.kl_placement == "loss"
    if args.beta and in_loss and own.kl_estimator == "k1":
        found.append(
            "kl_estimator='k1' in the loss has no effect: its expected gradient is 0. Use 'k2' or 'k3', or "
            "kl_placement='reward'."
        )
    if args.beta and own.advantage_estimator == "grpo" and not in_loss and not own.skip_dead_groups:
        found.append(
            "advantage_estimator='grpo' divides by each group's spread, which in a group of equal rewards is that "
            "of the KL term alone: noise becomes a full-size advantage. Set kl_placement='loss', as GRPO has it, or "
            "skip_dead_groups=True."
        )
    if args.warmup_steps >= 1 and 0 < args.max_steps <= args.warmup_steps:
        found.append(
            f"warmup_steps={args.warmup_steps:g} is no less than max_steps={args.max_steps}, so learning_rate is never "
            "reached. Below 1 it is a share of the run: warmup_steps=0.1."
        )
    # TRL samples from the policy as these cut it, and takes log-probabilities of all of it.
    asked = {name: getattr(args, name) for name in CUT}
    cut = [f"{name}={value}" for name, value in asked.items() if value not in (CUT[name], None)]
    cut += [f"generation_kwargs {name}={value}" for name, value in _bends(args).items()]
    if cut:
        found.append(
            f"{', '.join(cut)}: completions are sampled from another distribution than the one that is trained, so the "
            "gradient is slightly biased, and so are ratio and KL. Remove it for training; policy.generate takes it "
            "for sampling afterwards."
        )
    return found
