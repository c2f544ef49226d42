"""Compiled graphs are kept for the next rank and the next run: lowering is most of what a compilation costs.

    graph ──> its key in torch's own FxGraphCache ──found──> the source that Inductor generated, loaded as ever
                                                  └──new──> Inductor ──> the cache

The entries are in windtunnel's cache folder and are read by nobody else: a real run has other kernels. What torch's key does
not contain is added to it: this version of windtunnel, the device, and the names of the modules in the graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._inductor import codecache, config
from torch._inductor.output_code import CompiledFxGraph
from torch.compiler import config as compiler_config

from windtunnel.caches import cache_folder

__all__ = ["install_graph_cache", "tag_graph"]

_MOST_BYTES = 1 << 30  # of all entries; the oldest are removed beyond it
_NAME = "compiled"


def install_graph_cache(load: Callable[[str, dict[str, Any]], ModuleType]) -> bool:
    """Once, before the first compilation; `load` makes a module of generated source. False: there is no cache folder."""
    home = cache_folder()
    if not home.is_dir():
        return False
    folder = home / _NAME
    _remove_oldest(folder)
    config.fx_graph_cache = True
    codecache.FxGraphCache._get_tmp_dir = staticmethod(lambda: str(folder))  # type: ignore[method-assign]
    codecache.torch_key = _torch_key
    codecache.add_ephemeral_timeout_increase_for_distributed = lambda time_saved_ns: (
        0
    )  # of real process groups
    _never_fail()
    _keep_source()
    _load_source(load)
    return True


def tag_graph(graph: torch.fx.GraphModule, device: str) -> None:
    """Let the key tell this graph from one that looks the same."""
    found = hashlib.sha256(_own_version())
    found.update(device.encode())
    for node in graph.graph.nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        found.update(repr([str(path) for path, *_ in stack.values()]).encode())
    compiler_config.cache_key_tag = found.hexdigest()


def _torch_key() -> bytes:
    """Torch's own reads all of its source files, for seconds."""
    return f"{torch.__version__} {torch.version.git_version}".encode()


@cache
def _own_version() -> bytes:
    """What decides how a graph is compiled and loaded here."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.digest()


def _never_fail() -> None:
    """A graph that has no key, or whose entry cannot be loaded, is compiled."""

    def guarded(name: str) -> None:
        plain = getattr(codecache.FxGraphCache, name)

        def attempt(*args: Any, **kwargs: Any) -> Any:
            try:
                return plain(*args, **kwargs)
            except Exception as error:
                return None, {"cache_state": "bypass", "cache_bypass_reason": str(error)}

        setattr(codecache.FxGraphCache, name, staticmethod(attempt))

    guarded("prepare_key")
    guarded("load_with_key")


def _keep_source() -> None:
    """Torch keeps the source in a file, and takes it from there."""
    init = CompiledFxGraph.__init__

    def __init__(self: Any, callable: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        init(self, callable, graph, *args, **kwargs)
        self.source_code = getattr(graph, "windtunnel_source", "")

    CompiledFxGraph.__init__ = __init__  # type: ignore[method-assign, assignment]


def _load_source(load: Callable[[str, dict[str, Any]], ModuleType]) -> None:
    def after_deserialization(self: Any, constants: Any) -> str:
        module = load(self.source_code, constants.unwrap(self))
        self.current_callable = module.call
        self.recursively_apply_fns = getattr(module, "recursively_apply_fns", None)
        self.compiled_fn_runner = getattr(module, "runner", None)
        return str(module.__file__)

    CompiledFxGraph.after_deserialization = after_deserialization  # type: ignore[method-assign]


def _remove_oldest(folder: Path) -> None:
    """Keep the cache below its limit. Another run may remove the same files."""
    try:
        files = sorted((p.stat().st_mtime, p.stat().st_size, p) for p in _files(folder))
    except OSError:
        return
    too_many = sum(size for _, size, _ in files) - _MOST_BYTES
    for _, size, path in files:
        if too_many <= 0:
            return
        path.unlink(missing_ok=True)
        too_many -= size


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
