"""Operators that choose experts by scores no simulated device has: their indices follow the routing of the run.

    topk, argmax, max, sort of unknown scores over few choices ──> Choice ──> indices, computed when they are read
    bincount, histc of unknown ids                             ──> the ids are chosen now

Whether the choice is one of experts shows only when something reads it to decide a shape; until then it costs nothing, and a
program that only compares its predictions with labels reads none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from windtunnel.capture.pytorch.kernels import kernels
from windtunnel.capture.pytorch.kernels.known_values import covers_storage, is_floating, raw_bytes
from windtunnel.capture.pytorch.kernels.views_and_copies import rule
from windtunnel.capture.pytorch.tensors.storage import sim_of, world
from windtunnel.capture.pytorch.tensors.strides import contiguous_strides
from windtunnel.events.model import NO_NAME

__all__ = ["count_lazily", "decide_ids"]

Tensor = torch.Tensor
_MOST_EXPERTS = 4096  # a choice among more is one of words or positions
_from_numpy = torch.from_numpy  # torch's own, before constructors are replaced


# -- routers ----------------------------------------------------------------------------------------------------


@rule("topk")
def _topk(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = kernels.run_generic(op, args, kwargs)
    given = dict(zip(("self", "k", "dim", "largest"), args, strict=False)) | kwargs
    if given.get("largest", True):
        _decide(args[0], result[1], given.get("dim", -1), given["k"])
    return result


@rule("argmax")
def _argmax(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = kernels.run_generic(op, args, kwargs)
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is not None and _is_in_a_module():
        _decide(args[0], result, dim, 1)
    return result


@rule("max.dim")
def _max(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = kernels.run_generic(op, args, kwargs)
    if _is_in_a_module():
        _decide(args[0], result[1], args[1] if len(args) > 1 else kwargs["dim"], 1)
    return result


@rule("sort", "sort.stable")
def _sort(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = kernels.run_generic(op, args, kwargs)
    names = [a.name for a in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    dim = given.get("dim", -1)
    if given.get("descending", False) and _is_in_a_module() and args[0].dim() > 1:
        _decide(args[0], result[1], dim, args[0].shape[dim])
    return result


def _is_in_a_module() -> bool:
    """Outside a model's forward such a result is a prediction."""
    return world.recorder.module != NO_NAME


@rule("histc")
def _histc(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    given = dict(zip(("self", "bins", "min", "max"), args, strict=False)) | kwargs
    bins = given.get("bins", 100)
    if given.get("min", 0) == 0 and given.get("max", 0) in (bins - 1, bins):
        decide_ids(args[0], bins)
    return kernels.run_generic(op, args, kwargs)


def decide_ids(ids: Tensor, n_choices: int) -> bool:
    """Unknown ids turn out to be one of `n_choices` each: choose them now, and say whether that was needed."""
    sim = sim_of(ids)
    if sim is None or sim.values is not None or ids.is_complex():
        return False
    _decide(ids, ids, None, 1, n_choices)
    return sim.values is not None


def count_lazily(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
    """Let `result`, which a handler allocated, hold what the operator computes of ids that were just chosen."""
    from windtunnel.capture.pytorch.kernels.lazy_nodes import derive  # late: few programs need it

    shape = tuple(result.shape)
    spec = ("new", shape, result.stride(), result.dtype, result.numel() * result.element_size())
    derive(op, args, kwargs, [(result, spec)], [])


# -- the choice -------------------------------------------------------------------------------------------------


def _decide(scores: Tensor, indices: Tensor, dim: int | None, n_chosen: int, n_choices: int = 0) -> None:
    """Let `indices` hold a choice along `dim` of the scores, if these are unknown; None: each element is a choice."""
    sim, target = sim_of(scores), sim_of(indices)
    if sim is None or target is None or isinstance(sim.values, Tensor):
        return
    if dim is not None:
        n_choices = scores.shape[dim] if scores.dim() else 1
    is_small = 0 < n_chosen <= n_choices <= _MOST_EXPERTS and indices.numel() > 0
    is_score = dim is None or is_floating(scores.dtype)
    if not is_small or not is_score or not covers_storage(indices, target) or not indices.is_contiguous():
        return
    from windtunnel.capture.pytorch.kernels import lazy_nodes, lazy_values  # late: few programs need them

    if isinstance(sim.values, lazy_nodes.Lazy):
        return
    preferred = sim.values if isinstance(sim.values, lazy_values.Preferred) else None
    axis = 0 if dim is None or not scores.dim() else dim % scores.dim()
    is_positional = preferred is not None and preferred.axis not in (None, axis)
    router = None if is_positional else _router_here(n_choices)
    plan = _Plan(
        tuple(indices.shape),
        indices.dtype,
        axis if dim is not None and scores.dim() == indices.dim() else None,
        n_choices,
        n_chosen,
        (1.0,) * n_choices if router is None else world.routing.weights(n_choices, n_chosen, *router),
        None if preferred is None else preferred.allowed,
        None
        if preferred is None
        else (tuple(scores.shape), scores.stride(), int(scores.storage_offset()), axis),
        is_positional,
    )
    inputs = [] if preferred is None else [preferred.allowed]
    choice = lazy_nodes.interned(plan, lambda: lazy_nodes.Choice(plan, target.n_bytes, inputs, plan.indices))
    assert isinstance(choice, lazy_nodes.Choice)
    target.values = choice
    if router is not None:
        recorder, is_covered = world.recorder, world.routing.covers(n_choices, *router)
        choice.report = lambda line: recorder.note_router(line, n_choices, n_chosen, is_covered)
        choice.lines[recorder.user_line()] = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the bytes of an index tensor are made; equal plans give equal bytes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    axis: int | None  # along which the choices of a row are; None: one after the other
    n_choices: int
    n_chosen: int
    weights: tuple[float, ...]
    allowed: Any  # the mask of a Preferred, or None
    layout: (
        tuple[tuple[int, ...], tuple[int, ...], int, int] | None
    )  # of the scores on it, and the axis of the choices
    is_positional: bool  # the choices are tokens, not experts: the first ones are taken

    def indices(self) -> Tensor:
        n = math.prod(self.shape)
        n_rows = n // self.n_chosen
        if self.allowed is None or self.layout is None:
            chosen = world.routing.choose(self.weights, n_rows, self.n_chosen)
        else:
            mask = self.allowed.compute()
            if mask is None:
                raise RuntimeError("the mask of the scores cannot be computed")
            shape, strides, offset, axis = self.layout
            known = torch.as_strided(mask.view(torch.bool), shape, strides, offset).movedim(axis, -1)
            rows = known.reshape(n_rows, self.n_choices).numpy()
            chosen = _choose_allowed(rows, self.weights, self.n_chosen, self.is_positional)
        made = raw_bytes(n * self.dtype.itemsize)
        target = torch.as_strided(made.view(self.dtype), self.shape, contiguous_strides(self.shape), 0)
        target = target if self.axis is None else target.movedim(self.axis, -1)
        target.copy_(_from_numpy(chosen).reshape(target.shape))
        return made


def _choose_allowed(
    allowed: np.ndarray, weights: tuple[float, ...], n_chosen: int, is_positional: bool
) -> np.ndarray:
    """Like `choose`, but each row takes its allowed choices before any other."""
    n_rows, n_choices = allowed.shape
    if is_positional:  # tokens, not experts: the first ones
        return np.argsort(~allowed, axis=1, kind="stable")[:, :n_chosen].astype(np.int64)
    chosen = np.empty((n_rows, n_chosen), np.int64)
    packed = np.packbits(allowed, axis=1)
    _, first, group_of = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    group_of = group_of.reshape(-1)
    n_before = 0
    for group, row in enumerate(first):
        rows = np.flatnonzero(group_of == group)
        options = np.flatnonzero(allowed[row])
        if len(options) < n_chosen:
            options = np.concatenate([options, np.setdiff1d(np.arange(n_choices), options)])[:n_chosen]
        local = world.routing.choose([weights[i] for i in options], len(rows), n_chosen, n_before)
        chosen[rows] = options[local]
        n_before += len(rows) * n_chosen
    return chosen


# -- which router -----------------------------------------------------------------------------------------------

_numbers: dict[tuple[str, int], int] = {}  # routers of the program in the order of their first call
_paths: dict[int, str] = {}


def _router_here(n_choices: int) -> tuple[str, int]:
    """The module path of the router that is running, and its number among those with as many choices."""
    recorder = world.recorder
    if recorder.module == NO_NAME:
        path = recorder.user_line()
    else:
        path = _paths.get(recorder.module) or list(recorder.writer.names)[recorder.module]
        _paths[recorder.module] = path
    key = (path, n_choices)
    if key not in _numbers:
        _numbers[key] = sum(1 for _, other in _numbers if other == n_choices)
    return path, _numbers[key]
