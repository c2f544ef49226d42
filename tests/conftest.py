"""The same for every test on every machine: how wide a line is; and an order of chance, when asked for by --shuffle."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from pathlib import Path
from typing import Any


def pytest_configure() -> None:
    os.environ["COLUMNS"] = "80"  # lines are broken where the tests expect it, however wide the terminal is
    # A shell starts what runs in the background with interrupts ignored, and every program the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Workers share the cores: threads of kernels that wait for each other make the suite take half as long again.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Inductor finds code again that it compiled for other instructions, and then fails or computes other bits.
    instructions = os.environ.get("ATEN_CPU_CAPABILITY", "native")
    folder = Path(tempfile.gettempdir()) / f"windtunnel-inductor-{os.getuid()}-{instructions}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def pytest_addoption(parser: Any) -> None:
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run the tests in an order of chance, the same for the same seed",
    )


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Shuffle files, and the tests within each: what a file makes once for all its tests is still made once."""
    seed = config.getoption("shuffle")
    if seed is None:
        return
    chance = random.Random(seed)  # every worker of xdist has to find the same order
    files: dict[Any, list[Any]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    chance.shuffle(groups)
    for group in groups:
        chance.shuffle(group)
    items[:] = [item for group in groups for item in group]


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    if config.getoption("shuffle") is not None:
        terminalreporter.write_line(f"in the order of --shuffle {config.getoption('shuffle')}")
