"""Seconds of a matrix product: how its result falls into tiles, and the tiles into waves over the device.

    Signature ──> products_of ──> Product (batch, rows, columns, inner) ──> product_seconds ──> seconds

A kernel library chooses the tile, and how often to split the inner dimension, that ends first; so does this model. What
it then predicts by itself: results that are a little larger than a whole number of waves, thin matrices, short inner
dimensions, few large tiles on many processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as product_of
from math import ceil, prod

from windtunnel.events.model import Signature
from windtunnel.events.scalars import arguments_of
from windtunnel.timing.operators.mindspore_products import PRODUCTS
from windtunnel.timing.operators.operator_classes import base_name
from windtunnel.timing.roofline.calibration import Calibration

__all__ = ["Product", "Rates", "product_seconds", "products_of"]

_TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32))
_SPLITS = (1, 2, 3, 4, 6, 8, 16)
_BEST_LOADS = 1 / 256 + 1 / 128  # numbers loaded for each multiplication in the largest tile
_PARTIAL_BYTES = 8  # a split product's partial sums are written and read in float32
_STEP = 32  # inner elements that a tile multiplies at a time


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products of rows x inner with inner x columns."""

    batch: float
    rows: float
    columns: float
    inner: float

    @property
    def flops(self) -> int:
        return round(2 * self.batch * self.rows * self.columns * self.inner)


@dataclass(frozen=True, slots=True)
class Rates:
    """Of the device at hand."""

    flops: float  # peak of the data type, per second
    bandwidth: float  # bytes a second that long reads reach
    n_processors: int


def products_of(signature: Signature) -> list[Product]:
    """The matrix products an operator is made of; none if it is another kind or of an unknown form."""
    rule = _RULES.get(base_name(signature.name))
    if rule is None:
        return []
    try:
        return [p for p in rule(signature) if min(p.batch, p.rows, p.columns, p.inner) > 0]
    except (IndexError, ValueError):
        return []


def product_seconds(product: Product, rates: Rates, calibration: Calibration) -> float:
    """The fastest way to tile it, without the time every kernel takes."""
    # No way is forbidden by a threshold, so that a larger product never ends sooner.
    options = product_of(_TILES, _SPLITS)
    return min(_option_seconds(product, rates, calibration, *tile, split) for tile, split in options)


def _option_seconds(
    product: Product, rates: Rates, calibration: Calibration, rows: int, columns: int, split: int
) -> float:
    n_tiles = product.batch * ceil(product.rows / rows) * ceil(product.columns / columns) * split
    waves = ceil(n_tiles / rates.n_processors)
    loads = 1 / rows + 1 / columns
    share = calibration.matmul_share / (1 + calibration.tile_loss * (loads / _BEST_LOADS - 1))
    steps = ceil(product.inner / split / _STEP) * _STEP
    one = 2 * rows * columns * steps / (rates.flops / rates.n_processors * share) + calibration.tile_us * 1e-6
    partial = 0 if split == 1 else split * product.batch * product.rows * product.columns * _PARTIAL_BYTES
    return waves * one + partial / rates.bandwidth


def _two(first: int):
    """Of the operands `first` and the next: two matrices, two batches, or one matrix and a batch."""

    def find(signature: Signature) -> Iterator[Product]:
        a, b = signature.inputs[first].shape, signature.inputs[first + 1].shape
        if len(a) == 1:
            a = (1, *a)
        if len(b) == 1:
            b = (*b, 1)
        if len(b) == 2:  # many matrices times one: rows of one large matrix
            yield Product(1, prod(a[:-1]), b[1], a[-1])
        else:
            yield Product(max(prod(a[:-2]), prod(b[:-2])), a[-2], b[-1], a[-1])

    return find


def _linear(signature: Signature) -> Iterator[Product]:
    data, weight = signature.inputs[0].shape, signature.inputs[1].shape
    yield Product(1, prod(data[:-1]), prod(weight[:-1]), data[-1])


def _grouped(signature: Signature) -> Iterator[Product]:
    """Groups of rows, taken as equally long, each with its own matrix."""
    a, b = signature.inputs[0].shape, signature.inputs[1].shape
    if len(b) == 3:
        yield Product(b[0], ceil(a[-2] / b[0]), b[-1], a[-1])
    else:
        n_groups = signature.outputs[0].shape[0] if signature.outputs else 1
        yield Product(n_groups, a[0], b[-1], ceil(a[-1] / n_groups))


def _convolution(signature: Signature) -> Iterator[Product]:
    """Each place of the result is a row; a weight's channels and window are the inner dimension."""
    data, weight = signature.inputs[0].shape, signature.inputs[1].shape
    arguments = arguments_of(signature.scalars)
    groups = int(arguments[8]) if len(arguments) > 8 and arguments[8].isdigit() else 1
    result = signature.outputs[0].shape if signature.outputs else data
    if (
        len(arguments) > 6 and arguments[6] == "True"
    ):  # transposed: positions of the data are multiplied with the weights
        yield Product(groups, data[0] * prod(data[2:]), prod(weight[1:]), weight[0] // groups)
    else:
        yield Product(groups, data[0] * prod(result[2:]), weight[0] // groups, prod(weight[1:]))


def _convolution_backward(signature: Signature) -> Iterator[Product]:
    """The gradients of the data and of the weight, as far as they are wanted."""
    gradient, data, weight = (spec.shape for spec in signature.inputs[:3])
    arguments = arguments_of(signature.scalars)
    groups = int(arguments[9]) if len(arguments) > 9 and arguments[9].isdigit() else 1
    is_transposed = len(arguments) > 7 and arguments[7] == "True"
    places = data[0] * prod((data if is_transposed else gradient)[2:])
    out, inner = weight[0] // groups, prod(weight[1:])
    mask = arguments[10].strip("[]").split(",") if len(arguments) > 10 else ["True", "True"]
    if mask[0] == "True":
        yield Product(groups, places, inner, out)
    if mask[1] == "True":
        yield Product(groups, out, inner, places)


def _in_mindspore(sizes):
    return lambda signature: (Product(*each) for each in sizes(signature))


_RULES = {
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot", "vdot", "_int_mm", "_scaled_mm"), _two(0)),
    **dict.fromkeys(("addmm", "addmv", "addbmm", "baddbmm", "_addmm_activation"), _two(1)),
    **dict.fromkeys(("linear", "mkldnn_linear"), _linear),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), _grouped),
    **dict.fromkeys(
        ("convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "mkldnn_convolution",
         "_slow_conv2d_forward"), _convolution
    ),
    **dict.fromkeys(("convolution_backward", "convolution_backward_overrideable"), _convolution_backward),
    **{name: _in_mindspore(sizes) for name, sizes in PRODUCTS.items()},
}  # fmt: skip
