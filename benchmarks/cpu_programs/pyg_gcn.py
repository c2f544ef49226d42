"""A graph network of PyTorch Geometric on a graph that was saved before, as its data sets are: examples/gcn.py."""

import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

torch.manual_seed(0)
np.random.seed(0)
n_nodes, n_edges, n_features, n_classes = 2708, 10556, 1433, 7
features = (np.random.rand(n_nodes, n_features) < 0.01).astype(np.float32)
edges = np.random.randint(0, n_nodes, (2, n_edges))
path = os.path.join(tempfile.mkdtemp(), "data.pt")
train_mask = torch.zeros(n_nodes, dtype=torch.bool)
train_mask[:140] = True
torch.save(
    Data(
        x=torch.from_numpy(features),
        edge_index=torch.from_numpy(edges),
        y=torch.from_numpy(np.random.randint(0, n_classes, n_nodes)),
        train_mask=train_mask,
    ),
    path,
)
data = torch.load(path, weights_only=False)


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(n_features, 16)
        self.conv2 = GCNConv(16, n_classes)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, edge_index).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index)


model = GCN()
optimizer = torch.optim.Adam(
    [
        {"params": model.conv1.parameters(), "weight_decay": 5e-4},
        {"params": model.conv2.parameters(), "weight_decay": 0},
    ],
    lr=0.01,
)
for epoch in range(4):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        guesses = model(data.x, data.edge_index).argmax(dim=-1)
        right = int((guesses[data.train_mask] == data.y[data.train_mask]).sum())
    print(epoch, right / int(data.train_mask.sum()))
