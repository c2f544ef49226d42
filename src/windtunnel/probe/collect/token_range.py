"""Inference: collect only some tokens of a generate loop, or only one request of a batch.

    root forward 0 (the prompt), 1, 2, 3, ...  ──> token_range [1, 2] ──> hooks are installed from forward 1 until 3 begins

Outside the range only one hook on the model is installed, so the other tokens run at full speed. A model is anything
that has `register_forward_pre_hook`: a torch module or a MindSpore cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.probe.config.slices import Slice, request_slice

__all__ = ["TokenRange", "check_scheduled_tokens", "check_token_range", "slices_for"]


def check_token_range(token_range: Any) -> None:
    """Raise unless it is two non-negative integers in order."""
    if token_range is None:
        return
    is_pair = isinstance(token_range, (list, tuple)) and len(token_range) == 2
    if not is_pair or any(type(token) is not int for token in token_range):
        raise UsageError(
            f"token_range {token_range!r} is not a pair of integers",
            hint="pass [first, last], such as [0, 3]",
        )
    first, last = token_range
    if first < 0 or first > last:
        raise UsageError(
            f"token_range {list(token_range)} contains no token",
            hint="pass 0 <= first <= last; the prompt is token 0",
        )


class TokenRange:
    """Counts the forward calls of a model; calls `begin` when the first token begins and `end` after the last."""

    def __init__(
        self, model: Any, token_range: Sequence[int], begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self.first, self.last = token_range
        self.token = -1  # the one whose forward began last
        self._begin, self._end = begin, end
        self._handle: Any = model.register_forward_pre_hook(self._before)

    def _before(self, module: Any, args: tuple) -> None:
        self.token += 1
        if self.token == self.first:
            self._begin()
        elif self.token == self.last + 1:
            # Not when the last token's forward ended: sampling the next token from its output belongs to it.
            self.close()
            self._end()

    def close(self) -> None:
        """Stop counting."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()


def check_scheduled_tokens(scheduled_tokens: Any) -> None:
    """Raise unless it maps each request of the batch to its number of tokens."""
    if scheduled_tokens is None:
        return
    if not isinstance(scheduled_tokens, Mapping):
        raise UsageError(
            f"scheduled_tokens is a {type(scheduled_tokens).__name__}",
            hint='pass a dict such as {"request-0": 5}',
        )
    for request, n_tokens in scheduled_tokens.items():
        if not isinstance(request, str) or type(n_tokens) is not int or n_tokens <= 0:
            raise UsageError(
                f"scheduled_tokens has {request!r}: {n_tokens!r}",
                hint="map the id of each request to its number of scheduled tokens, 1 or more",
            )


def slices_for(
    slices: tuple[Slice, ...], request_id: str | None, scheduled_tokens: Mapping[str, int] | None
) -> tuple[Slice, ...] | None:
    """The slices of a config and that of the request it selects; None if the request is not in this batch."""
    if not request_id or not scheduled_tokens:
        return slices
    mine = request_slice(request_id, scheduled_tokens)
    return None if mine is None else (*slices, mine)
