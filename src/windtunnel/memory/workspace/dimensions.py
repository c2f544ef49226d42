"""The names an expression of the workspace table may use, and what they are for one operator on one device.

    Signature ─┬─> of every operator: in0_numel, out0_bytes, arg1, itemsize, ...
               ├─> of its family: m, n, k | b, h, sq, d | n, c, k, r, s
    device ────┼─> capability, multiprocessors
    environment┴─> cublas_config, cublaslt_size, ...

A name that an operator does not have is a `KeyError`, and the operator's workspace is then not known. True counts as 1.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping

from windtunnel.devices import DeviceProfile
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.events.scalars import arguments_of

__all__ = ["Dimensions", "base_name", "is_dimension", "n_bytes_of", "settings_of"]

_ITEM_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "complex32": 4,
}  # fmt: skip
_OF_TENSOR = re.compile(r"(in|out)(\d{1,2})_(numel|bytes|itemsize|ndim|last|dense|d(\d))")
_OF_ARGUMENT = re.compile(r"arg(\d{1,2})")
_TOTALS = frozenset({"n_inputs", "n_outputs", "in_bytes", "out_bytes", "in_max_numel", "itemsize", "is_half"})
_DEVICE = frozenset({"capability", "multiprocessors"})
_SETTINGS = frozenset({"cublas_config", "cublaslt_size", "is_unified", "is_lt_off", "is_deterministic"})
_FAMILIES = frozenset(
    "m n k batch b h hk sq sk d dv is_causal has_dropout n_sequences kv_splits c w r s p q groups is_channels_last".split()
)
_MATMULS = frozenset("mm addmm bmm baddbmm addbmm _scaled_mm _int_mm _addmm_activation matmul linear".split())
_CONVOLUTIONS = frozenset({"convolution", "convolution_backward", "cudnn_convolution"})


def base_name(name: str) -> str:
    """`aten.mm.default` -> `mm`"""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name


def is_dimension(name: str) -> bool:
    """Whether some operator has this name; which one does is seen when it is evaluated."""
    return (
        name in _TOTALS | _DEVICE | _SETTINGS | _FAMILIES
        or _OF_TENSOR.fullmatch(name) is not None
        or _OF_ARGUMENT.fullmatch(name) is not None
    )


def settings_of(env: Mapping[str, str], is_deterministic: bool) -> dict[str, float]:
    """Settings of libraries from the environment of the program; 0 where not set.

    A text torch cannot read counts as not set, as in torch.
    """
    pairs = re.findall(r":([0-9]+):([0-9]+)", env.get("CUBLAS_WORKSPACE_CONFIG", ""))
    size = re.match(r"\s*[+]?([0-9]+)", env.get("CUBLASLT_WORKSPACE_SIZE", ""))
    return {
        "cublas_config": sum(int(kib) * int(count) for kib, count in pairs) * 1024,
        "cublaslt_size": int(size[1]) * 1024 if size else 0,
        "is_unified": env.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") == "1",
        "is_lt_off": env.get("DISABLE_ADDMM_CUDA_LT") == "1",
        "is_deterministic": is_deterministic,
    }


class Dimensions(Mapping[str, float]):
    """Every name of one operator; computed on demand."""

    def __init__(
        self, signature: Signature, device: DeviceProfile, settings: Mapping[str, float] | None = None
    ) -> None:
        self.signature = signature
        self.device = device
        self._known: dict[str, float] = dict(settings or {})
        self._known["capability"] = device.capability[0] * 10 + device.capability[1]
        self._known["multiprocessors"] = device.multiprocessors
        self._has_family = False

    def __getitem__(self, name: str) -> float:
        if name in self._known:
            return self._known[name]
        if name in _FAMILIES:
            if not self._has_family:
                self._has_family = True
                self._known |= _family(self.signature, self.device)
            return self._known[name]
        return _general(self.signature, name)

    def define(self, name: str, value: float) -> None:
        self._known[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


# -- any operator -------------------------------------------------------------------------------------------


def _general(signature: Signature, name: str) -> float:
    if found := _OF_TENSOR.fullmatch(name):
        return _of_tensor(signature, name, found)
    if found := _OF_ARGUMENT.fullmatch(name):
        return _argument(signature.scalars, int(found[1]), name)
    inputs, outputs = signature.inputs, signature.outputs
    first = (inputs or outputs)[:1]
    match name:
        case "n_inputs":
            return len(inputs)
        case "n_outputs":
            return len(outputs)
        case "in_bytes":
            return sum(map(n_bytes_of, inputs))
        case "out_bytes":
            return sum(map(n_bytes_of, outputs))
        case "in_max_numel":
            return max((_numel(spec) for spec in inputs), default=0)
        case "itemsize" if first:
            return _item_bytes(first[0])
        case "is_half" if first:
            return first[0].dtype in ("float16", "bfloat16")
    raise KeyError(name)


def _of_tensor(signature: Signature, name: str, found: re.Match[str]) -> float:
    specs = signature.inputs if found[1] == "in" else signature.outputs
    if int(found[2]) >= len(specs):
        raise KeyError(name)
    spec = specs[int(found[2])]
    match found[3]:
        case "numel":
            return _numel(spec)
        case "bytes":
            return n_bytes_of(spec)
        case "itemsize":
            return _item_bytes(spec)
        case "ndim":
            return len(spec.shape)
        case "dense":
            return _is_dense(spec)
        case "last":
            return spec.shape[-1] if spec.shape else 1
    if int(found[4]) >= len(spec.shape):
        raise KeyError(name)
    return spec.shape[int(found[4])]


def _numel(spec: TensorSpec) -> int:
    return math.prod(spec.shape)


def _item_bytes(spec: TensorSpec) -> int:
    return _ITEM_BYTES.get(spec.dtype, 1)


def n_bytes_of(spec: TensorSpec) -> int:
    return _numel(spec) * _item_bytes(spec)


def _is_dense(spec: TensorSpec) -> bool:
    expected = 1
    for size, stride in reversed(list(zip(spec.shape, spec.strides, strict=True))):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _argument(scalars: str, index: int, name: str) -> float:
    """The number or switch at this place of the call; None and what was not given are 0, a list is its length."""
    arguments = [part for part in arguments_of(scalars) if not _is_keyword(part)]
    if index >= len(arguments):
        return 0
    try:
        value = ast.literal_eval(arguments[index])
    except (ValueError, SyntaxError):
        raise KeyError(name) from None
    if isinstance(value, (list, tuple)):
        return len(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value or 0
    raise KeyError(name)


def _is_keyword(part: str) -> bool:
    return part.partition("=")[0].isidentifier() and "=" in part


def _keyword(scalars: str, name: str) -> str:
    marked = [part for part in arguments_of(scalars) if part.startswith(name + "=")]
    return marked[0].partition("=")[2] if marked else ""


# -- families -----------------------------------------------------------------------------------------------


def _family(signature: Signature, device: DeviceProfile) -> dict[str, float]:
    """The dimensions of what an operator is, by its name; nothing for other operators."""
    base = base_name(signature.name)
    try:
        if base in _MATMULS:
            return _matmul(signature, base)
        if base in _CONVOLUTIONS:
            return _convolution(signature, base)
        for is_it, dimensions in _ATTENTIONS:
            if is_it(signature.name, base):
                found = dimensions(signature, base)
                return found | {"kv_splits": _kv_splits(found, device.multiprocessors)}
    except (IndexError, ValueError):
        pass  # not called as expected: the names are not there
    return {}


def _matmul(signature: Signature, base: str) -> dict[str, float]:
    skipped = 1 if base in ("addmm", "baddbmm", "addbmm", "_addmm_activation") else 0
    left, right = signature.inputs[skipped : skipped + 2]
    columns = right.shape[0] if base == "linear" else right.shape[-1]
    batch = math.prod(left.shape[:-2])
    return {"batch": batch, "m": left.shape[-2], "k": left.shape[-1], "n": columns}


def _convolution(signature: Signature, base: str) -> dict[str, float]:
    """By cuDNN's letters: input n, c, h, w; filter k, c, r, s; output n, k, p, q. 3-d: the depth is in h, r and p."""
    if base.endswith("_backward"):
        result, images, filters = signature.inputs[:3]
    else:
        images, filters = signature.inputs[:2]
        result = signature.outputs[0]
    arguments = [part for part in arguments_of(signature.scalars) if not _is_keyword(part)]
    groups = [part for part in arguments if part.isdecimal()]
    n_spatial = len(images.shape) - 2

    def folded(shape: tuple[int, ...]) -> tuple[int, int]:
        return math.prod(shape[2:-1]), shape[-1]

    (h, w), (r, s), (p, q) = folded(images.shape), folded(filters.shape), folded(result.shape)
    return {
        "n": images.shape[0], "c": images.shape[1], "k": result.shape[1], "h": h, "w": w, "r": r, "s": s, "p": p, "q": q,
        "groups": int(groups[-1]) if groups else 1,
        "is_channels_last": n_spatial > 0 and images.shape[1] > 1 and images.strides[1] == 1,
    }  # fmt: skip


def _heads_first(signature: Signature, base: str) -> dict[str, float]:
    """[b, h, s, d], as torch's scaled_dot_product_attention has it."""
    query, key, value = _query_key_value(signature, base)
    (b, h, sq, d), (_, hk, sk, _) = query.shape, key.shape
    return {"b": b, "h": h, "hk": hk, "sq": sq, "sk": sk, "d": d, "dv": value.shape[-1],
            "n_sequences": 0, **_switches(signature, base)}  # fmt: skip


def _length_first(signature: Signature, base: str) -> dict[str, float]:
    """[b, s, h, d], or packed [tokens, h, d] with cumulative lengths, as flash_attn has it."""
    query, key, value = _query_key_value(signature, base)
    switches = _switches(signature, base)
    if len(query.shape) == 4:
        (b, sq, h, d), (_, sk, hk, _) = query.shape, key.shape
        return {
            "b": b,
            "h": h,
            "hk": hk,
            "sq": sq,
            "sk": sk,
            "d": d,
            "dv": value.shape[-1],
            "n_sequences": 0,
            **switches,
        }
    lengths = next(s for s in signature.inputs if s.dtype == "int32" and len(s.shape) == 1)
    (sq, h, d), (sk, hk, _) = query.shape, key.shape
    return {"b": 1, "h": h, "hk": hk, "sq": sq, "sk": sk, "d": d, "dv": value.shape[-1],
            "n_sequences": lengths.shape[0] - 1, **switches}  # fmt: skip


def _fused_npu(signature: Signature, base: str) -> dict[str, float]:
    """npu_fusion_attention: the layout is one of its arguments."""
    query, key, value = signature.inputs[:3]
    words = [part.strip("'\"") for part in arguments_of(signature.scalars)]
    layout = next(word for word in words if word in ("BSH", "SBH", "BNSD", "BSND", "TND"))
    heads = next(int(word) for word in words if word.isdecimal())
    at = {letter: i for i, letter in enumerate(layout)}
    d = query.shape[at["D"]] if "D" in at else query.shape[at["H"]] // heads
    hk = key.shape[at["N"]] if "N" in at else key.shape[at["H"]] // d
    dv = value.shape[at["D"]] if "D" in at else value.shape[at["H"]] // hk
    length = at.get("S", at.get("T", 0))
    batch = query.shape[at["B"]] if "B" in at else 1
    return {
        "b": batch,
        "h": heads,
        "hk": hk,
        "sq": query.shape[length],
        "sk": key.shape[length],
        "d": d,
        "dv": dv,
    }


def _query_key_value(signature: Signature, base: str) -> tuple[TensorSpec, ...]:
    first = 1 if "backward" in base or base.startswith("bwd") or base.endswith("_bwd") else 0
    return signature.inputs[first : first + 3]


# Where torch's operators have dropout and is_causal: the third number after the last tensor names differ by operator.
_PLACES = {
    "_scaled_dot_product_flash_attention": (3, 4),
    "_scaled_dot_product_flash_attention_backward": (10, 11),
    "_scaled_dot_product_efficient_attention": (5, 6),
    "_scaled_dot_product_efficient_attention_backward": (9, 11),
    "_scaled_dot_product_cudnn_attention": (5, 6),
    "_scaled_dot_product_cudnn_attention_backward": (13, 14),
    "_flash_attention_forward": (7, 8),
    "_flash_attention_backward": (10, 11),
}


def _switches(signature: Signature, base: str) -> dict[str, float]:
    def read(place: int, *names: str) -> float:
        if base in _PLACES:
            try:
                return _argument(signature.scalars, place, "")
            except KeyError:
                pass
        words = next(filter(None, (_keyword(signature.scalars, name) for name in names)), "0")
        return float(words) if re.fullmatch(r"[0-9.eE+-]+", words) else words == "True"

    dropout, causal = _PLACES.get(base, (0, 0))
    return {
        "has_dropout": bool(read(dropout, "dropout_p", "p_dropout")),
        "is_causal": bool(read(causal, "is_causal", "causal")),
    }


_ATTENTIONS: tuple[tuple[Callable[[str, str], bool], Callable[[Signature, str], dict[str, float]]], ...] = (
    (lambda name, base: base.startswith("_scaled_dot_product_"), _heads_first),
    (lambda name, base: name.startswith("flash_attn") or base.startswith("_flash_attention"), _length_first),
    (lambda name, base: base.startswith("npu_fusion_attention"), _fused_npu),
)


def _kv_splits(found: Mapping[str, float], multiprocessors: int) -> int:
    """Into how many parts FlashAttention-2 cuts the keys when queries alone do not fill the device (num_splits_heuristic).

    Two blocks run on a multiprocessor. The fewest parts win that fill the waves of blocks to 85 % of the best.
    """
    if found.get("has_dropout"):
        return 1
    h, sq = found["h"], found["sq"]
    if sq == 1 and h > found["hk"]:  # one new token: the heads of a group become its queries
        h, sq = found["hk"], h // found["hk"]
    block = 256 if found["d"] <= 64 else 128 if found["d"] <= 128 else 64
    n_key_blocks = -(-int(found["sk"]) // block)
    n_blocks, n_slots = int(found["b"] * h) * -(-int(sq) // 64), multiprocessors * 2
    if n_blocks >= 0.8 * n_slots:
        return 1
    efficiency = {}
    for splits in range(1, min(128, n_slots, n_key_blocks) + 1):
        if splits == 1 or -(-n_key_blocks // splits) != -(-n_key_blocks // (splits - 1)):
            waves = n_blocks * splits / n_slots
            efficiency[splits] = waves / math.ceil(waves)
    best = max(efficiency.values(), default=0.0)
    return next((splits for splits, each in efficiency.items() if each >= 0.85 * best), 1)
