"""Model the backward of MindSpore's older primitives, which the meta device does not have.

    a primitive that is run by name (BiasAdd, Conv2D, MaxPool, ...) ──> what it saves, one kernel that makes its gradients

Newer operators (pyboost: mint.*, most of ops.*) keep MindSpore's own backward, operator by operator. For the older ones
the rules below state what a device saves. A primitive that is not listed saves all its inputs and its first result, and
each gradient is as large as its input.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from mindspore import Tensor
from mindspore.common._grad_function import _Function
from mindspore.common.dtype import float_type
from mindspore.graph import api
from mindspore.graph.api import _pynative_executor
from mindspore.ops import primitive

from windtunnel.capture.mindspore.meta.device import Handle, MetaDevice, tensors_in
from windtunnel.capture.mindspore.meta.tensors import replace_function

__all__ = ["GradientRule", "install_gradients", "rule_of"]


class GradientRule(NamedTuple):
    """What the backward of a primitive needs and computes. Numbers are positions of its tensor arguments."""

    kernel: str | tuple[str, ...]  # computes all gradients, or one kernel for each
    saved: tuple[int, ...]  # inputs
    results: tuple[int, ...] = ()  # outputs that are saved too
    passed: tuple[int, ...] = ()  # their gradient is the incoming one, except for its shape


_RULES = {
    "BiasAdd": GradientRule("BiasAddGrad", (), passed=(0,)),
    "Gather": GradientRule("UnsortedSegmentSum", (1,)),
    "Flatten": GradientRule("", (), passed=(0,)),
    "Conv2D": GradientRule(("Conv2DBackpropInput", "Conv2DBackpropFilter"), (0, 1)),
    "LayerNorm": GradientRule("LayerNormGrad", (0, 1), results=(1, 2)),
    "BatchNorm": GradientRule("BatchNormGrad", (0, 1), results=(3, 4)),
    "AvgPool": GradientRule("AvgPoolGrad", (0,), results=(0,)),
    "MaxPool": GradientRule("MaxPoolGrad", (0,), results=(0,)),
    "Dropout": GradientRule("DropoutGrad", (), results=(1,)),
    "SoftmaxCrossEntropyWithLogits": GradientRule("Mul", (), results=(1,)),
    "SparseSoftmaxCrossEntropyWithLogits": GradientRule("SparseSoftmaxCrossEntropyWithLogitsGrad", (0, 1)),
}

_WITHOUT = {"OnesLike", "ZerosLike", "Shape", "TensorShape", "DType", "Rank", "Size", "Print", "StopGradient"}


def rule_of(name: str, n_given: int) -> GradientRule:
    return _RULES.get(name) or GradientRule(f"{name}Grad", tuple(range(n_given)), results=(0,))


def install_gradients(device: MetaDevice) -> set[str]:
    """Before the script's first line. Returns the names of primitives whose backward was modelled, as it fills."""
    run, modelled = primitive._run_op, set()

    class Modelled(_Function):
        @staticmethod
        def forward(ctx: Any, call: tuple[Any, ...], *given: Any) -> Any:
            result = run(*call[:3])
            made = list(tensors_in(result))
            rule = ctx.rule = rule_of(call[1], len(given))
            ctx.wanted = call[3]
            ctx.looks = [(tuple(tensor.shape), tensor.dtype) for tensor in given]
            ctx.save_for_backward(
                *(given[i] for i in rule.saved if i < len(given)),
                *(made[i] for i in rule.results if i < len(made)),
            )
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            found: list[Any] = [None] * len(ctx.wanted)
            made: list[Any] = []
            read = [*tensors_in(gradients), *ctx.saved_tensors]
            for i, is_wanted in enumerate(ctx.wanted):
                if not is_wanted or ctx.looks[i][1] not in float_type:
                    continue
                shape, dtype = ctx.looks[i]
                if i in ctx.rule.passed:
                    found[i] = (
                        gradients[0] if tuple(gradients[0].shape) == shape else gradients[0].view(shape)
                    )
                    continue
                found[i] = device.new_tensor(shape, dtype)
                made.append(found[i])
                if isinstance(ctx.rule.kernel, tuple):
                    device.record(ctx.rule.kernel[i], read, made)
                    made = []
            if made:
                device.record(ctx.rule.kernel, read, made)
            return (None, *found)

    def run_op(obj: Any, name: str, args: tuple[Any, ...]) -> Any:
        given = list(tensors_in(args))
        is_followed = _pynative_executor.grad_flag() and _pynative_executor.enable_grad()
        wanted = [bool(tensor._requires_grad) for tensor in given]
        if not is_followed or not any(wanted):
            return run(obj, name, args)
        if not name[:1].isupper() or name in _WITHOUT or name.startswith("Assign"):
            return run(obj, name, args)
        modelled.add(name)
        return Modelled.apply((obj, name, args, wanted), *given)

    replace_function(run, run_op)
    _Function.apply = classmethod(_linked(_Function.apply.__func__, device))
    api.saved_tensors_hooks.__init__ = _following(api.saved_tensors_hooks.__init__, device)
    return modelled


def _following(make: Callable, device: MetaDevice) -> Callable:
    """Hooks of the script or of `recompute`: the tensors they return are treated as the ones they received."""

    @wraps(make)
    def __init__(self: Any, pack: Callable, unpack: Callable) -> None:
        if getattr(unpack, "__self__", None) is not device:
            theirs = unpack

            def unpack(packed: Any) -> Any:
                tensor = theirs(packed)
                return device.hand_back(tensor) if isinstance(tensor, Tensor) else tensor

        make(self, pack, unpack)

    return __init__


def _linked(apply: Callable, device: MetaDevice) -> Callable:
    """MindSpore returns other tensors than the `forward` of a function created, with the same memory."""

    @wraps(apply)
    def linked(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made: list[Handle] = []
        forward = cls.forward

        def watched(*given: Any, **named: Any) -> Any:
            result = forward(*given, **named)
            made.extend(device.handle(tensor) for tensor in tensors_in(result))
            return result

        is_own, own = "forward" in vars(cls), vars(cls).get("forward")
        cls.forward = staticmethod(wraps(forward)(watched))
        try:
            result = apply(cls, *args, **kwargs)
        finally:
            if is_own:
                cls.forward = own
            else:
                del cls.forward
        device.gave(result, made)
        return result

    return linked
