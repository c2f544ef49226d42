"""Small models under torch.compile, each trained for three steps: python train.py PROGRAM [--device cuda] [--eager]"""

import argparse
from contextlib import nullcontext

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 4096, 256, 4, 4, 512, 4
PROGRAMS = ("mlp", "mlp_amp", "gpt", "gpt_dropout", "gpt_amp", "gpt_checkpoint", "llama", "llama_amp")


class MLP(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Dropout(0.1),
                nn.Linear(4 * width, width),
            )
            for _ in range(LAYERS)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.float().pow(2).mean()


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            y.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for y in self.qkv(self.norm1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.out(y), self.dropout, self.training)
        y = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + F.dropout(y, self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, dropout=0.0, is_checkpointed=False):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(1024, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.is_checkpointed = is_checkpointed

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.view(-1))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=WIDTH,
                intermediate_size=688,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                num_key_value_heads=HEADS,
                use_cache=False,
                attn_implementation="sdpa",
            )
        )

    def forward(self, ids, targets):
        return self.model(input_ids=ids, labels=targets).loss


def build(program, device):
    if program.startswith("mlp"):
        return MLP().to(device), (torch.randn(2048, 512, device=device),)
    if program.startswith("llama"):
        model = Llama()
    else:
        model = GPT(0.1 if "dropout" in program else 0.0, "checkpoint" in program)
    ids = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH), device=device)
    return model.to(device), (ids[0], ids[1])


def train(program, device, is_eager, budget):
    torch._functorch.config.activation_memory_budget = budget
    torch.manual_seed(0)
    model, inputs = build(program, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    run = model if is_eager else torch.compile(model)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16) if "amp" in program else nullcontext():
            loss = run(*inputs)
        loss.backward()
        del loss
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--budget", type=float, default=1.0)
    arguments = parser.parse_args()
    train(arguments.program, arguments.device, arguments.eager, arguments.budget)
