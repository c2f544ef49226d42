# Accelerate's save_state with total_limit, in a project folder that holds checkpoints
import os

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch import nn

os.makedirs("ck/checkpoints")
os.rename("ck/checkpoint-50", "ck/checkpoints/checkpoint_0")
os.rename("ck/checkpoint-100", "ck/checkpoints/checkpoint_1")
settings = ProjectConfiguration(
    project_dir="ck", automatic_checkpoint_naming=True, total_limit=2, iteration=2
)
accelerator = Accelerator(project_config=settings)
model = nn.Linear(1024, 512)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for _ in range(2):
    optimizer.zero_grad()
    accelerator.backward(model(torch.randn(8, 1024, device=accelerator.device)).sum())
    optimizer.step()
    accelerator.save_state()

assert sorted(os.listdir("ck/checkpoints")) == ["checkpoint_2", "checkpoint_3"]
accelerator.load_state("ck/checkpoints/checkpoint_3")
print("DONE")
