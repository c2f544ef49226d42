"""How accurate the fallback without a C++ compiler is: peaks on MindSpore's meta device next to those of its own dry run.

    python benchmarks/mindspore_runs/meta.py [--full]

Each example runs once with either method, rank 0 and the first rank of the last stage. --full adds the stage of
Qwen2.5-7B in its real size, which takes a few minutes. Needs MindSpore and a compiler (for the reference side).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from windtunnel.capture.mindspore import rank as mindspore_rank
from windtunnel.capture.mindspore.meta import rank as mindspore_meta
from windtunnel.capture.task import RankTask
from windtunnel.devices import find_device
from windtunnel.errors import NoToolchain
from windtunnel.events.file import read_recording
from windtunnel.events.model import Alloc, Free

EXAMPLES = Path(__file__).parents[2] / "examples" / "mindspore"
SMALL = "--layers 3 --hidden 512 --ffn 2048 --heads 8 --kv-heads 4 --vocab 4096 --seq 2048"
RUNS = [("mlp.py", "", 1, (0,)), ("transformer.py", "", 2, (0,)), ("transformer.py", "--steps 1", 2, (0,)),
        ("qwen_stage.py", SMALL, 4, (0, 2)), ("qwen_stage.py", f"{SMALL} --recompute", 4, (0, 2))]  # fmt: skip
FULL = [("qwen_stage.py", "", 4, (0,)), ("qwen_stage.py", "--recompute", 4, (0,))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true")
    args = parser.parse_args()
    print(
        f"{'script':15} {'rank':>4} {'stubs MiB':>11} {'meta MiB':>11} {'error':>9} {'stubs s':>8} {'meta s':>7}  arguments"
    )
    for example, arguments, world_size, ranks in RUNS + (FULL if args.full else []):
        for rank in ranks:
            with tempfile.TemporaryDirectory() as folder:
                there, here = (
                    _task(EXAMPLES / example, arguments, rank, world_size, Path(folder) / route)
                    for route in ("stubs", "meta")
                )
                want, their_s = _peak(there, lambda task: mindspore_rank.run_rank(task))
                got, our_s = _peak(
                    here, lambda task: mindspore_meta.run_rank(task, None, NoToolchain("a benchmark"))
                )
            print(f"{example:15} {rank:4} {want / 2**20:11.3f} {got / 2**20:11.3f} {got / want - 1:+9.4%} {their_s:8.1f} "
                  f"{our_s:7.1f}  {arguments}", flush=True)  # fmt: skip


def _task(script: Path, arguments: str, rank: int, world_size: int, folder: Path) -> RankTask:
    return RankTask(
        script=str(script), arguments=tuple(arguments.split()), is_module=False, device=find_device("ascend-910b-64gb"),
        allocator="mindspore", allocator_conf="", rank=rank, world_size=world_size, nproc_per_node=8,
        is_launched=world_size > 1, level=1, max_steps=None, is_tracking_stacks=False, folder=str(folder),
        framework="mindspore",
    )  # fmt: skip


def _peak(task: RankTask, run) -> tuple[int, float]:
    started = time.perf_counter()
    outcome, failure = run(task)
    seconds = time.perf_counter() - started
    if outcome["status"] != "ok" or failure:
        raise SystemExit(f"{task.script}: {failure or outcome['error']}")
    live = peak = 0
    sizes: dict[int, int] = {}
    for event in read_recording(task.recording_path).events():
        if isinstance(event, Alloc):
            sizes[event.storage] = event.n_bytes
            live += event.n_bytes
            peak = max(peak, live)
        elif isinstance(event, Free):
            live -= sizes.pop(event.storage)
    return peak, seconds


if __name__ == "__main__":
    main()
