"""What happens between backward and optimizer is neither pass; what enters a module is."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.events.file import RecordingWriter, read_recording, row_of
from windtunnel.events.model import Kind, ModuleEnter, ModuleExit, Op, Phase, Signature
from windtunnel.memory.phases import AFTER_BACKWARD, phases_of

FWD, BWD, OPT = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        ([FWD, BWD, FWD, FWD, OPT], [FWD, BWD, AFTER_BACKWARD, AFTER_BACKWARD, OPT]),  # clipped, then stepped
        (
            [FWD, BWD, FWD, OPT, FWD, BWD, FWD, OPT],
            [FWD, BWD, AFTER_BACKWARD, OPT, FWD, BWD, AFTER_BACKWARD, OPT],
        ),
        ([FWD, BWD, "call", FWD, OPT], [FWD, BWD, FWD, OPT]),  # an evaluation
        ([FWD, BWD, FWD, BWD, OPT], [FWD, BWD, FWD, BWD, OPT]),  # micro-batches
        ([FWD, BWD, FWD], [FWD, BWD, FWD]),  # nothing says that it is over
        ([FWD, OPT], [FWD, OPT]),
        ([], []),
    ],
)
def test_a_run_of_operators_is_reported_by_what_is_around_it(tmp_path, happens, told):
    writer = RecordingWriter(tmp_path / "r.arrows", {"rank": 0})
    name, add = writer.name("model"), writer.signature(Signature("aten.add", (), (), ""))
    for number, phase in enumerate(happens):
        events = [ModuleEnter(name), ModuleExit(name)] if phase == "call" else [Op(number, add, phase=phase)]
        writer.rows.extend(row_of(event) for event in events)
    writer.close()
    recording = read_recording(tmp_path / "r.arrows")
    rows = np.flatnonzero(recording.columns["kind"] == Kind.OP)
    assert phases_of(recording, rows).tolist() == told
