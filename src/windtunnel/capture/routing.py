"""Which experts the tokens of a dry run go to: a router's scores have no values, so the user says how they are spread.

    --routing balanced | zipf:1.2 | worst | TRACE.json ──> Routing ──> weights of the experts of one router
                                                             └──────> counts, then distinct experts for every token

Everything here is arithmetic on whole numbers: the counts of all experts always sum to the number of choices, no token
chooses an expert twice, and every rank with the same number of tokens gets the same routing (docs/experts.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BALANCED", "Routing", "choose", "counts_of", "routing_of"]

BALANCED = "balanced"
_HINT = "use balanced, zipf:1.2, worst, or a JSON file with the tokens of each expert (docs/experts.md)"
_LARGEST_TRACE = 64 << 20  # bytes
_GOLDEN = 0.6180339887  # neighbouring tokens get different experts


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens are spread over the experts of every router."""

    text: str = BALANCED  # as the user wrote it
    exponent: float = 0.0  # of a zipf distribution
    layers: tuple[tuple[float, ...], ...] = ()  # of a trace: tokens of each expert, router by router
    modules: tuple[tuple[str, tuple[float, ...]], ...] = ()  # of a trace: the same by module path

    @property
    def is_trace(self) -> bool:
        return bool(self.layers or self.modules)

    def weights(self, n_experts: int, n_chosen: int, path: str, number: int) -> tuple[float, ...]:
        """Share of every expert for the `number`-th router of the program, in the module `path`."""
        if self.text == "worst":
            return (1.0,) * n_chosen + (0.0,) * (n_experts - n_chosen)
        if self.exponent:
            return tuple((expert + 1) ** -self.exponent for expert in range(n_experts))
        traced = self._traced(path, number)
        if traced and len(traced) % n_experts == 0:  # or groups of experts, chosen first
            size = len(traced) // n_experts
            return tuple(sum(traced[i * size : (i + 1) * size]) for i in range(n_experts))
        return (1.0,) * n_experts

    def choose(self, weights: Sequence[float], n_tokens: int, n_chosen: int, first: int = 0) -> np.ndarray:
        return choose(weights, n_tokens, n_chosen, first)

    def covers(self, n_experts: int, path: str, number: int) -> bool:
        """Whether a trace says something about this router; always true of other routings."""
        traced = self._traced(path, number)
        return not self.is_trace or bool(traced and len(traced) % n_experts == 0)

    def _traced(self, path: str, number: int) -> tuple[float, ...]:
        for pattern, counts in self.modules:
            if fnmatchcase(path, pattern):
                return counts
        return self.layers[number % len(self.layers)] if self.layers else ()

    def as_fields(self) -> dict[str, Any]:
        return {"text": self.text, "exponent": self.exponent, "layers": self.layers, "modules": self.modules}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Routing:
        return cls(
            fields["text"],
            fields["exponent"],
            tuple(map(tuple, fields["layers"])),
            tuple((pattern, tuple(counts)) for pattern, counts in fields["modules"]),
        )


def routing_of(text: str) -> Routing:
    """Read what the user wrote after --routing."""
    if text in (BALANCED, "worst"):
        return Routing(text)
    name, colon, number = text.partition(":")
    if name == "zipf":
        exponent = _positive(number if colon else "1")
        if exponent is None:
            raise UsageError(
                f"--routing {text}: {number!r} is not an exponent between 0 and 10", hint="--routing zipf:1.2"
            )
        return Routing(text, exponent=exponent)
    if not text.endswith(".json"):
        raise UsageError(f"unknown routing {text!r}", hint=_HINT)
    return _trace(text)


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number <= 10 else None


def _trace(text: str) -> Routing:
    """`{"layers": [[12, 8, …], …]}` in the order of the routers, or `{"layers": {"model.layers.0.*": [12, 8, …]}}`."""
    path = Path(text)
    try:
        if not path.is_file():
            raise UsageError(f"--routing {text}: there is no such file", hint=_HINT)
        if path.stat().st_size > _LARGEST_TRACE:
            raise UsageError(
                f"--routing {text} is larger than {_LARGEST_TRACE >> 20} MiB",
                hint="sum the tokens of each expert over the steps",
            )
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--routing {text} cannot be read: {error}", hint=_HINT) from None
    layers = document.get("layers") if isinstance(document, dict) else None
    if isinstance(layers, dict) and layers:
        named = tuple((str(name), _counts(text, name, counts)) for name, counts in layers.items())
        return Routing(text, modules=named)
    if isinstance(layers, list) and layers:
        return Routing(text, layers=tuple(_counts(text, i, counts) for i, counts in enumerate(layers)))
    raise UsageError(
        f'--routing {text} has no "layers" with the tokens of each expert',
        hint='for example {"layers": [[120, 80, 60, 40], [90, 70, 80, 60]]}',
    )


def _counts(text: str, layer: object, counts: Any) -> tuple[float, ...]:
    is_right = isinstance(counts, list) and all(
        type(c) in (int, float) and math.isfinite(c) and c >= 0 for c in counts
    )
    if not is_right or not sum(counts):
        raise UsageError(
            f"--routing {text}: layer {layer} is not a list of tokens per expert, none below 0 and not all 0",
            hint="one number for each expert",
        )
    return tuple(map(float, counts))


# -- from weights to choices ----------------------------------------------------------------------------------------


def counts_of(weights: Sequence[float], n_tokens: int, n_chosen: int) -> list[int]:
    """How many tokens choose each expert: in proportion to the weights, at most every token, in sum all choices.

    Remainders go to the largest fractions, then to the lower expert.
    """
    left = n_tokens * n_chosen
    counts = [0] * len(weights)
    open_experts = [expert for expert, weight in enumerate(weights) if weight > 0]
    while left and open_experts:
        total = sum(weights[e] for e in open_experts)
        shares = {e: left * weights[e] / total for e in open_experts}
        full = [e for e in open_experts if counts[e] + shares[e] >= n_tokens]
        if not full:
            for e in open_experts:
                counts[e] += int(shares[e])
            rest = left - sum(int(share) for share in shares.values())
            by_fraction = sorted(open_experts, key=lambda e: (int(shares[e]) - shares[e], e))
            for e in by_fraction[:rest]:
                counts[e] += 1
            return counts
        for e in full:
            left -= n_tokens - counts[e]
            counts[e] = n_tokens
        open_experts = [e for e in open_experts if e not in full]
    for e in range(len(weights)):  # fewer experts have a weight than a token chooses
        more = min(left, n_tokens - counts[e])
        counts[e] += more
        left -= more
    return counts


def choose(weights: Sequence[float], n_tokens: int, n_chosen: int, first: int = 0) -> np.ndarray:
    """The experts of every token, [n_tokens, n_chosen], distinct in each row.

    Equal weights go round robin from the expert `first`, so that any slice of the tokens is balanced too.
    """
    import numpy as np

    n_experts = len(weights)
    if len(set(weights)) == 1:
        flat = first + np.arange(n_tokens * n_chosen, dtype=np.int64)
        return (flat % n_experts).reshape(n_tokens, n_chosen)
    counts = counts_of(weights, n_tokens, n_chosen)
    # No expert has more than n_tokens choices in a row, so it never meets itself n_tokens further on.
    in_order = np.repeat(np.arange(n_experts, dtype=np.int64), counts).reshape(n_chosen, n_tokens).T
    return in_order[_spread(n_tokens)]


def _spread(n: int) -> np.ndarray:
    """An order of the tokens in which neighbours come from far apart."""
    import numpy as np

    step = max(1, round(n * _GOLDEN))
    while math.gcd(step, n) != 1:
        step += 1
    return np.arange(n, dtype=np.int64) * step % n if n else np.arange(0, dtype=np.int64)
