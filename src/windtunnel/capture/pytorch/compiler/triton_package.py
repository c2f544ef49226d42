"""An importable `triton` for Inductor where none is installed: code is generated for it and never compiled.

with triton_visible(): import triton ──> a package with the names that Inductor's code generator reads
outside                                ──> no such package: the program sees the installed one or none
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, NoneType
from typing import Any

from torch.utils import _triton

from windtunnel.frameworks import is_installed, load_again, load_door

__all__ = ["install_triton", "triton_visible"]

_Spec: Any = type(sys.__spec__)

_SUBMODULES = frozenset(
    "language runtime compiler backends core autotuner extra standard tools knobs testing".split()
)


def install_triton() -> bool:
    """Serve the package if Triton is not installed; whether it is ours."""
    if "triton" in sys.modules or is_installed("triton"):
        return False
    _stand_in.finder = _Finder()  # a finder by its methods, like the package finder
    for function in vars(_triton).values():  # they remember that there is no Triton
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    with triton_visible():
        assert _triton.has_triton_package()
        assert _triton.get_triton_version()
        _tell_inductor()
    return True


class _StandIn:
    """The package while nobody sees it."""

    finder: Any = None  # None: none is needed here
    modules: dict[str, ModuleType] = {}  # noqa: RUF012  (one package for the process)
    depth = 0
    lock = threading.Lock()


_stand_in = _StandIn()


@contextmanager
def triton_visible() -> Iterator[None]:
    """While the compiler works. Another thread would have to import the package at this very moment to see it."""
    if _stand_in.finder is None:
        yield
        return
    _show()
    try:
        yield
    finally:
        _hide()


def _show() -> None:
    with _stand_in.lock:
        _stand_in.depth += 1
        if _stand_in.depth == 1:
            sys.meta_path.append(_stand_in.finder)
            sys.modules.update(_stand_in.modules)


def _hide() -> None:
    with _stand_in.lock:
        _stand_in.depth -= 1
        if _stand_in.depth == 0:
            sys.meta_path.remove(_stand_in.finder)
            for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
                _stand_in.modules[name] = sys.modules.pop(name)


def _tell_inductor() -> None:
    """A program may have imported Inductor before it compiled anything: its names of Triton are those of an absent one."""
    _tell("torch._inductor.runtime.triton_compat")
    hints = sys.modules.get("torch._inductor.runtime.hints")
    if hints is not None:
        _replace({id(hints.AttrsDescriptorWrapper): _attributes})


def _attributes(
    divisible_by_16: Any = None, equal_to_1: Any = None, pointer_range_32: Any = None
) -> dict[tuple[int], list[list[Any]]]:
    """As Inductor describes the arguments of a kernel to a Triton since 2025."""
    found: dict[tuple[int], list[list[Any]]] = {}
    for name, positions in (("tt.divisibility", divisible_by_16), ("tt.pointer_range", pointer_range_32)):
        for position in positions or ():
            found.setdefault((position,), []).append([name, 16 if name == "tt.divisibility" else 32])
    return found


def _tell(name: str) -> None:
    compat = sys.modules.get(name)
    if compat is None:
        return
    old = {key: value for key, value in vars(compat).items() if not key.startswith("__")}
    load_again(compat)
    changed = {key: value for key, value in old.items() if vars(compat)[key] is not value}
    for module in _modules_of_inductor():
        for key, value in list(vars(module).items()):
            if key in changed and value is changed[key]:
                setattr(module, key, vars(compat)[key])
    _replace(
        {
            id(value): vars(compat)[key]
            for key, value in changed.items()
            if not isinstance(value, (bool, NoneType))
        }
    )


def _replace(new_of: dict[int, Any]) -> None:
    """Values by identity: a module may have given them another name."""
    for module in _modules_of_inductor():
        for key, value in list(vars(module).items()):
            if id(value) in new_of:
                setattr(module, key, new_of[id(value)])


def _modules_of_inductor() -> list[ModuleType]:
    found = [module for name, module in sys.modules.items() if name.startswith("torch._inductor.")]
    return [module for module in found if type(module) is ModuleType]


class _Anything:
    """A value that can be called, decorated with and asked for attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_decorator = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorator else _Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Config:
    """`triton.Config`: block sizes and launch options of one variant of a kernel."""

    def __init__(
        self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 2, num_ctas: int = 1, **more: Any
    ) -> None:
        self.kwargs = kwargs
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas
        self.maxnreg = self.pre_hook = self.ir_override = None
        self.__dict__.update(more)


class _Constexpr:
    def __init__(self, value: Any = None) -> None:
        self.value = value


class _Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012  (what makes a module a package)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "AttrsDescriptor":  # Triton before 2025 had it
            raise AttributeError(name)
        if name in _SUBMODULES:
            with triton_visible():
                return load_door(f"{self.__name__}.{name}")
        value: Any = _Anything()
        if name[0].isupper():
            bases = (Exception,) if "Error" in name or name == "OutOfResources" else ()
            value = type(name, bases, {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, value)
        return value


class _JITFunction:
    """`@triton.jit`: Inductor reads the source of its own helpers from it."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "kernel")
        self.__module__ = getattr(fn, "__module__", "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"the Triton kernel {self.__name__} cannot run in a dry run: Triton is not installed"
        )

    def __getitem__(self, grid: Any) -> Any:
        return self


def _jit(function: Any = None, **_: Any) -> Any:
    return _JITFunction(function) if function is not None else _JITFunction


class _TensorDescriptor:
    """Dynamo compares what a program calls with its constructor."""

    @staticmethod
    def from_tensor(*_: Any, **__: Any) -> _TensorDescriptor:
        return _TensorDescriptor()


class _Target:
    """`GPUTarget`: what code is generated for."""

    def __init__(self, backend: str = "cuda", arch: int = 0, warp_size: int = 32) -> None:
        self.backend, self.arch, self.warp_size = backend, arch, warp_size


class _Backend(_Anything):
    """Triton's backend for NVIDIA's cards, of which Inductor asks the float8 types."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def hash(self) -> str:
        return "windtunnel"

    def parse_options(self, options: dict[str, Any]) -> _Anything:
        arch = getattr(self.target, "arch", 0)
        of_hopper = ("fp8e4nv",) if isinstance(arch, int) and arch >= 89 else ()
        return _Anything(supported_fp8_dtypes=("fp8e5", "fp8e4b15", *of_hopper), extern_libs=())


_NAMES: dict[str, dict[str, Any]] = {
    "triton": {
        "Config": _Config,
        "cdiv": lambda a, b: -(-a // b),
        "next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
        "jit": _jit,
    },
    "triton.backends": {"backends": {"nvidia": True}},
    "triton.language": {
        "float8e4nv": "fp8e4nv",
        "dtype": type("dtype", (), {}),
        "constexpr": _Constexpr,
        "tensor": type("tensor", (), {}),
    },
    "triton.language.core": {
        "dtype": type("dtype", (), {}),
        "constexpr": _Constexpr,
        "view": lambda value, _semantic=None: value,
    },
    "triton.backends.compiler": {"GPUTarget": _Target},
    "triton.compiler.compiler": {"triton_key": lambda: "windtunnel", "make_backend": _Backend},
    "triton.tools.tensor_descriptor": {"TensorDescriptor": _TensorDescriptor},
    "triton.runtime.cache": {"triton_key": lambda: "windtunnel"},
}


class _Finder:
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname == "triton" or fullname.startswith("triton."):
            return _Spec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "3.5.0"  # type: ignore[attr-defined]  # the generation of names that Inductor reads
        module.__file__ = __file__
        vars(module).update(_NAMES.get(module.__name__, {}))
