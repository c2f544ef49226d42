"""Trainers of other libraries, unmodified: does each strategy of Lightning, Fabric and Hugging Face's Trainer run?

trainer_programs/*.py, their own options ──> windtunnel run ──> status, peak; a program whose package is absent is skipped
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cpu_exactness import missing_package
from windtunnel.units import format_bytes

__all__ = ["CASES", "Case", "Outcome", "main", "program_of", "run_case"]

_PROGRAMS = Path(__file__).parent / "trainer_programs"
_HF = ("--output_dir", "out", "--bf16", "--max_steps", "3", "--per_device_train_batch_size", "2", "--report_to", "none",
       "--save_strategy", "no")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One program with its options."""

    program: str
    options: tuple[str, ...] = ()
    n_ranks: int = 1
    zero_stage: int = 0  # of the DeepSpeed configuration that is written for it

    @property
    def name(self) -> str:
        stage = f" zero {self.zero_stage}" if self.zero_stage else ""
        strategy = "fsdp" if "--fsdp" in self.options else " ".join(self.options[1:2])
        return f"{self.program} {strategy}".strip() + stage + f" on {self.n_ranks}"


@dataclass(frozen=True)
class Outcome:
    """What the dry run of a case said."""

    is_ok: bool
    peak_bytes: int
    output: str


CASES = (
    Case("lightning_trainer"),
    Case("lightning_trainer", ("--strategy", "ddp", "--devices", "2"), 2),
    Case("lightning_trainer", ("--strategy", "fsdp", "--devices", "2"), 2),
    Case("lightning_fabric"),
    Case("lightning_fabric", ("--strategy", "ddp", "--devices", "2"), 2),
    Case("lightning_fabric", ("--strategy", "fsdp", "--devices", "2"), 2),
    Case("hf_trainer"),
    Case("hf_trainer", (), 2),
    Case("hf_trainer", ("--fsdp", "full_shard auto_wrap", "--fsdp_config",
                        '{"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}'), 2),
    Case("hf_trainer", (), 2, 2),
    Case("hf_trainer", (), 2, 3),
)  # fmt: skip


def program_of(case: Case) -> Path:
    return _PROGRAMS / f"{case.program}.py"


def run_case(case: Case) -> Outcome:
    """Dry-run one case in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = [*case.options, *(_HF if case.program == "hf_trainer" else ())]
        if case.zero_stage:
            options += ["--deepspeed", str(_configuration(case.zero_stage, folder))]
        command = [sys.executable, "-m", "windtunnel", "run", "--device", "a100-80gb", "--world-size", str(case.n_ranks),
                   "--out", str(folder / "out"), str(program_of(case)), *options]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        report = folder / "out" / "report.json"
        ranks = json.loads(report.read_text(encoding="utf-8"))["ranks"] if report.exists() else []
        peak = max((rank["peak_bytes"] for rank in ranks), default=0)
    return Outcome(done.returncode == 0, peak, done.stdout + done.stderr)


def _configuration(stage: int, folder: Path) -> Path:
    automatic = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size",
                 "gradient_clipping")  # fmt: skip
    content = {"zero_optimization": {"stage": stage}, "bf16": {"enabled": "auto"}}
    file = folder / f"zero{stage}.json"
    file.write_text(json.dumps(content | dict.fromkeys(automatic, "auto")), encoding="utf-8")
    return file


def main() -> None:
    console, table = Console(width=120), Table(title="trainers of other libraries", box=None)
    for column in ("program", "status", "peak"):
        table.add_column(column)
    for case in CASES:
        package = missing_package(program_of(case))
        if package is not None:
            table.add_row(case.name, f"skipped: {package} is not installed", "")
            continue
        found = run_case(case)
        table.add_row(case.name, "ok" if found.is_ok else "failed", format_bytes(found.peak_bytes))
        if not found.is_ok:
            console.print(found.output[-2000:], markup=False)
    console.print(table)


if __name__ == "__main__":
    main()
