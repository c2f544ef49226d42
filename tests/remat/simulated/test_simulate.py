"""The simulated runtime on programs written by hand: every eviction and every byte can be told in advance."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.devices import find_device
from windtunnel.events.model import COLUMNS, CallFlag, Recording, Signature, TensorSpec
from windtunnel.memory import Allocator
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.simulated import program as p
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.remat.simulated.simulate import floor_bytes, simulate
from windtunnel.timing.cost import CostTable, cost_key

MIB = 1 << 20
N = MIB  # bytes of every tensor below, unless it says otherwise
SHAPE = (N // 4,)
SPEC = TensorSpec(SHAPE, (1,), "float32")
GRAD = int(CallFlag.GRAD)


class Script:
    """Writes a program action by action; storages and handles are numbered by the test."""

    def __init__(self) -> None:
        self.actions: list[p.Action] = []
        self.signatures: list[Signature] = []
        self.vanishing: set[int] = set()

    def call(
        self, name: str, inputs=(), outputs=(), *, sizes=None, written=(), flags=GRAD, scalars=""
    ) -> None:
        scalars = scalars or ",".join("_" * len(inputs))
        signature = Signature(name, (SPEC,) * len(inputs), (SPEC,) * len(outputs), scalars)
        if signature not in self.signatures:
            self.signatures.append(signature)
        index = self.signatures.index(signature)
        row = self._row
        results = tuple(outputs) or tuple(written)
        self.actions.append(p.Call(row, name, index, tuple(inputs), tuple(written), results, flags, (index,)))
        for output, n_bytes in zip(outputs, sizes or [N] * len(outputs), strict=True):
            self.actions.append(p.Alloc(row, output, n_bytes))
        self.actions.append(p.Op(row, index))
        self.actions.append(p.Return(row))

    def alloc(self, *storages: int, n_bytes: int = N) -> None:
        self.actions += [p.Alloc(self._row, storage, n_bytes) for storage in storages]

    def free(self, *storages: int) -> None:
        self.actions += [p.Free(self._row, storage) for storage in storages]

    def save(self, handle: int, storage: int) -> None:
        self.actions.append(p.Save(self._row, handle, storage))

    def load(self, handle: int, storage: int) -> None:
        self.actions.append(p.Load(self._row, handle, storage, True))

    def unsave(self, handle: int) -> None:
        self.actions.append(p.Unsave(self._row, handle))

    def backward(self, *handles: int) -> None:
        """Each handle is wanted, used and let go, last first."""
        for handle in reversed(handles):
            self.load(handle, 1000 + handle)
            self.free(1000 + handle)
            self.unsave(handle)
        self.actions.append(p.BackwardEnd(self._row))

    def step(self) -> None:
        number = sum(isinstance(action, p.Step) for action in self.actions) + 1
        self.actions.append(p.Step(self._row, number))

    @property
    def _row(self) -> int:
        return len(self.actions)

    def program(self) -> p.Program:
        columns = {name: np.zeros(self._row + 1, dtype) for name, dtype in COLUMNS.items()}
        columns["module"][:] = -1
        nothing = (np.zeros(self._row + 2, np.int64), np.zeros(0, np.int64))
        signatures = tuple(self.signatures)
        recording = Recording({}, (), signatures, (), columns, nothing, nothing)
        n_steps = sum(isinstance(action, p.Step) for action in self.actions)
        return p.Program(tuple(self.actions), signatures, recording, n_steps, frozenset(self.vanishing))

    def costs(self, seconds: float = 1.0) -> ProgramCosts:
        table = CostTable({cost_key(s.name, (i.shape for i in s.inputs)): seconds for s in self.signatures})
        return ProgramCosts(self.program(), find_device("a100-80gb"), table)

    def run(self, threshold: int | None, allocator: Allocator | None = None, minimum: int = N, **options):
        settings = Settings(threshold=threshold, minimum_size=minimum)
        return simulate(self.program(), self.costs(), settings, allocator, **options)


def _chain(n: int, name: str = "aten.exp.default") -> Script:
    """x -> v1 -> ... -> vn, each saved, each let go of once the next is made; then backward."""
    script = Script()
    script.alloc(0)
    for i in range(1, n + 1):
        script.call(name, [i - 1], [i])
        if i > 1:
            script.free(i - 1)
        script.save(i, i)
    script.free(n)
    script.backward(*range(1, n + 1))
    script.step()
    return script


def test_nothing_is_evicted_while_everything_fits():
    outcome = _chain(3).run(4 * N)
    step = outcome.last_step
    assert (step.evictions, step.rematerialisations, step.extra_seconds) == (0, 0, 0.0)
    assert step.peak_live_bytes == step.peak_seen_bytes == 4 * N
    assert step.slowdown == 1.0
    assert outcome.out_of_memory is None


def test_one_value_too_many_is_evicted_and_computed_again():
    """Before v3 is made there are x, v1 and v2, and the program holds v2: v1 goes, and comes back for backward."""
    step = _chain(3).run(3 * N).last_step
    assert (step.evictions, step.evicted_bytes) == (1, N)
    assert (step.rematerialisations, step.rematerialised_bytes, step.extra_seconds) == (1, N, 1.0)
    assert step.peak_live_bytes == 3 * N
    assert step.longest_chain == 1
    assert step.base_seconds == 3.0
    assert step.slowdown == pytest.approx(4 / 3)


def test_a_value_is_computed_again_from_evicted_ones():
    """Room for x and two more: of v1 .. v4 the first three are gone at the end of forward."""
    step = _chain(4).run(3 * N).last_step
    assert step.evictions >= 2
    assert step.longest_chain >= 2
    assert step.peak_live_bytes <= 3 * N


def test_what_the_program_still_holds_is_not_evicted():
    script = Script()
    script.alloc(0)
    for i in (1, 2, 3):
        script.call("aten.exp.default", [i - 1], [i])
        script.save(i, i)
    script.backward(1, 2, 3)
    script.free(1, 2, 3)
    step = script.run(2 * N).last_step
    assert step.evictions == 0
    assert step.peak_live_bytes == 4 * N


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("aten.nonzero.default", GRAD),
        ("mylib.kernel.default", GRAD),
        ("aten.exp.default", GRAD | int(CallFlag.ODD)),
        ("aten.exp.default", 0),
    ],
)
def test_what_cannot_run_again_is_kept_until_autograd_lets_go(name, flags):
    script = Script()
    script.alloc(0)
    for i in (1, 2):
        script.call(name, [i - 1], [i], flags=flags)
        script.save(i, i)
    script.free(1, 2)
    script.load(2, 12)
    script.free(12)
    script.unsave(2)
    script.alloc(3)
    script.step()
    step = script.run(2 * N).last_step
    assert step.evictions == 0
    assert step.peak_live_bytes == 3 * N  # x, v1, v2; then x, v1 and the new one


def test_small_values_are_never_evicted():
    step = _chain(3).run(2 * N, minimum=N + 1).last_step
    assert (step.evictions, step.peak_live_bytes) == (0, 4 * N)


def test_what_adds_in_no_fixed_order_is_not_run_again_on_cuda():
    script = _chain(4, "aten.cumsum.default")
    assert script.run(3 * N, is_cuda=True).last_step.evictions == 0
    assert script.run(3 * N, is_cuda=False).last_step.evictions > 0


def test_results_of_one_call_come_back_together():
    script = Script()
    script.alloc(0)
    script.call("aten.native_layer_norm.default", [0], [1, 2, 3], sizes=[N, N, 64])
    script.save(1, 1)
    script.save(2, 2)
    script.free(1, 2, 3)
    script.call("aten.exp.default", [0], [4])
    script.call("aten.exp.default", [4], [5])
    script.free(4, 5)
    script.backward(1, 2)
    step = script.run(3 * N).last_step
    assert (step.evictions, step.rematerialisations) == (2, 1)


def test_a_write_in_place_makes_a_new_value_over_the_old():
    """v1 = exp(x); v1.add_(x), saved: to have it again exp runs, and add_ into the same bytes."""
    script = Script()
    script.alloc(0)
    script.call("aten.exp.default", [0], [1])
    script.call("aten.add_.Tensor", [1, 0], written=[1], flags=GRAD | int(CallFlag.COVERS))
    script.save(1, 1)
    script.free(1)
    script.call("aten.exp.default", [0], [2])
    script.call("aten.exp.default", [2], [3])
    script.free(2, 3)
    script.backward(1)
    step = script.run(3 * N).last_step
    assert (step.evictions, step.rematerialisations, step.longest_chain) == (1, 2, 2)
    assert step.peak_live_bytes == 3 * N


def test_memory_that_is_filled_with_random_numbers_can_be_had_again():
    """Dropout: blank memory, filled, multiplied; on the host the generator's state lies in the same memory."""
    script = Script()
    script.alloc(0)
    script.call("aten.empty_like.default", [0], [1])
    covers = int(CallFlag.COVERS)
    script.call("aten.bernoulli_.float", [1], written=[1], flags=GRAD | covers | int(CallFlag.SEEDED))
    script.save(1, 1)
    script.free(1)
    script.call("aten.exp.default", [0], [2])
    script.call("aten.exp.default", [2], [3])
    script.free(2, 3)
    script.backward(1)
    on_card = script.run(3 * N).last_step
    assert (on_card.evictions, on_card.rematerialisations, on_card.peak_live_bytes) == (1, 1, 3 * N)
    on_host = script.run(3 * N + 5056, is_cuda=False).last_step
    assert (on_host.evictions, on_host.peak_live_bytes) == (1, 3 * N + 5056)


def test_blank_memory_that_torch_did_not_see_filled_stays():
    script = Script()
    script.alloc(0)
    script.call("aten.empty_like.default", [0], [1])
    script.call("aten.exp.default", [1], [2])  # a kernel of the user's own may have written into it
    script.save(1, 1)
    script.save(2, 2)
    script.free(1, 2)
    script.call("aten.exp.default", [0], [3])
    script.free(3)
    script.backward(1, 2)
    assert script.run(2 * N).last_step.evictions == 0


def test_running_statistics_that_change_later_do_not_matter():
    """A batch norm in training leaves them out when it runs again; one that reads them is computed before they change."""
    for training, n_evicted_at_end in (("True", 1), ("False", 0)):
        script = Script()
        script.alloc(0, 10, 11, 12, 13)
        inputs, scalars = [0, 10, 11, 12, 13], f"_,_,_,_,_,{training},0.1,1e-05"
        script.call("aten.native_batch_norm.default", inputs, [1], scalars=scalars)
        script.save(1, 1)
        script.free(1)
        script.call("aten.exp.default", [0], [2])
        script.call("aten.exp.default", [2], [3])  # evicts the batch norm's result
        script.free(2, 3)
        script.call("aten.zero_.default", [12], written=[12], flags=0)
        outcome = script.run(7 * N)
        assert outcome.statistics.evictions == 1
        assert outcome.statistics.evictions - outcome.statistics.rematerialisations == n_evicted_at_end


def test_a_program_far_below_the_threshold_is_not_watched():
    """After a backward that stayed under half of the limit the runtime looks at memory only when backward ends."""
    script = Script()
    script.alloc(0)
    for _ in range(2):
        script.call("aten.exp.default", [0], [1])
        script.save(1, 1)
        script.free(1)
        script.backward(1)
        script.step()
    first, second = script.run(10 * N).steps
    assert (first.peak_seen_bytes, second.peak_seen_bytes) == (
        2 * N,
        N,
    )  # the end of backward alone is looked at
    assert (first.peak_live_bytes, second.peak_live_bytes) == (2 * N, 2 * N)


def test_the_floor_is_what_nobody_could_evict():
    script = _chain(4)
    settings = Settings(minimum_size=N)
    assert floor_bytes(script.program(), script.costs(), settings) == (3 * N, 5 * N)


def test_a_value_that_reads_a_sharded_weight_is_kept_and_those_after_it_are_not():
    """v1 = x @ w with w emptied after forward: v1 stays, v2 = exp(v1) can go and come back."""
    script = Script()
    script.alloc(0, 9)
    script.vanishing.add(9)
    script.call("aten.mm.default", [0, 9], [1])
    script.save(1, 1)
    script.free(9)
    script.call("aten.exp.default", [1], [2])
    script.save(2, 2)
    script.free(1, 2)
    script.call("aten.sin.default", [0], [3])
    script.call("aten.sin.default", [3], [4])
    script.free(3, 4)
    script.backward(1, 2)
    step = script.run(4 * N).last_step
    assert (step.evictions, step.rematerialisations) == (1, 1)
    assert step.peak_live_bytes == 4 * N  # the weight itself is not held by the recipe


# -- with an allocator ------------------------------------------------------------------------------------------

LARGE = 20 * MIB  # takes a segment of its own


def _device(n_bytes: int) -> Allocator:
    return Allocator.named("cuda", device_bytes=n_bytes)


def _large_chain(n: int) -> Script:
    script = Script()
    script.alloc(0, n_bytes=LARGE)
    for i in range(1, n + 1):
        script.call("aten.exp.default", [i - 1], [i], sizes=[LARGE])
        if i > 1:
            script.free(i - 1)
        script.save(i, i)
    script.free(n)
    return script


def test_a_full_device_evicts_in_forward_and_tries_again():
    script = _large_chain(4)
    script.backward(1, 2, 3, 4)
    outcome = script.run(None, _device(3 * LARGE), capacity=1 << 62)
    step = outcome.last_step
    assert outcome.out_of_memory is None
    assert step.allocation_retries >= 2
    assert step.peak_reserved_bytes == 3 * LARGE


def test_a_full_device_in_backward_is_out_of_memory():
    """Nothing can be evicted amid backward's own operators: the runtime does not see them."""
    script = _large_chain(2)
    script.alloc(50, n_bytes=LARGE)  # a gradient
    failure = script.run(None, _device(3 * LARGE), capacity=1 << 62).out_of_memory
    assert failure is not None
    assert failure.requested_bytes == LARGE
    assert (failure.live_bytes, failure.evictable_bytes) == (3 * LARGE, 2 * LARGE)
    assert failure.step == 1


def test_a_device_too_small_for_one_operator_is_out_of_memory_there():
    script = _large_chain(2)
    failure = script.run(None, _device(LARGE + MIB), capacity=1 << 62).out_of_memory
    assert failure is not None
    assert failure.operator == "aten.exp.default"
    assert failure.place == "build"


def test_without_a_threshold_the_device_is_the_limit():
    script = _large_chain(4)
    script.backward(1, 2, 3, 4)
    step = script.run(None, _device(3 * LARGE)).last_step
    assert step.evictions >= 2
    assert step.allocation_retries <= 1  # only the first time, when the operator's size was not known
