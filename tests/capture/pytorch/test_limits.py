"""Every limit of the simulated world that a program can meet says so, with its number."""

from __future__ import annotations

import itertools
import types

import torch
import torch.distributed as dist
from torch import nn

from tests.capture.pytorch.simulated import simulate
from windtunnel.capture.failure_hints import explain
from windtunnel.capture.pytorch import phases_and_roles as torch_program
from windtunnel.capture.pytorch.kernels import known_values as torch_values
from windtunnel.capture.pytorch.tensors import storage as torch_storage
from windtunnel.events.file import FLUSH_EVERY
from windtunnel.events.model import Build


def test_whole_numbers_keep_their_values_in_any_amount():
    def program():
        ids = torch.arange(1_000_000).cuda()
        pixels = torch.full((3, 500_000), 7, dtype=torch.uint8).cuda()
        return ids[-3:].tolist(), pixels.max().item(), ids.cpu().sum().item()

    result = simulate(program)
    assert result.answer == ([999_997, 999_998, 999_999], 7, 499_999_500_000)
    assert result.unknown_values == []
    assert result.notices == []


def test_values_beyond_what_is_kept_in_all_are_let_go_and_that_is_reported():
    def program():
        torch_values.KEPT_BYTES = 3 << 20
        kept = torch.arange(250_000).cuda()
        lost = torch.arange(250_000).cuda()
        first = kept[5].item(), lost[5].item()
        del kept, lost
        return first, torch.arange(250_000).cuda()[5].item()  # what was given back can be used again

    result = simulate(program)
    assert result.answer == ((5, 1), 5)
    assert len(result.unknown_values) == 1
    (said,) = result.notices
    assert said.startswith(
        "the values of integer tensors on the device are kept up to 3.00 MiB in total: those of 1.91 MiB at"
    )
    assert "test_limits.py:" in said


def test_a_graph_of_very_many_modules_says_that_the_first_are_forgotten():
    def program():
        torch_program._Spans.KEEP = 100
        layer = nn.Linear(4, 4, device="cuda")
        x = torch.randn(2, 4, device="cuda")
        for _ in range(200):
            x = layer(x)
        x.sum().backward()

    result = simulate(program)
    assert [n for n in result.notices if "more than 50 module calls" in n] == result.notices != []


def test_groups_with_equal_first_and_last_ranks_get_different_letters():
    def program():
        dist.init_process_group("gloo")
        members = [(0, 1, 2, 3, 7), (0, 1, 4, 5, 7), (0, 1, 2, 3, 7)]
        return [dist.new_group(list(ranks))._key for ranks in members]

    assert len(set(simulate(program, world_size=8).answer)) == 3


def test_a_rank_given_twice_is_named_in_a_group_of_any_size():
    def program():
        dist.init_process_group("gloo")
        dist.new_group([*range(40), 39])

    result = simulate(program, world_size=64, is_ok=False)
    assert "a process group of 41 ranks was given rank 39 more than once" in result.error


def test_a_long_message_says_how_much_of_it_is_missing():
    assert explain(ValueError("x" * 1000)).endswith("… (700 more characters in run.log)")
    assert explain(ValueError("x" * 300)) == "the script raised ValueError: " + "x" * 300


def test_a_condition_with_a_limit_beside_it_ends_its_loop():
    def program():
        unfinished = torch.ones(4, dtype=torch.int64, device="cuda")
        for step in range(100):
            is_end = torch.rand(4, device="cuda") > 0.5
            is_end = is_end | torch.full((4,), step >= 7, device="cuda")
            unfinished = unfinished & ~is_end
            if unfinished.max() == 0:
                return step
        return None

    assert simulate(program).answer == 7


def _unknown():
    return nn.Linear(512, 512).cuda()(torch.rand(256, 512).cuda()).sum()


def test_a_loop_that_waits_for_an_unknown_value_ends_in_a_sentence_with_its_line():
    def program():
        torch_storage.world.recorder.most_reads = 50
        loss = _unknown()
        while loss.item() > 0.5:
            loss = loss * 0.9

    result = simulate(program, is_ok=False)
    assert result.status == "failed"
    line = program.__code__.co_firstlineno + 3
    assert result.error.startswith(
        f"test_limits.py:{line} read a value that a simulated device cannot know 50 times without an optimizer step in between"
    )
    assert "windtunnel.mock" in result.error
    assert "WINDTUNNEL_MOST_READS" in result.error


def test_steps_of_an_optimizer_begin_the_count_of_reads_again():
    def program():
        torch_storage.world.recorder.most_reads = 50
        model = nn.Linear(512, 512).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            loss = model(torch.rand(256, 512).cuda()).sum()
            loss.backward()
            for _ in range(40):
                loss.item()
            optimizer.step()

    assert simulate(program).status == "ok"


def test_an_interrupted_loop_on_an_unknown_value_is_named():
    def program():
        loss = _unknown()
        for _ in range(150):
            loss.item()
        raise KeyboardInterrupt

    result = simulate(program, is_ok=False)
    line = program.__code__.co_firstlineno + 3
    assert result.status == "interrupted"
    assert [notice.partition(": ")[0] for notice in result.notices] == [
        f"test_limits.py:{line} had read a value that a simulated device cannot know 150 times since the last optimizer"
        " step, each time as 1.0"
    ]


def test_the_time_to_build_a_module_is_time_of_the_cpu():
    """On a busy machine wall time would name the operator that had to wait for a core."""

    def program():
        ticks = itertools.count()
        torch_program.time = types.SimpleNamespace(process_time=lambda: next(ticks) / 1000)
        model = nn.Linear(4, 4)  # begins at 0 ms; weight and bias are registered last, at 1 and 2 ms or later
        return model.cuda()(torch.ones(4).cuda()).shape[0]

    result = simulate(program)
    (build,) = [event for event in result.recording.events() if isinstance(event, Build)]
    assert build.time_us % 1000 == 0
    assert build.time_us >= 2000


def test_a_program_without_modules_and_steps_is_written_as_it_runs():
    """Rows that wait for a step to end would fill the memory of a program that never takes one."""

    def program():
        x = torch.ones(1).cuda()
        most = 0
        for _ in range(FLUSH_EVERY):
            x = x * 0.5
            most = max(most, len(torch_storage.world.recorder.rows))
        return most

    result = simulate(program)
    assert result.answer < FLUSH_EVERY + 10
    assert result.op_names.count("aten.mul.Tensor") == FLUSH_EVERY
