"""Op logs written by hand: one function per instruction, each returning its lines."""

from __future__ import annotations

import json

from benchmarks.dtr.reference.op_log import OpLog, parse_op_log

__all__ = ["call", "constant", "copy", "line", "log", "mutate", "release", "view"]


def log(*instructions: list[str]) -> OpLog:
    return parse_op_log([text for lines in instructions for text in lines])


def line(kind: str, **fields: object) -> str:
    return json.dumps({"INSTRUCTION": kind, **fields})


def constant(name: str, n_bytes: int) -> list[str]:
    return [line("CONSTANT", NAME=name), line("MEMORY", NAME=name, MEMORY=str(n_bytes))]


def call(results: str, args: str, time: int, *outputs: tuple[int, int] | int) -> list[str]:
    """Names separated by blanks; an output is its bytes, or (bytes, which argument it is a view of)."""
    lines = [line("CALL", NAME="op", RESULT=results.split(), ARGS=args.split(), TIME=str(time))]
    for name, output in zip(results.split(), outputs, strict=True):
        n_bytes, alias = output if isinstance(output, tuple) else (output, -1)
        lines.append(line("MEMORY", NAME=name, MEMORY=str(n_bytes)))
        lines.append(line("ALIAS", NAME=name, ALIAS=str(alias)))
    return lines


def view(result: str, arg: str, time: int) -> list[str]:
    return call(result, arg, time, (0, 0))


def mutate(args: str, places: list[int], time: int) -> list[str]:
    return [line("MUTATE", NAME="op_", ARGS=args.split(), MUTATE=places, TIME=str(time))]


def copy(new: str, old: str) -> list[str]:
    return [line("COPY", DST=new, SRC=old)]


def release(*names: str) -> list[str]:
    return [line("RELEASE", NAME=name) for name in names]
