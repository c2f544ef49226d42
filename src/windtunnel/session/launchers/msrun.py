"""msrun and `python -m mindspore.parallel.cluster.run`.

    words after `msrun` ──> Launch

Nothing of msrun's scheduler is started, as with its own --sim_level, so MS_ROLE and MS_SCHED_* are not set: with them
MindSpore would connect to the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.errors import UsageError
from windtunnel.session.launchers.launch import Given, Launch, count_of
from windtunnel.session.launchers.options import Table, read_options
from windtunnel.session.launchers.python_words import PYTEST, is_python, python_words

__all__ = ["read_msrun"]

_WITH_VALUE = frozenset(
    "--worker-num --local-worker-num --master-addr --master-port --node-rank --rank --log-dir --join --cluster-time-out"
    " --bind-core --bind-numa --sim-level --sim-rank-id --rank-table-file --worker-log-name --tail-worker-log".split()
)
_PER_NODE = 8  # msrun's own default, of --worker_num too
_LEVELS = ("0", "1", "2", "3")


def read_msrun(words: Sequence[str], given: Given, environment: Mapping[str, str]) -> Launch:
    """Understand the command line of msrun."""
    table = Table("msrun", _WITH_VALUE, frozenset(("-h", "--help", "-m")), parser="msrun")
    parsed = read_options(words, table)
    if not parsed.rest:
        raise UsageError("msrun is given no script", hint="windtunnel run msrun --worker_num 8 train.py")
    script, arguments, is_module = _program(parsed.rest, "-m" in parsed.flags)
    world_size = count_of(parsed.first("--worker-num") or str(_PER_NODE), "msrun", "--worker_num")
    per_node = count_of(parsed.first("--local-worker-num") or str(_PER_NODE), "msrun", "--local_worker_num")
    level = parsed.first("--sim-level")
    if level is not None and level not in _LEVELS:
        raise UsageError(f"msrun --sim_level is {level!r}", hint="use 0, 1, 2 or 3")
    chosen = parsed.first("--sim-rank-id")
    variables = {"MS_WORKER_NUM": str(world_size), "RANK_SIZE": str(world_size)}
    if level is not None:
        variables["MS_SIMULATION_LEVEL"] = level
    if table_file := parsed.first("--rank-table-file"):
        variables["RANK_TABLE_FILE"] = table_file
    variables["MASTER_ADDR"] = parsed.first("--master-addr") or "127.0.0.1"
    variables["MASTER_PORT"] = parsed.first("--master-port") or "8118"
    return Launch(
        launcher="msrun",
        script=script,
        arguments=arguments,
        is_module=is_module,
        world_size=world_size,
        nproc_per_node=min(per_node, world_size),
        is_torch_like=True,
        variables=variables,
        numbered={"RANK_ID": "rank", "MS_NODE_ID": "rank", "DEVICE_ID": "local_rank"},
        level=None if level is None else int(level),
        rank=None if chosen in (None, "-1") else _rank(chosen, world_size),
        log_dir=parsed.first("--log-dir") or "",
        notes=parsed.notes,
    )


def _program(words: Sequence[str], is_module: bool) -> tuple[str, tuple[str, ...], bool]:
    """What each worker runs: a script or module, its arguments; `msrun python …` and `msrun pytest …` are known to it."""
    if is_python(words[0]) and len(words) > 1:
        found = python_words(words)
        if found.kind not in ("script", "module"):
            raise UsageError("msrun is given no script", hint="windtunnel run msrun --worker_num 8 train.py")
        return found.name, found.arguments, found.kind == "module"
    return words[0], tuple(words[1:]), is_module or words[0] in PYTEST


def _rank(text: str, world_size: int) -> int:
    if not text.isdecimal() or int(text) >= world_size:
        raise UsageError(
            f"msrun --sim_rank_id is {text}, and {world_size} workers have ranks 0 to {world_size - 1}",
            hint="leave it out to simulate a rank of each kind",
        )
    return int(text)
