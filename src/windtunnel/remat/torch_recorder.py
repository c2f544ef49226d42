"""Watch the forward pass: every operator that makes something large leaves a recipe.

    operator ──> engine.before ──> run ──> Recipe + LiveValue on each large new storage ──> engine.after

A value hangs on its storage as a Python attribute, strongly while only the program holds the storage, weakly once
we hold the storage ourselves: so no cycle ever forms and all of it dies by reference count.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.events.geometry import is_dense
from windtunnel.remat.torch_recipe import Blank, Constant, LiveValue, Recipe, ValueView, generator_state
from windtunnel.remat.torch_traits import Conduct, Traits, traits_of
from windtunnel.timing.cost import cost_key

if TYPE_CHECKING:
    from windtunnel.remat.torch_runtime import Runtime

__all__ = ["Recorder", "value_of"]

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_ARE_PLAIN = frozenset(_PLAIN_TENSORS)  # torch lists these as subclasses too, for a gradient's detach say


def value_of(storage: torch.UntypedStorage) -> LiveValue | Blank | None:
    """What we know about the content of a storage."""
    found = storage.__dict__.get("_windtunnel")
    return found() if type(found) is ref else found


class Recorder(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime
        self.engine = runtime.engine
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
                return NotImplemented  # a wrapper of tensors: look at what it does inside
            return func(*args, **kwargs)  # no memory of ours: fake tensors, say
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)  # a higher-order operator: what it calls comes by here
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = traits_of(func, self.runtime.device.type == "cuda")
        conduct = traits.conduct
        if conduct == Conduct.VIEW or not self.runtime.is_recording:
            return func(*args, **kwargs)
        if conduct == Conduct.WRITES:
            if not traits.is_local:  # another thread may have to join it first: it must not wait for our lock
                return self._write(func, traits, args, kwargs)
            with self.runtime.lock:  # nothing may be computed again from what is half written
                return self._write(func, traits, args, kwargs)
        if traits.statistics and _is_training(args):
            self._before_hidden_writes(traits, args)
        is_left_alone = not torch.is_grad_enabled() or self.runtime.is_on_side_stream()
        if conduct == Conduct.PLAIN and not is_left_alone:
            return self._run(func, traits, args, kwargs)
        if traits.is_seeded:
            with self.runtime.lock:  # see _run
                return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if is_left_alone:
            return out
        if conduct == Conduct.BLANK and self._is_ours(out):
            out.untyped_storage()._windtunnel = Blank(out)
        return out

    # -- operators that make something ----------------------------------------------------------------------

    def _run(self, func: Any, traits: Traits, args: Any, kwargs: Any) -> Any:
        engine, runtime = self.engine, self.runtime
        key = None
        if engine.is_in_backward or engine.is_near():
            key = self._key(traits.name, args)
            with runtime.lock:
                runtime.before(key)
        state = None
        start = perf_counter()
        if traits.is_seeded:
            with (
                runtime.lock
            ):  # the generator is everyone's: no other thread may draw, or set it back, in between
                state = generator_state(runtime.device)
                start = perf_counter()
                out = runtime.with_retry(func, args, kwargs)
        else:
            out = runtime.with_retry(func, args, kwargs)
        seconds = perf_counter() - start
        outputs = (out,) if isinstance(out, torch.Tensor) else out
        minimum = max(runtime.settings.minimum_size, 1)
        total = large = 0
        for each in outputs:
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                n_bytes = each.untyped_storage().nbytes()
                total += n_bytes
                large = max(large, n_bytes)
        runtime.meter.grew(total)
        if large < minimum:
            return out
        with runtime.lock:
            key = key or self._key(traits.name, args)
            seconds = runtime.costs.seconds(key, seconds, func, args, out)
            self._record(func, traits, args, kwargs, outputs, (key, total, seconds, state, minimum))
        return out

    def _record(self, func: Any, traits: Traits, args: Any, kwargs: Any, outputs: Any,
                facts: tuple[Any, int, float, torch.Tensor | None, int]) -> None:  # fmt: skip
        key, total, seconds, state, minimum = facts
        references = _References(self.runtime.device, traits.statistics)
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
                        value = LiveValue(storage, seconds, parents, recipe, index, self.runtime.gone)
                        storage._windtunnel = value
                        made.append(value)
                        self.runtime.meter.saw(storage)
                recipe.results.append(None if value is None else ref(value))
            self.runtime.made(made)
            if made and references.has_constants:
                self.runtime.note_constants(recipe, made)
        self.engine.after(key, total, seconds, references.values, made)

    # -- operators that change something --------------------------------------------------------------------

    def _write(self, func: Any, traits: Traits, args: Any, kwargs: Any) -> Any:
        """Run an operator that writes into its arguments; what it wrote into has a new value."""
        runtime = self.runtime
        targets = _written_tensors(traits, args, kwargs)
        with runtime.lock:
            for target in targets:
                runtime.before_write(target)
        old = (
            value_of(targets[0].untyped_storage())
            if len(targets) == 1 and self._is_ours(targets[0])
            else None
        )
        can_replay = (
            old is not None
            and traits.is_replayable
            and traits.written == (0,)
            and torch.is_grad_enabled()
            and (isinstance(old, LiveValue) or (traits.fills and _covers(targets[0], old)))
        )
        recipe = references = state = None
        if can_replay:  # references are taken before the write: versions and values are those it reads
            references = _References(runtime.device, (), written=targets[0], old=old)
            recipe = references.recipe(func, args, kwargs)
            if traits.is_seeded:
                state = generator_state(runtime.device)
                if _has_generator(args, kwargs):
                    recipe = None
        start = perf_counter()
        out = runtime.with_retry(func, args, kwargs)
        seconds = perf_counter() - start
        with runtime.lock:
            for target in targets:
                runtime.overwritten(target)
            if recipe is not None:
                key = self._key(traits.name, args)
                seconds = runtime.costs.seconds(key, seconds, func, args, out)
                recipe.generator_state = state
                storage = targets[0].untyped_storage()
                recipe.n_bytes = storage.nbytes()
                if storage.nbytes() >= max(runtime.settings.minimum_size, 1):
                    value = LiveValue(storage, seconds, tuple(references.values), recipe, 0, runtime.gone)
                    recipe.results.append(ref(value))
                    storage._windtunnel = value
                    runtime.made([value])
                    if references.has_constants:
                        runtime.note_constants(recipe, [value])
                    self.engine.after(key, 0, seconds, references.values, [value])
        return out

    def _key(self, name: str, args: Any) -> str:
        shapes = _shapes(args)
        key = self._keys.get((name, shapes))
        if key is None:
            key = self._keys[name, shapes] = cost_key(name, shapes)
        return key

    def _before_hidden_writes(self, traits: Traits, args: Any) -> None:
        """Running statistics are updated without a word in the schema."""
        with self.runtime.lock:
            for position in traits.statistics:
                if isinstance(args[position], torch.Tensor):
                    self.runtime.before_write(args[position])

    def _is_ours(self, tensor: Any) -> bool:
        return (
            isinstance(tensor, torch.Tensor)
            and tensor.device == self.runtime.device
            and tensor.layout is torch.strided
            and type(tensor) in _PLAIN_TENSORS
        )


class _References:
    """Turn an operator's arguments into references; what they refer to is collected on the way."""

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
        # Running statistics that the operator would update a second time are left out: they do not decide the result.
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
            self._is_possible = False  # reads memory nobody has written, as far as we can see
            return None
        self.has_constants = True
        constant = Constant(tensor)
        weight = constant.tracker
        if hasattr(weight, "ds_id"):  # DeepSpeed gives a weight other data to free it: a recipe would keep it
            self._is_possible = False
        elif not (type(weight) is torch.nn.Parameter or storage.resizable() or storage.is_shared()):
            self._is_possible = False  # numpy's memory, or another library's, that may change without a word
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
    """A batch norm that updates its running statistics: its first flag says so."""
    return next((each for each in args if isinstance(each, bool)), False)
