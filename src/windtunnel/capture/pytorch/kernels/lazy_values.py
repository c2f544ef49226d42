"""Values that are computed when something reads them: everything that follows from an assumed routing, and large integers.

    topk of unknown scores ──> Choice                               (routers.py)
    one_hot, sort, sum, cumsum, scatter_ of it ──> Derived(operator, inputs)
    nonzero, a mask, .tolist(), all_gather ──> computed() ──> real torch on the host, once for equal inputs

Nothing is computed for a program that only measures its accuracy. Equal computations are one node, so a routing that all
layers share is followed once. What a storage holds is never changed in place: an operator that writes makes a new node.
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
    covers_storage,
    discard_values,
    raw_bytes,
    ready_values,
    run_on_host,
)
from windtunnel.capture.pytorch.kernels.shape_inference import Entry, wrap_numbers
from windtunnel.capture.pytorch.tensors.storage import CPU, SimStorage, sim_of, world
from windtunnel.capture.pytorch.tensors.strides import contiguous_strides
from windtunnel.units import format_bytes

__all__ = ["Choice", "Derived", "Lazy", "Preferred", "copy_implied", "derive", "follow_lazily", "interned"]

Tensor = torch.Tensor
_MOST_BYTES = 1 << 30  # of one value: more is not followed, and reported
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


class Preferred(Implied):
    """Unknown scores of which it is known which elements are the highest: those that are not masked out."""

    __slots__ = ("allowed", "axis")
    is_complete = False

    def __init__(self, allowed: Lazy, axis: int | None) -> None:
        self.allowed = allowed  # one bool for each element of the storage
        self.axis = axis  # along which experts are, where a scatter wrote their scores


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
        return filled(values.value, dtype, sim.n_bytes) if sim.n_bytes <= _MOST_BYTES else None
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


# -- operators --------------------------------------------------------------------------------------------------


def follow_lazily(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: list[Any], entry: Entry,
                  written: tuple[int, ...], is_random: bool) -> None:  # fmt: skip
    """After an operator with a lazy input: what its results and written arguments hold now."""
    targets = _written(op, args, kwargs, written)
    specs = [
        (result, spec) if spec.__class__ is tuple and spec[0] == "new" else (None, spec)
        for result, spec in zip(results, entry.outputs, strict=True)
    ]
    if not is_random and not entry.resizes and not _is_measured(op, args) and _has_room(specs):
        overwritten = [
            t for t in targets if _is_out(op) and (s := sim_of(t)) is not None and covers_storage(t, s)
        ]
        if derive(op, args, kwargs, specs, targets, overwritten):
            return
    preferred = _preference(op, args)
    for each in targets:
        discard_values(each)
    if preferred is not None and results and isinstance(results[0], Tensor):
        _prefer(results[0], preferred)


def _is_out(op: Any) -> bool:
    return any(a.is_out for a in op._schema.arguments)


def _written(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: tuple[int, ...]
) -> list[Tensor]:
    found: list[Tensor] = []
    for i in written:
        a = args[i] if i < len(args) else kwargs.get(op._schema.arguments[i].name)
        found += [a] if isinstance(a, Tensor) else [t for t in a or () if isinstance(t, Tensor)]
    return found


def _is_measured(op: Any, args: tuple[Any, ...]) -> bool:
    """`prediction == label`: whether a prediction is right is not decided by a routing."""
    if op._schema.name not in ("aten::eq", "aten::ne") or not isinstance(args[1], Tensor):
        return False
    if args[0].shape != args[1].shape or args[0].numel() < 2:
        return False
    return sum(_is_routed(a) for a in args[:2]) == 1


def _is_routed(tensor: Tensor) -> bool:
    sim = sim_of(tensor)
    return sim is not None and isinstance(sim.values, Lazy) and bool(sim.values.sources())


def _has_room(specs: list[tuple[Any, Any]]) -> bool:
    n_bytes = sum(spec[4] for result, spec in specs if result is not None)
    if n_bytes > _MOST_BYTES:
        world.recorder.notice(
            f"{world.recorder.user_line()} computes {format_bytes(n_bytes)} from an assumed routing or other known values;"
            f" values up to {format_bytes(_MOST_BYTES)} are followed, so these count as unknown where they are read, and"
            " windtunnel.mock can set them"
        )
    return n_bytes <= _MOST_BYTES


def copy_implied(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)` where the source's values follow from something; both are simulated."""
    target_sim, source_sim = sim_of(target), sim_of(source)
    assert target_sim is not None
    assert source_sim is not None
    held, is_whole = source_sim.values, covers_storage(target, target_sim)
    if isinstance(held, Fill) and is_whole:
        target_sim.values = Fill(_cast(held.value, target.dtype))
    elif isinstance(held, Preferred) and is_whole and target.stride() == source.stride():
        target_sim.values = held
    elif not isinstance(held, Preferred) and not (isinstance(held, Fill) and target_sim.values is None):
        written = [target] if is_whole else []
        if not derive(torch.ops.aten.copy_.default, (target, source), {}, [], [target], written):
            target_sim.values = None
    else:
        target_sim.values = None


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return bool(value) if dtype is torch.bool else float(value) if dtype.is_floating_point else int(value)


# -- scores of which the highest are known ----------------------------------------------------------------------

_MASKING = ("aten::masked_fill", "aten::masked_fill_")
_SCATTERING = ("aten::scatter", "aten::scatter_")
_KEEPING_ORDER = ("aten::_softmax", "aten::sigmoid", "aten::clone")


def _prefer(tensor: Tensor, preferred: Preferred) -> None:
    sim = sim_of(tensor)
    if sim is not None and covers_storage(tensor, sim) and tensor.is_contiguous():
        sim.values = preferred


def _preference(op: Any, args: tuple[Any, ...]) -> Preferred | None:
    """What an operator whose result is unknown still says about the highest elements of it."""
    name = op._schema.name
    if name in _MASKING:
        return _unmasked(*args[:3])
    if name in _SCATTERING and len(args) == 4:
        return _scattered(*args[:3])
    if name in _KEEPING_ORDER:
        sim = sim_of(args[0])
        is_kept = sim is not None and isinstance(sim.values, Preferred) and args[0].is_contiguous()
        return sim.values if is_kept and sim is not None and covers_storage(args[0], sim) else None
    return None


def _unmasked(scores: Tensor, mask: Tensor, value: Any) -> Preferred | None:
    """`scores.masked_fill(mask, -inf)`: the others are higher."""
    if not isinstance(value, (int, float)) or value > 0 or not _is_routed(mask):
        return None
    return Preferred(_derived(torch.ops.aten.logical_not.default, [mask.expand(scores.shape)], scores), None)


def _scattered(base: Tensor, dim: int, index: Tensor) -> Preferred | None:
    """`zeros.scatter(1, experts, scores)`: nothing else is above zero."""
    sim = sim_of(base)
    if sim is None or not _is_routed(index):
        return None
    held = sim.values.value if isinstance(sim.values, Fill) else ready_values(base)
    if held is None or (bool(held.any()) if isinstance(held, Tensor) else held):
        return None
    chosen = _derived(torch.ops.aten.scatter.value, [base, dim, index, True], base)
    return Preferred(chosen, dim % base.dim())


def _derived(op: Any, args: list[Any], like: Tensor) -> Lazy:
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
