"""What a person sees: the peak first, tables, the picture in characters, the verdict last."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from tests.report.runs import FILES, FITTING, LARGE, run_of
from windtunnel.memory.attribution import LiveTensors, ModuleShare
from windtunnel.report.results.run import RankResult, failed_rank, same_as
from windtunnel.report.terminal import run as terminal
from windtunnel.report.terminal.run import pencils_for, show_run
from windtunnel.report.text_graph import ASCII, UNICODE
from windtunnel.units import GIB


def _shown(run, encoding="utf-8", width=120):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    show_run(Console(file=stream, width=width), run)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def test_the_peak_comes_first_for_a_torch_script():
    text = _shown(run_of(FITTING))
    assert text.splitlines()[0].startswith("Peak of rank 0: 60.00 GiB live, 66.00 GiB with fragments")
    assert "Device MOC memory size" not in text


def test_the_facts_of_a_mindspore_script_come_first_as_plain_lines_even_on_a_narrow_terminal():
    lines = _shown(replace(run_of(FITTING), framework="mindspore"), width=20).splitlines()
    assert lines[0] == "Device MOC memory size: 81920M"
    assert lines[4] == "Actual peak memory usage (with fragments): 67584M"


def test_files_that_would_have_been_lost_come_first(monkeypatch):
    monkeypatch.setattr(terminal, "_FILE_ROWS", 2)
    text = _shown(replace(run_of(FITTING), files=FILES))
    table = text[text.index("What the script would have written") :]
    rows = [line.split() for line in table.splitlines()[3:6]]
    assert rows == [
        ["removed", "3.00", "GiB", "/data/checkpoint-100"],
        ["moved", "5", "B", "/data/<b>.bak"],
        ["(and", "8", "more)", "2.00", "GiB", "listed", "in", "report.json"],
    ]
    assert "Note: a sentence of the guard." in text
    assert "Note: read-only here: /mnt." in text


def test_a_layer_needs_no_words():
    files = replace(FILES, protection="layer", changes=(), notes=())
    assert "sentence" not in _shown(replace(run_of(FITTING), files=files))


def test_every_part_of_the_report_is_there():
    text = _shown(run_of(FITTING))
    for part in (
        "Peak of rank 0: 60.00 GiB live, 66.00 GiB with fragments",
        "at step 2, backward, layers.13.mlp, aten.mm",
        "optimizer     28.00 GiB   46.7%",
        "layers.0-3.mlp      28.00 GiB   46.7%   activations 16.00 GiB, weights 12.00 GiB",
        "aten.mm layers.0-3.mlp   16.00 GiB       4   4096x8 bfloat16   activations   m.py:7",
        "Memory over time",
        "train.py:41   float(loss)   1.0            3",
        "model            1.50 s",
        "Fits: needs 66.00 GiB",
    ):
        assert part in text


def test_where_it_first_fails_is_reported():
    assert "First allocation that does not fit: 2.00 GiB at step 1, forward, layers.3.mlp" in _shown(
        run_of(LARGE)
    )


def test_a_stream_without_unicode_gets_ascii():
    text = _shown(run_of(LARGE), encoding="ascii")
    assert "######" in text
    odd = replace(FITTING, at_peak_by_module=(ModuleShare("layer.größe", "weights", 60 * GIB),))
    assert "layer.gr??e" in _shown(run_of(odd), encoding="ascii")
    assert _shown(run_of(LARGE), encoding="ascii", width=40)
    assert pencils_for(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) is UNICODE
    assert pencils_for(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")) is ASCII


def test_ranks_that_do_the_same_are_counted_not_repeated():
    run = run_of(FITTING, same_as(1, FITTING), same_as(2, FITTING))
    assert _shown(run).startswith("rank 0 of 3 (and 2 more that do the same): ok\n\nPeak of rank 0")
    text = _shown(replace(run, framework="mindspore"))
    assert text.count("Device MOC memory size") == 1
    assert "rank 0 of 3 (and 2 more that do the same): ok" in text


def test_modules_are_collapsed_until_they_fit_the_table():
    shares = [
        ModuleShare(f"layers.{i}.part{j}.inner{k}", "weights", GIB)
        for i in range(2) for j in range(5) for k in range(6)
    ]  # fmt: skip
    text = _shown(run_of(replace(FITTING, at_peak_by_module=tuple(shares))))
    assert "layers.0-1.part0   12.00 GiB" in text
    assert "inner" not in text


def test_markup_in_names_is_shown_as_it_is():
    odd = replace(FITTING, at_peak_by_module=(ModuleShare("layers[red].x", "weights", 60 * GIB),))
    assert "layers[red].x" in _shown(run_of(odd))


def test_a_failed_rank_shows_its_error():
    text = _shown(run_of(failed_rank(0, "ValueError: [x] is wrong")))
    assert text.splitlines()[-1] == "Failed: ValueError: [x] is wrong."


def test_the_report_of_a_failed_run_is_short():
    text = _shown(run_of(replace(FITTING, status="failed", error="no data")))
    assert "What holds the memory at the peak" in text
    assert not any(
        part in text for part in ("By module", "Largest tensors", "over time", "Slowest modules to build")
    )


def test_a_narrow_terminal_gets_shorter_cells_not_broken_ones():
    long = [f"model.decoder.layers.0-31.block.{part}.weight" for part in ("gate_proj", "down_proj")]
    where = "transformers/models/large/modeling_large.py:123"
    tensors = tuple(
        LiveTensors(name, "aten.mm", "", "activations", (4096, 18944), "bfloat16", where, 32, 8 * GIB)
        for name in long
    )
    rank = replace(FITTING, largest_at_peak=tensors)
    text = _shown(run_of(rank), width=80)
    rows = [line for line in text.splitlines() if "8.00 GiB" in line and "4096x18944 bf16" in line]
    assert len(rows) == 2
    assert "gate_proj.weight" in rows[0]
    assert "down_proj.weight" in rows[1]
    assert all("modeling_large.py:123" in row and len(row) <= 80 for row in rows)
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_rank_that_allocated_nothing_has_no_tables():
    text = _shown(run_of(RankResult(0, "ok")))
    assert "By module" not in text
