"""The layers that differ from Megatron-core's local ones: norm, core attention, SwiGLU and rotary embedding.

    arguments + what the device has ──> layer_spec(config, args) ──> GPTModel

On an Ascend device the fused kernels are torch_npu's, selected by MindSpeed's flags; on a CUDA device torch's own.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils, router
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

try:
    from windtunnel import is_dry_run
except ImportError:
    is_dry_run = None
try:
    import torch_npu
except ImportError:
    torch_npu = None
try:  # MindSpeed's kernel keeps cos and sin; torch_npu's npu_rotary_mul also keeps what it rotates
    from mindspeed.ops.npu_rotary_position_embedding import npu_rotary_position_embedding
except ImportError:
    npu_rotary_position_embedding = None

if not hasattr(moe_utils, "te_general_gemm"):  # Megatron-core 0.16 requires it without Transformer Engine too
    moe_utils.te_general_gemm = None

__all__ = ["install_rotary", "layer_spec", "shorten_sinkhorn"]

_COMPRESSED = 2048  # side of the causal mask that serves any length (sparse_mode 2)


def layer_spec(config: Any, args: Namespace, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The layers of this pipeline stage: Megatron-core's local spec with our own parts."""
    specs = gpt_layer_specs.get_gpt_decoder_layer_specs(config, use_transformer_engine=False)
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    mine = specs[first : first + get_num_layers_to_build(config, vp_stage=vp_stage)]
    for spec in mine:
        parts = spec.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = Norm
        attention = parts.self_attention.submodules
        if config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = Norm
        if args.use_flash_attn:
            attention.core_attention = FlashAttention
        elif args.transformer_impl == "transformer_engine":
            attention.core_attention = UnfusedAttention
        if config.use_te_activation_func:
            _use_fused_swiglu(parts.mlp.submodules)
    return TransformerBlockSubmodules(layer_specs=mine, layer_norm=Norm)


def _use_fused_swiglu(parts: Any) -> None:
    for mlp in (parts, getattr(parts, "experts", None), getattr(parts, "shared_experts", None)):
        inner = getattr(mlp, "submodules", mlp)
        if hasattr(inner, "activation_func"):
            inner.activation_func = FusedSwiGLU


class Norm(torch.nn.Module):
    """LayerNorm or RMSNorm whose weights are marked for sequence parallelism, as Megatron's fused norms do."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.config, self.shape, self.eps = config, (hidden_size,), eps
        self.shift = 1 if config.layernorm_zero_centered_gamma else 0
        self.weight = torch.nn.Parameter(torch.full(self.shape, 1.0 - self.shift))
        self.weight.sequence_parallel = config.sequence_parallel
        self.bias = None
        if config.normalization == "LayerNorm":
            self.bias = torch.nn.Parameter(torch.zeros(self.shape))
            self.bias.sequence_parallel = config.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.shift if self.shift else self.weight
        if self.bias is not None:
            return F.layer_norm(x, self.shape, weight, self.bias, self.eps)
        if torch_npu is None:
            return F.rms_norm(x, self.shape, weight, self.eps)
        if self.config.use_fused_rmsnorm:
            return torch_npu.npu_rms_norm(x, weight, epsilon=self.eps)[0]
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x) * weight


class FlashAttention(MegatronModule):
    """Causal attention without score matrices: torch_npu's kernel on Ascend, torch's choice elsewhere."""

    _mask: Tensor | None = None  # one for all layers

    def __init__(self, config: Any, layer_number: int, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale or config.kv_channels**-0.5
        self.dropout = config.attention_dropout

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *_: Any, **__: Any
    ) -> Tensor:
        """[s, b, heads, d] each -> [s, b, heads * d]"""
        if torch_npu is not None:
            return self._attend_npu(query, key, value)
        length, batch, heads, _ = query.shape
        dropout = self.dropout if self.training else 0.0
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        is_grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=True, scale=self.scale, enable_gqa=is_grouped
        )
        return out.permute(2, 0, 1, 3).reshape(length, batch, heads * value.shape[-1])

    def _attend_npu(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads = query.shape[2]
        q, k, v = (t.reshape(*t.shape[:2], -1) for t in (query, key, value))
        keep = 1.0 - (self.dropout if self.training else 0.0)
        return torch_npu.npu_fusion_attention(
            q, k, v, heads, "SBH", atten_mask=self._causal_mask(q.device), scale=self.scale, keep_prob=keep,
            sparse_mode=2,
        )[0]  # fmt: skip

    @classmethod
    def _causal_mask(cls, device: torch.device) -> Tensor:
        if FlashAttention._mask is None:
            ones = torch.ones((_COMPRESSED, _COMPRESSED), dtype=torch.bool, device=device)
            FlashAttention._mask = torch.triu(ones, diagonal=1)
        return FlashAttention._mask


class UnfusedAttention(DotProductAttention):
    """Score matrices are allocated in every call, as in Transformer Engine; Megatron's own keeps one buffer permanently."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        kept = parallel_state._GLOBAL_MEMORY_BUFFER
        parallel_state._GLOBAL_MEMORY_BUFFER = _NoBuffer()
        try:
            return super().forward(*args, **kwargs)
        finally:
            parallel_state._GLOBAL_MEMORY_BUFFER = kept


class _NoBuffer:
    def get_tensor(self, shape: Any, dtype: torch.dtype, name: str) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=torch.cuda.current_device())


class FusedSwiGLU(torch.nn.Module):
    """The gate and the product in one kernel that keeps only its input."""

    def __init__(self, config: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return torch_npu.npu_swiglu(x, dim=-1)


def install_rotary(args: Namespace) -> None:
    """Rotate with the device's kernel, where Megatron-core would use separate operators: as MindSpeed does."""
    if torch_npu is not None and args.use_fused_rotary_pos_emb:
        rope_utils._apply_rotary_pos_emb_bshd = _rotate


def _rotate(
    t: Tensor, freqs: Tensor, rotary_interleaved: bool = False, multi_latent_attention: bool = False,
    mscale: float = 1.0,
) -> Tensor:  # fmt: skip
    """Cos and sin are computed in every call, in the dtype of the rotated tensor."""
    width = freqs.shape[-1]
    rotated, rest = t[..., :width], t[..., width:]
    cos = (torch.cos(freqs) * mscale).to(t.dtype)
    sin = (torch.sin(freqs) * mscale).to(t.dtype)
    if npu_rotary_position_embedding is not None:
        rotated = npu_rotary_position_embedding(
            rotated.contiguous(), cos, sin, 1 if rotary_interleaved else 0
        )
    else:
        rotated = torch_npu.npu_rotary_mul(rotated, cos, sin, "interleave" if rotary_interleaved else "half")
    return rotated if rest.shape[-1] == 0 else torch.cat((rotated, rest), dim=-1)


def shorten_sinkhorn() -> None:
    """In a dry run, one pass: sinkhorn iterates until values converge, and there are none."""
    if is_dry_run is not None and is_dry_run():
        router.sinkhorn = partial(moe_utils.sinkhorn, tol=1e8)
