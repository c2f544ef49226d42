"""The options of `windtunnel run`, and those of a script's arguments that look like one of them.

add_arguments ──> parser          script arguments ──> misplaced_options ──> ["--device", "h100"], the others
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from windtunnel.devices import DEFAULT_ASCEND, DEFAULT_DEVICE

__all__ = ["OUT", "add_arguments", "misplaced_options"]

OUT = "windtunnel-out"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "windtunnel run [options] script.py [script arguments...]"
    add = parser.add_argument
    add("--level", type=int, metavar="{0,1,2,3}",
        help="0 builds and runs; 1 adds memory (default); 2 the workspace of kernels; 3 time and a trace")  # fmt: skip
    add("--device", metavar="NAME",
        help=f"accelerator to simulate: NAME, NAME:mem=40GiB, a TOML file or cpu (default {DEFAULT_DEVICE}; for MindSpore"
        f" {DEFAULT_ASCEND})")  # fmt: skip
    add("--world-size", type=int, metavar="N", help="cards of the job")
    add("--nproc-per-node", type=int, metavar="N",
        help="cards of one machine (default: up to 8); alone, all there are")  # fmt: skip
    add("--nnodes", type=int, metavar="N", help="machines of the job, with --nproc-per-node cards each")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="simulate this rank only")
    which.add_argument(
        "--ranks",
        default="auto",
        metavar="WHICH",
        help="auto (default: one of each kind of ranks), all, or a list such as 0,3,8-15",
    )
    add("--steps", type=int, metavar="N", help="stop cleanly after N optimizer steps")
    add(
        "--allocator",
        metavar="SPEC",
        help="allocator profile, NAME[:key=value,...] (default follows the device)",
    )
    add("--memory-tracker", action="store_true",
        help="write memory_block.csv: one row per allocation, with the Python stack")  # fmt: skip
    add("--snapshot", action="store_true", help="write snapshot.pickle for torch's memory viewer")
    add(
        "--workspace",
        type=Path,
        metavar="FILE",
        help="TOML file with workspaces of kernels of your own (level 2)",
    )
    add("--network", metavar="FIGURES",
        help="between cards, as in latency=5us,bandwidth=50GB/s,nics=8, or a TOML file (level 3)")  # fmt: skip
    add("--measure", action="store_true",
        help="time operators on the device of this machine, as --device cpu always does (level 3)")  # fmt: skip
    add(
        "--tokens-per-step",
        type=int,
        metavar="N",
        help="tokens of one step of the whole job (default: counted)",
    )
    add("--trace-ranks", metavar="LIST", help="ranks that get a trace, such as 0,8-11 (default: up to 4)")
    add("--library-buffers", action="store_true",
        help="take the estimated buffers of NCCL or HCCL off the usable memory")  # fmt: skip
    add("--checkpoint", action="append", default=[], metavar="MODULES",
        help="what if these ran under activation checkpointing: model.layers.0-27 or model.layers.*")  # fmt: skip
    add("--batch-factor", type=float, default=1.0, metavar="F",
        help="what if every DataLoader made batches F times as large")  # fmt: skip
    add("--advise", action=argparse.BooleanOptionalAction, default=None,
        help="simulate what would make it fit, or how large a batch it has room for (default: only if it does not"
        " fit and the run took less than a minute)")  # fmt: skip
    add("--out", default=OUT, metavar="DIR", help=f"folder for the run's files (default {OUT})")
    add("--keep-files", type=Path, metavar="DIR",
        help="copy what the script wrote to this new folder (default: it is listed, and gone after the run)")  # fmt: skip
    add("--network-access", action="store_true",
        help="let the script reach other machines (default: only this one)")  # fmt: skip
    add("--isolation", default="auto", metavar="HOW",
        help="how files are protected: auto (default: a copy-on-write layer where the system allows one) or guard")  # fmt: skip
    add("--no-html", action="store_true", help="write no report.html")
    add("--json", action="store_true", help="print report.json instead of tables")
    add("--jobs", type=int, metavar="N", help="ranks simulated at the same time (default: number of cores)")
    add(
        "--executor",
        default="local",
        metavar="WHERE",
        help="local (default), ray, or ray:ADDRESS of a cluster",
    )
    add("--force", action="store_true", help="replace an earlier run in --out")
    add(
        "-v",
        "--verbose",
        action="store_true",
        help="show the output of every rank, not only of the first one",
    )
    add("-m", dest="is_module", action="store_true", help="the script is a module name, as in python -m")
    add("script", help="the training script")
    add("arguments", nargs=argparse.REMAINDER, help="its own arguments")


def misplaced_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of a script's arguments that are options of ours, with their values; and the others."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    takes_value = {name: action.nargs is None for action in parser._actions for name in action.option_strings}
    ours: list[str] = []
    others: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        if not name.startswith("--") or name not in takes_value:
            others.append(word)
            continue
        ours.append(word)
        if takes_value[name] and not equals:
            ours += [value for value in [next(words, None)] if value is not None]
    return ours, others
