"""windtunnel remat: the curve of a script or a recording, and every way to ask for it wrongly."""

from __future__ import annotations

import json
import re

import pytest

from tests.commands.cli import windtunnel
from tests.commands.snapshots import write_recording
from tests.remat.chains import EXP, N_BYTES, write_chain
from windtunnel.commands.main import main
from windtunnel.report.page.saved import read_page_document
from windtunnel.report.page.web_page import page_bytes, write_page
from windtunnel.timing.cost import CostTable, cost_key
from windtunnel.units import MIB

# 500 MiB are the context's: this leaves 24 MiB, and the chain needs 40.
CARD = "2080ti-11gb:mem=524MiB"
DEEP = """
import torch
from torch import nn
layers = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.GELU())]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.randn(16384, 256, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DISTRIBUTED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
model = DistributedDataParallel(nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(16384, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for name in (
        "RANK_ID",
        "RANK_SIZE",
        "RANK",
        "WORLD_SIZE",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def chain(here):
    write_chain(here / "recording.arrows", 8, n_steps=3)
    return "recording.arrows"


def _document(capsys, *argv):
    code = main(["remat", "--json", *argv])
    return code, json.loads(capsys.readouterr().out)


def _refused(capsys, *argv):
    try:
        code = main(["remat", *argv])
    except SystemExit as exit:
        code = exit.code
    captured = capsys.readouterr()
    assert captured.out == ""
    sentence, hint = captured.err.splitlines()[-2:]
    assert sentence.startswith("windtunnel: ")
    assert hint.startswith("  next: ")
    return code, sentence.removeprefix("windtunnel: "), hint.removeprefix("  next: ")


# -- a recording ----------------------------------------------------------------------------------------------


def test_a_recording_gives_a_table_the_best_threshold_and_what_to_do_next(chain, capsys, here):
    assert (
        main(["remat", "--device", CARD, "--allocator", "cpu", "--thresholds", "16MB,20MB,24MB", chain]) == 0
    )
    out = capsys.readouterr().out
    assert re.search(r"off .* 40.00 MiB +40.00 MiB +0 +no", out)
    assert re.search(r"16MB .* 9 +9 +20.00 MiB +20.00 MiB +0 +best", out)
    assert re.search(r"20MB .* 5 +5 +24.00 MiB +24.00 MiB +0 +just", out)
    assert re.search(r"24MB +- +- .* no", out)
    assert "never evicted: 12.00 MiB" in out
    assert "Best threshold: 16MB" in out
    assert 'next: import windtunnel.dtr as dtr; dtr.eviction_threshold = "16MB"; dtr.enable()' in out
    assert f"windtunnel remat --device {CARD} --allocator cpu --policy all recording.arrows" in out
    assert [path.name for path in here.iterdir()] == [chain]  # nothing is written unless --out says where


def test_the_same_as_json(chain, capsys):
    code, document = _document(
        capsys, "--device", CARD, "--allocator", "cpu", "--thresholds", "16MB..24MB:4MB", chain
    )
    assert code == 0
    assert document["schema"] == 1
    assert document["device"] == {"name": "2080ti-11gb", "memory_bytes": 524 * MIB, "usable_bytes": 24 * MIB}
    assert [point["threshold_bytes"] // MIB for point in document["points"]] == [16, 20, 24]
    assert [point["rematerialisations"] for point in document["points"][:2]] == [9, 5]
    assert [point["fits"] for point in document["points"]] == [True, True, False]
    assert document["best"]["threshold_bytes"] == 16 * MIB
    assert document["without"]["peak_live_bytes"] == 10 * N_BYTES
    assert document["costs"]["path"] is None


def test_out_gets_the_json_and_the_pictures(chain, capsys, here):
    pytest.importorskip("matplotlib")
    assert main(["remat", "--device", CARD, "--out", "found", chain]) == 0
    assert sorted(path.name for path in (here / "found").iterdir()) == [
        "remat.json",
        "remat.png",
        "remat.svg",
        "report.html",
    ]
    printed = capsys.readouterr().out
    document = json.loads((here / "found" / "remat.json").read_text())
    page = read_page_document(here / "found" / "report.html")
    assert (page["remat"], page["opens_on"]) == (document, "remat")
    assert document["answer"] in printed
    assert _refused(capsys, "--device", CARD, "--out", "found", chain)[1] == "--out found is not empty"
    assert main(["remat", "--device", CARD, "--out", "found", "--force", chain]) == 0


def test_no_html_writes_no_page(chain, here):
    assert main(["remat", "--device", CARD, "--no-html", "--out", "found", chain]) == 0
    assert not (here / "found" / "report.html").exists()
    assert (here / "found" / "remat.json").exists()


def test_the_curve_is_added_to_the_page_of_the_run_it_belongs_to(here, capsys):
    folder = here / "run"
    (folder / "rank0").mkdir(parents=True)
    write_chain(folder / "rank0" / "recording.arrows", 8, n_steps=3)
    write_page(
        folder / "report.html", page_bytes("run", {"kind": "run", "title": "mine", "details": {"0": 1}})
    )
    assert main(["remat", "--device", CARD, "--out", "run", "run"]) == 0
    page = read_page_document(folder / "report.html")
    assert (page["title"], page["details"]) == ("mine", {"0": 1})
    assert page["remat"] == json.loads((folder / "remat.json").read_text())
    assert (folder / "rank0" / "recording.arrows").exists()


def test_a_page_of_someone_else_is_left_as_it_is(here, capsys):
    folder = here / "run"
    folder.mkdir()
    write_chain(folder / "recording.arrows", 8, n_steps=3)
    (folder / "report.html").write_text("<p>my own page</p>")
    assert main(["remat", "--device", CARD, "--out", "run", "run"]) == 0
    assert (folder / "report.html").read_text() == "<p>my own page</p>"
    assert "note: report.html was not changed" in " ".join(capsys.readouterr().out.split())


def test_exit_code_4_when_no_threshold_fits(chain, capsys):
    small = "2080ti-11gb:mem=508MiB"
    assert main(["remat", "--device", small, "--allocator", "cpu", chain]) == 4
    out = capsys.readouterr().out
    assert "No threshold fits: 12.00 MiB can never be evicted, and 2080ti-11gb has 8.00 MiB." in out
    assert (
        f"next: windtunnel remat --device {small} --allocator cpu --policy all recording.arrows   (or a"
        in out
    )
    assert main(["remat", "--device", small, chain]) == 4
    assert (
        f"--device {small} --allocator cuda-expandable recording.arrows   (do exp" in capsys.readouterr().out
    )


def test_settings_the_prediction_rests_on_are_part_of_what_to_do_next(chain, capsys):
    assert main(["remat", "--device", "2080ti-11gb", "--allocator", "cuda-expandable", chain]) == 0
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   (in the environment" in capsys.readouterr().out


def test_thresholds_are_chosen_when_none_are_given(chain, capsys):
    _, document = _document(capsys, "--device", "2080ti-11gb", "--allocator", "cpu", chain)
    sizes = [point["threshold_bytes"] for point in document["points"]]
    assert 7 <= len(sizes) <= 12
    assert (sizes[0], sizes[-1]) == (document["never_evicted_bytes"], 40 * MIB)


def test_all_policies_are_compared(chain, capsys):
    argv = ["--device", CARD, "--allocator", "cpu", "--thresholds", "16MB", "--policy", "all", chain]
    _, document = _document(capsys, *argv)
    policies = [point["policy"] for point in document["points"]]
    assert policies == ["dtr", "local", "lru", "largest", "msps", "ancestors", "contiguous"]
    assert main(["remat", *argv]) == 0
    out = capsys.readouterr().out
    assert f'dtr.policy = "{document["best"]["policy"]}"; dtr.enable()' in out


def test_settings_of_the_runtime_are_passed_on(chain, capsys):
    argv = ("--device", CARD, "--allocator", "cpu", "--thresholds", "16MB")
    code, document = _document(capsys, *argv, "--minimum-size", "5MB", chain)
    assert (code, document["points"][0]["evictions"], document["minimum_size_bytes"]) == (4, 0, 5 * MIB)
    _, document = _document(capsys, *argv, "--sampling", chain)
    assert document["sampling"] is True


def test_measured_costs_replace_the_roofline(chain, capsys, here):
    key = cost_key(EXP.name, [spec.shape for spec in EXP.inputs])
    (here / "costs.json").write_text(CostTable({key: 2.0}).to_json())
    argv = ("--device", CARD, "--allocator", "cpu", "--thresholds", "16MB", "--costs", "costs.json", chain)
    _, document = _document(capsys, *argv)
    point = document["points"][0]
    assert point["extra_seconds"] == 2.0 * point["rematerialisations"]
    assert document["costs"] == {"path": "costs.json", "n_measured": 1, "n_kinds": 2}
    assert document["assumptions"][0].startswith("operator times are measured (costs.json) for 1 of 2 kinds")


def test_a_recording_of_an_ordinary_run_is_refused_with_the_command_to_give(capsys, here):
    script = here / "deep.py"
    script.write_text(DEEP)
    done = windtunnel(
        "run", "--steps", "2", "--device", "2080ti-11gb", "--out", "run", script, "--x 1", cwd=here
    )
    assert done.returncode == 0
    code, sentence, hint = _refused(capsys, "--device", "2080ti-11gb", "run")
    assert (code, sentence) == (
        2,
        "this recording was made by `windtunnel run`, which does not record what autograd saves",
    )
    assert hint == f"record it again with: windtunnel remat --device 2080ti-11gb {script} '--x 1'"


def test_the_device_of_a_recording_is_the_default(chain, capsys, here, monkeypatch):
    folder = here / "run" / "rank0"
    folder.mkdir(parents=True)
    (here / chain).rename(folder / chain)
    _, document = _document(capsys, "run")
    assert document["device"]["name"] == "a100-80gb"  # it names none
    assert document["subject"] == "run"


def test_a_range_that_ends_above_the_card_is_cut_and_says_so(chain, capsys):
    _, document = _document(capsys, "--device", CARD, "--thresholds", "500MB..532MB:16MB", chain)
    assert [point["threshold_bytes"] // MIB for point in document["points"]] == [500, 516]
    assert "thresholds from 532MB up were skipped: 2080ti-11gb has 524.0 MiB" in document["notes"]


def test_a_recording_cut_off_too_early_is_called_that(chain, capsys, here):
    data = (here / chain).read_bytes()
    (here / chain).write_bytes(data[: len(data) // 2])
    code, sentence, _ = _refused(capsys, "--device", CARD, chain)
    assert code == 2
    assert sentence == "recording.arrows ends before its first backward pass"


# -- a script -------------------------------------------------------------------------------------------------


def test_a_script_is_run_once_and_predicted(here):
    script = here / "deep.py"
    script.write_text(DEEP)
    done = windtunnel("remat", "--device", "2080ti-11gb:mem=900MiB", "--json", script, cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["steps"], document["rank"]) == (3, 0)
    assert not document["without"]["fits"]
    assert document["best"]["rematerialisations"] > 0
    assert document["best"]["peak_reserved_bytes"] <= 0.95 * document["device"]["usable_bytes"]
    files = {path.name for path in (here / "windtunnel-out").iterdir()}
    assert {"rank0", "remat.json"} <= files
    again = windtunnel("remat", "--device", "2080ti-11gb:mem=900MiB", "--json", "windtunnel-out", cwd=here)
    assert json.loads(again.stdout)["points"] == document["points"]


def test_one_rank_of_a_world_is_predicted(here):
    script = here / "ddp.py"
    script.write_text(DISTRIBUTED)
    done = windtunnel(
        "remat", "--device", "2080ti-11gb", "--world-size", 4, "--rank", 3, "--json", script, cwd=here
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert (document["rank"], document["world_size"]) == (3, 4)
    assert (here / "windtunnel-out" / "rank3" / "recording.arrows").is_file()


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("raise ValueError('no data')", 3, "ValueError: no data"),
        ("import torch\ntorch.ones(9, device='cuda').sum()", 2, "train.py has no backward pass"),
    ],
)
def test_a_script_that_fails_or_does_not_train_is_reported_in_a_sentence(here, text, code, sentence):
    (here / "train.py").write_text(text)
    done = windtunnel("remat", "train.py", cwd=here)
    assert done.returncode == code, done.stdout + done.stderr
    *_, told, hint = done.stderr.splitlines()
    assert sentence in told
    assert hint.startswith("  next: ")
    assert "Traceback" not in done.stderr


# -- asked wrongly --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "sentence", "hint"),
    [
        (["nowhere.py"], "script nowhere.py does not exist", "check the path"),
        (["nowhere.arrows"], "there is no recording at nowhere.arrows", "windtunnel run"),
        (["empty"], "empty has no recording", "windtunnel run"),
        (["--rank", "3", "folder"], "folder has no recording of rank 3", "it has ranks 0"),
        (["bad.arrows"], "bad.arrows is not a windtunnel recording", "record it again"),
        (["inference.arrows"], "inference.arrows has no backward pass", "loss.backward()"),
        (["--device", "a1000", "CHAIN"], "there is no device called 'a1000'", "nearest"),
        (["--device", "cpu", "CHAIN"], "the CPU has no device memory", "cpu:mem=16GiB"),
        (["--thresholds", "9GB..2GB", "CHAIN"], "runs from 9.00 GiB down to 2.00 GiB", "2GB..9GB"),
        (["--thresholds", "90GB", "--device", CARD, "CHAIN"], "is above the 524.0 MiB of the device", "80%"),
        (["--thresholds", "some", "CHAIN"], "cannot read --thresholds 'some'", "2GB..9GB:1GB"),
        (["--policy", "best", "CHAIN"], "unknown policy 'best'", "dtr, local"),
        (["--minimum-size", "small", "CHAIN"], "cannot read 'small' as a size", "512MiB"),
        (["--allocator", "cud", "CHAIN"], "there is no allocator 'cud'", "cuda"),
        (["--costs", "nowhere.json", "CHAIN"], "cannot read --costs nowhere.json: no such file", "measured"),
        (["--costs", "bad.arrows", "CHAIN"], "--costs bad.arrows: this is not a table", "save_costs"),
        (["--steps", "2", "CHAIN"], "--steps needs a script, but recording.arrows is a recording", "remove --steps"),
        (["CHAIN", "--batch", "3"], "a recording takes no arguments, but '--batch' follows it", "before"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_in_a_sentence(chain, here, capsys, argv, sentence, hint):
    (here / "empty").mkdir()
    write_chain(here / "inference.arrows", 2, is_training=False)
    (here / "folder" / "rank0").mkdir(parents=True)
    write_recording(here / "folder" / "rank0" / "recording.arrows")
    (here / "bad.arrows").write_text("not a recording")
    code, told, advice = _refused(capsys, *(chain if part == "CHAIN" else part for part in argv))
    assert code == 2
    assert sentence in told
    assert hint in advice


def test_nothing_is_touched_when_the_request_is_wrong(here, capsys):
    (here / "windtunnel-out").mkdir()
    (here / "windtunnel-out" / "report.json").write_text("{}")
    assert _refused(capsys, "--force", "nowhere.py")[0] == 2
    assert (here / "windtunnel-out" / "report.json").read_text() == "{}"
