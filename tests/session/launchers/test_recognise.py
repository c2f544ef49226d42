"""Command lines of launchers, read without starting anything: how many workers, which script, what each worker sees."""

from __future__ import annotations

import shlex

import pytest

from windtunnel.errors import UsageError
from windtunnel.session.launchers.launch import Given, Launch, check_agreement
from windtunnel.session.launchers.python_words import python_words
from windtunnel.session.launchers.recognise import Command, shell_words, understand


def read(text, given=None, **environment):
    return understand(shlex.split(text), given or Given(), environment)


@pytest.mark.parametrize(
    ("text", "world_size", "per_node", "script", "arguments"),
    [
        ("torchrun --nproc-per-node 8 --nnodes 16 train.py --lr 1", 128, 8, "train.py", ("--lr", "1")),
        ("torchrun --nproc_per_node=4 --rdzv_backend c10d --standalone train.py", 4, 4, "train.py", ()),
        ("torchrun train.py --nproc-per-node 9", 1, 1, "train.py", ("--nproc-per-node", "9")),
        ("torchrun --nproc-per-node 2 --no-python python train.py", 2, 2, "train.py", ()),
        ("/opt/venv/bin/torchrun --nproc 2 train.py", 2, 2, "train.py", ()),
        ("python -m torch.distributed.run --nnodes=2 --nproc_per_node=8 a.py x", 16, 8, "a.py", ("x",)),
        ("python3 -u -X dev -m torch.distributed.launch --nproc_per_node 2 a.py", 2, 2, "a.py", ()),
        ("msrun --worker_num 8 --local_worker_num 4 --log_dir l --join=True a.py b", 8, 4, "a.py", ("b",)),
        ("msrun --worker_num=4 a.py", 4, 4, "a.py", ()),
        ("python -m mindspore.parallel.cluster.run --worker_num 2 a.py", 2, 2, "a.py", ()),
        ("deepspeed --num_gpus 4 a.py --deepspeed c.json", 4, 4, "a.py", ("--deepspeed", "c.json")),
        ("deepspeed --num_nodes 2 --num_gpus=4 a.py", 8, 4, "a.py", ()),
        ("deepspeed --include localhost:1,3 a.py", 2, 2, "a.py", ()),
        ("mpirun -np 16 --allow-run-as-root --mca btl ^openib -x A=1 python a.py", 16, 8, "a.py", ()),
        ("mpirun -H a:4,b:4 python -u a.py", 8, 4, "a.py", ()),
        ("mpiexec -n 6 -npernode 3 python a.py", 6, 3, "a.py", ()),
        ("srun -N4 --ntasks-per-node=8 --gres=gpu:8 python a.py", 32, 8, "a.py", ()),
        ("srun -n 4 torchrun --nnodes 4 --nproc-per-node 8 a.py", 32, 8, "a.py", ()),
        ("python a.py --x", None, None, "a.py", ("--x",)),
    ],
)
def test_a_command_line_says_how_many_workers_run_which_script(text, world_size, per_node, script, arguments):
    launch = read(text)
    assert (launch.world_size, launch.nproc_per_node) == (world_size, per_node)
    assert (launch.script, launch.arguments, launch.is_module) == (script, arguments, False)


@pytest.mark.parametrize(
    "text",
    [
        "torchrun -m pkg.train -x",
        "deepspeed --num_gpus 2 --module pkg.train -x",
        "python -m pkg.train -x",
        "msrun --worker_num 8 -m pkg.train -x",
        "msrun --worker_num 8 python -u -m pkg.train -x",
    ],
)
def test_a_module_stays_a_module(text):
    launch = read(text)
    assert (launch.script, launch.is_module, launch.arguments) == ("pkg.train", True, ("-x",))


@pytest.mark.parametrize("words", ["msrun --worker_num=8 --join=True", "mpirun -n 8", ""])
def test_pytest_in_place_of_a_script_is_its_module(words):
    """So the run scripts of MindSpore's documentation start their samples."""
    launch = read(f"{words} pytest -s train.py::test_it".strip())
    assert launch.world_size == (8 if words else None)
    assert (launch.script, launch.is_module, launch.arguments) == (
        "pytest",
        True,
        ("-s", "train.py::test_it"),
    )


def test_workers_see_what_each_launcher_sets():
    launch = read("torchrun --nproc-per-node 2 --master-addr node7 --master-port 1234 a.py")
    assert launch.variables_of(1)["MASTER_ADDR"] == "node7"
    assert launch.variables_of(1)["MASTER_PORT"] == "1234"
    assert launch.variables_of(1)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in read("torchrun --nproc-per-node 2 a.py", OMP_NUM_THREADS="4").variables
    assert read("torchrun --rdzv-endpoint=h:99 a.py").variables["MASTER_PORT"] == "99"

    launch = read("msrun --worker_num 8 --local_worker_num 4 --sim_level 1 --sim_rank_id 5 a.py")
    seen = launch.variables_of(5)
    assert (seen["RANK_ID"], seen["DEVICE_ID"], seen["RANK_SIZE"], seen["MS_WORKER_NUM"]) == (
        "5",
        "1",
        "8",
        "8",
    )
    assert "MS_ROLE" not in seen  # with it MindSpore would look for a scheduler
    assert (launch.level, launch.rank) == (1, 5)

    launch = read("deepspeed --num_nodes 2 --num_gpus 4 a.py")
    assert launch.variables_of(5)["CROSS_RANK"] == "1"
    assert launch.variables_of(5)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert launch.arguments_of(5) == ("--local_rank=1",)
    assert read("deepspeed --num_gpus 4 --no_local_rank a.py").arguments_of(1) == ()
    assert read("python -m torch.distributed.launch --nproc_per_node=4 a.py b").arguments_of(3) == (
        "--local-rank=3",
        "b",
    )

    seen = read("mpirun -np 4 -npernode 2 -x A=1 -x HOME python a.py").variables_of(3)
    assert (seen["OMPI_COMM_WORLD_RANK"], seen["OMPI_COMM_WORLD_LOCAL_RANK"], seen["A"]) == ("3", "1", "1")
    assert not {"RANK", "HOME"} & set(seen)
    seen = read("srun --nodes=2 --ntasks-per-node=2 --export=ALL,B=2 python a.py").variables_of(3)
    assert (seen["SLURM_PROCID"], seen["SLURM_LOCALID"], seen["SLURM_NODEID"]) == ("3", "1", "1")
    assert (seen["SLURM_NTASKS"], seen["SLURM_TASKS_PER_NODE"], seen["B"]) == ("4", "2(x2)", "2")


def test_defaults_come_from_the_environment_as_the_launcher_reads_it():
    assert read("torchrun a.py", PET_NNODES="4", PET_NPROC_PER_NODE="8").world_size == 32
    assert read("srun python a.py", SLURM_NTASKS="16", SLURM_NNODES="2").nproc_per_node == 8
    assert read("deepspeed a.py", CUDA_VISIBLE_DEVICES="2,3").world_size == 2


@pytest.mark.parametrize(
    "text", ["torchrun --nproc-per-node gpu a.py", "torchrun --nproc-per-node auto a.py", "deepspeed a.py"]
)
def test_a_launcher_that_counts_devices_is_told_how_many(text):
    assert read(text, Given(nproc_per_node=4)).world_size == 4
    assert read(text, Given(nproc_per_node=4)).notes == ()
    assumed = read(text)
    assert assumed.world_size == 8
    assert "8 were assumed (--nproc-per-node)" in assumed.notes[0]


def test_a_hostfile_names_machines_and_devices(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("# two machines\nworker-0 slots=4\nworker-1 slots=4\n\n")
    launch = read(f"deepspeed --hostfile {hosts} a.py")
    assert (launch.world_size, launch.nproc_per_node, launch.variables["MASTER_ADDR"]) == (8, 4, "worker-0")
    assert read(f"deepspeed -H {hosts} --num_nodes 1 a.py").world_size == 4
    assert read(f"deepspeed --hostfile {hosts} --exclude worker-1 a.py").world_size == 4
    assert read(f"deepspeed --hostfile {hosts} -i worker-0:0,1@worker-1:2,3 a.py").world_size == 4
    hosts.write_text("worker-0 slots=4\nworker-1 slots=8\n")
    _refused(f"deepspeed --hostfile {hosts} a.py", "different numbers of devices: 4, 8")
    hosts.write_text("worker-0: 4\n")
    _refused(f"deepspeed --hostfile {hosts} a.py", "has a line that deepspeed cannot read: 'worker-0: 4'")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("torchrun --nproc-per-node 0 a.py", "torchrun --nproc-per-node is 0"),
        ("torchrun --nproc-per-node eight a.py", "torchrun --nproc-per-node is 'eight', not a number"),
        ("torchrun --nnodes 1:4 --nproc-per-node 2 a.py", "torchrun --nnodes 1:4 is a range: the job may have 1 to 4 machines"),
        ("torchrun --nproc-per-node 2", "torchrun is given no script"),
        ("torchrun --nproc-per-node", "torchrun --nproc-per-node has no value"),
        ("torchrun --no-python ./start a.py", "torchrun --no-python starts ./start"),
        ("torchrun --nproc-per-node cpu a.py", "starts a worker for every core"),
        ("msrun --worker_num 0 a.py", "msrun --worker_num is 0"),
        ("msrun --sim_level 7 a.py", "msrun --sim_level is '7'"),
        ("msrun --worker_num 4 --sim_rank_id 4 a.py", "msrun --sim_rank_id is 4, and 4 workers have ranks 0 to 3"),
        ("deepspeed --hostfile nowhere a.py", "the hostfile nowhere does not exist"),
        ("deepspeed --num_gpus 2 --include a:1 a.py", "but not both"),
        ("deepspeed --autotuning tune a.py", "starts many experiments"),
        ("mpirun python a.py", "mpirun does not say how many tasks to start"),
        ("mpirun -np 2", "mpirun is given no program"),
        ("mpirun -np 2 --unknown python a.py", "unknown option --unknown of mpirun"),
        ("mpirun -np 1 python a.py : -np 1 python b.py", "mpirun starts several programs"),
        ("srun -n 0 python a.py", "srun --ntasks is 0"),
        ("accelerate config", "accelerate config starts no workers"),
        ("python -c pass", "python -c cannot be simulated"),
    ],
)  # fmt: skip
def test_a_command_line_that_cannot_be_simulated_is_refused_in_a_sentence(text, sentence):
    _refused(text, sentence)


def _refused(text, sentence):
    with pytest.raises(UsageError) as refusal:
        read(text)
    assert sentence in refusal.value.message
    assert refusal.value.hint


def test_an_elastic_range_is_settled_by_our_own_option():
    assert read("torchrun --nnodes 1:4 --nproc-per-node 2 a.py", Given(n_nodes=3)).world_size == 6


def test_another_program_is_a_command_and_knows_the_launcher_around_it():
    assert read("bash job.sh") == Command(("bash", "job.sh"))
    command = read("srun -n 4 bash -c 'python a.py'")
    assert command.words == ("bash", "-c", "python a.py")
    inner = understand(["python", "a.py"], Given(), {}, command.outer)
    assert (inner.world_size, inner.script, inner.variables_of(2)["SLURM_PROCID"]) == (4, "a.py", "2")


def test_a_launcher_inside_a_launcher_that_does_not_fit_it_is_noted():
    assert read("srun -n 8 torchrun --nproc-per-node 8 a.py").notes == (
        "srun starts 8 tasks, and torchrun in each is for 1 machine",
    )
    assert read("srun -n 2 torchrun --nnodes 2 --nproc-per-node 8 a.py").notes == ()


@pytest.mark.parametrize(
    ("given", "level", "rank", "sentence"),
    [
        (Given(world_size=4), None, None, "--world-size is 4, but msrun asks for 8 workers"),
        (
            Given(nproc_per_node=8),
            None,
            None,
            "--nproc-per-node is 8, but msrun asks for 4 workers on each machine",
        ),
        (Given(n_nodes=1), None, None, "--nnodes is 1, but msrun asks for 2 machines"),
        (Given(), 3, None, "--level is 3, but msrun has --sim_level 1"),
        (Given(), None, 0, "--rank is 0, but msrun has --sim_rank_id 5"),
    ],
)
def test_an_option_of_ours_that_contradicts_the_launcher_is_refused(given, level, rank, sentence):
    launch = read("msrun --worker_num 8 --local_worker_num 4 --sim_level 1 --sim_rank_id 5 a.py")
    with pytest.raises(UsageError) as refusal:
        check_agreement(launch, given, level, rank)
    assert refusal.value.message == sentence
    check_agreement(launch, Given(nproc_per_node=4, n_nodes=2, world_size=8), 1, 5)


@pytest.mark.parametrize(
    ("text", "kind", "name", "arguments"),
    [
        ("python a.py -m b", "script", "a.py", ("-m", "b")),
        ("python -uB -W error -mpkg.x y", "module", "pkg.x", ("y",)),
        ("python -c 'print(1)' a.py", "code", "print(1)", ("a.py",)),
        ("python -Ic x", "code", "x", ()),
        ("python --version", "other", "", ()),
        ("python", "other", "", ()),
        ("python -", "other", "", ()),
    ],
)
def test_the_command_line_of_python(text, kind, name, arguments):
    found = python_words(shlex.split(text))
    assert (found.kind, found.name, found.arguments) == (kind, name, arguments)


def test_a_shell_script_is_known_by_its_name_its_first_line_or_its_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("echo 1\n")
    (tmp_path / "job").write_text("#!/usr/bin/env bash\necho 1\n")
    (tmp_path / "start").write_text("#!/usr/bin/env python\nprint(1)\n")
    assert shell_words(["job.sh", "x"]) == ("bash", "job.sh", "x")
    assert shell_words(["job"]) == ("bash", "job")
    (tmp_path / "job").chmod(0o755)
    assert shell_words(["job", "x"]) == ("./job", "x")
    assert shell_words(["bash", "-x", "job.sh"]) == ("bash", "-x", "job.sh")
    assert shell_words(["sh", "-c", "true"]) == ("sh", "-c", "true")
    assert shell_words(["start"]) is None
    assert shell_words(["train.py"]) is None
    for words in (["nowhere.sh"], ["bash", "nowhere.sh"]):
        with pytest.raises(UsageError, match=r"shell script nowhere\.sh does not exist"):
            shell_words(words)


def test_a_launch_survives_the_way_to_another_process():
    launch = read("torchrun --nproc-per-node gpu a.py b")
    assert Launch.from_json(launch.to_json()) == launch
