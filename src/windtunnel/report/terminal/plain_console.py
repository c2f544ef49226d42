"""The console for all output: control sequences and markup in text are shown, never interpreted.

renderable ──> rich's segments ──> control characters spelled out ──> terminal

Names of modules, stack frames and paths come from other people's files and programs. Neither rich's markup ([bold]) nor
a terminal's escape sequences in them have any effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from windtunnel.terminal_text import plain_text

__all__ = ["PlainConsole"]


class PlainConsole(Console):
    """A rich console without highlighting and markup, whose text has no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As in rich, which also uses it to measure the width of a cell."""
        return super().render_str(plain_text(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As in rich, for every part of the output; the escape sequences of rich's styles are added later."""
        if isinstance(renderable, Text) and (text := plain_text(renderable.plain)) != renderable.plain:
            # Before wrapping: the escaped text is longer. Its styles are dropped, since their offsets would be wrong.
            renderable = Text(
                text, renderable.style, justify=renderable.justify, overflow=renderable.overflow
            )
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain_text(segment.text))
