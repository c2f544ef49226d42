"""torch.cuda, torch.npu and torch.accelerator of a device that is not there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.capture.pytorch.simulated import simulate
from windtunnel.devices import find_device
from windtunnel.events.model import Alloc, Free, Kind, RecordStream, Sync
from windtunnel.memory import Allocator


def test_identity_comes_from_the_profile():
    def program():
        torch.zeros(1, device="cuda")
        p = torch.cuda.get_device_properties(0)
        return {
            "available": torch.cuda.is_available(),
            "count": torch.cuda.device_count(),
            "current": torch.cuda.current_device(),
            "name": torch.cuda.get_device_name(),
            "capability": torch.cuda.get_device_capability(),
            "memory": p.total_memory,
            "major": (p.major, p.minor),
            "sms": p.multi_processor_count,
            "bf16": torch.cuda.is_bf16_supported(),
            "initialized": torch.cuda.is_initialized(),
            "arch": torch.cuda.get_arch_list(),
            "version": torch.version.cuda is not None,
            "cudnn": torch.backends.cudnn.is_available(),
            "by string": torch.cuda.get_device_properties("cuda:0").name,
        }

    assert simulate(program, "h100").answer == {
        "available": True,
        "count": 1,
        "current": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "capability": (9, 0),
        "memory": 81090 << 20,
        "major": (9, 0),
        "sms": 132,
        "bf16": True,
        "initialized": True,
        "arch": ["sm_90"],
        "version": True,
        "cudnn": True,
        "by string": "NVIDIA H100 80GB HBM3",
    }


def test_counters_are_the_allocator_models():
    def program():
        a = torch.zeros(1000, device="cuda")
        b = torch.zeros(30 << 20, dtype=torch.uint8, device="cuda")
        first = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        del b
        second = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.empty_cache()
        third = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        reset = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        c = torch.zeros(512, dtype=torch.uint8, device="cuda")
        last = torch.cuda.max_memory_allocated()
        stats = torch.cuda.memory_stats()
        del a, c
        return (
            first,
            second,
            peaks,
            third,
            reset,
            last,
            stats["allocated_bytes.all.current"],
            stats["allocated_bytes.all.peak"],
        )

    run = simulate(program)
    model = Allocator.from_spec("cuda")
    model.alloc(1, 4000, 0)
    model.alloc(2, 30 << 20, 0)
    first, second, peaks, third, reset, last, current, peak = run.answer
    assert (
        first == (model.allocated_bytes, model.reserved_bytes) == (4096 + (30 << 20), (2 << 20) + (30 << 20))
    )
    assert peaks == first
    model.free(2)
    assert second == (4096, (32 << 20))
    model.empty_cache()
    assert third == (model.allocated_bytes, model.reserved_bytes) == (4096, 2 << 20)
    assert reset == third
    assert last == current == peak == 4096 + 512
    assert run.count(Kind.EMPTY_CACHE) == 1


def test_free_memory_is_what_the_cache_leaves():
    def program():
        free, total = torch.cuda.mem_get_info()
        keep = torch.zeros(100 << 20, dtype=torch.uint8, device="cuda")
        after, _ = torch.cuda.mem_get_info(0)
        return free, total, free - after, keep.numel()

    profile = find_device("a100-80gb")
    assert simulate(program).answer == (profile.usable_bytes, profile.memory_bytes, 100 << 20, 100 << 20)


def test_every_spelling_of_the_counters_exists():
    def program():
        keep = torch.zeros(1000, device="cuda")
        said = [
            torch.cuda.memory_allocated(0),
            torch.cuda.memory_allocated("cuda"),
            torch.cuda.memory_allocated(torch.device("cuda")),
            torch.cuda.memory.memory_allocated(),
            torch.cuda.max_memory_allocated(device=0),
            torch.cuda.memory_stats(0)["active_bytes.all.current"],
            torch.accelerator.memory_allocated(),
            torch.accelerator.max_memory_allocated(),
        ]
        torch.cuda.reset_max_memory_allocated()
        torch.cuda.reset_accumulated_memory_stats()
        torch.cuda.ipc_collect()
        torch.cuda.set_per_process_memory_fraction(0.5)
        text = torch.cuda.memory_summary(), torch.cuda.memory_snapshot()
        nested = torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"]
        return said, isinstance(text[0], str), nested, keep.numel()

    said, is_text, nested, _ = simulate(program).answer
    assert said == [4096] * 8
    assert is_text
    assert nested == 4096


def test_allocations_know_their_stream():
    def program():
        side = torch.cuda.Stream()
        numbers = [torch.cuda.current_stream().stream_id]
        a = torch.zeros(1, device="cuda")
        with torch.cuda.stream(side):
            numbers.append(torch.cuda.current_stream().stream_id)
            b = torch.zeros(2, device="cuda")
            inner = torch.cuda.Stream()
            with torch.cuda.stream(inner):
                c = torch.zeros(3, device="cuda")
            d = torch.zeros(4, device="cuda")
        e = torch.zeros(5, device="cuda")
        with torch.cuda.stream(None):
            f = torch.zeros(6, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        b.record_stream(torch.cuda.current_stream())
        side.synchronize()
        torch.cuda.synchronize()
        return numbers, side.stream_id, inner.stream_id, side == torch.cuda.Stream(), len((a, b, c, d, e, f))

    run = simulate(program)
    numbers, side, inner, is_equal, _ = run.answer
    streams = {e.n_bytes: e.stream for e in run.events if isinstance(e, Alloc)}
    assert streams == {4: 0, 8: side, 12: inner, 16: side, 20: 0, 24: 0}
    assert numbers == [0, side]
    assert len({0, side, inner}) == 3
    assert not is_equal
    recorded = [e for e in run.events if isinstance(e, RecordStream)]
    assert [(e.storage, e.stream) for e in recorded] == [(2, 0)]
    assert [e.stream for e in run.events if isinstance(e, Sync)] == [side, -1]


def test_the_backward_pass_runs_on_the_streams_of_the_forward_pass():
    def program():
        x = torch.ones(1000, device="cuda", requires_grad=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            y = x.exp()
        y.sum().backward()

    run = simulate(program)
    assert run.status == "ok"
    assert {type(e) for e in run.events} >= {Alloc, Free}


def test_streams_and_events_answer_like_torchs():
    def program():
        s = torch.cuda.Stream(priority=-1)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        s.wait_event(start)
        end.record(s)
        end.synchronize()
        start.wait(s)
        made = s.record_event()
        with s:
            inside = torch.cuda.current_stream() == s
        return (
            s.query(),
            end.query(),
            isinstance(made, torch.cuda.Event),
            start.elapsed_time(end),
            inside,
            torch.cuda.default_stream() == torch.cuda.current_stream(),
            isinstance(s, torch.cuda.Stream),
            isinstance(s, torch.Stream),
        )

    run = simulate(program)
    assert run.answer == (True, True, True, 1.0, True, True, True, True)
    assert run.unknown_values[0]["what"] == "the time between two device events"


def test_random_state_is_saved_and_restored():
    def program():
        torch.cuda.manual_seed(5)
        torch.cuda.manual_seed_all(6)
        torch.manual_seed(7)
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
        with torch.random.fork_rng(devices=[0]):
            torch.rand(3, device="cuda")
        with torch.random.fork_rng():
            torch.rand(3)
        return (
            torch.cuda.initial_seed(),
            str(state.dtype),
            str(state.device),
            len(torch.cuda.default_generators),
        )

    assert simulate(program).answer == (7, "torch.uint8", "cpu", 1)


def test_torch_accelerator_describes_the_device():
    for profile, word in (("a100-80gb", "cuda"), ("ascend-910b", "npu")):

        def program():
            device = torch.accelerator.current_accelerator()
            torch.accelerator.synchronize()
            torch.accelerator.set_device_index(0)
            x = torch.zeros(4, device=device)
            stream = torch.accelerator.current_stream()
            return (
                str(device),
                torch.accelerator.device_count(),
                torch.accelerator.is_available(),
                str(x.device),
                torch.accelerator.current_device_index(),
                stream is not None,
            )

        assert simulate(program, profile).answer == (word, 1, True, f"{word}:0", 0, True)


def test_nvtx_profilers_and_old_amp_run():
    def program():
        torch.cuda.nvtx.range_push("step")
        torch.cuda.nvtx.mark("here")
        with torch.cuda.nvtx.range("block"):
            x = torch.ones(4, 4, device="cuda")
        torch.cuda.nvtx.range_pop()
        with torch.autograd.profiler.record_function("mine"):
            x = x + 1
        with torch.cuda.amp.autocast():
            y = x @ x
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            z = x @ x
        scaler = torch.cuda.amp.GradScaler()
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.set_float32_matmul_precision("high")
        return str(y.dtype), str(z.dtype), scaler.is_enabled(), scaler.get_scale()

    assert simulate(program).answer == ("torch.float16", "torch.bfloat16", True, 65536.0)


def test_profiler_runs():
    def program():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
            torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
        return len(p.events()) > 0

    assert simulate(program).answer is True


def test_cuda_graphs_run_once_and_are_reported():
    def program():
        static = torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = static * 2
        graph.replay()
        return tuple(out.shape)

    run = simulate(program)
    assert run.answer == (4,)
    assert run.notices == [
        "CUDA graphs are not simulated: the captured code ran once, eagerly, and replays did nothing"
    ]


def test_make_graphed_callables_gives_the_callable_back():
    def program():
        layer = nn.Linear(4, 4).cuda()
        graphed = torch.cuda.make_graphed_callables(layer, (torch.randn(2, 4, device="cuda"),))
        return tuple(graphed(torch.randn(2, 4, device="cuda")).shape)

    run = simulate(program)
    assert run.answer == (2, 4)
    assert "CUDA graphs" in run.notices[0]


def test_npu_scripts_find_their_module():
    def program():
        import torch_npu
        from torch_npu.contrib import transfer_to_npu  # noqa: F401

        torch.npu.set_device(0)
        x = torch.zeros(1000).npu()
        torch.npu.synchronize()
        with torch.npu.stream(torch.npu.Stream()):
            y = x + 1
        with torch.autocast("npu", dtype=torch.float16), torch.no_grad():
            z = torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")
        state = torch.npu.get_rng_state()
        return (
            str(x.device),
            x.is_npu,
            torch.npu.is_available(),
            torch.npu.memory_allocated() > 8000,
            torch.npu.device_count(),
            torch_npu.npu.current_device(),
            str(z.dtype),
            str(y.device),
            state.dim(),
            torch.npu.max_memory_allocated() > 0,
        )

    assert simulate(program, "ascend-910b").answer == (
        "npu:0",
        True,
        True,
        True,
        1,
        0,
        "torch.float16",
        "npu:0",
        1,
        True,
    )


def test_a_script_ported_with_transfer_to_npu_keeps_saying_cuda():
    def program():
        import torch_npu  # noqa: F401
        from torch_npu.contrib import transfer_to_npu  # noqa: F401

        model = nn.Linear(4, 4).cuda()
        x = torch.randn(2, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).sum()
        loss.backward()
        return (
            str(x.device),
            torch.cuda.is_available(),
            x.is_cuda,
            torch.cuda.memory_allocated() > 0,
            str(model.weight.grad.device),
        )

    assert simulate(program, "ascend-910b").answer == ("npu:0", True, True, True, "npu:0")


def test_two_cards_in_one_process_have_their_own_memory():
    def program():
        first, second = nn.Linear(1000, 1000).to("cuda:0"), nn.Linear(1000, 10).to("cuda:1")
        x = torch.randn(8, 1000, device="cuda:0")
        hidden = first(x).to("cuda:1")
        second(hidden).sum().backward()
        with torch.cuda.device(1):
            inside = torch.zeros(7, device="cuda"), torch.cuda.current_device()
        try:
            first(hidden)
            said = ""
        except RuntimeError as error:
            said = str(error)
        torch.cuda.set_device("cuda:1")
        on_current = torch.zeros(5, device="cuda").device
        return (
            torch.cuda.device_count(),
            str(inside[0].device),
            inside[1],
            said,
            str(on_current),
            str(first.weight.grad.device),
            torch.cuda.memory_allocated(0) > 8_000_000,
            40_000 < torch.cuda.memory_allocated(1) < 1_000_000,
        )

    run = simulate(program, n_devices=2)
    count, inside, current, said, on_current, gradient, is_first_large, is_second_small = run.answer
    assert (count, inside, current, on_current, gradient) == (2, "cuda:1", 1, "cuda:1", "cuda:0")
    assert "found at least two devices, cuda:0 and cuda:1" in said
    assert is_first_large
    assert is_second_small
    assert 4_000_000 in run.alloc_sizes(0)
    assert 4_000_000 not in run.alloc_sizes(1)
    assert {8 * 1000 * 4, 40_000, 28} <= set(run.alloc_sizes(1))


def test_a_later_local_rank_uses_its_own_card():
    def program():
        import os

        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        x = torch.zeros(1000, device="cuda")
        y = torch.zeros(10, device=f"cuda:{local}")
        return (
            local,
            str(x.device),
            str(y.device),
            torch.cuda.memory_allocated(),
            os.environ["RANK"],
            os.environ["WORLD_SIZE"],
        )

    run = simulate(program, world_size=4, rank=3)
    assert run.answer == (3, "cuda:3", "cuda:3", 4096 + 512, "3", "4")
    assert run.alloc_sizes(3) == [4000, 40]
    assert run.alloc_sizes(0) == []


@pytest.mark.parametrize("profile", ["cpu"])
def test_the_cpu_as_device_has_true_small_values(profile):
    def program():
        x = torch.arange(6.0).reshape(2, 3)
        w = torch.ones(3, 2)
        return (x @ w).tolist(), str(x.device), torch.cuda.is_available(), x.sum().item()

    run = simulate(program, profile)
    assert run.answer == ([[3.0, 3.0], [12.0, 12.0]], "cpu", False, 15.0)
    assert run.unknown_values == []
    assert 24 in run.alloc_sizes()
