"""A DataLoader over numpy data, momentum, a learning-rate schedule and accuracy by argmax."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Images(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, i):
        return torch.from_numpy(np.full((3, 16, 16), i, dtype=np.float32)), i % 5


model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for epoch in range(2):
    total = correct = 0
    for images, labels in DataLoader(Images(), batch_size=8, shuffle=True):
        scores = model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += labels.size(0)
        correct += (scores.argmax(1) == labels).sum().item()
    scheduler.step()
    print(epoch, correct / total)
