"""`accelerate launch`: its own code says what the workers get, in a process of its own.

    words after `accelerate launch`, config file ──> accelerate's parser, defaults and environment ──> Launch

accelerate passes its settings (mixed precision, FSDP, DeepSpeed) to the workers in dozens of variables that change from
version to version, so they are asked of the installed package, which the script needs anyway.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from windtunnel.errors import UsageError
from windtunnel.frameworks import location_of
from windtunnel.session.launchers.launch import Given, Launch

__all__ = ["read_accelerate"]

_START = (
    "import sys; del sys.path[0]; from windtunnel.session.launchers.own_settings import start;"
    " start(int(sys.argv[1]), sys.argv[2:])"
)
_PATIENCE_S = 180.0


def read_accelerate(words: Sequence[str], given: Given, environment: Mapping[str, str]) -> Launch:
    """Understand the command line of `accelerate launch`."""
    if location_of("accelerate") is None:
        raise UsageError("accelerate is not installed in this Python", hint="pip install accelerate")
    settings = _settings(words, given.node_size, environment)
    if "error" in settings:
        raise UsageError(
            f"accelerate launch refuses this: {settings['error']}", hint="accelerate launch --help"
        )
    notes = given.counted("accelerate launch without --num_processes") if settings["is_counting"] else ()
    n_machines = max(int(settings["num_machines"] or 1), 1)
    world_size = int(settings["num_processes"] or 1)
    is_launched = bool(settings["is_launched"])
    if world_size < 1:
        raise UsageError(
            f"accelerate launch --num_processes is {world_size}, but a job needs at least 1",
            hint="write --num_processes 8",
        )
    if is_launched and world_size % n_machines:
        raise UsageError(
            f"accelerate launch has {world_size} processes on {n_machines} machines",
            hint="change --num_processes",
        )
    variables = dict(settings["variables"])
    if is_launched:
        variables |= {
            "MASTER_ADDR": str(settings["master_addr"] or "127.0.0.1"),
            "MASTER_PORT": str(settings["master_port"] or "29500"),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "ROLE_NAME": "default",
        }
    return Launch(
        launcher="accelerate launch",
        script=settings["script"],
        arguments=tuple(settings["arguments"]),
        is_module=bool(settings["is_module"]),
        world_size=world_size if is_launched else None,
        nproc_per_node=world_size // n_machines if is_launched else None,
        is_torch_like=is_launched,
        variables=variables,
        notes=notes,
    )


def _settings(words: Sequence[str], node_size: int, environment: Mapping[str, str]) -> dict:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, str(node_size), *words], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_PATIENCE_S, check=False, env=dict(environment) | _quiet(),
        )  # fmt: skip
        return json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        raise UsageError(
            "accelerate could not be asked about this command line", hint="try `accelerate launch --help`"
        ) from error


def _quiet() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
