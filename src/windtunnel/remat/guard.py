"""Stop working for a threshold that cannot be held.

    values computed again in one round > 2 x operators of its forward ──> no eviction until the round ends,
                                                                         unless the device is full
                                                                     ──> a higher limit from the next round on

A budget below what the model needs makes every drop come back at once, and the work grows without the peak
falling. One round may compute again twice as many values as its forward had operators; what is still missing then is
computed once more at most, because nothing is dropped any longer. With backward, which has two operators for one of
forward, a step so does less than three times its operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.remat.statistics import Statistics

__all__ = ["Guard"]

_MOST_COMPUTED = 2  # times the operators of the forward
_RAISE = 0.25  # of the way from the limit to the peak reached, after each round that had to be stopped


@dataclass
class Guard:
    floor: int = 0  # bytes: the limit is never below this
    n_operators: int = 0  # of this round
    n_computed: int = 0
    peak_bytes: int = 0

    @property
    def is_tripped(self) -> bool:
        return self.n_computed > _MOST_COMPUTED * max(self.n_operators, 1)

    def end_round(self, limit: int, statistics: Statistics) -> None:
        """Learn from the round that ends and begin another."""
        if self.is_tripped:
            self.floor = limit + int(max(self.peak_bytes - limit, 0) * _RAISE)
            statistics.guarded_rounds += 1
            statistics.raised_limit_bytes = self.floor
        self.n_operators = self.n_computed = self.peak_bytes = 0
