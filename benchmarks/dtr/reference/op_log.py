"""Op logs as the DTR authors record them (JSON lines, one instruction each) into steps to replay.

    lines ──> names resolved, copies counted, mutations made copy-on-write ──> OpLog(steps)

A log comes from elsewhere: every line is checked, and a file is only ever read, never unpacked. The instructions:
CONSTANT, MEMORY, CALL (RESULT, NAME, ARGS, TIME in ns), MUTATE, ALIAS, COPY, COPY_FROM, RELEASE and ANNOTATE.
Tensors become numbers in the order of their making. What the program still holds at the end is needed there, so a log
ends with a `Pin` for each of it.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file, parse_json, read_at_most

__all__ = [
    "Compute",
    "Hold",
    "OpLog",
    "Pin",
    "Release",
    "Step",
    "op_logs_in",
    "parse_op_log",
    "read_op_log",
]

_LONGEST_FILE = 1 << 30  # bytes: far above any real log, far below what would fill a machine
_MOST_EXPANSION = 100  # bytes for each packed one: the authors' logs pack 20 to 40 times
_FREE_EXPANSION = 1 << 20  # and so many more, for small logs
# What a damaged archive makes of zipfile.
_DAMAGE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError, NotImplementedError)
_LARGEST_NUMBER = 1 << 62  # a sum of many of them is still exact


@dataclass(frozen=True, slots=True)
class Compute:
    """Run an operator: `outputs[i]` has `sizes[i]` bytes of its own, or is a view of `inputs[aliases[i]]`."""

    name: str
    cost_ns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sizes: tuple[int, ...]
    aliases: tuple[int, ...]  # -1: not a view


@dataclass(frozen=True, slots=True)
class Hold:
    """The program refers to a tensor once more."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Release:
    """The program refers to a tensor once less."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Pin:
    """The tensor must be there from now on: a constant, or a result of the step."""

    tensor: int


Step = Compute | Hold | Release | Pin


@dataclass(frozen=True, slots=True)
class OpLog:
    source: str
    steps: tuple[Step, ...]

    @property
    def n_ops(self) -> int:
        """Operators that compute something, hence not constants."""
        return sum(isinstance(step, Compute) and bool(step.inputs or step.cost_ns) for step in self.steps)


def op_logs_in(archive: Path) -> list[str]:
    """The names of the logs in a zip file, sorted."""
    with _opened(archive) as file:
        return sorted(name for name in file.namelist() if name.endswith(".log"))


def read_op_log(path: Path, member: str | None = None) -> OpLog:
    """Read a log: a text file, or a member of a zip file, which is read in place and never written anywhere."""
    if member is None:
        try:
            data = read_at_most(path, _LONGEST_FILE)
        except FileNotFoundError:
            raise CorruptFile(f"there is no op log {path}", hint="name a file of JSON lines") from None
        except OSError as error:
            raise CorruptFile(f"cannot read {path}: {error.strerror or error}") from error
        return parse_op_log(_decoded(data, str(path)), str(path))
    with _opened(path) as file:
        if member not in file.namelist():
            raise CorruptFile(f"{path} has no member {member!r}", hint="op_logs_in lists those it has")
        info = file.getinfo(member)
        most = min(_LONGEST_FILE, _MOST_EXPANSION * info.compress_size + _FREE_EXPANSION)
        if info.file_size > most:
            raise CorruptFile(
                f"{member} in {path} would be {info.file_size} bytes long",
                hint=f"a log of its size may have {most}",
            )
        try:
            data = file.read(member)
        except _DAMAGE as error:
            raise CorruptFile(f"{member} in {path} cannot be read: {error}", hint="copy it again") from error
        return parse_op_log(_decoded(data, member), member)


def parse_op_log(lines: Iterable[str], source: str = "op log") -> OpLog:
    """Turn instructions into steps. What stands before ANNOTATE START, if that is there, was before the step."""
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    instructions = [_instruction(line, source, number) for number, line in numbered]
    starts = [
        i
        for i, one in enumerate(instructions)
        if one.kind == "ANNOTATE" and one.fields.get("ANNOTATION") == "START"
    ]
    return _Reader(source).read(instructions[starts[0] + 1 :] if starts else instructions)


@dataclass(frozen=True, slots=True)
class _Instruction:
    """One line, and the checked way to its fields."""

    kind: str
    fields: dict[str, Any]
    where: str

    def text(self, field: str) -> str:
        value = self.fields.get(field)
        if not isinstance(value, str):
            raise self.wrong(f"{field} is {value!r:.80}, not a text")
        return value

    def number(self, field: str, least: int = 0) -> int:
        """A whole number, which the logs write as text."""
        value = self.fields.get(field)
        try:
            number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not least <= number <= _LARGEST_NUMBER:
            raise self.wrong(f"{field} is {value!r:.80}, not a whole number from {least} to 2^62")
        return number

    def texts(self, field: str) -> list[str]:
        values = self.fields.get(field)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.wrong(f"{field} is {values!r:.80}, not a list of texts")
        return values

    def wrong(self, fact: str) -> CorruptFile:
        return CorruptFile(f"{self.where}: {self.kind}: {fact}", hint="record the log again")


def _instruction(line: str, source: str, number: int) -> _Instruction:
    where = f"{source} line {number}"
    try:
        fields = parse_json(line)
    except ValueError as error:
        raise CorruptFile(f"{where} is not JSON", hint="a log has one instruction a line") from error
    kind = fields.get("INSTRUCTION") if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise CorruptFile(f"{where} names no INSTRUCTION", hint="a log has one instruction a line")
    return _Instruction(kind, fields, where)


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tensor_of: dict[str, int] = {}  # what a name refers to now
        self._bytes: list[int] = []  # of the storage under each tensor
        self._refs: list[int] = []
        self._steps: list[Step] = []

    def read(self, instructions: list[_Instruction]) -> OpLog:
        rest = iter(instructions)
        for one in rest:
            match one.kind:
                case "CONSTANT":
                    self._constant(one, rest)
                case "CALL":
                    self._call(one, rest)
                case "MUTATE":
                    self._mutate(one)
                case "COPY":
                    tensor = self._known(one, one.text("SRC"))
                    self._name(one, one.text("DST"), tensor)
                    self._hold(tensor)
                case "COPY_FROM":
                    new = self._known(one, one.text("SRC"))
                    self._release(one, self._known(one, one.text("DST")))
                    self._tensor_of[one.text("DST")] = new
                    self._hold(new)
                case "RELEASE":
                    if one.text("NAME") in self._tensor_of:  # else it was made before the step
                        self._release(one, self._tensor_of[one.text("NAME")])
                case "ANNOTATE":
                    pass
                case _:
                    raise one.wrong("does not stand here or is unknown")
        held = dict.fromkeys(tensor for tensor in self._tensor_of.values() if self._refs[tensor] > 0)
        self._steps += [Pin(tensor) for tensor in held]
        return OpLog(self._source, tuple(self._steps))

    def _constant(self, one: _Instruction, rest: Iterator[_Instruction]) -> None:
        n_bytes = _following(one, rest, "MEMORY", one.text("NAME")).number("MEMORY")
        (tensor,) = self._compute("constant", 0, (), (n_bytes,), (-1,))
        self._name(one, one.text("NAME"), tensor)
        self._steps.append(Pin(tensor))

    def _call(self, one: _Instruction, rest: Iterator[_Instruction]) -> None:
        results = one.texts("RESULT")
        inputs = tuple(self._known(one, name) for name in one.texts("ARGS"))
        if not results:
            raise one.wrong("RESULT is empty")
        sizes, aliases = [], []
        for name in results:
            n_bytes = _following(one, rest, "MEMORY", name).number("MEMORY")
            alias = _following(one, rest, "ALIAS", name).number("ALIAS", least=-1)
            if alias >= len(inputs):
                raise one.wrong(f"{name} is a view of argument {alias}, but there are {len(inputs)}")
            aliases.append(alias)
            sizes.append(n_bytes if alias < 0 else 0)
        made = self._compute(one.text("NAME"), one.number("TIME"), inputs, tuple(sizes), tuple(aliases))
        for name, tensor in zip(results, made, strict=True):
            self._name(one, name, tensor)

    def _mutate(self, one: _Instruction) -> None:
        """Copy on write: the operator makes new tensors, and the names refer to those."""
        names = one.texts("ARGS")
        inputs = tuple(self._known(one, name) for name in names)
        places = one.fields.get("MUTATE")
        if (
            not isinstance(places, list)
            or not places
            or not all(type(place) is int and 0 <= place < len(names) for place in places)
        ):
            raise one.wrong(f"MUTATE is {places!r:.80}, not a list of places among {len(names)} arguments")
        sizes = tuple(self._bytes[inputs[place]] for place in places)
        made = self._compute(one.text("NAME"), one.number("TIME"), inputs, sizes, (-1,) * len(places))
        for place, tensor in zip(places, made, strict=True):
            old = self._tensor_of[names[place]]
            self._tensor_of[names[place]] = tensor
            self._release(one, old)

    def _compute(
        self,
        name: str,
        cost_ns: int,
        inputs: tuple[int, ...],
        sizes: tuple[int, ...],
        aliases: tuple[int, ...],
    ) -> tuple[int, ...]:
        first = len(self._bytes)
        for n_bytes, alias in zip(sizes, aliases, strict=True):
            self._bytes.append(n_bytes if alias < 0 else self._bytes[inputs[alias]])
            self._refs.append(1)
        outputs = tuple(range(first, len(self._bytes)))
        self._steps.append(Compute(name, cost_ns, inputs, outputs, sizes, aliases))
        return outputs

    def _known(self, one: _Instruction, name: str) -> int:
        tensor = self._tensor_of.get(name)
        if tensor is None:
            raise one.wrong(f"{name} was never made")
        return tensor

    def _name(self, one: _Instruction, name: str, tensor: int) -> None:
        if name in self._tensor_of:
            raise one.wrong(f"{name} was made before")
        self._tensor_of[name] = tensor

    def _hold(self, tensor: int) -> None:
        self._refs[tensor] += 1
        self._steps.append(Hold(tensor))

    def _release(self, one: _Instruction, tensor: int) -> None:
        if self._refs[tensor] == 0:
            raise one.wrong("the tensor was released before")
        self._refs[tensor] -= 1
        self._steps.append(Release(tensor))


def _following(one: _Instruction, rest: Iterator[_Instruction], kind: str, name: str) -> _Instruction:
    """The next line, which must say the `kind` of thing about `name`."""
    found = next(rest, None)
    if found is None or found.kind != kind or found.fields.get("NAME") != name:
        raise one.wrong(f"no {kind} of {name} follows")
    return found


def _opened(archive: Path) -> zipfile.ZipFile:
    try:
        with open_file(archive):  # zipfile would wait for a pipe
            return zipfile.ZipFile(archive)
    except _DAMAGE as error:
        raise CorruptFile(f"{archive} is not a readable zip file", hint="copy it again") from error


def _decoded(data: bytes, source: str) -> list[str]:
    try:
        return data.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CorruptFile(
            f"{source} is not UTF-8 at byte {error.start}", hint="name a log of JSON lines"
        ) from error
