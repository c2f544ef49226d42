"""Give up a threshold that cannot be held.

    values recomputed in one round > 2 x operators of its forward ────> until the round ends, only what plain
                                                                         training would not hold is evicted,
                                                                         unless the device is full
                                                                     ──> a higher limit from the next round on

With a budget below what the model needs, every evicted value is needed again at once, and the work grows while the
peak does not fall. One round may recompute twice as many values as its forward had operators. After that, saved values
that are still evicted are recomputed at most once more, because they are no longer evicted; intermediate values, which
plain training frees in forward, are kept only in place of saved values that are evicted. So the peak of such a round is
not above that of plain training.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.remat.statistics import Statistics

__all__ = ["Guard"]

_MOST_COMPUTED = 2  # times the operators of the forward
_RAISE = 0.25  # of the way from the limit to the peak reached, after each round in which the guard tripped


@dataclass
class Guard:
    floor: int = 0  # bytes: the limit is never below this
    n_operators: int = 0  # of this round
    n_computed: int = 0
    peak_bytes: int = 0

    @property
    def is_tripped(self) -> bool:
        return self.n_computed > _MOST_COMPUTED * max(self.n_operators, 1)

    def raised(self, limit: int) -> int:
        """The limit to use after a round in which the guard tripped."""
        return limit + int(max(self.peak_bytes - limit, 0) * _RAISE)

    def end_round(self, limit: int, statistics: Statistics) -> None:
        """Learn from the round that ends and begin another."""
        if self.is_tripped:
            self.floor = self.raised(limit)
            statistics.guarded_rounds += 1
            statistics.raised_limit_bytes = self.floor
        self.n_operators = self.n_computed = self.peak_bytes = 0
