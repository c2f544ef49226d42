"""How long an operator takes on a named device, without running it.

    Signature ──> class, operations, bytes ──┐
    DeviceProfile ──> peaks ─────────────────┼──> max(compute, memory) + least time of a kernel ──> OpCost
    calibration.toml ──> shares of the peaks ┘

Matrix products are tiled (matmul.py), attention is counted in blocks of queries, everything else moves bytes. An
operator of no known class is bounded by its bytes, and its basis says so.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import ceil, log2

from windtunnel.devices import DeviceProfile
from windtunnel.events.model import Signature
from windtunnel.timing.operators.flops import attention_of, base_name, flops_of
from windtunnel.timing.operators.op_cost import Basis, HostCosts, OpCost
from windtunnel.timing.operators.operator_classes import OpClass, class_of, is_causal_kernel
from windtunnel.timing.roofline.calibration import Calibration, calibrated_like, calibration_of
from windtunnel.timing.roofline.matmul import Rates, product_seconds, products_of
from windtunnel.timing.roofline.moved_bytes import bytes_moved, bytes_of, is_strided
from windtunnel.timing.roofline.peaks import fp32_flops, peak_flops

__all__ = ["Roofline", "roofline_of"]

_US = 1e-6
_QUERY_BLOCK = 128  # rows of scores that one block of an attention kernel makes
_NARROW_HEAD, _WIDE_HEAD = 64, 128
_DEPTHWISE = 16  # columns of a group below which tensor cores are not used
_PLAIN_SHARE = 0.3  # of the fp32 peak, for such convolutions


class Roofline:
    """Costs of one device by formula."""

    notes: tuple[str, ...] = ()

    def __init__(self, device: DeviceProfile, calibration: Calibration | None = None) -> None:
        self.device = device
        self.calibration = calibration or calibration_of(device)
        self.host = HostCosts(
            self.calibration.host_module_us * _US,
            self.calibration.host_collective_us * _US,
            self.calibration.host_sync_us * _US,
        )
        self.description = (
            f"model of {device.id}, calibrated on published runs of {calibrated_like(device)} devices"
        )
        self._bandwidth = device.bandwidth_gbs * 1e9 * self.calibration.bandwidth_share
        self._cache_bytes = device.l2_mib * 2**20 / 2
        self._known: dict[tuple[Signature, bool], OpCost] = {}

    def cost(self, signature: Signature, *, is_backward: bool = False) -> OpCost:
        key = (signature, is_backward)
        if (found := self._known.get(key)) is None:
            found = self._known[key] = self._cost(signature, is_backward)
        return found

    def fused_cost(self, n_bytes: int) -> OpCost:
        """One kernel a compiler made of several operators, which reads and writes this much."""
        seconds = self._memory_seconds(n_bytes, 1.0) + self._least_seconds()
        return OpCost(seconds, self.calibration.host_fused_us * _US, n_bytes=n_bytes, op_class="fused")

    def _compiled_cost(self, signature: Signature, n_bytes: int, flops: int) -> OpCost:
        """One kernel that the compiler generated, as the recording holds it."""
        fused = self.fused_cost(n_bytes)
        if not flops:
            return fused
        peak = peak_flops(self.device, signature, OpClass.MATMUL) * self.calibration.matmul_share
        seconds = max(fused.seconds, flops / peak + self._least_seconds())
        return replace(fused, seconds=seconds, flops=flops)

    def _cost(self, signature: Signature, is_backward: bool) -> OpCost:
        found = class_of(signature.name)
        host = self._host_seconds(signature, found, is_backward)
        if found is OpClass.FREE:
            return OpCost(0.0, host, Basis.FREE, op_class=found.value)
        n_bytes, flops = bytes_moved(signature), flops_of(signature)
        if found is OpClass.FUSED:
            return self._compiled_cost(signature, n_bytes, flops)
        compute = self._compute_seconds(signature, found, flops)
        memory = self._memory_seconds(n_bytes, self._bandwidth_share(signature, found))
        if found is OpClass.TRANSFER:
            n_bytes = max(map(bytes_of, (*signature.inputs, *signature.outputs)), default=0)
            memory = n_bytes / (self.calibration.transfer_gbs * 1e9)
        basis = Basis.BYTES if found is OpClass.OTHER else Basis.MODEL
        seconds = max(compute, memory) + self._least_seconds()
        return OpCost(seconds, host, basis, flops, n_bytes, found.value)

    def _least_seconds(self) -> float:
        return (self.device.launch_us or self.calibration.kernel_us) * _US

    # -- compute ----------------------------------------------------------------------------------------------

    def _compute_seconds(self, signature: Signature, found: OpClass, flops: int) -> float:
        if not flops:
            return 0.0
        peak = peak_flops(self.device, signature, found)
        if found in (OpClass.ATTENTION, OpClass.ATTENTION_BACKWARD):
            return self._attention_seconds(signature, found, flops, peak)
        products = products_of(signature)
        if not products:  # recurrent layers, and overloads with other arguments
            return flops / (peak * self.calibration.matmul_share * self.calibration.convolution_share)
        rates = Rates(peak, self._bandwidth, self.device.multiprocessors)
        seconds = sum(product_seconds(product, rates, self.calibration) for product in products)
        if found is OpClass.CONVOLUTION:
            seconds /= self.calibration.convolution_share
            if max(product.columns for product in products) < _DEPTHWISE:
                seconds = min(seconds, flops / (fp32_flops(self.device) * _PLAIN_SHARE))
        return seconds

    def _attention_seconds(self, signature: Signature, found: OpClass, flops: int, peak: float) -> float:
        attention, calibration = attention_of(signature), self.calibration
        is_backward = found is OpClass.ATTENTION_BACKWARD
        share = calibration.attention_backward_share if is_backward else calibration.attention_share
        if "efficient" in base_name(signature.name):
            share *= calibration.efficient_attention_share
        if attention is None:
            return flops / (peak * share)
        # Between the two widths that were measured the share goes with the logarithm of the width, and on below.
        narrowness = log2(_WIDE_HEAD / min(max(attention.width, 16), _WIDE_HEAD))
        share *= calibration.narrow_head_share**narrowness
        rows = attention.n_keys if is_backward else attention.n_queries
        blocks = attention.n_heads * ceil(rows / _QUERY_BLOCK)
        waves = ceil(blocks / self.device.multiprocessors)
        return flops / (peak * share) * waves * self.device.multiprocessors / blocks

    # -- memory -----------------------------------------------------------------------------------------------

    def _memory_seconds(self, n_bytes: int, share: float) -> float:
        is_cached = n_bytes <= self._cache_bytes
        return n_bytes / (self._bandwidth * share * (self.calibration.cache_gain if is_cached else 1.0))

    def _bandwidth_share(self, signature: Signature, found: OpClass) -> float:
        """Of long reads and writes, for this kind of work."""
        c = self.calibration
        if found in (OpClass.COPY, OpClass.ELEMENTWISE) and any(map(is_strided, signature.inputs)):
            return c.strided_share
        share = {
            OpClass.REDUCTION: c.reduction_share,
            OpClass.LOSS: c.reduction_share,
            OpClass.NORM: c.norm_share,
            OpClass.NORM_BACKWARD: c.norm_backward_share,
            OpClass.SOFTMAX: c.softmax_share,
            OpClass.RANDOM: c.random_share,
            OpClass.POOLING: c.reduction_share,
            OpClass.SCATTER: c.scatter_share,
            OpClass.LOOKUP: c.scatter_share,
            OpClass.OPTIMIZER: c.optimizer_share,
            OpClass.SORT: 1 / c.sort_passes,
            OpClass.SPECTRAL: 1 / c.sort_passes,
            OpClass.SOLVER: 1 / c.sort_passes,
        }.get(found, 1.0)
        return share / 0.75 if is_causal_kernel(signature.name) else share  # half is read, all is written

    # -- host -------------------------------------------------------------------------------------------------

    def _host_seconds(self, signature: Signature, found: OpClass, is_backward: bool) -> float:
        if self.device.kind == "cpu":
            return 0.0  # it does the work itself
        c = self.calibration
        each = c.host_backward_us if is_backward else c.host_forward_us
        if found is OpClass.OPTIMIZER:
            each += c.host_tensor_us * len(signature.inputs)
        return each * _US


@cache
def roofline_of(device: DeviceProfile) -> Roofline:
    """Return the same model for the same device: it caches its results."""
    return Roofline(device)
