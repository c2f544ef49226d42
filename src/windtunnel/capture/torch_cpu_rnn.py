"""Recurrent layers as torch builds them on the CPU.

    lstm ──> one oneDNN layer after another, each keeping its own workspace for backward
    gru, rnn_tanh, rnn_relu ──> the whole sequence's input product first, then one cell after another

On accelerators torch takes fused cells instead, and it tells the CPU by asking the tensor: simulated tensors are asked
here before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CPU_RNN"]

Tensor = torch.Tensor
aten = torch.ops.aten
_LSTM_MODE = 2
_Cell = Callable[[Tensor, Tensor, Tensor, Any], Tensor]  # (input product, hidden, weight, bias) -> new hidden


def _lstm(
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


def _gru_cell(igates: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    chunked_igates = igates.unsafe_chunk(3, 1)
    chunked_hgates = torch.nn.functional.linear(hidden, weight, bias).unsafe_chunk(3, 1)
    reset = chunked_hgates[0].add_(chunked_igates[0]).sigmoid_()
    update = chunked_hgates[1].add_(chunked_igates[1]).sigmoid_()
    new = chunked_igates[2].add(chunked_hgates[2].mul_(reset)).tanh_()
    return (hidden - new).mul_(update).add_(new)


def _tanh_cell(igates: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden, weight, bias).add_(igates).tanh()


def _relu_cell(igates: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(hidden, weight, bias).add_(igates).relu()


def _products(source: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
    """The input product of all steps at once, one view per step."""
    bias = weights[2] if len(weights) == 4 else None
    return torch.nn.functional.linear(source, weights[0], bias).unbind(0)


def _run_cells(cell: _Cell, steps: Any, hidden: Tensor, weights: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    bias = weights[3] if len(weights) == 4 else None
    outputs = []
    for step in steps:
        hidden = cell(step, hidden, weights[1], bias)
        outputs.append(hidden)
    return outputs, hidden


def _layer(cell: _Cell, source: Tensor, hiddens: Any, weights: list[list[Tensor]]) -> tuple[Tensor, list[Tensor]]:
    """One layer, one direction or both: outputs of all steps, and the last hidden states.

    Variables live as long as in torch's own code: the first direction's products until the second's are made.
    """
    steps = _products(source, weights[0])
    outputs, last = _run_cells(cell, steps, hiddens[0], weights[0])
    forward = torch.stack(outputs, 0)
    if len(weights) == 1:
        return forward, [last]
    steps = _products(source, weights[1])
    reverse_outputs, reverse_last = _run_cells(cell, reversed(steps), hiddens[1], weights[1])
    reverse_outputs.reverse()
    reverse = torch.stack(reverse_outputs, 0)
    return torch.cat([forward, reverse], forward.dim() - 1), [last, reverse_last]


def _stack_of(cell: _Cell) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        source: Tensor,
        hx: Tensor,
        weights: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, Tensor]:
        per_layer = 4 if has_biases else 2
        directions = 2 if bidirectional else 1
        x = source.transpose(0, 1) if batch_first else source
        hiddens = hx.unbind(0)
        last: list[Tensor] = []
        own = [list(weights[i : i + per_layer]) for i in range(0, len(weights), per_layer)]
        for layer in range(num_layers):
            mine = slice(layer * directions, (layer + 1) * directions)
            x, hidden = _layer(cell, x, hiddens[mine], own[mine])
            last += hidden
            if dropout and train and layer < num_layers - 1:
                x = torch.dropout(x, dropout, True)
        stacked = torch.stack(last, 0)
        return (x.transpose(0, 1) if batch_first else x), stacked

    return run


CPU_RNN: dict[str, Callable[..., Any]] = {
    "lstm.input": _lstm,
    "gru.input": _stack_of(_gru_cell),
    "rnn_tanh.input": _stack_of(_tanh_cell),
    "rnn_relu.input": _stack_of(_relu_cell),
}
