"""A Lightning Trainer on made-up images; the strategy, precision and number of devices are options."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.layers(images)
        self.log("val_loss", nn.functional.cross_entropy(scores, labels), sync_dist=True)
        self.log("val_accuracy", (scores.argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    data = TensorDataset(torch.randn(256, 1, 28, 28), torch.randint(0, 10, (256,)))
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=options.devices,
        strategy=options.strategy,
        precision=options.precision,
        max_epochs=2,
        gradient_clip_val=None if options.strategy == "fsdp" else 1.0,
        log_every_n_steps=2,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=32))
