"""The options of `windtunnel run`, and how to find them among a script's arguments, where they have no effect.

add_arguments ──> parser          script arguments ──> misplaced_options ──> ("--device", "h100")
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from windtunnel.devices import DEFAULT_ASCEND, DEFAULT_DEVICE

__all__ = ["OUT", "add_arguments", "misplaced_options"]

OUT = "windtunnel-out"
Add = Callable[..., argparse.Action]  # `add_argument` of a parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "windtunnel run [options] script.py|launcher|shell script [its arguments...]"
    # --help lists them in this order.
    _add_job(parser)
    _add_memory(parser.add_argument)
    _add_time(parser.add_argument)
    _add_what_if(parser.add_argument)
    _add_files(parser.add_argument)
    _add_execution(parser.add_argument)
    parser.add_argument(
        "script",
        help="the training script, or what starts it: torchrun, msrun, accelerate launch, deepspeed, mpirun, srun, bash",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments passed to the script")


def _add_job(parser: argparse.ArgumentParser) -> None:
    """What is simulated: devices and ranks."""
    add = parser.add_argument
    add("--level", type=int, metavar="{0,1,2,3}",
        help="0: does it run; 1: also memory (default); 2: also kernel workspaces; 3: also time and a trace")  # fmt: skip
    add("--device", metavar="NAME",
        help=f"accelerator to simulate: NAME, NAME:mem=40GiB, a TOML file or cpu (default {DEFAULT_DEVICE}; for MindSpore"
        f" {DEFAULT_ASCEND})")  # fmt: skip
    add("--framework", metavar="NAME",
        help="pytorch or mindspore (default: from the script's imports)")  # fmt: skip
    add("--world-size", type=int, metavar="N", help="total number of devices in the job")
    add("--nproc-per-node", type=int, metavar="N",
        help="devices per machine (default: up to 8); without --world-size and --nnodes, all devices in the job")  # fmt: skip
    add("--nnodes", type=int, metavar="N", help="number of machines, with --nproc-per-node devices each")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="simulate this rank only")
    which.add_argument(
        "--ranks",
        default="auto",
        metavar="WHICH",
        help="ranks to simulate: auto (default: one representative of each kind of work), all, or a list such as 0,3,8-15",
    )
    add("--steps", type=int, metavar="N", help="stop cleanly after N optimizer steps")
    add("--routing", default="balanced", metavar="HOW",
        help="which experts tokens go to: balanced (default), zipf:1.2, worst, or a JSON file (docs/experts.md)")  # fmt: skip


def _add_memory(add: Add) -> None:
    add(
        "--allocator",
        metavar="SPEC",
        help="allocator to simulate, NAME[:key=value,...] (default: the one of the device)",
    )
    add("--memory-tracker", action="store_true",
        help="write memory_block.csv: one row per allocation, with the Python stack")  # fmt: skip
    add("--snapshot", action="store_true", help="write snapshot.pickle for torch's memory viewer")
    add(
        "--workspace",
        type=Path,
        metavar="FILE",
        help="TOML file describing workspaces of custom kernels (level 2)",
    )


def _add_time(add: Add) -> None:
    add("--network", metavar="FIGURES",
        help="network of the job: latency=5us,bandwidth=50GB/s,nics=8, or a TOML file (level 3)")  # fmt: skip
    add("--measure", action="store_true",
        help="measure operators on this machine instead of using a model; --device cpu always does (level 3)")  # fmt: skip
    add(
        "--tokens-per-step",
        type=int,
        metavar="N",
        help="tokens per optimizer step of the whole job (default: counted from the embeddings)",
    )
    add(
        "--trace-ranks",
        metavar="LIST",
        help="ranks to write a trace for, such as 0,8-11 (default: up to 4 of them)",
    )


def _add_what_if(add: Add) -> None:
    """What else counts, and what if something were different."""
    add("--library-buffers", action="store_true",
        help="subtract estimated NCCL/HCCL buffers from usable memory")  # fmt: skip
    add("--checkpoint", action="append", default=[], metavar="MODULES",
        help="what if these modules used activation checkpointing, such as model.layers.0-27 or model.layers.*")  # fmt: skip
    add("--batch-factor", type=float, default=1.0, metavar="F",
        help="what if the batches of every DataLoader were F times as large")  # fmt: skip
    add("--chunk-loss", type=int, default=1, metavar="N",
        help="what if logits and cross-entropy were computed in N chunks of tokens, each under a checkpoint")  # fmt: skip
    add("--advise", action=argparse.BooleanOptionalAction, default=None,
        help="simulate changes that would make it fit or, if it fits, larger batches (default: only if it does not"
        " fit and the run took less than a minute)")  # fmt: skip


def _add_files(add: Add) -> None:
    """What is written, and how the user's own files are protected."""
    add("--out", default=OUT, metavar="DIR", help=f"output folder (default {OUT})")
    add("--keep-files", type=Path, metavar="DIR",
        help="copy the files the script wrote to this new folder (default: they are listed, then discarded)")  # fmt: skip
    add("--network-access", action="store_true",
        help="let the script connect to other machines (default: only to this one)")  # fmt: skip
    add("--isolation", default="auto", metavar="HOW",
        help="how your files are protected: auto (default: copy-on-write layer if possible) or guard")  # fmt: skip
    add("--no-html", action="store_true", help="do not write report.html")
    add("--json", action="store_true", help="print report.json to stdout instead of tables")


def _add_execution(add: Add) -> None:
    add(
        "--jobs",
        type=int,
        metavar="N",
        help="number of ranks to simulate at the same time (default: number of cores)",
    )
    add(
        "--executor",
        default="local",
        metavar="WHERE",
        help="where ranks are simulated: local (default), ray, or ray:ADDRESS of a cluster",
    )
    add("--force", action="store_true", help="replace an earlier run in --out")
    add(
        "-v",
        "--verbose",
        action="store_true",
        help="show the output of every rank, not only the first",
    )
    add("-m", dest="is_module", action="store_true", help="the script is a module name, as in python -m")


def misplaced_options(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the script's arguments that are windtunnel options, with their values."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    takes_value = {name: action.nargs is None for action in parser._actions for name in action.option_strings}
    ours: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        if not name.startswith("--") or name not in takes_value:
            continue
        ours.append(word)
        if takes_value[name] and not equals:
            ours += [value for value in [next(words, None)] if value is not None]
    return tuple(ours)
