"""The vocabulary of a probe's config.json: tasks, levels, keys, and what each older name means here.

    words (data only) ──> values, record: which key is allowed where, and what the user is told about it

Names are those of msProbe 26.2 and of the versions its older guides were written for.
"""

from __future__ import annotations

__all__ = [
    "DATA_MODES",
    "DEFAULT_DUMP_PATH",
    "DEFAULT_FILE_FORMAT",
    "FILE_FORMATS",
    "KEYS",
    "LEVELS",
    "PRECISIONS",
    "REFUSED_KEYS",
    "REFUSED_TASKS",
    "RISK_LEVELS",
    "SECTION_KEYS",
    "STATISTIC_NAMES",
    "SUMMARY_MODES",
    "TASKS",
    "TASK_MEANS",
    "UNUSED_KEYS",
    "UNUSED_SECTION_KEYS",
]

DEFAULT_DUMP_PATH = "./dump_path"
TASKS = ("statistics", "tensor", "structure", "overflow_check")
LEVELS = ("L0", "L1", "L2", "mix", "debug")
SUMMARY_MODES = ("statistics", "md5", "xor")
DATA_MODES = ("all", "forward", "backward", "input", "output")
PRECISIONS = ("low", "high")
RISK_LEVELS = ("ALL", "CORE", "FOCUS")
FILE_FORMATS = ("pt", "npy")
DEFAULT_FILE_FORMAT = {"pytorch": "pt", "mindspore": "npy"}

# Names of other tasks that do the same here.
TASK_MEANS = {"nan_check": "overflow_check", "diff_check": "tensor"}

# Tasks of msProbe that are not supported: why, and what to do instead.
REFUSED_TASKS = {
    "acc_check": (
        "it runs saved APIs again on an accelerator, after collecting",
        'collect with task "tensor", then run `windtunnel compare`',
    ),
    "run_ut": (
        "it runs saved APIs again on an accelerator, after collecting",
        'collect with task "tensor", then run `windtunnel compare`',
    ),
    "free_benchmark": (
        "it runs every API twice with modified inputs, and the probe never changes a program",
        'collect two runs with task "statistics", then run `windtunnel compare`',
    ),
    "grad_probe": (
        "its CSV of gradients is not written by this probe",
        'use task "statistics" with level "L0": the entries "parameters_grad" hold the gradients',
    ),
    "exception_dump": (
        "the Ascend driver does it on an NPU",
        'use task "overflow_check", which reports the first NaN or Inf on any device',
    ),
}

_COMMON = "task dump_path rank step level async_dump dump_enable extra_info precision risk_level custom_op_namespaces"
_OURS = "file_format strict_json api_list flush_seconds"
_OLD = "seed is_deterministic enable_dataloader acl_config"

_SELECT = "scope list data_mode"
_SLICE = "slice request_id"
_ONLINE = "nfs_path host port tls_path"
_REPLAY = f"white_list black_list error_data_path is_online is_benchmark_device rank_list {_ONLINE}"
SECTION_KEYS = {
    task: tuple(keys.split())
    for task, keys in {
        "statistics": f"{_SELECT} tensor_list summary_mode {_SLICE} device precision",
        "tensor": f"{_SELECT} summary_mode {_SLICE} bench_path diff_nums file_format backward_input "
        f"online_run_ut online_run_ut_recompute {_ONLINE}",
        "structure": f"{_SELECT}",
        "overflow_check": f"{_SELECT} tensor_list summary_mode overflow_nums check_mode",
        "nan_check": f"{_SELECT} tensor_list summary_mode overflow_nums",
        "diff_check": f"{_SELECT} summary_mode {_SLICE} bench_path diff_nums",
        "acc_check": _REPLAY,
        "run_ut": _REPLAY,
        "free_benchmark": "scope list fuzz_device pert_mode handler_type fuzz_level fuzz_stage "
        "if_preheat preheat_step max_sample",
        "grad_probe": "grad_level param_list bounds",
        "exception_dump": "",
    }.items()
}
KEYS = (*_COMMON.split(), *_OURS.split(), *_OLD.split(), "load", *SECTION_KEYS)

# Known keys that have no effect here, and what the user is told; {} is the value given.
UNUSED_KEYS = {
    "seed": "the probe does not seed: call seed_all(seed={}) at the top of the script",
    "is_deterministic": "the probe does not change algorithms: call seed_all(mode=True) at the top of the script",
    "enable_dataloader": "call start(), stop() and step() in the training loop instead",
    "acl_config": 'it configures an NPU driver; level "L2" needs no such file here',
}
UNUSED_SECTION_KEYS = {
    "check_mode": "it selects an NPU detector; here every output is checked for NaN and Inf",
    "backward_input": "backward data is collected during the run, so no input has to be loaded",
    "device": "statistics are always computed where the tensor is",
    "online_run_ut": "there is no online check; collect both runs, then run `windtunnel compare`",
    "online_run_ut_recompute": "there is no online check",
    **dict.fromkeys(_ONLINE.split(), "there is no online check, and nothing is sent anywhere"),
}
REFUSED_KEYS = {
    "load": (
        "it feeds saved inputs into the model, and the probe never changes what a model computes",
        "remove it; to find where two runs diverge, run `windtunnel compare`",
    ),
}

# MindSpore's list form of summary_mode: which of our modes each name needs.
STATISTIC_NAMES = {
    "max": "statistics",
    "min": "statistics",
    "mean": "statistics",
    "l2norm": "statistics",
    "count": "statistics",
    "nan count": "statistics",
    "zero count": "statistics",
    "negative zero count": "statistics",
    "positive zero count": "statistics",
    "negative inf count": "statistics",
    "positive inf count": "statistics",
    "hash": "md5",
    "md5": "md5",
}
