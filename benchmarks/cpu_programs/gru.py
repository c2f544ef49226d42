"""A bidirectional GRU with dropout, then a plain RNN."""

import torch
from torch import nn

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.gru = nn.GRU(32, 48, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.rnn = nn.RNN(96, 32)
        self.head = nn.Linear(32, 100)

    def forward(self, ids):
        hidden = self.gru(self.embed(ids))[0]
        return self.head(self.rnn(hidden.transpose(0, 1))[0])


model = Tagger()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    ids, tags = torch.randint(0, 100, (8, 12)), torch.randint(0, 100, (96,))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), tags)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
