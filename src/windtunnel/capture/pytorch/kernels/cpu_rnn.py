"""Recurrent layers as torch builds them on the CPU.

    lstm ──> one oneDNN layer after another, each keeping its own workspace for backward
    gru, rnn_tanh, rnn_relu, projected or packed lstm ──> the whole sequence's input product, then cell after cell

On accelerators torch uses fused cells instead. It checks the tensor's device for that, so simulated tensors are handled
here first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.known_values import values_of

__all__ = ["CPU_RNN"]

Tensor = torch.Tensor
aten = torch.ops.aten
_linear = torch.nn.functional.linear
_LSTM_MODE = 2
_Hidden = tuple[Tensor, ...]  # (hidden,) or an LSTM's (hidden, cell)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Parameters of one layer in one direction."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    hr: Tensor | None = None  # projects an LSTM's hidden state

    def product(self, source: Tensor) -> Tensor:
        return _linear(source, self.ih, self.bias_ih)


# (input product, hidden, weights) -> new hidden. The product is computed when torch computes it: backward reverses it.
_Product = Callable[[], Tensor]
_Cell = Callable[[_Product, _Hidden, _Weights], _Hidden]


# -- cells --------------------------------------------------------------------------------------------------------


def _lstm_cell(igates: _Product, hidden: _Hidden, w: _Weights) -> _Hidden:
    gates = _linear(hidden[0], w.hh, w.bias_hh).add_(igates())
    chunks = gates.unsafe_chunk(4, 1)
    ingate, forget, new, out = (
        chunks[0].sigmoid_(),
        chunks[1].sigmoid_(),
        chunks[2].tanh_(),
        chunks[3].sigmoid_(),
    )
    cell = (forget * hidden[1]).add_(ingate * new)
    shown = out * cell.tanh()
    return (shown if w.hr is None else torch.matmul(shown, w.hr.t())), cell


def _gru_cell(igates: _Product, hidden: _Hidden, w: _Weights) -> _Hidden:
    chunked_igates = igates().unsafe_chunk(3, 1)
    chunked_hgates = _linear(hidden[0], w.hh, w.bias_hh).unsafe_chunk(3, 1)
    reset = chunked_hgates[0].add_(chunked_igates[0]).sigmoid_()
    update = chunked_hgates[1].add_(chunked_igates[1]).sigmoid_()
    new = chunked_igates[2].add(chunked_hgates[2].mul_(reset)).tanh_()
    return ((hidden[0] - new).mul_(update).add_(new),)


def _tanh_cell(igates: _Product, hidden: _Hidden, w: _Weights) -> _Hidden:
    return (_linear(hidden[0], w.hh, w.bias_hh).add_(igates()).tanh(),)


def _relu_cell(igates: _Product, hidden: _Hidden, w: _Weights) -> _Hidden:
    return (_linear(hidden[0], w.hh, w.bias_hh).add_(igates()).relu(),)


def _single(cell: _Cell) -> Callable[..., Any]:
    """`nn.GRUCell`, `nn.RNNCell`: one step."""

    def run(
        source: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
    ) -> Tensor:
        w = _Weights(w_ih, w_hh, b_ih, b_hh)
        return cell(lambda: w.product(source), (hx,), w)[0]

    return run


def _single_lstm(
    source: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None
) -> tuple[Tensor, ...]:
    w = _Weights(w_ih, w_hh, b_ih, b_hh)
    return _lstm_cell(lambda: w.product(source), tuple(hx), w)


# -- layers -------------------------------------------------------------------------------------------------------


def _itself(product: Tensor) -> Tensor:
    return product


def _run_cells(cell: _Cell, steps: Any, hidden: _Hidden, w: _Weights) -> tuple[list[Tensor], _Hidden]:
    outputs = []
    for step in steps:
        hidden = cell(partial(_itself, step), hidden, w)
        outputs.append(hidden[0])
    return outputs, hidden


def _layer(
    cell: _Cell, source: Tensor, hiddens: list[_Hidden], ws: list[_Weights]
) -> tuple[Tensor, list[_Hidden]]:
    """One layer, one direction or both: outputs of all steps, and the last hidden states.

    Variables live as long as in torch's own code: the first direction's products until the second's are made.
    """
    steps = ws[0].product(source).unbind(0)
    outputs, last = _run_cells(cell, steps, hiddens[0], ws[0])
    forward = torch.stack(outputs, 0)
    if len(ws) == 1:
        return forward, [last]
    steps = ws[1].product(source).unbind(0)
    reverse_outputs, reverse_last = _run_cells(cell, reversed(steps), hiddens[1], ws[1])
    reverse_outputs.reverse()
    reverse = torch.stack(reverse_outputs, 0)
    return torch.cat([forward, reverse], forward.dim() - 1), [last, reverse_last]


def _packed_layer(sizes: list[int]) -> Callable[..., tuple[Tensor, list[_Hidden]]]:
    """The same for a packed sequence: `sizes[t]` rows belong to step t, fewer and fewer."""

    def run(
        cell: _Cell, source: Tensor, hiddens: list[_Hidden], ws: list[_Weights]
    ) -> tuple[Tensor, list[_Hidden]]:
        forward, last = _packed_forward(cell, ws[0].product(source), sizes, hiddens[0], ws[0])
        if len(ws) == 1:
            return forward, [last]
        reverse, reverse_last = _packed_reverse(cell, ws[1].product(source), sizes, hiddens[1], ws[1])
        return torch.cat([forward, reverse], -1), [last, reverse_last]

    return run


def _packed_forward(
    cell: _Cell, product: Tensor, sizes: list[int], hidden: _Hidden, w: _Weights
) -> tuple[Tensor, _Hidden]:
    outputs, ended, start = [], [], 0
    for size in sizes:
        step, start, n = product.narrow(0, start, size), start + size, hidden[0].shape[0]
        if size < n:
            ended.append(tuple(h.narrow(0, size, n - size) for h in hidden))
            hidden = tuple(h.narrow(0, 0, size) for h in hidden)
        hidden = cell(partial(_itself, step), hidden, w)
        outputs.append(hidden[0])
    ended.append(hidden)
    return torch.cat(outputs, 0), _joined(ended[::-1])


def _packed_reverse(
    cell: _Cell, product: Tensor, sizes: list[int], first: _Hidden, w: _Weights
) -> tuple[Tensor, _Hidden]:
    outputs, end = [], sum(sizes)
    hidden = tuple(h.narrow(0, 0, sizes[-1]) for h in first)
    for size in reversed(sizes):
        n = hidden[0].shape[0]
        if size > n:
            hidden = _joined([hidden, tuple(h.narrow(0, n, size - n) for h in first)])
        end -= size
        step = product.narrow(0, end, size)
        hidden = cell(partial(_itself, step), hidden, w)
        outputs.append(hidden[0])
    return torch.cat(outputs[::-1], 0), hidden


def _joined(hiddens: list[_Hidden]) -> _Hidden:
    return tuple(torch.cat(parts, 0) for parts in zip(*hiddens, strict=True))


# -- stacks of layers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """The arguments of torch's operators besides the tensors."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool

    def weights(self, flat: Sequence[Tensor]) -> list[list[_Weights]]:
        """Per layer, per direction."""
        directions = 2 if self.bidirectional else 1
        size = len(flat) // (self.num_layers * directions)
        own = []
        for i in range(0, len(flat), size):
            ih, hh, *rest = flat[i : i + size]
            bias_ih, bias_hh = rest[:2] if self.has_biases else (None, None)
            own.append(_Weights(ih, hh, bias_ih, bias_hh, rest[-1] if len(rest) % 2 else None))
        return [own[i : i + directions] for i in range(0, len(own), directions)]


def _run_layers(
    layer: Any, cell: _Cell, x: Tensor, hiddens: list[_Hidden], flat: Any, shape: _Shape
) -> tuple[Any, ...]:
    last: list[_Hidden] = []
    for i, ws in enumerate(shape.weights(flat)):
        x, ended = layer(cell, x, hiddens[i * len(ws) : (i + 1) * len(ws)], ws)
        last += ended
        if shape.dropout and shape.train and i < shape.num_layers - 1:
            x = torch.dropout(x, shape.dropout, True)
    backwards = [
        torch.stack(parts, 0) for parts in reversed(list(zip(*last, strict=True)))
    ]  # as C++ takes arguments
    return (x, *reversed(backwards))


def _states(hx: Any) -> list[_Hidden]:
    return list(zip(*(h.unbind(0) for h in ([hx] if isinstance(hx, Tensor) else hx)), strict=True))


def _stack_of(cell: _Cell) -> Callable[..., tuple[Tensor, ...]]:
    def run(source: Tensor, hx: Any, weights: list[Tensor], *shape: Any) -> tuple[Tensor, ...]:
        *rest, batch_first = shape
        x = source.transpose(0, 1) if batch_first else source
        x, *last = _run_layers(_layer, cell, x, _states(hx), weights, _Shape(*rest))
        return (x.transpose(0, 1) if batch_first else x), *last

    return run


def _packed_stack_of(cell: _Cell) -> Callable[..., tuple[Tensor, ...]]:
    def run(
        source: Tensor, batch_sizes: Tensor, hx: Any, weights: list[Tensor], *shape: Any
    ) -> tuple[Tensor, ...]:
        sizes = values_of(batch_sizes)
        assert sizes is not None  # made by pack_padded_sequence from lengths it had to know
        return _run_layers(_packed_layer(sizes.tolist()), cell, source, _states(hx), weights, _Shape(*shape))

    return run


def _lstm(source: Tensor, hx: list[Tensor], weights: list[Tensor], *shape: Any) -> tuple[Tensor, ...]:
    has_biases, num_layers, dropout, train, bidirectional, batch_first = shape
    per_layer = _Shape(*shape[:-1]).weights(weights)
    if per_layer[0][0].hr is not None:  # oneDNN has no projections
        return _stack_of(_lstm_cell)(source, hx, weights, *shape)
    x = (source.transpose(0, 1) if batch_first else source).contiguous()
    hidden, cell = hx[0].contiguous(), hx[1].contiguous()
    last_hidden, last_cell = [], []
    for layer, ws in enumerate(per_layer):
        outputs = []
        for direction, w in enumerate(ws):
            i = layer * len(ws) + direction
            bias_hh = w.bias_hh if has_biases else torch.zeros(w.hh.shape, dtype=w.hh.dtype)
            bias_ih = w.bias_ih if has_biases else torch.zeros(w.ih.shape, dtype=w.ih.dtype)
            out, h, c, _ = aten.mkldnn_rnn_layer(
                x, w.ih, w.hh, bias_ih, bias_hh, hidden[i], cell[i], direction > 0, [], _LSTM_MODE, hidden.shape[2],
                num_layers, has_biases, bidirectional, batch_first, train,
            )  # fmt: skip
            outputs.append(out)
            last_hidden.append(h)
            last_cell.append(c)
        x = outputs[0] if len(ws) == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, True)
    h_n, c_n = torch.stack(last_hidden, 0), torch.stack(last_cell, 0)
    return (x.transpose(0, 1) if batch_first else x), h_n, c_n


_CELLS = {"lstm": _lstm_cell, "gru": _gru_cell, "rnn_tanh": _tanh_cell, "rnn_relu": _relu_cell}
CPU_RNN: dict[str, Callable[..., Any]] = {
    **{f"{name}.input": _stack_of(cell) for name, cell in _CELLS.items()},
    **{f"{name}.data": _packed_stack_of(cell) for name, cell in _CELLS.items()},
    **{f"{name}_cell": _single(cell) for name, cell in _CELLS.items()},
    "lstm.input": _lstm,
    "lstm_cell": _single_lstm,
}
