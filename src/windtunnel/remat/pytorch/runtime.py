"""Dynamic tensor rematerialisation for real training: switching it on and off, and what it tells the user.

    forward ──> Recorder ──> values       autograd saves ──> pack ──> engine.save
    backward ──> unpack ──> engine.fetch ──> recipes run again          node done ──> engine.unsave

Runtime ──> Interception (torch's hooks) ──> Recorder, SavedTensors ──> LiveHost ──> Engine
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.pytorch.backward_retry import BackwardRetry
from windtunnel.remat.pytorch.costs import Costs
from windtunnel.remat.pytorch.host import LiveHost
from windtunnel.remat.pytorch.interception import Interception
from windtunnel.remat.pytorch.recorder import Recorder
from windtunnel.remat.pytorch.saved_tensors import SavedTensors
from windtunnel.units import format_bytes

__all__ = ["Runtime", "device_bytes", "limit_device", "runtime_here"]

_ROUGH_BELOW = 0.9  # of the limit: below this a rough count of live bytes is enough
_FAR_BELOW = 0.5  # of the limit: a round that stays under this needs no recorder


class Runtime:
    """One per process."""

    def __init__(self, settings: Settings, device: torch.device, costs: Costs | None = None) -> None:
        self.host = LiveHost(settings, device, costs)
        self.settings = settings
        self.device = device
        self.meter = self.host.meter
        self.costs = self.host.costs
        self.engine = self.host.engine
        self._saved = SavedTensors(self.host, self.attend, self.wake_if_near)
        recorder = Recorder(self.host, self.before, self.is_on_side_stream)
        self._interception = Interception(recorder, self._saved.pack, self._saved.unpack)
        self._interception.is_recording = lambda: self.host.is_recording
        self._interception.after_backward = self.end_round
        self._interception.describe_usage = self.host.describe_usage
        self._interception.retrying = self._retrying
        self._backward_retry = BackwardRetry(self.host)
        self._home_stream: Any = None
        self._n_unseen = 0  # backwards since `start`, as long as nothing has been saved
        self._warned: set[tuple[str, int | None]] = set()  # which warning, at which threshold

    @property
    def is_on(self) -> bool:
        return self._interception.is_on

    def start(self) -> None:
        if not self.is_on:
            self._home_stream = None if self.device.type == "cpu" else torch.accelerator.current_stream()
            self._saved.has_packed = False
            self._n_unseen = 0
        self._interception.start()
        self.host.is_recording = self.engine.is_evicting = True

    def stop(self) -> None:
        """Stop recording and evicting. Evicted tensors are still rematerialised when backward needs them."""
        self.host.is_recording = self.engine.is_evicting = False
        self._interception.stop()

    def end_round(self) -> None:
        """A backward has ended: release recipes, and pause recording if memory stayed far below the limit."""
        with self.host.lock:
            self._saved.unsave_released()
            self.host.release_recipes()
            self.engine.end_backward()
            self._warn_of_failures()
            self.meter.quiet_below = int(self.engine.limit * _ROUGH_BELOW)
        is_far_below = self.engine.guard.peak_bytes < self.engine.limit * _FAR_BELOW
        if (
            self._interception.is_on
            and self.host.is_recording
            and is_far_below
            and not self.engine.candidates()
        ):
            self.host.is_recording = False
            self._interception.rest()

    def before(self, key: Hashable) -> None:
        """A recorded operator is about to run: make room, and if no backward is running, a round has ended."""
        if self._interception.n_backwards:
            self.engine.make_room_for(key)  # a backward runs in another thread
        else:
            self.engine.before(key)

    def _retrying(self, roots: Any) -> AbstractContextManager[None]:
        """Around a backward: without a threshold and near the limit, its operators wait for evictions."""
        is_needed = (
            self.settings.threshold is None
            and self.host.is_recording
            and self.meter.live_bytes() > self.engine.limit * _FAR_BELOW
        )
        return self._backward_retry.during(roots) if is_needed else nullcontext()

    def attend(self) -> None:
        """Something is saved in this thread, which may not be the one that called `start`."""
        self._interception.attend()

    def wake_if_near(self) -> None:
        """Something is saved while recording is paused: resume if memory has grown."""
        if self._interception.is_on and self.meter.live_bytes() > self.engine.limit * _FAR_BELOW:
            self.host.is_recording = True

    def is_on_side_stream(self) -> bool:
        """True on a stream other than the one `start` was called on: tensors made there are never evicted."""
        if self._home_stream is None or torch.accelerator.current_stream() == self._home_stream:
            return False
        self._warn(
            "stream",
            "forward runs on another stream than dtr.enable() did: what it makes there is not evicted, because only"
            " one stream is managed; call dtr.disable(), then dtr.enable() on the stream you train on",
        )
        return True

    # -- warnings -------------------------------------------------------------------------------------------

    def _warn_of_failures(self) -> None:
        """After a backward: warn once of each threshold that was not held, or if no saved tensor was seen."""
        if self.settings.threshold is None:
            limit = f"the {format_bytes(self.engine.limit)} that may be used"
            if self.engine.guard.is_tripped:
                self._warn(
                    "guard",
                    f"with {limit}, one step recomputed more than twice as many values as it has operators; a smaller"
                    " batch or activation checkpointing takes less time",
                )
        else:
            limit = f"the threshold of {format_bytes(self.settings.threshold)}"
            self._warn_of_threshold(limit)
        self._n_unseen = 0 if self._saved.has_packed else self._n_unseen + 1
        # The first backward may belong to a forward that ran before `start`.
        if self._n_unseen > 1 and self.is_on and self.meter.live_bytes() > self.engine.limit:
            self._warn(
                "unseen",
                f"{format_bytes(self.meter.live_bytes())} are in use, more than {limit}, but no tensor saved by"
                " autograd has been seen since dtr.enable(). If the forward runs in a thread that began before, call"
                " dtr.enable() in that thread; inside torch.func and other saved-tensor hooks nothing is evicted",
            )

    def _warn_of_threshold(self, threshold: str) -> None:
        needed, reachable = self.engine.needed_bytes, self.engine.reachable_bytes
        if needed:
            self._warn(
                "floor",
                f"{threshold} is below what cannot be evicted: {format_bytes(needed)} were needed at once. Training"
                " continues with everything evictable evicted, which costs time and gains nothing; set"
                f" dtr.eviction_threshold to {reachable} or more",
            )
        if self.engine.guard.is_tripped:
            raised = self.engine.guard.raised(self.engine.limit)
            self._warn(
                "guard",
                f"{threshold} made one step recompute more than twice as many values as it has operators;"
                f" {format_bytes(raised)} is used from the next step on, and more if that is not enough; set"
                f" dtr.eviction_threshold to {max(raised, reachable)} or more",
            )

    def _warn(self, what: str, sentence: str) -> None:
        if (what, self.settings.threshold) not in self._warned:
            self._warned.add((what, self.settings.threshold))
            warnings.warn(f"windtunnel.dtr: {sentence}", stacklevel=2)


def runtime_here(settings: Settings) -> Runtime:
    """Return a runtime for the device this process trains on: the current accelerator, or the CPU."""
    return Runtime(settings, _device_here())


def device_bytes() -> int:
    """The total memory of that device."""
    device = _device_here()
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return getattr(torch, device.type).mem_get_info(device)[1]


def limit_device(n_bytes: int | None) -> None:
    """Let the device's own allocator refuse what exceeds this; on the CPU there is no such switch."""
    device = _device_here()
    if device.type != "cpu":
        share = 1.0 if n_bytes is None else min(n_bytes / device_bytes(), 1.0)
        getattr(torch, device.type).set_per_process_memory_fraction(share, device)


def _device_here() -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
