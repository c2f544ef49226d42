"""What a recording tells a timeline: who waits for whom, where the host reads values, what is computed again."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.capture.pytorch.simulated import simulate
from windtunnel.events.model import (
    Collective,
    EmptyCache,
    EventRecord,
    EventWait,
    Kind,
    ModuleEnter,
    ModuleExit,
    Op,
    Phase,
    Sync,
)
from windtunnel.events.recomputation import is_recomputed

HOST = -1


def orders(done):
    """Everything that orders streams and the host, in a few words."""
    found = []
    for event in done.events:
        match event:
            case EventRecord():
                found.append(f"record {event.event} on {event.stream}")
            case EventWait():
                found.append(f"{event.stream} waits for {event.event}")
            case Sync():
                found.append(f"read on {event.stream}" if event.is_read else f"sync {event.stream}")
    return found


def test_a_stream_that_waits_for_another_is_an_event_between_them():
    def program():
        x = torch.ones(8, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        torch.cuda.current_stream().wait_stream(side)
        return (y + 1).shape

    done = simulate(program)
    assert orders(done) == ["record 1 on 0", "1 waits for 1", "record 2 on 1", "0 waits for 2"]
    streams = {
        done.recording.signatures[e.signature].name: e.stream for e in done.events if isinstance(e, Op)
    }
    assert (streams["aten.mul.Tensor"], streams["aten.add.Tensor"]) == (1, 0)


def test_an_event_recorded_again_is_another_moment():
    def program():
        side, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
        event.wait()  # never recorded: nothing to wait for, as on a device
        event.record()
        side.wait_event(event)
        event.record(side)
        event.wait()
        event.synchronize()
        other = side.record_event()
        torch.cuda.default_stream().wait_event(other)

    assert orders(simulate(program)) == [
        "record 1 on 0", "1 waits for 1", "record 2 on 1", "0 waits for 2", f"{HOST} waits for 2", "record 3 on 1",
        "0 waits for 3",
    ]  # fmt: skip


def test_waiting_on_purpose_is_distinguished_from_reading_a_value():
    def program():
        x = torch.ones(8, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.current_stream().synchronize()
        side = torch.cuda.Stream()
        side.synchronize()
        with torch.cuda.stream(side):
            x.sum().item()

    assert orders(simulate(program)) == ["sync -1", "sync 0", "sync 1", "read on 1"]


READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "if": lambda x: bool(x.sum() > 0),
    "tolist": lambda x: x[:2].tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "copy to the host": lambda x: torch.empty(8).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x + 1),
}
NO_READS = {
    "of the host": lambda x: torch.ones(8).sum().item(),
    "shape": lambda x: x.shape[0] + x.numel() + x.dim(),
    "non-blocking copy to the host": lambda x: torch.empty(8, pin_memory=True).copy_(x, non_blocking=True),
    "non-blocking to": lambda x: x.to("cpu", non_blocking=True),
    "copy on the device": lambda x: torch.empty_like(x).copy_(x),
    "from the host": lambda x: torch.ones(8).to("cuda"),
    "indices": lambda x: x[torch.arange(2, device="cuda")],
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "clip_grad_norm_": lambda x: nn.utils.clip_grad_norm_([nn.Parameter(x)], 1.0),
}


def _reads_of(ways):
    """How often the host waited for a value in each way, all tried in one process."""

    def program():
        for way in ways.values():
            x = torch.ones(8, device="cuda")
            torch.cuda.empty_cache()  # a row to tell them apart by
            way(x)

    found = []
    for event in simulate(program).events:
        if isinstance(event, EmptyCache):
            found.append(0)
        elif isinstance(event, Sync):
            assert event.is_read
            found[-1] += 1
    return dict(zip(ways, found, strict=True))


def test_the_host_waits_once_for_a_value_it_reads():
    assert _reads_of(READS) == dict.fromkeys(READS, 1)


def test_the_host_does_not_wait_for_what_it_does_not_read():
    assert _reads_of(NO_READS) == dict.fromkeys(NO_READS, 0)


def test_what_leaves_the_device_is_a_copy_before_anybody_waits_for_it():
    def program():
        x = torch.ones(8, device="cuda")
        x.to("cpu", non_blocking=True)
        torch.empty(8).copy_(x)

    done = simulate(program)
    words = []
    for event in done.events:
        if isinstance(event, Op) and event.device == 0:
            words.append(done.recording.signatures[event.signature].name)
        elif isinstance(event, Sync):
            words.append("read")
    assert words[-3:] == ["memcpy.device_to_host", "memcpy.device_to_host", "read"]


def test_a_cpu_does_the_work_itself():
    def program():
        torch.ones(8).sum().item()

    assert orders(simulate(program, "cpu")) == []


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def _train(call, n_blocks=3, n_steps=1):
    net = nn.Sequential(*(Block() for _ in range(n_blocks))).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(n_steps):
        x = torch.ones(4, 16, device="cuda", requires_grad=True)
        call(net, x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _by_block(net, x, **how):
    for block in net:
        x = checkpoint(block, x, **how)
    return x


CHECKPOINTS = {
    "reentrant": lambda net, x: _by_block(net, x, use_reentrant=True),
    "non-reentrant": lambda net, x: _by_block(net, x, use_reentrant=False),
    "of a function": lambda net, x: checkpoint(lambda y: net[2](net[1](net[0](y))), x, use_reentrant=False),
    "sequential": lambda net, x: checkpoint_sequential(net, 3, x, use_reentrant=False),
}


def _linear_again(done):
    """Forward products of the run, and those of them that are recomputations."""
    again = is_recomputed(done.recording)
    names = [done.recording.signatures[e.signature].name if isinstance(e, Op) else "" for e in done.events]
    products = [i for i, name in enumerate(names) if name == "aten.addmm.default"]
    return len(products), int(again[products].sum())


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_recomputed_forward_is_marked_and_nothing_else_is(how):
    def program():
        _train(CHECKPOINTS[how], n_steps=2)

    done = simulate(program)
    n_products, n_again = _linear_again(done)
    # Early stopping leaves out the last product of a block that nobody saved anything of; the last segment of
    # checkpoint_sequential is not checkpointed.
    assert n_products - n_again == 2 * 3 * 2
    assert n_again >= (4 if how == "sequential" else 6)
    again = is_recomputed(done.recording)
    phases = done.recording.columns["phase"][again]
    names = {done.recording.signatures[e.signature].name for e, a in zip(done.events, again, strict=True)
             if a and isinstance(e, Op)}  # fmt: skip
    assert "aten.mm.default" not in names, "backward is no recomputation"
    assert len(phases)


def test_a_run_without_checkpoints_computes_nothing_again():
    def program():
        _train(lambda net, x: net(x))

    done = simulate(program)
    assert _linear_again(done) == (6, 0)
    assert not is_recomputed(done.recording).any()


def test_marks_of_a_recomputation_come_in_pairs_even_if_it_stops_early():
    def program():
        _train(CHECKPOINTS["non-reentrant"])

    events = simulate(program).events
    edges = [e for e in events if isinstance(e, (ModuleEnter, ModuleExit)) and e.is_again]
    assert [type(e) for e in edges] == [ModuleEnter, ModuleExit] * 3
    assert [e.module for e in edges[::2]] == [e.module for e in edges[1::2]]


def test_the_recording_says_what_should_be_compiled_and_ran_eagerly():
    def program():
        net = nn.Sequential(Block(), nn.Linear(16, 4)).npu()
        net[0].compile()

        @torch.compile
        def activate(x):
            return torch.relu(x) * 2

        return activate(net(torch.ones(2, 16, device="npu"))).shape

    done = simulate(program, "ascend-910b-64gb")
    compiled = done.recording.footer["compiled"]
    assert sorted(compiled["modules"]) == ["0", "0.down", "0.up"]
    ((file, name),) = compiled["functions"]
    assert (file, name) == (__file__, "activate")


def test_compiling_the_whole_model_names_every_module():
    def program():
        net = torch.compile(nn.Sequential(Block(), nn.Linear(16, 4)).npu())
        net(torch.ones(2, 16, device="npu"))

    assert sorted(simulate(program, "ascend-910b-64gb").recording.footer["compiled"]["modules"]) == [
        "0", "0.down", "0.up", "1", "Sequential",
    ]  # fmt: skip


def test_a_program_that_compiles_nothing_says_so():
    def program():
        nn.Linear(4, 4).cuda()(torch.ones(2, 4, device="cuda"))

    assert simulate(program).recording.footer["compiled"] == {"functions": [], "modules": []}


def _communication(done):
    """Collectives by their kind, waits and steps, in order."""
    words = {Kind.WAIT: "wait", Kind.STEP: "step"}
    found = []
    for event, kind in zip(done.events, done.recording.columns["kind"].tolist(), strict=True):
        if isinstance(event, Collective) and event.phase != Phase.BUILD:
            found.append(done.recording.signatures[event.signature].name)
        elif kind in words and (found or kind != Kind.WAIT):
            found.append(words[kind])
    return found


def test_an_asynchronous_collective_is_waited_for_where_the_program_does():
    def program():
        dist.init_process_group("nccl")
        net, x = nn.Linear(4, 4).cuda(), torch.ones(8, 4, device="cuda")
        y = net(x)  # from here on the model is built
        work = dist.all_reduce(y.data, async_op=True)
        dist.all_reduce(x)
        work.wait()
        work.wait()

    assert _communication(simulate(program, world_size=2)) == ["c10d.all_reduce", "c10d.all_reduce", "wait"]


@pytest.mark.parametrize("is_view", [False, True])
def test_gradients_of_ddp_are_waited_for_at_the_end_of_backward(is_view):
    """The reducer waits in C++; without its waits an optimizer would not need the network at all."""

    def program():
        dist.init_process_group("nccl")
        net = nn.Sequential(Block(1024), Block(1024)).cuda()  # 4 weights of 4 MiB: several buckets
        model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=5, gradient_as_bucket_view=is_view)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.ones(4, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    communication = _communication(simulate(program, world_size=2))
    first, second = " ".join(communication).split("step")[:2]
    assert first.split() == ["c10d.all_reduce", "wait"]  # before buckets are rebuilt there is one
    words = [word for word in second.split() if word != "c10d.broadcast"]
    n = words.count("c10d.all_reduce")
    assert n > 1
    assert words[-2 * n :] == ["c10d.all_reduce"] * n + ["wait"] * n
