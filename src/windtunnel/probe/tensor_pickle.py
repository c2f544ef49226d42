"""What a pickle of one tensor says, read as data: nothing is imported, called or built.

    data.pkl ──> foreign_pickles, which gives us its calls as text ──> TensorRecord

Only the names that torch writes for a tensor are known here; any other is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.foreign_pickles import PickleName, UnsafePickle, load_pickle_with_calls
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
class _Storage:
    key: str
    dtype_name: str | None  # None: bytes, and the type stands with the tensor


def parse_tensor_pickle(data: bytes, origin: str) -> TensorRecord:
    """Read the pickle of one tensor. Raises CorruptFile that names `origin`."""
    try:
        value = load_pickle_with_calls(data, _call, _storage)
    except UnsafePickle as error:
        raise CorruptFile(f"{origin} is not a plain tensor: {error}", hint="collect it again") from error
    except (IndexError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFile(
            f"{origin} has a damaged pickle ({type(error).__name__})", hint="collect it again"
        ) from error
    except UsageError as error:
        raise CorruptFile(f"{origin} is not a plain tensor: {error.message}", hint=error.hint) from None
    if not isinstance(value, TensorRecord):
        name = "dictionary" if isinstance(value, dict) else type(value).__name__
        raise CorruptFile(f"{origin} holds a {name}, not a plain tensor", hint="save one tensor")
    return value


def _storage(parts: tuple) -> _Storage:
    word, kind, key, _device, _n_elements = parts
    if word != "storage" or not isinstance(kind, PickleName) or not isinstance(key, str):
        raise ValueError
    if kind.text == "torch.storage.UntypedStorage":
        return _Storage(key, None)
    module, _, name = kind.text.rpartition(".")
    found = type_of_storage(name) if module in ("torch", "torch.cuda") else None
    if found is None:
        raise CorruptFile(f"its storage is a {kind.text[:60]}")
    return _Storage(key, found.name)


def _call(function: PickleName, arguments: tuple) -> object:
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
    if any(type(each) is dict and each for each in rest):
        raise CorruptFile(
            "it is a view whose values are conjugated or negated on reading, or has attributes",
            hint="save one tensor: t.resolve_conj().resolve_neg()",
        )
    if dtype_name is None or len(shape) != len(strides):
        raise ValueError
    if not all(type(n) is int for n in (offset, *shape, *strides)):
        raise ValueError
    return TensorRecord(storage.key, dtype_name, offset, shape, strides)
