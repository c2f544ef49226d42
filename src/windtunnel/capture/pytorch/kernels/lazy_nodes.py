"""Values that are computed when something reads them, as nodes of a graph.

    Choice (routers.py), constants, fills ──> Derived(operator, inputs) ──> computed(): real torch on the host

Equal computations are one node, so a routing that all layers share is followed once. Bytes are kept while there is room and
computed again if need be. What a storage holds is never changed in place: an operator that writes makes a new node.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from windtunnel.capture.pytorch.kernels.known_values import (
    Fill,
    Implied,
    raw_bytes,
    run_on_host,
)
from windtunnel.capture.pytorch.kernels.shape_inference import wrap_numbers
from windtunnel.capture.pytorch.tensors.storage import CPU, SimStorage, sim_of
from windtunnel.capture.pytorch.tensors.strides import contiguous_strides

__all__ = ["MOST_BYTES", "Choice", "Derived", "Lazy", "derive", "interned", "mask_of"]

Tensor = torch.Tensor
MOST_BYTES = 1 << 30  # of one value: more is not followed, and reported
_CACHED_BYTES = 1 << 29  # of this machine's memory, for values that may be read again
_LONGEST_CHAIN = (
    100  # of operators: then the values are computed, so that a counter kept for ever is one number
)
_HASHED_BYTES = 1 << 20  # constants up to this size are compared with each other
_LARGEST_CONSTANT = 1 << 26  # bytes that are copied because a lazy value depends on them
_numbers = itertools.count()
_nodes: weakref.WeakValueDictionary[Any, Lazy] = weakref.WeakValueDictionary()
_cached: OrderedDict[int, Lazy] = OrderedDict()  # those whose bytes are kept, oldest first
_cached_bytes = 0
_found: OrderedDict[Any, Tensor] = OrderedDict()  # nonzero elements of parts of lazy values
_MOST_FOUND = 1024


class Lazy(Implied):
    """The values of one storage, computed when they are read."""

    __slots__ = ("__weakref__", "bytes", "choices", "depth", "has_failed", "key", "n_bytes", "number")
    is_complete = True

    def __init__(self, key: Any, n_bytes: int, depth: int, choices: frozenset[Choice] | None) -> None:
        self.key = key
        self.number = next(_numbers)
        self.n_bytes = n_bytes
        self.depth = depth
        self.choices = choices or frozenset()
        self.bytes: Tensor | None = None
        self.has_failed = False

    def computed(self) -> Tensor | None:
        """The bytes, which nobody may change; None if they cannot be computed."""
        for choice in self.sources():
            choice.is_read()
        return self.compute()

    def sources(self) -> frozenset[Choice]:
        """The choices that these values follow from."""
        return self.choices

    def compute(self) -> Tensor | None:
        if self.bytes is None and not self.has_failed:
            try:
                with _disable_current_modes():
                    self.make()
            except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
                self.has_failed = True
        elif self.number in _cached:
            _cached.move_to_end(self.number)
        return self.bytes

    def nonzero(self, tensor: Tensor, known: Tensor) -> Tensor:
        """A loop over experts asks this of every expert in every layer."""
        key = (self.number, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        found = _found.get(key)
        if found is None:
            found = _found[key] = known.ne(0).contiguous().nonzero()
            if len(_found) > _MOST_FOUND:
                _found.popitem(last=False)
        return found

    def make(self) -> None:
        """Compute and `keep` the bytes."""
        raise NotImplementedError

    def keep(self, made: Tensor) -> None:
        global _cached_bytes
        if self.bytes is None:
            _cached[self.number] = self
            _cached_bytes += self.n_bytes
        self.bytes = made
        while _cached_bytes > _CACHED_BYTES and len(_cached) > 1:
            _, oldest = _cached.popitem(last=False)
            _cached_bytes -= oldest.n_bytes
            if oldest is not self:
                oldest.bytes = None  # it can be computed again


class _Constant(Lazy):
    """Bytes as they were when an operator read them."""

    __slots__ = ()

    def __init__(self, key: Any, made: Tensor) -> None:
        super().__init__(key, made.numel(), 0, None)
        self.bytes = made


class _Filled(Lazy):
    """One number everywhere."""

    __slots__ = ("dtype", "value")

    def __init__(self, key: Any, value: Any, dtype: torch.dtype, n_bytes: int) -> None:
        super().__init__(key, n_bytes, 0, None)
        self.value, self.dtype = value, dtype

    def make(self) -> None:
        made = raw_bytes(self.n_bytes)
        if self.value:
            made.view(self.dtype).fill_(self.value)
        self.keep(made)


class Choice(Lazy):
    """Which experts the tokens choose, in the layout of an index tensor."""

    __slots__ = ("inputs", "lines", "make_indices", "report")

    def __init__(self, key: Any, n_bytes: int, inputs: Iterable[Lazy], make: Callable[[], Tensor]) -> None:
        super().__init__(key, n_bytes, 1, None)
        self.inputs = tuple(inputs)
        self.make_indices = make
        self.lines: dict[str, None] = {}  # where the program makes this choice
        self.report: Callable[[str], None] | None = None

    def sources(self) -> frozenset[Choice]:
        return frozenset([self]).union(*(each.sources() for each in self.inputs))

    def is_read(self) -> None:
        for line in self.lines if self.report is not None else ():
            self.report(line)  # type: ignore[misc]  # it is not None

    def make(self) -> None:
        self.keep(self.make_indices())


class _Ref:
    """A tensor argument: which storage of the call, and the geometry on it."""

    __slots__ = ("dtype", "offset", "shape", "slot", "strides")

    def __init__(self, slot: int, tensor: Tensor) -> None:
        self.slot = slot
        self.dtype, self.shape, self.strides = tensor.dtype, tuple(tensor.shape), tensor.stride()
        self.offset = int(tensor.storage_offset())

    def key(self) -> Any:
        return ("ref", self.slot, self.dtype, self.shape, self.strides, self.offset)

    def on(self, buffers: list[Tensor]) -> Tensor:
        return torch.as_strided(buffers[self.slot].view(self.dtype), self.shape, self.strides, self.offset)


class _Call:
    """One operator on nodes; computing any of its results computes all of them."""

    __slots__ = ("args", "kwargs", "nodes", "op", "outputs", "results", "written")

    def __init__(self, op: Any, args: list[Any], kwargs: dict[str, Any], nodes: list[Lazy],
                 written: frozenset[int], outputs: list[Any]) -> None:  # fmt: skip
        self.op, self.args, self.kwargs = op, args, kwargs
        self.nodes, self.written, self.outputs = nodes, written, outputs
        self.results: weakref.WeakValueDictionary[tuple[str, int], Derived] = weakref.WeakValueDictionary()

    def run(self) -> None:
        buffers = []
        for slot, node in enumerate(self.nodes):
            made = node.compute()
            if made is None:
                raise RuntimeError("an input cannot be computed")
            buffers.append(made.clone() if slot in self.written else made)
        real = run_on_host(
            self.op, [_thaw(a, buffers) for a in self.args], {k: _thaw(a, buffers) for k, a in self.kwargs.items()}
        )  # fmt: skip
        each = list(real) if isinstance(real, (list, tuple)) else [real]
        for (kind, i), node in list(self.results.items()):
            node.keep(buffers[i] if kind == "written" else _packed(each[i], self.outputs[i]))


class Derived(Lazy):
    """A storage that an operator made or wrote to."""

    __slots__ = ("call", "which")

    def __init__(self, key: Any, call: _Call, which: tuple[str, int], n_bytes: int) -> None:
        depth = 1 + max((node.depth for node in call.nodes), default=0)
        super().__init__(key, n_bytes, depth, frozenset().union(*(node.sources() for node in call.nodes)))
        self.call = call
        self.which = which
        call.results[which] = self

    def make(self) -> None:
        self.call.run()


def _packed(real: Tensor, spec: Any) -> Tensor:
    """The bytes of a storage with the layout that the simulated result has."""
    _, shape, strides, dtype, n_bytes = spec
    if tuple(real.shape) != shape or real.dtype != dtype:
        raise RuntimeError("the host's kernel returns something else")
    made = raw_bytes(n_bytes)
    if n_bytes:
        torch.as_strided(made.view(dtype), shape, strides, 0).copy_(real)
    return made


# -- nodes ------------------------------------------------------------------------------------------------------


def interned(key: Any, make: Callable[[], Lazy]) -> Lazy:
    """The node with this key: equal computations are one."""
    node = _nodes.get(key)
    if node is None:
        node = _nodes[key] = make()
    return node


def constant(values: Tensor) -> Lazy:
    """What these bytes are now."""
    if values.numel() > _HASHED_BYTES:
        return _Constant(None, values.clone())
    content = values.numpy().tobytes()
    key = ("constant", len(content), hashlib.blake2b(content, digest_size=16).digest())
    return interned(key, lambda: _Constant(key, values.clone()))


def filled(value: Any, dtype: torch.dtype, n_bytes: int) -> Lazy:
    key = ("filled", type(value), value, dtype, n_bytes)
    return interned(key, lambda: _Filled(key, value, dtype, n_bytes))


def _node_of(sim: SimStorage, dtype: torch.dtype) -> Lazy | None:
    """The values of a storage as a node; None: they are unknown."""
    values = sim.values
    if isinstance(values, Lazy):
        return values
    if isinstance(values, Fill):
        return filled(values.value, dtype, sim.n_bytes) if sim.n_bytes <= MOST_BYTES else None
    return constant(values) if isinstance(values, Tensor) and values.numel() <= _LARGEST_CONSTANT else None


class _Freezer:
    """Replaces the tensors among the arguments by references to nodes."""

    def __init__(self, overwritten: list[Tensor]) -> None:
        self.nodes: list[Lazy] = []
        self._slots: dict[int, int] = {}
        self._overwritten = {sim.id for sim in map(sim_of, overwritten) if sim is not None}
        self.is_complete = True

    def slot_of(self, sim: SimStorage, dtype: torch.dtype) -> int:
        if sim.id not in self._slots:
            node = _node_of(sim, dtype)
            if node is None and sim.id in self._overwritten:
                node = filled(0, torch.uint8, sim.n_bytes)
            if node is None:
                self.is_complete = False
                return -1
            self._slots[sim.id] = len(self.nodes)
            self.nodes.append(node)
        return self._slots[sim.id]

    def freeze(self, a: Any) -> Any:
        if isinstance(a, Tensor):
            sim = sim_of(a)
            if sim is not None:
                return _Ref(self.slot_of(sim, a.dtype), a)
            flat = a.detach().contiguous().reshape(-1)
            self.nodes.append(constant(flat.view(torch.uint8) if a.numel() else raw_bytes(0)))
            return _Ref(len(self.nodes) - 1, flat.reshape(a.shape))
        if isinstance(a, (list, tuple)):
            return [self.freeze(each) for each in a]
        return a


def _thaw(a: Any, buffers: list[Tensor]) -> Any:
    if isinstance(a, _Ref):
        return a.on(buffers)
    if isinstance(a, list):
        return [_thaw(each, buffers) for each in a]
    return a


def _key_of(a: Any) -> Any:
    if isinstance(a, _Ref):
        return a.key()
    if isinstance(a, list):
        return tuple(map(_key_of, a))
    return (type(a), a)


def derive(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[tuple[Tensor | None, Any]],
           written: list[Tensor], overwritten: list[Tensor] | None = None) -> bool:  # fmt: skip
    """Let the results and the written tensors hold what the operator computes of its arguments.

    `results` are new tensors with their specifications. False, and nothing is changed: an input is unknown.
    """
    freezer = _Freezer(overwritten or [])
    frozen = [freezer.freeze(a) for a in wrap_numbers(op, args)]
    named = {k: CPU if k == "device" else freezer.freeze(a) for k, a in kwargs.items()}
    if not freezer.is_complete:
        return False
    slots = {sim.id: freezer.slot_of(sim, t.dtype) for t in written if (sim := sim_of(t)) is not None}
    numbers = tuple(node.number for node in freezer.nodes)
    key = (op, _key_of(frozen), tuple((k, _key_of(a)) for k, a in named.items()), numbers)
    outputs = [spec for _, spec in results]
    call = _Call(op, frozen, named, freezer.nodes, frozenset(slots.values()), outputs)
    made = [(sim_of(t), ("new", i), spec[4]) for i, (t, spec) in enumerate(results) if t is not None]
    made += [
        (sim, ("written", slots[sim.id]), sim.n_bytes) for t in written if (sim := sim_of(t)) is not None
    ]
    for sim, which, n_bytes in made:
        if sim is None:
            continue
        sim.values = _shortened(_result_of(call, key, which, n_bytes))
    return True


def _result_of(call: _Call, key: Any, which: tuple[str, int], n_bytes: int) -> Lazy:
    try:
        return interned((key, which), lambda: Derived((key, which), call, which, n_bytes))
    except TypeError:  # an argument that cannot be compared
        return Derived(None, call, which, n_bytes)


def _shortened(node: Lazy) -> Any:
    """A long chain ends here: its values take the place of what they were computed from."""
    if node.depth < _LONGEST_CHAIN:
        return node
    made = node.compute()
    return None if made is None else constant(made)


def mask_of(op: Any, args: list[Any], like: Tensor) -> Lazy:
    """Bools of an operator on lazy tensors, contiguous; `like` itself, if it is an argument, counts as all false."""
    shape, n = tuple(like.shape), like.numel()
    spec = ("new", shape, contiguous_strides(shape), torch.bool, n)
    nodes: list[Lazy] = []

    def freeze(a: Any) -> Any:
        if not isinstance(a, Tensor):
            return a
        sim = sim_of(a)
        assert sim is not None
        nodes.append(filled(0, torch.bool, n) if a is like else sim.values)
        ref = _Ref(len(nodes) - 1, a)
        if a is like:
            ref.dtype, ref.strides, ref.offset = torch.bool, spec[2], 0
        return ref

    frozen = [freeze(a) for a in args]
    key = ("hint", op, _key_of(frozen), tuple(node.number for node in nodes))
    call = _Call(op, frozen, {}, nodes, frozenset(), [spec])
    return _result_of(call, key, ("new", 0), n)
