"""What a pickle of one tensor says, read as data: nothing is imported, called or built.

    data.pkl ──> a stack of plain values ──> TensorRecord

Only the opcodes and names that torch writes for a tensor are known here; any other is refused by name. That is
stricter than an unpickler with a list of allowed names, whose opcodes can still be made to use endless memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.probe.tensor_types import element_type, type_of_storage

__all__ = ["TensorRecord", "parse_tensor_pickle"]


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor as its pickle describes it; lengths in elements."""

    key: str  # which data record holds its bytes
    dtype_name: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """A name the pickle refers to; never looked up."""

    text: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype_name: str | None  # None: bytes, and the type stands with the tensor


class _Mark:
    """Where a tuple begins on the stack."""


def parse_tensor_pickle(data: bytes, origin: str) -> TensorRecord:
    """Read the pickle of one tensor. Raises CorruptFile that names `origin`."""
    try:
        value = _run(data)
    except (IndexError, struct.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFile(
            f"{origin} has a damaged pickle ({type(error).__name__})", hint="collect it again"
        ) from error
    except UsageError as error:
        raise CorruptFile(f"{origin} is not a plain tensor: {error.message}", hint=error.hint) from None
    if not isinstance(value, TensorRecord):
        raise CorruptFile(f"{origin} holds a {type(value).__name__}, not a plain tensor")
    return value


def _run(data: bytes) -> object:
    stack: list = []
    memo: dict[int, object] = {}
    place = 0

    def take(form: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(form, data, place)
        place += struct.calcsize(form)
        return value

    def take_bytes(n_bytes: int) -> bytes:
        nonlocal place
        if place + n_bytes > len(data):
            raise ValueError
        place += n_bytes
        return data[place - n_bytes : place]

    def take_line() -> str:
        nonlocal place
        end = data.index(b"\n", place)
        line, place = data[place:end].decode(), end + 1
        return line

    def pop_to_mark() -> tuple:
        index = len(stack) - 1
        while not isinstance(stack[index], _Mark):
            index -= 1
            if index < 0:
                raise ValueError
        values = tuple(stack[index + 1 :])
        del stack[index:]
        return values

    while True:
        opcode = data[place : place + 1]
        place += 1
        if opcode == b"q":
            memo[take("<B")] = stack[-1]
        elif opcode == b"r":
            memo[take("<I")] = stack[-1]
        elif opcode == b"h":
            stack.append(memo[take("<B")])
        elif opcode == b"j":
            stack.append(memo[take("<I")])
        elif opcode == b"K":
            stack.append(take("<B"))
        elif opcode == b"M":
            stack.append(take("<H"))
        elif opcode == b"J":
            stack.append(take("<i"))
        elif opcode == b"\x8a":
            stack.append(int.from_bytes(take_bytes(min(take("<B"), 9)), "little", signed=True))
        elif opcode == b"(":
            stack.append(_Mark())
        elif opcode == b"t":
            stack.append(pop_to_mark())
        elif opcode in _TUPLE_OF:
            n_items = _TUPLE_OF[opcode]
            if len(stack) < n_items:
                raise ValueError
            values = tuple(stack[len(stack) - n_items :])
            del stack[len(stack) - n_items :]
            stack.append(values)
        elif opcode == b"X":
            stack.append(take_bytes(take("<I")).decode())
        elif opcode == b"c":
            stack.append(_Name(f"{take_line()}.{take_line()}"))
        elif opcode == b"Q":
            stack.append(_storage(stack.pop()))
        elif opcode == b"R":
            arguments = stack.pop()
            stack.append(_call(stack.pop(), arguments))
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode == b"\x80":
            if take("<B") > 2:
                raise CorruptFile("its pickle has another protocol than torch's 2")
        elif opcode == b".":
            return stack.pop()
        elif opcode == b"}":
            stack.append({})
        elif opcode in b"su" and opcode:
            raise CorruptFile("it is a dictionary, or a view whose values are conjugated or negated on reading",
                                 hint="save one tensor: t.resolve_conj().resolve_neg()")  # fmt: skip
        else:
            raise CorruptFile(f"its pickle uses the opcode {opcode!r}, which no tensor needs")


_TUPLE_OF = {b")": 0, b"\x85": 1, b"\x86": 2, b"\x87": 3}
_CONSTANTS = {b"\x88": True, b"\x89": False, b"N": None}


def _storage(parts: tuple) -> _Storage:
    word, kind, key, _device, _n_elements = parts
    if word != "storage" or not isinstance(kind, _Name) or not isinstance(key, str):
        raise ValueError
    if kind.text == "torch.storage.UntypedStorage":
        return _Storage(key, None)
    module, _, name = kind.text.rpartition(".")
    found = type_of_storage(name) if module in ("torch", "torch.cuda") else None
    if found is None:
        raise CorruptFile(f"its storage is a {kind.text[:60]}")
    return _Storage(key, found.name)


def _call(function: _Name, arguments: tuple) -> object:
    """The value a call would have, for the few functions that torch's pickles of tensors call."""
    name = function.text
    if name == "collections.OrderedDict" and arguments == ():
        return {}
    if name == "torch._utils._rebuild_parameter":
        if isinstance(arguments[0], TensorRecord):
            return arguments[0]
        raise ValueError
    if name in (
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
    ):
        return _tensor(name, arguments)
    raise CorruptFile(
        f"its pickle calls {name[:80]}", hint="only plain tensors are read from files of others"
    )


def _tensor(name: str, arguments: tuple) -> TensorRecord:
    storage, offset, shape, strides, *rest = arguments
    dtype_name = storage.dtype_name
    if name.endswith("_v3"):
        dtype_name = element_type(rest[2].text).name
    if dtype_name is None or len(shape) != len(strides):
        raise ValueError
    if not all(type(n) is int for n in (offset, *shape, *strides)):
        raise ValueError
    return TensorRecord(storage.key, dtype_name, offset, shape, strides)
