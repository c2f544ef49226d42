"""Values that are only rounding noise: sums that should be zero, and what is computed from them.

    pairs over their limit ──> left by rounding of larger terms? divided by almost zero? ─────┐
                               the same value again? no more error than came in? <────────────┴──> noise

The gradient of a bias in front of a normalisation, or of the keys of attention, is mathematically zero and about 1e-9 in
practice, with another sign on another machine: a relative error of one that means nothing. Such a value is recognised by
the terms it was summed from, then by its statistics wherever it is used, until it is combined with something larger.
Adam divides it by its own magnitude and turns it into a step: how much division by small numbers can amplify an error
follows from the smallest of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = [
    "NO_NOISE",
    "KnownNoise",
    "Pairs",
    "divided_by_little",
    "find_noise",
    "negligible_inputs",
    "summed_away",
]

_FEWER = 4  # times fewer elements out than in: a reduction
_LONGEST_CHAIN = 32  # calls that pass noise on
_SAFETY = 2.0
_CARRIED = 4.0  # times more error in what is made of noise: a square doubles it, and errors are estimates


@dataclass(frozen=True, slots=True)
class KnownNoise:
    """Noise that was found in earlier steps of a rank."""

    values: np.ndarray  # hashes of values of both sides
    parameters: frozenset[str]  # whose gradients were only noise: an optimizer may have turned it into a step

    def __or__(self, other: KnownNoise) -> KnownNoise:
        return KnownNoise(np.union1d(self.values, other.values), self.parameters | other.parameters)


NO_NOISE = KnownNoise(np.zeros(0, np.uint64), frozenset())


@dataclass(frozen=True, slots=True)
class Pairs:
    """What is known about every pair, and which call it belongs to."""

    place: np.ndarray
    n_places: int
    error: np.ndarray
    eps: np.ndarray
    rms: np.ndarray
    n_elements: np.ndarray
    is_output: np.ndarray
    is_loud: np.ndarray  # a tensor that is not zero
    smallest: np.ndarray  # magnitude of the smallest element, if the extremes tell; else 0
    divides: np.ndarray  # its call divides
    same: np.ndarray  # equal numbers where both sides have equal values

    def largest_of_call(self, values: np.ndarray) -> np.ndarray:
        """For every pair, the largest value among the pairs of its call."""
        found = np.zeros(self.n_places)
        np.maximum.at(found, self.place, values)
        return found[self.place]


def summed_away(pairs: Pairs) -> np.ndarray:
    """The relative error that rounding of its terms, or noise in them, can leave in a sum; 0 if it is no reduction.

    K terms of size r, each rounded, leave about eps r sqrt(K), however small their sum.
    """
    terms = pairs.largest_of_call(pairs.n_elements) / np.maximum(pairs.n_elements, 1.0)
    largest = pairs.largest_of_call(pairs.rms)
    each = np.maximum(pairs.eps, pairs.largest_of_call(np.where(pairs.is_output, 0.0, pairs.error)))
    with np.errstate(over="ignore"):
        floor = _SAFETY * each * largest * np.sqrt(terms) / np.maximum(pairs.rms, np.finfo(float).tiny)
    return np.where(pairs.is_output & (terms >= _FEWER), floor, 0.0)


def divided_by_little(pairs: Pairs) -> np.ndarray:
    """The relative error that a division can make of its input errors, limited by its smallest divisor."""
    is_input = ~pairs.is_output
    smallest = np.maximum(pairs.smallest, 1e-30)  # smaller divisors count as zero
    came_in = pairs.largest_of_call(np.where(is_input, pairs.error, 0.0))
    spread = np.where(pairs.smallest > 0, pairs.rms / smallest, 1.0)
    gain = pairs.largest_of_call(np.where(is_input, spread, 0.0))
    return np.where(pairs.divides & pairs.is_output, np.minimum(_SAFETY * came_in * gain, _SAFETY), 0.0)


def negligible_inputs(pairs: Pairs) -> np.ndarray:
    """Inputs whose difference is below one rounding of the call's result: harmless here, if not elsewhere."""
    output_rms = pairs.largest_of_call(np.where(pairs.is_output, pairs.rms, 0.0))
    return ~pairs.is_output & (pairs.error * pairs.rms <= pairs.eps * output_rms)


def find_noise(pairs: Pairs, is_noise: np.ndarray, is_over: np.ndarray) -> np.ndarray:
    """All pairs that are noise, starting from those known to be.

    Also noise: the same value again; a result whose error is no larger than that of the noise it was computed from; a
    result computed only from noise, with a relative error of the same order.
    """
    size = pairs.error * pairs.rms * np.sqrt(pairs.n_elements)
    for _ in range(_LONGEST_CHAIN):
        is_noise = is_noise | ((pairs.error > 0) & _seen_before(pairs.same, is_noise))
        from_noise = is_noise & ~pairs.is_output
        size_in = pairs.largest_of_call(np.where(from_noise, size, 0.0))
        error_in = pairs.largest_of_call(np.where(from_noise, pairs.error, 0.0))
        has_loud = pairs.largest_of_call(pairs.is_loud & ~is_noise & ~pairs.is_output) > 0
        is_made = (size <= _SAFETY * size_in) | (~has_loud & (pairs.error <= _CARRIED * error_in))
        made = is_over & ~is_noise & pairs.is_output & is_made & (error_in > 0)
        if not made.any():
            return is_noise
        is_noise = is_noise | made
    return is_noise


def _seen_before(same: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Pairs with the same value as an earlier chosen pair; later pairs do not count."""
    at = np.flatnonzero(chosen)
    if not len(at):
        return np.zeros(len(same), bool)
    values, first = np.unique(same[at], return_index=True)
    place = np.minimum(np.searchsorted(values, same), len(values) - 1)
    return (values[place] == same) & (at[first][place] < np.arange(len(same)))
