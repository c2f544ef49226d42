"""Which hooks each level needs, in the order they are put in place.

L0: cells     L1: APIs, primitives, compiled functions     mix: both     L2: kernels, and the cells they run in
"""

from __future__ import annotations

from windtunnel.probe.collector import Collector
from windtunnel.probe.debugger import Part
from windtunnel.probe.mindspore_apis import ApiStandIns
from windtunnel.probe.mindspore_calls import CallWriter
from windtunnel.probe.mindspore_cells import CellHooks
from windtunnel.probe.mindspore_custom_apis import CustomApis
from windtunnel.probe.mindspore_graph import GraphCode
from windtunnel.probe.mindspore_graph_jit import JitCalls
from windtunnel.probe.mindspore_kernels import CellPlaces, KernelMode
from windtunnel.probe.mindspore_primitives import Primitives
from windtunnel.probe.mindspore_quiet import Quiet
from windtunnel.probe.scopes import Scopes

__all__ = ["parts_for"]


def parts_for(
    level: str,
    collector: Collector,
    writer: CallWriter,
    scopes: Scopes,
    custom_apis: CustomApis,
    graph: GraphCode,
) -> list[Part]:
    """What `start` installs and `stop` removes in reverse order."""
    quiet = Quiet()
    parts: list[Part] = []
    if level in ("L0", "mix"):
        parts.append(CellHooks(collector, writer, scopes, quiet, graph.handles))
    if level in ("L1", "mix"):
        apis = ApiStandIns(collector, writer, scopes, quiet, lambda: custom_apis.places)
        parts += [Primitives(apis), apis, JitCalls(apis)]
    if level in ("L0", "L1", "mix"):
        custom_apis.quiet = quiet
        custom_apis.connect(collector, writer, scopes)
        parts += [custom_apis, graph]
    if level == "L2":
        places = CellPlaces(collector, writer, scopes, quiet, graph.handles)
        parts += [places, KernelMode(collector, writer, scopes, quiet)]
    return parts
