"""Every compared value as a row of CSV: the columns of msProbe's compare, then our own.

    RankComparison, one by one ──> CsvReport.add ──> rows, a hundred thousand at a time

"NPU" is A and "Bench" is B. Which columns msProbe would have follows from the dumps: tensors, checksums or statistics.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from windtunnel.probe.compare.comparison import RankComparison
from windtunnel.probe.compare.relative_errors import BITS, SKETCH, STATISTICS, VALUES
from windtunnel.probe.compare.side import Side
from windtunnel.probe.compare.tolerance import DIFFERENT
from windtunnel.probe.compare.value_columns import NUMBER, TEXT, XOR
from windtunnel.report.results.compare import JUDGED

__all__ = ["CsvReport"]

_ROWS = 100_000
_NA = "N/A"
_BASIC = ["NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
          "NPU Requires_grad", "Bench Requires_grad"]  # fmt: skip
_FIGURES = ("max", "min", "mean", "l2norm")
_DIFFERENCES = ["Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr",
                "MeanRelativeErr", "NormRelativeErr"]  # fmt: skip
_BOTH = [f"{side} {figure}" for side in ("NPU", "Bench") for figure in _FIGURES]
_TENSOR = [
    "Cosine",
    "EucDist",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
]
_DIGEST = ["NPU MD5", "BENCH MD5"]
_END = ["Requires_grad Consistent", "Result", "Err_message", "NPU_Stack_Info"]
_OURS = ["Step", "Rank", "Place", "Relative Error", "Evidence", "Judged", "Zeros A", "Zeros B"]
_WORDS = {
    "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "Err_message", "NPU_Stack_Info", "Data_name",
}  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_EVIDENCE = {STATISTICS: "statistics", SKETCH: "sketch", VALUES: "values", BITS: "checksum"}


class CsvReport:
    """Writes rows to a binary stream, one comparison after the other."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._writer: pa.csv.CSVWriter | None = None
        self._columns: list[str] = []

    def add(self, found: RankComparison) -> None:
        if self._writer is None:
            self._columns = _columns(found)
            schema = pa.schema([(name, pa.string()) for name in self._columns])
            options = pa.csv.WriteOptions(quoting_style="needed")
            self._writer = pa.csv.CSVWriter(self._stream, schema, write_options=options)
        for at in range(0, len(found.place), _ROWS):
            rows = slice(at, at + _ROWS)
            self._write(_pairs(found, rows))
        self._write(_lone(found))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, columns: dict[str, list[str]]) -> None:
        n = len(columns["NPU Name"])
        for name in _WORDS & columns.keys():
            columns[name] = list(map(_harmless_cell, columns[name]))
        arrays = [pa.array(columns.get(name) or [_NA] * n, pa.string()) for name in self._columns]
        assert self._writer is not None  # created by add
        self._writer.write_table(pa.table(arrays, names=self._columns))


def _columns(found: RankComparison) -> list[str]:
    if found.a.columns.files and found.b.columns.files:
        return [*_BASIC, *_TENSOR, *_BOTH, *_END, "Data_name", *_OURS]
    if found.a.columns.digest_kind.any() and found.b.columns.digest_kind.any():
        return [*_BASIC, *_DIGEST, *_END, *_DIFFERENCES, *_BOTH, *_OURS]
    return [*_BASIC, *_DIFFERENCES, *_BOTH, *_END, *_OURS]


def _pairs(found: RankComparison, rows: slice) -> dict[str, list[str]]:
    a, b = found.a.columns, found.b.columns
    place, i, j = found.place[rows], found.row_a[rows], found.row_b[rows]
    table = {
        "NPU Name": _names(found, found.a, found.match.entry_a[place], i),
        "Bench Name": _names(found, found.b, found.match.entry_b[place], j),
        **_facts(found, found.a, i, "NPU"),
        **_facts(found, found.b, j, "Bench"),
        "NPU MD5": _digests(found.a, i),
        "BENCH MD5": _digests(found.b, j),
        **_differences(a.statistics[i], b.statistics[j], a.has[i] & b.has[j]),
    }
    table |= _tensor_columns(found, rows)
    grads_a, grads_b = a.requires_grad[i], b.requires_grad[j]
    judged = found.judged[rows]
    table["Requires_grad Consistent"] = [str(bool(same)) for same in grads_a == grads_b]
    table["Result"] = ["error" if each == DIFFERENT else "pass" for each in judged.tolist()]
    table["Err_message"] = _messages(found, rows)
    table["NPU_Stack_Info"] = _stacks(found, place)
    table["Relative Error"] = [_text(error) for error in found.numbers.error[rows].tolist()]
    table["Evidence"] = [_EVIDENCE.get(each, "none") for each in found.numbers.evidence[rows].tolist()]
    table["Judged"] = [JUDGED[each] for each in judged.tolist()]
    table["Zeros A"], table["Zeros B"] = (
        list(map(str, a.n_zero[i].tolist())),
        list(map(str, b.n_zero[j].tolist())),
    )
    return table | _position(found, place.tolist())


def _lone(found: RankComparison) -> dict[str, list[str]]:
    """Return rows for calls and values that only one side has."""
    names: list[tuple[str, str, int]] = []
    for place in np.flatnonzero((found.match.entry_a < 0) | (found.match.entry_b < 0)).tolist():
        is_a = found.match.entry_b[place] < 0
        names.append((found.name(place), _NA, place) if is_a else (_NA, found.name(place), place))
    suffixes = list(found.words.suffixes)
    for row, place in zip(found.lone_row.tolist(), found.lone_place.tolist(), strict=True):
        columns = found.a.columns if row >= 0 else found.b.columns
        name = f"{found.name(place)}.{suffixes[columns.suffix[row if row >= 0 else ~row]]}"
        names.append((name, _NA, place) if row >= 0 else (_NA, name, place))
    table = {
        "NPU Name": [name for name, _, _ in names],
        "Bench Name": [name for _, name, _ in names],
        "Result": [
            "error" if found.is_strict and not found.is_excused[place] else "pass" for *_, place in names
        ],
        "Err_message": [f"only in {'B' if name == _NA else 'A'}" for name, _, _ in names],
    }
    return table | _position(found, [place for _, _, place in names])


def _position(found: RankComparison, places: list[int]) -> dict[str, list[str]]:
    step, rank = ("" if each is None else str(each) for each in (found.pair.step, found.pair.rank))
    return {"Step": [step] * len(places), "Rank": [rank] * len(places), "Place": list(map(str, places))}


def _names(found: RankComparison, side: Side, entries: np.ndarray, rows: np.ndarray) -> list[str]:
    suffixes, names = list(found.words.suffixes), side.columns.entries
    codes = side.columns.suffix[rows].tolist()
    return [f"{names[entry]}.{suffixes[code]}" for entry, code in zip(entries.tolist(), codes, strict=True)]


def _facts(found: RankComparison, side: Side, rows: np.ndarray, name: str) -> dict[str, list[str]]:
    columns = side.columns
    types = list(found.words.dtypes)
    shapes = [str(list(shape)) for shape in found.words.shapes]
    kinds, figures = columns.kind[rows], columns.statistics[rows]
    facts = {
        f"{name} Dtype": [
            types[code] if kind not in (NUMBER, TEXT) else f"<class '{types[code]}'>"
            for code, kind in zip(columns.dtype[rows].tolist(), kinds.tolist(), strict=True)
        ],
        f"{name} Tensor Shape": [shapes[code] for code in columns.shape[rows].tolist()],
        f"{name} Requires_grad": [_GRADS[each] for each in columns.requires_grad[rows].tolist()],
    }
    is_number = kinds == NUMBER  # msProbe shows the number itself four times
    for index, figure in enumerate(_FIGURES):
        values = np.where(is_number, figures[:, 0], figures[:, index])
        has = ((columns.has[rows] >> index) & 1).astype(bool) | is_number
        facts[f"{name} {figure}"] = _texts(values, has)
    return facts


_GRADS = {1: "True", 0: "False", -1: _NA}


def _digests(side: Side, rows: np.ndarray) -> list[str]:
    kinds, digests = side.columns.digest_kind[rows].tolist(), side.columns.digest[rows].tolist()
    return [
        _NA if not kind else f"0x{digest:016x}" if kind == XOR else f"{digest:08x}"
        for kind, digest in zip(kinds, digests, strict=True)
    ]


def _differences(a: np.ndarray, b: np.ndarray, both: np.ndarray) -> dict[str, list[str]]:
    table = {}
    with np.errstate(all="ignore"):
        for index in range(4):
            has = ((both >> index) & 1).astype(bool)
            off = a[:, index] - b[:, index]
            percent = np.abs(np.where(off == 0, 0.0, off / b[:, index])) * 100
            table[_DIFFERENCES[index]] = _texts(off, has)
            table[_DIFFERENCES[index + 4]] = [
                text if text == _NA else f"{text}%" for text in _texts(percent, has)
            ]
    return table


def _tensor_columns(found: RankComparison, rows: slice) -> dict[str, list[str]]:
    if not (found.a.columns.files and found.b.columns.files):
        return {}
    table: dict[str, list[str]] = {name: [] for name in (*_TENSOR, "Data_name")}
    for index in range(*rows.indices(len(found.place))):
        each = found.tensors.get(index)
        figures = (
            (
                each.cosine,
                each.euclidean,
                each.max_abs,
                each.max_relative,
                each.one_thousandth,
                each.five_thousandths,
            )
            if each is not None
            else (1.0, 0.0, 0.0, 0.0, 1.0, 1.0)
            if found.numbers.evidence[index] == BITS
            else ()
        )
        for name, figure in zip(_TENSOR, figures or [None] * len(_TENSOR), strict=True):
            table[name].append("unsupported" if figure is None else _text(figure))
        files = [side.columns.files.get(int(row), "-1") for side, row in
                 ((found.a, found.row_a[index]), (found.b, found.row_b[index]))]  # fmt: skip
        table["Data_name"].append(str(files))
    return table


def _messages(found: RankComparison, rows: slice) -> list[str]:
    numbers = found.numbers
    flags = (
        ("shapes differ", numbers.shape_differs[rows]),
        ("types differ", numbers.dtype_differs[rows]),
        ("NaN or infinity on one side", numbers.only_one_finite[rows]),
        ("checksums differ", numbers.bits_differ[rows]),
    )
    messages = [""] * len(found.judged[rows])
    for text, flag in flags:
        for index in np.flatnonzero(flag).tolist():
            messages[index] += f"; {text}" if messages[index] else text
    return messages


def _stacks(found: RankComparison, place: np.ndarray) -> list[str]:
    """Return the stack at the first value of every call, as msProbe does."""
    stacks = [_NA] * len(place)
    firsts = np.flatnonzero(np.concatenate([[True], np.diff(place) != 0])[: len(place)])
    for index in firsts.tolist():
        frames = found.a.stack_of(found.name(int(place[index])))
        stacks[index] = str(list(frames)) if frames else _NA
    return stacks


def _harmless_cell(text: str) -> str:
    """Prefix text that a spreadsheet would run as a formula with an apostrophe; numbers are in other columns."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _texts(values: np.ndarray, has: np.ndarray) -> list[str]:
    return [repr(value) if known else _NA for value, known in zip(values.tolist(), has.tolist(), strict=True)]


def _text(value: float) -> str:
    return _NA if value != value else repr(value)
