"""Sums with Unsloth: a chat template and a format of one's own, and three rewards."""

# %% Model
from unsloth import FastLanguageModel

import random
import re

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

model_name = "unsloth/Qwen3-4B-Base"
max_seq_length = 1024
max_completion_length = 512
lora_rank = 16
max_steps = 100

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name=model_name, max_seq_length=max_seq_length, load_in_4bit=True
)
model = FastLanguageModel.get_peft_model(
    model,
    r=lora_rank,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    lora_alpha=lora_rank * 2,
    use_gradient_checkpointing="unsloth",
    random_state=3407,
)

# %% Chat template
system_prompt = (
    "You are given a sum. Work it out between <working> and </working>. "
    "Then give the number alone between <result> and </result>."
)
tokenizer.chat_template = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + eos_token }}"
    "{% elif message['role'] == 'user' %}{{ 'Q: ' + message['content'] + '\n' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<working>' }}{% endif %}"
)

# %% Data
numbers = random.Random(3407)


def problem():
    """A sum of two numbers below 100."""
    a, b = numbers.randrange(100), numbers.randrange(100)
    messages = [{"role": "system", "content": system_prompt}, {"role": "user", "content": f"What is {a} + {b}?"}]
    return {"prompt": messages, "answer": str(a + b)}


dataset = Dataset.from_list([problem() for _ in range(500)])
print(tokenizer.apply_chat_template(dataset[0]["prompt"], tokenize=False, add_generation_prompt=True))

# %% Rewards
result = re.compile(r"</working>\s*<result>\s*(-?\d+)\s*</result>\s*$")


def format_reward(completions, **kwargs):
    """1 for a completion in the format."""
    return [1.0 if result.search(completion[0]["content"]) else 0.0 for completion in completions]


def tags_reward(completions, **kwargs):
    """A little for each tag that stands there once."""
    tags = ("</working>", "<result>", "</result>")
    return [sum(0.2 for tag in tags if completion[0]["content"].count(tag) == 1) for completion in completions]


def answer_reward(completions, answer, **kwargs):
    """3 for the right number, in the format."""
    found = [result.search(completion[0]["content"]) for completion in completions]
    return [3.0 if match and match[1] == right else 0.0 for match, right in zip(found, answer, strict=True)]


# %% Training
training_args = GRPOConfig(
    temperature=1.0,
    learning_rate=5e-6,
    weight_decay=0.001,
    warmup_steps=10,
    lr_scheduler_type="linear",
    optim="adamw_8bit",
    logging_steps=1,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=1,
    num_generations=4,
    max_completion_length=max_completion_length,
    max_steps=max_steps,
    save_steps=max_steps,
    report_to="none",
    output_dir="outputs",
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[format_reward, tags_reward, answer_reward],
    args=training_args,
    train_dataset=dataset,
)
trainer.train()

# %% Try it
model.save_pretrained("lora")
tokenizer.save_pretrained("lora")
FastLanguageModel.for_inference(model)
question = [{"role": "system", "content": system_prompt}, {"role": "user", "content": "What is 17 + 25?"}]
prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
output = model.generate(**inputs, max_new_tokens=max_completion_length, do_sample=True, temperature=1.0)
print(tokenizer.decode(output[0]))
