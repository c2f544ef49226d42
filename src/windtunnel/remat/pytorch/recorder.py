"""Record the forward pass: every operator with a large output leaves a recipe.

    operator ──> engine.before ──> run ──> Recipe + LiveValue on each large new storage ──> engine.after

A value is a Python attribute of its storage: a strong reference while only the program holds the storage, a weak one
once we hold the storage ourselves. So no reference cycle forms, and everything is freed by reference count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any
from weakref import ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.events.geometry import is_dense
from windtunnel.remat.pytorch.host import LiveHost
from windtunnel.remat.pytorch.operator_traits import Effect, Traits, traits_of
from windtunnel.remat.pytorch.recipe import (
    Blank,
    Constant,
    LiveValue,
    Recipe,
    ValueView,
    generator_state,
    value_of,
)
from windtunnel.timing.cost import cost_key

__all__ = ["Recorder"]

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_ARE_PLAIN = frozenset(
    _PLAIN_TENSORS
)  # torch lists these as subclasses too, for example at a gradient's detach


class Recorder(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(
        self,
        host: LiveHost,
        before_operator: Callable[[Hashable], None],
        is_on_side_stream: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.host = host
        self.engine = host.engine
        self._before_operator = before_operator
        self._is_on_side_stream = is_on_side_stream
        self._traits: dict[Any, Traits] = {}
        self._keys: dict[Any, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would wrap the method below so that dynamo never looks into it: a heavy import, and time per operator
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types and not _ARE_PLAIN.issuperset(types):
            if any(hasattr(each, "__tensor_flatten__") for each in types):
                return NotImplemented  # a wrapper subclass: its inner operators come by here
            return func(*args, **kwargs)  # such as fake tensors, which have no memory
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)  # a higher-order operator: what it calls comes by here
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = traits_of(func, self.host.device.type == "cuda")
        effect = traits.effect
        if effect == Effect.VIEW or not self.host.is_recording:
            return func(*args, **kwargs)
        if effect == Effect.WRITES:
            if (
                not traits.is_local
            ):  # another thread may have to join it first, so it must not wait for our lock
                return self._write(func, traits, args, kwargs)
            with self.host.lock:  # nothing may be recomputed from a half-written tensor
                return self._write(func, traits, args, kwargs)
        if traits.statistics and _is_training(args):
            self._before_hidden_writes(traits, args)
        is_left_alone = not torch.is_grad_enabled() or self._is_on_side_stream()
        if effect == Effect.PLAIN and not is_left_alone:
            return self._run(func, traits, args, kwargs)
        if traits.is_seeded:
            with self.host.lock:  # see _run
                return self.host.with_retry(func, args, kwargs)
        out = self.host.with_retry(func, args, kwargs)
        if is_left_alone:
            return out
        if effect == Effect.BLANK and self._is_ours(out):
            out.untyped_storage()._windtunnel = Blank(out)
        return out

    # -- operators that make something ----------------------------------------------------------------------

    def _run(self, func: Any, traits: Traits, args: Any, kwargs: Any) -> Any:
        engine, host = self.engine, self.host
        key = None
        if engine.is_in_backward or engine.is_near():
            key = self._key(traits.name, args)
            with host.lock:
                self._before_operator(key)
        state = None
        start = perf_counter()
        if traits.is_seeded:
            with host.lock:  # all threads share the generator: none may draw from it or reset it in between
                state = generator_state(host.device)
                start = perf_counter()
                out = host.with_retry(func, args, kwargs)
        else:
            out = host.with_retry(func, args, kwargs)
        seconds = perf_counter() - start
        outputs = (out,) if isinstance(out, torch.Tensor) else out
        minimum = max(host.settings.minimum_size, 1)
        total = large = 0
        for each in outputs:
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                n_bytes = each.untyped_storage().nbytes()
                total += n_bytes
                large = max(large, n_bytes)
        host.meter.grew(total)
        if large < minimum:
            return out
        with host.lock:
            key = key or self._key(traits.name, args)
            seconds = host.costs.seconds(key, seconds, func, args, out)
            self._record(func, traits, args, kwargs, outputs, (key, total, seconds, state, minimum))
        return out

    def _record(self, func: Any, traits: Traits, args: Any, kwargs: Any, outputs: Any,
                facts: tuple[Any, int, float, torch.Tensor | None, int]) -> None:  # fmt: skip
        key, total, seconds, state, minimum = facts
        references = _References(self.host.device, traits.statistics)
        recipe = references.recipe(func, args, kwargs)
        made: list[LiveValue] = []
        if recipe is not None and not (state is not None and _has_generator(args, kwargs)):
            recipe.generator_state = state
            recipe.n_bytes = total
            parents = tuple(references.values)
            for index, each in enumerate(outputs):
                value = None
                if self._is_ours(each):
                    storage = each.untyped_storage()
                    is_alias = storage._cdata in references.storages or "_windtunnel" in storage.__dict__
                    if storage.nbytes() >= minimum and not is_alias:
                        value = LiveValue(storage, seconds, parents, recipe, index, self.host.gone)
                        storage._windtunnel = value
                        made.append(value)
                        self.host.meter.saw(storage)
                recipe.results.append(None if value is None else ref(value))
            self.host.record_made(made)
            if made and references.has_constants:
                self.host.note_constants(recipe, made)
        self.engine.after(key, total, seconds, references.values, made)

    # -- operators that change something --------------------------------------------------------------------

    def _write(self, func: Any, traits: Traits, args: Any, kwargs: Any) -> Any:
        """Run an operator that writes into its arguments; what it writes into gets a new value."""
        host = self.host
        targets = _written_tensors(traits, args, kwargs)
        with host.lock:
            for target in targets:
                host.before_write(target)
        old = (
            value_of(targets[0].untyped_storage())
            if len(targets) == 1 and self._is_ours(targets[0])
            else None
        )
        can_rerun = (
            old is not None
            and traits.is_rerunnable
            and traits.written == (0,)
            and torch.is_grad_enabled()
            and (isinstance(old, LiveValue) or (traits.fills and _covers(targets[0], old)))
        )
        recipe = references = state = None
        if (
            can_rerun
        ):  # references are taken before the write, because they are to the versions and values it reads
            references = _References(host.device, (), written=targets[0], old=old)
            recipe = references.recipe(func, args, kwargs)
            if traits.is_seeded:
                state = generator_state(host.device)
                if _has_generator(args, kwargs):
                    recipe = None
        start = perf_counter()
        out = host.with_retry(func, args, kwargs)
        seconds = perf_counter() - start
        with host.lock:
            for target in targets:
                host.overwritten(target)
            if recipe is not None and references is not None:
                key = self._key(traits.name, args)
                seconds = host.costs.seconds(key, seconds, func, args, out)
                recipe.generator_state = state
                storage: Any = targets[0].untyped_storage()  # it gets an attribute of ours
                recipe.n_bytes = storage.nbytes()
                if storage.nbytes() >= max(host.settings.minimum_size, 1):
                    value = LiveValue(storage, seconds, tuple(references.values), recipe, 0, host.gone)
                    recipe.results.append(ref(value))
                    storage._windtunnel = value
                    host.record_made([value])
                    if references.has_constants:
                        host.note_constants(recipe, [value])
                    self.engine.after(key, 0, seconds, references.values, [value])
        return out

    def _key(self, name: str, args: Any) -> str:
        shapes = _shapes(args)
        key = self._keys.get((name, shapes))
        if key is None:
            key = self._keys[name, shapes] = cost_key(name, shapes)
        return key

    def _before_hidden_writes(self, traits: Traits, args: Any) -> None:
        """The schema does not say that running statistics are written."""
        with self.host.lock:
            for position in traits.statistics:
                if isinstance(args[position], torch.Tensor):
                    self.host.before_write(args[position])

    def _is_ours(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.device == self.host.device
            and tensor.layout is torch.strided
            and type(tensor) in _PLAIN_TENSORS
        )


class _References:
    """Turns an operator's arguments into references, and collects what they refer to."""

    def __init__(self, device: torch.device, statistics: tuple[int, ...], *,
                 written: torch.Tensor | None = None, old: Any = None) -> None:  # fmt: skip
        self.values: dict[LiveValue, None] = {}
        self.storages: set[int] = set()
        self.has_constants = False
        self._device = device
        self._statistics = statistics
        self._written = written
        self._old = old
        self._target: ValueView | Blank | None = None
        self._is_possible = True

    def recipe(self, func: Any, args: Any, kwargs: Any) -> Recipe | None:
        """None: it reads something that cannot be referred to (another device, a lazy conjugate, a subclass)."""
        # Running statistics are left out: they do not affect the result, and would be updated a second time.
        skipped = self._statistics if self._statistics and _is_training(args) else ()
        taken = tuple(None if i in skipped else self._take(each) for i, each in enumerate(args))
        named = {name: self._take(each) for name, each in kwargs.items()}
        if not self._is_possible or (not self.values and not self.has_constants and self._target is None):
            return None
        recipe = Recipe(func, taken, named)
        recipe.writes = self._target
        return recipe

    def _take(self, each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return self._take_tensor(each)
        if type(each) in (list, tuple) and each and isinstance(each[0], torch.Tensor | None):
            return type(each)(self._take(one) for one in each)
        return each

    def _take_tensor(self, tensor: torch.Tensor) -> Any:
        if (
            type(tensor) not in _PLAIN_TENSORS
            or tensor.layout is not torch.strided
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            self._is_possible = False
            return None
        if tensor.device != self._device:
            if tensor.dim():  # a zero-dimensional host tensor is a number
                self._is_possible = False
            self.has_constants = True
            return Constant(tensor)
        storage = tensor.untyped_storage()
        self.storages.add(storage._cdata)
        value = value_of(storage)
        if isinstance(value, LiveValue) and value.recipe is not None:
            self.values[value] = None
            view = ValueView(value, tensor)
            if tensor is self._written:
                self._target = view
            return view
        if isinstance(value, Blank):
            if tensor is self._written:
                self._target = Blank(tensor)
                return self._target
            self._is_possible = False  # reads memory that was never written, as far as we can see
            return None
        self.has_constants = True
        constant = Constant(tensor)
        weight = constant.tracker
        if hasattr(weight, "ds_id"):  # DeepSpeed frees a weight by replacing its data; a recipe would keep it
            self._is_possible = False
        elif not (type(weight) is torch.nn.Parameter or storage.resizable() or storage.is_shared()):
            self._is_possible = False  # memory of numpy or another library, which may change unnoticed
        return constant


def _shapes(args: Any) -> tuple[Any, ...]:
    found = []
    for each in args:
        if isinstance(each, torch.Tensor):
            found.append(each.shape)
        elif type(each) in (list, tuple):
            found.extend(one.shape for one in each if isinstance(one, torch.Tensor))
    return tuple(found)


def _written_tensors(traits: Traits, args: Any, kwargs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for position in traits.written:
        if position == -1:
            waiting = list(kwargs.values())
        else:
            waiting = [args[position]] if position < len(args) else []
        while waiting:
            each = waiting.pop()
            if isinstance(each, torch.Tensor):
                if each.layout is torch.strided:
                    found.append(each)
            elif type(each) in (list, tuple):
                waiting += each  # collectives have lists of lists
    return found


def _covers(tensor: torch.Tensor, blank: Any) -> bool:
    """True if writing every element of the tensor writes every byte of its storage."""
    n_bytes = tensor.numel() * tensor.element_size()
    return (
        n_bytes == blank.n_bytes and tensor.storage_offset() == 0 and is_dense(tensor.shape, tensor.stride())
    )


def _has_generator(args: Any, kwargs: Any) -> bool:
    return any(isinstance(each, torch.Generator) for each in (*args, *kwargs.values()))


def _is_training(args: Any) -> bool:
    """Whether a batch norm updates its running statistics: its first flag."""
    return next((each for each in args if isinstance(each, bool)), False)
