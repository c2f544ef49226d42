"""PIL images through torchvision's transforms and a DataLoader into a small network, as in countless tutorials."""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.models import resnet18

torch.manual_seed(0)
np.random.seed(0)
augment = transforms.Compose(
    [
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ]
)


class Images(Dataset):
    def __init__(self):
        self.pixels = np.random.randint(0, 256, (48, 32, 32, 3), dtype=np.uint8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, i):
        return augment(Image.fromarray(self.pixels[i])), i % 10


model = resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
for images, labels in DataLoader(Images(), batch_size=16, shuffle=True):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
