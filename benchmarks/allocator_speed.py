"""How fast the allocator models replay: events (one alloc or one free) per second, one process.

    python benchmarks/allocator_speed.py

Reads the real GPU traces next to the repository if they are there, else a random training-like
stream. Each is repeated until it holds at least `LEAST_EVENTS`. The model is the same code that
`windtunnel` uses, with all its counters. The baseline is a plain best fit with a linear scan.
"""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from windtunnel.memory import Allocator
from windtunnel.memory.allocators.models.replay import ALLOC, FREE, replay_columns

TRACES = Path(__file__).parents[2] / "shared" / "data" / "allocator" / "real"
NAMES = ("024", "017", "034", "052")
LEAST_EVENTS = 200_000
BASELINE_EVENTS = 20_000
SPECS = (
    "cuda",
    "cuda:torch=2.12",
    "cuda-expandable",
    "cuda:max_split_size_mb=128",
    "npu",
    "mindspore",
    "megengine",
    "cpu",
)


def main() -> None:
    streams = {
        path.name[:3]: read_trace(path) for path in sorted(TRACES.glob("*.json.gz")) if path.name[:3] in NAMES
    }
    streams = streams or {"random": random_stream()}
    print(f"{'stream':8} {'model':26} {'events':>9} {'M events/s':>11}")
    for name, stream in streams.items():
        columns = repeat(stream, LEAST_EVENTS)
        for spec in SPECS:
            show(name, spec, columns, partial(replay_spec, spec, columns))
        short = [column[:BASELINE_EVENTS] for column in columns]
        show(name, "(linear scan baseline)", short, partial(linear_scan, *short))


def show(stream: str, what: str, columns: list[list[int]], work: Callable[[], None]) -> None:
    n_events = len(columns[0])
    print(f"{stream:8} {what:26} {n_events:9,} {best_of(3, work, n_events) / 1e6:11.2f}")


def replay_spec(spec: str, columns: list[list[int]]) -> None:
    replay_columns(Allocator.from_spec(spec), *columns)


def best_of(n_runs: int, work: Callable[[], None], n_events: int) -> float:
    seconds = []
    for _ in range(n_runs):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return n_events / min(seconds)


def read_trace(path: Path) -> list[tuple[int, int, int, int]]:
    """Keep the allocs and frees of a real trace; free what is left, so that it can be repeated."""
    rows, owner, n_ids = [], {}, 0
    for action, address, n_bytes, stream in json.loads(gzip.decompress(path.read_bytes()))["events"]:
        if action == "alloc":
            owner[address] = n_ids
            rows.append((ALLOC, n_ids, n_bytes, stream))
            n_ids += 1
        elif action == "free_requested" and address in owner:
            rows.append((FREE, owner.pop(address), 0, stream))
    return rows + [(FREE, id, 0, 0) for id in owner.values()]


def random_stream(n_events: int = 20_000) -> list[tuple[int, int, int, int]]:
    chooser, live, rows = random.Random(0), [], []
    for id in range(n_events // 2):
        rows.append((ALLOC, id, int(2 ** chooser.uniform(8, 26)), 0))
        live.append(id)
        if len(live) > 300:
            rows.append((FREE, live.pop(chooser.randrange(len(live))), 0, 0))
    return rows + [(FREE, id, 0, 0) for id in live]


def repeat(rows: list[tuple[int, int, int, int]], least: int) -> list[list[int]]:
    n_times = -(-least // len(rows))
    return [list(column) * n_times for column in zip(*rows, strict=True)]


def linear_scan(kinds, ids, sizes, streams) -> None:
    """Best fit without an index: the baseline for the sorted free lists."""
    free: list[tuple[int, int]] = []
    live: dict[int, tuple[int, int]] = {}
    top = 0
    for kind, id, n_bytes in zip(kinds, ids, sizes, strict=True):
        if kind == FREE:
            free.append(live.pop(id))
            continue
        size = (n_bytes + 511) & -512
        fits = [block for block in free if block[0] >= size]
        if fits:
            block = min(fits)
            free.remove(block)
        else:
            block = (size, top)
            top += size
        live[id] = block


if __name__ == "__main__":
    main()
