"""Dumps that were damaged or made up: the comparison ends with an answer or one sentence, never with a traceback."""

from __future__ import annotations

import copy
import io
import json
import random
import shutil

import numpy as np
import pytest

from tests.probe.dumps import Call, write_dump
from windtunnel.errors import WindtunnelError
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.report.json.compare_csv import CsvReport
from windtunnel.report.page.precision import PrecisionPage

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
ODD = [
    None, True, -1, 0, 1e400, float("nan"), "x", "", [], {}, {"type": "int"}, 10**30, [1, [2]], 1e-320,
    {"type": "torch.Tensor", "shape": [2], "dtype": "torch.float32"}, {"type": 3, "value": [1]}, {"type": {}},
]  # fmt: skip


def write_whole(root, ranks):
    calls = [
        Call("Module.fc.Linear.forward.0", [X, 3, "mode"], [X * 2], {"weight": X.T.copy()}, parent=None),
        Call("Functional.relu.0.forward", [X * 2], [X]),
        Call("Functional.relu.0.backward", [X], [X]),
        Call("Module.fc.Linear.parameters_grad.0", parameters={"weight": X}),
        Call("Tensor.addcdiv_.0.forward", [X, X, np.abs(X)], [X]),
    ]
    for rank in range(ranks):
        write_dump(root / "step0" / f"rank{rank}", calls, crc=True, files=True, indent=rank % 2 or None)
    return root


def damage(draw, value):
    """The same JSON value with one thing changed somewhere in it."""
    if isinstance(value, dict) and value and draw.random() < 0.95:
        key = draw.choice(list(value))
        if draw.random() < 0.1:
            value.pop(key)
        elif draw.random() < 0.05:
            value[f"{key}x"] = copy.deepcopy(value[key])
        else:
            value[key] = damage(draw, value[key])
        return value
    if isinstance(value, list) and value and draw.random() < 0.95:
        index = draw.randrange(len(value))
        if draw.random() < 0.1:
            value.pop(index)
        elif draw.random() < 0.1:
            value.insert(index, copy.deepcopy(value[index]))
        else:
            value[index] = damage(draw, value[index])
        return value
    return copy.deepcopy(draw.choice(ODD))


def damage_bytes(draw, data):
    data = bytearray(data)
    at = draw.randrange(len(data))
    if draw.random() < 0.4:
        data[at] = draw.randrange(256)
    else:
        del data[at : at + draw.choice([1, 20, len(data)])]
    return bytes(data)


@pytest.mark.parametrize("ranks", [(1, 1), (1, 2)])
def test_no_damage_ends_in_a_traceback(tmp_path, ranks):
    draw = random.Random(sum(ranks))
    whole = write_whole(tmp_path / "whole", ranks[0])
    source = write_whole(tmp_path / "source", ranks[1])
    n_answers = n_sentences = 0
    for _ in range(80):
        broken = tmp_path / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(source, broken)
        for path in sorted(broken.rglob("*.json")):
            if draw.random() < 0.2:
                path.write_bytes(damage_bytes(draw, path.read_bytes()))
            elif draw.random() < 0.7:
                document = json.loads(path.read_text())
                for _ in range(draw.randrange(1, 10)):
                    document = damage(draw, document)
                path.write_text(json.dumps(document))
        findings, rows, page = Findings(), CsvReport(io.BytesIO()), PrecisionPage()
        try:
            for found in compare_dumps(whole, broken, Tolerance(exact=draw.random() < 0.2)):
                findings.add(found)
                page.add(found)
                rows.add(found)
            rows.close()
            n_answers += 1
        except WindtunnelError:
            n_sentences += 1
    assert n_answers > 20
    assert n_sentences > 5
