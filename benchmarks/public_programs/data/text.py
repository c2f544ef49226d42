"""Text, token files and tables."""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

__all__ = ["DATA", "WORDS"]

_PROSE = "the a ship sea wind north king queen and or but sails turns sings falls red old small great never here O God"
WORDS = tuple(_PROSE.split())


def _sentences(number: int, length: int = 14) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(WORDS[i] for i in row) for row in rng.integers(0, len(WORDS), (number, length))]


def _lines(folder: Path) -> None:
    """Sentences: as plain files, as WikiText and Penn Treebank are split, one word a line, and as JSON and CSV."""
    lines = _sentences(3000)
    for name, number in (("input.txt", 3000), ("train.txt", 3000), ("valid.txt", 200), ("test.txt", 200)):
        text = ".\n".join(lines[:number]) + "!, O God, O God!\n"
        (folder / name).write_text(text, encoding="utf-8")
    names = sorted(
        {a + b + c for a in WORDS for b in WORDS for c in ("a", "e") if a.isalpha() and b.isalpha()}
    )
    (folder / "names.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    with (folder / "c4.json").open("w", encoding="utf-8") as file:
        for i in range(0, len(lines), 20):
            file.write(json.dumps({"text": " ".join(lines[i : i + 20]), "url": "", "timestamp": ""}) + "\n")
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("label", "sentence1", "sentence2"))
        writer.writerows((("no", "yes")[i % 2], lines[i], lines[i + 1]) for i in range(64))
    with (folder / "summaries.json").open("w", encoding="utf-8") as file:
        for i in range(64):
            file.write(json.dumps({"text": lines[i], "summary": lines[i][:20]}) + "\n")
    with (folder / "translations.json").open("w", encoding="utf-8") as file:
        for i in range(64):
            file.write(json.dumps({"translation": {"en": lines[i], "ro": lines[i + 1]}}) + "\n")
    with (folder / "entities.json").open("w", encoding="utf-8") as file:
        for i in range(64):
            words = lines[i].split()
            file.write(
                json.dumps({"tokens": words, "ner_tags": [str(j % 3) for j in range(len(words))]}) + "\n"
            )
    with (folder / "instructions.json").open("w", encoding="utf-8") as file:
        rows = [{"instruction": lines[i], "input": "", "output": lines[i + 1]} for i in range(64)]
        json.dump(rows, file)
    with (folder / "questions.json").open("w", encoding="utf-8") as file:
        rows = [
            {"id": str(i), "title": "", "context": lines[i], "question": lines[i + 1],
             "answers": {"text": [lines[i].split()[2]], "answer_start": [lines[i].index(lines[i].split()[2])]}}
            for i in range(64)
        ]  # fmt: skip
        json.dump({"data": rows}, file)


def _nanogpt(folder: Path) -> None:
    """train.bin, val.bin and meta.pkl of a character data set."""
    rng = np.random.default_rng(0)
    for name in ("train.bin", "val.bin"):
        rng.integers(0, 65, 200_000).astype(np.uint16).tofile(folder / name)
    letters = [chr(32 + i) for i in range(65)]
    meta = {"vocab_size": 65, "itos": dict(enumerate(letters)), "stoi": {c: i for i, c in enumerate(letters)}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def _shards(folder: Path) -> None:
    """FineWeb's tokens of GPT-2 as build-nanogpt (.npy), llm.c and modded-nanogpt (.bin) keep them."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50257, 2_200_000).astype(np.uint16)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(tokens)
    for part in ("train", "val"):
        np.save(folder / f"edufineweb_{part}_000000.npy", tokens)
        with (folder / f"fineweb_{part}_000000.bin").open("wb") as file:
            file.write(header.tobytes() + tokens.tobytes())


def _nanochat(folder: Path) -> None:
    """What nanochat keeps in its cache: text in Parquet, a tokenizer of bytes, and how long each token is."""
    import pyarrow
    import pyarrow.parquet
    import tiktoken
    import torch

    special = "bos user_start user_end assistant_start assistant_end python_start python_end output_start output_end"
    encoding = tiktoken.Encoding(
        "bytes", pat_str=r"\S+|\s+", mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={f"<|{name}|>": 256 + i for i, name in enumerate(special.split())},
    )  # fmt: skip
    place = folder / "tokenizer"
    place.mkdir(parents=True, exist_ok=True)
    (place / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    torch.save(torch.tensor([1] * 256 + [0] * 9, dtype=torch.int32), place / "token_bytes.pt")
    place = folder / "base_data_climbmix"
    place.mkdir(exist_ok=True)
    texts = _sentences(4000, 200)
    for i in range(2):
        table = pyarrow.table({"text": texts[2000 * i : 2000 * (i + 1)]})
        pyarrow.parquet.write_table(table, place / f"shard_{i:05}.parquet", row_group_size=500)


DATA: dict[str, Callable[[Path], None]] = {
    "nanochat": _nanochat,
    "lines": _lines,
    "nanogpt": _nanogpt,
    "shards": _shards,
}
