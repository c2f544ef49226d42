"""Shell scripts that start the workers of a MindSpore job themselves."""

import pytest

from windtunnel.errors import UsageError
from windtunnel.session.launchers.launch import Launch
from windtunnel.session.launchers.own_workers import without_cluster, workers_of

PLAIN = Launch("python", "net.py", ("--lr", "1"))
CLUSTER = {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "16", "MS_SCHED_HOST": "127.0.0.1", "MS_NODE_ID": "3"}
TABLE = {"RANK_ID": "0", "RANK_SIZE": "4", "RANK_TABLE_FILE": "table.json"}


@pytest.mark.parametrize("role", ["MS_SCHED", "MS_WORKER"])
def test_every_process_of_a_dynamic_cluster_tells_of_the_same_job(role):
    job = workers_of(PLAIN, CLUSTER | {"MS_ROLE": role}, None)
    assert (job.world_size, job.nproc_per_node, job.n_nodes) == (16, 8, 2)
    assert (job.script, job.arguments) == ("net.py", ("--lr", "1"))
    assert job.variables_of(9) == {
        "MS_WORKER_NUM": "16", "RANK_SIZE": "16", "RANK_ID": "9", "MS_NODE_ID": "9", "DEVICE_ID": "1",
    }  # fmt: skip


def test_a_rank_that_the_script_itself_numbers_is_one_worker_of_the_job():
    job = workers_of(PLAIN, TABLE, None)
    assert (job.world_size, job.nproc_per_node) == (4, 4)
    assert job == workers_of(PLAIN, TABLE | {"RANK_ID": "3"}, None)


def test_a_rank_that_was_asked_for_around_the_script_is_that_rank_only():
    assert workers_of(PLAIN, TABLE, "0") is PLAIN


def test_a_launcher_knows_its_own_workers():
    launch = Launch("msrun", "net.py", (), world_size=2)
    assert workers_of(launch, CLUSTER, None) is launch


def test_a_wrong_number_is_refused():
    with pytest.raises(UsageError, match="MS_WORKER_NUM is 'x', not a number"):
        workers_of(PLAIN, CLUSTER | {"MS_WORKER_NUM": "x"}, None)


def test_a_simulated_worker_connects_to_nobody():
    assert without_cluster(CLUSTER | {"DATA_PATH": "d"}) == {"MS_WORKER_NUM": "16", "DATA_PATH": "d"}
