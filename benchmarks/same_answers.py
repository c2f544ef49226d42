"""Do two checkouts give the same answers? For changes that must not alter any: moves, renames, clean-ups.

    checkout ──> 12 runs, 5 comparisons, 2 rematerialisation curves ──> FOLDER/CASE.json, without what varies

`python -m benchmarks.same_answers record CHECKOUT FOLDER` for each checkout, then `... diff FOLDER FOLDER`. Scripts and dumps
are this checkout's own in both cases, so that a report names the same files; cases whose programs or data are missing
are skipped and listed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["CASES", "Case", "main", "normalised"]

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DUMPS = ROOT.parent / "shared" / "data" / "msprobe"

# What differs between two runs of one program: clocks of this machine, and the version.
VARIES = {"version", "build_time_us"}


@dataclass(frozen=True)
class Case:
    """One command, and the JSON it writes."""

    name: str
    arguments: tuple[str, ...]
    is_mindspore: bool = False
    needs: tuple[Path, ...] = ()


def _run(name: str, *arguments: str, is_mindspore: bool = False) -> Case:
    return Case(name, ("run", "--json", "--force", "--out", "OUT", *arguments), is_mindspore)


def _program(*parts: str) -> str:
    return str(ROOT.joinpath(*parts))


_QWEN = (
    "--device",
    "a100-80gb",
    _program("examples", "qwen25_7b.py"),
    "--batch-size",
    "1",
    "--checkpointing",
)
_MEGATRON = """
    --device h100-80gb --world-size 16 examples/megatron/pretrain_gpt.py --use-mcore-models
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel --num-layers 8 --hidden-size 1024
    --num-attention-heads 16 --max-position-embeddings 2048 --seq-length 2048 --micro-batch-size 1 --global-batch-size 16
    --padded-vocab-size 32000 --train-iters 3 --lr 1e-4 --bf16 --swiglu --disable-bias-linear --normalization RMSNorm
    --position-embedding-type rope --untie-embeddings-and-output-weights
""".replace("examples/", f"{EXAMPLES}/").split()


def _compare(name: str, one: str, other: str) -> Case:
    sides = (DUMPS / one, DUMPS / other)
    return Case(name, ("compare", "--json", *map(str, sides)), needs=sides)


def _gloo(name: str) -> str:
    return _program("benchmarks", "gloo_programs", f"{name}.py")


CASES = (
    _run("qwen-level-1", "--level", "1", *_QWEN),
    _run("qwen-level-2", "--level", "2", *_QWEN),
    _run("qwen-level-3", "--level", "3", *_QWEN),
    _run("megatron-16-ranks", "--level", "3", *_MEGATRON),
    _run("ddp-2", "--device", "h100", "--world-size", "2", _gloo("ddp"), "--device", "cuda"),
    _run("fsdp2-8", "--device", "h100", "--world-size", "8", "--level", "3", _gloo("fsdp2"), "--device", "cuda"),
    _run("pipeline-4", "--device", "h100", "--world-size", "4", "--level", "3", _gloo("pipeline"), "--device", "cuda"),
    _run("resnet-cpu", "--device", "cpu", _program("benchmarks", "cpu_programs", "resnet50.py")),
    _run("gpt-advice", "--device", "rtx4090-24gb", "--advise", _program("benchmarks", "advice_programs", "train.py"),
         "gpt", "--batch-size", "80"),
    _run("mindspore-8-ranks", "--world-size", "8", _program("examples", "mindspore", "semi_auto.py"), is_mindspore=True),
    _run("mindspore-mlp", "--level", "3", _program("examples", "mindspore", "mlp.py"), is_mindspore=True),
    _run("mindspore-transformer", "--level", "2", _program("examples", "mindspore", "transformer.py"), is_mindspore=True),
    _compare("compare-L0-mix", "torch_L0_statistics_md5", "torch_mix_statistics_md5"),
    _compare("compare-L1-mix", "torch_L1_statistics_statistics", "torch_mix_tensor_statistics"),
    _compare("compare-frameworks-L0", "torch_L0_statistics_md5", "ms_L0_statistics_statistics"),
    _compare("compare-frameworks-mix", "torch_mix_tensor_statistics", "ms_mix_tensor_statistics"),
    _compare("compare-frameworks-L1", "ms_L1_statistics_md5", "torch_L1_statistics_statistics"),
    Case("remat-resnet", ("remat", "--json", "--force", "--out", "OUT", "--device", "2080ti-11gb",
                          _program("examples", "resnet50.py"), "--batch", "200")),
    Case("remat-gpt", ("remat", "--json", "--force", "--out", "OUT", "--device", "rtx4090-24gb",
                       _program("benchmarks", "advice_programs", "train.py"), "gpt", "--batch-size", "80")),
)  # fmt: skip


def normalised(answer: Any) -> Any:
    """Remove the fields that vary from run to run."""
    if isinstance(answer, dict):
        return {key: normalised(value) for key, value in answer.items() if key not in VARIES}
    if isinstance(answer, list):
        return [normalised(value) for value in answer]
    return answer


def record(checkout: Path, folder: Path, wanted: list[str]) -> int:
    """Write one file for each case; 1 if a command failed."""
    folder.mkdir(parents=True, exist_ok=True)
    is_broken = False
    for case in CASES:
        if wanted and case.name not in wanted:
            continue
        missing = [path for path in case.needs if not path.exists()]
        python = checkout / (".venv-mindspore" if case.is_mindspore else ".venv") / "bin" / "python"
        if missing or not python.exists():
            print(f"{case.name}: skipped, there is no {missing[0] if missing else python}")
            continue
        answer = _answer(python, checkout, case)
        is_broken |= answer is None
        print(f"{case.name}: {'failed' if answer is None else f'{len(answer):,} characters'}", flush=True)
        if answer is not None:
            (folder / f"{case.name}.json").write_text(answer, encoding="utf-8")
    return int(is_broken)


def _answer(python: Path, checkout: Path, case: Case) -> str | None:
    with tempfile.TemporaryDirectory(prefix="windtunnel-same-") as name:
        arguments = [f"{name}/out" if each == "OUT" else each for each in case.arguments]
        done = subprocess.run(
            [str(python), "-W", "ignore", "-m", "windtunnel.commands.main", *arguments],
            capture_output=True, text=True, check=False, cwd=checkout,
            env={**os.environ, "PYTHONPATH": f"{checkout / 'src'}"},
        )  # fmt: skip
        is_compare = case.arguments[0] == "compare"
        if done.returncode not in ((0, 3) if is_compare else (0, 4)) or not done.stdout.strip():
            print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
            return None
        text = done.stdout.replace(name, "FOLDER").replace(str(ROOT), "HERE")
    return json.dumps(normalised(json.loads(text)), indent=1, sort_keys=True)


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two answers differ, as paths with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{path}[{i}]")
    elif one != other:
        yield f"{path}: {_short(one)} | {_short(other)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def diff(before: Path, after: Path) -> int:
    """Print each difference; 1 if there is one."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.json")})
    n_equal = 0
    for name in names:
        if not (before / name).exists() or not (after / name).exists():
            print(f"{name}: only in one of the two")
            continue
        texts = [(folder / name).read_text(encoding="utf-8") for folder in (before, after)]
        n_equal += texts[0] == texts[1]
        for line in differences(*map(json.loads, texts)):
            print(f"{name}{line}")
    print(f"{n_equal} of {len(names)} answers are the same, byte for byte")
    return int(n_equal != len(names) or not names)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.same_answers")
    verbs = parser.add_subparsers(required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("checkout", type=Path)
    recording.add_argument("folder", type=Path)
    recording.add_argument("cases", nargs="*")
    recording.set_defaults(act=lambda args: record(args.checkout.resolve(), args.folder, args.cases))
    comparing = verbs.add_parser("diff")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.set_defaults(act=lambda args: diff(args.before, args.after))
    args = parser.parse_args(argv)
    act: Callable[[argparse.Namespace], int] = args.act
    return act(args)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
