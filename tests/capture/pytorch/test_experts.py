"""Values that decide how many tokens an expert gets: they follow the routing of the run, at any size."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.pytorch.simulated import simulate

TOKENS, EXPERTS, TOP_K = 8192, 128, 8


def _scores(n_tokens=TOKENS, n_experts=EXPERTS):
    return torch.randn(n_tokens, n_experts, device="cuda")


def _by_bincount(ids):
    return torch.bincount(ids.flatten(), minlength=EXPERTS)


def _by_histc(ids):
    return torch.histc(ids.flatten().int(), bins=EXPERTS, min=0, max=EXPERTS - 1)


def _by_one_hot(ids):
    return F.one_hot(ids, EXPERTS).sum(dim=(0, 1))


def _by_mask(ids):
    return torch.zeros(len(ids), EXPERTS, device="cuda").int().scatter(1, ids, 1).bool().sum(0)


def _by_sort(ids):
    ids, _ = torch.sort(ids.flatten(), stable=True)
    ends = torch.searchsorted(ids, torch.arange(EXPERTS, device="cuda"), right=True)
    return torch.diff(ends, prepend=ends.new_zeros(1))


def _by_cumsum(ids):
    return _by_mask(ids).cumsum(0).diff(prepend=torch.zeros(1, dtype=torch.int64, device="cuda"))


def _by_unique(ids):
    values, counts = torch.unique(ids, return_counts=True)
    return torch.zeros(EXPERTS, dtype=torch.int64, device="cuda").scatter_(0, values, counts)


COUNTS = [_by_bincount, _by_histc, _by_one_hot, _by_mask, _by_sort, _by_cumsum, _by_unique]


@pytest.mark.parametrize("routing", ["balanced", "zipf:1.2", "worst"])
def test_tokens_of_each_expert_sum_to_all_choices_however_they_are_counted(routing):
    def program():
        ids = torch.topk(_scores(), TOP_K, dim=-1).indices
        return [count(ids).tolist() for count in COUNTS]

    run = simulate(program, routing=routing)
    assert [sum(counts) for counts in run.answer] == [TOKENS * TOP_K] * len(COUNTS)
    assert all(counts == run.answer[0] for counts in run.answer)
    first = {"balanced": 512, "worst": TOKENS}.get(routing)
    assert first is None or run.answer[0][0] == first
    assert run.unknown_values == []
    routers = run.recording.footer["routing"]["routers"]
    assert [(r["experts"], r["chosen"]) for r in routers] == [(EXPERTS, TOP_K)]


def test_unknown_ids_are_chosen_when_the_number_of_experts_shows():
    def program():
        ids = torch.randint(0, 16, (4096,), device="cuda")
        counts = torch.bincount(ids, minlength=16)
        return counts.tolist(), (ids == 3).nonzero().shape[0]

    assert simulate(program).answer == ([256] * 16, 256)


class Experts(nn.Module):
    """A loop over the experts that were hit, as in transformers."""

    def __init__(self, n_experts=8, width=16):
        super().__init__()
        self.gate = nn.Linear(width, n_experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(n_experts))
        self.sizes = []

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        weights, chosen = torch.topk(scores, 2)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            position, token = torch.where(mask[expert[0]])
            self.sizes.append(token.shape[0])
            y = self.experts[int(expert[0])](x[token]) * weights[token, position, None]
            out.index_add_(0, token, y)
        return out


@pytest.mark.parametrize(
    ("routing", "sizes"), [("balanced", [64] * 8), ("worst", [256] * 2)], ids=["balanced", "worst"]
)
def test_a_loop_over_experts_sees_the_tokens_of_each(routing, sizes):
    def program():
        model = Experts().cuda()
        for _ in range(2):
            model(torch.randn(256, 16, device="cuda", requires_grad=True)).sum().backward()
        return model.sizes

    assert simulate(program, routing=routing).answer == sizes * 2


def test_groups_are_chosen_first_and_experts_only_inside_them():
    def program():
        scores = _scores(4096, 64).sigmoid()
        group_scores = scores.view(4096, 8, -1).topk(2, dim=-1)[0].sum(dim=-1)
        groups = torch.topk(group_scores, k=4, dim=-1, sorted=False)[1]
        group_mask = torch.zeros_like(group_scores).scatter_(1, groups, 1)
        mask = group_mask.unsqueeze(-1).expand(-1, 8, 8).reshape(4096, -1)
        chosen = torch.topk(scores.masked_fill(~mask.bool(), float("-inf")), k=6, dim=-1)[1]
        is_inside = (chosen // 8).unsqueeze(-1).eq(groups.unsqueeze(1)).any(-1)
        return bool(is_inside.all()), torch.bincount(chosen.flatten(), minlength=64).tolist()

    is_inside, counts = simulate(program).answer
    assert is_inside
    assert counts == [384] * 64


def test_tokens_above_the_capacity_of_an_expert_are_dropped():
    def program():
        scores, ids = torch.topk(_scores(1024, 8), 2, dim=1)
        probabilities = torch.zeros_like(_scores(1024, 8)).scatter(1, ids, scores.softmax(-1))
        routing_map = torch.zeros(1024, 8, device="cuda").int().scatter(1, ids, 1).bool()
        kept = torch.topk(probabilities, k=320, dim=0, sorted=False)[1]
        capacity_mask = torch.zeros_like(probabilities).scatter(0, kept, 1).bool()
        return torch.logical_and(routing_map, capacity_mask).sum(0).tolist()

    assert simulate(program).answer == [256] * 8
    run = simulate(program, routing="worst")
    assert run.answer == [320, 320, 0, 0, 0, 0, 0, 0]
    assert [r["experts"] for r in run.recording.footer["routing"]["routers"]] == [8]


def test_a_running_count_stays_one_number():
    def program():
        total = torch.zeros(8, device="cuda")
        for _ in range(250):
            total += torch.bincount(_scores(64, 8).topk(2).indices.flatten(), minlength=8)
        return total.tolist()

    assert simulate(program).answer == [64 * 2 * 250 / 8] * 8


def test_every_layer_of_a_trace_has_its_own_counts(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"layers": [[3, 1, 0, 0], [0, 0, 1, 3]]}')

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Counter(), Counter()

        def forward(self):
            return [self.first().tolist(), self.second().tolist()]

    class Counter(nn.Module):
        def forward(self):
            return torch.bincount(_scores(8, 4).topk(1).indices.flatten(), minlength=4)

    def named():
        model = Model()
        return [model(), model()]

    assert simulate(named, routing=str(path)).answer == [[[6, 2, 0, 0], [0, 0, 2, 6]]] * 2


def test_peers_get_the_tokens_that_this_rank_would_send_itself():
    def program():
        torch.distributed.init_process_group("nccl")
        ids = _scores(4096, 16).topk(2).indices
        counts = torch.bincount(ids.flatten(), minlength=16)
        received = torch.empty_like(counts)
        torch.distributed.all_to_all_single(received, counts)
        send = counts.view(4, -1).sum(1).tolist()
        receive = received.view(4, -1).sum(1).tolist()
        tokens = torch.randn(8192, 8, device="cuda")
        out = tokens.new_empty(sum(receive), 8)
        torch.distributed.all_to_all_single(out, tokens, receive, send)
        experts = ids.new_empty(sum(receive))
        torch.distributed.all_to_all_single(experts, ids.flatten().sort().values, receive, send)
        return send, receive, torch.bincount(experts, minlength=16).tolist()

    for rank in (0, 1):
        send, receive, held = simulate(program, world_size=4, rank=rank, routing="zipf:1").answer
        assert sum(send) == 8192
        assert receive == [send[rank]] * 4
        assert sum(held) == 4 * send[rank]
        assert not any(held[: 4 * rank] + held[4 * rank + 4 :])


def test_a_program_without_experts_computes_none_of_it():
    def program():
        model = nn.Linear(8, 10).cuda()
        logits, labels = model(torch.randn(32, 8, device="cuda")), torch.arange(32).cuda() % 10
        _, best = logits.topk(5, 1, True, True)
        correct = best.t().eq(labels.view(1, -1).expand_as(best.t()))
        right = (logits.argmax(-1) == labels).sum().item(), correct[:1].float().sum().item()
        cached = sys.modules["windtunnel.capture.pytorch.kernels.lazy_nodes"]._cached
        words = torch.randn(4, 50_000, device="cuda").topk(5).indices
        return right, len(cached), words[0, 0].item()

    run = simulate(program)
    assert run.answer == ((1, 1.0), 0, 1)
    assert run.recording.footer["routing"] is None
    assert not [note for note in run.notices if "routing" in note]


def test_a_program_that_chooses_nothing_does_not_import_it():
    def program():
        model = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.zeros(4096, 8, device="cuda")).sum().backward()
        optimizer.step()
        return [name for name in sys.modules if name.endswith(("lazy_values", "lazy_nodes"))]

    assert simulate(program).answer == []
