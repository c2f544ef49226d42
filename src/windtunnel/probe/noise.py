"""Values that are nothing but rounding: sums that should be zero, and what is computed from them alone.

    pairs over their limit ──> left by rounding of larger terms? the same value again? made of such values only? ──> noise

The gradient of a bias in front of a normalisation is zero by algebra and some 1e-9 in practice, with another sign on
another machine: a relative error of one that says nothing. Such a value is known by the terms it was summed from, then
by its figures wherever it goes, until it meets something larger.
"""

from __future__ import annotations

import numpy as np

__all__ = ["find_noise", "negligible_inputs", "summed_away"]

_FEWER = 4  # times fewer elements out than in: a reduction
_LONGEST_CHAIN = 32  # calls that pass noise on
_SAFETY = 2.0


def summed_away(
    eps: np.ndarray, rms: np.ndarray, n_elements: np.ndarray, largest: np.ndarray, most: np.ndarray
) -> np.ndarray:
    """The relative error that rounding can leave in a sum; `largest` and `most` are rms and elements of its terms.

    K terms of size r, each rounded, leave about eps r sqrt(K), however small their sum. 0 for what is no reduction.
    """
    terms = most / np.maximum(n_elements, 1.0)
    floor = _SAFETY * eps * largest * np.sqrt(terms) / np.maximum(rms, np.finfo(float).tiny)
    return np.where(terms >= _FEWER, floor, 0.0)


def negligible_inputs(
    error: np.ndarray, rms: np.ndarray, eps: np.ndarray, output_rms: np.ndarray
) -> np.ndarray:
    """Inputs whose difference is below one rounding of what the call returns."""
    return error * rms <= eps * output_rms


def find_noise(
    is_noise: np.ndarray, is_over: np.ndarray, error: np.ndarray, same: np.ndarray, place: np.ndarray,
    is_output: np.ndarray, is_loud: np.ndarray, n_entries: int,
) -> np.ndarray:  # fmt: skip
    """All pairs that are noise, from those known to be: the same values again, and results of noise alone.

    `same` has equal numbers where both sides have equal values; `is_loud` marks inputs that are tensors and not zero.
    """
    for _ in range(_LONGEST_CHAIN):
        again = is_over & ~is_noise & np.isin(same, same[is_noise])
        known = is_noise | again
        noise_in, loud_in = np.zeros(n_entries), np.zeros(n_entries, bool)
        np.maximum.at(noise_in, place, np.where(known & ~is_output, error, 0.0))
        np.logical_or.at(loud_in, place, is_loud & ~known & ~is_output)
        made = is_over & ~known & is_output & ~loud_in[place] & (error <= _SAFETY * noise_in[place])
        if not (again | made).any():
            return known
        is_noise = known | made
    return is_noise
