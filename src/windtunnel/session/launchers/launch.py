"""What a launcher's command line asks for: the script, the number of workers, and the variables each worker gets.

    torchrun --nproc-per-node 8 --nnodes 2 train.py --lr 1 ──> Launch ──> variables_of(rank), arguments_of(rank)

The ranks are simulated instead of started, so everything a launcher does for its workers has to be in this record.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace

from windtunnel.errors import UsageError

__all__ = ["Given", "Launch", "check_agreement", "combined", "count_of"]

_NODE_SIZE = 8  # devices of a machine if nobody says otherwise, as for --nproc-per-node


@dataclass(frozen=True)
class Given:
    """What windtunnel's own options say about the layout of the job; None: not given."""

    nproc_per_node: int | None = None
    n_nodes: int | None = None
    world_size: int | None = None
    kind: str = "cuda"  # of the simulated device

    @property
    def node_size(self) -> int:
        """The number of devices of a machine, for a launcher that would count them."""
        if self.nproc_per_node is not None:
            return self.nproc_per_node
        if self.world_size is not None:
            return max(self.world_size // (self.n_nodes or 1), 1)
        return _NODE_SIZE

    def counted(self, launcher: str) -> tuple[str, ...]:
        """The note about a number of devices that nobody gave."""
        if self.nproc_per_node is not None or self.world_size is not None:
            return ()
        return (
            f"{launcher} counts the devices of the machine it runs on: {_NODE_SIZE} were assumed (--nproc-per-node)",
        )


@dataclass(frozen=True)
class Launch:
    """One launcher's command line, understood."""

    launcher: str  # as in a sentence: "torchrun", "msrun", "python"
    script: str  # a path, or a module name when is_module
    arguments: tuple[str, ...]
    is_module: bool = False
    world_size: int | None = None  # None: the launcher starts one process and tells it nothing about a job
    nproc_per_node: int | None = None
    is_torch_like: bool = False  # the workers see RANK, WORLD_SIZE, LOCAL_RANK and so on, as from torchrun
    variables: dict[str, str] = field(default_factory=dict)  # the same for every worker
    numbered: dict[str, str] = field(default_factory=dict)  # variable -> "rank", "local_rank" or "node"
    local_rank_option: str = ""  # put before the script's arguments, with the local rank: "--local_rank="
    level: int | None = None  # msrun --sim_level
    rank: int | None = None  # msrun --sim_rank_id
    log_dir: str = ""  # msrun --log_dir
    notes: tuple[str, ...] = ()

    def variables_of(self, rank: int) -> dict[str, str]:
        """The variables that the launcher sets for one worker, beside torchrun's."""
        numbers = self._numbers(rank)
        return self.variables | {name: numbers[what] for name, what in self.numbered.items()}

    def arguments_of(self, rank: int) -> tuple[str, ...]:
        """The script's arguments in one worker."""
        if not self.local_rank_option:
            return self.arguments
        return (f"{self.local_rank_option}{self._numbers(rank)['local_rank']}", *self.arguments)

    @property
    def n_nodes(self) -> int:
        return max((self.world_size or 1) // (self.nproc_per_node or self.world_size or 1), 1)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Launch:
        fields = json.loads(text)
        return cls(**{**fields, "arguments": tuple(fields["arguments"]), "notes": tuple(fields["notes"])})

    def _numbers(self, rank: int) -> dict[str, str]:
        per_node = self.nproc_per_node or self.world_size or 1
        return {"rank": str(rank), "local_rank": str(rank % per_node), "node": str(rank // per_node)}


def check_agreement(launch: Launch, given: Given, level: int | None, rank: int | None) -> None:
    """Raise UsageError if an option of windtunnel says something else than the launcher's command line."""
    name = launch.launcher
    told = [
        ("--world-size", given.world_size, launch.world_size, "workers"),
        ("--nproc-per-node", given.nproc_per_node, launch.nproc_per_node, "workers on each machine"),
        ("--nnodes", given.n_nodes, launch.n_nodes, "machines"),
    ]
    for option, ours, theirs, what in told if launch.world_size is not None else ():
        if ours is not None and ours != theirs:
            raise UsageError(
                f"{option} is {ours}, but {name} asks for {theirs} {what}", hint=f"leave {option} out"
            )
    for option, ours, theirs, what in (
        ("--level", level, launch.level, "--sim_level"),
        ("--rank", rank, launch.rank, "--sim_rank_id"),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            raise UsageError(
                f"{option} is {ours}, but {name} has {what} {theirs}", hint=f"leave {option} out"
            )


def combined(outer: Launch, inner: Launch) -> Launch:
    """A launcher inside a launcher, as in `srun torchrun train.py`: the inner one says how many workers there are."""
    notes = (*outer.notes, *inner.notes)
    if inner.world_size is None:
        return replace(
            outer, script=inner.script, arguments=inner.arguments, is_module=inner.is_module, notes=notes,
            variables=outer.variables | inner.variables,
        )  # fmt: skip
    if outer.world_size not in (None, inner.n_nodes):
        started = f"{outer.launcher} starts {outer.world_size} tasks, and {inner.launcher} in each is for"
        notes = (*notes, f"{started} {inner.n_nodes} machine{'s' if inner.n_nodes > 1 else ''}")
    return replace(inner, notes=notes)


def count_of(text: str, launcher: str, option: str) -> int:
    """A number of workers or machines from a launcher's command line."""
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{launcher} {option} is {text!r}, not a number", hint=f"{option} 8") from None
    if number < 1:
        raise UsageError(
            f"{launcher} {option} is {number}, but a job needs at least 1", hint=f"write {option} 8"
        )
    return number
