"""`windtunnel.dry_run`: the same answers as the command line, from a process that goes on as it was."""

from __future__ import annotations

import os
import tempfile
import threading

import pytest
import torch
from torch import nn

import windtunnel
from tests.commands.cli import SCRIPTS
from tests.commands.warm import warm_fork_servers
from windtunnel.errors import UsageError

SEEN = []


def train(features=256):
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        batch = torch.randn(32, features, device="cuda")
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item())
    SEEN.append(windtunnel.is_dry_run())


@pytest.fixture(autouse=True)
def leftovers(tmp_path, monkeypatch):
    """Temporary folders go here; nothing may stay."""
    warm_fork_servers(monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("windtunnel-")] == []


def test_a_function_gets_the_fields_of_the_report_and_this_torch_stays(capfd):
    first, second = windtunnel.dry_run(train), windtunnel.dry_run(train)
    assert first.fits
    assert first.device.name == "a100-80gb"
    (rank,) = first.ranks
    assert (rank.status, rank.steps, rank.error) == ("ok", 3, None)
    assert rank.peak_bytes == second.ranks[0].peak_bytes > 1 << 20
    assert sum(n for _, n in rank.at_peak_bytes.items()) == rank.peak_bytes
    assert not torch.cuda.is_available()
    assert torch.zeros(2).add(1).tolist() == [1.0, 1.0]
    assert type(torch.zeros(2)) is torch.Tensor
    assert SEEN == []  # variables of this process stay as they are
    assert "WINDTUNNEL_DRY_RUN" not in os.environ
    assert capfd.readouterr() == ("", "")


def test_a_script_gets_the_same_as_a_function(tmp_path, capfd):
    from_script = windtunnel.dry_run(
        SCRIPTS / "train.py", arguments=["--steps", "5"], steps=3, out=tmp_path / "o"
    )
    from_function = windtunnel.dry_run(train, steps=2)
    assert from_script.ranks[0].steps == 3
    assert from_function.ranks[0].steps == 2
    assert from_script.ranks[0].peak_bytes == windtunnel.dry_run(train).ranks[0].peak_bytes
    assert (tmp_path / "o" / "report.json").exists()
    assert (tmp_path / "o" / "report.html").exists()
    assert "step 1 loss" in (tmp_path / "o" / "rank0" / "run.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_a_function_that_fails_is_a_report_with_its_sentence(tmp_path, capfd):
    report = windtunnel.dry_run(lambda: train(features=100), level=0, out=tmp_path)
    assert not report.fits
    assert report.ranks[0].status == "failed"
    assert "a layer that takes 256 features was given 100" in report.ranks[0].error
    log = (tmp_path / "rank0" / "run.log").read_text()
    assert "test_run_from_python.py" in log
    assert ", in train\n    loss = model(batch)" in log
    assert "/windtunnel/capture/" not in log
    assert capfd.readouterr() == ("", "")


def test_other_threads_do_no_harm():
    stop = threading.Event()
    product = torch.ones(300, 300)

    def work():
        while not stop.is_set():
            product @ product

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        assert windtunnel.dry_run(train).ranks[0].status == "ok"
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_rank_of_a_world_finds_its_launcher(tmp_path):
    def tell():
        print(*(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))

    report = windtunnel.dry_run(tell, world_size=16, rank=11, out=tmp_path)
    assert (report.world_size, report.ranks[0].rank) == (16, 11)
    assert (tmp_path / "rank11" / "run.log").read_text().startswith("11 16 3\n")


def test_a_function_is_timed():
    report = windtunnel.dry_run(train, level=3, tokens_per_step=1000)
    assert report.time is not None
    assert report.time.tokens_per_second == pytest.approx(1000 / report.time.step_seconds)
    assert report.ranks[0].step_time_us == pytest.approx(report.time.all_steps_seconds[-1] * 1e6)
    assert report.ranks[0].time.profile.model_flops > 0


@pytest.mark.parametrize(
    ("ranks", "simulated"), [pytest.param("auto", None, marks=pytest.mark.thorough), ([1, 2], [1, 2])]
)
def test_a_script_can_be_many_ranks(ranks, simulated, capfd):
    report = windtunnel.dry_run(SCRIPTS / "stages.py", world_size=4, ranks=ranks)
    assert [rank.rank for rank in report.ranks] == (simulated or [0, 1, 2, 3])
    assert {rank.status for rank in report.ranks} <= {"ok", "same_as"}
    assert report.mismatches == ()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"level": 4}, "unknown level 4"),
        ({"level": -1}, "unknown level -1"),
        ({"device": "a1000"}, "there is no device called 'a1000'"),
        ({"allocator": "cud"}, "there is no allocator 'cud'"),
        ({"steps": 0}, "steps is 0"),
        ({"world_size": 0}, "the world size is 0"),
        ({"world_size": 4, "ranks": "auto"}, "a function can be simulated as one rank only"),
        ({"world_size": 4, "ranks": "0-3"}, "cannot read ranks '0-3'"),
        ({"world_size": 4, "rank": 4}, "there is no rank 4: world size 4 has ranks 0 to 3"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        windtunnel.dry_run(train, **options)


def test_a_missing_script_is_refused():
    with pytest.raises(UsageError, match=r"script nowhere\.py does not exist"):
        windtunnel.dry_run("nowhere.py")
