"""Track memory on MindSpore's meta device: which operator creates, reads and frees which storage.

    every operator, forward and backward ──> MsDispatchMode ──> MetaDevice ──> MetaTracker

A meta tensor has a shape but no bytes. A storage is kept alive by handles. A handle is kept alive by the object that
dispatch returns (MindSpore keeps it exactly as long as it would keep the memory), or by the autograd graph that saved a
tensor of it. A tensor's user data refers to its handle weakly: MindSpore copies user data to tensors whose memory it has
already released.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from types import FrameType
from typing import Any

from mindspore import Tensor, mint
from mindspore.ops import operations
from mindspore.ops.auto_generate import gen_ops_prim
from mindspore.utils import MsDispatchMode

from windtunnel.capture.mindspore.meta.tracker import MetaTracker, Operand, Storage, can_be_viewed
from windtunnel.capture.mindspore.tracker.user_lines import is_users_file
from windtunnel.errors import NoToolchain

__all__ = ["Handle", "MetaDevice", "MetaMode", "tensors_in"]

_KEY = "windtunnel_handle"
# Operators whose result shares the memory of their first argument. Most have "View" in their name.
_VIEWS = {
    "AsStrided", "BroadcastTo", "Chunk", "Diagonal", "ExpandAs", "ExpandDims", "FlattenExt", "Identity", "Narrow",
    "Permute", "Reshape", "SelectExt", "Split", "SplitTensor", "SplitWithSize", "Squeeze", "StopGradient", "Swapaxes",
    "TExt", "Transpose", "TransposeExt", "Unsqueeze", "UnstackExt", "ViewAs",
}  # fmt: skip
_COPY_IF_THEY_MUST = {"Reshape", "FlattenExt"}
_IN_PLACE = ("Inplace", "Assign")
_LACKING = re.compile("Not implement exception|device meta|meta device|src:meta|Device meta")


@dataclass(eq=False)
class Handle:
    """Keeps the storage of a tensor alive as long as the tensor exists."""

    storage: Storage
    strides: tuple[int, ...] | None = None  # None: contiguous
    origin: int = 0  # of a view: the autograd node of what it is a view of, if there is one
    value: Any = None  # of a tensor made from host data: what can still be read

    def writes(self) -> None:
        self.value = None


class MetaMode(MsDispatchMode):
    """MindSpore's dispatch mode: every operator passes here, including those of backward."""

    def __init__(self, device: MetaDevice) -> None:
        self._device = device

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        try:
            result = func(*args)
        except RuntimeError as error:
            if not _LACKING.search(str(error)):
                raise
            raise NoToolchain(
                f"the script needs loader stubs for {func.name}, which MindSpore's meta device cannot run",
                hint="install a C++ compiler, for example `apt-get install g++`",
            ) from error
        self._device.ran(func.name, args, result)
        return result


@dataclass(frozen=True, eq=False)
class Saved:
    """What the autograd graph keeps instead of a tensor."""

    tensor: Any
    storage: Storage


class MetaDevice:
    """Knows the storage of every tensor."""

    def __init__(self, tracker: MetaTracker, is_tracking_stacks: bool) -> None:
        self.tracker = tracker
        self._wants_all = is_tracking_stacks
        self.kernels: dict[
            str, Callable[[MetaDevice, list[Any]], None]
        ] = {}  # a primitive -> what a device runs for it
        self._is_quiet = False
        self._views: dict[tuple[Any, ...], list[weakref.ref[Handle]]] = {}

    def ran(self, name: str, args: Any, result: Any) -> None:
        """An operator ran."""
        if not name[:1].isupper():
            return  # a query such as `typeof`: nothing is computed
        given, made = list(tensors_in(args)), list(tensors_in(result))
        handles = self._handles(given)
        sources = _written_into(name, given, handles, made)
        for index, tensor in enumerate(made):
            if _known(tensor) is not None:
                continue  # an argument that is returned
            if index in sources:
                self._adopt(tensor, Handle(sources[index].storage, sources[index].strides))
                sources[index].writes()
            elif handles and _is_view(name, tensor):
                is_copy = name in _COPY_IF_THEY_MUST and not _fits(given[0], handles[0], tensor)
                storage = self._storage(tensor, "PyNativeOutput") if is_copy else handles[0].storage
                self._make_view(tensor, storage, given[0])
            else:
                self._adopt(tensor, Handle(self._storage(tensor, "PyNativeOutput")))
        if name in self.kernels:
            self.kernels[name](self, given)
        elif not self._is_quiet:
            self.record(name, given, made)

    def record(self, name: str, given: Sequence[Any], made: Sequence[Any], **attributes: str) -> None:
        self.tracker.operator(
            name,
            [self._operand(tensor) for tensor in given],
            [self._operand(tensor) for tensor in made],
            self._stack(),
            **attributes,
        )

    def gave(self, result: Any, made: Sequence[Handle]) -> None:
        """MindSpore returned new tensors for those that were created: both share the same memory."""
        for tensor, source in zip(tensors_in(result), made, strict=False):
            self._adopt(tensor, Handle(source.storage, source.strides))

    def took_view(self, source: Any, view: Any) -> None:
        """The program used plain indices, which are not dispatched."""
        if _known(view) is None:
            self._make_view(view, self.handle(source).storage, source)

    # -- tensors -------------------------------------------------------------------------------------------

    def handle(self, tensor: Any, taken: Sequence[Handle] = ()) -> Handle:
        """A tensor's handle. A tensor without one is a contiguous copy of a view, or new."""
        found = _known(tensor)
        if found is None:
            # On the meta device MindSpore copies a view before it computes with it. A real device does not.
            found = self._view_behind(tensor, taken)
            if found is not None:
                tensor._set_user_data(_KEY, weakref.ref(found))
            else:
                found = self._adopt(tensor, Handle(self._storage(tensor, "PyNativeInput")))
        return found

    def save(self, tensor: Any) -> Saved:
        """The autograd graph keeps it for backward."""
        return Saved(tensor, self.handle(tensor).storage)

    def load(self, saved: Saved) -> Any:
        if _known(saved.tensor) is None:
            self._adopt(saved.tensor, Handle(saved.storage))
        return saved.tensor

    def hand_back(self, tensor: Any) -> Any:
        """The script's own hooks returned a saved tensor: backward may keep only a copy of it."""
        tensor._set_user_data(_KEY, self.handle(tensor))
        return tensor

    def new_tensor(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A result for an operator that we record; its memory is allocated when the operator is recorded."""
        self._is_quiet = True
        try:
            tensor = mint.zeros(shape, dtype=dtype)
        finally:
            self._is_quiet = False
        if (
            _known(tensor) is None
        ):  # created while another operator is dispatched: nested operators are not dispatched
            self._adopt(tensor, Handle(self._storage(tensor, "PyNativeOutput")))
        return tensor

    def make_host_tensor(self, tensor: Any, value: Any = None) -> None:
        """A tensor made from host data: its device memory is allocated when an operator first reads it."""
        self._adopt(tensor, Handle(self._storage(tensor, "PyNativeInput"), value=value))

    def make_weight(self, tensor: Any) -> None:
        self._adopt(tensor, Handle(self._storage(tensor, "Weight")))

    def _make_view(self, tensor: Any, storage: Storage, source: Any) -> None:
        strides = None if tensor.is_contiguous() else tuple(tensor.stride())
        handle = Handle(storage, strides, _node(source))
        self._adopt(tensor, handle)
        known = self._views.setdefault(_look(tensor), [])
        known[:] = [view for view in known if view() is not None]
        known.append(weakref.ref(handle))

    def _handles(self, given: list[Any]) -> list[Handle]:
        """Of several tensors without handle and with the same shape, the last is matched to the latest view, and so on."""
        found: list[Handle] = []
        for tensor in reversed(given):
            found.insert(0, self.handle(tensor, found))
        return found

    def _view_behind(self, tensor: Any, taken: Sequence[Handle]) -> Handle | None:
        """The view that MindSpore copied: found by its position in the autograd graph, or else the latest."""
        views = [handle for view in self._views.get(_look(tensor), ()) if (handle := view()) is not None]
        if len(views) > 1 and (origin := _origin(tensor)):
            views = [handle for handle in views if handle.origin == origin] or views
        elif len(views) > 1:
            views = [handle for handle in views if all(handle is not other for other in taken)] or views
        return views[-1] if views else None

    def _adopt(self, tensor: Any, handle: Handle) -> Handle:
        tensor._set_user_data(_KEY, weakref.ref(handle))
        weakref.finalize(tensor, _let_go, handle).atexit = False
        return handle

    def _storage(self, tensor: Any, kind: str) -> Storage:
        return Storage(self.tracker, prod(tensor.shape) * tensor._itemsize, kind)

    def _operand(self, tensor: Any) -> Operand:
        return Operand(self.handle(tensor).storage, str(tensor.dtype), tuple(tensor.shape))

    # -- lines of the user's code --------------------------------------------------------------------------

    def _stack(self) -> str:
        lines: list[str] = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if is_users_file(file):
                lines.insert(0, f"File:{file};Line:{frame.f_lineno};Function:{frame.f_code.co_name}")
                if not self._wants_all:
                    break
            frame = frame.f_back
        return "|".join(lines).replace(",", " ").replace("\n", " ")


def tensors_in(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def _known(tensor: Any) -> Handle | None:
    name = tensor._get_user_data(_KEY)
    return name() if isinstance(name, weakref.ref) else name


def _let_go(handle: Handle) -> None:
    """Called when a tensor is freed: the finalizer held the handle until now."""


def _look(tensor: Any) -> tuple[Any, ...]:
    return (*tensor.shape, str(tensor.dtype))


def _is_view(name: str, tensor: Any) -> bool:
    return name.endswith("View") or name in _VIEWS or tensor._need_contiguous()


def _fits(source: Any, handle: Handle, result: Any) -> bool:
    return handle.strides is None or can_be_viewed(source.shape, handle.strides, result.shape)


def _node(tensor: Any) -> int:
    node = tensor._grad_node
    return node._unique_id() if node is not None else 0


def _origin(copy: Any) -> int:
    """copy <- Contiguous <- the view's node <- the node of what it is a view of."""
    node = copy._grad_node
    if node is None or node.name() != "Contiguous":
        return 0
    for _ in range(2):
        node = next((parent[0] for parent in node.next_functions), None)
        if node is None:
            return 0
    return node._unique_id()


def _written_into(name: str, given: list[Any], handles: list[Handle], made: list[Any]) -> dict[int, Handle]:
    """Of an operator that writes into its arguments: which result is which argument.

    Other operators than the plain in-place ones (those of optimizers) write into weights and their state only.
    """
    free = list(zip(map(_look, given), handles, strict=True))
    if not name.startswith(_IN_PLACE):
        free = [pair for pair in free if pair[1].storage.kind == "Weight"] if _has_side_effects(name) else []
    found: dict[int, Handle] = {}
    for index, tensor in enumerate(made):
        pair = next((pair for pair in free if pair[0] == _look(tensor)), None)
        if pair is not None:
            found[index] = pair[1]
            free.remove(pair)
    return found


@cache
def _has_side_effects(name: str) -> bool:
    """Whether MindSpore's primitive of this name declares that it writes to its arguments."""
    kind = getattr(gen_ops_prim, name, None) or getattr(operations, name, None)
    try:
        return bool(getattr(kind(), "side_effect_mem", False)) if isinstance(kind, type) else False
    except Exception:  # it cannot be created without arguments
        return False
