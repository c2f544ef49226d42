"""The `deepspeed` launcher, with its hostfile.

words after `deepspeed` ──> hosts and slots (hostfile, --include, --exclude, --num_nodes, --num_gpus) ──> Launch
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from windtunnel.errors import UsageError
from windtunnel.foreign_files import read_at_most
from windtunnel.session.launchers.launch import Given, Launch, count_of
from windtunnel.session.launchers.options import Parsed, Table, read_options
from windtunnel.units import MIB

__all__ = ["read_deepspeed"]

_WITH_VALUE = frozenset(
    "-H --hostfile -i --include -e --exclude --num-nodes --num-gpus --num-accelerators --master-port --master-addr"
    " --node-rank --launcher --launcher-args --enable-each-rank-log --autotuning --bind-core-list --ssh-port"
    " --venv-script --log-level".split()
)
_FLAGS = frozenset(
    "--module --no-python --no-local-rank --no-ssh --no-ssh-check --force-multi --save-pid --bind-cores-to-rank -q --quiet"
    " -h --help".split()
)
_DEFAULT_HOSTFILE = "/job/hostfile"
_HOST = re.compile(r"^(\S+)\s+slots=(\d+)")
Hosts = dict[str, list[int]]  # name -> slots


def read_deepspeed(words: Sequence[str], given: Given, environment: Mapping[str, str]) -> Launch:
    """Understand the command line of DeepSpeed's launcher."""
    parsed = read_options(
        words,
        Table("deepspeed", _WITH_VALUE, _FLAGS, parser="deepspeed", glued=frozenset(("-H", "-i", "-e"))),
    )
    if not parsed.rest:
        raise UsageError(
            "deepspeed is given no script", hint="windtunnel run deepspeed --num_gpus 8 train.py"
        )
    if "--no-python" in parsed.flags:
        raise UsageError("deepspeed --no_python starts a program that is not Python", hint="name the script")
    if parsed.first("--autotuning"):
        raise UsageError(
            "deepspeed --autotuning starts many experiments, each a run of its own",
            hint="leave --autotuning out",
        )
    hosts = _hosts(parsed, given, environment)
    sizes = {len(slots) for slots in hosts.values()}
    if len(sizes) > 1:
        raise UsageError(
            f"the hosts of deepspeed have different numbers of devices: {', '.join(map(str, sorted(sizes)))}",
            hint="windtunnel simulates machines of one size: choose hosts with --include",
        )
    per_node, n_nodes = sizes.pop(), len(hosts)
    script, *arguments = parsed.rest
    slots = ",".join(map(str, next(iter(hosts.values()))))
    visible = "ASCEND_RT_VISIBLE_DEVICES" if given.kind == "npu" else "CUDA_VISIBLE_DEVICES"
    is_counting = (
        parsed.first("--num-gpus", "--num-accelerators", "--hostfile", "-H", "--include", "-i") is None
    )
    return Launch(
        launcher="deepspeed",
        script=script,
        arguments=tuple(arguments),
        is_module="--module" in parsed.flags,
        world_size=per_node * n_nodes,
        nproc_per_node=per_node,
        is_torch_like=True,
        variables={
            "MASTER_ADDR": parsed.first("--master-addr")
            or next(iter(hosts)).replace("localhost", "127.0.0.1"),
            "MASTER_PORT": parsed.first("--master-port") or "29500",
            "LOCAL_SIZE": str(per_node),
            "CROSS_SIZE": str(n_nodes),
            visible: slots,
        },
        numbered={"CROSS_RANK": "node"},
        local_rank_option="" if "--no-local-rank" in parsed.flags else "--local_rank=",
        notes=(*parsed.notes, *(given.counted("deepspeed without --num_gpus") if is_counting else ())),
    )


def _hosts(parsed: Parsed, given: Given, environment: Mapping[str, str]) -> Hosts:
    named = parsed.first("--hostfile", "-H")
    path = named or _DEFAULT_HOSTFILE
    include, exclude = parsed.first("--include", "-i") or "", parsed.first("--exclude", "-e") or ""
    n_gpus, n_nodes = parsed.first("--num-gpus", "--num-accelerators"), parsed.first("--num-nodes")
    n_gpus, n_nodes = (None if text == "-1" else text for text in (n_gpus, n_nodes))
    if (n_gpus or n_nodes) and (include or exclude):
        raise UsageError(
            "deepspeed takes --num_gpus and --num_nodes, or --include and --exclude, but not both",
            hint="leave one out",
        )
    wanted = None if n_gpus is None else count_of(n_gpus, "deepspeed", "--num_gpus")
    hosts = _read_hostfile(path) if os.path.isfile(path) else None
    if hosts is None:
        if named is not None:
            raise UsageError(f"the hostfile {named} does not exist", hint="deepspeed --hostfile FILE")
        if n_nodes is not None:  # the hostfile is on the cluster: as many machines as it would have to name
            size = given.node_size if wanted is None else wanted
            n_hosts = count_of(n_nodes, "deepspeed", "--num_nodes")
            names = ["localhost"] if n_hosts == 1 else [f"worker-{n}" for n in range(n_hosts)]
            return {name: list(range(size)) for name in names}
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        if visible and not (include or exclude or wanted):
            include = f"localhost:{visible}"
        hosts = {"localhost": _local_slots(include, given)}
    hosts = _filtered(hosts, include, exclude)
    if n_nodes is not None:
        hosts = dict(list(hosts.items())[: count_of(n_nodes, "deepspeed", "--num_nodes")])
    if wanted is not None:
        hosts = {host: list(range(wanted)) for host in hosts}
    if not hosts:
        raise UsageError("deepspeed is left with no host", hint="check --include and --exclude")
    return hosts


def _local_slots(include: str, given: Given) -> list[int]:
    numbers = [int(n) for n in include.partition(":")[2].split(",") if n.strip().isdecimal()]
    if numbers:
        return list(range(max(numbers) + 1))
    return list(range(given.node_size))


def _read_hostfile(path: str) -> Hosts:
    hosts: Hosts = {}
    for line in read_at_most(path, MIB).decode("utf-8", "replace").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _HOST.match(text)
        if found is None or found[1] in hosts:
            raise UsageError(
                f"the hostfile {path} has a line that deepspeed cannot read: {text!r}",
                hint="write each host once, as `worker-0 slots=8`",
            )
        hosts[found[1]] = list(range(int(found[2])))
    if not hosts:
        raise UsageError(f"the hostfile {path} names no host", hint="write lines such as `worker-0 slots=8`")
    return hosts


def _filtered(hosts: Hosts, include: str, exclude: str) -> Hosts:
    """Apply --include or --exclude: `worker-0@worker-1:0,2`."""
    if not include and not exclude:
        return hosts
    named: Hosts = {}
    for part in (include or exclude).split("@"):
        host, _, slots = part.partition(":")
        numbers = [int(n) for n in slots.split(",") if n.strip().isdecimal()]
        unknown = [n for n in numbers if n not in hosts.get(host, [])]
        if host not in hosts or unknown:
            raise UsageError(
                f"deepspeed's filter names {part!r}, which no host has", hint=f"hosts: {', '.join(hosts)}"
            )
        named[host] = numbers or hosts[host]
    if include:
        return {host: named[host] for host in hosts if host in named}
    kept = {host: [n for n in slots if n not in named.get(host, [])] for host, slots in hosts.items()}
    return {host: slots for host, slots in kept.items() if slots}
