"""Megatron-core on Ascend devices: what MindSpeed changes at start, and no more.

import ascend ──> "cuda" means npu in torch and in Megatron-core, if the devices are Ascend
"""

from __future__ import annotations

from typing import Any

import torch

try:
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    IS_NPU = True
except ImportError:
    IS_NPU = False

__all__ = ["IS_NPU"]

_type = torch.Tensor.type


def _type_as_megatron_knows_it(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Megatron-core's optimizers distinguish parameters by the name torch.cuda.BFloat16Tensor."""
    result = _type(self, *args, **kwargs)
    return result.replace("npu", "cuda") if isinstance(result, str) else result


if IS_NPU:
    torch.Tensor.type = _type_as_megatron_knows_it
