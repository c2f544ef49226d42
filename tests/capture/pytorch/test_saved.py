"""What autograd saves for backward, recorded beside what the program itself holds."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.capture.pytorch.simulated import Simulated, run_plainly, simulate
from windtunnel.events.model import Alloc, Call, CallFlag, Free, Load, Op, Return, Save, Unsave

N = 264  # a square float32 tensor of this side is more than 256 KiB: too large for its values to be known
BYTES = N * N * 4


def _story(run: Simulated) -> list[str]:
    """Births, deaths and handles in order; storages and handles numbered as they appear. From the first save on."""
    numbers: dict[tuple[str, int], int] = {}

    def number(kind: str, id: int) -> int:
        return numbers.setdefault((kind, id), sum(k == kind for k, _ in numbers))

    story = []
    for event in run.events:
        match event:
            case Save():
                story.append(f"save h{number('h', event.handle)} of s{number('s', event.storage)}")
            case Load():
                fresh = " fresh" if event.is_fresh else ""
                story.append(f"load h{number('h', event.handle)} as s{number('s', event.storage)}{fresh}")
            case Unsave():
                story.append(f"unsave h{number('h', event.handle)}")
            case Free() if ("s", event.storage) in numbers:
                story.append(f"free s{number('s', event.storage)}")
    return story


def test_what_the_program_dropped_is_freed_and_handed_to_backward_afresh():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        x.exp().sum().backward()  # nobody but autograd holds exp's result

    run = simulate(program, is_recording_saves=True)
    assert _story(run) == [
        "save h0 of s0",
        "free s0",
        "load h0 as s1 fresh",
        "free s1",
        "unsave h0",
    ]
    allocs = {e.storage: e.n_bytes for e in run.events if isinstance(e, Alloc)}
    loads = [e for e in run.events if isinstance(e, Load)]
    assert [allocs[e.storage] for e in loads] == [BYTES]
    readers = [e for e in run.events if isinstance(e, Op) and loads[0].storage in e.inputs]
    assert len(readers) == 1  # exp's backward multiplies by the fresh storage


def test_what_the_program_holds_is_handed_to_backward_as_it_is():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        y = x.exp()
        y.sum().backward()
        del y

    assert _story(simulate(program, is_recording_saves=True)) == [
        "save h0 of s0",
        "load h0 as s0",
        "unsave h0",
        "free s0",
    ]


def test_two_handles_of_one_lost_storage_share_one_copy():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        y = x.exp()
        z = y.t() * y  # saved twice more: as it is and as a view
        del y
        z.sum().backward()

    story = _story(simulate(program, is_recording_saves=True))
    assert [line for line in story if not line.startswith("unsave")] == [
        "save h0 of s0",  # exp's result
        "save h1 of s0",
        "save h2 of s0",
        "free s0",
        "load h1 as s1 fresh",
        "load h2 as s1",
        "free s1",  # the multiplication's backward is over
        "load h0 as s2 fresh",
        "free s2",
    ]


def test_a_graph_that_is_kept_is_loaded_once_per_backward():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        loss = x.exp().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    story = _story(simulate(program, is_recording_saves=True))
    assert story == [
        "save h0 of s0",
        "free s0",
        "load h0 as s1 fresh",
        "free s1",
        "load h0 as s2 fresh",
        "free s2",
        "unsave h0",
    ]


def test_weights_their_views_host_tensors_and_a_few_known_values_are_left_to_autograd():
    def program():
        weight = torch.nn.Parameter(torch.randn(N, N, device="cuda"))
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        (x * weight).sum().backward()
        (x * weight.t()).sum().backward()
        (x[0] * torch.arange(N, device="cuda")).sum().backward()
        host = torch.randn(8, 8, requires_grad=True)
        host.exp().sum().backward()

    assert _story(simulate(program, is_recording_saves=True)) == []


def test_values_that_are_known_are_known_again():
    def program():
        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        index = torch.arange(4096, device="cuda").view(64, 64) % 64
        y = x.gather(1, index)
        del index
        node = y.grad_fn
        return node._saved_index.flatten().tolist()[:70]

    run = simulate(program, is_recording_saves=True)
    assert run.answer == [i % 64 for i in range(70)]
    assert [line for line in _story(run) if "fresh" in line] == ["load h0 as s1 fresh"]


def test_what_a_custom_function_saves_is_left_to_autograd():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        Square.apply(x.exp()).sum().backward()
        return x.grad.shape

    story = _story(simulate(program, is_recording_saves=True))
    assert sum(line.startswith("save") for line in story) == 1  # exp's own result


def test_a_leaf_graph_that_is_never_run_backward_is_unsaved():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        y = x.exp()
        del y

    story = _story(simulate(program, is_recording_saves=True))
    assert sorted(story) == ["free s0", "save h0 of s0", "unsave h0"]


def test_gradients_of_gradients_run():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        (gradient,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
        gradient.sum().backward()
        return tuple(x.grad.shape)

    assert simulate(program, is_recording_saves=True).answer == (N, N)


def test_nothing_leaks_over_steps():
    def program():
        model = torch.nn.Sequential(
            torch.nn.Linear(N, N), torch.nn.Sigmoid(), torch.nn.Dropout(0.1), torch.nn.Linear(N, N)
        ).cuda()
        for _ in range(3):
            model(torch.randn(4 * N, N, device="cuda")).square().sum().backward()

    run = simulate(program, is_recording_saves=True)
    saved = {e.handle for e in run.events if isinstance(e, Save)}
    assert saved
    assert saved == {e.handle for e in run.events if isinstance(e, Unsave)}


def test_the_programs_own_hooks_go_on_top():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        checkpoint(lambda t: t.exp().sin(), x, use_reentrant=False).sum().backward()
        with torch.autograd.graph.save_on_cpu():
            y = x.exp()
        y.sum().backward()
        return tuple(x.grad.shape)

    run = simulate(program, is_recording_saves=True)
    assert run.answer == (N, N)
    assert _story(run) == []


def _changed_after_it_was_saved():
    x = torch.randn(N, N, requires_grad=True)
    y = x.sigmoid()
    y.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return str(error)


def test_a_saved_tensor_changed_in_place_is_refused_in_torchs_words():
    simulated = simulate(_changed_after_it_was_saved, device="cpu", is_recording_saves=True).answer
    real = run_plainly(_changed_after_it_was_saved)
    start, _, rest = real.partition(f"[torch.FloatTensor [{N}, {N}]]")
    assert rest
    assert simulated.startswith(start)
    assert simulated.endswith(
        rest.replace("SigmoidBackward0", "Sigmoid")
    )  # torch 2.12 names the node, later ones the operator


def test_the_same_operators_run_as_without():
    def program():
        model = torch.nn.Sequential(torch.nn.Linear(N, N), torch.nn.GELU(), torch.nn.Linear(N, N)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            F.mse_loss(model(torch.randn(N, N, device="cuda")), torch.zeros(N, N, device="cuda")).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert simulate(program, is_recording_saves=True).op_names == simulate(program).op_names


def _calls(run: Simulated) -> list[tuple[str, int]]:
    signatures = run.recording.signatures
    return [(signatures[e.signature].name, int(e.flags)) for e in run.events if isinstance(e, Call)]


def test_calls_are_recorded_as_a_dispatch_mode_sees_them():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        y = x.clone().view(-1)  # a view has no row; on the device a clone is an allocation and a copy
        y.mul_(2)
        with torch.no_grad():
            x.exp()  # leaves nothing to compute again
            y.zero_()
        y.sum().backward(torch.ones((), device="cuda"))  # nothing of backward

    run = simulate(program, is_recording_saves=True)
    grad, covers = CallFlag.GRAD, CallFlag.COVERS
    assert _calls(run)[1:5] == [
        ("aten.clone.default", grad),
        ("aten.mul_.Tensor", grad | covers),
        ("aten.zero_.default", covers),
        ("aten.sum.default", grad),
    ]
    calls = {e.id: e for e in run.events if isinstance(e, Call)}
    returns = [e for e in run.events if isinstance(e, Return)]
    clone, multiply = returns[1], returns[2]
    assert clone.written == ()
    assert multiply.written == multiply.outputs == clone.outputs == calls[multiply.call].inputs[:1]
    parts = run.events[run.events.index(calls[clone.call]) + 1 : run.events.index(clone)]
    assert [type(e) for e in parts] == [Alloc, Op]
    assert parts[0].storage == clone.outputs[0]


def test_what_cannot_run_again_is_marked():
    def program():
        x = torch.randn(N, N, device="cuda", requires_grad=True)
        generator = torch.Generator(device="cuda")
        y = x * 2
        torch.bernoulli(y, generator=generator)
        y[:10].detach().fill_(1)

    calls = _calls(simulate(program, is_recording_saves=True))
    assert calls[-3:] == [
        ("aten.mul.Tensor", CallFlag.GRAD),
        ("aten.bernoulli.default", CallFlag.GRAD | CallFlag.ODD | CallFlag.SEEDED),
        ("aten.fill_.Scalar", CallFlag.GRAD),  # a part of its storage only
    ]
