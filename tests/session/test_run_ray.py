"""`windtunnel run --executor ray`: the same ranks as tasks of a real Ray, started on this machine."""

from __future__ import annotations

import importlib.util
import socket
import sys

import pytest

from tests.commands.cli import SCRIPTS, read_json, windtunnel
from windtunnel.commands.main import main
from windtunnel.errors import UsageError
from windtunnel.events.file import read_recording

STAGES = SCRIPTS / "stages.py"
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


def _run(*args, cwd):
    done = windtunnel("run", *args, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, read_json(cwd / "windtunnel-out")


@needs_ray
def test_ray_finds_what_this_machine_finds(tmp_path):
    found = {}
    for executor in ("local", "ray"):
        done, report = _run("--executor", executor, "--world-size", 4, "--force", STAGES, cwd=tmp_path)
        found[executor] = [(r["rank"], r["same_as"], r["peak_bytes"], r["steps"]) for r in report["ranks"]]
        assert "[rank 0] rank 0 is 1024 wide" in done.stdout
    assert found["ray"] == found["local"]
    out = tmp_path / "windtunnel-out"
    assert len(read_recording(out / "rank0" / "recording.arrows")) > 0
    assert "rank 3 is 4096 wide" in (out / "rank3" / "run.log").read_text()  # told so by rank 1, by mail
    assert (out / "rank0" / "run.log").read_text().count("Device MOC memory size") == 1


@needs_ray
@pytest.mark.thorough
def test_a_worker_that_is_killed_costs_a_retry_and_a_note(tmp_path):
    _, report = _run(
        "--executor", "ray", "--world-size", 4, "--ranks", "all",
        STAGES, "--kills-grandparent", 1, "--mark", tmp_path / "mark",
        cwd=tmp_path,
    )  # fmt: skip
    assert (tmp_path / "mark").exists()
    assert [(rank["status"], rank["steps"]) for rank in report["ranks"]] == [("ok", 3)] * 4
    note = "a Ray worker died while it ran this rank: the rank was run again"
    assert [rank["rank"] for rank in report["ranks"] if note in rank["notes"]] == [1]


@pytest.fixture
def cluster(monkeypatch):
    """A cluster of one machine, this one, that is reached by its address."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield found.address
    found.shutdown()


@needs_ray
def test_a_script_outside_the_current_folder_is_sent_with_its_neighbours(tmp_path, cluster):
    here, project = tmp_path / "here", tmp_path / "project"
    for folder in (here / "project", project):
        folder.mkdir(parents=True)
    (here / "project" / "train.py").write_text("raise SystemExit('the wrong one')\n")
    (project / "near.py").write_text("WORD = 'near'\n")
    (project / "train.py").write_text(
        "import os\nfrom near import WORD\nprint(WORD, sorted(os.listdir()), os.path.abspath(__file__))\n"
    )
    _, report = _run(
        "--executor", f"ray:{cluster}", "--level", 0, "--no-html", "../project/train.py", cwd=here
    )
    assert [rank["status"] for rank in report["ranks"]] == ["ok"]
    said = (here / "windtunnel-out" / "rank0" / "run.log").read_text().splitlines()[0]
    assert said.startswith("near ['project'")
    assert not said.endswith(str(project / "train.py"))  # it is the copy that was sent


@needs_ray
def test_a_cluster_that_does_not_answer_is_reported_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"  # bound, but nobody listens
        assert main(["run", "--executor", f"ray:{address}", str(STAGES)]) == 2
    assert capsys.readouterr().err.startswith(f"windtunnel: no Ray cluster answers at {address}: ")


@needs_ray
@pytest.mark.parametrize(("n_late", "is_used"), [(0, True), (2, True), (3, False)])
def test_a_ray_that_comes_up_late_on_this_machine_is_started_again(monkeypatch, n_late, is_used):
    from windtunnel.session import ray_executor

    starts = []

    def init(**_):
        starts.append(len(starts))
        if len(starts) <= n_late:
            raise Exception("The current node timed out during startup.\nThis could happen")  # as Ray does

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # it is set otherwise, for every test after this one
    monkeypatch.setattr(ray_executor.ray, "init", init)
    if is_used:
        assert ray_executor._connect("") is False
    else:
        with pytest.raises(
            UsageError, match=r"^cannot use Ray on this machine: .* timed out during startup\. "
        ):
            ray_executor._connect("")
    assert len(starts) == min(n_late + 1, 3)


def test_without_ray_the_package_to_install_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "windtunnel.session.ray_executor", raising=False)
    assert main(["run", "--executor", "ray", str(STAGES)]) == 2
    assert capsys.readouterr().err == (
        "windtunnel: ray is not installed in this Python\n  next: pip install 'windtunnel[ray]'\n"
    )


@pytest.mark.parametrize("executor", ["slurm", "local:8", ""])
def test_an_unknown_executor_is_refused(tmp_path, monkeypatch, capsys, executor):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--executor", executor, str(STAGES)]) == 2
    assert f"unknown executor {executor!r}" in capsys.readouterr().err
