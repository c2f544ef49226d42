"""Weights that are freed temporarily: fully sharded training frees a layer's weights between forward and backward.

    weight seen in a recipe ──> is it a sharded parameter's full copy? ──> values that read it are kept, not recomputed

A value that reads such a weight is an anchor: it is never dropped while anything depends on it. The weight may not be
there when the value would be recomputed, and gathering it then would be a collective that no peer expects.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
from torch.distributed._composable_state import _module_state_mapping

from windtunnel.remat.pytorch.recipe import LiveValue

__all__ = ["ShardedWeights"]

_SHARDING = "torch.distributed.fsdp._fully_shard._fsdp_param"


class ShardedWeights:
    def __init__(self) -> None:
        self._has_any = False
        self._sharded: list[Any] = []  # torch's FSDPParam objects
        self._n_modules = -1  # that torch sharded when we last looked

    def look_at(self, tensor: torch.Tensor, storage: Any) -> None:
        """A recipe reads this tensor: mark its storage if it is the full copy of a sharded weight."""
        module = sys.modules.get(_SHARDING)
        if (
            module is None
            or "_windtunnel_vanishes" in storage.__dict__
            or not torch.distributed.is_initialized()
        ):
            return
        if len(_module_state_mapping) != self._n_modules:  # another model has been sharded
            self._n_modules = len(_module_state_mapping)
            self._sharded = [each for each in gc.get_objects() if type(each) is module.FSDPParam]
        vanishes = _is_flat(tensor) or any(_is_full_copy(each, storage) for each in self._sharded)
        storage._windtunnel_vanishes = vanishes
        self._has_any |= vanishes

    def is_computable(self, value: LiveValue) -> bool:
        """False if it, or an evicted value that it is computed from, reads a weight that may be freed then."""
        if not self._has_any:
            return True
        waiting, seen = [value], {id(value)}
        while waiting:
            each = waiting.pop()
            if _reads_vanishing(each):
                return False
            for parent in each.parents:
                if not parent.saves and id(parent) not in seen:
                    seen.add(id(parent))
                    waiting.append(parent)
        return True

    def must_stay(self, value: LiveValue) -> bool:
        """True for an anchor that existing values are computed from."""
        return self._has_any and _reads_vanishing(value) and next(value.children, None) is not None


def _reads_vanishing(value: Any) -> bool:
    return any(
        constant.tensor.untyped_storage().__dict__.get("_windtunnel_vanishes")
        for constant in value.recipe.constants()
    )


def _is_full_copy(parameter: Any, storage: torch.UntypedStorage) -> bool:
    full = getattr(parameter, "_unsharded_param", None)
    return full is not None and full.untyped_storage()._cdata == storage._cdata


def _is_flat(tensor: torch.Tensor) -> bool:
    """Part of the one flat weight that the older FullyShardedDataParallel makes of a module."""
    return hasattr(tensor if tensor._base is None else tensor._base, "_full_param_padded")
