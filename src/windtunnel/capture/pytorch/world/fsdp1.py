"""FSDP 1 in a dry run: devices by their number, and the optimizer state of parameters that other ranks hold.

    FSDP(model, device_id=torch.cuda.current_device()) ──> a number of the simulated device
    FSDP.optim_state_dict(model, optimizer)            ──> the state of every parameter, as all ranks together have it

Torch turns a number into a device of the accelerator it was built for, which here is the extension backend. The ranks
tell each other which parameters they have state for; here every rank hears its own answer, and with use_orig_params a
rank holds parts of a few parameters only. Importing FSDP takes seconds and only happens when a program does it, so its
functions are replaced at that moment.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from windtunnel.capture.pytorch.tensors.storage import world
from windtunnel.capture.pytorch.world.when_imported import when_imported

__all__ = ["install_fsdp1"]

_USERS = (  # which import from it by name
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed._composable.fully_shard",
)


def install_fsdp1() -> None:
    for name, change in (("_init_utils", _accept_numbers), ("_optim_utils", _know_all_states)):
        when_imported(f"torch.distributed.fsdp.{name}", change)


def _accept_numbers(module: ModuleType) -> None:
    read, choose = module._get_device_from_device_id, module._init_device_handle

    def _get_device_from_device_id(device_id: Any, *args: Any) -> Any:
        return read(_named(device_id), *args)

    def _init_device_handle(state: Any, module: Any, ignored_params: Any, device_id: Any) -> Any:
        return choose(state, module, ignored_params, _named(device_id))

    module._get_device_from_device_id = _get_device_from_device_id  # type: ignore[attr-defined]
    for user in (module, *(sys.modules[name] for name in _USERS if name in sys.modules)):
        user._init_device_handle = _init_device_handle  # type: ignore[attr-defined]


def _named(device_id: Any) -> Any:
    return torch.device(world.device_type, device_id) if isinstance(device_id, int) else device_id


def _know_all_states(module: ModuleType) -> None:
    find = module._map_param_key_to_optim_keys

    def _map_param_key_to_optim_keys(
        optim_state_dict: Any, group: Any, keys: Any, *args: Any, merge_keys: bool = False
    ) -> Any:
        if not merge_keys:
            return find(optim_state_dict, group, keys, *args)
        own = optim_state_dict["state"]
        complete = {**optim_state_dict, "state": dict.fromkeys(keys)} if own else optim_state_dict
        everyone, mapping = find(complete, group, keys, *args, merge_keys=True)
        return everyone, {name: key for name, key in mapping.items() if key in own}

    module._map_param_key_to_optim_keys = _map_param_key_to_optim_keys  # type: ignore[attr-defined]
