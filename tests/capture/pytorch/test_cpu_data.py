"""Real host tensors in a program whose device is the CPU: what it computes from them is recorded."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.capture.pytorch.simulated import run_plainly, simulate

_MIB = 1 << 20


def test_operators_on_tensors_of_a_real_file_are_recorded(tmp_path):
    file = tmp_path / "data.pt"
    features = torch.zeros(256, 1024)
    torch.save({"x": features, "row": features[3], "ids": torch.arange(8)}, file)

    def program(mmap=False):
        data = torch.load(file, mmap=mmap)
        nn.functional.dropout(data["x"])
        return data["ids"].tolist(), data["row"].shape, data["x"].sum().item()

    assert simulate(program, "cpu").answer == (list(range(8)), (1024,), 0.0)
    ran = simulate(program, "cpu")
    assert ran.alloc_sizes().count(_MIB) == 3  # the file's storage, once; dropout's noise and product
    mapped = simulate(lambda: program(mmap=True), "cpu")
    assert mapped.alloc_sizes().count(_MIB) == 2  # the bytes stay in the file


def test_buffers_and_arrays_are_adopted_without_being_counted():
    def program():
        array = np.ones((256, 1024), np.float32)
        doubled = torch.as_tensor(array) * 2
        again = torch.frombuffer(array.tobytes(), dtype=torch.float32) * 2
        return doubled.shape, again.shape

    assert simulate(program, "cpu").alloc_sizes().count(_MIB) == 2


def test_host_tensors_are_of_their_legacy_types():
    def program():
        image = torch.from_numpy(np.zeros((4, 4, 3), np.uint8)).permute(2, 0, 1).contiguous()
        made = torch.LongTensor([[1, 2], [3, 4]]), torch.FloatTensor(2, 3), torch.BoolTensor()
        return (
            isinstance(image, torch.ByteTensor),
            isinstance(image, torch.FloatTensor),
            [(tuple(t.shape), str(t.dtype), t.device.type) for t in made],
            isinstance(made[0].type(torch.FloatTensor), torch.FloatTensor),
            str(image.float().type("torch.ByteTensor").dtype),
            made[0].tolist(),
        )

    expected = run_plainly(program)
    assert simulate(program, "cpu").answer == expected
    assert simulate(program, "a100-80gb").answer == expected


def test_legacy_types_of_the_device():
    def program():
        x = torch.ones(2, device="cuda")
        kinds = isinstance(x, torch.cuda.FloatTensor), isinstance(x, torch.FloatTensor)
        moved = x.type(torch.FloatTensor), x.cpu().type(torch.cuda.HalfTensor)
        torch.set_default_tensor_type("torch.cuda.HalfTensor")
        made = torch.zeros(3)
        torch.set_default_tensor_type(torch.FloatTensor)
        return kinds, [(str(t.device), str(t.dtype)) for t in (*moved, made, torch.zeros(3))]

    assert simulate(program).answer == (
        (True, False),
        [
            ("cpu", "torch.float32"),
            ("cuda:0", "torch.float16"),
            ("cuda:0", "torch.float16"),
            ("cpu", "torch.float32"),
        ],
    )


def test_an_index_tensor_that_is_filled_part_by_part_is_known():
    def program():
        sizes = torch.tensor([3, 5, 2])
        starts = sizes.new_empty(4)
        starts.narrow(0, 0, 1).zero_()
        torch.cumsum(sizes, 0, out=starts.narrow(0, 1, 3))
        return starts.tolist()

    assert simulate(program, "cpu").answer == [0, 3, 8, 10]


def test_lbfgs_runs_all_its_iterations_where_values_are_unknown():
    def program():
        model = nn.Linear(600, 300, device="cuda")
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5, history_size=3)
        n_calls = []

        def closure():
            optimizer.zero_grad()
            n_calls.append(1)
            loss = model(torch.ones(4, 600, device="cuda")).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        state = optimizer.state[model.weight]
        return len(n_calls), len(state["old_dirs"]), optimizer.param_groups[0]["tolerance_grad"]

    ran = simulate(program)
    assert ran.answer == (5, 3, 1e-7)
    assert any("ran all 5 iterations" in notice for notice in ran.notices)


def test_lbfgs_converges_where_values_are_known():
    def program():
        x = torch.tensor([3.0], requires_grad=True)
        optimizer = torch.optim.LBFGS([x], max_iter=50)

        def closure():
            optimizer.zero_grad()
            loss = (x * x).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return optimizer.state[x]["n_iter"]

    assert simulate(program, "cpu").answer == run_plainly(program)
