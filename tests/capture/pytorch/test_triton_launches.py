"""Triton kernels launched on simulated tensors are recorded: grid, what they read and write, and nothing computed.

The imitation has the package's names and its order of calls; where Triton itself is installed, it takes part instead.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.pytorch.simulated import Simulated, simulate
from windtunnel.capture.pytorch.kernels.triton_pointers import POINTER, Accesses, Function, accesses_of
from windtunnel.devices import find_device
from windtunnel.events.model import Alloc, Op, Signature
from windtunnel.timing.operators.op_cost import Basis
from windtunnel.timing.roofline.model import roofline_of

IMITATION = Path(__file__).parent / "imitation"


@pytest.fixture
def triton(monkeypatch):
    """Triton can be imported: the installed package, or else its imitation."""
    if find_spec("triton") is None:
        monkeypatch.syspath_prepend(str(IMITATION))


def launches(result: Simulated) -> list[Signature]:
    ops = [e for e in result.events if isinstance(e, Op)]
    signatures = [result.recording.signatures[e.signature] for e in ops]
    return [each for each in signatures if each.name.startswith("triton.")]


def test_a_launch_is_one_row_with_its_grid_and_what_it_reads_and_writes(triton):
    def program():
        from tests.capture.pytorch import triton_kernels

        x = torch.zeros(3000, device="cuda")
        out = triton_kernels.add(x, torch.ones(3000, device="cuda"))
        return out.shape, str(out.device)

    result = simulate(program)
    assert result.answer == ((3000,), "cuda:0")
    (launch,) = launches(result)
    assert launch.name == "triton.add_kernel"
    assert launch.scalars.startswith("bytes=36000 grid=(3) BLOCK=1024")
    assert len(launch.inputs) == 2
    assert len(launch.outputs) == 1
    assert "Triton kernels were recorded with their grids and tensors, not compiled or run" in result.notices
    cost = roofline_of(find_device("a100-80gb")).cost(launch)
    assert (cost.n_bytes, cost.basis) == (36000, Basis.BYTES)


def test_what_a_kernel_writes_is_unknown_and_what_it_reads_stays_known(triton):
    def program():
        from tests.capture.pytorch import triton_kernels

        x, y = torch.full((8,), 3.0, device="cuda"), torch.full((8,), 4.0, device="cuda")
        before = x.tolist()
        out = triton_kernels.add(x, y)
        return before == x.tolist(), out[0].item()

    result = simulate(program)
    assert result.answer == (True, 1.0)
    assert [u["count"] for u in result.unknown_values] == [1]


def test_helper_functions_and_constant_branches_decide_what_is_written(triton):
    def program():
        from tests.capture.pytorch.triton_kernels import scale_kernel

        x, scale, bias = (
            torch.zeros(64, device="cuda"),
            torch.ones(1, device="cuda"),
            torch.ones(64, device="cuda"),
        )
        scale_kernel[(1,)](x, scale, None, 64, HAS_BIAS=False, BLOCK=64)
        scale_kernel[(1,)](x, scale, bias, 64, HAS_BIAS=True, BLOCK=64)

    plain, biased = launches(simulate(program))
    assert [len(plain.inputs), len(plain.outputs)] == [2, 1]
    assert [len(biased.inputs), len(biased.outputs)] == [3, 1]


def test_autotuning_takes_the_first_configuration_and_holds_its_buffer(triton):
    def program():
        from tests.capture.pytorch.triton_kernels import triton, tuned_kernel

        x, out = torch.zeros(1000, device="cuda"), torch.empty(1000, device="cuda")
        for _ in range(2):
            tuned_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
        return tuned_kernel.best_config.kwargs

    result = simulate(program)
    assert result.answer == {"BLOCK": 256}
    assert [each.scalars.split()[1] for each in launches(result)] == ["grid=(4)", "grid=(4)"]
    assert [e.n_bytes for e in result.events if isinstance(e, Alloc)].count(
        256 << 20
    ) == 2  # one a configuration
    assert any("the first was taken" in notice for notice in result.notices)


def test_the_driver_answers_for_the_simulated_device(triton):
    def program():
        import triton

        driver = triton.runtime.driver.active
        target, properties = driver.get_current_target(), driver.utils.get_device_properties(0)
        return target.arch, target.warp_size, properties["multiprocessor_count"], properties["max_shared_mem"]

    assert simulate(program, "h100-80gb").answer == (90, 32, 132, 227 << 10)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_a_tensor_of_the_host_is_refused_in_tritons_own_words(triton, place):
    def program():
        from tests.capture.pytorch.triton_kernels import add

        add(torch.arange(8, device=place), torch.arange(8))

    result = simulate(program, is_ok=False)
    assert "cannot be accessed from Triton (cpu tensor?)" in result.error


def test_a_grid_that_no_device_takes_is_refused(triton):
    def program():
        from tests.capture.pytorch.triton_kernels import scale_kernel

        x = torch.zeros(64, device="cuda")
        scale_kernel[(1, 70000)](x, x, None, 64, HAS_BIAS=False, BLOCK=64)

    assert "invalid argument" in simulate(program, is_ok=False).error


def test_on_the_cpu_a_launch_fails_as_it_does_for_real(triton):
    def program():
        from tests.capture.pytorch.triton_kernels import add

        add(torch.zeros(8), torch.zeros(8))

    assert "0 active drivers" in simulate(program, "cpu", is_ok=False).error


def test_a_launch_in_backward_belongs_to_the_module_and_changes_no_version(triton):
    def program():
        from tests.capture.pytorch import triton_kernels

        class Sum(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return triton_kernels.add(x, x)

            @staticmethod
            def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
                return triton_kernels.add(gradients[0], gradients[0])

        class Block(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(8, 8)

            def forward(self, x: torch.Tensor) -> Any:
                return Sum.apply(self.layer(x))

        model = Block().cuda()
        weight = model.layer.weight
        version = weight._version
        triton_kernels.scale_kernel[(1,)](weight, weight, None, 64, HAS_BIAS=False, BLOCK=64)
        model(torch.zeros(4, 8, device="cuda")).sum().backward()
        return weight._version == version

    result = simulate(program)
    assert result.answer is True
    assert result.modules_of("triton.add_kernel") == ["Block", "Block"]


# -- sources ------------------------------------------------------------------------------------------------------


def found_in(source: str, constants: dict[str, Any] | None = None, **scope: Any) -> Accesses:
    function = Function.parsed(source, scope.get)
    assert function is not None
    found = accesses_of(function, constants or {})
    return Accesses(
        found.reads - {"n"}, found.writes - {"n"}
    )  # a number that is added to pointers is no tensor


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def test_pointers_are_followed_through_arithmetic_loops_and_tuples():
    found = found_in("""
    def kernel(a, b, c, n):
        p, q = a + 4, b
        for i in range(n):
            p += i
            tl.atomic_add(q + tl.load(p), 1)
            q = q + n
        tl.store(c + tl.load(a).to(c.dtype.element_ty), 1)
    """)
    assert (found.reads, found.writes) == (names("a b"), names("b c"))


def test_descriptors_and_block_pointers_are_followed():
    found = found_in("""
    def kernel(a, b, c, n):
        d = tl.make_tensor_descriptor(a, [n], [1], [16])
        e = tl.make_block_ptr(base=b, shape=(n,), strides=(1,), offsets=(0,), block_shape=(16,), order=(0,))
        tl.store(tl.advance(e, (16,)), d.load([0]))
        tl.make_tensor_descriptor(c, [n], [1], [16]).store([0], 1)
    """)
    assert (found.reads, found.writes) == (names("a"), names("b c"))


def test_functions_of_the_kernels_own_are_entered_and_others_may_do_anything():
    helper = Function.parsed("def put(at, what):\n    tl.store(at, what)\n    return at", {}.get)
    found = found_in(
        """
    def kernel(a, b, c):
        put(what=tl.load(a), at=b)
        somebody_elses(c)
    """,
        put=helper,
    )
    assert (found.reads, found.writes) == (names("a c"), names("b c"))


@pytest.mark.parametrize(("mode", "writes"), [("sum", "out"), ("none", "out rows"), (None, "out rows")])
def test_branches_that_constants_decide_are_taken_as_they_decide(mode, writes):
    source = """
    def kernel(out, rows, bias, MODE):
        tl.store(out, 1)
        if MODE != "sum":
            tl.store(rows, 1)
        if bias is None:
            tl.store(bias, 1)
    """
    constants = {"bias": POINTER} | ({} if mode is None else {"MODE": mode})
    assert found_in(source, constants).writes == names(writes)
