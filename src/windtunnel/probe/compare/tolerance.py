"""What is rounding, and what is more: the tolerance of every pair, from its types and from the noise before it.

    error, types, order ──> judge ──> equal | rounding | different, for every pair

See docs/compare.md for the reasons. In short, with eps the spacing of the coarser of the two types at 1:

    nothing differed before    error <= max(64 eps of float32, eps)                     is one operation's rounding
    noise n came before        error <= 100 n is what one operation may amplify it to, but never more than
                               max(2048 eps of float32, 16 eps of the coarsest type so far) or 4 times the input error
    integers, strings          must be equal; with noise before, indices may flip (5 %)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from windtunnel.probe.compare.noise import (
    NO_NOISE,
    KnownNoise,
    Pairs,
    divided_by_little,
    find_noise,
    negligible_inputs,
    summed_away,
)
from windtunnel.probe.compare.pairing import Match, value_hashes
from windtunnel.probe.compare.relative_errors import SKETCH, STATISTICS, PairNumbers
from windtunnel.probe.compare.value_columns import OUTPUT, PARAMETER, TENSOR, Columns, Vocabulary
from windtunnel.probe.files.entry_name import GRADIENT, parse_entry_name

__all__ = ["DIFFERENT", "EQUAL", "ROUNDING", "Judgement", "Tolerance", "judge", "one_operation", "type_eps"]

EQUAL, ROUNDING, DIFFERENT = 0, 1, 2

_EPS = {  # spacing at 1.0
    "float32": 2.0**-23, "float16": 2.0**-10, "half": 2.0**-10, "bfloat16": 2.0**-7, "float": 2.0**-23,
    "float64": 2.0**-30,  # statistics and sketches are written with fewer digits than float64 has
    "double": 2.0**-30, "complex64": 2.0**-23, "complex128": 2.0**-30, "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3, "float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2,
}  # fmt: skip
_EPS32 = 2.0**-23
_ONE_OP, _ONE_OP_LOW = 64, 1  # spacings of float32, of the type itself
_MANY_OPS, _MANY_OPS_LOW = 2048, 16
_GROWTH = 100.0  # of noise in one operation
_CARRIED = 4.0  # times more may come out than came in: a square doubles it
_FLIPPED = 0.05  # of indices, by noise
_ENOUGH = 64  # elements: with fewer, a common factor may be chance
_DIVIDES = re.compile(r"\.(?:\w*div\w*|__i?truediv__|rsqrt_?|reciprocal_?)\.")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How strict to be: by types and noise, with a fixed relative error, or bit-exact."""

    fail_over: float | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: np.ndarray  # EQUAL, ROUNDING or DIFFERENT
    is_noise: np.ndarray  # of ROUNDING: only noise, whatever its error
    noise: KnownNoise  # to recognise it in the next step


@np.errstate(over="ignore", invalid="ignore")  # numbers in a damaged file may be arbitrarily large
def judge(
    match: Match, numbers: PairNumbers, a: Columns, b: Columns, roles: np.ndarray, words: Vocabulary,
    tolerance: Tolerance, *, ignores_types: bool = False, known_noise: KnownNoise = NO_NOISE,
) -> Judgement:  # fmt: skip
    """Judge every pair (the rows of `match` are pairs here, none is -1)."""
    error = np.nan_to_num(numbers.error, nan=0.0, posinf=np.inf)
    unlike = numbers.shape_differs | numbers.only_one_finite
    unlike |= np.zeros_like(unlike) if ignores_types else numbers.dtype_differs
    # Statistics that agree to the last digit while the bytes differ: another order or different content.
    unlike |= numbers.bits_differ & (error == 0) & (numbers.evidence == STATISTICS)
    is_equal = (error == 0) & ~numbers.bits_differ
    noise, is_noise = NO_NOISE, np.zeros(len(error), bool)
    if tolerance.exact:
        allowed = np.zeros(len(error))
        unlike |= numbers.bits_differ
    elif tolerance.fail_over is not None:
        allowed = np.full(len(error), tolerance.fail_over)
    else:
        table = np.array([type_eps(name) for name in words.dtypes] or [0.0])
        eps = np.maximum(table[a.dtype[match.row_a]], table[b.dtype[match.row_b]])
        allowed = _allowed(match.place, error, eps, roles, len(match.entry_a))
        is_tensor = (a.kind[match.row_a] == TENSOR) & (b.kind[match.row_b] == TENSOR)
        is_over = (error > allowed) & np.isfinite(error) & (eps > 0) & is_tensor
        if is_over.any():
            pairs = _pairs(match, numbers, a, b, roles, error, eps)
            is_noise = is_over & ((error <= summed_away(pairs)) | (error <= divided_by_little(pairs)))
            is_noise |= is_over & np.isin(pairs.same, known_noise.values)
            is_noise |= is_over & _is_named(known_noise.parameters, match, a, roles, words)
            is_noise = find_noise(pairs, is_noise, is_over)
            noise = KnownNoise(np.unique(pairs.same[is_noise]), _noisy_parameters(is_noise, match, a, words))
            is_noise |= is_over & negligible_inputs(pairs)
            allowed = np.where(is_noise, np.inf, allowed)
        unlike |= _is_scaled(numbers, eps) & (error > 0) & np.isfinite(allowed)
    verdict = np.where(is_equal, EQUAL, np.where(error <= allowed, ROUNDING, DIFFERENT)).astype(np.int8)
    verdict[unlike] = DIFFERENT
    return Judgement(verdict, is_noise & (verdict == ROUNDING), noise)


def type_eps(name: str) -> float:
    """Spacing of a type at 1.0; 0 for types whose values must be equal."""
    return _EPS.get(name.rpartition(".")[2].lower(), 0.0)


def one_operation(words: Vocabulary) -> np.ndarray:
    """For every type of the vocabulary, the largest rounding error of one operation."""
    return _one_operation(np.array([type_eps(name) for name in words.dtypes] or [0.0]))


def _one_operation(eps: np.ndarray) -> np.ndarray:
    return np.maximum(_ONE_OP * np.minimum(eps, _EPS32), _ONE_OP_LOW * eps)


def _allowed(
    place: np.ndarray, error: np.ndarray, eps: np.ndarray, roles: np.ndarray, n_entries: int
) -> np.ndarray:
    finite = np.where(np.isfinite(error), error, 1.0)
    is_output = roles == OUTPUT
    noise_in = _per_entry(np.where(is_output, 0.0, finite), place, n_entries)
    noise_all = _per_entry(finite, place, n_entries)
    before = np.concatenate([[0.0], np.maximum.accumulate(noise_all)[:-1]]) if n_entries else noise_all
    coarsest = np.maximum.accumulate(_per_entry(eps, place, n_entries))
    noise = np.where(is_output, np.maximum(before, noise_in)[place], before[place])
    limit = np.maximum(_MANY_OPS * np.minimum(coarsest[place], _EPS32), _MANY_OPS_LOW * coarsest[place])
    one_op = _one_operation(eps)
    carried = np.where(is_output, np.minimum(noise_in[place], limit), limit) * _CARRIED
    grown = np.minimum(_GROWTH * noise, np.where(is_output, limit, carried))
    allowed = np.maximum(one_op, np.where(is_output, np.maximum(grown, carried), grown))
    return np.where(eps == 0, np.where(noise > 0, _FLIPPED, 0.0), allowed)


def _pairs(
    match: Match,
    numbers: PairNumbers,
    a: Columns,
    b: Columns,
    roles: np.ndarray,
    error: np.ndarray,
    eps: np.ndarray,
) -> Pairs:
    extremes = a.statistics[match.row_a, :2]
    has_sign = (extremes[:, 0] < 0) | (extremes[:, 1] > 0)
    smallest = np.where(has_sign, np.abs(extremes).min(axis=1), 0.0)
    is_tensor = a.kind[match.row_a] == TENSOR  # a number among the arguments is no term of a sum
    rms = np.where(is_tensor, numbers.rms, 0.0)
    divides = np.array([_DIVIDES.search(name) is not None for name in a.entries] or [False])
    return Pairs(
        match.place,
        len(match.entry_a),
        np.where(np.isfinite(error), error, 1.0),
        eps,
        rms,
        numbers.n_elements,
        roles == OUTPUT,
        rms > 0,
        smallest,
        divides[match.entry_a[match.place]],
        value_hashes(a)[match.row_a] ^ (value_hashes(b)[match.row_b] << np.uint64(1)),
    )


def _noisy_parameters(is_noise: np.ndarray, match: Match, a: Columns, words: Vocabulary) -> frozenset[str]:
    """Parameters whose gradients are noise, by module and name."""
    suffixes = list(words.suffixes)
    names = set()
    for index in np.flatnonzero(is_noise).tolist():
        name = parse_entry_name(a.entries[match.entry_a[match.place[index]]])
        if name.direction == GRADIENT:
            names.add(f"{name.path}.{suffixes[a.suffix[match.row_a[index]]]}")
    return frozenset(names)


def _is_named(
    parameters: frozenset[str], match: Match, a: Columns, roles: np.ndarray, words: Vocabulary
) -> np.ndarray:
    """Which pairs are these parameters."""
    found = np.zeros(len(roles), bool)
    suffixes = list(words.suffixes)
    for index in np.flatnonzero(roles == PARAMETER).tolist() if parameters else ():
        name = parse_entry_name(a.entries[match.entry_a[match.place[index]]])
        suffix = suffixes[a.suffix[match.row_a[index]]].removeprefix("parameters.")
        found[index] = f"{name.path}.{suffix}" in parameters
    return found


def _is_scaled(numbers: PairNumbers, eps: np.ndarray) -> np.ndarray:
    """Rounding has no direction: a common factor for a whole tensor is not rounding, even if it is as small."""
    has_factor = np.isfinite(numbers.factor) & (numbers.evidence == SKETCH)
    off = np.abs(np.nan_to_num(numbers.factor, nan=1.0) - 1.0)
    return has_factor & (off > np.maximum(_ONE_OP * _EPS32, 2 * eps)) & (numbers.n_elements >= _ENOUGH)


def _per_entry(values: np.ndarray, place: np.ndarray, n_entries: int) -> np.ndarray:
    """The largest value of every entry; rows are in the order of their entries."""
    found = np.zeros(n_entries)
    np.maximum.at(found, place, values)
    return found
