"""Buffers of the communication library: one set for each group in which a rank communicated on its device."""

from __future__ import annotations

from windtunnel.cluster.library_buffers import library_buffers_of
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Collective, Group, Signature

MIB = 1 << 20
GROUPS = [
    Group(0, tuple(range(8))),
    Group(1, (0, 1)),
    Group(2, (0, 2, 4)),
    Group(3, (0,)),
    Group(4, (0, 1), device=-1),
]


def test_groups_without_calls_take_nothing(tmp_path):
    assert library_buffers_of(_recording(tmp_path, []), "cuda").n_bytes == 0


def test_nccl_takes_more_for_more_than_two_ranks(tmp_path):
    found = library_buffers_of(_recording(tmp_path, [0, 1, 1, 3, 4]), "cuda")
    assert (found.library, found.n_communicators, found.n_bytes) == ("NCCL", 2, (688 + 544) * MIB)


def test_hccl_takes_twice_its_buffer_size_for_each(tmp_path, monkeypatch):
    recording = _recording(tmp_path, [0, 1, 2])
    monkeypatch.delenv("HCCL_BUFFSIZE", raising=False)
    assert library_buffers_of(recording, "npu").n_bytes == 3 * 400 * MIB
    monkeypatch.setenv("HCCL_BUFFSIZE", "120")
    assert library_buffers_of(recording, "npu").n_bytes == 3 * 240 * MIB


def test_a_cpu_has_none(tmp_path):
    assert library_buffers_of(_recording(tmp_path, [0]), "cpu").n_bytes == 0


def _recording(folder, used_groups):
    calls = [Collective(i, 0, group) for i, group in enumerate(used_groups)]
    record_events(folder / "r.arrows", [*GROUPS, *calls], signatures=[Signature("c10d.barrier", (), (), "")])
    return read_recording(folder / "r.arrows")
