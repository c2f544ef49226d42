"""torchrun, `python -m torch.distributed.run` and `python -m torch.distributed.launch`.

    words after the launcher's name, PET_* variables ──> Launch

Torch reads a default for most of its options from a variable PET_NAME, as operators for Kubernetes set them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windtunnel.errors import UsageError
from windtunnel.session.launchers.launch import Given, Launch, count_of
from windtunnel.session.launchers.options import Parsed, Table, read_options

__all__ = ["read_torchrun"]

_WITH_VALUE = frozenset(
    "--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts --monitor-interval"
    " --start-method --event-log-handler --role --log-dir -r --redirects -t --tee --local-ranks-filter"
    " --duplicate-stdout-filters --duplicate-stderr-filters --node-rank --master-addr --master-port --local-addr"
    " --logs-specs --numa-binding --signals-to-handle --shutdown-timeout".split()
)
_FLAGS = frozenset(
    "--standalone -m --module --no-python --run-path --use-env --virtual-local-rank -h --help".split()
)
_COUNTED = ("gpu", "auto", "xpu", "npu")  # torchrun counts devices for these
_PORT = "29500"


def read_torchrun(
    words: Sequence[str], given: Given, environment: Mapping[str, str], name: str = "torchrun"
) -> Launch:
    """Understand the command line of torch's launcher; `name` is how the user called it."""
    parsed = read_options(
        words, Table("torchrun", _WITH_VALUE, _FLAGS, parser="torchrun", glued=frozenset(("-r", "-t")))
    )
    if not parsed.rest:
        raise UsageError(
            f"{name} is given no script", hint=f"windtunnel run {name} --nproc-per-node 8 train.py"
        )
    script, *arguments = parsed.rest
    if "--no-python" in parsed.flags:
        script, *arguments = _python_script(name, parsed.rest)
    asked = _option(parsed, environment, "--nproc-per-node") or "1"
    per_node = _per_node(asked, name, given)
    n_nodes = _n_nodes(_option(parsed, environment, "--nnodes") or "1", name, given)
    is_old = name.endswith("launch") and "--use-env" not in parsed.flags
    return Launch(
        launcher=name,
        script=script,
        arguments=tuple(arguments),
        is_module=bool({"-m", "--module"} & parsed.flags),
        world_size=per_node * n_nodes,
        nproc_per_node=per_node,
        is_torch_like=True,
        variables=_variables(parsed, environment, per_node),
        local_rank_option="--local-rank=" if is_old else "",
        notes=(
            *parsed.notes,
            *(given.counted(f"{name} --nproc-per-node {asked}") if asked in _COUNTED else ()),
        ),
    )


def _option(parsed: Parsed, environment: Mapping[str, str], name: str) -> str | None:
    return parsed.first(name) or environment.get("PET_" + name[2:].upper().replace("-", "_"))


def _per_node(text: str, name: str, given: Given) -> int:
    if text in _COUNTED:
        return given.node_size
    if text == "cpu":
        raise UsageError(
            f"{name} --nproc-per-node cpu starts a worker for every core of the machine it runs on",
            hint="write the number of workers",
        )
    return count_of(text, name, "--nproc-per-node")


def _n_nodes(text: str, name: str, given: Given) -> int:
    least, colon, most = text.partition(":")
    if not colon or least == most:
        return count_of(least, name, "--nnodes")
    low, high = count_of(least, name, "--nnodes"), count_of(most, name, "--nnodes")
    if given.n_nodes is not None and low <= given.n_nodes <= high:
        return given.n_nodes
    raise UsageError(
        f"{name} --nnodes {text} is a range: the job may have {low} to {high} machines",
        hint=f"windtunnel run --nnodes {high} {name} ... simulates the largest one",
    )


def _variables(parsed: Parsed, environment: Mapping[str, str], per_node: int) -> dict[str, str]:
    endpoint = _option(parsed, environment, "--rdzv-endpoint") or ""
    host, _, port = endpoint.rpartition(":") if ":" in endpoint else (endpoint, "", "")
    found = {
        "MASTER_ADDR": _option(parsed, environment, "--master-addr") or host or "127.0.0.1",
        "MASTER_PORT": _option(parsed, environment, "--master-port") or port or _PORT,
        "ROLE_NAME": parsed.first("--role") or "default",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": parsed.first("--max-restarts") or "0",
        "TORCHELASTIC_RUN_ID": parsed.first("--rdzv-id") or "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if per_node > 1 and "OMP_NUM_THREADS" not in environment:
        found["OMP_NUM_THREADS"] = "1"
    return found


def _python_script(name: str, rest: Sequence[str]) -> Sequence[str]:
    """With --no-python the first word is a program: only an explicit Python is a script that can be simulated."""
    program, *words = rest
    if program.rpartition("/")[2].startswith("python") and words and not words[0].startswith("-"):
        return words
    if program.endswith(".py"):
        return rest
    raise UsageError(
        f"{name} --no-python starts {program}, which is not a Python script", hint="name the script"
    )
