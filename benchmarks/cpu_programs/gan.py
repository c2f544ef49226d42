"""A GAN: two optimizers, spectral norm, one backward through the discriminator into the generator."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(16, 128), nn.BatchNorm1d(128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.Tanh()
)
discriminator = nn.Sequential(
    nn.utils.parametrizations.spectral_norm(nn.Linear(64, 128)),
    nn.LeakyReLU(0.2),
    nn.Dropout(0.2),
    nn.Linear(128, 1),
)
generator_optimizer = torch.optim.RMSprop(generator.parameters())
discriminator_optimizer = torch.optim.RMSprop(discriminator.parameters())
criterion = nn.BCEWithLogitsLoss()
for step in range(3):
    real, fake = torch.randn(32, 64), generator(torch.randn(32, 16))
    loss = criterion(discriminator(real), torch.ones(32, 1)) + criterion(
        discriminator(fake.detach()), torch.zeros(32, 1)
    )
    discriminator_optimizer.zero_grad()
    loss.backward()
    discriminator_optimizer.step()
    loss = criterion(discriminator(fake), torch.ones(32, 1))
    generator_optimizer.zero_grad()
    loss.backward()
    generator_optimizer.step()
    print(step, loss.item())
