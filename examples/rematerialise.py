"""Train in half the memory: two lines of `windtunnel.dtr`, and bit-for-bit the same losses.

python examples/rematerialise.py
"""

import torch

import windtunnel.dtr as dtr


def train(steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    layers = [
        layer
        for _ in range(10)
        for layer in (torch.nn.Linear(384, 384), torch.nn.GELU(), torch.nn.Dropout(0.1))
    ]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(2048, 384)
    losses = []
    for _ in range(steps):
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)  # several threads on a busy machine may sum in another order
    plain = train()
    with dtr.limit("500GB"):  # never reached: nothing is evicted
        train()
    needed = dtr.stats()["peak_live_bytes"]

    dtr.eviction_threshold = int(needed * 0.6)
    dtr.enable()
    rematerialised = train()
    dtr.disable()

    done = dtr.stats()
    print(f"losses {rematerialised}, the same as without: {rematerialised == plain}")
    print(f"threshold {needed * 0.6 / 2**20:.0f} MiB of the {needed / 2**20:.0f} MiB needed otherwise")
    print(f"{done['evictions']} tensors evicted, {done['rematerialisations']} operators run again")
