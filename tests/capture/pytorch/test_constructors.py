"""Every way to make a tensor, on every spelling of the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.capture.pytorch.simulated import run_plainly, simulate

WORDS = [("a100-80gb", "cuda"), ("ascend-910b", "npu")]


@pytest.mark.parametrize(("profile", "word"), WORDS)
def test_factories_make_tensors_on_the_named_device(profile, word):
    def program():
        made = [
            torch.empty(2, 3, device=word),
            torch.zeros((2, 3), device=f"{word}:0"),
            torch.ones(2, 3, device=0),
            torch.rand(2, 3, device=torch.device(word)),
            torch.randn(2, 3, device=torch.device(word, 0)),
            torch.full((2, 3), 7.0, device=word),
            torch.arange(6, device=word),
            torch.linspace(0, 1, 6, device=word),
            torch.logspace(0, 1, 6, device=word),
            torch.eye(3, device=word),
            torch.randint(0, 9, (2, 3), device=word),
            torch.randperm(6, device=word),
            torch.tril_indices(3, 3, device=word),
            torch.empty_strided((2, 3), (1, 2), device=word),
            torch.scalar_tensor(2.0, device=word),
            torch.hann_window(8, device=word),
            torch.normal(0.0, 1.0, (2, 3), device=word),
            torch.tensor([1.0, 2.0], device=word),
            torch.as_tensor([1, 2], device=word),
            torch.asarray([1, 2], device=word),
            torch.as_tensor(np.ones(3), device=word),
            torch.complex(torch.ones(2, device=word), torch.ones(2, device=word)),
            torch.zeros(2, 3, device=word, dtype=torch.bfloat16),
            torch.full((2,), True, device=word),
            torch.full((2,), 1, device=word),
        ]
        return [(str(t.device), tuple(t.shape), tuple(t.stride()), str(t.dtype)) for t in made]

    expected = [
        ((2, 3), (3, 1), "float32"),
        ((2, 3), (3, 1), "float32"),
        ((2, 3), (3, 1), "float32"),
        ((2, 3), (3, 1), "float32"),
        ((2, 3), (3, 1), "float32"),
        ((2, 3), (3, 1), "float32"),
        ((6,), (1,), "int64"),
        ((6,), (1,), "float32"),
        ((6,), (1,), "float32"),
        ((3, 3), (3, 1), "float32"),
        ((2, 3), (3, 1), "int64"),
        ((6,), (1,), "int64"),
        ((2, 6), (6, 1), "int64"),
        ((2, 3), (1, 2), "float32"),
        ((), (), "float32"),
        ((8,), (1,), "float32"),
        ((2, 3), (3, 1), "float32"),
        ((2,), (1,), "float32"),
        ((2,), (1,), "int64"),
        ((2,), (1,), "int64"),
        ((3,), (1,), "float64"),
        ((2,), (1,), "complex64"),
        ((2, 3), (3, 1), "bfloat16"),
        ((2,), (1,), "bool"),
        ((2,), (1,), "int64"),
    ]
    assert simulate(program, profile).answer == [(f"{word}:0", a, b, f"torch.{c}") for a, b, c in expected]


@pytest.mark.parametrize(("profile", "word"), WORDS)
def test_likes_and_news_follow_their_source_or_the_named_device(profile, word):
    def program():
        x, host = torch.zeros(4, 2, device=word).t(), torch.zeros(2, 4, dtype=torch.float64)
        made = {
            "zeros_like": torch.zeros_like(x),
            "empty_like dtype": torch.empty_like(x, dtype=torch.int32),
            "ones_like host": torch.ones_like(x, device="cpu"),
            "rand_like of host": torch.rand_like(host, device=word),
            "full_like": torch.full_like(x, 3),
            "randn_like": torch.randn_like(x, memory_format=torch.contiguous_format),
            "randint_like": torch.randint_like(x, 9),
            "new_zeros": x.new_zeros(3),
            "new_empty": x.new_empty((3, 2), dtype=torch.float16),
            "new_full": x.new_full((3,), 1.0),
            "new_ones host": x.new_ones(3, device="cpu"),
            "new_tensor": x.new_tensor([1.0, 2.0]),
            "new_zeros of host": host.new_zeros(3, device=word),
            "new_empty_strided": x.new_empty_strided((2, 2), (1, 2)),
        }
        return {
            k: (str(t.device), tuple(t.shape), tuple(t.stride()), str(t.dtype)[6:]) for k, t in made.items()
        }

    here = f"{word}:0"
    assert simulate(program, profile).answer == {
        "zeros_like": (here, (2, 4), (1, 2), "float32"),
        "empty_like dtype": (here, (2, 4), (1, 2), "int32"),
        "ones_like host": ("cpu", (2, 4), (1, 2), "float32"),
        "rand_like of host": (here, (2, 4), (4, 1), "float64"),
        "full_like": (here, (2, 4), (1, 2), "float32"),
        "randn_like": (here, (2, 4), (4, 1), "float32"),
        "randint_like": (here, (2, 4), (1, 2), "float32"),
        "new_zeros": (here, (3,), (1,), "float32"),
        "new_empty": (here, (3, 2), (2, 1), "float16"),
        "new_full": (here, (3,), (1,), "float32"),
        "new_ones host": ("cpu", (3,), (1,), "float32"),
        "new_tensor": (here, (2,), (1,), "float32"),
        "new_zeros of host": (here, (3,), (1,), "float64"),
        "new_empty_strided": (here, (2, 2), (1, 2), "float32"),
    }


@pytest.mark.parametrize(("profile", "word"), WORDS)
def test_the_default_device_is_where_everything_is_made(profile, word):
    def program():
        found = []
        with torch.device(word):
            layer = torch.nn.Linear(3, 3)
            found += [
                torch.zeros(2),
                torch.tensor([1.0]),
                torch.arange(3),
                layer.weight,
                torch.as_tensor([1]),
                torch.empty_like(layer.weight),
            ]
            with torch.device("cpu"):
                found.append(torch.zeros(2))
        found.append(torch.zeros(2))
        torch.set_default_device(word)
        found += [torch.ones(2), torch.randn(3), torch.nn.Linear(2, 2).bias]
        default = str(torch.get_default_device())
        torch.set_default_device("cpu")
        found.append(torch.ones(2))
        torch.set_default_device(None)
        found.append(torch.ones(2))
        return [str(t.device) for t in found], default

    here = f"{word}:0"
    where, default = simulate(program, profile).answer
    assert where == [here] * 6 + ["cpu", "cpu"] + [here] * 3 + ["cpu", "cpu"]
    assert default == here


def test_default_dtype_and_requires_grad_are_kept():
    def program():
        torch.set_default_dtype(torch.bfloat16)
        made = [
            torch.zeros(2, device="cuda"),
            torch.tensor([1.0], device="cuda"),
            torch.rand(2, device="cuda", requires_grad=True),
        ]
        return [(str(t.dtype), t.requires_grad, t.is_leaf) for t in made]

    assert simulate(program).answer == [("torch.bfloat16", False, True)] * 2 + [
        ("torch.bfloat16", True, True)
    ]


def test_legacy_constructors_make_tensors_of_the_device():
    def program():
        made = [torch.cuda.FloatTensor(2, 3), torch.cuda.LongTensor([1, 2]), torch.cuda.HalfTensor(4)]
        kinds = [isinstance(made[0], torch.cuda.FloatTensor), isinstance(made[1], torch.cuda.FloatTensor)]
        return (
            [(tuple(t.shape), str(t.dtype), t.is_cuda) for t in made],
            kinds,
            made[1].tolist(),
            made[0].type(),
        )

    made, kinds, values, name = simulate(program).answer
    assert made == [
        ((2, 3), "torch.float32", True),
        ((2,), "torch.int64", True),
        ((4,), "torch.float16", True),
    ]
    assert kinds == [True, False]
    assert values == [1, 2]
    assert name == "torch.cuda.FloatTensor"


def test_host_tensors_stay_real_unless_large_and_floating():
    def program():
        small, indices, large = torch.rand(100), torch.randint(0, 50, (1 << 20,)), torch.randn(1 << 20)
        same_seed = torch.manual_seed(0) and torch.rand(3).tolist()
        return (
            small.data_ptr() < 1 << 60,
            indices.max().item() < 50,
            large.data_ptr() < 1 << 60,
            str(large.device),
            same_seed,
        )

    small_is_real, index_is_real, large_is_real, device, drawn = simulate(program).answer
    assert (small_is_real, index_is_real, large_is_real, device) == (True, True, False, "cpu")
    assert drawn == run_plainly(lambda: torch.manual_seed(0) and torch.rand(3).tolist())


def test_a_model_larger_than_the_host_is_built_on_the_host_and_moved():
    def program():
        layers = torch.nn.ModuleList(torch.nn.Linear(1 << 16, 1 << 16, bias=False) for _ in range(8)).cuda()
        return sum(p.numel() for p in layers.parameters())

    run = simulate(program)
    assert run.answer == 8 << 32
    assert run.alloc_sizes() == [16 << 30] * 8


def test_numpy_arrays_move_to_the_device_with_their_values():
    def program():
        array = np.arange(6, dtype=np.int32).reshape(2, 3)
        moved = torch.from_numpy(array).cuda()
        return str(moved.device), moved.tolist(), str(moved.dtype), moved.cpu().numpy().tolist()

    assert simulate(program).answer == (
        "cuda:0",
        [[0, 1, 2], [3, 4, 5]],
        "torch.int32",
        [[0, 1, 2], [3, 4, 5]],
    )


def test_sizes_of_allocations_are_what_was_asked_for():
    def program():
        keep = [
            torch.empty(3, 5, device="cuda", dtype=torch.bool),
            torch.zeros((), device="cuda", dtype=torch.complex128),
            torch.empty(0, 7, device="cuda"),
            torch.empty_strided((2, 3), (10, 1), device="cuda"),
            torch.empty(9, device="cuda", dtype=torch.float8_e4m3fn),
        ]
        return len(keep)

    assert simulate(program).alloc_sizes() == [15, 16, 13 * 4, 9]


def test_generators_of_the_device_hold_a_seed():
    def program():
        g = torch.Generator(device="cuda").manual_seed(7)
        torch.rand(3, device="cuda", generator=g)
        torch.randperm(3, device="cuda", generator=g)
        torch.empty(3, device="cuda").normal_(generator=g)
        host = torch.Generator().manual_seed(7)
        return (
            str(g.device),
            g.initial_seed(),
            torch.randperm(5, generator=host).tolist(),
            isinstance(host, torch.Generator),
        )

    device, seed, order, is_generator = simulate(program).answer
    assert (device, seed, is_generator) == ("cuda:0", 7, True)
    assert order == run_plainly(
        lambda: torch.randperm(5, generator=torch.Generator().manual_seed(7)).tolist()
    )


def test_a_device_that_is_not_simulated_is_refused_in_one_sentence():
    run = simulate(lambda: torch.zeros(2).to("npu").shape, is_ok=False)
    assert (
        run.error
        == "the script asked for the device npu, but another one is simulated: choose it with --device"
    )
    for program in (lambda: torch.zeros(2, device="xpu").shape, lambda: torch.zeros(2).to("xpu").shape):
        run = simulate(program, is_ok=False)
        assert run.status == "failed"
        assert "xpu, but the simulated device is cuda:0 (choose a xpu device with --device)" in run.error


def test_a_card_that_is_not_there_is_refused_as_torch_does():
    for program in (
        lambda: torch.zeros(2, device="cuda:1").shape,
        lambda: torch.zeros(2).to("cuda:3").shape,
        lambda: torch.cuda.set_device(2),
        lambda: torch.zeros(2).cuda(1).shape,
    ):
        run = simulate(program, is_ok=False)
        assert run.status == "failed"
        assert "invalid device ordinal" in run.output
        assert "a device this machine does not have" in run.error
