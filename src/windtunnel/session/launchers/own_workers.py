"""Workers of a job that a shell script starts itself, each with MindSpore's variables.

    MS_ROLE=MS_WORKER MS_WORKER_NUM=8 python train.py &   (a dynamic cluster)  ──┐
    RANK_ID=3 RANK_SIZE=8 python train.py &               (a rank table)       ──┴──> Launch of 8 workers

Every worker, and the scheduler, is the same command line, so whichever starts first tells of the whole job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from windtunnel.session.launchers.launch import Launch, count_of

__all__ = ["SCRIPT", "without_cluster", "workers_of"]

SCRIPT = "the shell script"  # as in "the shell script asks for 8 workers"
_PER_NODE = 8  # as msrun assumes
# With them MindSpore would connect to a scheduler, and there is none.
_OF_CLUSTER = ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_SERVER_NUM", "MS_NODE_ID", "RANK_TABLE_FILE")


def workers_of(launch: Launch, environment: Mapping[str, str], rank_before: str | None) -> Launch:
    """The job that a plain Python command is one worker of; the command itself if it is not one of several.

    `rank_before` is RANK_ID as it was before the script: who sets it outside asks for that rank only.
    """
    if launch.launcher != "python" or launch.world_size is not None:
        return launch
    if "MS_ROLE" in environment and "MS_WORKER_NUM" in environment:
        number, variable = environment["MS_WORKER_NUM"], "MS_WORKER_NUM"
    elif environment.get("RANK_ID") != rank_before and "RANK_SIZE" in environment:
        number, variable = environment["RANK_SIZE"], "RANK_SIZE"
    else:
        return launch
    world_size = count_of(number, SCRIPT, variable)
    return replace(
        launch,
        launcher=SCRIPT,
        world_size=world_size,
        nproc_per_node=min(_PER_NODE, world_size),
        variables={"MS_WORKER_NUM": str(world_size), "RANK_SIZE": str(world_size)},
        numbered={"RANK_ID": "rank", "MS_NODE_ID": "rank", "DEVICE_ID": "local_rank"},
    )


def without_cluster(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a simulated worker, which connects to nobody."""
    return {name: value for name, value in environment.items() if name not in _OF_CLUSTER}
