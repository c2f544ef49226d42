"""The matrix products inside MindSpore's primitives, from the shapes of what goes in and what comes out.

    Signature of `ms.MatMul`, `ms.ConvolutionGrad`, ... ──> (batch, rows, columns, inner) of each product

A recording does not show whether an operand is transposed, so the result decides: its last two sizes are rows and
columns, and what is left of the first operand is the inner dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isqrt, prod

from windtunnel.events.model import Signature, TensorSpec

__all__ = ["PRODUCTS", "ProductSizes", "tensors_of"]

ProductSizes = tuple[float, float, float, float]  # batch, rows, columns, inner
_Shape = tuple[int, ...]
_Rule = Callable[[list[_Shape], list[_Shape]], Iterator[ProductSizes]]
_NUMBERS = ("int64", "int32", "bool")


def tensors_of(signature: Signature) -> tuple[TensorSpec, ...]:
    """The inputs without the numbers and switches that a compiled graph hands over as tensors of one element."""
    if not signature.name.startswith("ms."):
        return signature.inputs
    return tuple(spec for spec in signature.inputs if spec.shape or spec.dtype not in _NUMBERS)


def _matmul(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    a, b, result = inputs[0], inputs[1], outputs[0]
    if len(a) == 1 or len(b) == 1:  # a vector: one product for each number of the result
        yield 1, prod(result), 1, a[0] if len(a) == 1 else b[0]
        return
    *batch, rows, columns = result
    inner = a[-2] * a[-1] // rows
    if len(b) == 2:  # many matrices times one: rows of one large matrix
        yield 1, prod(batch) * rows, columns, inner
    else:
        yield prod(batch), rows, columns, inner


def _dense(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    data, weight = inputs[0], inputs[1]
    yield 1, prod(data[:-1]), prod(weight[:-1]), data[-1]


def _added(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    """What is added comes first, and in place it is the result too."""
    a, b = inputs[1], inputs[2]
    if len(b) == 1:
        yield 1, a[-2], 1, a[-1]
    else:
        yield prod(a[:-2]), a[-2], b[-1], a[-1]


def _accumulated(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    """The gradient of a weight, added to it in place: the third operand."""
    rows, columns = inputs[2][-2:]
    yield 1, rows, columns, prod(inputs[0]) // rows


def _outer(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    yield 1, inputs[-2][0], inputs[-1][0], 1


def _grouped(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    """Groups of rows, each with its own matrix; taken as equally long."""
    n = len(outputs)
    if n > 1:  # lists of operands
        for a, b in zip(inputs[:n], inputs[n : 2 * n], strict=True):
            yield 1, prod(a[:-1]), b[-1], a[-1]
        return
    a, b = inputs[0], inputs[1]
    if len(b) == 3:
        yield b[0], prod(a[:-1]) / b[0], b[-1], a[-1]
    else:  # a gradient of weights: the groups share the inner dimension
        yield from _grouped_weights(a, outputs[0])


def _grouped_added(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    yield from _grouped_weights(inputs[0], [shape for shape in inputs if len(shape) == 3][-1])


def _grouped_weights(rows_of_all: _Shape, gradient: _Shape) -> Iterator[ProductSizes]:
    n_groups, rows, columns = gradient
    yield n_groups, rows, columns, prod(rows_of_all) / rows / n_groups


def _grouped_backward(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    """From the result's gradient: that of the data, and that of the weights."""
    n_groups, inner, columns = inputs[2]
    rows = prod(inputs[1]) / inner / n_groups
    yield n_groups, rows, inner, columns
    yield n_groups, inner, columns, rows


def _einsum(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    """The equation is not recorded: sizes all three begin with are the batch, the others are multiplied as in a product."""
    a, b, result = inputs[0], inputs[1], outputs[0]
    n_shared = 0
    while n_shared < min(len(a), len(b), len(result)) and a[n_shared] == b[n_shared] == result[n_shared]:
        n_shared += 1
    batch = prod(result[:n_shared])
    left, right, made = (prod(shape[n_shared:]) for shape in (a, b, result))
    inner = isqrt(left * right // made)  # of rows x inner, inner x columns, rows x columns
    yield batch, left // inner, right // inner, inner


# -- convolutions: each place of a result is a row, a weight's channels and window are the inner dimension --------


def _convolution(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    data, weight, result = inputs[0], inputs[1], outputs[0]
    if result[1] != weight[0]:
        yield from _transposed(inputs, outputs)
    else:
        groups = data[1] // weight[1]
        yield groups, data[0] * prod(result[2:]), weight[0] // groups, prod(weight[1:])


def _transposed(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    """Positions of the data are multiplied with the weights; so are those of the gradient for the data."""
    data, weight, result = inputs[0], inputs[1], outputs[0]
    groups = result[1] // weight[1]
    yield groups, data[0] * prod(data[2:]), prod(weight[1:]), weight[0] // groups


def _filter_gradient(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    gradient, data, weight = inputs[0], inputs[1], outputs[0]
    groups = data[1] // weight[1]
    yield groups, weight[0] // groups, prod(weight[1:]), gradient[0] * prod(gradient[2:])


def _convolution_gradients(inputs: list[_Shape], outputs: list[_Shape]) -> Iterator[ProductSizes]:
    """Those of the data and of the weight, as far as they are among the results."""
    gradient, data, weight = inputs[:3]
    is_transposed = gradient[1] != weight[0]
    groups = (gradient[1] if is_transposed else data[1]) // weight[1]
    places = data[0] * prod((data if is_transposed else gradient)[2:])
    out, inner = weight[0] // groups, prod(weight[1:])
    if data in outputs:
        yield groups, places, inner, out
    if weight in outputs:
        yield groups, out, inner, places


def _rule(find: _Rule) -> Callable[[Signature], list[ProductSizes]]:
    def products(signature: Signature) -> list[ProductSizes]:
        inputs = [spec.shape for spec in tensors_of(signature)]
        try:
            return list(find(inputs, [spec.shape for spec in signature.outputs]))
        except (IndexError, ValueError, ZeroDivisionError):
            return []  # not called as expected: bounded by its bytes

    return products


_NAMES: dict[_Rule, str] = {
    _matmul: """
        MatMul MatMulExt MatMulV2 BatchMatMul BatchMatMulExt BatchMatMulV2 Mm Mv Dot Vdot FusedMatMulBiasAdd
        MatMulBiasAddFusion MatMulBiasAddReluFusion FusedMatmulElemBinary FusedMatmulElemUnary AllGatherMatmul
        QuantMatmul QuantBatchMatmul WeightQuantBatchMatmul MatMulAllReduce
    """,
    _dense: "Dense",
    _added: "Addmm Addmv Addbmm Baddbmm InplaceAddmm",
    _accumulated: "InplaceMatmulAdd",
    _outer: "Outer Ger InplaceAddr",
    _grouped: "GroupedMatmul GroupedMatmulV2 GroupedMatmulV4 Gmm GmmV2",
    _grouped_added: "InplaceGroupedMatmulAdd",
    _grouped_backward: "GmmBackward GmmV2Backward GmmBackwardFusion GmmV2BackwardFusion",
    _einsum: "Einsum EinsumExt",
    _convolution: """
        Conv2D Conv3D Conv1DExt Conv2DExt Conv3DExt Conv1DPadding Conv2DPadding Conv3DPadding Convolution
        ConvolutionStr DepthwiseConv2dNative
    """,
    _transposed: """
        ConvTranspose2D Conv2DTranspose Conv3DTranspose Conv2DBackpropInput Conv3DBackpropInput Conv2DBackpropInputD
        Conv3DBackpropInputD Conv2DTransposeD Conv3DTransposeD
    """,
    _filter_gradient: "Conv2DBackpropFilter Conv3DBackpropFilter Conv2DBackpropFilterD Conv3DBackpropFilterD",
    _convolution_gradients: "ConvolutionGrad ConvolutionStrGrad",
}
PRODUCTS = {name: _rule(find) for find, names in _NAMES.items() for name in names.split()}
