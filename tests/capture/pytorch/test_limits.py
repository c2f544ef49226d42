"""Every limit of the simulated world that a program can meet says so, with its number."""

from __future__ import annotations

import enum
import itertools
import types

import pytest
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


def _generate(end: int, n_new: int) -> int:
    """As a sampler writes it: a text ends at a token, or at the limit."""
    model = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 64)).cuda()
    tokens = torch.randint(2, 60, (4, 5)).cuda()
    done = torch.zeros(4, dtype=torch.bool, device="cuda")
    for step in range(n_new):
        logits = model(tokens)[:, -1]
        sampled = torch.multinomial(logits.softmax(-1), 1)
        tokens = torch.cat([tokens, sampled], 1)
        done |= sampled[:, 0] == end
        done = done | torch.isin(tokens[:, -1], torch.tensor([end, 3], device="cuda"))
        if done.all():
            return step + 1
    return n_new


@pytest.mark.parametrize("end", [0, 1, 2])
def test_a_sampled_token_ends_no_text_whatever_its_number(end):
    assert simulate(lambda: _generate(end, 16)).answer == 16


def test_conditions_of_an_unknown_value_agree_with_each_other():
    def program():
        unknown = torch.randn(4, device="cuda")
        low, token = unknown < 0, unknown.argmax() == 1
        flag = torch.zeros(4, dtype=torch.bool, device="cuda") | low
        written = (unknown < 0).clone()
        written |= unknown > 0  # no longer all false
        return [bool(low.any()), bool(low.all()), bool(token), bool(flag.any()), bool(written.any()),
                bool((low & (unknown > 0)).any()), bool(low.copy_(unknown > 0).any()), bool((unknown > 0).all())]  # fmt: skip

    assert simulate(program).answer == [False, False, False, False, True, False, True, True]


def test_a_resized_tensor_keeps_what_it_had():
    def program():
        found = torch.tensor([3, 4], device="cuda")
        found.resize_(6)
        return found[:2].tolist()

    result = simulate(program)
    assert result.answer == [3, 4]
    assert result.unknown_values == []


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


def test_a_loop_that_nothing_else_ends_reads_0_once():
    def program():
        loss, n = _unknown(), 0
        while loss.item() > 0.5:
            loss, n = loss * 0.9, n + 1
        return n

    result = simulate(program)
    line = program.__code__.co_firstlineno + 2
    assert 200 <= result.answer <= 300
    (notice,) = [each for each in result.notices if "ends by nothing else" in each]
    assert notice.startswith(
        f"test_limits.py:{line} reads a value that a simulated device cannot know, and the loop at test_limits.py:{line}"
    )
    assert f'WINDTUNNEL_VALUES="test_limits.py:{line}=NUMBER"' in notice


def test_a_loop_that_0_does_not_end_is_stopped_after_hundreds_of_reads():
    def program():
        accuracy = _unknown()
        while accuracy.item() < 2:
            accuracy = accuracy * 1.1

    result = simulate(program, is_ok=False)
    assert "each time as 1.0 and then as 0, and the loop at test_limits.py:" in result.error
    assert result.unknown_values[0]["count"] < 600


def test_a_training_loop_that_logs_its_loss_is_never_stopped():
    def program():
        model = nn.Linear(512, 512).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step, losses = 0, []
        while step < 400:
            loss = model(torch.rand(256, 512).cuda()).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
        return set(losses)

    result = simulate(program)
    assert result.answer == {1.0}
    assert not [each for each in result.notices if "reads a value" in each]


def test_a_failure_that_follows_from_an_invented_value_names_it():
    def program():
        n = torch.randn(4, device="cuda").argmax().item()
        return ["only"][n]

    result = simulate(program, is_ok=False)
    line = program.__code__.co_firstlineno + 1
    assert result.error == (
        f"the script raised IndexError: list index out of range; this rests on test_limits.py:{line}, which read the value of"
        " a device tensor as 1: no simulated device knows it, and with the real value the script may run; set it with"
        f' WINDTUNNEL_VALUES="test_limits.py:{line}=NUMBER" or windtunnel.mock'
    )


def test_a_value_read_inside_the_standard_library_is_on_the_users_line():
    def program():
        try:
            enum.IntEnum("Mode", "A B")(torch.randn(4, device="cuda").argmax() + 7)
        except (ValueError, TypeError):
            return program.__code__.co_firstlineno + 2

    result = simulate(program)
    assert [u["where"] for u in result.unknown_values] in ([f"test_limits.py:{result.answer}"], [])


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
