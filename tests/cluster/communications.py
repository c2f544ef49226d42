"""Ranks by hand: recordings of a few calls, and worlds whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from windtunnel.cluster.rank_communication import RankCommunication, communication_of
from windtunnel.cluster.ranks_to_simulate import RankClasses
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Collective, Event, Frame, Group, Signature, Step, TensorSpec

STEP = Step(1)


@dataclass(frozen=True)
class CallSpec:
    """A call as a test writes it: sizes of inputs and outputs, and the words beside them."""

    kind: str
    given: tuple[int, ...] = ()
    got: tuple[int, ...] = ()
    words: str = ""
    dtype: str = "float32"
    line: int = 41
    group: int = 0
    device: int = 0


def all_reduce(n: int = 1024, op: str = "SUM", **more: object) -> CallSpec:
    return CallSpec("all_reduce", (n,), (n,), f"op={op}", **more)


def broadcast(n: int = 1024, root: int = 0, **more: object) -> CallSpec:
    return CallSpec("broadcast", (n,), (), f"peer={root}", **more)


def all_gather(given: int, *got: int, **more: object) -> CallSpec:
    return CallSpec("all_gather", (given,), got, **more)


def reduce_scatter(given: int | tuple[int, ...], got: int, op: str = "SUM", **more: object) -> CallSpec:
    return CallSpec(
        "reduce_scatter", given if isinstance(given, tuple) else (given,), (got,), f"op={op}", **more
    )


def barrier(**more: object) -> CallSpec:
    return CallSpec("barrier", **more)


def send(to: int, n: int = 4096, **more: object) -> CallSpec:
    return CallSpec("send", (n,), (), f"peer={to}", **more)


def recv(source: int, n: int = 4096, **more: object) -> CallSpec:
    return CallSpec("recv", (), (n,), f"peer={source}", **more)


def record(
    path: Path,
    calls: Iterable[CallSpec | Event],
    groups: Iterable[tuple[int, ...]],
    file: str = "/home/me/train.py",
) -> None:
    """Write a rank's recording; groups get the ids 10, 11, ..., so that an id is not a place."""
    events: list[Event] = [Group(10 + i, ranks) for i, ranks in enumerate(groups)]
    signatures: list[Signature] = []
    frames: list[Frame] = []
    for i, each in enumerate(calls):
        if not isinstance(each, CallSpec):
            events.append(each)
            continue
        signatures.append(
            Signature(
                f"c10d.{each.kind}", _specs(each.given, each.dtype), _specs(each.got, each.dtype), each.words
            )
        )
        frame = Frame(file, each.line, "main")
        frames += [] if frame in frames else [frame]
        at = frames.index(frame)
        events.append(Collective(i, len(signatures) - 1, 10 + each.group, frame=at, device=each.device))
    record_events(path, events, signatures=signatures, frames=frames)


def world(
    folder: Path, *ranks: list[CallSpec | Event], groups: Iterable[tuple[int, ...]] | None = None
) -> dict[int, RankCommunication]:
    """The communication of every rank, given its calls; one group of all ranks by default."""
    everyone = [tuple(range(len(ranks)))] if groups is None else list(groups)
    communications = {}
    for rank, calls in enumerate(ranks):
        path = folder / f"{rank}.arrows"
        record(path, calls, [g for g in everyone if rank in g])
        communications[rank] = communication_of(read_recording(path), rank, len(ranks))
    return communications


def mesh_groups(rank: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The world, and one group along each axis of a mesh; sizes from the innermost axis outwards."""
    world_size, groups, stride = 1, [], 1
    for size in sizes:
        first = rank - rank // stride % size * stride
        groups.append(tuple(range(first, first + size * stride, stride)))
        stride *= size
        world_size *= size
    return (tuple(range(world_size)), *groups)


def explore(
    sizes: tuple[int, ...],
    digest: Callable[[tuple[int, ...]], str],
    groups: Callable[[int, tuple[int, ...]], tuple[tuple[int, ...], ...]] = mesh_groups,
) -> tuple[RankClasses, list[tuple[int, ...]]]:
    """Learn a world whose digests are known by digits, innermost first; also what was asked for in each round."""
    world_size = len(groups(0, sizes)[0])
    classes, rounds = RankClasses(world_size), []
    while wanted := classes.wanted():
        rounds.append(wanted)
        for rank in wanted:
            communication = RankCommunication(
                rank, world_size, groups(rank, sizes), digest(digits(rank, sizes))
            )
            classes.learn(communication, rank)
    return classes, rounds


def digits(rank: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for size in sizes:
        found.append(rank % size)
        rank //= size
    return tuple(found)


def _specs(sizes: tuple[int, ...], dtype: str) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec((n,), (1,), dtype) for n in sizes)
