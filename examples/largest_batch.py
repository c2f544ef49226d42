"""Find the largest batch that fits a device, from Python: python examples/largest_batch.py"""

import torch
from torch import nn

import windtunnel


def train(batch_size: int) -> None:
    """An ordinary training loop on cuda."""
    layers = [nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(12)]
    model = nn.Sequential(*layers, nn.Linear(1024, 1000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randn(batch_size, 512, 1024, device="cuda")).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    best = 0
    for batch_size in (8, 16, 32, 64, 128):
        report = windtunnel.dry_run(lambda n=batch_size: train(n), device="rtx4090-24gb")
        peak = report.ranks[0].peak_with_fragments_bytes
        print(f"batch {batch_size:4d}: {peak / 2**30:6.2f} GiB {'fits' if report.fits else 'does not fit'}")
        best = batch_size if report.fits else best
    print(f"largest batch that fits: {best}")
