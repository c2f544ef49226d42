"""Memory is freed when PyTorch frees it: exact births and deaths of small programs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.capture.pytorch.simulated import simulate


def test_del_and_reassignment():
    def program():
        x = torch.zeros(1, device="cuda")
        y = torch.zeros(2, device="cuda")
        x = torch.zeros(3, device="cuda")  # the old one goes after the new one is made
        del y
        x = x + 1
        del x

    assert simulate(program).lives() == ["+4", "+8", "+12", "-4", "-8", "+12", "-12", "-12"]


def test_temporaries_die_as_soon_as_they_are_used():
    def program():
        x = torch.ones(10, device="cuda")
        ((x + 1) * 2).exp()

    assert simulate(program).lives() == ["+40", "+40", "+40", "-40", "+40", "-40", "-40", "-40"]


def test_backward_frees_saved_tensors_as_it_goes():
    def program():
        x = torch.ones(10, device="cuda", requires_grad=True)
        y = x.exp()  # saves its result
        z = y.sin()  # saves y
        loss = z.sum()
        del y, z
        loss.backward()
        del loss

    # x, exp, sin, sum, -sin (sum saves nothing); backward: ones, cos(y), product, free…
    lives = simulate(program).lives()
    assert lives[:5] == ["+40", "+40", "+40", "+4", "-40"]
    assert sum(int(n) for n in lives) == 0
    assert lives[-1] == "-40"  # x.grad or x, at the very end


def _forward(x):
    hidden = x.exp()
    return hidden.tanh().sum()


def test_retain_graph_keeps_what_backward_would_free():
    def freeing():
        x = torch.ones(1000, device="cuda", requires_grad=True)
        loss = _forward(x)
        loss.backward()
        return torch.cuda.memory_allocated()

    def retaining():
        x = torch.ones(1000, device="cuda", requires_grad=True)
        loss = _forward(x)
        loss.backward(retain_graph=True)
        kept = torch.cuda.memory_allocated()
        loss.backward()
        return kept, torch.cuda.memory_allocated()

    rounded = 4096  # 4000 bytes in blocks of 512
    assert simulate(freeing).answer == 2 * rounded + 512  # x, its gradient, the loss
    assert simulate(retaining).answer == (
        4 * rounded + 512,
        2 * rounded + 512,
    )  # and exp's and tanh's results


def test_backward_twice_says_what_torch_says():
    def program():
        x = torch.ones(3, device="cuda", requires_grad=True)
        loss = x.exp().sum()
        loss.backward()
        loss.backward()

    run = simulate(program, is_ok=False)
    assert "Trying to backward through the graph a second time" in run.output
    assert (
        run.error == "backward ran twice through the same graph: run forward again, or pass retain_graph=True"
    )


@pytest.mark.parametrize(
    ("context", "n_alive"), [("grad", 3), ("no_grad", 1), ("inference", 1), ("detach", 1)]
)
def test_only_a_graph_keeps_intermediates(context, n_alive):
    def program():
        w = torch.ones(1000, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        if context == "no_grad":
            with torch.no_grad():
                out = w.exp().exp().exp()
        elif context == "inference":
            with torch.inference_mode():
                out = w.exp().exp().exp()
        elif context == "detach":
            out = w.exp().exp().detach()
        else:
            out = w.exp().exp().exp()
        after = torch.cuda.memory_allocated()
        return (after - before) // 4096, out.requires_grad

    alive, requires_grad = simulate(program).answer
    assert alive == n_alive  # without a graph, the last result only
    assert requires_grad == (context == "grad")


def test_an_exception_holds_only_what_its_frames_hold():
    def program():
        def fail():
            big = torch.zeros(1 << 20, device="cuda")
            raise ValueError(f"the user's own error about {tuple(big.shape)}")

        during = 0
        try:
            fail()
        except ValueError as error:
            during = torch.cuda.memory_allocated()
            said = str(error)
        return during, torch.cuda.memory_allocated(), said

    assert simulate(program).answer == (4 << 20, 0, "the user's own error about (1048576,)")


def test_the_users_exception_survives_the_death_of_its_tensors():
    class Special(Exception):
        pass

    def program():
        class Layer(nn.Module):
            def forward(self, x):
                y = x * 2
                raise Special("inside forward", y.shape)

        try:
            Layer()(torch.zeros(4, device="cuda", requires_grad=True))
        except Special as error:
            return type(error).__name__, error.args[0]

    assert simulate(program).answer == ("Special", "inside forward")


def test_an_error_inside_backward_reaches_the_user():
    def program():
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                raise KeyError("from backward")

        try:
            Bad.apply(torch.ones(3, device="cuda", requires_grad=True)).sum().backward()
        except KeyError as error:
            return str(error)

    assert simulate(program).answer == "'from backward'"


def test_custom_functions_save_and_free():
    def program():
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return 2 * x * g

        w = torch.full((4,), 3.0, device="cuda", requires_grad=True)
        hidden = w * 1
        out = Square.apply(hidden)
        del hidden
        kept = torch.cuda.memory_allocated()
        out.sum().backward()
        return kept, torch.cuda.memory_allocated(), w.grad.tolist()

    kept, after, gradient = simulate(program).answer
    assert kept == 3 * 512  # w, hidden (saved), out
    assert after == 3 * 512  # w, its gradient, out
    assert gradient == [6.0] * 4


def test_saved_tensor_hooks_decide_what_is_kept():
    def program():
        w = torch.ones(1000, device="cuda", requires_grad=True)
        seen = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: seen.append("pack") or t.cpu(), lambda t: seen.append("unpack") or t.cuda()
        ):
            out = (w * 2).exp().exp().sum()
        kept = torch.cuda.memory_allocated()
        out.backward()
        return seen, kept, torch.cuda.memory_allocated()

    seen, kept, after = simulate(program).answer
    assert seen == ["pack", "pack", "unpack", "unpack"]
    assert kept == 4096 + 512  # only w and the sum: results went to the host
    assert after == 2 * 4096 + 512


def test_save_on_cpu_offloads():
    def program():
        w = torch.ones(1000, device="cuda", requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            out = w.exp().exp().sum()
        kept = torch.cuda.memory_allocated()
        out.backward()
        return kept, str(w.grad.device)

    assert simulate(program).answer == (4096 + 512, "cuda:0")


def test_tensor_and_module_hooks_run():
    def program():
        seen = []
        layer = nn.Linear(4, 4).cuda()
        layer.register_forward_pre_hook(lambda m, a: seen.append("pre"))
        layer.register_forward_hook(lambda m, a, o: seen.append("forward"))
        layer.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
        x = torch.ones(2, 4, device="cuda", requires_grad=True)
        x.register_hook(lambda g: seen.append(f"grad {tuple(g.shape)}"))
        layer.weight.register_post_accumulate_grad_hook(
            lambda p: seen.append("accumulated") or setattr(p, "grad", None)
        )
        layer(x).sum().backward()
        return seen, layer.weight.grad is None

    seen, is_freed = simulate(program).answer
    assert sorted(seen) == sorted(["pre", "forward", "backward", "grad (2, 4)", "accumulated"])
    assert is_freed


def test_gradients_accumulate_in_place_and_zero_grad_frees_them():
    def program():
        w = nn.Parameter(torch.zeros(1000, device="cuda"))
        optimizer = torch.optim.SGD([w], lr=0.1)
        w.sum().backward()
        first = w.grad.data_ptr()
        w.mul(2).sum().backward()
        same = w.grad.data_ptr() == first
        with_grad = torch.cuda.memory_allocated()
        optimizer.zero_grad()
        return same, with_grad, torch.cuda.memory_allocated(), w.grad is None

    assert simulate(program).answer == (True, 2 * 4096, 4096, True)


def test_a_cycle_lives_until_it_is_collected():
    def program():
        import gc

        gc.collect()
        gc.disable()

        class Node:
            pass

        node = Node()
        node.self, node.data = node, torch.zeros(1000, device="cuda")
        del node
        before = torch.cuda.memory_allocated()
        gc.collect()
        return before, torch.cuda.memory_allocated()

    assert simulate(program).answer == (4096, 0)


def test_nothing_is_left_after_a_training_step_but_what_must_be():
    def program():
        model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        sizes = []
        for _ in range(4):
            loss = model(torch.randn(16, 32, device="cuda")).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del loss
            sizes.append(torch.cuda.memory_allocated())
        return sizes

    sizes = simulate(program).answer
    weights = 4096 + 512 + 1024 + 512
    assert sizes == [3 * weights] * 4  # AdamW's step counters stay on the host


def test_a_process_that_has_trained_before_can_be_simulated():
    """autograd counts devices at the first backward of a process, here before there is a simulated one."""
    torch.ones(3, requires_grad=True).sum().backward()

    def program():
        weight = torch.ones(4, 4, device="cuda", requires_grad=True)
        (weight * 2).sum().backward()
        (weight * 3).sum().backward()
        return weight.grad.shape

    assert simulate(program).answer == (4, 4)
