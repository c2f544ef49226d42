"""`torch.compile` in a dry run: the real compiler runs up to its kernels, so memory is that of the compiled program.

    torch.compile(model) ──> the compiler (dynamo.py, inductor.py) on the first use ──> compiled regions
                        └──> where it cannot run: the code runs eagerly, and the report says so

The end of the recording says what the compiler did (graphs, graph breaks, recompilations: compilations.py) and lists what
ran eagerly although the program compiled it: a compiler would fuse operators there, which matters for time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

import torch

from windtunnel.capture.pytorch.compiler.triton_package import install_triton, triton_visible
from windtunnel.capture.pytorch.kernels.flex_attention import install_flex_attention
from windtunnel.capture.pytorch.tensors.storage import world
from windtunnel.capture.recorder import Recorder
from windtunnel.frameworks import load

__all__ = ["TRIED_TORCH", "compiled_parts", "install_compile"]

_functions: dict[tuple[str, str], None] = {}  # file and name of what was compiled and ran eagerly
_why_not: list[str] = []  # why the compiler cannot run here (empty: it can), once it was asked for

TRIED_TORCH = "2.13."  # Dynamo and Inductor change with every version, and what we rely on is not public
_EAGERLY = "memory is eager's, usually an upper bound for the compiled program"


def install_compile(recorder: Recorder, mark_compiled: Callable[[torch.nn.Module], None]) -> None:
    """Replace torch.compile and Module.compile. `mark_compiled` notes a module that is compiled and runs eagerly."""
    fuse_flex_attention = install_flex_attention()
    plain_compile, plain_module_compile = torch.compile, torch.nn.Module.compile

    def run_eagerly(what: Any) -> None:
        fuse_flex_attention()
        recorder.notice(f"torch.compile at {recorder.user_line()} ran eagerly ({_why_not[0]}): {_EAGERLY}")
        if isinstance(what, torch.nn.Module):
            mark_compiled(what)
        else:
            _remember(what)

    @wraps(plain_compile)
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return partial(compile, **options)
        if _is_internal(model):
            return model
        if _set_up(recorder):
            return plain_compile(model, **options)
        run_eagerly(model)
        if isinstance(model, torch.nn.Module):
            model.__dict__.setdefault("_orig_mod", model)  # scripts unwrap compiled models through this name
        return model

    @wraps(plain_module_compile)
    def compile_module(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        if _set_up(recorder):
            plain_module_compile(self, *args, **options)
        else:
            run_eagerly(self)

    torch.compile = compile
    torch.nn.Module.compile = compile_module  # type: ignore[method-assign]


def _set_up(recorder: Recorder) -> bool:
    """Prepare the compiler, once; whether it can run here."""
    if not _why_not:
        _why_not.append(_prepare(recorder))
    return not _why_not[0]


def _prepare(recorder: Recorder) -> str:
    """Why the compiler cannot run here; empty: it can."""
    if world.device_type not in ("cuda", "cpu"):
        return f"the compiler is simulated for CUDA devices and the CPU, not for {world.device_type}"
    if not torch.__version__.startswith(TRIED_TORCH):
        return f"the compiler is simulated with torch {TRIED_TORCH}x, and this is {torch.__version__}"
    if world.device_type == "cuda":
        install_triton()  # before Inductor is imported, which looks for it then
    with triton_visible():
        names = load("windtunnel.capture.pytorch.compiler.private_names", "torch")
        missing: tuple[str, ...] = names.missing_names()
        if missing:
            return f"torch {torch.__version__} has no {', '.join(missing[:3])}, which the simulated compiler needs"
        install: Callable[[Recorder], None] = load(
            "windtunnel.capture.pytorch.compiler.set_up", "torch"
        ).install_compiler
        install(recorder)
    return ""


def compiled_parts(recorder: Recorder, modules: Iterable[int]) -> dict[str, Any]:
    """What the program compiled: what ran eagerly, by file and name or module path; what the compiler did."""
    names = list(recorder.writer.names)
    parts: dict[str, Any] = {
        "functions": [list(each) for each in _functions],
        "modules": [names[path] for path in modules],
    }
    if _why_not and not _why_not[0]:
        parts["compiler"] = load("windtunnel.capture.pytorch.compiler.compilations", "torch").compilations(
            recorder
        )
    return parts


def _remember(what: Any) -> None:
    code = getattr(getattr(what, "__func__", what), "__code__", None)
    if code is not None:
        _functions[code.co_filename, code.co_name] = None


def _is_internal(function: Any) -> bool:
    """Whether torch compiles a private function of its own, which the program did not ask for."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    return module.startswith("torch.") and name.startswith("_") and name != "_call_impl"  # Module.compile's
