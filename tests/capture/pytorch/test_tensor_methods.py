"""Moving, casting, viewing and copying tensors: what a program sees, and what memory it costs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from tests.capture.pytorch.simulated import run_plainly, simulate


def test_every_form_of_to_moves_or_stays():
    def program():
        host = torch.arange(4.0)
        x = host.to("cuda")
        other = torch.zeros(1, device="cuda", dtype=torch.float16)
        moved = {
            "str": host.to("cuda"),
            "device": host.to(torch.device("cuda", 0)),
            "int": host.to(0),
            "keyword": host.to(device="cuda"),
            "device, dtype": host.to("cuda", torch.bfloat16),
            "keywords": host.to(device="cuda", dtype=torch.int64),
            "dtype": x.to(torch.float64),
            "dtype keyword": x.to(dtype=torch.float64),
            "other": host.to(other),
            "non_blocking": host.to("cuda", non_blocking=True),
            "device, dtype, non_blocking": host.to("cuda", torch.float16, True),
            "device, non_blocking": host.to("cuda", True),
            "device, None": host.to("cuda", None),
            "copy": x.to("cuda", copy=True),
            "dtype copy": x.to(torch.float32, copy=True),
            "cuda()": host.cuda(),
            "cuda(0)": host.cuda(0),
            "cuda(device)": host.cuda(device="cuda:0", non_blocking=True),
            "cpu()": x.cpu(),
            "half": x.half(),
            "bfloat16": x.bfloat16(),
            "type": x.type(torch.int32),
            "type str": host.type("torch.cuda.HalfTensor"),
            "type_as": host.type_as(other),
            "long": x.long(),
        }
        stays = [
            x.to("cuda") is x,
            x.cuda() is x,
            x.to(torch.float32) is x,
            host.cpu() is host,
            host.to("cpu") is host,
            x.to(x) is x,
            x.to("cuda", copy=True) is x,
            x.float() is x,
        ]
        described = {k: (str(t.device), str(t.dtype)[6:]) for k, t in moved.items()}
        return described, stays, {k: t.tolist() for k, t in moved.items()}

    described, stays, values = simulate(program).answer
    assert described == {
        "str": ("cuda:0", "float32"),
        "device": ("cuda:0", "float32"),
        "int": ("cuda:0", "float32"),
        "keyword": ("cuda:0", "float32"),
        "device, dtype": ("cuda:0", "bfloat16"),
        "keywords": ("cuda:0", "int64"),
        "dtype": ("cuda:0", "float64"),
        "dtype keyword": ("cuda:0", "float64"),
        "other": ("cuda:0", "float16"),
        "non_blocking": ("cuda:0", "float32"),
        "device, dtype, non_blocking": ("cuda:0", "float16"),
        "device, non_blocking": ("cuda:0", "float32"),
        "device, None": ("cuda:0", "float32"),
        "copy": ("cuda:0", "float32"),
        "dtype copy": ("cuda:0", "float32"),
        "cuda()": ("cuda:0", "float32"),
        "cuda(0)": ("cuda:0", "float32"),
        "cuda(device)": ("cuda:0", "float32"),
        "cpu()": ("cpu", "float32"),
        "half": ("cuda:0", "float16"),
        "bfloat16": ("cuda:0", "bfloat16"),
        "type": ("cuda:0", "int32"),
        "type str": ("cuda:0", "float16"),
        "type_as": ("cuda:0", "float16"),
        "long": ("cuda:0", "int64"),
    }
    assert stays == [True, True, True, True, True, True, False, True]
    assert all(v == [0, 1, 2, 3] for v in values.values())


def test_copy_with_a_positional_dtype_really_copies():
    def program():
        x = torch.zeros(1000, device="cuda")
        y = x.to(torch.float32, False, True)
        z = x.to("cuda", torch.float32, False, True)
        return y is x, z is x, y.data_ptr() != x.data_ptr()

    run = simulate(program)
    assert run.answer == (False, False, True)
    assert run.alloc_sizes() == [4000] * 3


@pytest.mark.parametrize(("profile", "word"), [("a100-80gb", "cuda"), ("ascend-910b", "npu")])
def test_what_a_tensor_says_about_its_device(profile, word):
    def program():
        x, host, big = torch.zeros(2, device=word), torch.zeros(2), torch.randn(1 << 20)
        said = [
            (str(t.device), t.is_cuda, t.is_cpu, t.get_device(), t.type(), t.is_meta) for t in (x, host, big)
        ]
        return (
            said,
            x.device == torch.device(word, 0),
            x.device.type,
            x.device.index,
            x.is_pinned(),
            str(x.storage().device),
            str(x.untyped_storage().device),
        )

    said, is_equal, kind, index, is_pinned, storage, untyped = simulate(program, profile).answer
    assert said == [
        (f"{word}:0", word == "cuda", False, 0, f"torch.{word}.FloatTensor", False),
        ("cpu", False, True, -1, "torch.FloatTensor", False),
        ("cpu", False, True, -1, "torch.FloatTensor", False),
    ]
    assert (is_equal, kind, index, is_pinned) == (True, word, 0, False)
    assert storage == untyped == f"{word}:0"


def test_tensors_of_two_devices_do_not_mix():
    def program():
        said = []
        x, w = torch.zeros(2, 2, device="cuda"), torch.zeros(2, 2)
        for call in (
            lambda: x + w,
            lambda: w + x,
            lambda: x @ w,
            lambda: nn.Linear(2, 2)(x),
            lambda: torch.cat([x, w]),
            lambda: nn.functional.embedding(torch.tensor([0]), x),
            lambda: x.addmm_(w, w),
        ):
            try:
                call()
                said.append("ran")
            except RuntimeError as error:
                said.append(str(error).split(",")[0])
        x + torch.tensor(1.0)  # a number of the host may meet any device
        torch.tensor(1.0) * x
        x[torch.tensor([0])]  # so may indices
        return said

    assert simulate(program).answer == ["Expected all tensors to be on the same device"] * 7


def test_the_report_names_both_devices_and_the_remedy():
    run = simulate(lambda: nn.Linear(4, 4).cuda()(torch.zeros(1, 4)), is_ok=False)
    assert run.error.startswith("one operator was given tensors on two devices, cuda:0 and cpu: move")
    assert (
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        in run.output
    )


def test_views_share_the_storage_and_cost_nothing():
    def program():
        x = torch.zeros(8, 8, device="cuda")
        views = [
            x.t(),
            x[0],
            x[:, 1],
            x[2:4],
            x.view(64),
            x.reshape(4, 16),
            x.transpose(0, 1),
            x.permute(1, 0),
            x.unsqueeze(0),
            x.squeeze(),
            x.expand(3, 8, 8),
            x.narrow(0, 1, 2),
            x.select(1, 2),
            x.diagonal(),
            x.unfold(0, 2, 1),
            x.as_strided((2, 2), (1, 1)),
            x.view(torch.int32),
            x.detach(),
            x.flatten(),
            *x.chunk(2),
            *x.split(3),
            *x.unbind(0),
            x.movedim(0, 1),
            x.view_as(x),
            x.contiguous(),
            x.real,
            torch.atleast_3d(x),
            x.swapaxes(0, 1),
            x.unflatten(0, (2, 4)),
            x.ravel(),
            x.mT,
            x.tensor_split(2)[0],
            torch.broadcast_to(x, (2, 8, 8)),
        ]
        same = [v.untyped_storage()._cdata == x.untyped_storage()._cdata for v in views]
        return same, len(views)

    run = simulate(program)
    same, n = run.answer
    assert same == [True] * n
    assert run.alloc_sizes() == [256]


def test_a_view_keeps_its_base_alive():
    def program():
        x = torch.zeros(100, device="cuda")
        row = x[3:5]
        del x
        torch.zeros(7, device="cuda")
        del row

    assert simulate(program).lives() == ["+400", "+28", "-28", "-400"]


def test_in_place_and_out_allocate_nothing():
    def program():
        x, y = torch.ones(10, device="cuda"), torch.zeros(10, device="cuda")
        x.add_(1).mul_(y).relu_().zero_().fill_(3).clamp_(0, 1).copy_(y)
        x += y
        x[2:4] = 5
        torch.add(x, y, out=y)
        torch.nn.init.normal_(x)
        version = x._version
        return x.tolist() == [1] * 10, version > 5

    run = simulate(program)
    assert run.alloc_sizes() == [40, 40]


def test_out_is_resized_as_torch_does():
    def program():
        out = torch.empty(0, device="cuda")
        torch.add(torch.ones(4, device="cuda"), 1, out=out)
        return tuple(out.shape), tuple(out.stride())

    run = simulate(program)
    assert run.answer == ((4,), (1,))
    assert run.alloc_sizes() == [16, 16]


def test_resize_set_and_storage_resize():
    def program():
        x = torch.zeros(10, device="cuda")
        x.resize_(5)  # smaller: same storage
        x.resize_(1000)  # larger: a new one
        y = torch.empty(0, device="cuda")
        y.set_(x)
        shares = y.data_ptr() == x.data_ptr()
        storage = x.untyped_storage()
        storage.resize_(0)
        empty = storage.size()
        storage.resize_(4000)
        x.fill_(1)
        z = torch.empty(0, device="cuda")
        z.set_(x.untyped_storage(), 4, (10,), (1,))
        return shares, empty, storage.size(), tuple(z.shape), z.storage_offset()

    run = simulate(program)
    assert run.answer == (True, 0, 4000, (10,), 4)
    assert run.lives() == ["+40", "+4000", "-40", "-4000", "+4000", "-4000"]


def test_deepcopy_of_modules_and_tensors():
    def program():
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
        model[1].weight = nn.Parameter(model[1].weight.detach())
        twin = copy.deepcopy(model)
        names = [n for n, _ in twin.named_parameters()] == [n for n, _ in model.named_parameters()]
        kinds = [type(p).__name__ for p in twin.parameters()]
        apart = all(
            a.data_ptr() != b.data_ptr() for a, b in zip(twin.parameters(), model.parameters(), strict=True)
        )
        devices = {str(t.device) for t in (*twin.parameters(), *twin.buffers())}
        x = torch.arange(3, device="cuda")
        return (
            names,
            kinds,
            apart,
            devices,
            copy.deepcopy(x).tolist(),
            copy.copy(x).tolist(),
            [p.requires_grad for p in twin.parameters()],
        )

    names, kinds, apart, devices, deep, shallow, grads = simulate(program).answer
    assert names
    assert kinds == ["Parameter"] * 4
    assert apart
    assert devices == {"cuda:0"}
    assert deep == shallow == [0, 1, 2]
    assert grads == [True] * 4


def test_deepcopy_keeps_shared_storages_shared():
    def program():
        base = torch.zeros(10, device="cuda")
        pair = copy.deepcopy({"all": base, "part": base[2:4]})
        return pair["all"].data_ptr() + 8 == pair["part"].data_ptr()

    run = simulate(program)
    assert run.answer is True
    assert run.alloc_sizes() == [40, 40]


def test_pickling_keeps_shapes_devices_and_small_values():
    def program():
        x, big = torch.arange(3, device="cuda"), torch.zeros(1 << 20, device="cuda")
        layer = nn.Linear(3, 3).cuda()
        x2, big2, layer2 = pickle.loads(pickle.dumps((x, big, layer)))
        return (
            x2.tolist(),
            str(big2.device),
            tuple(big2.shape),
            type(layer2.weight).__name__,
            layer2.weight.requires_grad,
        )

    assert simulate(program).answer == ([0, 1, 2], "cuda:0", (1 << 20,), "Parameter", True)


@pytest.mark.parametrize("move", ["cuda", "to", "half", "bfloat16", "double", "to_empty", "to dtype"])
def test_moving_a_module_keeps_its_parameters(move):
    def program():
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
        model[2].weight = nn.Parameter(torch.zeros(4, 8))
        before = [id(p) for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.cuda()
        if move == "to_empty":
            model.to_empty(device="cuda")
        elif move == "to":
            model.to("cuda", torch.float16, non_blocking=True)
        elif move == "to dtype":
            model.to(torch.bfloat16)
        else:
            getattr(model, move)()
        same = [id(p) for p in model.parameters()] == before
        x = torch.randn(3, 4, device="cuda", dtype=model[0].weight.dtype)
        model(x).sum().backward()
        optimizer.step()
        kinds = {
            str(t.dtype)[6:]
            for t in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point()))
        }
        return (
            same,
            {str(t.device) for t in (*model.parameters(), *model.buffers())},
            kinds,
            all(p.grad is not None for p in optimizer.param_groups[0]["params"]),
        )

    same, devices, kinds, has_grads = simulate(program).answer
    dtype = {
        "to": "float16",
        "half": "float16",
        "bfloat16": "bfloat16",
        "to dtype": "bfloat16",
        "double": "float64",
    }.get(move, "float32")
    assert (same, devices, kinds, has_grads) == (True, {"cuda:0"}, {dtype}, True)


def test_moving_a_module_frees_the_old_copy_of_each_weight():
    def program():
        model = nn.Linear(100, 100, bias=False).cuda()
        model.half()
        model.float()

    assert simulate(program).lives() == ["+40000", "+20000", "-40000", "+40000", "-20000", "-40000"]


def test_tied_weights_stay_tied():
    def program():
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(10, 4)
                self.head = nn.Linear(4, 10, bias=False)
                self.head.weight = self.embed.weight
                self.register_buffer("mask", torch.ones(10), persistent=False)

        model = Tied().cuda()
        return (
            model.head.weight is model.embed.weight,
            len(list(model.parameters())),
            str(model.mask.device),
            list(model.state_dict()),
        )

    run = simulate(program)
    assert run.answer == (True, 1, "cuda:0", ["embed.weight", "head.weight"])
    assert sorted(run.alloc_sizes()) == [40, 160]


def test_meta_and_back():
    def program():
        with torch.device("meta"):
            model = nn.Linear(1 << 14, 1 << 14)
        meta = {str(p.device) for p in model.parameters()}
        model.to_empty(device="cuda")
        return (
            meta,
            {str(p.device) for p in model.parameters()},
            str(torch.zeros(3, device="cuda").to("meta").device),
        )

    run = simulate(program)
    assert run.answer == ({"meta"}, {"cuda:0"}, "meta")
    assert run.alloc_sizes()[:2] == [1 << 30, 1 << 16]


def test_data_assignment_swaps_the_storage():
    def program():
        p = nn.Parameter(torch.zeros(10, device="cuda"))
        p.data = torch.ones(20, device="cuda")
        p.data.mul_(2)
        return tuple(p.shape), p.requires_grad, p.tolist() == [2.0] * 20

    run = simulate(program)
    assert run.answer == ((20,), True, True)
    assert run.lives() == ["+40", "+80", "-40", "-80"]


def test_strides_and_formats_match_torch():
    def on(device):
        x = torch.zeros(2, 3, 4, 5, device=device)
        last = x.contiguous(memory_format=torch.channels_last)
        made = [
            last,
            last + 1,
            last * x,
            torch.empty_like(last),
            last.clone(),
            last.to(torch.float16),
            last.half().float(),
            x.permute(3, 1, 0, 2) + 1,
            x.permute(3, 1, 0, 2).clone(),
            x.expand(6, 2, 3, 4, 5).clone(),
            x[:, ::2] + 1,
            torch.cat([last, last], 1),
            x.sum((1, 2)),
            last.mean(1, keepdim=True),
            last.flatten(1),
            x.to(memory_format=torch.channels_last),
            torch.stack([last, x]),
            torch.relu(last),
            last.transpose(1, 2).contiguous(),
            torch.where(last > 0, last, x),
            last.softmax(1),
            last.matmul(torch.zeros(5, 7, device=device)),
            last.reshape(6, 20),
            torch.nn.functional.pad(last, (1, 1)),
            last.clone(memory_format=torch.contiguous_format),
            last.repeat(1, 2, 1, 1),
            last.flip(0),
        ]
        return [(tuple(t.shape), tuple(t.stride()), t.is_contiguous(), str(t.dtype)) for t in made]

    assert simulate(lambda: on("cuda")).answer == run_plainly(lambda: on("cpu"))


def test_a_number_that_backward_makes_for_a_gradient_on_the_host_is_on_the_host():
    def program():
        layer = nn.Linear(4, 2)
        layer(torch.zeros(1, 4)).clamp(min=0.1).sum().backward()
        return str(layer.weight.grad.device)

    assert simulate(program).answer == "cpu"
