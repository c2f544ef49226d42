"""One rank's side of a process group of any size: every collective returns immediately and is recorded.

dist.all_reduce(x, group) ──> SimulatedGroup.allreduce ──> COLLECTIVE row, a handle whose wait() is a WAIT row
                                                      └──> values, where they are known (pytorch/world/peer_values.py)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from windtunnel.capture.enough_steps import EnoughSteps
from windtunnel.capture.pytorch.kernels.known_values import discard_values, values_of
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.world import peer_values as peers
from windtunnel.capture.pytorch.world.nccl import ProcessGroupNCCL
from windtunnel.capture.pytorch.world.work import SimulatedBackend, SimulatedWork
from windtunnel.capture.rank_messages import RankMessages
from windtunnel.events.model import Phase, Role, Signature, TensorSpec

__all__ = ["PeerNeverSent", "PeerSentWrongSize", "SimulatedGroup"]

Tensor = torch.Tensor
_HOST_LIBRARIES = ("gloo", "mpi", "ucc")  # their buffers are in host memory


class PeerNeverSent(RuntimeError):
    """This rank waits for a value that the other rank never sends: on a cluster, forever."""


class PeerSentWrongSize(RuntimeError):
    """Sender and receiver disagree on the size of a message: the ranks do not run the same program."""


# Torch's stubs describe the calls of a Python program; C++ turns each into a call with options, which arrives here.
_ProcessGroup: Any = dist.ProcessGroup


class SimulatedGroup(_ProcessGroup):
    """A process group seen from one of its ranks."""

    messages: RankMessages  # the run's, one for all groups
    stops_early = False  # --steps: a peer may end before this rank
    n_groups = 0
    signatures: dict[Any, int] = {}  # noqa: RUF012  one recorder per process, so one memo
    n_collectives = 0
    meet: Callable[[str, Sequence[int]], None] = staticmethod(
        lambda group, ranks: None
    )  # all ranks are at a barrier

    def __init__(
        self, ranks: Sequence[int], own_rank: int, backend: str, devices: Sequence[str], purpose: str
    ) -> None:
        self._ranks = tuple(ranks)
        self._rank = self._ranks.index(own_rank)
        self._own_rank = own_rank
        super().__init__(self._rank, len(self._ranks))
        self._backend = backend
        self._devices = tuple(devices)
        self._name, self._description = "undefined", purpose
        self.options: Any = None  # pg_options, as the program gave them
        self._libraries: dict[str, SimulatedBackend] = {}
        self._n_sent: dict[tuple[int, int], int] = {}
        self._together: SimulatedWork | None = None  # while calls are coalesced: their common handle
        self._id = SimulatedGroup.n_groups
        SimulatedGroup.n_groups += 1
        self._key = f"{_short(self._ranks)}#{_n_earlier_groups(self._ranks)}"
        recorder = store.world.recorder
        device = -1 if backend in _HOST_LIBRARIES else 0
        recorder.write_group(self._id, recorder.writer.name(purpose), device, self._ranks)

    # -- properties ----------------------------------------------------------------------------------------

    def size(self) -> int:
        return len(self._ranks)

    def rank(self) -> int:
        return self._rank

    getSize, getRank = size, rank

    def name(self) -> str:
        return self._backend

    _get_backend_name = name

    def getBackendName(self) -> str:
        return "simulated"  # what torch's C++ sees: with "gloo" it would look for a real gloo backend

    @property
    def ranks(self) -> tuple[int, ...]:
        return self._ranks

    @property
    def key(self) -> str:
        """The same on every rank, and different for every other group."""
        return self._key

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(name) for name in self._devices]

    def _get_backend(self, device: Any = None) -> SimulatedBackend:
        name = _library_for(device, self._backend)
        if name not in self._libraries:
            is_nccl = name == "nccl"
            self._libraries[name] = (
                ProcessGroupNCCL(None, self._rank, self.size(), self.options)
                if is_nccl
                else SimulatedBackend(name)
            )
        return self._libraries[name]

    # torch stores these in a group's backends, but this group has none
    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def bound_device_id(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"SimulatedGroup({self._backend}, rank {self._rank} of {len(self._ranks)})"

    def _start_coalescing(self, device: Any = None) -> None:
        self._together = SimulatedWork(-1, None, None)

    def _end_coalescing(self, device: Any = None) -> SimulatedWork:
        work, self._together = self._together, None
        return work or SimulatedWork(-1, None, None)

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    abort = shutdown = set_timeout = _enable_collectives_timing = _set_default_backend = _nothing
    _set_sequence_number_for_group = _wait_for_pending_works = _register_on_completion_hook = _nothing

    def _has_hooks(self) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        return SimulatedGroup.n_collectives

    # -- collectives ---------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> SimulatedWork:
        tensors = _as_list(tensors)
        _mark_buckets(tensors)
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        for tensor in tensors:
            peers.reduce_values(tensor, op, self.size())
        return self._record("all_reduce", tensors, tensors, opts, tensors, f"op={_op_name(op)}")

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None) -> SimulatedWork:
        op, root = getattr(opts, "reduceOp", dist.ReduceOp.SUM), opts.rootRank
        if root == self._rank:
            for tensor in tensors:
                peers.reduce_values(tensor, op, self.size())
        return self._record(
            "reduce", tensors, tensors, opts, tensors, f"peer={self._ranks[root]} op={_op_name(op)}"
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> SimulatedWork:
        tensors, root = _as_list(tensors), opts.rootRank
        work = self._record("broadcast", tensors, tensors, opts, tensors, f"peer={self._ranks[root]}")
        for tensor in tensors:
            if root == self._rank:
                self._post(tensor, root, -1)
            else:
                self._fetch(work, tensor, root, -1)
        return work

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> SimulatedWork:
        for received, sent in zip(outputs, inputs, strict=True):
            self._scratch(sent, self.size())
            peers.fill_with(received, sent)
        return self._record("all_gather", inputs, (), opts, outputs)

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> SimulatedWork:
        for received in output_lists:
            for output, sent in zip(received, inputs, strict=True):
                peers.fill_with([output], sent)
        return self._record("all_gather", inputs, (), opts, output_lists)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> SimulatedWork:
        for output, sent in zip(outputs, inputs, strict=True):
            _mark(output, Role.COMMUNICATION)
            self._scratch(sent, self.size())
            peers.gather_into(output, sent, self.size())
        return self._record("all_gather", inputs, outputs, opts, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: Any, source: Any, opts: Any = None) -> SimulatedWork:
        return self.all_gather_single_coalesced([output], [source], opts)

    _allgather_base = all_gather_single

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> SimulatedWork:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        for output, sent in zip(outputs, inputs, strict=True):
            peers.reduce_values(output, op, self.size(), sent[self._rank])
        held = [*outputs, *inputs, *(self._scratch(output, self.size() - 1) for output in outputs)]
        return self._record("reduce_scatter", (), outputs, opts, held, f"op={_op_name(op)}", result=outputs)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> SimulatedWork:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        for output, sent in zip(outputs, inputs, strict=True):
            _mark(sent, Role.COMMUNICATION)
            known = values_of(sent)
            own = None if known is None else known.reshape(-1).chunk(self.size())[self._rank]
            peers.write_values(output, None) if own is None else peers.reduce_values(
                output, op, self.size(), own
            )
        held = [*outputs, *inputs]
        return self._record(
            "reduce_scatter", inputs, outputs, opts, held, f"op={_op_name(op)}", result=outputs
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, output: Any, source: Any, opts: Any = None) -> SimulatedWork:
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    _reduce_scatter_base = reduce_scatter_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> SimulatedWork:
        peers.fill_with(outputs, inputs[self._rank])
        self._scratch(inputs[self._rank], 2 * self.size())
        return self._record("all_to_all", inputs, outputs, opts, [*outputs, *inputs], result=outputs)

    def all_to_all_single(
        self, output: Any, source: Any, output_split: Any = None, input_split: Any = None, opts: Any = None
    ) -> SimulatedWork:
        peers.exchange(output, source, self._rank, self.size(), output_split, input_split)
        return self._record("all_to_all", [source], [output], opts, [output, source], result=[output])

    alltoall_base = all_to_all_single

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> SimulatedWork:
        for received, sent in zip(outputs, inputs, strict=False):
            self._scratch(sent, self.size())
            peers.fill_with(received, sent)
        return self._record("gather", inputs, (), opts, [outputs, inputs], f"peer={self._ranks[opts.rootRank]}",
                            result=outputs)  # fmt: skip

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> SimulatedWork:
        root = opts.rootRank
        work = self._record(
            "scatter", (), outputs, opts, [outputs, inputs], f"peer={self._ranks[root]}", result=outputs
        )
        if root == self._rank:
            self._scratch(outputs[0], self.size())
            for i, tensor in enumerate(inputs[0]):
                if i == root:
                    peers.fill_with(outputs, tensor)
                else:
                    self._post(tensor, root, i)
        else:
            self._fetch(work, outputs[0], root, self._rank)
        return work

    def barrier(self, opts: Any = None) -> SimulatedWork:
        SimulatedGroup.meet(self._key, self._ranks)
        return self._record("barrier", (), (), opts, None)

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        SimulatedGroup.meet(self._key, self._ranks)
        self._record("barrier", (), (), None, None)

    # -- point to point ------------------------------------------------------------------------------------

    def send(self, tensors: Any, peer: int, tag: int = 0) -> SimulatedWork:
        work = self._record("send", tensors, (), True, tensors, f"peer={self._ranks[peer]}")
        for tensor in tensors:
            self._post(tensor, self._rank, peer)
        return work

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> SimulatedWork:
        work = self._record("recv", (), tensors, True, tensors, f"peer={self._ranks[peer]}")
        for tensor in tensors:
            self._fetch(work, tensor, peer, self._rank)
        return work

    def recv_anysource(self, tensors: Any, tag: int = 0) -> SimulatedWork:
        for tensor in tensors:
            peers.make_unknown(tensor)  # the sender is unknown
        return self._record("recv", (), tensors, True, tensors, "peer=-1")

    # -- recording -----------------------------------------------------------------------------------------

    def _record(self, kind: str, inputs: Any, outputs: Any, opts: Any, held: Any, words: str = "",
                result: Any = None) -> SimulatedWork:  # fmt: skip
        """Write the row; the handle keeps `held` alive if the program can wait for it later."""
        self._check_devices((*inputs, *outputs))
        key = (kind, words, *_shapes(inputs), "->", *_shapes(outputs))
        signature = self.signatures.get(key)
        recorder = store.world.recorder
        if signature is None:
            described = Signature(f"c10d.{kind}", _specs(inputs), _specs(outputs), words)
            signature = self.signatures[key] = recorder.writer.signature(described)
        is_async = opts is True or bool(getattr(opts, "asyncOp", False))
        id = SimulatedGroup.n_collectives
        SimulatedGroup.n_collectives = id + 1
        input_ids, device = _storages(inputs)
        output_ids, output_device = _storages(outputs)
        device = max(device, output_device, 0)
        recorder.write_collective(id, signature, self._id, is_async, device, input_ids, output_ids)
        return SimulatedWork(id, held if is_async else None, held if result is None else result, is_async)

    def _check_devices(self, tensors: Iterable[Tensor]) -> None:
        """An accelerator's library cannot read host memory; the message is torch's own."""
        for tensor in tensors:
            kind = tensor.device.type
            if kind not in self._devices and kind not in store.world.aliases:
                raise RuntimeError(f"No backend type associated with device type {kind}")

    def _scratch(self, tensor: Tensor, n_copies: int) -> Any:
        """Gloo copies what it gathers and scatters into one buffer; the caller keeps the returned storage alive."""
        if store.world.device_type != "cpu" or store.sim_of(tensor) is None:
            return None
        n_bytes = tensor.numel() * tensor.element_size() * n_copies
        return store.new_storage(n_bytes, store.CPU, int(Role.COMMUNICATION)) if n_bytes else None

    # -- values between ranks ------------------------------------------------------------------------------

    def _post(self, tensor: Tensor, source: int, target: int) -> None:
        if peers.is_sent(tensor):
            self.messages.post(self._message_key(source, target), peers.bytes_of(tensor))

    def _fetch(self, work: SimulatedWork, tensor: Tensor, source: int, target: int) -> None:
        """Receive when the program waits for it: immediately, unless the call is asynchronous."""
        discard_values(tensor)
        if not peers.is_sent(tensor):
            return
        key = self._message_key(source, target)  # both sides count, even if the values are not fetched
        if not peers.is_read(tensor):
            return
        arrive = partial(self._take, tensor, key, self._ranks[source])
        if not work.is_async:
            arrive()
        elif self._together is not None:
            self._together.expect(arrive)
        else:
            work.expect(arrive)

    def _take(self, tensor: Tensor, key: str, sender: int) -> None:
        payload = self.messages.fetch(key, sender)
        if payload is None and not self.messages.is_alone:
            if self.stops_early:
                raise EnoughSteps
            raise PeerNeverSent(
                f"rank {self._own_rank} waits for {_amount(tensor)} from rank {sender}, which ended without sending them:"
                " the job would hang"
            )
        n_bytes = tensor.numel() * tensor.element_size()
        if payload and len(payload) != n_bytes:
            raise PeerSentWrongSize(
                f"rank {self._own_rank} expects {_amount(tensor)} ({n_bytes:,} bytes) from rank {sender}, which sends"
                f" {len(payload):,} bytes: their programs or models differ; compare the models that the two ranks build"
            )
        peers.put_bytes(tensor, payload or b"")

    def _message_key(self, source: int, target: int) -> str:
        """The n-th message from this source to this target in this group; both sides count the same way."""
        n = self._n_sent[source, target] = self._n_sent.get((source, target), 0) + 1
        return f"{self._key}:{self._ranks[source]}>{self._ranks[target] if target >= 0 else '*'}:{n}"


_n_groups_of: dict[tuple[int, ...], int] = {}


def _n_earlier_groups(ranks: tuple[int, ...]) -> int:
    """How many groups of the same ranks were created before: every rank creates its groups in the same order."""
    n = _n_groups_of[ranks] = _n_groups_of.get(ranks, -1) + 1
    return n


def _short(ranks: tuple[int, ...]) -> str:
    """A key that is the same on every rank, and different for every other group."""
    text = "-".join(map(str, ranks))
    return text if len(ranks) <= 4 else hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _library_for(device: Any, backend: str) -> str:
    """ "cpu:gloo,cuda:nccl" -> the library of this kind of device; a single name serves all."""
    pairs = dict(pair.split(":") for pair in backend.split(",") if ":" in pair)
    kind = device.type if isinstance(device, torch.device) else str(device or "")
    return pairs.get(kind, next(iter(pairs.values()), backend))


def _amount(tensor: Tensor) -> str:
    return f"{tensor.numel():,} {str(tensor.dtype).removeprefix('torch.')}"


def _as_list(tensors: Any) -> Any:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _op_name(op: Any) -> str:
    text = str(getattr(op, "op", op))
    return text.rpartition(".")[2]


def _shapes(tensors: Any) -> tuple[Any, ...]:
    return tuple((t.shape, t.dtype) for t in tensors)


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(tuple(t.shape), tuple(t.stride()), str(t.dtype).removeprefix("torch.")) for t in tensors
    )


def _storages(tensors: Any) -> tuple[tuple[int, ...], int]:
    """Ids of the simulated storages, and the device of the first."""
    found = [sim for sim in map(store.sim_of, tensors) if sim is not None]
    return tuple(sim.id for sim in found), found[0].device_index if found else -1


def _mark_buckets(tensors: Sequence[Tensor]) -> None:
    """What is reduced during backward and is not a gradient itself is a communication buffer."""
    if store.world.recorder.phase == Phase.BACKWARD:
        for tensor in tensors:
            _mark(tensor, Role.COMMUNICATION)


def _mark(tensor: Tensor, role: Role) -> None:
    sim = store.sim_of(tensor)
    if sim is not None and sim.role == 0 and sim.device_index >= 0:
        sim.role = int(role)
        store.world.recorder.mark(sim.id, role)
