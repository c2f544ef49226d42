"""The console that everything of ours is shown on: text is shown as it is, and never obeyed.

renderable ──> rich's segments ──> control characters spelled out ──> terminal

Names of modules, frames of a stack and paths come from files and programs of others. Neither rich's markup ([bold]) nor
a terminal's escapes in them mean anything here.
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
    """A rich console without highlighting and markup, whose text holds no control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, which also measures by it how wide a cell has to be."""
        return super().render_str(plain_text(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, for every part of what is shown; the escapes of its own styles come later."""
        if isinstance(renderable, Text) and (text := plain_text(renderable.plain)) != renderable.plain:
            # Before it is broken into lines: spelled out it is longer. Its colours would be in the wrong places.
            renderable = Text(
                text, renderable.style, justify=renderable.justify, overflow=renderable.overflow
            )
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain_text(segment.text))
