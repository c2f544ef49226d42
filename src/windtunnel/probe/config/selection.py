"""Which entries of a run are collected: risk level and API list, `list`, `scope`, `tensor_list`, `data_mode`.

    (prefix, api)     ──> wants_api      once per API
    entry, its parents ──> wants         once per call, as it begins
    entry             ──> leave          as a module ends: closes the scope that ends with it
    entry             ──> wants_tensor   whether its tensors are saved in full

A scope is open from the moment its first name begins until its last name has ended, and what begins in between is
collected completely. Names arrive in execution order, so a step ends with `new_step`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from windtunnel.probe.config.api_list import LISTED_PREFIXES
from windtunnel.probe.config.merged_config import ProbeConfig
from windtunnel.probe.config.name_patterns import matcher
from windtunnel.probe.config.risk_levels import is_kept, is_kept_in_mindspore

__all__ = ["Selection"]

_GRADIENTS = ".parameters_grad"
_CACHED_PARENTS = 100_000  # more distinct modules than any model has; a guard, not a policy


class Selection:
    """The filters of a config, as fast predicates."""

    def __init__(self, config: ProbeConfig) -> None:
        self.is_open = not config.list and config.scope is None
        self.has_scope = config.scope is not None  # then answers depend on the order of the calls
        # Risk levels do not apply when the user names what to collect.
        by_risk = self.is_open and config.level in ("L1", "mix")
        self._risk_level = config.risk_level if by_risk else "ALL"
        self._is_kept = is_kept if config.framework == "pytorch" else is_kept_in_mindspore
        self._api_list = config.api_list if config.level in ("L1", "mix") else None
        self._listed = matcher(config.list) if config.list else None
        # At these levels a module (or API) in the list stands for everything that runs inside it.
        self._expands = self._listed is not None and config.level in ("mix", "L2")
        self._is_parent_listed: dict[str, bool] = {}
        self._first: str | None = None
        self._last: str | None = None
        if config.scope is not None:
            self._first, self._last = config.scope
        self._inside = config.scope is None
        self._ending = False  # the last name has begun; the scope closes when it has ended
        self._saves_all = config.task == "tensor"
        self._saved = matcher(config.tensor_list) if config.tensor_list else None
        forward, backward = "forward" in config.data_mode, "backward" in config.data_mode
        inputs, outputs = "input" in config.data_mode, "output" in config.data_mode
        self.forward_input = forward and inputs
        self.forward_output = forward and outputs  # parameters are written with it
        self.backward_input = backward and inputs
        self.backward_output = backward and outputs
        self.parameter_gradients = backward

    def wants_api(self, prefix: str, api: str) -> bool:
        """Whether calls of this API are collected at all; ask once and keep the answer."""
        if self._api_list is not None and prefix in LISTED_PREFIXES and (prefix, api) not in self._api_list:
            return False
        return self._is_kept(self._risk_level, prefix, api)

    def wants(self, entry_name: str, parents: Sequence[str] = ()) -> bool:
        """Whether an entry that begins now is collected; `parents` are the entries it runs inside."""
        if self.is_open:
            return True
        if self._first is not None:
            if self._ending and entry_name != self._last and self._last not in parents:
                self._close()  # leave() was not called for it, but something outside of it has begun
            if entry_name == self._first:
                self._inside = True
            if not self._inside:
                return False
            if entry_name == self._last:
                self._ending = True
        return self._listed is None or self._is_listed(self._listed, entry_name, parents)

    def leave(self, entry_name: str, parents: Sequence[str] = ()) -> bool:
        """Note that an entry has ended; return whether it is wanted at its end.

        An entry that had begun before the scope was opened inside it is wanted only at its end.
        """
        if self.is_open:
            return True
        wanted = self._inside and (self._listed is None or self._is_listed(self._listed, entry_name, parents))
        if entry_name == self._last and self._inside:
            self._close()
        return wanted

    def wants_tensor(self, entry_name: str) -> bool:
        """Whether the tensors of an entry are saved in full."""
        return self._saves_all or (self._saved is not None and self._saved(entry_name))

    def new_step(self) -> None:
        """Reset the state of the step."""
        if self._first is not None:
            self._close()
        self._is_parent_listed.clear()

    def _close(self) -> None:
        self._inside = self._ending = False

    def _is_listed(self, is_listed: Callable[[str], bool], entry_name: str, parents: Sequence[str]) -> bool:
        if is_listed(entry_name):
            return True
        module, gradients, _ = entry_name.rpartition(_GRADIENTS)
        # The gradients of parameters belong to the backward of their module.
        if gradients and is_listed(f"{module}.backward.0"):
            return True
        if not self._expands:
            return False
        known = self._is_parent_listed
        for parent in parents:
            answer = known.get(parent)
            if answer is None:
                if len(known) >= _CACHED_PARENTS:
                    known.clear()
                answer = known[parent] = is_listed(parent)
            if answer:
                return True
        return False
