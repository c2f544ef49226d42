"""Folders as a training leaves them, and everything about them that a dry run could change.

plant(folder) ──> here/ck/…, scratch/…, home/…
fingerprint(folder) ──> {path: contents, mode, times, inode, links}, equal before and after
"""

from __future__ import annotations

import dbm.dumb
import hashlib
import io
import json
import os
import sqlite3
import stat
import tarfile
import zipfile
from functools import cache
from pathlib import Path

__all__ = ["fingerprint", "give_to", "plant", "sizes"]

_LONG_AGO_NS = 1_700_000_000_123_456_789
_DAY_NS = 86_400_000_000_000


def plant(folder: Path) -> None:
    """A working folder `here`, a `scratch` folder outside of it and a `home`, all used before."""
    here = folder / "here"
    ck = here / "ck"
    for each in ("old", "checkpoint-50", "checkpoint-100", "shards", "dcp", "deep/deeper"):
        (ck / each).mkdir(parents=True)
    model, optimizer = _weights()
    for name in (ck, ck / "old", ck / "checkpoint-50", ck / "checkpoint-100"):
        (name / "model.pt").write_bytes(model)
        (name / "optimizer.pt").write_bytes(optimizer)
    for i, name in enumerate(("checkpoint-50", "checkpoint-100")):
        (ck / name / "scheduler.pt").write_bytes(optimizer[:999])
        (ck / name / "rng_state.pth").write_bytes(bytes(range(200)) * 7)
        (ck / name / "training_args.bin").write_bytes(b"arguments" * 80)
        (ck / name / "model.safetensors").write_bytes(_safetensors())
        (ck / name / "trainer_state.json").write_text(
            json.dumps(
                {"global_step": 50 * (i + 1), "best_metric": 1.5, "best_model_checkpoint": "ck/checkpoint-50"}
            )
        )
    (ck / "model.safetensors").write_bytes(_safetensors())
    (ck / "best.json").write_text('{"step": 100, "loss": 1.5}')
    (ck / "log.txt").write_text("step 98\nstep 99\nstep 100\n")
    (ck / "metrics.csv").write_text("step,loss\n99,1.6\n100,1.5\n")
    (ck / "state.pickle").write_bytes(b"\x80\x04}\x94.")
    (ck / "array.npy").write_bytes(_array())
    (ck / "arrays.npz").write_bytes(b"PK" + bytes(500))
    (ck / "tokens.bin").write_bytes(bytes(range(256)) * 64)
    (ck / "events.out.tfevents.1700000000.host.1.0").write_bytes(b"\x18" + bytes(79))
    (ck / "empty").touch()
    (ck / "deep/deeper/only.txt").write_text("the only one")
    (ck / "frozen.pt").write_bytes(model)
    (ck / "frozen.pt").chmod(0o444)
    (ck / "script.sh").write_text("#!/bin/sh\necho trained\n")
    (ck / "script.sh").chmod(0o750)
    for i in range(20):
        (ck / "shards" / f"shard-{i:02}.bin").write_bytes(bytes([i]) * (100 + i))
    for name in (".metadata", "__0_0.distcp"):
        (ck / "dcp" / name).write_bytes(b"sharded" * 90)
    (ck / "latest").symlink_to("checkpoint-100")
    (ck / "best.pt").symlink_to("old/model.pt")
    (ck / "first.bin").write_bytes(b"two names for one file" * 50)
    (ck / "second.bin").hardlink_to(ck / "first.bin")
    _databases(ck)
    scratch = folder / "scratch"
    (scratch / "runs" / "a").mkdir(parents=True)
    (scratch / "runs" / "a" / "model.pt").write_bytes(model)
    (scratch / "shared.json").write_text('{"who": "somebody else"}')
    cache_folder = folder / "home" / ".cache" / "datasets"
    cache_folder.mkdir(parents=True)
    (cache_folder / "index.json").write_text('{"tokens": 4096}')
    (cache_folder / "tokens.bin").write_bytes(bytes(4096))
    _age(folder)


def fingerprint(folder: Path) -> dict[str, tuple]:
    """All that can be told of every file and folder below, itself too: two of these are equal or something changed."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        info = path.lstat()
        what = None
        if stat.S_ISLNK(info.st_mode):
            what = os.readlink(path)
        elif stat.S_ISREG(info.st_mode):
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        owner = info.st_uid, info.st_gid
        # the change time too: it tells what was done and undone
        found[str(path.relative_to(folder))] = (
            what, oct(info.st_mode), owner, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_nlink, info.st_size,
        )  # fmt: skip
    return found


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file, and of all files below every folder, without links."""
    found: dict[str, int] = {}
    for path in folder.rglob("*"):
        info = path.lstat()
        name = str(path.relative_to(folder))
        if stat.S_ISDIR(info.st_mode):
            found.setdefault(name, 0)
            continue
        if stat.S_ISLNK(info.st_mode):
            continue
        found[name] = info.st_size
        for above in list(path.relative_to(folder).parents)[:-1]:
            found[str(above)] = found.get(str(above), 0) + info.st_size
    return found


def give_to(folder: Path, uid: int, gid: int) -> None:
    """Change the owner of everything below, which changes no other property."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, uid, gid, follow_symlinks=False)


def _databases(ck: Path) -> None:
    connection = sqlite3.connect(ck / "runs.sqlite")
    connection.execute("create table runs (step integer, loss real)")
    connection.executemany("insert into runs values (?, ?)", [(99, 1.6), (100, 1.5)])
    connection.commit()
    connection.close()
    with dbm.dumb.open(str(ck / "notes"), "c") as notes:
        notes["best"] = "checkpoint-50"
    with zipfile.ZipFile(ck / "archive.zip", "w") as archive:
        archive.writestr("step-99.txt", "loss 1.6")
    with tarfile.open(ck / "archive.tar", "w") as archive:
        archive.add(ck / "log.txt", "log.txt")


def _age(folder: Path) -> None:
    """Files of long ago, each a little older than the next, folders last: setting a file's time leaves them alone."""
    paths = sorted(folder.rglob("*"), key=lambda path: (path.is_dir() and not path.is_symlink(), str(path)))
    for i, path in enumerate([*paths, folder]):
        when = _LONG_AGO_NS + i * 1_000_000_007
        if path.name == "checkpoint-50":
            when -= _DAY_NS  # by name and by time checkpoint-50 comes before checkpoint-100
        os.utime(path, ns=(when, when), follow_symlinks=False)


@cache
def _weights() -> tuple[bytes, bytes]:
    import torch
    from torch import nn

    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    written = []
    for state in (model.state_dict(), optimizer.state_dict()):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        written.append(buffer.getvalue())
    return written[0], written[1]


@cache
def _safetensors() -> bytes:
    import torch
    from safetensors.torch import save

    return save({"weight": torch.ones(32, 32)})


@cache
def _array() -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, np.arange(1000))
    return buffer.getvalue()
