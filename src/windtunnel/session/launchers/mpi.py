"""mpirun, mpiexec and srun: launchers that start any program, often another launcher or a shell.

mpirun -np 8 -x NCCL_DEBUG=INFO python train.py ──> how many tasks, their variables, the command that each one runs
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windtunnel.errors import UsageError
from windtunnel.session.launchers.launch import Given, Launch, count_of
from windtunnel.session.launchers.options import Parsed, Table, read_options

__all__ = ["Tasks", "read_mpirun", "read_srun"]

_MPI_VALUES = frozenset(
    "-np -n -c --np --n -H -host --host -hostfile --hostfile -machinefile --machinefile -f -N -npernode --npernode -ppn"
    " -perhost -map-by --map-by -bind-to --bind-to -rank-by --rank-by -wdir --wdir -wd -x -output-filename"
    " --output-filename -genvlist -rf --rankfile -cpus-per-proc --cpus-per-proc -path --path -prefix --prefix"
    " -timeout --timeout -env -bootstrap --output -iface".split()
)
_MPI_TWO = frozenset("-mca --mca -gmca --gmca --pmixmca --prtemca -genv".split())
_MPI_FLAGS = frozenset(
    "-allow-run-as-root --allow-run-as-root -oversubscribe --oversubscribe -tag-output --tag-output -timestamp-output"
    " --timestamp-output -v --verbose -q --quiet -bynode --bynode -byslot --byslot -report-bindings --report-bindings"
    " -nolocal --nolocal -display-map --display-map -display-allocation --display-allocation -do-not-launch"
    " -bind-to-none --bind-to-none -bind-to-core --bind-to-core -noversubscribe --nooversubscribe -l -prepend-rank"
    " --use-hwthread-cpus -genvall -genvnone -envall -envnone -merge-stderr-to-stdout --merge-stderr-to-stdout"
    " --report-state-on-timeout --get-stack-traces --xterm -enable-recovery --enable-recovery".split()
)
_SLURM_VALUES = frozenset(
    "-n --ntasks -N --nodes --ntasks-per-node --tasks-per-node --gpus -G --gpus-per-node --gpus-per-task --gres -p"
    " --partition -A --account -J --job-name -t --time -c --cpus-per-task --mem --mem-per-cpu --mem-per-gpu -w --nodelist"
    " -x --exclude -o --output -e --error -i --input -D --chdir --export --mpi -q --qos --reservation -C --constraint"
    " --cpu-bind --gpu-bind --mem-bind -m --distribution --jobid --het-group -W --wait --container-image"
    " --container-mounts --container-workdir --container-name --container-env --comment --mail-type --mail-user"
    " --ntasks-per-gpu --signal --begin -d --dependency --epilog --prolog --task-prolog --task-epilog --threads"
    " --hint --threads-per-core --network --open-mode --switches --tres-per-task --unbuffered-size -r --relative"
    " --resv-ports --slurmd-debug -M --clusters -b --nice --priority --wckey --tmp --licenses -L".split()
)
_SLURM_FLAGS = frozenset(
    "-l --label -u --unbuffered -v --verbose -Q --quiet --exclusive --overlap --exact --overcommit -O -s --oversubscribe"
    " --pty -K --kill-on-bad-exit --no-kill -k --contiguous --spread-job --immediate -I --multi-prog --preserve-env -E"
    " --no-container-mount-home --container-mount-home --container-writable --container-readonly"
    " --no-container-remap-root --container-remap-root --no-container-entrypoint --disable-status -X -H --hold"
    " --accel-bind --propagate --requeue --use-min-nodes --whole -Z --no-allocate".split()
)
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Tasks:
    """The tasks of a launcher that starts any program; `command` is what each of them runs."""

    launch: Launch  # without a script
    command: tuple[str, ...]
    folder: str = ""  # where they run; empty: where the launcher does


def read_mpirun(words: Sequence[str], given: Given, environment: Mapping[str, str], name: str) -> Tasks:
    """Understand Open MPI's mpirun, and the options that MPICH and Intel MPI share with it."""
    table = Table(
        name, _MPI_VALUES, _MPI_FLAGS, two_values=_MPI_TWO, is_dashed=False,
    )  # fmt: skip
    parsed = read_options(words, table)
    if ":" in parsed.rest:
        raise UsageError(f"{name} starts several programs, separated by `:`", hint="simulate one at a time")
    hosts = _mpi_hosts(parsed)
    text = parsed.first("-np", "-n", "-c", "--np", "--n")
    per_node = _per_node(parsed.first("-N", "-npernode", "--npernode", "-ppn", "-perhost"), name)
    if text is None and hosts is None:
        raise UsageError(f"{name} does not say how many tasks to start", hint=f"{name} -np 8 python train.py")
    n_tasks = count_of(text, name, "-np") if text is not None else sum((hosts or {}).values())
    per_node = min(per_node or _mpi_per_node(n_tasks, hosts, given), n_tasks)
    variables = {"OMPI_COMM_WORLD_SIZE": str(n_tasks), "OMPI_COMM_WORLD_LOCAL_SIZE": str(per_node),
                 "OMPI_UNIVERSE_SIZE": str(n_tasks), "PMI_SIZE": str(n_tasks)}  # fmt: skip
    variables |= _exported(parsed, environment)
    launch = Launch(
        launcher=name, script="", arguments=(), world_size=n_tasks, nproc_per_node=per_node, variables=variables,
        numbered={"OMPI_COMM_WORLD_RANK": "rank", "OMPI_COMM_WORLD_LOCAL_RANK": "local_rank",
                  "OMPI_COMM_WORLD_NODE_RANK": "local_rank", "PMIX_RANK": "rank", "PMI_RANK": "rank"},
    )  # fmt: skip
    return Tasks(launch, parsed.rest, parsed.first("-wdir", "--wdir", "-wd") or "")


def read_srun(words: Sequence[str], given: Given, environment: Mapping[str, str]) -> Tasks:
    """Understand Slurm's srun; an allocation's SLURM_* variables are defaults, as for srun itself."""
    glued = frozenset(("-n", "-N", "-c", "-p", "-A", "-J", "-t", "-w", "-G", "-o", "-e", "-D"))
    parsed = read_options(words, Table("srun", _SLURM_VALUES, _SLURM_FLAGS, glued=glued))
    nodes = (
        parsed.first("-N", "--nodes")
        or environment.get("SLURM_NNODES")
        or environment.get("SLURM_JOB_NUM_NODES")
    )
    each = parsed.first("--ntasks-per-node", "--tasks-per-node") or environment.get("SLURM_NTASKS_PER_NODE")
    total = parsed.first("-n", "--ntasks") or environment.get("SLURM_NTASKS")
    n_nodes = count_of(nodes.partition("-")[0], "srun", "--nodes") if nodes else None
    per_node = _per_node(each, "srun")
    if total is not None:
        n_tasks = count_of(total, "srun", "--ntasks")
    else:
        n_tasks = (n_nodes or 1) * (per_node or 1)
    if per_node is None:
        per_node = -(-n_tasks // n_nodes) if n_nodes else min(n_tasks, given.nproc_per_node or 8)
    per_node = min(per_node, n_tasks)
    n_nodes = n_nodes or -(-n_tasks // per_node)
    job = environment.get("SLURM_JOB_ID", "1")
    variables = {
        "SLURM_NTASKS": str(n_tasks), "SLURM_NPROCS": str(n_tasks), "SLURM_STEP_NUM_TASKS": str(n_tasks),
        "SLURM_NNODES": str(n_nodes), "SLURM_JOB_NUM_NODES": str(n_nodes), "SLURM_STEP_NUM_NODES": str(n_nodes),
        "SLURM_NTASKS_PER_NODE": str(per_node), "SLURM_TASKS_PER_NODE": _tasks_per_node(per_node, n_nodes),
        "SLURM_JOB_ID": job, "SLURM_JOBID": job, "SLURM_STEP_ID": "0",
        "SLURM_JOB_NODELIST": environment.get("SLURM_JOB_NODELIST", _node_list(n_nodes)),
        "SLURM_NODELIST": environment.get("SLURM_NODELIST", _node_list(n_nodes)),
    }  # fmt: skip
    variables |= _slurm_export(parsed.first("--export"))
    launch = Launch(
        launcher="srun", script="", arguments=(), world_size=n_tasks, nproc_per_node=per_node, variables=variables,
        numbered={"SLURM_PROCID": "rank", "SLURM_LOCALID": "local_rank", "SLURM_NODEID": "node"},
    )  # fmt: skip
    return Tasks(launch, parsed.rest, parsed.first("-D", "--chdir") or "")


def _per_node(text: str | None, name: str) -> int | None:
    return None if text is None else count_of(text, name, "tasks per machine")


def _mpi_hosts(parsed: Parsed) -> dict[str, int] | None:
    """Hosts and slots of `-H a:8,b:8`."""
    text = parsed.first("-H", "-host", "--host")
    if text is None:
        return None
    hosts: dict[str, int] = {}
    for part in text.split(","):
        host, _, slots = part.partition(":")
        hosts[host] = hosts.get(host, 0) + (int(slots) if slots.isdecimal() else 1)
    return hosts


def _mpi_per_node(n_tasks: int, hosts: dict[str, int] | None, given: Given) -> int:
    if given.nproc_per_node is not None:
        return given.nproc_per_node
    if given.n_nodes is not None:
        return -(-n_tasks // given.n_nodes)
    sizes = set((hosts or {}).values())
    return sizes.pop() if len(sizes) == 1 else 8


def _exported(parsed: Parsed, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables given with -x NAME=VALUE, or MPICH's -genv NAME VALUE."""
    found = {}
    for text in parsed.every.get("-x", ()):
        name, equals, value = text.partition("=")
        if equals and _NAME.fullmatch(name):
            found[name] = value
    for text in parsed.every.get("-genv", ()):
        name, _, value = text.partition(" ")
        found[name] = value
    return found


def _slurm_export(text: str | None) -> dict[str, str]:
    pairs = [part.partition("=") for part in (text or "").split(",")]
    return {name: value for name, equals, value in pairs if equals and _NAME.fullmatch(name)}


def _tasks_per_node(per_node: int, n_nodes: int) -> str:
    return f"{per_node}(x{n_nodes})" if n_nodes > 1 else str(per_node)


def _node_list(n_nodes: int) -> str:
    return f"node[0-{n_nodes - 1}]" if n_nodes > 1 else "node0"
