"""Hugging Face BERT for classification, a small configuration, with an attention mask."""

import torch
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
config = BertConfig(
    hidden_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=1024,
    vocab_size=3000,
    num_labels=5,
)
model = BertForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    ids, labels = torch.randint(0, 3000, (8, 64)), torch.randint(0, 5, (8,))
    mask = torch.ones(8, 64, dtype=torch.long)
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
