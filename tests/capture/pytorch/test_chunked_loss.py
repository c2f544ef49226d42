"""A loss in chunks: the same loss and gradients, and to the byte the memory of a program written that way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.pytorch.simulated import run_plainly, simulate
from windtunnel.capture.pytorch.chunked_loss import Logits, install_chunked_loss
from windtunnel.errors import ScriptError

CLASSES, WIDTH, TOKENS = 600, 16, (4, 33)


class Gated(nn.Module):
    """Two projections that wait at the same time, inside a checkpoint and outside."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Net(nn.Module):
    def __init__(self, is_checkpointed=False):
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.embedding, self.block = nn.Embedding(CLASSES, WIDTH), Gated()
        self.head = nn.Linear(WIDTH, CLASSES)

    def hidden(self, tokens):
        x = self.embedding(tokens)
        return checkpoint(self.block, x, use_reentrant=False) if self.is_checkpointed else self.block(x)

    def forward(self, tokens):
        return self.head(self.hidden(tokens))


def _shifted(net, tokens, labels):
    logits = net(tokens)[..., :-1, :].contiguous()
    return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), labels[:, 1:].reshape(-1))


def _flat(net, tokens, labels):
    logits = net(tokens)
    return F.cross_entropy(logits.to(logits.device).flatten(0, 1), labels.flatten(), reduction="sum")


def _classes_second(net, tokens, labels):
    return nn.CrossEntropyLoss(label_smoothing=0.1)(net(tokens).transpose(1, 2), labels)


def _each(net, tokens, labels):
    losses = F.cross_entropy(net(tokens).permute(0, 2, 1), labels, reduction="none")
    assert losses.shape == labels.shape
    return losses.square().mean()


def _capped(net, tokens, labels):
    logits = torch.tanh(net(tokens) / 3.0) * 3.0
    return F.nll_loss(F.log_softmax(logits, dim=-1).flatten(0, 1), labels.flatten())


def _tied(net, tokens, labels):
    logits = net.hidden(tokens) @ net.embedding.weight.t()
    return F.cross_entropy(logits.reshape(-1, CLASSES), labels.flatten())


def _masked(net, tokens, labels):
    chosen = labels != -100
    return F.cross_entropy(net(tokens)[chosen], labels[chosen])


def _autocast(net, tokens, labels):
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(tokens)
    assert logits.dtype == torch.bfloat16
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def _frozen(net, tokens, labels):
    net.head.requires_grad_(False)
    return F.cross_entropy(net(tokens).flatten(0, 1), labels.flatten())


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def _custom(net, tokens, labels):
    return F.cross_entropy(Twice.apply(net(tokens)).flatten(0, 1), labels.flatten())


def _weighted(net, tokens, labels):
    weight = torch.linspace(0.5, 1.5, CLASSES)
    return F.cross_entropy(net(tokens).flatten(0, 1), labels.flatten(), weight)


def _no_loss(net, tokens, labels):
    logits = net(tokens)
    return logits.softmax(-1).square().sum() + logits[..., :10].mean() + logits.view(-1).mean()


def _looked_at_first(net, tokens, labels):
    logits = net(tokens)
    assert logits.argmax(-1).shape == labels.shape
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _train(loss_of, is_checkpointed):
    torch.manual_seed(0)
    net = Net(is_checkpointed)
    tokens = torch.randint(0, CLASSES, TOKENS)
    labels = tokens.clone()
    labels[:, :5] = -100
    found = []
    for _ in range(2):
        net.zero_grad()
        loss = loss_of(net, tokens, labels)
        loss.backward()
        found.append(
            (loss.item(), {n: p.grad.tolist() for n, p in net.named_parameters() if p.grad is not None})
        )
    return found


CHUNKED = [_shifted, _flat, _classes_second, _each, _capped, _tied, _masked, _autocast, _frozen]
WHOLE = [_custom, _weighted, _no_loss, _looked_at_first]


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("loss_of", [*CHUNKED, *WHOLE])
def test_loss_and_gradients_are_the_same_in_chunks(loss_of, is_checkpointed):
    def in_chunks():
        has_chunked = install_chunked_loss(8)
        return _train(loss_of, is_checkpointed), has_chunked()

    found, has_chunked = run_plainly(in_chunks)
    assert has_chunked == (loss_of in CHUNKED)
    tolerance = 2e-2 if loss_of is _autocast else 1e-5
    for (loss, gradients), (chunked, others) in zip(_train(loss_of, is_checkpointed), found, strict=True):
        assert chunked == pytest.approx(loss, rel=1e-5)
        assert gradients.keys() == others.keys()
        for name, gradient in gradients.items():
            expected, got = torch.tensor(gradient), torch.tensor(others[name])
            torch.testing.assert_close(got, expected, rtol=0, atol=tolerance * expected.abs().max().item())


def test_logits_can_be_used_until_backward_and_not_after_it():
    def program():
        install_chunked_loss(8)
        net, tokens = Net(), torch.zeros(TOKENS, dtype=torch.int64)
        logits = net(tokens)
        assert isinstance(logits, Logits)
        before = net(tokens)
        losses = [F.cross_entropy(each.flatten(0, 1), tokens.flatten()) for each in (logits, before)]
        assert not logits.requires_grad  # no hook of a wrapper has anything to wait for
        best = before.argmax(-1)
        sum(losses).backward()
        with pytest.raises(ScriptError, match="uses the logits after backward"):
            logits.argmax(-1)
        return best.shape

    assert run_plainly(program) == TOKENS


# -- memory -----------------------------------------------------------------------------------------------------


class Language(nn.Module):
    def __init__(self, is_by_hand):
        super().__init__()
        self.is_by_hand = is_by_hand
        self.embedding = nn.Embedding(8000, 256)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
            for _ in range(3)
        )
        self.head = nn.Linear(256, 8000, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        x, labels = x.flatten(0, 1), tokens.flatten()
        if not self.is_by_hand:
            return F.cross_entropy(self.head(x), labels)
        pieces = zip(x.chunk(8), labels.chunk(8), strict=True)
        losses = [checkpoint(self._loss_of, *piece, use_reentrant=False) for piece in pieces]
        return torch.stack(losses).sum() / (labels != -100).sum()

    def _loss_of(self, x, labels):
        return F.cross_entropy(self.head(x), labels, reduction="sum")


def _program(is_by_hand, is_autocast):
    def program():
        net = Language(is_by_hand).cuda()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(3):
            with torch.autocast("cuda", torch.bfloat16, enabled=is_autocast):
                loss = net(torch.zeros(16, 256, dtype=torch.int64, device="cuda"))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


@pytest.mark.parametrize("is_autocast", [False, True])
def test_the_memory_is_that_of_a_program_that_was_written_with_chunks(is_autocast):
    plain = simulate(_program(False, is_autocast))
    by_hand = simulate(_program(True, is_autocast))
    chunked = simulate(_program(False, is_autocast), loss_chunks=8)
    logits = 16 * 256 * 8000 * 4
    assert plain.peak_bytes - by_hand.peak_bytes > logits
    assert chunked.peak_bytes == by_hand.peak_bytes
    assert chunked.memory.peak_with_fragments_bytes == by_hand.memory.peak_with_fragments_bytes
    large = [size for size in by_hand.alloc_sizes() if size >= 1 << 20]
    assert sorted(size for size in chunked.alloc_sizes() if size >= 1 << 20) == sorted(large)


def test_without_a_cross_entropy_nothing_changes_and_the_report_says_so():
    def program():
        net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 4096)).cuda()
        for _ in range(2):
            net(torch.zeros(128, 64, device="cuda")).square().mean().backward()

    plain, chunked = simulate(program), simulate(program, loss_chunks=8)
    assert chunked.notices == [
        "--chunk-loss changed nothing: no projection went straight into a cross-entropy"
    ]
    assert _until_the_last_allocation(chunked) == _until_the_last_allocation(plain)


def _until_the_last_allocation(result):
    """What is freed when the program ends, and in which order, depends on Python and on autograd's thread."""
    lives = result.lives()
    while lives[-1].startswith("-"):
        lives.pop()
    assert len(lives) > 20
    return lives
