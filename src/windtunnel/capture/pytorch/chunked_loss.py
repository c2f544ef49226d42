"""Run a program with its last projection and cross-entropy computed in chunks, as a what-if requests.

    F.linear(x, head) ──> Logits, which do not exist yet ──> .float(), .view(-1, classes), … ──> F.cross_entropy
        └──> any other use: computed now                         for each chunk of tokens, under a checkpoint:
                                                                     F.cross_entropy(head(chunk), labels, "sum")

Every projection to more features than it gets may be the last one, so its result waits for its first use. If that is
not a cross-entropy, the result is computed there, and projections with a weight of that shape no longer wait.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from windtunnel.errors import ScriptError

__all__ = ["install_chunked_loss"]

Tensor = torch.Tensor
RowWise = Callable[[Tensor], Tensor]  # a function of logits that treats each token alone

_plain_linear: Callable[..., Tensor] = F.linear
_plain_matmul: Callable[..., Tensor] = torch.matmul
_without_dispatch = torch._C.DisableTorchFunctionSubclass
_inside = threading.local()  # .depth: checkpoints that the forward pass is inside of


@dataclass
class _State:
    """What this process knows about its projections."""

    n_chunks: int = 1
    has_chunked: bool = False  # a loss was computed in chunks
    not_heads: set[tuple[int, ...]] = field(default_factory=set)  # shapes of weights


_state = _State()


def install_chunked_loss(n_chunks: int) -> Callable[[], bool]:
    """Compute every cross-entropy of a projection in chunks; returns a function that returns whether there was one."""
    _state.n_chunks = n_chunks
    patched: Any = torch
    patched.nn.functional.linear = linear
    patched.matmul = matmul
    patched.Tensor.matmul = patched.Tensor.__matmul__ = matmul
    _compute_before_custom_functions()
    _watch_checkpoints()
    return lambda: _state.has_chunked


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # the names are torch's
    input = _value(input)
    if not _may_be_a_head(input, weight, weight.shape[0] if weight.dim() == 2 else 0):
        return _plain_linear(input, weight, bias)
    return _Head(_plain_linear, input, weight, bias).logits()


def matmul(input: Tensor, other: Tensor, **options: Any) -> Tensor:
    input = _value(input)
    is_plain = isinstance(other, Tensor) and not options
    if not is_plain or not _may_be_a_head(input, other, other.shape[1] if other.dim() == 2 else 0):
        return _plain_matmul(input, _value(other), **options)
    return _Head(_plain_matmul, input, other).logits()


def _may_be_a_head(x: Tensor, weight: Tensor, n_classes: int) -> bool:
    return (
        torch.is_grad_enabled()
        and type(x) is Tensor
        and x.dim() >= 2
        and x.is_floating_point()
        and type(weight) in (Tensor, torch.nn.Parameter)
        and (x.requires_grad or weight.requires_grad)
        and n_classes > x.shape[-1]
        and prod(weight.shape) == n_classes * x.shape[-1]
        and tuple(weight.shape) not in _state.not_heads
        # A checkpoint demands that both forward passes save the same tensors in the same order.
        and not getattr(_inside, "depth", 0)
    )


class _Head:
    """A projection that waits: its input, its weight, and the autocast it was called under."""

    def __init__(self, function: Callable[..., Tensor], x: Tensor, weight: Tensor, *rest: Any) -> None:
        self.function = function
        self.rest = (weight, *rest)
        self.device = x.device
        self.autocast = _autocast_of(self.device)
        self.n_classes = prod(weight.shape) // x.shape[-1]
        self.shape_of_weight = tuple(weight.shape)
        is_cast, dtype = self.autocast
        self.dtype = dtype if is_cast and x.dtype != torch.float64 else x.dtype
        self.requires_grad = True
        self.inputs: list[_Rows] = []
        self._x = x

    def logits(self) -> Logits:
        rows = _Rows(self, self._x)
        del self._x  # the rows hold it, until backward
        return Logits(rows, (), self.dtype, lambda: self.project(rows.tokens))

    def project(self, x: Tensor) -> Tensor:
        is_same = _autocast_of(self.device) == self.autocast
        is_enabled, dtype = self.autocast
        context: AbstractContextManager[Any] = (
            nullcontext() if is_same else torch.autocast(self.device.type, dtype=dtype, enabled=is_enabled)
        )
        with context:
            return self.function(x, *self.rest)

    def release(self, gradient: Tensor) -> None:
        """Backward begins: a program with a chunked loss holds its tokens no longer than that."""
        for rows in self.inputs:
            rows.release()


class _Rows:
    """The tokens that logits will be computed from."""

    def __init__(self, head: _Head, tokens: Tensor) -> None:
        self.head = head
        self.shape = tokens.shape
        self._tokens: Tensor | None = tokens
        head.inputs.append(self)

    @property
    def tokens(self) -> Tensor:
        if self._tokens is None:
            raise ScriptError(
                "the script uses the logits after backward, and with a chunked loss they never exist",
                hint="remove --chunk-loss, or the use of the logits",
            )
        return self._tokens

    @property
    def is_released(self) -> bool:
        return self._tokens is None

    def release(self) -> None:
        self._tokens = None


class Logits(torch.Tensor):
    """The result of a projection that is not computed yet."""

    _rows: _Rows
    _row_wise: tuple[RowWise, ...]
    _compute: Callable[[], Tensor] | None
    _computed: Tensor | None
    _is_transposed: bool

    @staticmethod
    def __new__(
        cls: type[Logits],
        rows: _Rows,
        row_wise: tuple[RowWise, ...],
        dtype: torch.dtype,
        compute: Callable[[], Tensor],
        is_transposed: bool = False,
    ) -> Logits:
        *shape, _ = rows.shape
        sizes = (
            [*shape, rows.head.n_classes]
            if not is_transposed
            else [shape[0], rows.head.n_classes, *shape[1:]]
        )
        made = torch.Tensor._make_wrapper_subclass(cls, sizes, dtype=dtype, device=rows.head.device)
        made._rows, made._row_wise, made._compute = rows, row_wise, compute
        made._computed, made._is_transposed = None, is_transposed
        return made

    def value(self) -> Tensor:
        """The logits themselves, computed by the program's own calls."""
        if self._computed is None:
            assert self._compute is not None
            self._computed, self._compute = self._compute(), None
            self._rows.release()  # as after any projection: the program decides what stays
            if self._rows.head.requires_grad:  # no loss was made of them
                _state.not_heads.add(self._rows.head.shape_of_weight)
        return self._computed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, Logits) and first._computed is None:
            if func in _METADATA:
                with _without_dispatch():
                    return func(*args, **kwargs)
            found = _later(func, first, args[1:], kwargs)
            if found is not None:
                return found
        return func(*_values(args), **{name: _values(value) for name, value in kwargs.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise ScriptError(
            f"the loss cannot be computed in chunks: the script gives the logits to code that is not Python ({func})",
            hint="remove --chunk-loss",
        )

    # What a dry run replaces in torch.Tensor no longer asks __torch_function__.

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._rows.head.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return self.device.type == "cpu"

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return self._rows.head.requires_grad

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        given = [*args, *(value for name, value in kwargs.items() if name != "non_blocking")]
        dtypes = [each for each in given if isinstance(each, torch.dtype)]
        others = [each for each in given if not isinstance(each, torch.dtype)]
        is_here = all(isinstance(each, torch.device) and each == self.device for each in others)
        if self._rows.is_released or not is_here or len(dtypes) > 1:
            return self.value().to(*args, **kwargs)
        return _cast(self, dtypes[0]) if dtypes else self


def _computing(name: str) -> Callable[..., Any]:
    def method(self: Logits, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.value(), name)(*args, **kwargs)

    return method


for _name in "type cuda npu cpu numpy tolist __array__ __setitem__ __repr__ __deepcopy__ pin_memory __matmul__ matmul".split():
    setattr(Logits, _name, _computing(_name))
Logits.data = property(lambda self: self.value().data)  # type: ignore[assignment]

_METADATA = {
    *(getattr(Tensor, name).__get__ for name in "shape ndim dtype layout".split()),
    *(
        getattr(Tensor, name)
        for name in "size dim numel nelement is_floating_point is_complex ndimension __len__ __hash__".split()
    ),
}


# -- what logits may go through before the loss -----------------------------------------------------------------


def _later(func: Any, logits: Logits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Postpone the function, or compute the loss in chunks; None: the function needs the logits now."""
    if logits._rows.is_released:
        return None
    if func in _LOSSES:
        return _loss_of(func, logits, args, kwargs)
    if logits._is_transposed:
        return None
    if func in _CASTS:
        return _cast(logits, _CASTS[func]) if not args and not kwargs else None
    if func in _OF_EACH_TOKEN:
        if any(isinstance(each, Tensor) for each in (*args, *kwargs.values())):
            return None
        return _then(logits, lambda x: func(x, *args, **kwargs), logits.dtype)
    if func in _LOG_SOFTMAX:
        return _log_softmax(func, logits, *args, **kwargs)
    rows = _OF_ROWS[func](logits, *args, **kwargs) if func in _OF_ROWS else None
    if rows is None:
        return None
    return Logits(
        _Rows(logits._rows.head, rows), logits._row_wise, logits.dtype, lambda: func(logits.value(), *args, **kwargs),
        func in _TRANSPOSITIONS,
    )  # fmt: skip


def _then(logits: Logits, function: RowWise, dtype: torch.dtype) -> Logits:
    return Logits(logits._rows, (*logits._row_wise, function), dtype, lambda: function(logits.value()))


def _cast(logits: Logits, dtype: torch.dtype) -> Logits:
    return logits if dtype == logits.dtype else _then(logits, lambda x: x.to(dtype), dtype)


def _log_softmax(
    func: Any, logits: Logits, dim: int | None = None, *args: Any, dtype: Any = None, **kwargs: Any
) -> Logits | None:
    if args or dim not in (-1, logits.dim() - 1):
        return None
    is_cast, _ = _autocast_of(logits.device)
    made = dtype or (torch.float32 if is_cast else logits.dtype)
    return _then(logits, lambda x: func(x, dim=-1, dtype=dtype), made)


def _view(logits: Logits, *shape: Any, **named: Any) -> Tensor | None:
    if named or not shape:
        return None
    sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if (
        not all(isinstance(size, int) for size in sizes)
        or not sizes
        or sizes[-1] not in (logits.shape[-1], -1)
    ):
        return None
    tokens, n_rows = logits._rows.tokens, prod(logits.shape[:-1])
    if sizes[-1] == -1 and prod(sizes[:-1]) != n_rows:
        return None
    return tokens.reshape(*sizes[:-1], tokens.shape[-1])


def _flatten(logits: Logits, start_dim: int = 0, end_dim: int = -1) -> Tensor | None:
    return (
        logits._rows.tokens.flatten(start_dim, end_dim) if end_dim % logits.dim() < logits.dim() - 1 else None
    )


def _item(logits: Logits, index: Any) -> Tensor | None:
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(part, (list, tuple, Logits)) for part in parts):
        return None
    n_dims = [_dims_of(part) for part in parts]
    is_dotted = any(part is Ellipsis for part in parts)
    reaches_the_last = parts[-1] is not Ellipsis if is_dotted else sum(n_dims) >= logits.dim()
    is_whole = isinstance(parts[-1], slice) and parts[-1] == slice(None)
    return logits._rows.tokens[index] if is_whole or not reaches_the_last else None


def _dims_of(part: Any) -> int:
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) else 1


def _contiguous(logits: Logits, **options: Any) -> Tensor | None:
    return logits._rows.tokens.contiguous() if not options else None


def _transpose(logits: Logits, dim0: int, dim1: int) -> Tensor | None:
    """Classes second, as the loss of a sequence expects them."""
    is_of_classes = logits.dim() == 3 and {dim0 % 3, dim1 % 3} == {1, 2}
    return logits._rows.tokens if is_of_classes else None


def _permute(logits: Logits, *dims: Any, **named: Any) -> Tensor | None:
    if named or not dims:
        return None
    order = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
    is_of_classes = logits.dim() == 3 and [each % 3 for each in order] == [0, 2, 1]
    return logits._rows.tokens if is_of_classes else None


_CASTS = {Tensor.float: torch.float32, Tensor.double: torch.float64, Tensor.half: torch.float16,
          Tensor.bfloat16: torch.bfloat16}  # fmt: skip
_OF_EACH_TOKEN = {
    *(getattr(Tensor, f"__{name}__") for name in "add radd sub rsub mul rmul truediv neg".split()),
    *(getattr(where, name) for where in (torch, Tensor) for name in "add sub mul div neg tanh clamp".split()),
}
_LOG_SOFTMAX = {F.log_softmax, torch.log_softmax, Tensor.log_softmax}
_TRANSPOSITIONS = {
    torch.transpose: _transpose,
    Tensor.transpose: _transpose,
    torch.permute: _permute,
    Tensor.permute: _permute,
}
_OF_ROWS: dict[Any, Callable[..., Tensor | None]] = {
    Tensor.view: _view, Tensor.reshape: _view, torch.reshape: _view, Tensor.flatten: _flatten, torch.flatten: _flatten,
    Tensor.__getitem__: _item, Tensor.contiguous: _contiguous, **_TRANSPOSITIONS,
}  # fmt: skip


# -- the loss ---------------------------------------------------------------------------------------------------

_LOSSES = {F.cross_entropy: inspect.signature(F.cross_entropy), F.nll_loss: inspect.signature(F.nll_loss)}


def _loss_of(func: Any, logits: Logits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    given = _LOSSES[func].bind(logits, *args, **kwargs)
    given.apply_defaults()
    options = dict(given.arguments)
    labels, reduction = options.pop("target"), options.pop("reduction")
    options.pop("input")
    rows, head = logits._rows, logits._rows.head
    is_usual = all(options.pop(name) is None for name in ("weight", "size_average", "reduce"))
    is_by_class = (
        isinstance(labels, Tensor) and not labels.is_floating_point() and labels.shape == rows.shape[:-1]
    )
    is_two_dimensional = logits._is_transposed or len(rows.shape) == 2
    if not (is_usual and is_by_class and is_two_dimensional and reduction in ("mean", "sum", "none")):
        return None

    row_wise = logits._row_wise

    def of_chunk(tokens: Tensor, wanted: Tensor) -> Tensor:
        made = head.project(tokens)
        for function in row_wise:
            made = function(made)
        return func(made, wanted, reduction="none" if reduction == "none" else "sum", **options)

    _state.has_chunked = True
    chunks = zip(
        rows.tokens.flatten(0, -2).chunk(_state.n_chunks),
        labels.flatten().chunk(_state.n_chunks),
        strict=True,
    )
    losses = [torch.utils.checkpoint.checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks]
    if reduction == "none":
        loss = torch.cat(losses).view(labels.shape)
    else:
        loss = torch.stack(losses).sum()
        loss = loss / (labels != options["ignore_index"]).sum() if reduction == "mean" else loss
    head.requires_grad = False  # the logits are no part of the graph
    if loss.requires_grad:
        loss.register_hook(head.release)
    return loss


# -- torch around it --------------------------------------------------------------------------------------------


def _value(given: Any) -> Any:
    return given.value() if isinstance(given, Logits) else given


def _values(given: Any) -> Any:
    if isinstance(given, (tuple, list)):
        made = [_values(each) for each in given]
        return tuple(made) if isinstance(given, tuple) else made
    return _value(given)


def _autocast_of(device: torch.device) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)


def _compute_before_custom_functions() -> None:
    """Their `apply` does not ask __torch_function__."""
    function: Any = torch.autograd.Function
    plain = vars(function)["apply"]  # a method of Python; in newer versions of torch one of C

    def apply(kind: type, *args: Any, **kwargs: Any) -> Any:
        given = {name: _value(value) for name, value in kwargs.items()}
        return plain.__get__(None, kind)(*map(_value, args), **given)

    function.apply = classmethod(apply)


def _watch_checkpoints() -> None:
    hook: Any = torch.utils.checkpoint._checkpoint_hook
    enter, leave = hook.__enter__, hook.__exit__

    def __enter__(self: Any) -> Any:
        _inside.depth = getattr(_inside, "depth", 0) + 1
        return enter(self)

    def __exit__(self: Any, *error: object) -> Any:
        _inside.depth -= 1
        return leave(self, *error)

    hook.__enter__, hook.__exit__ = __enter__, __exit__
