"""The details of a rank as a page carries them: every column of the analysis, packed, every text once."""

from __future__ import annotations

import time

import numpy as np
import orjson

from tests.memory.recorded import detail_of
from tests.memory.training_run import KIB, record_training
from tests.report.page.test_columns import read
from windtunnel.events.model import Recording
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.report.page.rank_detail import detail_document


def cuda(device_bytes):
    return Allocator.from_spec("cuda", device_bytes=device_bytes)


def test_every_column_of_the_detail_is_in_the_document(tmp_path):
    detail = detail_of(record_training(tmp_path / "r.arrows"), cuda)
    document = detail_document(detail)
    allocations = {name: read(column) for name, column in document["allocations"].items()}
    assert allocations["born"].tolist() == detail.born.tolist()
    assert (allocations["born"] + allocations["life"]).tolist() == detail.freed.tolist()
    assert read(document["sizes"])[allocations["size"]].tolist() == detail.n_bytes.tolist()
    names = [document["strings"][i] for i in read(document["whats"]["name"])[allocations["what"]]]
    assert names[:2] == ["layers.0.weight", "layers.1.weight"]
    assert read(document["reserved"]["bytes"]).max() == 2048 * KIB
    assert document["roles"][:3] == ["weights", "gradients", "optimizer"]
    assert document["phases"]["names"] == [
        "build",
        "forward",
        "backward",
        "optimizer",
        "recompute",
        "after backward",
    ]
    assert read(document["steps"]["number"]).tolist() == [1, 2]
    assert (document["rest"], document["left_out"], document["peak_row"]) == (None, [], detail.peak_row)


def test_a_map_counts_addresses_from_its_lowest(tmp_path):
    detail = detail_of(record_training(tmp_path / "r.arrows"), cuda)
    (found,) = detail_document(detail)["maps"]
    assert found["base"] == hex(int(detail.maps[0].columns.address.min()))
    assert read(found["segments"]["address"])[0] == 0
    assert read(found["blocks"]["bytes"]).sum() == found["reserved_bytes"]
    assert found["allocated_bytes"] == 88 * KIB


def test_thinned_details_say_so_and_carry_the_rest(tmp_path):
    document = detail_document(detail_of(record_training(tmp_path / "r.arrows"), cuda, most_allocations=4))
    assert len(document["rest"]["bytes"]) == len(document["roles"])
    assert [sentence.split(":")[0] for sentence in document["left_out"]] == [
        "10 of 14 allocations are counted but not listed",
        "4 of 8 operators are not listed",
    ]


def test_many_steps_take_seconds_and_little_room(tmp_path):
    """About 300,000 rows: the same step again and again, as a training does."""
    step = record_training(tmp_path / "r.arrows")
    n = 7000
    columns = {name: np.tile(column, n) for name, column in step.columns.items()}
    # Every repetition has storages and operators of its own.
    leap = np.repeat(np.arange(n) * 100, len(step))
    columns["subject"] = columns["subject"] + leap * (columns["kind"] != 11)
    columns["extra"] = np.where(columns["extra"] >= 0, columns["extra"] + leap, -1)
    offsets, ids = step.outputs
    repeated = np.repeat(np.arange(n) * 100, len(ids))
    outputs = (
        np.append((offsets[:-1] + np.arange(n)[:, None] * len(ids)).reshape(-1), n * len(ids)),
        np.tile(ids, n) + repeated,
    )
    recording = Recording(step.header, step.names, step.signatures, step.frames, columns, outputs, outputs)
    start = time.process_time()
    document = detail_document(detail_of(recording, cuda))
    assert time.process_time() - start < 15  # two or three where nothing else runs
    assert document["allocations"]["born"]["n"] == 14 * n
    assert len(orjson.dumps(document)) < 1_000_000
