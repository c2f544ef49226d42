"""A small CNN with BatchNorm, dropout, pooling and SGD with momentum."""

import torch
from torch import nn

torch.manual_seed(0)


def block(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


model = nn.Sequential(
    block(3, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Dropout(0.3), nn.Linear(128 * 16, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    images, labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
