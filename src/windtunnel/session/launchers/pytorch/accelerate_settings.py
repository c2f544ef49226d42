"""What `accelerate launch` would do, from accelerate's own parser and launchers; no worker is started.

words ──> accelerate's arguments, with the defaults of its config file ──> number of processes, variables of a worker
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

import torch
from accelerate.commands import launch

__all__ = ["settings_of"]


def settings_of(node_size: int, words: list[str]) -> dict[str, Any]:
    """The settings of one command line; {"error": sentence} if accelerate refuses it."""
    # accelerate counts devices to choose a launcher: show it a machine like the simulated one.
    torch.cuda.device_count = lambda: node_size
    torch.cuda.is_available = lambda: True
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = launch.launch_command_parser().parse_args(words)
            is_counting = args.num_processes is None
            args, defaults, is_precision_from_config = launch._validate_launch_command(args)
            return _settings(args, defaults, is_precision_from_config, is_counting)
    except SystemExit:
        return {"error": said.getvalue().strip().rpartition("error: ")[2] or "its options are wrong"}
    except Exception as error:
        return {"error": str(error) or type(error).__name__}


def _settings(args: Any, defaults: Any, is_precision_from_config: bool, is_counting: bool) -> dict[str, Any]:
    before = dict(os.environ)
    is_launched = True
    launch_utilities = launch.__dict__
    if args.use_deepspeed and not args.cpu:
        fields = list(defaults.deepspeed_config.keys()) if defaults else []
        fields += ["mixed_precision"] if is_precision_from_config else []
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, variables = launch_utilities["prepare_deepspeed_cmd_env"](args)
    elif args.tpu:
        raise ValueError("--tpu starts workers on TPUs, which windtunnel does not simulate")
    elif (args.use_fsdp or args.use_megatron_lm or args.multi_gpu) and not args.cpu:
        variables = launch_utilities["prepare_multi_gpu_env"](args)
    else:
        _, variables = launch_utilities["prepare_simple_launcher_cmd_env"](args)
        is_launched = False
    changed = {name: value for name, value in variables.items() if before.get(name) != value}
    is_counted = is_counting and (defaults is None or getattr(defaults, "num_processes", None) is None)
    return {
        "script": args.training_script,
        "arguments": list(args.training_script_args),
        "is_module": bool(args.module),
        "num_processes": args.num_processes,
        "num_machines": args.num_machines,
        "is_launched": is_launched,
        "is_counting": is_counted,
        "master_addr": args.main_process_ip,
        "master_port": args.main_process_port,
        "variables": changed,
    }
