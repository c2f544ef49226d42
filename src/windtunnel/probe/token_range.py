"""Inference: collect only some tokens of a generate loop, or only one request of a batch.

    root forward 0 (the prompt), 1, 2, 3, ...  ──> token_range [1, 2] ──> hooks are in place from forward 1 until 3 begins

Nothing is in place outside the range but one hook on the model, so the other tokens run at full speed. A model is
whatever has `register_forward_pre_hook`: a module of torch, a cell of MindSpore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.probe.tensor_slices import Slice, request_slice

__all__ = ["TokenRange", "check_scheduled_tokens", "check_token_range", "slices_for"]


def check_token_range(token_range: Any) -> None:
    """Raise unless it is two whole numbers from 0 on, in order."""
    if token_range is None:
        return
    is_pair = isinstance(token_range, (list, tuple)) and len(token_range) == 2
    if not is_pair or any(type(token) is not int for token in token_range):
        raise UsageError(
            f"token_range {token_range!r} is not a pair of tokens", hint="give [first, last], as [0, 3]"
        )
    first, last = token_range
    if first < 0 or first > last:
        raise UsageError(
            f"token_range {list(token_range)} holds no token",
            hint="give 0 <= first <= last; the prompt is token 0",
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
            # Now and not when the last token's forward ended: choosing the token that follows from it belongs to it.
            self.close()
            self._end()

    def close(self) -> None:
        """Count no more."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()


def check_scheduled_tokens(scheduled_tokens: Any) -> None:
    """Raise unless it says how many tokens of each request are in the batch."""
    if scheduled_tokens is None:
        return
    if not isinstance(scheduled_tokens, Mapping):
        raise UsageError(
            f"scheduled_tokens is a {type(scheduled_tokens).__name__}",
            hint='give a dict such as {"request-0": 5}',
        )
    for request, n_tokens in scheduled_tokens.items():
        if not isinstance(request, str) or type(n_tokens) is not int or n_tokens <= 0:
            raise UsageError(
                f"scheduled_tokens has {request!r}: {n_tokens!r}",
                hint="give the id of each request and how many tokens of it are scheduled, 1 or more",
            )


def slices_for(
    slices: tuple[Slice, ...], request_id: str | None, scheduled_tokens: Mapping[str, int] | None
) -> tuple[Slice, ...] | None:
    """The slices of a config and that of the request it asks for; None: the request is not in this batch."""
    if not request_id or not scheduled_tokens:
        return slices
    mine = request_slice(request_id, scheduled_tokens)
    return None if mine is None else (*slices, mine)
