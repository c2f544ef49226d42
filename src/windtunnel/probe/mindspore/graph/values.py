"""Arrays that came out of a graph as the JSON text of a dump, and their places as lists and objects.

array ──> {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [...], "Max": ..., "data_name": ...}
{"0": text, "1.0": text, "1.1": text} ──> [text, [text, text]]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import Any

import numpy as np

from windtunnel.probe.files.tensor_store import TensorStore
from windtunnel.probe.measure.statistics import array_statistics, array_xor, statistics_json

__all__ = ["GraphValues", "constant_text", "nested"]


class GraphValues:
    """Encodes arrays as one config wants them; the text is complete at once, for the array will not stay."""

    def __init__(self, summary_mode: str) -> None:
        self.is_md5 = summary_mode == "md5"
        self.is_xor = summary_mode == "xor"

    def tensor(self, array: np.ndarray, is_bfloat16: bool, stem: str, store: TensorStore | None) -> str:
        """One tensor as text, its bytes in a file if there is a store. A bfloat16 one comes, and is kept, as float32."""
        dtype = "BFloat16" if is_bfloat16 else _dtype(array.dtype)
        text = f'{{"type": "mindspore.Tensor", "dtype": "{dtype}", "shape": {[*array.shape]}'
        stats = array_xor(array) if self.is_xor else array_statistics(array, crc=self.is_md5)
        last = ""
        if not self.is_xor:
            first, last = statistics_json(stats)
            text += f", {first}"
        if store is not None:
            plain: Any = np.ascontiguousarray(array)
            name = store.save(stem, memoryview(plain), plain.dtype.name, array.shape)
            text += f', "data_name": {quote(name)}' if name else ""
        if self.is_md5 or self.is_xor:
            text += f', "md5": {json.dumps(stats.crc)}'
        return f"{text}, {last}}}" if last else f"{text}}}"


def constant_text(value: Any) -> str:
    """A number or text that the compiler has folded into the graph."""
    if value is None:
        return "null"
    return f'{{"type": "{type(value).__name__}", "value": {json.dumps(value)}}}'


def nested(texts: Mapping[str, str], *, is_list: bool) -> str:
    """Texts by their dotted paths as one JSON text; places nobody has filled are null."""
    tree: dict[str, Any] = {}
    for path, text in texts.items():
        node = tree
        *parents, last = path.split(".")
        for key in parents:
            found = node.setdefault(key, {})
            node = found if isinstance(found, dict) else node
        node[last] = text
    return _render(tree, is_list)


def _render(tree: dict[str, Any], is_list: bool) -> str:
    items = {
        key: value if isinstance(value, str) else _render(value, _is_listed(value))
        for key, value in tree.items()
    }
    if not is_list:
        return "{" + ", ".join(f"{quote(key)}: {text}" for key, text in items.items()) + "}"
    n_items = 1 + max((int(key) for key in items), default=-1)
    return "[" + ", ".join(items.get(str(index), "null") for index in range(n_items)) + "]"


def _is_listed(tree: dict[str, Any]) -> bool:
    return all(key.isdecimal() for key in tree)


def _dtype(dtype: np.dtype) -> str:
    name = dtype.name
    return f"UInt{name[4:]}" if name.startswith("uint") else f"{name[0].upper()}{name[1:]}"
