"""What a call reads, as a recipe refers to it: values, and blocks that are not values.

call, the program's blocks ──> Reads(values, constants, is it possible to run it again)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from windtunnel.events.model import CallFlag, Signature
from windtunnel.remat.rerunnable import HIDDEN_WRITES
from windtunnel.remat.simulated.memory import BLANK, Block, SimulatedValue
from windtunnel.remat.simulated.program import Call

__all__ = ["Reads", "running_statistics"]


class Reads:
    def __init__(
        self,
        call: Call,
        blocks: Mapping[int, Block],
        vanishing: Collection[int],
        skipped: Collection[int],
        written: Block | None = None,
    ) -> None:
        """`skipped`: places among the inputs that a second run leaves out. `written`: what the call writes over."""
        self.values: dict[SimulatedValue, None] = {}  # in order, each once
        self.blocks: set[Block] = set()
        self.constants: list[Block] = []
        self.has_constants = False
        self.is_possible = not call.flags & CallFlag.ODD
        self.reads_vanishing = False
        self._is_filling = False
        for place, storage in enumerate(call.inputs):
            if storage in vanishing:
                # not held: its storage is emptied although others hold it
                self.reads_vanishing = self.has_constants = True
            elif place not in skipped:
                self._read(blocks.get(storage), written if place == 0 else None)
        if not (self.values or self.has_constants or self._is_filling):
            self.is_possible = False

    def _read(self, block: Block | None, written: Block | None) -> None:
        if block is None:
            self.has_constants = True  # the host's, or no bytes at all
            return
        self.blocks.add(block)
        value = block.value
        if isinstance(value, SimulatedValue):
            self.values[value] = None
        elif value is not BLANK:
            self.constants.append(block)
            self.has_constants = True
        elif block is written:
            self._is_filling = True
        else:
            self.is_possible = False  # reads memory that was never written, as far as is known


def running_statistics(signature: Signature) -> frozenset[int]:
    """Places among the inputs of statistics that a batch norm in training updates; its first flag is whether it trains."""
    wanted = HIDDEN_WRITES.get(signature.name.split(".")[1], ()) if "." in signature.name else ()
    arguments = signature.scalars.split(",")
    if not wanted or next((text for text in arguments if text in ("True", "False")), "False") == "False":
        return frozenset()
    present = [at for at in wanted if at < len(arguments) and arguments[at] == "_"]
    return frozenset(arguments[:at].count("_") for at in present)
