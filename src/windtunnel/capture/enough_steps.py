"""When a script has run enough optimizer steps (`--steps`), and the exception that ends it then."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["EnoughSteps", "step_counter"]


class EnoughSteps(BaseException):
    """Raised after the last requested step. Not an Exception, so that `except Exception` in a script lets it pass."""


def step_counter(max_steps: int | None, report: Callable[[int], None] | None) -> Callable[[int], None]:
    """What a recorder calls with the number of steps taken: passes it on, and ends the script after the last one."""

    def count(n_steps: int) -> None:
        if report is not None:
            report(n_steps)
        if max_steps is not None and n_steps >= max_steps:
            raise EnoughSteps

    return count
