"""Infer what an operator returns: shapes, strides and types from torch's own meta kernels, once per signature.

(op, args) ──> infer ──> Entry: how to make the results, what else the kernel allocates, its signature
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.shapes_and_strides import returns_nothing_new, shape_rules
from windtunnel.capture.pytorch.kernels.type_checks import check_types
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import new_tensor, sim_of, world
from windtunnel.events.model import Signature, TensorSpec

__all__ = ["Entry", "Pattern", "infer", "resize_out", "scalars_text", "tensor_spec", "wrap_numbers"]

Tensor = torch.Tensor
_META = torch.device("meta")
_empty_meta = torch.empty_strided  # torch's own, before constructors are replaced


class Pattern:
    """Allocation steps of one kernel: ("output" | "scratch" | "free" | "resize", which, bytes)."""

    __slots__ = ("n_numbers", "resizes", "steps")

    def __init__(self, steps: list[tuple[str, int, int]], n_numbers: int) -> None:
        self.steps = steps
        self.resizes = any(
            kind == "resize" for kind, _, _ in steps
        )  # an out= tensor gets its memory on the way
        self.n_numbers = (
            n_numbers  # the first so many scratch steps are Python numbers torch wraps into tensors
        )


class Entry:
    """What the memo holds: how to make the results of one operator on one set of shapes."""

    __slots__ = ("out_is_list", "outputs", "pattern", "resizes", "signature")

    def __init__(
        self, signature: int, outputs: list[Any], out_is_list: int, resizes: list[Any], pattern: Any
    ) -> None:
        self.signature = signature
        self.outputs = (
            outputs  # ("new", shape, strides, dtype, bytes) | ("arg", position or name) | None | plain value
        )
        self.out_is_list = out_is_list  # 0 a single value, 1 a list, 2 a tuple
        self.resizes = resizes  # (name of an out= argument, its new shape and strides)
        self.pattern = pattern  # allocation steps, or None: the outputs in order


# What the target's kernel returns and allocates, where it can be measured: the results, and the order of allocations
# (None: the results in order). Replaced when the CPU itself is the device.
ask_kernel: Callable[[Any, tuple[Any, ...], dict[str, Any], list[Any]], tuple[list[Any], Pattern | None]]
ask_kernel = lambda op, args, kwargs, outputs: (outputs, None)
# The kernel's results on zeros, where the device is available: for operators without a meta kernel.
run_kernel: Callable[[Any, list[Any], dict[str, Any]], Any] = lambda op, args, kwargs: None


def infer(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> Entry:
    """Find out what an operator returns from torch's meta kernel, and what it allocates from the target's kernel."""
    check_types(op, args)
    as_meta: dict[int, Tensor] = {}
    meta_args = [_to_meta(a, as_meta) for a in wrap_numbers(op, args)]
    meta_kwargs = {k: _META if k == "device" else _to_meta(a, as_meta) for k, a in kwargs.items()}
    if meta_kwargs.get("pin_memory"):
        meta_kwargs["pin_memory"] = False
    result = _on_meta(op, meta_args, meta_kwargs)
    position: dict[int, int | str] = {id(m): i for i, m in enumerate(meta_args) if isinstance(m, Tensor)}
    position |= {id(m): name for name, m in meta_kwargs.items() if isinstance(m, Tensor)}
    is_list = 1 if isinstance(result, list) else 2 if isinstance(result, tuple) else 0
    outputs = [_output_spec(r, position) for r in (result if is_list else [result])]
    outputs, pattern = ask_kernel(op, args, kwargs, outputs)
    resizes = _resized_outs(op, args, kwargs, meta_args, meta_kwargs)
    recorder = world.recorder
    signature = recorder.writer.signature(
        Signature(
            str(op),
            tuple(tensor_spec(t) for t in tensors),
            tuple(_tensor_spec_of(s) for s in outputs if isinstance(s, tuple) and s[0] == "new"),
            scalars_text(args, kwargs),
        )
    )
    return Entry(signature, outputs, is_list, resizes, pattern)


def _on_meta(op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    rule = shape_rules.get(op._schema.name)
    if rule is not None:
        return rule(op, *args, **kwargs)
    try:
        return op(*args, **kwargs)
    except NotImplementedError as error:
        if returns_nothing_new(op):
            written = [
                (i, a)
                for i, a in enumerate(op._schema.arguments)
                if a.alias_info is not None and a.alias_info.is_write
            ]
            results = [args[i] if i < len(args) else kwargs[a.name] for i, a in written][
                : len(op._schema.returns)
            ]
            return results[0] if len(results) == 1 else tuple(results) or None
        real = run_kernel(op, args, kwargs)
        if real is None:
            raise NotImplementedError(f"there is no shape rule for {op}: {error}") from None
        return real


def wrap_numbers(op: Any, args: Sequence[Any]) -> Sequence[Any]:
    """`x % 2` reaches a Python kernel as a number where the schema has a tensor: turn it into a tensor again.

    Torch does so itself for the operators it lists as taking numbers.
    """
    if _takes_numbers(op._schema.name.partition("::")[2]):
        return args
    wanted = op._schema.arguments
    return tuple(
        _scalar_tensor(a, dtype=_NUMBER_TYPES[type(a)]())
        if a.__class__ in _NUMBER_TYPES and str(wanted[i].type) == "Tensor"
        else a
        for i, a in enumerate(args)
    )


_takes_numbers = torch._C._should_allow_numbers_as_tensors
_scalar_tensor = torch.tensor  # torch's own, before constructors are replaced
_NUMBER_TYPES: dict[type, Callable[[], torch.dtype]] = {
    bool: lambda: torch.bool,
    int: lambda: torch.int64,
    float: torch.get_default_dtype,
    complex: lambda: torch.complex64,
}


def _to_meta(a: Any, made: dict[int, Tensor]) -> Any:
    if isinstance(a, Tensor):
        if a.dim() == 0 and sim_of(a) is None:
            return (
                a  # a host scalar: torch combines it with any device, and its promotion rules must not change
            )
        if id(a) not in made:
            made[id(a)] = _empty_meta(a.shape, a.stride(), dtype=a.dtype, device=_META)
        return made[id(a)]
    if isinstance(a, (list, tuple)):
        return [_to_meta(each, made) for each in a]
    if isinstance(a, torch.Generator):
        return None
    return a


def _output_spec(r: Any, position: dict[int, int | str]) -> Any:
    if not isinstance(r, Tensor):
        return r
    if id(r) in position:
        return ("arg", position[id(r)])
    shape, strides = tuple(r.shape), tuple(r.stride())
    return ("new", shape, strides, r.dtype, store.span_bytes(shape, strides, r.element_size()))


def _resized_outs(
    op: Any, args: Any, kwargs: Any, meta_args: list[Any], meta_kwargs: dict[str, Any]
) -> list[Any]:
    """Which `out=` tensors torch would resize: their meta counterparts were just resized."""
    names = [a.name for a in op._schema.arguments]
    pairs = [*zip(names, args, meta_args, strict=False), *((k, kwargs[k], meta_kwargs[k]) for k in kwargs)]
    return [
        (name, tuple(meta.shape), tuple(meta.stride()))
        for name, given, meta in pairs
        if isinstance(given, Tensor) and isinstance(meta, Tensor) and given.shape != meta.shape
    ]


def resize_out(
    op: Any, args: Any, kwargs: Any, name: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    names = [a.name for a in op._schema.arguments]
    tensor = kwargs[name] if name in kwargs else args[names.index(name)]
    sim = sim_of(tensor)
    if sim is not None:
        fresh = new_tensor(shape, strides, tensor.dtype, sim.device)
        store.set_storage(tensor, fresh.untyped_storage(), 0, shape, strides)


def tensor_spec(t: Tensor) -> TensorSpec:
    return TensorSpec(tuple(t.shape), tuple(t.stride()), str(t.dtype)[6:])


def _tensor_spec_of(spec: tuple[Any, ...]) -> TensorSpec:
    return TensorSpec(spec[1], spec[2], str(spec[3])[6:])


def scalars_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments as in a signature: `_` for each tensor, the rest as Python prints it."""

    def text(a: Any) -> str:
        if isinstance(a, Tensor):
            return "_"
        if isinstance(a, (list, tuple)):
            return "[" + ",".join(text(x) for x in a[:8]) + ("…]" if len(a) > 8 else "]")
        return repr(a)

    return ",".join([*(text(a) for a in args), *(f"{k}={text(a)}" for k, a in kwargs.items())])
