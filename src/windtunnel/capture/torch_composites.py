"""Operators torch builds differently on each device: what it does on the target, stated once.

Torch's C++ asks "is this tensor on CUDA?" or "on the CPU?" in a few composite operators. Simulated tensors are
neither, so those few are registered here with the target's own composition.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["install_composites"]

Tensor = torch.Tensor
aten = torch.ops.aten
_lib = torch.library.Library("aten", "IMPL")


def install_composites(device_kind: str) -> None:
    """Register the compositions of this kind of device."""
    if device_kind == "cpu":
        _register("dropout", _dropout_cpu)
        _register("lstm.input", _lstm_cpu)


def _register(name: str, function: Any) -> None:
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _lib.impl(name, function, key)


def _dropout_cpu(source: Tensor, p: float, train: bool) -> Tensor:
    """The CPU has no fused dropout: a noise tensor of the input's type, scaled in place, then a product."""
    if not train or p == 0 or source.numel() == 0:
        return source
    if p == 1:
        return source.mul(torch.zeros((), dtype=source.dtype))
    noise = torch.empty_like(source).bernoulli_(1 - p).div_(1 - p)
    return source * noise


_LSTM_MODE = 2


def _lstm_cpu(
    source: Tensor,
    hx: list[Tensor],
    weights: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """On the CPU an LSTM is one oneDNN layer after another, each keeping its own workspace for backward."""
    per_layer = 4 if has_biases else 2
    directions = 2 if bidirectional else 1
    if len(weights) != per_layer * num_layers * directions:
        raise RuntimeError("an LSTM with projections is not simulated on the CPU yet")
    x = (source.transpose(0, 1) if batch_first else source).contiguous()
    hidden, cell = hx[0].contiguous(), hx[1].contiguous()
    last_hidden, last_cell = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            w = list(weights[i * per_layer : (i + 1) * per_layer])
            if not has_biases:
                w += [torch.zeros_like(w[0]), torch.zeros_like(w[1])]
            out, h, c, _ = aten.mkldnn_rnn_layer(
                x, w[0], w[1], w[2], w[3], hidden[i], cell[i], direction > 0, [], _LSTM_MODE, hidden.shape[2],
                num_layers, has_biases, bidirectional, batch_first, train,
            )  # fmt: skip
            outputs.append(out)
            last_hidden.append(h)
            last_cell.append(c)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, True)
    h_n, c_n = torch.stack(last_hidden, 0), torch.stack(last_cell, 0)
    return (x.transpose(0, 1) if batch_first else x), h_n, c_n
