"""The training program for every tool compared: Qwen2.5-7B, sequence 4096, AdamW; prints CPU seconds per step.

windtunnel run benchmarks/qwen_step.py cuda            ours
python benchmarks/qwen_step.py fake                    torch's FakeTensorMode
python benchmarks/qwen_step.py memtracker              FakeTensorMode + torch's MemTracker
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

CONFIG = Qwen2Config(
    hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
    vocab_size=152064, tie_word_embeddings=False,
)  # fmt: skip


def train(device: str, n_steps: int, watch=contextlib.nullcontext) -> list[float]:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen2ForCausalLM(CONFIG)
    torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=True)
    tokens = torch.randint(0, 1000, (1, 4096)).to(device)
    seconds = []
    for _ in range(n_steps):
        with watch(model, optimizer):
            started = time.process_time()
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.process_time() - started)
    return seconds


def fake(n_steps: int, watch=lambda *_: contextlib.nullcontext()) -> list[float]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return train("cpu", n_steps, watch)


def memtracker(n_steps: int) -> list[float]:
    from torch.distributed._tools.mem_tracker import MemTracker

    def watch(model, optimizer):
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        return tracker

    return fake(n_steps, watch)


if __name__ == "__main__":
    vehicle = sys.argv[1]
    n_steps = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    if vehicle == "cuda":
        seconds = train("cuda", n_steps, lambda *_: contextlib.nullcontext())
    else:
        seconds = {"fake": fake, "memtracker": memtracker}[vehicle](n_steps)
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("RESULT " + json.dumps({"vehicle": vehicle, "seconds": seconds, "rss_mb": peak_rss}), flush=True)
