"""The peak estimated from a saved static graph of MindSpore, against MindSpore's own dry run of that graph.

    python -m benchmarks.mindspore_runs.graph_estimate            the graphs that the tests keep
    python -m benchmarks.mindspore_runs.graph_estimate FOLDER…    with rank_N/memory_block.csv and ir/rank_N/*_validate_*.ir

`benchmarks/mindspore_programs/saved_graphs.py` is the program whose folders docs/replay.md reports.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from windtunnel.memory import Allocator
from windtunnel.memory.files.memory_block import read_memory_block
from windtunnel.memory.mindspore_graph.ir_file import read_graph_ir
from windtunnel.memory.mindspore_graph.liveness import tape_of_program
from windtunnel.memory.mindspore_graph.program import program_of
from windtunnel.memory.tape import AllocationTape, play
from windtunnel.memory.what_if.recorded_file import open_source

KEPT = Path(__file__).parents[2] / "tests" / "memory" / "data" / "mindspore"


def main(folders: list[str]) -> None:
    print("Used peak estimated from a static graph of MindSpore, against its own dry run")
    print(f"{'graph':<34}{'dry run':>14}{'with its order':>16}{'order of the file':>20}")
    cases = _in_folders(folders) if folders else _kept()
    for name, graph, blocks in cases:
        real = read_memory_block(blocks).recorded_peak_bytes or 0
        program = program_of(read_graph_ir(graph))
        ordered, as_written = open_source(graph).tape, tape_of_program(program, program.steps)
        errors = [_used(tape) / real - 1 for tape in (ordered, as_written)]
        print(f"{name:<34}{real:>14,}{errors[0]:>+16.2%}{errors[1]:>+20.2%}")


def _kept() -> Iterator[tuple[str, Path, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        for packed in sorted(KEPT.glob("*.ir.gz")):
            name = packed.name.removesuffix(".ir.gz")
            graph = Path(folder) / name / "graph.ir"
            (graph.parent / "execute_order").mkdir(parents=True)
            graph.write_bytes(gzip.decompress(packed.read_bytes()))
            order = gzip.decompress((KEPT / f"{name}.execute_order.csv.gz").read_bytes())
            (graph.parent / "execute_order" / "execute_order.csv").write_bytes(order)
            yield name, graph, KEPT / f"{name}.memory_block.csv.gz"


def _in_folders(folders: list[str]) -> Iterator[tuple[str, Path, Path]]:
    for folder in map(Path, folders):
        for blocks in sorted(folder.glob("rank_*/memory_block.csv")):
            for graph in sorted(folder.glob(f"ir/{blocks.parent.name}/*_validate_*.ir")):
                yield f"{folder.name} {blocks.parent.name}", graph, blocks


def _used(tape: AllocationTape) -> int:
    allocator = Allocator.named("mindspore")
    play(tape, allocator)
    return allocator.peak_allocated_bytes


if __name__ == "__main__":
    main(sys.argv[1:])
