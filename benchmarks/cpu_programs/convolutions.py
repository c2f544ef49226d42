"""Strided, depthwise, transposed and 1-d convolutions, group and instance norm, pooling, interpolation."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.strided = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.group_norm = nn.GroupNorm(4, 16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.instance_norm = nn.InstanceNorm2d(16, affine=True)
        self.prelu = nn.PReLU()
        self.transposed = nn.ConvTranspose2d(16, 8, 2, 2)
        self.along = nn.Conv1d(8, 8, 5)
        self.head = nn.Linear(8 * 1020, 10)

    def forward(self, x):
        x = F.leaky_relu(self.group_norm(self.strided(x)))
        x = self.prelu(self.instance_norm(self.depthwise(x)))
        x = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode="bilinear")
        x = self.along(self.transposed(x).flatten(2))
        return self.head(x.flatten(1))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
for _ in range(3):
    loss = F.mse_loss(model(torch.randn(4, 3, 32, 32)), torch.randn(4, 10))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
