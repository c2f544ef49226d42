"""Train a Hugging Face Qwen2.5-7B from its configuration: an ordinary CUDA script without any windtunnel code.

python examples/qwen25_7b.py --batch-size 1 --checkpointing
"""

import argparse

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--sequence", type=int, default=4096)
parser.add_argument("--layers", type=int, default=28)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--checkpointing", action="store_true")
args = parser.parse_args()

config = Qwen2Config(
    hidden_size=3584, intermediate_size=18944, num_hidden_layers=args.layers, num_attention_heads=28,
    num_key_value_heads=4, vocab_size=152064, max_position_embeddings=32768, rope_theta=1e6, tie_word_embeddings=False,
)  # fmt: skip
model = Qwen2ForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
if args.checkpointing:
    model.gradient_checkpointing_enable()
model.train()
print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion parameters on {model.device}")

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(args.steps):
    tokens = torch.randint(0, config.vocab_size, (args.batch_size, args.sequence)).cuda()
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.3f}, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
