"""``vllm serve`` on loopback for the tiny policy: the endpoints that TRL 1.15's client asks, and /hashes for the test.

``server.py PORT OFF``.  It samples with transformers, and takes merged weights over gloo.  The log-probabilities that
it returns are off by OFF, as vLLM's are by its own arithmetic.
"""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import rloo_kit

policy = rloo_kit.load_policy("tiny", seed=0, load_in_4bit=False, dtype="float32")

import torch  # noqa: E402
from vllm.distributed.weight_transfer.nccl_common import Group  # noqa: E402

model = policy.model.get_base_model()
weights = {name.replace(".base_layer", ""): p for name, p in model.named_parameters() if "lora_" not in name}
groups: list[Group] = []
off = float(sys.argv[2])
lock = threading.Lock()


def hashed(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().float().contiguous().numpy().tobytes()).hexdigest()


def update(info: dict[str, Any]) -> dict[str, Any]:
    for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        groups[0].broadcast(tensor)
        weights[name].data.copy_(tensor)
    return {}


def complete(body: dict[str, Any]) -> dict[str, Any]:
    rows = [ids for ids in body["prompt"] for _ in range(body["n"])]
    width, pad = max(map(len, rows)), policy.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    how = {"temperature": body["temperature"], "top_k": 0, "top_p": 1.0, "max_new_tokens": body["max_tokens"]}
    with torch.no_grad(), policy.model.disable_adapter():
        out = policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            output_logits=True,
            return_dict_in_generate=True,
            **how,
        )
    sampled = out.sequences[:, width:]
    scaled = torch.stack(out.logits, 1).float() / body["temperature"]
    logps = scaled.log_softmax(-1).gather(2, sampled.unsqueeze(2)).squeeze(2) + off
    choices = []
    for row, made, known in zip(rows, sampled.tolist(), logps.tolist(), strict=True):
        end = next((place for place, token in enumerate(made) if token in policy.eos_ids), len(made) - 1)
        said = said_of(made[: end + 1], known) if body["logprobs"] is not None else None
        choices.append({"prompt_token_ids": row, "token_ids": made[: end + 1], "logprobs": said})
    return {"choices": choices}


def said_of(ids: list[int], logps: list[float]) -> dict[str, Any]:
    """As /v1/completions has it where tokens are asked for as token ids."""
    tokens = [f"token_id:{token}" for token in ids]
    each = list(zip(tokens, logps, strict=False))
    return {
        "tokens": tokens,
        "token_logprobs": logps[: len(ids)],
        "top_logprobs": [{token: logp} for token, logp in each],
    }


def join(info: dict[str, Any]) -> dict[str, Any]:
    groups.append(Group(info["rank_offset"], info["world_size"], info["master_address"], info["master_port"]))
    return {}


GET = {
    "/health": dict,
    "/v1/models": lambda: {"data": [{"id": "tiny"}]},
    "/get_world_size": lambda: {"world_size": 1},
    "/hashes": lambda: {name: hashed(weight) for name, weight in weights.items()},
}
POST = {
    "/init_weight_transfer_engine": lambda body: join(body["init_info"]),
    "/start_weight_update": lambda body: {},
    "/update_weights": lambda body: update(body["update_info"]),
    "/finish_weight_update": lambda body: {},
    "/reset_prefix_cache": lambda body: {"success": True},
    "/v1/completions": complete,
}


class Endpoints(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, found: object) -> None:
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.answer(GET[self.path]())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        with lock:
            self.answer(POST[self.path](body))


print("serving", flush=True)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Endpoints).serve_forever()
