"""Lightning Fabric: a plain loop, its strategy and precision by options."""

import argparse

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    fabric = Fabric(
        accelerator="cuda", devices=options.devices, strategy=options.strategy, precision=options.precision
    )
    fabric.launch()
    fabric.seed_everything(1)
    with fabric.init_module():
        model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10))
    model = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
    data = TensorDataset(torch.randn(128, 256), torch.randint(0, 10, (128,)))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=16))
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        fabric.print("loss", fabric.all_reduce(loss.detach()).item())
    fabric.save("state.ckpt", {"model": model, "optimizer": optimizer})
