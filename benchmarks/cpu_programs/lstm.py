"""A two-layer LSTM language model."""

import torch
from torch import nn

torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.rnn = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 1000)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    ids = torch.randint(0, 1000, (16, 40))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
