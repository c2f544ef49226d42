"""Statistics of torch tensors: right, never stale, never in the way of the program."""

from __future__ import annotations

import dataclasses
import gc
import math
import threading
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.probe.measure import statistics
from windtunnel.probe.measure.statistics import Statistics
from windtunnel.probe.pytorch.eager import memory_cache as torch_memory_cache
from windtunnel.probe.pytorch.eager import tensor_meter as torch_statistics
from windtunnel.probe.pytorch.eager.device_statistics import DeviceQueue
from windtunnel.probe.pytorch.eager.tensor_meter import Measured, TorchMeter

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
NOTHING = Statistics()
needs_extension = pytest.mark.skipif(
    statistics.fused is None, reason="nothing is remembered without the extension"
)


def figures(tensor: torch.Tensor, mode: str = "md5") -> Statistics:
    return TorchMeter(mode, "high").measure(tensor).stats


def c_order_crc(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{zlib.crc32(data):08x}"


def sample(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype in INTEGERS:
        return torch.randint(0 if dtype is torch.uint8 else -100, 100, shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (300, 401), (2, 65_536)])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_figures_are_those_of_float64(dtype, shape):
    tensor = sample(dtype, *shape)
    found, wide = figures(tensor), tensor.double()
    assert (found.max, found.min) == (tensor.max().item(), tensor.min().item())
    assert found.mean == pytest.approx(wide.mean().item(), rel=0, abs=1e-6 * wide.abs().mean().item())
    assert found.norm == pytest.approx(wide.square().sum().sqrt().item(), rel=1e-6)
    assert (found.nan_count, found.inf_count, found.zero_count) == (0, 0, (tensor == 0).sum().item())
    assert found.crc == c_order_crc(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_figures_are_those_that_msprobe_takes_from_torch(dtype):
    tensor = sample(dtype, 64, 100)
    found = figures(tensor)
    rel = 1e-6 if dtype is torch.float32 else 1e-2  # torch rounds its results to the type
    assert found.max == torch.max(tensor).item()
    assert found.min == torch.min(tensor).item()
    assert found.mean == pytest.approx(torch.mean(tensor).item(), rel=0, abs=rel * tensor.abs().mean().item())
    assert found.norm == pytest.approx(torch.norm(tensor).item(), rel=rel)


def test_booleans_are_any_and_all():
    found = figures(torch.tensor([True, False, True]))
    assert (found.max, found.min, found.mean, found.norm, found.zero_count) == (True, False, None, None, 1)
    assert found.max is True


def test_complex_numbers_are_measured_by_size():
    found = figures(torch.tensor([3 + 4j, 0j, -1j]))
    assert (found.max, found.min, found.mean, found.zero_count) == (5.0, 0.0, 2.0, 1)
    assert found.norm == pytest.approx(math.sqrt(26))
    tensor = sample(torch.complex64, 30)
    assert figures(tensor.conj()) == figures(tensor.conj().resolve_conj())
    assert figures(tensor.conj().imag) == figures(
        tensor.imag.neg().clone()
    )  # a view with torch's negative bit


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from([*FLOATS, *INTEGERS, torch.bool, torch.complex64]),
    shape=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    steps=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_any_view_gives_what_its_copy_gives(dtype, shape, order, steps):
    axes = list(range(len(shape)))
    order.shuffle(axes)
    slices = tuple(slice(step - 1, None, step) for step in steps[: len(shape)])
    view = sample(dtype, *shape).permute(axes)[slices]
    assert figures(view) == figures(view.contiguous())


def test_an_expanded_tensor_is_measured_as_what_it_shows():
    tensor = torch.tensor([[1.0], [-3.0]]).expand(2, 3_000_000)
    found = figures(tensor, "statistics")
    assert (found.max, found.min, found.mean, found.zero_count) == (1.0, -3.0, -1.0, 0)
    assert found.norm == pytest.approx(math.sqrt(30_000_000), rel=1e-6)


def test_a_norm_of_float16_does_not_overflow():
    tensor = torch.full((1_000_000,), 60_000.0, dtype=torch.float16)
    assert figures(tensor).norm == pytest.approx(6e7, rel=1e-6)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_measured_as_float32(name):
    tensor = torch.tensor([1.0, -2.0, 0.0, 0.5]).to(getattr(torch, name))
    found = figures(tensor)
    assert (found.max, found.min, found.mean, found.zero_count) == (1.0, -2.0, -0.125, 1)
    assert found.crc == c_order_crc(tensor)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_of_a_type_that_torch_cannot_convert_only_the_bytes_are_known():
    tensor = torch.tensor([1, 2, 3], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert figures(tensor, "statistics") == NOTHING
    assert figures(tensor) == dataclasses.replace(NOTHING, crc=f"{zlib.crc32(bytes([1, 2, 3])):08x}")
    assert figures(tensor, "xor").crc == "0x0000000000030201"


def odd_tensors():
    yield "meta", torch.empty(3, device="meta")
    yield "sparse", torch.eye(3).to_sparse()
    yield "mkldnn", torch.eye(3).to_mkldnn()
    yield "jagged", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with torch._subclasses.FakeTensorMode():
        yield "fake", torch.empty(3)
    shrunk = torch.ones(100)
    shrunk.untyped_storage().resize_(0)
    yield "freed", shrunk
    cut = torch.ones(100)
    cut.untyped_storage().resize_(200)
    yield "cut", cut
    yield "wrapped", Wrapper(torch.ones(3))


class Wrapper(torch.Tensor):
    """A tensor that has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("the meter must not call operations")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
def test_odd_tensors_have_no_figures_and_raise_nothing(mode):
    for name, tensor in odd_tensors():
        assert (name, figures(tensor, mode)) == (name, NOTHING)


def test_an_empty_tensor_has_only_the_checksum_of_nothing():
    assert figures(torch.empty(0, 4), "statistics") == NOTHING
    assert figures(torch.empty(0, 4)) == dataclasses.replace(NOTHING, crc="00000000")


def test_tensors_inside_function_transforms():
    seen = []

    def look(x):
        seen.append(figures(x, "statistics"))
        return x.sum()

    torch.func.vmap(look)(torch.ones(3, 3))
    torch.func.grad(look)(torch.ones(4))
    assert seen[0].norm == 3.0  # of all samples
    assert seen[1].norm == 2.0


def test_subclasses_are_measured_without_being_asked():
    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(f"called {func}")

    tensor = torch.arange(4.0).as_subclass(Watched)
    for mode in ("statistics", "md5", "xor"):
        assert figures(tensor, mode) == figures(torch.arange(4.0), mode)


def test_parameters_buffers_and_results_of_autograd_are_measured():
    layer = torch.nn.Linear(3, 2)
    result = layer(torch.ones(1, 3))
    assert figures(layer.weight) == figures(layer.weight.detach().clone())
    assert figures(result) == figures(result.detach().clone())
    with torch.inference_mode():
        assert figures(torch.ones(3)).norm == pytest.approx(math.sqrt(3))


def test_modes_do_not_see_the_meter():
    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            raise AssertionError(f"called {func}")

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError(f"called {func}")

    tensors = [sample(dtype, 6, 5).t() for dtype in (*FLOATS, torch.complex64, torch.bool, torch.int32)]
    tensors += [torch.tensor([math.nan, 1.0]), torch.ones(3).to(torch.float8_e5m2)]
    expected = {mode: [figures(tensor, mode) for tensor in tensors] for mode in ("statistics", "md5", "xor")}
    with Functions(), Dispatches():
        found = {mode: [figures(tensor, mode) for tensor in tensors] for mode in ("statistics", "md5", "xor")}
    assert repr(found) == repr(expected)  # NaN is equal to itself only as text


def test_nothing_of_the_program_changes():
    tensor = torch.randn(50, 3, requires_grad=True) * 2
    random, version, node = torch.get_rng_state(), tensor._version, tensor.grad_fn
    before = tensor.detach().clone()
    for mode in ("statistics", "md5", "xor"):
        meter = TorchMeter(mode, "high")
        for view in (tensor, tensor.t(), tensor.detach(), tensor.bfloat16()):
            meter.measure(view)
        meter.settle()
    assert torch.equal(torch.get_rng_state(), random)
    assert (tensor._version, tensor.grad_fn) == (version, node)
    assert torch.equal(tensor.detach(), before)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("mode", ["statistics", "md5", "xor"])
def test_a_storage_can_be_resized_after_it_was_measured(mode):
    """Tensor.numpy() would forbid it."""
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.float8_e5m2):
        tensor = torch.ones(8).to(dtype)
        if dtype.is_floating_point:
            tensor[0] = math.inf  # which needs a second look
        figures(tensor, mode)
        assert tensor.untyped_storage().resizable()


def test_a_dtensor_is_its_local_shard(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        tensor = distribute_tensor(torch.arange(6.0), init_device_mesh("cpu", (1,)), [Replicate()])
        assert figures(tensor) == figures(torch.arange(6.0))
        assert figures(tensor, "xor") == figures(torch.arange(6.0), "xor")
    finally:
        dist.destroy_process_group()


def test_xor_is_of_the_bytes_alone():
    tensor = torch.tensor([1.5, -2.0, 3.25])
    raw = tensor.numpy().tobytes() + b"\0" * 4
    word = int.from_bytes(raw[:8], "little") ^ int.from_bytes(raw[8:], "little")
    assert figures(tensor, "xor") == dataclasses.replace(NOTHING, crc=f"0x{word:016x}")
    assert figures(torch.tensor(7), "xor").crc == "0x0000000000000007"
    wide = sample(torch.complex128, 3, 5).t()
    assert figures(wide, "xor") == figures(wide.contiguous(), "xor")


# ---- what is remembered -----------------------------------------------------------------------------------------


@pytest.fixture
def meter() -> TorchMeter:
    return TorchMeter("statistics", "high")


@needs_extension
@pytest.mark.parametrize("n", [3, 100_000])
def test_an_unchanged_tensor_is_measured_once(meter, n):
    tensor = torch.randn(n)
    first = meter.measure(tensor)
    assert meter.measure(tensor) is first
    assert meter.measure(tensor.detach()) is first
    assert meter.measure(tensor.view(n)) is first
    assert meter.measure(tensor[1:]) is not first
    assert meter.measure(tensor.view(torch.int32)) is not first
    meter.forget()
    again = meter.measure(tensor)
    assert again is not first
    assert again.key != first.key


def writers():
    """Ways to change a tensor, with and without its version counter."""
    yield "in place", lambda x: x.add_(1)
    yield "data", lambda x: x.data.add_(1)
    yield "out", lambda x: torch.add(torch.ones_like(x), 1, out=x)
    yield "numpy", lambda x: x.numpy().__iadd__(1)
    yield "view", lambda x: x.view(-1, 2)[0].mul_(3)
    yield "storage", lambda x: x.untyped_storage().copy_(torch.ones_like(x).untyped_storage())
    yield "set", lambda x: x.set_(torch.ones_like(x))
    yield "assigned", lambda x: setattr(x, "data", torch.ones_like(x))
    yield "preserved", _write_unversioned


def _write_unversioned(tensor: torch.Tensor) -> None:
    with torch.autograd._unsafe_preserve_version_counter(tensor):
        tensor.mul_(2)


@pytest.mark.parametrize("n", [2, 4, 256, 1_000, 200_000])
@pytest.mark.parametrize("name", [name for name, _ in writers()])
def test_a_changed_tensor_is_measured_again(meter, name, n):
    write = dict(writers())[name]
    tensor = torch.rand(n) + 2
    for _ in range(3):
        meter.measure(tensor)
        write(tensor)
        found = meter.measure(tensor).stats
        assert found.mean == pytest.approx(tensor.double().mean().item(), rel=1e-6)
        tensor.uniform_(2, 3)


@pytest.mark.parametrize("n", [2, 16, 256])
def test_in_a_small_tensor_no_write_of_any_kind_is_missed(meter, n):
    tensor = torch.rand(n)
    for place in range(n):
        meter.measure(tensor)
        tensor.data[place] = 9.0 + place
        assert meter.measure(tensor).stats.max == 9.0 + place


def test_memory_that_is_used_again_is_measured_again(meter):
    """torch gives freed memory to the next tensor of that size."""
    addresses = set()
    for i in range(20):
        tensor = torch.zeros(50_000)
        tensor[25_001] = i  # between the elements that are looked at
        addresses.add(tensor.data_ptr())
        assert meter.measure(tensor).stats.max == i
        del tensor
    assert len(addresses) < 20


def test_a_resized_tensor_is_measured_again(meter):
    tensor = torch.arange(10_000.0)
    assert meter.measure(tensor).stats.max == 9_999
    tensor.resize_(100)
    assert meter.measure(tensor).stats.max == 99
    tensor.resize_(20_000).fill_(5.0)
    assert meter.measure(tensor).stats.max == 5.0
    storage = tensor.untyped_storage()
    for value in (1.0, 2.0, 3.0):  # as FSDP does: freed, taken again, filled, all without a new version
        storage.resize_(0)
        assert meter.measure(tensor).stats == NOTHING
        storage.resize_(80_000)
        tensor.data.fill_(value)
        assert meter.measure(tensor).stats.max == value


def test_tensors_of_inference_mode_are_not_remembered(meter):
    with torch.inference_mode():
        tensor = torch.zeros(50_000)
        assert meter.measure(tensor).stats.max == 0
        tensor[25_001] = 1
        assert meter.measure(tensor).stats.max == 1


def test_the_memory_of_a_measured_tensor_is_not_kept(meter):
    from weakref import ref

    tensor = torch.rand(1000)
    alive = ref(tensor.untyped_storage())
    meter.measure(tensor)
    del tensor
    gc.collect()
    assert alive() is None


def test_no_more_than_so_many_are_remembered(meter, monkeypatch):
    monkeypatch.setattr(torch_memory_cache, "_MOST", 5)
    for i in range(30):
        assert meter.measure(torch.full((3,), float(i))).stats.max == i
    assert len(meter._cache._entries) <= 5


def test_threads_may_share_a_meter():
    meter, wrong = TorchMeter("md5", "high"), []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for i in range(60):
            tensor = torch.randn(1 + 997 * (i % 7), 5, generator=generator).t()
            if meter.measure(tensor).stats.crc != c_order_crc(tensor):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- devices: the same operations, run on the CPU -----------------------------------------------------------------


def queued(tensor: torch.Tensor, mode: str = "md5", precision: str = "high") -> Statistics:
    queue, owner = DeviceQueue(mode, precision), Measured(None, None)
    queue.add(tensor.detach(), owner)
    assert owner.stats is None
    queue.settle()
    return owner.stats


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_way_of_devices_rounds_to_the_own_type_too(dtype):
    tensor = sample(dtype, 70, 90)
    found, expected = queued(tensor, precision="low"), TorchMeter("md5", "low").measure(tensor).stats
    assert (found.mean, found.norm) == (expected.mean, expected.norm)
    assert found.norm == torch.tensor(found.norm, dtype=dtype).item() != figures(tensor).norm


@pytest.mark.parametrize("shape", [(), (3,), (70, 90), (5, 2048)])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128])
def test_the_way_of_devices_gives_the_same(dtype, shape):
    tensor = sample(dtype, *shape)
    for view in (tensor, tensor.t() if tensor.ndim == 2 else tensor):
        found, expected = queued(view), figures(view)
        assert (found.crc, found.zero_count) == (expected.crc, expected.zero_count)
        size = expected.norm if expected.norm is not None else math.sqrt(tensor.numel())
        assert np.allclose(found.sketch, expected.sketch, rtol=0, atol=2e-6 * size)
        scale = size / math.sqrt(tensor.numel())
        for name in ("max", "min", "mean", "norm"):
            one, other = getattr(found, name), getattr(expected, name)
            assert type(one) is type(other)
            if name in ("max", "min") and not dtype.is_complex:
                assert one == other
            elif other is not None:
                assert one == pytest.approx(other, rel=1e-6, abs=1e-6 * scale)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e-40])
def test_the_way_of_devices_survives_extreme_values(value):
    tensor = torch.ones(2000)
    tensor[7] = value
    found, expected = queued(tensor), figures(tensor)
    for name in ("max", "min", "mean", "norm", "nan_count", "inf_count", "zero_count"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-6, nan_ok=True)
    assert np.allclose(found.sketch, expected.sketch, rtol=1e-5, atol=1e-4)


def test_chunks_on_a_device_add_up(monkeypatch):
    monkeypatch.setattr("windtunnel.probe.pytorch.eager.device_statistics._CHUNK", 2048)
    for tensor in (torch.randn(9000), torch.arange(-10, 5000), sample(torch.complex64, 5000)):
        found, expected = queued(tensor), figures(tensor)
        assert np.allclose(found.sketch, expected.sketch, rtol=0, atol=1e-5 * expected.norm)
        assert found.norm == pytest.approx(expected.norm, rel=1e-6)
        assert found.max == pytest.approx(expected.max)
        assert found.crc == expected.crc


def test_values_are_taken_when_queued_and_all_settle_together():
    queue, owners = DeviceQueue("md5"), [Measured(None, None) for _ in range(3)]
    tensor = torch.zeros(10)
    expected = []
    for i, owner in enumerate(owners):
        tensor.fill_(i)
        queue.add(tensor, owner)
        expected.append((float(i), c_order_crc(tensor)))
    queue.settle()
    assert [(owner.stats.max, owner.stats.crc) for owner in owners] == expected


def test_copies_for_checksums_are_bounded():
    queue, owners = DeviceQueue("xor", most_bytes=1000), [Measured(None, None) for _ in range(5)]
    for owner in owners:
        queue.add(torch.ones(100), owner)
    assert [owner.stats is not None for owner in owners] == [True, True, True, False, False]


def test_tensors_elsewhere_than_in_host_memory_are_queued(monkeypatch):
    """There is no accelerator here, so the meter is told that this tensor is not in host memory."""

    class Elsewhere(torch.Tensor):
        is_cpu = False

    monkeypatch.setattr(torch_statistics, "plain_tensor", lambda tensor: tensor)
    meter = TorchMeter("md5", "high")
    measured = meter.measure(torch.arange(4.0).as_subclass(Elsewhere))
    assert measured.stats is None
    meter.settle()
    assert measured.stats.norm == pytest.approx(math.sqrt(14))
