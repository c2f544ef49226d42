"""Track the program: the current module, phase and step, and the role of each long-lived storage.

    Module.__call__ ──> module path        Tensor.backward ──> phase, module of each autograd node
    Optimizer.step  ──> phase, step end    parameters, gradients, optimizer state ──> MARK rows

Nothing here changes what autograd keeps alive: no hooks on tensors, no extra references. A backward operator belongs
to the module whose forward created its autograd node, which is found by the node's sequence number.
"""

from __future__ import annotations

import bisect
import threading
import time
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from windtunnel.capture.pytorch.compiler.compiled_steps import set_hooks
from windtunnel.capture.pytorch.kernels import kernels
from windtunnel.capture.pytorch.kernels.views_and_copies import sent_before_forward
from windtunnel.capture.pytorch.step_parts import StepParts
from windtunnel.capture.pytorch.tensors.engine_threads import is_missing_threads, start_threads
from windtunnel.capture.pytorch.tensors.storage import sim_of
from windtunnel.capture.pytorch.tensors.traced import compiling
from windtunnel.capture.recorder import Recorder
from windtunnel.events.model import NO_NAME, Kind, Phase, Role

__all__ = ["compiled_paths", "install_program", "mark_compiled", "path_of"]

_sequence_nr = torch._C._autograd._get_sequence_nr
_PATH, _STARTED, _LAST = "_windtunnel_path", "_windtunnel_started", "_windtunnel_last"
_COMPILED = "_windtunnel_compiled"

compiled_paths: dict[int, None] = {}  # paths of modules that the program compiled, once they have a name


def path_of(module: torch.nn.Module) -> int | None:
    """The index of a module's path in the recording's names; None before its first call."""
    return module.__dict__.get(_PATH)


def mark_compiled(module: torch.nn.Module) -> None:
    """The program compiled a module and its submodules. They get names at the first call; no references are kept."""
    for part in module.modules():
        if (path := part.__dict__.get(_PATH)) is not None:
            compiled_paths[path] = None
        else:
            part.__dict__[_COMPILED] = True


def install_program(recorder: Recorder) -> None:
    """Hook modules, backward and optimizers of this process."""
    follower = _Follower(recorder)
    follower.install_modules()
    follower.install_backward()
    follower.install_optimizers()
    _install_build_times()


class _Follower:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.local = threading.local()
        self.names: dict[int, str] = {}  # id of a parameter -> its name
        self.spans: _Spans = _Spans()  # those of the thread whose graph is running backward
        self.leader: weakref.ref[torch.optim.Optimizer] | None = None
        self.phases_before: list[int] = []  # before each optimizer step that is running
        self.parts = StepParts(recorder)
        self.has_pending_step = False  # an optimizer stepped during the backward that is running
        kernels.module_of_node = self.module_of_node

    # -- modules ----------------------------------------------------------------------------------------------

    def install_modules(self) -> None:
        original = torch.nn.Module.__call__
        recorder = self.recorder
        follower = self

        # Dynamo treats a function of this name as torch's own: it compiles forward, not the call around it.
        def _wrapped_call_impl(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            before, phase_before = recorder.module, recorder.phase
            spans = follower.own_spans()
            if spans.depth == 0:
                follower.enter_root(module)
                follower.mark_inputs(args, kwargs)
            path = module.__dict__.get(_PATH)
            if path is None:
                path = follower.name_unregistered(module, before)
            # A module that is called while autograd runs is a recomputation: its operators are forward operators.
            recorder.phase = int(Phase.FORWARD)
            recorder.module = path
            is_recomputation = phase_before == Phase.BACKWARD
            spans.enter(path)
            recorder.write_module(Kind.MODULE_ENTER, path, is_recomputation)
            try:
                return original(module, *args, **kwargs)
            finally:
                recorder.write_module(Kind.MODULE_EXIT, path, is_recomputation)
                spans.leave()
                recorder.module = before
                if phase_before != Phase.BUILD:
                    recorder.phase = phase_before

        torch.nn.Module.__call__ = _wrapped_call_impl  # type: ignore[method-assign]

    def own_spans(self) -> _Spans:
        spans = getattr(self.local, "spans", None)
        if spans is None:
            spans = self.local.spans = _Spans()
        return spans

    def enter_root(self, root: torch.nn.Module) -> None:
        """A call from outside any module: name all its submodules and mark its weights."""
        self.parts.enter_model(root)
        writer = self.recorder.writer
        if (
            _PATH not in root.__dict__
        ):  # a submodule that was called on its own before, or in a recomputation, keeps its name
            for name, module in root.named_modules():
                _give_path(module, writer.name(name or type(root).__name__))
                self.report_build_time(module)
            for name, parameter in root.named_parameters():
                self.names[id(parameter)] = name
        for name, parameter in root.named_parameters():
            name = self.names.get(id(parameter), name)
            if parameter.requires_grad:
                self.mark(parameter, Role.WEIGHT, name)
            else:
                self.mark_frozen(parameter, name)
        for name, buffer in root.named_buffers():
            self.mark(buffer, Role.WEIGHT, self.names.get(id(buffer), name))
        writer.flush_if_due()

    def name_unregistered(self, module: torch.nn.Module, parent: int) -> int:
        """Name a module that is called but not registered in its parent."""
        names = list(self.recorder.writer.names)
        prefix = names[parent] + "." if parent >= 0 else ""
        path = self.recorder.writer.name(prefix + type(module).__name__)
        _give_path(module, path)
        return path

    def mark(self, tensor: Any, role: Role, name: str = "") -> None:
        if hasattr(
            tensor, "__tensor_flatten__"
        ):  # a DTensor or similar wrapper: the bytes are in the tensors it wraps
            for attribute in tensor.__tensor_flatten__()[0]:
                self.mark(getattr(tensor, attribute), role, name)
            return
        sim = sim_of(tensor) if isinstance(tensor, torch.Tensor) else None
        if sim is not None and sim.role != role and sim.device_index >= 0:
            sim.role = int(role)
            self.recorder.mark(sim.id, role, self.recorder.writer.name(name) if name else NO_NAME)

    def mark_frozen(self, tensor: Any, name: str) -> None:
        """A weight that needs no gradient at its first call; one that is frozen later stays a weight."""
        if hasattr(tensor, "__tensor_flatten__"):
            for attribute in tensor.__tensor_flatten__()[0]:
                self.mark_frozen(getattr(tensor, attribute), name)
        elif (sim := sim_of(tensor)) is not None and sim.role not in (Role.WEIGHT, Role.FROZEN):
            self.mark(tensor, Role.WEIGHT, name)  # it is one of the model's weights, and more precisely:
            self.mark(tensor, Role.FROZEN, name)

    def mark_inputs(self, args: Any, kwargs: Any) -> None:
        """What the host sent before the first call, and a model is called with: features, token ids, labels."""
        for value in (*args, *kwargs.values()):
            for each in value.values() if isinstance(value, dict) else (value,):
                sim = sim_of(each) if isinstance(each, torch.Tensor) else None
                if sim is not None and sim.id in sent_before_forward and sim.role == Role.UNKNOWN:
                    self.mark(each, Role.INPUT)

    def report_build_time(self, module: torch.nn.Module) -> None:
        started, last = module.__dict__.get(_STARTED), module.__dict__.get(_LAST)
        if started is not None and last is not None:
            del module.__dict__[_STARTED]
            self.recorder.plain_row(Kind.BUILD, module.__dict__[_PATH], int((last - started) * 1e6))

    # -- backward -------------------------------------------------------------------------------------------------

    def install_backward(self) -> None:
        """Every backward goes through the engine: torch's own, and Megatron's, which calls the engine directly."""
        engine = torch.autograd.Variable._execution_engine
        recorder, follower = self.recorder, self

        class Engine:
            def run_backward(self, *args: Any, **kwargs: Any) -> Any:
                if compiling.depth:  # a compiler follows forward and backward to make one graph of them
                    return engine.run_backward(*args, **kwargs)
                before = (recorder.phase, recorder.module, follower.spans)
                recorder.phase = int(Phase.BACKWARD)
                follower.spans = follower.own_spans()
                try:
                    result = _run_backward(engine, args, kwargs)
                finally:
                    recorder.phase, recorder.module, follower.spans = before
                    if recorder.phase != Phase.BACKWARD:
                        recorder.wait_for_futures()
                    if recorder.phase == Phase.BUILD:
                        recorder.phase = int(Phase.FORWARD)
                    recorder.writer.flush_if_due()
                if follower.has_pending_step and recorder.phase != Phase.BACKWARD:
                    follower.end_step(is_in_backward=False)
                return result

            def __getattr__(self, name: str) -> Any:
                return getattr(engine, name)

        torch.autograd.Variable._execution_engine = Engine()  # type: ignore[assignment]

    def module_of_node(self, node: Any) -> int:
        number = node._sequence_nr()
        if number < self.spans.first_known:
            self.recorder.notice(
                f"one graph has more than {_Spans.KEEP // 2:,} module calls: backward operators that belong to"
                " earlier calls are reported without a module"
            )
        return self.spans.find(number)

    # -- optimizer --------------------------------------------------------------------------------------------------

    def install_optimizers(self) -> None:
        set_hooks(self.before_step, self.after_step)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self.parts.train()
        if self.recorder.phase != Phase.OPTIMIZER:
            self.phases_before.clear()  # a step that raised never ended
        self.phases_before.append(self.recorder.phase)
        self.recorder.phase = int(Phase.OPTIMIZER)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self.names.get(id(parameter), "")
                # A higher-precision copy that no module owns and that needs no gradient is the optimizer's own.
                is_copy = not name and not parameter.requires_grad
                if is_copy or parameter.requires_grad:
                    self.mark(parameter, Role.OPTIMIZER if is_copy else Role.WEIGHT, name)
                if parameter.grad is not None:
                    self.mark(parameter.grad, Role.GRADIENT, name)

    def after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        for parameter, state in optimizer.state.items():
            if isinstance(state, dict):
                name = self.names.get(id(parameter), "")
                for value in state.values():
                    self.mark(value, Role.OPTIMIZER, name)
        before = self.phases_before.pop() if self.phases_before else Phase.FORWARD
        self.recorder.phase = int(Phase.FORWARD if before == Phase.BUILD else before)
        if not self.phases_before:  # a sharded optimizer steps an inner one: that counts as one step
            self.leader = self.leader or weakref.ref(optimizer)
            if self.leader() in (optimizer, None):  # of several optimizers, the first counts the steps
                self.leader = weakref.ref(optimizer)
                self.end_step(is_in_backward=before == Phase.BACKWARD)

    def end_step(self, *, is_in_backward: bool) -> None:
        """An optimizer that a backward hook calls has not seen all gradients yet: the step ends with that backward."""
        self.has_pending_step = is_in_backward
        if not is_in_backward:
            self.recorder.end_step()


def _give_path(module: torch.nn.Module, path: int) -> None:
    module.__dict__[_PATH] = path
    if module.__dict__.pop(_COMPILED, False):
        compiled_paths[path] = None


def _run_backward(engine: Any, args: Any, kwargs: Any) -> Any:
    try:
        return engine.run_backward(*args, **kwargs)
    except RuntimeError as error:
        if not is_missing_threads(error):
            raise
    start_threads()  # nothing has run yet: the engine refused the first node
    return engine.run_backward(*args, **kwargs)


class _Spans:
    """Which module was running at each autograd sequence number, for one thread."""

    KEEP = 200_000  # entries and exits: those of graphs that were freed must not fill memory

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.paths: list[int] = []
        self.stack: list[int] = []
        self.first_known = 0  # the first sequence number that is still known

    @property
    def depth(self) -> int:
        return len(self.stack)

    def enter(self, path: int) -> None:
        self.stack.append(path)
        self._note(path)

    def leave(self) -> None:
        self.stack.pop()
        self._note(self.stack[-1] if self.stack else NO_NAME)

    def find(self, sequence_nr: int) -> int:
        if sequence_nr >= 1 << 62:
            return (
                NO_NAME  # AccumulateGrad has no number: it belongs to a parameter, not to a module's forward
            )
        i = bisect.bisect_right(self.starts, sequence_nr) - 1
        return self.paths[i] if i >= 0 else NO_NAME

    def _note(self, path: int) -> None:
        self.starts.append(_sequence_nr())
        self.paths.append(path)
        if len(self.starts) > self.KEEP:
            del self.starts[: self.KEEP // 2], self.paths[: self.KEEP // 2]
            self.first_known = self.starts[0]


def _install_build_times() -> None:
    """A module's construction lasts from its `super().__init__()` until the last thing is registered in it.

    This is CPU time: on a busy machine, wall time would blame modules that had to wait.
    """
    init, set_attribute = torch.nn.Module.__init__, torch.nn.Module.__setattr__

    def __init__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self.__dict__[_STARTED] = time.process_time()
        init(self, *args, **kwargs)

    def __setattr__(self: torch.nn.Module, name: str, value: Any) -> None:
        set_attribute(self, name, value)
        if not torch.compiler.is_compiling() and isinstance(value, (torch.nn.Module, torch.Tensor)):
            self.__dict__[_LAST] = time.process_time()

    add_module = torch.nn.Module.add_module

    def add(self: torch.nn.Module, name: str, module: Any) -> None:
        add_module(self, name, module)
        if torch.compiler.is_compiling():
            return
        self.__dict__[_LAST] = time.process_time()

    torch.nn.Module.add_module = add  # type: ignore[method-assign]
    torch.nn.Module.__init__ = __init__  # type: ignore[method-assign]
    torch.nn.Module.__setattr__ = __setattr__  # type: ignore[method-assign]
