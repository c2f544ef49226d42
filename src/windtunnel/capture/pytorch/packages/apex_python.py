"""The part of Apex's Python that programs import, where Apex is not installed; its kernels are those of apex_kernels.py.

apex.normalization.FusedLayerNorm ──> saved for backward: input, weight, bias, mean and inverse deviation of each row
apex.optimizers.FusedAdam         ──> two fp32 moments for each weight, one launch for each type of weight
apex.multi_tensor_apply           ──> amp_C
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import Parameter, init

from windtunnel.capture.pytorch.packages.apex_kernels import apex_kernel_modules

__all__ = ["apex_python_modules"]

Tensor = torch.Tensor
_CHUNK = 2048 * 32  # elements of one block of a multi-tensor kernel


def apex_python_modules() -> dict[str, dict[str, Any]]:
    kernels = apex_kernel_modules()
    norms = _normalization(kernels["fused_layer_norm_cuda"])
    fast = _fast_norms(kernels["fast_layer_norm"])
    applier = {"MultiTensorApply": _MultiTensorApply, "multi_tensor_applier": _MultiTensorApply(_CHUNK)}
    optimizers = {"FusedAdam": _fused_adam(kernels["amp_C"]), "FusedSGD": _fused_sgd(kernels["amp_C"])}
    return {
        **kernels,
        "apex": {},
        "apex.normalization": norms,
        "apex.normalization.fused_layer_norm": norms,
        "apex.contrib": {},
        "apex.contrib.layer_norm": {"FastLayerNorm": fast["FastLayerNorm"]},
        "apex.contrib.layer_norm.layer_norm": fast,
        "apex.multi_tensor_apply": applier,
        "apex.optimizers": optimizers,
        "apex.optimizers.fused_adam": {"FusedAdam": optimizers["FusedAdam"]},
        "apex.optimizers.fused_sgd": {"FusedSGD": optimizers["FusedSGD"]},
    }


# -- normalisation --------------------------------------------------------------------------------------------


def _uncast(function: Any, *args: Any) -> Any:
    """Under autocast Apex casts what it is given, weights included, and computes without."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        args = tuple(a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    with torch.amp.autocast("cuda", enabled=False):
        return function.apply(*args)


def _normalization(kernels: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """Functions and modules: of layers and of root mean squares, with weights or without."""
    found: dict[str, Any] = {}
    for is_rms in (False, True):
        kind, begin = ("RMS", "rms_") if is_rms else ("Layer", "")
        for mixed in ("", "MixedDtypes"):
            found[f"Fused{kind}NormAffine{mixed}Function"] = _affine_function(
                kernels[f"{begin}forward_affine{'_mixed_dtypes' if mixed else ''}"],
                kernels[f"{begin}backward_affine"],
                1 if is_rms else 2,
            )
        found[f"Fused{kind}NormFunction"] = _plain_function(
            kernels[f"{begin}forward"], kernels[f"{begin}backward"]
        )
        affine, mixed_affine = (
            found[f"Fused{kind}NormAffineFunction"],
            found[f"Fused{kind}NormAffineMixedDtypesFunction"],
        )
        word = f"fused_{kind.lower()}_norm"
        found[f"{word}_affine"] = _caller(affine, 3 if is_rms else 4)
        found[f"mixed_dtype_{word}_affine"] = _caller(mixed_affine, 3 if is_rms else 4)
        found[word] = _caller(found[f"Fused{kind}NormFunction"], 2)
        for name, function in ((f"Fused{kind}Norm", affine), (f"MixedFused{kind}Norm", mixed_affine)):
            found[name] = _norm_module(name, function, found[f"Fused{kind}NormFunction"], has_bias=not is_rms)
    return found


def _caller(function: Any, n_given: int) -> Callable[..., Any]:
    """`fused_layer_norm_affine(x, weight, bias, shape, eps, memory_efficient)`."""

    def call(*args: Any, eps: float = 1e-6, memory_efficient: bool = False) -> Any:
        return _uncast(function, *args, *(eps, memory_efficient)[len(args) - n_given :])

    return call


def _affine_function(forward_kernel: Any, backward_kernel: Any, n_weights: int) -> Any:
    """With a weight, and a bias if there are two; Megatron looks whether `memory_efficient` is among the parameters."""

    def run(
        ctx: Any, x: Tensor, weights: Sequence[Tensor], shape: Any, eps: float, is_efficient: bool
    ) -> Tensor:
        ctx.shape, ctx.eps, ctx.is_efficient = shape, eps, is_efficient
        x, weights = x.contiguous(), [w.contiguous() for w in weights]
        output, *statistics = forward_kernel(x, shape, *weights, eps)
        if is_efficient:  # the row's mean follows from the output
            statistics = [*(None for _ in statistics[:-1]), statistics[-1]]
        ctx.save_for_backward(output if is_efficient else x, *weights, *statistics)
        return output

    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, *saved = ctx.saved_tensors
        weights, statistics = saved[:n_weights], saved[n_weights:]
        found = backward_kernel(
            gradient.contiguous(), *statistics, x, ctx.shape, *weights, ctx.eps, ctx.is_efficient
        )
        return (*found, None, None, None)

    def forward_layer(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Any, eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:  # fmt: skip
        return run(ctx, input, (weight, bias), normalized_shape, eps, memory_efficient)

    def forward_rms(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        normalized_shape: Any,
        eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:
        return run(ctx, input, (weight,), normalized_shape, eps, memory_efficient)

    forward = forward_layer if n_weights == 2 else forward_rms
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("FusedNormAffineFunction", (torch.autograd.Function,), members)


def _plain_function(forward_kernel: Any, backward_kernel: Any) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, shape: Any, eps: float, is_efficient: bool = False) -> Tensor:
            ctx.shape, ctx.eps, ctx.is_efficient = shape, eps, is_efficient
            x = x.contiguous()
            output, *statistics = forward_kernel(x, shape, eps)
            ctx.save_for_backward(output if is_efficient else x, *statistics)
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            x, *statistics = ctx.saved_tensors
            found = backward_kernel(
                gradients[0].contiguous(), *statistics, x, ctx.shape, ctx.eps, ctx.is_efficient
            )
            return found, None, None, None

    return Function


def _norm_module(name: str, affine: Any, plain: Any, *, has_bias: bool) -> type[torch.nn.Module]:
    class Norm(torch.nn.Module):
        def __init__(
            self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True,
            memory_efficient: bool = False, **_: Any,
        ) -> None:  # fmt: skip
            super().__init__()
            shape: Any = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
            self.normalized_shape = torch.Size(shape)
            self.eps, self.elementwise_affine, self.memory_efficient = (
                eps,
                elementwise_affine,
                memory_efficient,
            )
            self.weight = Parameter(torch.empty(*shape)) if elementwise_affine else None
            if has_bias:
                self.bias = Parameter(torch.empty(*shape)) if elementwise_affine else None
            self.reset_parameters()

        def reset_parameters(self) -> None:
            if self.weight is not None:
                init.ones_(self.weight)
                if has_bias and self.bias is not None:
                    init.zeros_(self.bias)

        def forward(self, x: Tensor) -> Any:
            if self.weight is None:
                return _uncast(plain, x, self.normalized_shape, self.eps, self.memory_efficient)
            weights = (self.weight, self.bias) if has_bias else (self.weight,)
            return _uncast(affine, x, *weights, self.normalized_shape, self.eps, self.memory_efficient)

    Norm.__name__ = Norm.__qualname__ = name
    return Norm


def _fast_norms(kernels: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    class FastLayerNormFN(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, memory_efficient: bool = False
        ) -> Tensor:
            ctx.shape, ctx.is_efficient = x.shape, memory_efficient
            rows = x.contiguous().view(-1, gamma.numel())
            output, mean, deviation = kernels["ln_fwd"](rows, gamma.contiguous(), beta.contiguous(), epsilon)
            if memory_efficient:
                ctx.save_for_backward(output, gamma, None, deviation, beta)
            else:
                ctx.save_for_backward(rows, gamma, mean, deviation, None)
            return output.view(x.shape)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            x, gamma, mean, deviation, beta = ctx.saved_tensors
            gradient = gradients[0].contiguous().view(x.shape)
            dx, d_gamma, d_beta, *_ = kernels["ln_bwd"](gradient, x, mean, deviation, gamma, beta)
            return dx.view(ctx.shape), d_gamma, d_beta, None, None

    class FastLayerNorm(torch.nn.Module):
        def __init__(self, hidden_size: int, eps: float = 1e-5, memory_efficient: bool = False) -> None:
            super().__init__()
            self.epsilon, self.memory_efficient = eps, memory_efficient
            self.weight, self.bias = Parameter(torch.ones(hidden_size)), Parameter(torch.zeros(hidden_size))

        def forward(self, x: Tensor) -> Any:
            return _uncast(FastLayerNormFN, x, self.weight, self.bias, self.epsilon, self.memory_efficient)

    return {"FastLayerNormFN": FastLayerNormFN, "FastLayerNorm": FastLayerNorm}


# -- optimizers -----------------------------------------------------------------------------------------------


class _MultiTensorApply:
    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, op: Any, noop_flag_buffer: Tensor, tensor_lists: Any, *args: Any) -> Any:
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


def _by_type(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Those with a gradient: one list, and so one launch, for each type."""
    found: dict[torch.dtype, list[Tensor]] = {torch.float16: [], torch.bfloat16: [], torch.float32: []}
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.dtype not in found:
                raise RuntimeError("FusedAdam only support fp16 and fp32.")
            found[parameter.dtype].append(parameter)
    return [each for each in found.values() if each]


def _fused_adam(kernels: dict[str, Callable[..., Any]]) -> type[torch.optim.Optimizer]:
    class FusedAdam(torch.optim.Optimizer):
        def __init__(
            self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999), eps: float = 1e-8,
            adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False, set_grad_none: bool = True,
            capturable: bool = False, master_weights: bool = False,
        ) -> None:  # fmt: skip
            if amsgrad:
                raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
            if master_weights and not capturable:
                raise RuntimeError("Master weights is currently only supported with the capturable version.")
            super().__init__(
                params,
                {
                    "lr": lr,
                    "bias_correction": bias_correction,
                    "betas": betas,
                    "eps": eps,
                    "weight_decay": weight_decay,
                },
            )
            self.set_grad_none, self.capturable = set_grad_none, capturable
            self.masters = {
                p: p.detach().clone().float()
                for g in self.param_groups
                for p in g["params"]
                if master_weights
            }
            self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device="cuda")

        def zero_grad(self, set_to_none: bool | None = None) -> None:
            super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

        @torch.no_grad()
        def step(self, closure: Any = None, **_: Any) -> Any:
            loss = closure() if closure is not None else None
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                for parameters in _by_type(group["params"]):
                    self._update(parameters)
            return loss

        def _update(self, parameters: list[Tensor]) -> None:
            for p in parameters:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p).float()
                    self.state[p]["exp_avg_sq"] = torch.zeros_like(p).float()
            moments = [[self.state[p][name] for p in parameters] for name in ("exp_avg", "exp_avg_sq")]
            masters = [[self.masters[p] for p in parameters]] if self.masters else []
            name = "multi_tensor_adam_capturable" if self.capturable else "multi_tensor_adam"
            gradients = [p.grad for p in parameters]
            kernels[name](_CHUNK, self._dummy_overflow_buf, [gradients, parameters, *moments, *masters])

    return FusedAdam


def _fused_sgd(kernels: dict[str, Callable[..., Any]]) -> type[torch.optim.Optimizer]:
    class FusedSGD(torch.optim.Optimizer):
        def __init__(
            self, params: Any, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
            nesterov: bool = False, wd_after_momentum: bool = False, materialize_master_grads: bool = True,
            set_grad_none: bool = False,
        ) -> None:  # fmt: skip
            super().__init__(
                params,
                {
                    "lr": lr,
                    "momentum": momentum,
                    "dampening": dampening,
                    "weight_decay": weight_decay,
                    "nesterov": nesterov,
                },
            )
            self.set_grad_none = set_grad_none
            self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device="cuda")

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            loss = closure() if closure is not None else None
            for group in self.param_groups:
                for parameters in _by_type(group["params"]):
                    for p in parameters:  # whatever the momentum
                        if "momentum_buffer" not in self.state[p]:
                            self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                    momenta = [self.state[p]["momentum_buffer"] for p in parameters]
                    gradients = [p.grad for p in parameters]
                    kernels["multi_tensor_sgd"](
                        _CHUNK, self._dummy_overflow_buf, [gradients, parameters, momenta]
                    )
            return loss

    return FusedSGD
