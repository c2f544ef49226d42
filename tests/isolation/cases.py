"""What each script in scripts/ does to its files, as a report has to tell it.

    Case("save_path", replaced("ck/model.pt", WEIGHTS))

Names are relative to the script's working folder. Sizes of what was there before are not written here: the test
takes them from the tree. A name with a star stands for one entry or more.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CASES", "Case", "Change"]


@dataclass(frozen=True)
class Change:
    """One entry of the report; `what` may name two that are equally true."""

    what: str
    path: str
    n_bytes: int | range | None = None  # None: whatever it is
    moved_from: str | None = None


@dataclass(frozen=True)
class Case:
    """A script, and what is expected of it."""

    script: str
    changes: tuple[Change, ...] = ()
    maybe: tuple[str, ...] = ()  # paths that may be listed or not: neither would mislead anyone
    user_changes: tuple[Change, ...] | None = (
        None  # where the layer of an ordinary user cannot see a move as a move
    )
    denied: bool = False  # under the guard it writes by a way that can only be refused
    alone: bool = False  # cannot share a process with other scripts
    heavy: bool = False  # shares a process, but with its like: imports take seconds
    exit_code: int = 0
    options: tuple[str, ...] = ()
    fault: str = ""  # why it does not come to its end today; its files are as they were all the same
    guard_fault: str = ""  # why the guard cannot even protect its files


def written(path: str, n_bytes: int | range | None = None) -> Change:
    return Change("written", path, n_bytes)


def replaced(path: str, n_bytes: int | range | None = None) -> Change:
    return Change("replaced", path, n_bytes)


def removed(path: str) -> Change:
    return Change("removed", path)


def moved(path: str, moved_from: str, n_bytes: int | range | None = None) -> Change:
    return Change("moved", path, n_bytes, moved_from)


def _tensors(n_bytes: int) -> range:
    """The size of a file with so many bytes of tensors: names, shapes and padding come on top."""
    return range(n_bytes, n_bytes + n_bytes // 20 + 65536)


WEIGHTS = _tensors(4 * (1024 * 512 + 512))
MOMENTS = _tensors(2 * 4 * (1024 * 512 + 512))
WEIGHTS_AND_MOMENTS = _tensors(3 * 4 * (1024 * 512 + 512))
GPT2 = _tensors(4 * 118_208)
GPT2_MOMENTS = _tensors(2 * 4 * 118_208)
MODEL = replaced("ck/model.pt", WEIGHTS)
SAFETENSORS = replaced("ck/model.safetensors", WEIGHTS)
CHILD = (removed("ck/optimizer.pt"), replaced("ck/best.json", 2))


def _case(script: str, *changes: Change, **more) -> Case:
    return Case(script, changes, **more)


_SAVES = [
    *(
        _case(f"save_{how}", MODEL)
        for how in (
            "path",
            "file_object",
            "bytesio",
            "legacy",
            "cpu_copy",
            "cpu_model",
            "whole_model",
            "then_replace",
            "then_move",
            "then_path_replace",
        )
    ),
    _case("save_pathlib", MODEL, written("ck/checkpoint-100/new.pt", MOMENTS)),
    _case("save_everything", replaced("ck/model.pt", WEIGHTS_AND_MOMENTS)),
    _case(
        "save_through_links",
        replaced("ck/old/model.pt", WEIGHTS),
        replaced("ck/checkpoint-100/model.pt", WEIGHTS),
    ),
    _case("save_read_only", replaced("ck/frozen.pt", WEIGHTS)),
    _case("save_resumed", replaced("ck/model.pt", _tensors(4 * (64 * 64 + 64)))),
    _case("save_then_rename_elsewhere", replaced("ck/checkpoint-100/model.pt", WEIGHTS)),
    _case("jit_save", replaced("ck/model.pt", _tensors(4 * (16 * 16 + 16)))),
    _case("remove_then_save", MODEL),
    _case("backup_then_save", moved("ck/model.bak.pt", "ck/model.pt"), MODEL),
    _case("folder_swap", MODEL, removed("ck/*")),
    _case(
        "folder_moved_away",
        moved("ck/checkpoint-100.bak", "ck/checkpoint-100"),
        replaced("ck/checkpoint-100/model.pt", WEIGHTS),
    ),
    _case("dcp_save", replaced("ck/dcp/.metadata"), replaced("ck/dcp/__0_0.distcp", WEIGHTS)),
    _case("dcp_async_save", replaced("ck/dcp/.metadata"), replaced("ck/dcp/__0_0.distcp", WEIGHTS)),
    _case(
        "dcp_writer",
        replaced("ck/dcp/.metadata"),
        replaced("ck/dcp/__0_0.distcp"),
        written("ck/dcp/__0_1.distcp"),
    ),
    _case("safetensors_file", SAFETENSORS),
    _case("safetensors_cpu", SAFETENSORS),
    _case("safetensors_bytes", SAFETENSORS),
    _case("safetensors_numpy", replaced("ck/model.safetensors", _tensors(4 * 1024 * 512)), denied=True),
]

_ROTATIONS = [
    _case(
        "rotate_by_mtime",
        written("ck/checkpoint-2/model.pt", WEIGHTS), removed("ck/checkpoint-50"), removed("ck/checkpoint-100"),
    ),
    _case("rotate_by_number", removed("ck/checkpoint-50")),
    _case(
        "rotate_as_lightning",
        written("ck/epoch=1-step=1.ckpt", WEIGHTS_AND_MOMENTS), written("ck/last.ckpt", WEIGHTS), removed("ck/model.pt"),
    ),
    _case("symlink_swap", written("ck/checkpoint-2/model.pt", WEIGHTS), replaced("ck/latest")),
]  # fmt: skip

_FILES = [
    _case("numpy_save", replaced("ck/array.npy", 128 + 100 * 3 * 8)),
    _case("numpy_savez", replaced("ck/arrays.npz")),
    _case("numpy_memmap", replaced("ck/tokens.bin", 16384)),
    _case("pickle_dump", replaced("ck/state.pickle")),
    _case("json_dump", replaced("ck/best.json", 25)),
    _case("open_append", replaced("ck/log.txt", 34)),
    _case("open_update", replaced("ck/tokens.bin", 16384)),
    _case("open_truncate", replaced("ck/log.txt", 11)),
    _case(
        "path_write",
        replaced("ck/best.json", 2), replaced("ck/tokens.bin", 3), written("ck/new.txt", 0), removed("ck/metrics.csv"),
        maybe=("ck/log.txt",),
    ),
    _case("mmap_write", replaced("ck/tokens.bin", 16384)),
    _case("truncate_path", replaced("ck/tokens.bin", 10)),
    _case("truncate_descriptor", replaced("ck/tokens.bin", 100)),
    _case("os_open", replaced("ck/log.txt", 7)),
    _case("nameless_file", written("ck/new.bin", 19), replaced("ck/tokens.bin", 19)),
    _case("copy_over", *(replaced(f"ck/{name}", 26) for name in ("old/model.pt", "log.txt", "metrics.csv"))),
    _case(
        "copytree_over",
        *(written(f"ck/old/shard-{i:02}.bin", 100 + i) for i in range(20)),
        written("ck/shards/deeper/only.txt", 12),
    ),
    _case("remove", removed("ck/optimizer.pt"), removed("ck/latest")),
    _case(
        "remove_by_descriptor",
        removed("ck/optimizer.pt"), moved("ck/old.log", "ck/log.txt", 25), replaced("ck/best.json", 2),
        maybe=("ck/made",),
    ),
    _case("remove_tree", removed("ck/old"), removed("ck/deep/deeper")),
    _case(
        "remove_tree_then_make",
        replaced("ck/shards/shard-00.bin", 22),
        *(removed(f"ck/shards/shard-{i:02}.bin") for i in range(1, 20)),
    ),
    _case("remove_all", removed("ck")),
    _case("remove_folders", removed("ck/deep")),
    _case("remove_by_pattern", *(removed(f"ck/shards/shard-{i:02}.bin") for i in range(20))),
    _case("kinds_change", Change("removed|replaced", "ck/tokens.bin"), replaced("ck/old", 18), replaced("ck/latest", 14)),
    _case("chmod", maybe=("ck/model.pt", "ck/old", "ck/log.txt")),
    _case("utime", maybe=("ck/model.pt", "ck/old", "ck/log.txt")),
    _case("hard_link_over", replaced("ck/tokens.bin"), replaced("ck/optimizer.pt", 26)),
    _case("hard_linked_write", replaced("ck/first.bin", 1100), maybe=("ck/second.bin",)),
    _case("sqlite_update", replaced("ck/runs.sqlite", 8192)),
    _case("temporary_then_replace", replaced("ck/best.json", 11)),
    _case(
        "odd_names",
        moved("ck/a, b:c/two\nlines", "ck/best.json"), written("ck/\udcff\udcfe.pt", 16), written("ck/модель 模型.pt", 16),
    ),
    _case("sparse_file", replaced("ck/tokens.bin", 200_000_000_000)),
    _case("attributes", maybe=("ck/model.pt", "ck/optimizer.pt")),
    _case("compressed", *(replaced(f"ck/{name}") for name in ("log.txt", "metrics.csv", "state.pickle", "best.json"))),
    _case("log_handler", replaced("ck/log.txt", 7)),
    _case(
        "events_file",
        replaced("ck/events.out.tfevents.1700000000.host.1.0", 120),
        written("ck/events.out.tfevents.1800000000.host.2.0", 40),
    ),
    _case("csv_rewrite", replaced("ck/metrics.csv", 26)),
    _case("sendfile_over", replaced("ck/tokens.bin")),
    _case("copy_range_over", replaced("ck/log.txt", 5000)),
    _case("shelf_update", replaced("ck/notes.dir"), replaced("ck/notes.dat"), maybe=("ck/notes.bak",)),
    _case("archive_append", replaced("ck/archive.zip"), replaced("ck/archive.tar")),
    _case(
        "other_folder",
        replaced("ck/checkpoint-100/model.pt", WEIGHTS), removed("ck/old/model.pt"),
        moved("ck/old/optimizer.pt", "ck/checkpoint-100/scheduler.pt", 999),
    ),
    _case(
        "scratch_folder",
        written("../scratch/model.pt", WEIGHTS), removed("../scratch/runs"), replaced("../scratch/shared.json", 13),
    ),
    _case(
        "home_cache",
        replaced("../home/.cache/datasets/index.json", 13), removed("../home/.cache/datasets/tokens.bin"),
        written("../home/.cache/datasets/tokens.bin.lock", 0),
    ),
]  # fmt: skip

_NO_METADATA = "Landlock knows nothing of modes and times, and C code does not pass through Python"

_OTHER_WRITERS = [
    _case(
        "c_library",
        removed("ck/optimizer.pt"), moved("ck/best.json", "ck/log.txt", 25), replaced("ck/tokens.bin", 10),
        replaced("ck/metrics.csv", 4),
        denied=True,
    ),
    _case("c_metadata", maybe=("ck/model.pt",), denied=True, guard_fault=_NO_METADATA),
    _case(
        "exchange",
        Change("moved|replaced", "ck/best.json", 25), Change("moved|replaced", "ck/log.txt", 26),
        denied=True,
    ),
    _case("command_mv", moved("ck/model.pt", "ck/optimizer.pt"), moved("ck/older", "ck/old"), denied=True),
    _case("arrow_table", replaced("ck/metrics.csv"), denied=True),
    _case("shell", removed("ck/old"), moved("ck/log.old", "ck/log.txt"), replaced("ck/best.json", 3), denied=True),
    _case("command_rm", removed("ck/old"), denied=True),
    _case(
        "command_cp",
        replaced("ck/log.txt", 26), written("ck/copy/model.pt"), written("ck/copy/optimizer.pt"),
        denied=True,
    ),
    _case("command_sed", replaced("ck/best.json", 26), denied=True),
    _case(
        "command_tee",
        replaced("ck/log.txt", 7), replaced("ck/metrics.csv", 0), replaced("ck/best.json", 31),
        denied=True,
    ),
    _case("command_metadata", maybe=("ck/model.pt",), denied=True, guard_fault=_NO_METADATA),
    _case("python_child", removed("ck/old"), removed("ck/optimizer.pt"), denied=True),
    _case("spawned_child", *CHILD, denied=True),
    _case("forked_child", *CHILD),
    _case(
        "loader_workers",
        *(replaced(f"ck/shards/shard-{i:02}.bin", 6) for i in range(4)),
        *(written(f"ck/shards/item-{i}.txt", 3) for i in range(4)),
    ),
    _case("thread", MODEL, removed("ck/old")),
]  # fmt: skip

_ENDS = [
    _case(
        "ends_at_exit",
        removed("ck/old"),
        removed("ck/optimizer.pt"),
        alone=True,
        fault="handlers of the end of the interpreter are not called in a rank",
    ),
    _case("ends_at_once", MODEL, removed("ck/optimizer.pt"), alone=True),
    _case("ends_with_error", removed("ck"), alone=True, exit_code=3),
    _case("ends_killed", removed("ck"), alone=True, exit_code=3),
    _case("ends_later", alone=True, maybe=("ck/old", "ck/best.json")),
]

_TWO_RANKS = (
    MODEL,
    removed("ck/old"),
    replaced("ck/best.json", 11),
    written("ck/optimizer-0.pt", MOMENTS),
    written("ck/optimizer-1.pt", MOMENTS),
)

_FRAMEWORKS = [
    _case(
        "hf_trainer",
        removed("ck/checkpoint-50"), removed("ck/checkpoint-100"), written("ck/checkpoint-3/model.safetensors", GPT2),
        written("ck/checkpoint-3/optimizer.pt", GPT2_MOMENTS), written("ck/checkpoint-3/*"),
        written("ck/final/model.safetensors", GPT2), written("ck/final/*"),
        heavy=True,
    ),
    _case(
        "hf_trainer_best",
        removed("ck/checkpoint-50"), removed("ck/checkpoint-100"),
        *(written(f"ck/checkpoint-{i}/model.safetensors", GPT2) for i in (1, 2)),
        *(written(f"ck/checkpoint-{i}/optimizer.pt", GPT2_MOMENTS) for i in (1, 2)),
        *(written(f"ck/checkpoint-{i}/*") for i in (1, 2)),
        heavy=True,
    ),
    _case(
        "accelerate_state",
        removed("ck/checkpoint-50"), removed("ck/checkpoint-100"),
        *(written(f"ck/checkpoints/checkpoint_{i}/model.safetensors", WEIGHTS) for i in (2, 3)),
        *(written(f"ck/checkpoints/checkpoint_{i}/optimizer.bin", MOMENTS) for i in (2, 3)),
        *(written(f"ck/checkpoints/checkpoint_{i}/random_states_0.pkl") for i in (2, 3)),
        heavy=True,
    ),
    _case("two_ranks", *_TWO_RANKS, alone=True, options=("--world-size", "2", "--ranks", "all")),
    _case(
        "two_ranks_barrier",
        *_TWO_RANKS,
        alone=True, options=("--world-size", "2", "--ranks", "all"), fault="ranks do not wait for each other at a barrier",
    ),
]  # fmt: skip

CASES = [*_SAVES, *_ROTATIONS, *_FILES, *_OTHER_WRITERS, *_ENDS, *_FRAMEWORKS]
