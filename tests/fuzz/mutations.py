"""A valid file made wrong in one of many ways; the same seed makes the same file.

valid bytes, Random ──> flipped, cut, doubled, spliced bytes | the same structure with other values in it
"""

from __future__ import annotations

import json
import pickle
import re
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from windtunnel.events.file import _checksum

__all__ = ["damaged", "odd_json", "odd_pickle", "odd_recording", "odd_table", "odd_toml"]

_ESCAPE = "\x1b]0;title\x07\x9b31m"
_DEEP: list[Any] = []
for _ in range(300):
    _DEEP = [_DEEP]
_NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**4000, 1e308, -1e308, float("nan"), float("inf"))
_WORDS = (
    "",
    "x" * 3000,
    _ESCAPE,
    "[/bold]",
    "../../etc/passwd",
    "\0",
    "=cmd()",
    "é\u202e",
    "-1",
    "1e999",
    "9" * 5000,
)
_ODD: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"a": 1}, _DEEP, *_NUMBERS, *_WORDS)
_TOML = (
    "0x" + "f" * 5000, "1" * 5000, "-1", "nan", "inf", "1e400", "[]", "[[[]]]", "{}", "{a = 1}", '""', "1979-05-27",
    "true", '"' + "x" * 3000 + '"', '"\\u001b]0;t\\u0007"', "[" * 500, "a.b", "'''", '"9999999999999999999999TB"',
)  # fmt: skip


def damaged(data: bytes, random: Random) -> bytes:
    """Other bytes: one to three changes anywhere."""
    out = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(out) + 1)
        match random.randrange(6):
            case 0:
                for _ in range(random.choice((1, 1, 4))):
                    if out:
                        out[random.randrange(len(out))] = random.randrange(256)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = random.randbytes(random.choice((1, 8, 300)))
            case 3:
                other = random.randrange(len(out) + 1)
                out[at:at] = out[other : other + random.choice((1, 20, 500))]
            case 4:
                del out[at : at + random.choice((1, 5, 100))]
            case _:
                out[at : at + 8] = random.choice((b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"9" * 8))
    return bytes(out)


def odd_value(document: Any, random: Random) -> Any:
    """A document with one to three of its values replaced, removed or doubled."""
    for _ in range(random.randint(1, 3)):
        places = _places(document)
        if not places:
            return random.choice(_ODD)
        holder, key = random.choice(places)
        match random.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.extend([holder[key]] * 3)
            case 1:
                holder[random.choice(_WORDS)] = holder[key]
            case 2:
                other, its = random.choice(places)
                if other is not holder and (its in other if isinstance(other, dict) else its < len(other)):
                    holder[key] = json.loads(json.dumps(other[its]))
            case _:
                holder[key] = random.choice(_ODD)
    return document


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    level = [document]
    for _ in range(12):
        parts = []
        for one in level:
            pairs = one.items() if isinstance(one, dict) else enumerate(one)
            for key, value in pairs:
                found.append((one, key))
                if isinstance(value, (dict, list)):
                    parts.append(value)
        level = parts
    return found


def odd_json(data: bytes, random: Random) -> bytes:
    """JSON that is valid, or nearly, with other values in it."""
    text = json.dumps(odd_value(json.loads(data), random), indent=random.choice((None, 1)))
    match random.randrange(8):
        case 0:
            return ("[" * 5000 + text).encode()
        case 1:
            return re.sub(r"\d+", lambda found: random.choice((found[0], "9" * 5000)), text, count=3).encode()
        case _:
            return text.encode()


def odd_pickle(data: bytes, random: Random) -> bytes:
    """A pickle of other values; some parts are shared many times."""
    value = pickle.loads(data)
    part: Any = ["a"]
    for _ in range(60):
        part = [part, part] if random.random() < 0.8 else (part, part)
    holder, key = random.choice(_places(value))
    if random.random() < 0.3:
        holder[key] = part
    else:
        value = odd_value(value, random)
    return pickle.dumps(value, protocol=random.choice((2, 4)))


def odd_toml(data: bytes, random: Random) -> bytes:
    lines = data.decode().splitlines()
    for _ in range(random.randint(1, 2)):
        at = random.randrange(len(lines))
        key, equals, _ = lines[at].partition("=")
        match random.randrange(5):
            case 0:
                lines.insert(at, lines[at])
            case 1:
                lines[at] = f"{key.strip() or 'a'}{'.a' * random.choice((1, 90, 3000))} = 1"
            case _ if equals:
                lines[at] = f"{key}= {random.choice(_TOML)}"
            case _:
                lines[at] = random.choice(("[a", "[[a]]", "=", "[" + "a." * 50 + "a]", "\x1b"))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def odd_table(data: bytes, random: Random) -> bytes:
    """Text in lines of words, of which some are others: a CSV, a log, a graph."""
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(lines))
        match random.randrange(6):
            case 0:
                lines.insert(at, random.choice(lines))
            case 1:
                lines[at] = ""
            case _:
                words = re.split(r"([\s,;:()<>\[\]]+)", lines[at])
                words[random.randrange(len(words))] = str(random.choice((*_NUMBERS[:7], *_WORDS)))
                lines[at] = "".join(words)
    return "".join(lines).encode("utf-8", "surrogatepass")


def odd_recording(data: bytes, random: Random) -> bytes:
    """A recording with other values in it, whose checksums are right."""
    stream = pa.ipc.open_stream(pa.py_buffer(data))
    schema, parts = stream.schema, []
    while True:
        try:
            parts.append(stream.read_next_batch_with_custom_metadata())
        except StopIteration:
            break
    description = json.loads(schema.metadata[b"windtunnel"])
    what, chosen = random.randrange(4), random.randrange(len(parts))
    if what == 0:
        description["header"] = odd_value(description["header"], random)
    sink = pa.BufferOutputStream()
    metadata = {"windtunnel": json.dumps(description)}
    with pa.ipc.new_stream(sink, schema.with_metadata(metadata)) as writer:
        for i, part in enumerate(parts):
            batch = part.batch
            extra = {key.decode(): value.decode() for key, value in part.custom_metadata.items()}
            del extra["checksum"]
            if i == chosen and what == 1:
                key = random.choice(sorted(extra))
                extra[key] = json.dumps(odd_value(json.loads(extra[key]), random))
            elif i == chosen and what >= 2 and len(batch):
                batch = _odd_batch(batch, random)
            extra["checksum"] = str(_checksum(batch, extra))
            writer.write_batch(batch, custom_metadata=extra)
    return sink.getvalue().to_pybytes()


def _odd_batch(batch: pa.RecordBatch, random: Random) -> pa.RecordBatch:
    for _ in range(random.randint(1, 3)):
        index = random.randrange(batch.num_columns)
        field = batch.schema.field(index)
        values = batch.column(index).to_pylist()
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        limits = np.iinfo(kind.to_pandas_dtype())
        pick = lambda limits=limits: random.choice((0, 1, 2, 3, 7, 100, -1, -2, limits.min, limits.max))
        for _ in range(random.choice((1, 1, len(values)))):
            number = int(np.clip(pick(), limits.min, limits.max))
            odd: Any = [number] * random.choice((0, 1, 5)) if pa.types.is_list(field.type) else number
            values[random.randrange(len(values))] = odd
        if random.random() < 0.05:
            values[random.randrange(len(values))] = None
        batch = batch.set_column(index, field, pa.array(values, type=field.type))
    return batch
