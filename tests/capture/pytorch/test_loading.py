"""Data loaders and other processes: host data is real, and workers do not simulate."""

from __future__ import annotations

import multiprocessing
import os
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.capture.pytorch.simulated import needs_compiler, simulate


class Numbers(Dataset):
    """Item i is filled with i; large on request."""

    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.full((self.size,), float(i)), torch.tensor(i)


class Large(Dataset):
    """Makes large floating tensors inside the worker, with values that matter."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        x = torch.zeros(600_000)
        x[0] = i
        return x, int(x.sum().item()), x.data_ptr() < 1 << 60


class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        yield from (torch.tensor([i]) for i in range(start, 6, step))


@pytest.mark.parametrize("n_workers", [0, 2])
def test_batches_come_with_their_values(n_workers):
    def program():
        loader = DataLoader(
            Numbers(8, 10), batch_size=4, num_workers=n_workers, pin_memory=True, drop_last=True
        )
        seen = []
        for x, y in loader:
            on_device = x.cuda(non_blocking=True)
            seen.append(
                (x[:, 0].tolist(), y.tolist(), tuple(on_device.shape), str(on_device.device), x.is_pinned())
            )
        return seen

    run = simulate(program)
    assert run.answer == [
        ([0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3], (4, 10), "cuda:0", True),
        ([4.0, 5.0, 6.0, 7.0], [4, 5, 6, 7], (4, 10), "cuda:0", True),
    ]
    assert run.unknown_values == []
    assert run.alloc_sizes() == [160, 160]


def test_shuffling_is_torchs_own():
    def program():
        torch.manual_seed(3)
        return [
            x.tolist()
            for x, _ in DataLoader(
                TensorDataset(torch.arange(6), torch.arange(6)), batch_size=3, shuffle=True
            )
        ]

    from tests.capture.pytorch.simulated import run_plainly

    assert simulate(program).answer == run_plainly(program)


def test_large_tensors_made_in_workers_are_real():
    def program():
        return [
            (x.shape[1], x[0, 0].item(), total.tolist(), is_real.tolist())
            for x, total, is_real in DataLoader(Large(), num_workers=2)
        ]

    run = simulate(program)
    assert run.answer == [(600_000, float(i), [i], [True]) for i in range(3)]
    assert run.unknown_values == []


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_large_dataset_in_memory(n_workers):
    def program():
        data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
        model = nn.Linear(256, 10).cuda()
        shapes, n_correct = set(), 0
        for x, y in DataLoader(data, batch_size=1024, shuffle=True, num_workers=n_workers):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            shapes.add((tuple(x.shape), tuple(y.shape), str(x.dtype)))
            n_correct += int((y < 10).sum())
        return shapes, n_correct

    run = simulate(program)
    assert run.answer == ({((1024, 256), (1024,), "torch.float32")}, 4096)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_iterable_datasets(n_workers):
    def program():
        return sorted(
            int(x) for batch in DataLoader(Stream(), batch_size=2, num_workers=n_workers) for x in batch
        )

    assert simulate(program).answer == [0, 1, 2, 3, 4, 5]


def test_workers_started_by_spawn():
    def program():
        loader = DataLoader(Numbers(4, 5), batch_size=2, num_workers=1, multiprocessing_context="spawn")
        return [y.tolist() for _, y in loader]

    assert simulate(program).answer == [[0, 1], [2, 3]]


def test_persistent_workers_and_collate():
    def program():
        loader = DataLoader(
            Numbers(4, 3),
            batch_size=2,
            num_workers=1,
            persistent_workers=True,
            prefetch_factor=2,
            collate_fn=lambda items: {"x": torch.stack([x for x, _ in items]), "n": len(items)},
        )
        return [[(b["x"][:, 0].tolist(), b["n"]) for b in loader] for _ in range(2)]

    assert simulate(program).answer == [[([0.0, 1.0], 2), ([2.0, 3.0], 2)]] * 2


def test_a_forked_child_writes_nothing_to_the_recording():
    def program():
        keep = torch.zeros(10, device="cuda")
        child = os.fork()
        if child == 0:
            for _ in range(5):
                torch.zeros(1000, device="cuda")
            os._exit(0)
        os.waitpid(child, 0)
        return keep.tolist() == [0.0] * 10

    run = simulate(program)
    assert run.answer is True
    assert run.lives() == ["+40", "-40"]


def _square(n):
    return int(torch.arange(n).pow(2).sum())


def test_process_pools_work():
    def program():
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.map(_square, [2, 3])

    assert simulate(program).answer == [1, 5]


def test_threads_make_tensors():
    def program():
        from concurrent.futures import ThreadPoolExecutor

        def work(i):
            x = torch.ones(i + 1, device="cuda", requires_grad=True)
            (x * 2).sum().backward()
            return str(x.grad.device), x.grad.tolist()

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(work, range(4)))

    assert simulate(program).answer == [("cuda:0", [2.0] * (i + 1)) for i in range(4)]


def test_threads_run_their_first_backward_together_in_a_process_that_trained_before():
    torch.ones(1, requires_grad=True).sum().backward()  # the engine has counted no simulated device

    def program():
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier

        barrier = Barrier(4)

        def work(i):
            x = torch.ones(i + 1, device="cuda", requires_grad=True)
            y = (x * 2).sum()
            barrier.wait()
            y.backward()
            return x.grad.tolist()

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(work, range(4)))

    for _ in range(3):  # it is a race: it may be won
        assert simulate(program).answer == [[2.0] * (i + 1) for i in range(4)]


@needs_compiler
def test_a_compiled_model_has_its_names_and_says_what_was_not_simulated():
    def program():
        model = nn.Linear(4, 4).cuda()
        compiled = torch.compile(model, mode="max-autotune")
        out = compiled(torch.ones(2, 4, device="cuda"))
        return tuple(out.shape), hasattr(compiled, "_orig_mod"), list(compiled.state_dict())

    run = simulate(program)
    assert run.answer == ((2, 4), True, ["_orig_mod.weight", "_orig_mod.bias"])
    (tuning,) = run.notices  # CUDA graphs are simulated
    assert "was not autotuned" in tuning


def test_a_pickled_description_is_no_checkpoint_for_a_real_program():
    def program():
        return pickle.dumps(torch.zeros(1 << 20, device="cuda"))

    text = simulate(program).answer
    from tests.capture.pytorch.simulated import run_plainly

    def load():
        try:
            pickle.loads(text)
        except RuntimeError as error:
            return str(error)

    assert run_plainly(load) == "this tensor was written by a dry run: it has a shape but no values"
