"""`windtunnel run` of what people type: a launcher or a shell script instead of the training script.

Every start of the same job has the figures of `--world-size 2`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.cli import COMMAND, PATIENCE_S, environment, read_json, windtunnel

TRAIN = """
import argparse, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--local_rank", "--local-rank", type=int)
parser.add_argument("--deepspeed")
args = parser.parse_args()
if "OMPI_COMM_WORLD_RANK" in os.environ:
    os.environ.update(RANK=os.environ["OMPI_COMM_WORLD_RANK"], WORLD_SIZE=os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(args.local_rank or int(os.environ.get("LOCAL_RANK", rank)))
model = DistributedDataParallel(torch.nn.Linear(args.width, args.width).cuda())
held = torch.zeros((1 + rank) * 1024, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, args.width, device="cuda")).sum().backward()
    optimizer.step()
names = ("MASTER_PORT", "EXPORTED", "ACCELERATE_MIXED_PRECISION")
print("SEEN", rank, dist.get_world_size(), args.local_rank, *[os.environ.get(name) for name in names])
"""
SHELL = """\
#!/bin/bash
set -e
export EXPORTED=yes
GPUS=$(nvidia-smi -L | wc -l)
PORT=$(python port.py)
WIDTH=$(python -c "print(64)")
mkdir -p logs made && cd made
cp ../train.py copy.py
ARGS=(--width $WIDTH)
echo "before: $GPUS devices"
torchrun --nproc-per-node $GPUS --master-port $PORT copy.py "${ARGS[@]}" 2>&1 | tee ../logs/x.log
grep -c SEEN ../logs/x.log
torchrun --nproc-per-node 4 copy.py
echo after
"""
FIGURES = ("rank", "status", "peak_bytes", "peak_with_fragments_bytes", "steps", "at_peak_bytes")
OPTIONS = ("--no-html", "--force")


@pytest.fixture
def here(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "port.py").write_text("print(12345)\n")
    (tmp_path / "job.sh").write_text(SHELL)
    return tmp_path


def run(here, *words, options=(), **more):
    done = windtunnel("run", *OPTIONS, *options, *words, cwd=here, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, figures(here)


def figures(here):
    ranks = read_json(here / "windtunnel-out")["ranks"]
    return [{name: rank[name] for name in FIGURES} for rank in ranks]


def seen(here, rank=1):
    log = (here / "windtunnel-out" / f"rank{rank}" / "run.log").read_text()
    return next(line for line in log.splitlines() if line.startswith("SEEN")).split()[1:]


_KNOWN: list = []


@pytest.fixture
def known(here):
    """The figures of the job by our own options, simulated once."""
    if not _KNOWN:
        _, found = run(here, "train.py", options=("--world-size", 2))
        _KNOWN.append(found)
    assert [rank["rank"] for rank in _KNOWN[0]] == [0, 1]
    assert (
        _KNOWN[0][0]["peak_bytes"] < _KNOWN[0][1]["peak_bytes"]
    )  # the ranks differ, so equal figures mean something
    return _KNOWN[0]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("torchrun --nproc-per-node 2 --master-port 999 train.py", ["1", "2", "None", "999", "None", "None"]),
        (
            "python -m torch.distributed.run --nproc_per_node=2 train.py",
            ["1", "2", "None", "29500", "None", "None"],
        ),
        (
            "python -m torch.distributed.launch --nproc_per_node=2 train.py",
            ["1", "2", "1", "29500", "None", "None"],
        ),
        (
            "deepspeed --num_gpus 2 --master_port 7 train.py --deepspeed c.json",
            ["1", "2", "1", "7", "None", "None"],
        ),
        ("mpirun -np 2 -x EXPORTED=mpi python train.py", ["1", "2", "None", "None", "mpi", "None"]),
    ],
)
def test_a_launcher_has_the_figures_of_world_size(here, known, words, what):
    _, found = run(here, *words.split())
    assert found == known
    assert seen(here) == what


def test_msrun_of_a_torch_script_has_the_figures_of_world_size_and_its_logs(here, known):
    words = (
        "msrun --worker_num 2 --local_worker_num 2 --log_dir logs/msrun_log --sim_level 1 train.py".split()
    )
    for _ in range(2):  # the second run replaces the links of the first
        _, found = run(here, *words)
        assert found == known
    assert seen(here) == ["1", "2", "None", "8118", "None", "None"]
    log = (here / "windtunnel-out" / "msrun_log" / "worker_1.log").read_text()
    assert (here / "logs" / "msrun_log" / "worker_1.log").read_text() == log
    assert "SEEN 1 2" in log
    assert "Actual peak memory usage (with fragments): 2M" in log


def test_accelerate_launch_has_the_figures_of_world_size(here, known):
    pytest.importorskip("accelerate")
    (here / "config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\n"
        "num_processes: 2\nmain_process_port: 4242\n"
    )
    _, found = run(here, "accelerate", "launch", "--config_file", "config.yaml", "train.py", "--width", 64)
    assert found == known
    assert seen(here) == ["1", "2", "None", "4242", "None", "bf16"]
    refused = windtunnel("run", *OPTIONS, "accelerate", "launch", "--nonsense", "train.py", cwd=here)
    assert refused.returncode == 2
    assert "accelerate launch refuses this" in refused.stderr


def test_a_shell_script_runs_until_its_launcher_and_on(here, known):
    before = {path.name for path in here.iterdir()}
    done, found = run(here, "bash", "job.sh", options=("--nproc-per-node", 2))
    assert found == known
    assert seen(here) == ["1", "2", "None", "12345", "yes", "None"]
    lines = done.stdout.splitlines()
    ours = "windtunnel: not simulated, one launcher command is simulated in a run: torchrun --nproc-per-node 4 copy.py"
    wanted = ["before: 2 devices", "SEEN 0 2 None 12345 yes None", "1", ours, "after"]
    assert [line for line in lines if line in wanted] == wanted
    report = read_json(here / "windtunnel-out")
    (note,) = [note for note in report["ranks"][0]["notes"] if "not simulated" in note]
    assert (
        note
        == "not simulated, because bash job.sh starts them after the first: torchrun --nproc-per-node 4 copy.py"
    )
    if report["files"]["protection"] == "layer":
        assert {path.name for path in here.iterdir()} == {*before, "windtunnel-out"}
        assert {Path(change["path"]).name for change in report["files"]["changes"]} >= {"copy.py", "x.log"}
    assert "windtunnel run --advise --force --device a100-80gb --nproc-per-node 2 bash job.sh" in done.stdout


@pytest.mark.parametrize(
    "script",
    [
        f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 train.py",  # not the python on PATH
        f"PATH=/usr/bin:/bin; {sys.executable} -m torch.distributed.run --nproc-per-node 2 train.py",
        "srun -n 2 bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec python -m torch.distributed.run"
        " --nproc-per-node 2 train.py'",
        "timeout 60 torchrun --nproc-per-node 2 train.py | head -1",
        "make",
    ],
    ids=["full path", "own PATH", "srun", "prefix", "make"],
)
def test_a_launcher_is_found_however_the_script_starts_it(here, known, script):
    words = ["bash", "-c", script]
    if script == "make":
        if shutil.which("make") is None:
            pytest.skip("no make here")
        (here / "Makefile").write_text("all:\n\ttorchrun --nproc-per-node 2 train.py\n")
        words = ["make", "all"]
    _, found = run(here, *words)
    assert found == known


def test_without_a_layer_a_shell_script_that_writes_nothing_works_and_another_is_told_why(here, known):
    guard = ("--isolation", "guard")
    _, found = run(
        here, "sh", "-c", "python port.py; torchrun --nproc-per-node 2 train.py | cat", options=guard
    )
    assert found == known
    done = windtunnel("run", *OPTIONS, *guard, "bash", "job.sh", cwd=here)
    if done.returncode:  # where the kernel denies writes
        assert done.returncode == 3
        assert "programs cannot write files, as this run has no copy-on-write layer" in done.stderr


def test_a_python_training_script_in_a_shell_script_is_simulated_and_helpers_run(here):
    (here / "prepare.py").write_text("open('data.txt', 'w').write('128')\n")
    (here / "one.py").write_text(
        "import sys, torch\nx = torch.zeros(int(open('data.txt').read()), 1024, device='cuda')\nprint('USED', x.shape)\n"
    )
    done, (rank,) = run(here, "sh", "-c", "python prepare.py && python one.py && echo and on")
    assert rank["peak_bytes"] == 128 * 1024 * 4
    assert "USED torch.Size([128, 1024])" in done.stdout
    assert "and on" in done.stdout
    assert not (here / "data.txt").exists()


def test_a_tool_that_prepares_data_for_a_launcher_runs_although_it_imports_training_code(here, known):
    (here / "model.py").write_text("import torch\ndef build(): return torch.nn.Linear(1, 1).cuda()\n")
    (here / "prepare.py").write_text("import model\nopen('ready', 'w').write('yes')\nprint('PREPARED')\n")
    ours = Path(sys.executable).parent  # as after `source activate`
    script = f"export PATH={ours}:$PATH; python prepare.py && test -f ready && torchrun --nproc-per-node 2 train.py"
    done, found = run(here, "bash", "-c", script)
    assert found == known
    assert "PREPARED" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["torchrun", "--nproc-per-node", 2, "nowhere.py"], 2, "script nowhere.py does not exist"),
        (["--world-size", 4, "torchrun", "--nproc-per-node", 2, "train.py"], 2, "--world-size is 4, but torchrun"),
        (["torchrun", "--nproc-per-node", 0, "train.py"], 2, "torchrun --nproc-per-node is 0"),
        (["bash", "nowhere.sh"], 2, "shell script nowhere.sh does not exist"),
        (["sh", "-c", "torchrun --nproc-per-node 2 nowhere.py"], 2, "script nowhere.py does not exist (in sh -c"),
        (["sh", "-c", "true"], 2, "ended with exit code 0 and started no launcher and no training script"),
        (["sh", "-c", "python port.py; exit 5"], 3, "no training script; it ran python port.py"),
        (["--executor", "ray", "bash", "job.sh"], 2, "a shell script runs on this machine only"),
        (["--framework", "jax", "train.py"], 2, "unknown framework 'jax'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_leaves_nothing(here, words, code, sentence):
    done = windtunnel("run", *OPTIONS, *words, cwd=here)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not list((here / "windtunnel-out").glob("*"))


def test_the_exit_code_of_a_failed_job_reaches_the_shell_script(here):
    (here / "bad.py").write_text(
        "import torch\ntorch.zeros(2, device='cuda') @ torch.zeros(3, device='cuda')\n"
    )
    done = windtunnel("run", *OPTIONS, "sh", "-c", "torchrun bad.py || echo code $?", cwd=here)
    assert done.returncode == 3
    assert "code 1" in done.stdout


POPEN = """
import os, subprocess, sys
workers = [subprocess.Popen([sys.executable, "train.py", "--width", "8", "--rank", str(i)],
                            env={**os.environ, "RANK": str(i), "WORLD_SIZE": "4"}) for i in range(4)]
assert [worker.wait() for worker in workers] == [0] * 4
print(subprocess.check_output([sys.executable, "port.py"]))
"""
PROCESSES = """
import torch.distributed as dist, torch.multiprocessing as mp
def work(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)
if __name__ == "__main__":
    workers = [mp.Process(target=work, args=(rank, 3)) for rank in range(3)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert [worker.exitcode for worker in workers] == [0] * 3
"""


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            POPEN,
            "the script starts 4 workers itself (`python train.py --width 8`), which were not simulated: windtunnel run"
            " --world-size 4 train.py --width 8",
        ),
        (
            PROCESSES,
            "the script starts 3 processes itself (multiprocessing.Process of work), which were not simulated",
        ),
        (
            "import os\nassert os.system('torchrun --nproc-per-node 2 train.py') == 0",
            "the script starts its workers itself, with `torchrun --nproc-per-node 2 train.py`, which were not simulated:"
            " windtunnel run torchrun --nproc-per-node 2 train.py",
        ),
    ],
    ids=["subprocess", "multiprocessing", "os.system"],
)
def test_a_script_that_starts_its_workers_itself_is_told_what_to_type(here, script, sentence):
    (here / "start.py").write_text(script)
    done = windtunnel("run", *OPTIONS, "start.py", cwd=here)
    assert done.returncode == 3
    (rank,) = read_json(here / "windtunnel-out")["ranks"]
    assert rank["error"].startswith(sentence)


def test_processes_that_are_no_workers_run_as_they_are(here):
    (here / "start.py").write_text(
        "import subprocess, sys\nfrom multiprocessing import Pool\nimport torch\n"
        "if __name__ == '__main__':\n    with Pool(2) as pool:\n        print('POOL', pool.map(abs, [-1, -2]))\n"
        "    print('PORT', subprocess.check_output([sys.executable, 'port.py']))\n"
        "    torch.zeros(8, device='cuda')\n"
    )
    done, _ = run(here, "start.py")
    assert "POOL [1, 2]" in done.stdout
    assert "PORT b'12345" in done.stdout


def test_a_module_such_as_pytest_runs(here):
    (here / "test_it.py").write_text(
        "import torch\ndef test_it():\n    assert torch.ones(1024, device='cuda').sum().shape == ()\n"
    )
    done, (rank,) = run(here, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert "1 passed" in done.stdout
    assert rank["peak_bytes"] >= 4096


@pytest.mark.parametrize("script", ["echo begun; sleep 300", "torchrun --nproc-per-node 2 endless.py"])
def test_an_interrupt_ends_a_shell_script_too(here, script):
    (here / "endless.py").write_text(
        "import time, torch\ntorch.zeros(8, device='cuda')\nprint('begun', flush=True)\ntime.sleep(300)\n"
    )
    process = subprocess.Popen(
        [*COMMAND, "run", *OPTIONS, "--level", "0", "bash", "-c", script], cwd=here, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    with process:
        try:
            assert any("begun" in line for line in process.stdout)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):  # nothing of its session is left
        os.killpg(process.pid, 0)
