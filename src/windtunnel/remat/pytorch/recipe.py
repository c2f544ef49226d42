"""How to recompute a value: the operator, and references instead of tensors.

    operator call ──> Recipe(operator, references, generator state) ──> run() ──> the same bits

A reference to a value names it and the geometry of the view the operator read; a reference to anything else
(weights, data, small tensors) holds the tensor and the version it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import torch

from windtunnel.remat.value import Value

__all__ = [
    "Blank",
    "Constant",
    "LiveValue",
    "Recipe",
    "StaleConstant",
    "ValueView",
    "rebuild",
    "value_of",
    "without_modes",
]

_RunFunction = Callable[..., Any]


class StaleConstant(RuntimeError):
    """An input of a recipe was changed, so the value cannot be recomputed."""


class LiveValue(Value):
    """A value with real bytes behind it."""

    __slots__ = ("index", "overwritten", "recipe", "slots", "storage", "weak")

    parents: tuple[LiveValue, ...]

    def __init__(self, storage: torch.UntypedStorage, cost: float, parents: tuple[LiveValue, ...], recipe: Recipe,
                 index: int, on_death: Callable[[Any], None]) -> None:  # fmt: skip
        super().__init__(storage.nbytes(), cost, parents)
        self.recipe = recipe
        self.index = index  # of this value among the operator's results
        self.storage: torch.UntypedStorage | None = None  # held by us: saved by autograd or recomputed
        self.slots: dict[int, torch.Tensor] = {}  # handle -> the tensor autograd gave us
        self.overwritten: dict[int, torch.Tensor] = {}  # the same, of a storage that has another value now
        self.live_in(storage, on_death)

    def live_in(self, storage: torch.UntypedStorage, on_death: Callable[[Any], None]) -> None:
        mine = ref(self)
        self.weak: Callable[[], torch.UntypedStorage | None] = ref(storage, lambda _: on_death(mine()))
        self.address = storage.data_ptr()

    def here(self) -> torch.UntypedStorage | None:
        return self.storage if self.storage is not None else self.weak()


class ValueView:
    """A view of a value, as an operator's argument."""

    __slots__ = ("dtype", "offset", "shape", "strides", "value")

    def __init__(self, value: LiveValue, tensor: torch.Tensor) -> None:
        self.value = value
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self.strides = tensor.stride()
        self.offset = tensor.storage_offset()


class Blank:
    """Memory without content (`empty_like` and friends), which the operator fills."""

    __slots__ = ("dtype", "n_bytes", "offset", "shape", "strides")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self.shape = tensor.shape
        self.strides = tensor.stride()
        self.offset = tensor.storage_offset()
        self.n_bytes = tensor.untyped_storage().nbytes()


class Constant:
    """A tensor that is never evicted. If it has been changed, it cannot be used."""

    __slots__ = ("tensor", "tracker", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        # Detached: a recipe must not keep the graph alive, and must read the original memory even if the program
        # replaces it (`weight.data = ...`). Below autograd, detaching also separates it from its version counter; for
        # a view of a weight (such as its transpose) the weight's own counter is as good.
        self.tensor = tensor.detach()
        if tensor.grad_fn is None:
            self.tracker = tensor
        else:
            base = tensor._base
            self.tracker = base if base is not None and base.grad_fn is None else self.tensor
        self.version = _version_of(self.tracker)

    @property
    def is_changed(self) -> bool:
        return (
            _version_of(self.tracker) != self.version
            and self.tracker.untyped_storage()._cdata == self.tensor.untyped_storage()._cdata
        )


class Recipe:
    __slots__ = ("args", "generator_state", "kwargs", "n_bytes", "operator", "results", "writes")

    def __init__(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.operator = operator
        self.args = args
        self.kwargs = kwargs
        self.generator_state: torch.Tensor | None = None
        self.n_bytes = 0  # that running it allocates
        self.results: list[ref[LiveValue] | None] = []
        self.writes: ValueView | Blank | None = None  # the argument it writes into, if it does

    def constants(self) -> Iterator[Constant]:
        for each in (*self.args, *self.kwargs.values()):
            for one in each if isinstance(each, (list, tuple)) else (each,):
                if type(one) is Constant:
                    yield one

    def run(
        self, device: torch.device, take: torch.UntypedStorage | None = None
    ) -> tuple[Any, torch.UntypedStorage | None]:
        """Return the operator's result, and the storage it wrote into, if it writes in place.

        `take` is that storage with the content before the write; without it a blank one is made.
        """
        target = self.writes
        written = take
        if isinstance(target, Blank):
            written = torch.empty(target.n_bytes, dtype=torch.uint8, device=device).untyped_storage()

        args = [self._fill(each, written, device) for each in self.args]
        kwargs = {name: self._fill(each, written, device) for name, each in self.kwargs.items()}
        if self.generator_state is None:
            return self.operator(*args, **kwargs), written
        now = generator_state(device)
        set_generator_state(device, self.generator_state)
        try:
            return self.operator(*args, **kwargs), written
        finally:
            set_generator_state(device, now)

    def _fill(self, each: Any, written: torch.UntypedStorage | None, device: torch.device) -> Any:
        """Turn a reference back into a tensor. (Not a nested function: a recursive one is a cycle and keeps memory.)"""
        kind = type(each)
        if kind is ValueView:
            target = self.writes
            is_target = type(target) is ValueView and each.value is target.value
            return rebuild(written if is_target else each.value.here(), each, device)
        if kind is Blank:
            return rebuild(written, each, device)
        if kind is Constant:
            return _unchanged(each, self.operator)
        if kind is list or kind is tuple:
            return kind(self._fill(one, written, device) for one in each)
        return each


def value_of(storage: torch.UntypedStorage) -> LiveValue | Blank | None:
    """What is known about the content of a storage."""
    found = storage.__dict__.get("_windtunnel")
    return found() if type(found) is ref else found


class without_modes:
    """Run operators exactly as they were recorded: below autograd, autocast and modes, with gradients enabled.

    (Gradients enabled: some kernels check this, and compute what backward needs only then. No graph is built.)
    """

    def __enter__(self) -> None:
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)
        self._guards = (
            torch._C._DisableAutocast(),
            torch._C._DisableTorchDispatch(),
            torch._C._AutoDispatchBelowAutograd(),
        )
        for guard in self._guards[1:]:
            guard.__enter__()

    def __exit__(self, *_: object) -> None:
        for guard in reversed(self._guards[1:]):
            guard.__exit__(None, None, None)
        del self._guards
        torch._C._set_grad_enabled(self._grad)


def rebuild(storage: torch.UntypedStorage | None, view: Any, device: torch.device) -> torch.Tensor:
    """A tensor of the view's geometry on the storage."""
    if storage is None:
        raise StaleConstant("a tensor that is needed to recompute another one has been freed")
    return torch.empty(0, dtype=view.dtype, device=device).set_(
        storage, view.offset, view.shape, view.strides
    )


def generator_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.default_generator.get_state()
    return getattr(torch, device.type).get_rng_state(device)


def set_generator_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cpu":
        torch.default_generator.set_state(state)
    else:
        getattr(torch, device.type).set_rng_state(state, device)


def _version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # an inference tensor has none


def _unchanged(constant: Constant, operator: Any) -> torch.Tensor:
    tensor = constant.tensor
    if constant.is_changed:
        raise StaleConstant(
            f"cannot recompute {operator}: one of its inputs, of shape {tuple(tensor.shape)}, was changed in"
            f" place after it ran (version {constant.tracker._version}, was {constant.version}); update weights after"
            " backward() has ended, or raise dtr.evictee_minimum_size"
        )
    if tensor.untyped_storage().nbytes() == 0 and tensor.numel():
        raise StaleConstant(
            f"cannot recompute {operator}: one of its inputs, of shape {tuple(tensor.shape)}, has been freed"
        )
    return tensor
