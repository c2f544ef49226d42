"""`windtunnel run --level 2` and `--level 3`: what stands in the report, and what is refused before anything runs."""

from __future__ import annotations

import csv
import json
from math import isfinite

import pytest

from tests.commands.cli import SCRIPTS, read_json, windtunnel
from windtunnel.commands.main import main

TRAIN, STAGES = SCRIPTS / "train.py", SCRIPTS / "stages.py"


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    done = windtunnel("run", "--level", 3, "--device", "h100-80gb", TRAIN, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder / "windtunnel-out"


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    options = ("--world-size", 4, "--network", "bandwidth=25GB/s", "--tokens-per-step", 1000)
    done = windtunnel("run", "--level", 3, *options, STAGES, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder / "windtunnel-out"


@pytest.fixture(scope="module")
def level_2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    done = windtunnel("run", "--level", 2, "--device", "h100-80gb", "--memory-tracker", TRAIN, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder / "windtunnel-out"


def _booked(time):
    exposed, peers = sum(time["exposed_seconds"].values()), sum(time["peers_seconds"].values())
    parts = ("compute_seconds", "bubble_seconds", "streams_seconds", "host_seconds")
    return exposed + peers + sum(time[name] for name in parts)


def _numbers(document):
    if isinstance(document, dict):
        document = list(document.values())
    if isinstance(document, list):
        return [number for each in document for number in _numbers(each)]
    return [document] if isinstance(document, float) else []


def test_a_step_has_a_time_and_every_second_of_it_a_cause(one_rank):
    report = read_json(one_rank[1])
    time, rank = report["time"], report["ranks"][0]
    assert report["level"] == 3
    assert rank["step_time_us"] == pytest.approx(time["step_seconds"] * 1e6, rel=0.01)
    assert time["n_steps"] == len(time["all_steps_seconds"]) == 3
    assert time["warm_up_seconds"] == time["all_steps_seconds"][0]
    assert _booked(rank["time"]["time"]) == pytest.approx(rank["step_time_us"] / 1e6)
    assert all(isfinite(number) and number >= 0 for number in _numbers(time) + _numbers(rank["time"]))


def test_what_a_step_computes_is_a_share_of_the_peak(one_rank):
    time = read_json(one_rank[1])["time"]
    forward = 2 * 32 * 256 * 512 * 2  # two products
    assert (
        time["model_flops"] == time["hardware_flops"] == 3 * forward - forward // 2
    )  # no gradient of the batch
    assert 0 < time["model_flops_utilisation"] < 1
    assert time["tokens_per_step"] is None  # nothing is looked up


def test_the_terminal_says_where_the_time_goes(one_rank):
    said = one_rank[0]
    for text in (
        "One step takes ", "Operator times: model of h100-80gb", "Model flops utilisation: ",
        "The 10 most expensive operators\n", "Time by module\n", " of the step is ", "open windtunnel-out/trace.html",
    ):  # fmt: skip
        assert text in said
    tables = said[said.index("One step takes") : said.index("\nnext: ")]
    assert max(map(len, tables.splitlines())) <= 80


def test_a_trace_is_written(one_rank):
    folder = one_rank[1]
    events = json.loads((folder / "rank0" / "trace_view.json").read_text())
    assert any(event.get("ph") == "X" for event in events)
    assert (folder / "trace.html").stat().st_size > 1000
    assert read_json(folder)["ranks"][0]["time"]["trace"] == "rank0/trace_view.json"


def test_the_report_is_shown_again(one_rank):
    done = windtunnel("view", "--text", one_rank[1], cwd=one_rank[1])
    assert done.returncode == 0, done.stderr
    first = one_rank[0].index("One step takes")
    assert one_rank[0][first : first + 500] in done.stdout


def test_every_rank_of_a_world_has_a_step_time(four_ranks):
    report = read_json(four_ranks[1])
    ranks = report["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert {rank["status"] for rank in ranks} <= {"ok", "same_as"}
    assert all(rank["step_time_us"] > 0 for rank in ranks)
    narrow, wide = ranks[0]["time"], next(r["time"] for r in ranks[2:] if r["status"] == "ok")
    for each in (narrow, wide):
        assert _booked(each["time"]) == pytest.approx(each["time"]["step_seconds"])
    # The wide stage has four times the bytes to add up and to send.
    assert wide["profile"]["seconds"] > narrow["profile"]["seconds"]
    (less,), (more,) = (each["time"]["network_seconds"].values() for each in (narrow, wide))
    assert more > less > 0
    assert report["time"]["slowest_rank"] in (2, 3)
    assert report["time"]["step_seconds"] == pytest.approx(
        max(r["step_time_us"] for r in ranks) / 1e6, rel=0.01
    )


def test_a_world_is_reported_rank_by_rank(four_ranks):
    said, folder = four_ranks
    time = read_json(folder)["time"]
    assert (time["tokens_per_step"], time["tokens_basis"]) == (1000, "given by --tokens-per-step")
    assert time["tokens_per_second"] == pytest.approx(1000 / time["step_seconds"])
    assert "25 GB/s" in time["network"]
    assert time["notes"] == []
    assert "Time of a step by rank" in said
    assert "Exposed communication: " in said
    assert (folder / "trace_view.json").exists()


def test_level_2_counts_the_workspace_of_kernels(level_2):
    said, folder = level_2
    report = read_json(folder)
    rank = report["ranks"][0]
    assert rank["at_peak_bytes"]["workspace"] > 0
    with (folder / "rank0" / "memory_block.csv").open() as file:
        kinds = [row[next(k for k in row if k.strip().lower() == "type")] for row in csv.DictReader(file)]
    assert "WorkSpace" in kinds
    assert "orkspace" in said


def test_level_2_has_no_time(level_2):
    said, folder = level_2
    report = read_json(folder)
    assert (report["level"], report["time"]) == (2, None)
    assert (report["ranks"][0]["step_time_us"], report["ranks"][0]["time"]) == (None, None)
    assert "One step takes" not in said
    assert not list(folder.glob("**/trace*"))


def test_the_levels_agree_about_memory(level_2, one_rank):
    two, three = (read_json(folder)["ranks"][0] for _, folder in (level_2, one_rank))
    assert (two["peak_bytes"], two["at_peak_bytes"]) == (three["peak_bytes"], three["at_peak_bytes"])


CARD = 'kind = "cuda"\nname = "Mine"\nmemory = "8GiB"\n'
SPEED = "bandwidth_gbs = 900\nbf16_tflops = 100\n"

REFUSED = {
    "unknown device": (["--device", "h1000"], "h1000"),
    "network": (["--level", "3", "--world-size", "2", "--network", "nonsense"], "cannot read 'nonsense' in --network"),
    "network key": (["--level", "3", "--world-size", "2", "--network", "color=5"], "there is no 'color' in --network"),
    "network file": (["--level", "3", "--world-size", "2", "--network", "no.toml"], "cannot read the network file no.toml"),
    "no links": (["--level", "3", "--world-size", "2", "--device", "card.toml"], "link_gbs"),
    "no NICs": (["--level", "3", "--world-size", "16", "--device", "linked.toml"], "nic"),
    "no speed": (["--level", "3", "--device", "slow.toml"], "level 3 needs the speed of"),
    "workspace file": (["--level", "2", "--workspace", "no.toml"], "no.toml"),
    "workspace text": (["--level", "2", "--workspace", "broken.toml"], "broken.toml"),
    "trace ranks": (["--level", "3", "--trace-ranks", "x"], "cannot read --trace-ranks 'x'"),
    "trace of no rank": (["--level", "3", "--trace-ranks", "0,7"], "there is no rank 7 to trace"),
    "tokens": (["--level", "3", "--tokens-per-step", "0"], "tokens per step is 0"),
    "level": (["--level", "4"], "unknown level 4"),
    "workspace at level 1": (["--workspace", "x.toml"], "--workspace has no effect at level 1"),
    "network at level 2": (["--level", "2", "--network", "nics=1"], "--network has no effect at level 2"),
    "network of one card": (["--level", "3", "--network", "nics=1"], "--network has no effect on a job with 1 device"),
    "measure at level 2": (["--level", "2", "--measure"], "--measure has no effect at level 2"),
    "tokens at level 1": (["--tokens-per-step", "5"], "--tokens-per-step has no effect at level 1"),
    "trace at level 0": (["--level", "0", "--trace-ranks", "0"], "--trace-ranks has no effect at level 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_a_sentence_before_anything_runs(case, tmp_path, monkeypatch, capsys):
    options, sentence = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    for name in ("WORLD_SIZE", "RANK", "RANK_SIZE", "RANK_ID", "LOCAL_WORLD_SIZE", "MS_SIMULATION_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    files = {"slow": CARD, "card": CARD + SPEED, "linked": CARD + SPEED + "link_gbs = 300\n", "broken": "[["}
    for name, text in files.items():
        (tmp_path / f"{name}.toml").write_text(text)
    assert main(["run", *options, str(TRAIN)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith("windtunnel: ")
    assert len(said.splitlines()) <= 2
    assert not (tmp_path / "windtunnel-out").exists()
