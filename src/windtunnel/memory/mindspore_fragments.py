"""The two meanings of MindSpore's "with fragments".

    RecordedMemory ──> tape ──> MindSpore's pool on virtual memory ──> pages it mapped

Its dry run cannot map memory page by page, so it prints the span of the blocks it carved; a real run prints the pages it
mapped. Both use the same label.
"""

from __future__ import annotations

from windtunnel.memory.allocators.contract import Allocator
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.tape import play

__all__ = ["peak_in_pages"]


def peak_in_pages(recorded: RecordedMemory, spec: str, conf: str, device: int = 0) -> int | None:
    """Return what a real device would print as "with fragments"; None if the allocator differs or counts pages already."""
    name, _, options = spec.partition(":")
    if name.strip() != "mindspore" or "enable_vmm" in options or "enable_vmm" in conf:
        return None
    if "block_size" in options or "task_sink" in options:
        return None  # these have no pages
    allocator = Allocator.from_spec("mindspore:enable_vmm=True", conf=conf)
    play(recorded.tape(device), allocator)
    return allocator.peak_reserved_bytes
