"""Read pickles from elsewhere as plain data: nothing in them is imported or run, and memory is bounded by their length.

    bytes ──> _is_simple: a scan that proves every opcode harmless ──> Python's own unpickler ──┐
          └─> (anything less common) _Machine: opcode by opcode, with limits ───────────────────┴──> plain values

A pickle is a program. Besides running code, it can address slot 400,000,000 of a table in five bytes, or build in a
hundred bytes a value that takes years to hash or print, by using each part twice. Both paths guarantee:

- only values, lists, dicts and tuples are created; names and calls are refused, or passed to `on_call` as text;
- memo slots are filled in order; lengths end inside the data; integers have at most 9 bytes;
- there are at most `_FREE_CONTAINERS` lists, dicts and tuples, and one more for each `_BYTES_PER_CONTAINER` bytes;
- a dict key is a string, a number, None or a tuple of numbers: nothing that is slow to hash.

Parts may still be shared, so code that walks or prints a value must check its type first.
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import unpack_from
from typing import Any

from windtunnel.foreign_files import open_file

__all__ = ["PickleName", "UnsafePickle", "load_pickle_file", "load_pickle_with_calls"]

_FREE_CONTAINERS = 100_000
_BYTES_PER_CONTAINER = 10  # a memory snapshot without call stacks, the densest that torch writes, has 26
# What Python's unpickler raises for a damaged pickle.
_DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
)
_SKIPPED_SLOTS = 256  # picklers number from 0 or 1, one by one
_LONGEST_INT = 9  # bytes: an unsigned number of 64 bits


class UnsafePickle(ValueError):
    """What is wrong with a pickle; the message continues a sentence that starts with the file's name."""


@dataclass(frozen=True, slots=True)
class PickleName:
    """A name that a pickle refers to; never looked up."""

    text: str


Data = bytes | mmap.mmap
OnCall = Callable[[PickleName, tuple], Any]
OnPersistent = Callable[[Any], Any]


def load_pickle_file(path: Path) -> Any:
    """The plain values in a file, which may be large. Raises OSError and UnsafePickle."""
    with open_file(path) as file:
        if not os.fstat(file.fileno()).st_size:
            raise UnsafePickle("it is empty")
        try:
            # Mapped, not read: only the beginning of a long invalid file is looked at.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                is_simple = _is_simple(data)
                return _NamelessUnpickler(file).load() if is_simple else _Machine(data).run()
        except (UnsafePickle, OSError):
            raise
        except MemoryError:
            raise UnsafePickle("it needs more memory than there is") from None
        except _DAMAGE as error:
            raise UnsafePickle(f"it is damaged ({type(error).__name__})") from error


def load_pickle_with_calls(data: bytes, on_call: OnCall, on_persistent: OnPersistent) -> Any:
    """The values in a small pickle; the two functions answer its calls and its external references.

    Raises UnsafePickle, IndexError where a value is missing, and whatever the functions raise.
    """
    return _Machine(data, on_call, on_persistent).run()


class _NamelessUnpickler(pickle.Unpickler):
    """`_is_simple` has checked that there are no names; even if it were wrong, nothing is run."""

    def find_class(self, module: str, name: str) -> Any:
        raise UnsafePickle(_names_something(f"{module}.{name}"))

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickle("it refers to something outside itself")


def _names_something(name: str) -> str:
    return f"it asks to run {name[:80]}, which plain values never need"


# -- the fast path ------------------------------------------------------------------------------------------

_INT = rb"(?:K.|M..|J....|\x8a(?:\x00|\x01.|\x02..|\x03...|\x04....|\x05.....|\x06......|\x07.......|\x08........))"
# Runs of opcodes whose length is known. The alternatives begin with different bytes, so there is only one way to parse
# a run. A tuple follows its numbers directly: one with anything else in it takes the slow path.
_RUN = (
    rb"(?:(?:j....)+|(?:h.)+|[\x94(}u\]eNas\x88\x89)]+|q.|r..%s|" + _INT + rb"{2}\x86|" + _INT + rb"|G........)"
)  # fmt: skip
_PROTO, _FRAME, _STOP = 0x80, 0x95, 0x2E
_SHORT_TEXT, _TEXT = 0x8C, 0x58  # SHORT_BINUNICODE, BINUNICODE


def _is_simple(data: Data) -> bool:
    """Whether all opcodes of a pickle are harmless and within the limits; False means "use the slow path"."""
    n, n_containers = len(data), 0
    most = _most_containers(n)
    match = re.compile(_RUN % _slots(n) + rb"{1,4000}", re.DOTALL).match
    at = 0
    while at < n:
        if (run := match(data, at)) is not None:
            at = run.end()
            # An overestimate, as numbers contain these bytes too: the slow path counts exactly.
            opcodes = run.group()
            n_containers += opcodes.count(b"}") + opcodes.count(b"]") + opcodes.count(b"\x86")
            if n_containers > most:
                return False
            continue
        opcode = data[at]
        if opcode == _SHORT_TEXT and at + 1 < n:
            at += 2 + data[at + 1]
        elif opcode == _TEXT and at + 5 <= n:
            at += 5 + unpack_from("<I", data, at + 1)[0]
        elif opcode == _FRAME and at + 9 <= n:
            at += 9
            if unpack_from("<Q", data, at - 8)[0] > n - at:
                return False
        elif opcode == _PROTO:
            at += 2
        else:
            return opcode == _STOP
    return False


def _slots(n_bytes: int) -> bytes:
    """A pattern for the two high bytes of a memo slot that a pickle of this length can have reached.

    The first 256 slots take at least two bytes each, later ones six, as pickles number them one by one.
    """
    high = (256 + n_bytes // 6) >> 16
    if high < 256:
        return b"[\\x00-\\x%02x]\\x00" % high
    return b".[\\x00-\\x%02x]" % min(high >> 8, 255)


def _most_containers(n_bytes: int) -> int:
    return _FREE_CONTAINERS + n_bytes // _BYTES_PER_CONTAINER


# -- the slow path ------------------------------------------------------------------------------------------


class _Mark:
    """Where a list, a dict or a tuple begins on the stack."""


_MARK = _Mark()
_KEYS = (str, int, bool, type(None))


class _Machine:
    """Runs a pickle on a stack of values. A method for each opcode; an unknown one is refused by name."""

    def __init__(
        self, data: Data, on_call: OnCall | None = None, on_persistent: OnPersistent | None = None
    ) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.n_containers = 0
        self.on_call = on_call
        self.on_persistent = on_persistent

    def run(self) -> Any:
        data, stack = self.data, self.stack
        while self.at < len(data):
            opcode = data[self.at]
            self.at += 1
            if opcode == _STOP:
                if len(stack) != 1 or stack[0] is _MARK:
                    raise UnsafePickle(f"it ends with {len(stack)} values instead of one")
                return stack.pop()
            operation = _OPERATIONS.get(opcode)
            if operation is None:
                raise UnsafePickle(f"it uses the opcode 0x{opcode:02x}, which plain values never need")
            operation(self)
        raise UnsafePickle(f"it ends after {len(data):,} bytes, in the middle of a value")

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > len(self.data) - self.at:
            raise UnsafePickle(f"it ends after {len(self.data):,} bytes, in the middle of a value")
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def number(self, n_bytes: int) -> int:
        return int.from_bytes(self.take(n_bytes), "little")

    def text(self, n_length: int) -> None:
        try:
            # Python's pickler writes strings that are not valid UTF-8 this way, for example file names.
            self.stack.append(self.take(self.number(n_length)).decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            raise UnsafePickle("it contains a string that is not UTF-8") from None

    def whole(self, n_bytes: int) -> None:
        if n_bytes > _LONGEST_INT:
            raise UnsafePickle(f"it contains an integer of {n_bytes} bytes; the limit is {_LONGEST_INT}")
        self.stack.append(int.from_bytes(self.take(n_bytes), "little", signed=True))

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise UnsafePickle("it is damaged: a value is missing")
        return value

    def top(self, kind: type) -> Any:
        value = self.stack[-1]
        if type(value) is not kind:
            raise UnsafePickle(f"it is damaged: a {kind.__name__} is missing")
        return value

    def to_mark(self) -> list[Any]:
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise UnsafePickle("it is damaged: a list has no beginning")
        values = self.stack[start + 1 :]
        del self.stack[start:]
        return values

    def push_container(self, container: Any) -> None:
        self.n_containers += 1
        if self.n_containers > _most_containers(len(self.data)):
            raise UnsafePickle(
                f"its {len(self.data):,} bytes contain more than {_most_containers(len(self.data)):,} lists and "
                f"dicts, the limit for a file of that size"
            )
        self.stack.append(container)

    def make_tuple(self, n_items: int) -> None:
        items = [self.pop() for _ in range(n_items)]
        self.push_container(tuple(reversed(items)))

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def append_all(self) -> None:
        values = self.to_mark()
        self.top(list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.top(dict)
        if len(values) % 2:
            raise UnsafePickle("it is damaged: a key has no value")
        for key in values[::2]:
            if type(key) not in _KEYS and not (type(key) is tuple and all(type(each) is int for each in key)):
                raise UnsafePickle(
                    f"it contains a dict with a {type(key).__name__} key; keys must be strings"
                )
        target.update(zip(values[::2], values[1::2], strict=True))

    def set_item(self) -> None:
        value = self.pop()
        self.set_items([self.pop(), value])

    def put(self, slot: int) -> None:
        if slot > len(self.memo) + _SKIPPED_SLOTS:
            raise UnsafePickle(f"it stores a value in slot {slot:,} after {len(self.memo):,} others")
        value = self.stack[-1]
        if value is _MARK:
            raise UnsafePickle("it is damaged: a value is missing")
        self.memo[slot] = value

    def get(self, slot: int) -> None:
        if slot not in self.memo:
            raise UnsafePickle(f"it uses slot {slot:,}, which is empty")
        self.stack.append(self.memo[slot])

    def name(self) -> None:
        lines = []
        for _ in range(2):
            end = self.data.find(b"\n", self.at)
            lines.append(self.take(end + 1 - self.at if end >= 0 else len(self.data))[:-1])
        self.push_name(*(line.decode("utf-8", "backslashreplace") for line in lines))

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        self.push_name(*(each if isinstance(each, str) else "?" for each in (module, name)))

    def push_name(self, module: str, name: str) -> None:
        if self.on_call is None:
            raise UnsafePickle(_names_something(f"{module}.{name}"))
        self.stack.append(PickleName(f"{module}.{name}"))

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if self.on_call is None or not isinstance(function, PickleName) or type(arguments) is not tuple:
            raise UnsafePickle("it calls something that has no name")
        self.stack.append(self.on_call(function, arguments))

    def persistent(self) -> None:
        if self.on_persistent is None:
            raise UnsafePickle("it refers to something outside itself")
        self.stack.append(self.on_persistent(self.pop()))


_OPERATIONS: dict[int, Callable[[_Machine], Any]] = {
    0x80: lambda m: m.number(1),  # PROTO
    _FRAME: lambda m: m.number(8),
    0x28: lambda m: m.stack.append(_MARK),
    ord("}"): lambda m: m.push_container({}),
    ord("]"): lambda m: m.push_container([]),
    ord(")"): lambda m: m.push_container(()),
    0x85: lambda m: m.make_tuple(1),
    0x86: lambda m: m.make_tuple(2),
    0x87: lambda m: m.make_tuple(3),
    ord("t"): lambda m: m.push_container(tuple(m.to_mark())),
    ord("a"): _Machine.append,
    ord("e"): _Machine.append_all,
    ord("s"): _Machine.set_item,
    ord("u"): lambda m: m.set_items(m.to_mark()),
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    ord("K"): lambda m: m.stack.append(m.number(1)),
    ord("M"): lambda m: m.stack.append(m.number(2)),
    ord("J"): lambda m: m.whole(4),
    0x8A: lambda m: m.whole(m.number(1)),
    ord("G"): lambda m: m.stack.append(unpack_from(">d", m.take(8))[0]),
    _SHORT_TEXT: lambda m: m.text(1),
    _TEXT: lambda m: m.text(4),
    0x8D: lambda m: m.text(8),
    ord("q"): lambda m: m.put(m.number(1)),
    ord("r"): lambda m: m.put(m.number(4)),
    0x94: lambda m: m.put(len(m.memo)),
    ord("h"): lambda m: m.get(m.number(1)),
    ord("j"): lambda m: m.get(m.number(4)),
    ord("c"): _Machine.name,
    0x93: _Machine.stack_name,
    ord("R"): _Machine.call,
    ord("Q"): _Machine.persistent,
}
