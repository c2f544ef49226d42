"""Images as MNIST, CIFAR, ImageNet, COCO and VOC are stored."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

__all__ = ["DATA"]

N_IMAGES = 512
_CIFAR = 200  # rows of a batch file; five files


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _mnist(folder: Path, below: str = "MNIST/raw") -> None:
    place, rng = folder / below, _rng()
    place.mkdir(parents=True, exist_ok=True)
    for prefix in ("train", "t10k"):
        images = rng.integers(0, 256, (N_IMAGES, 28, 28), np.uint8)
        labels = (np.arange(N_IMAGES) % 10).astype(np.uint8)
        (place / f"{prefix}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, N_IMAGES, 28, 28) + images.tobytes()
        )
        (place / f"{prefix}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, N_IMAGES) + labels.tobytes()
        )


def _cifar_rows(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (_CIFAR, 3 * 32 * 32), np.uint8)


def _cifar10(folder: Path) -> None:
    rng = _rng()
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True, exist_ok=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        batch = {"data": _cifar_rows(rng), "labels": (np.arange(_CIFAR) % 10).tolist()}
        (place / name).write_bytes(pickle.dumps(batch))
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class{i}" for i in range(10)]}))


def _cifar100(folder: Path) -> None:
    rng = _rng()
    place = folder / "cifar-100-python"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        batch = {"data": _cifar_rows(rng), "fine_labels": (np.arange(_CIFAR) % 100).tolist()}
        (place / name).write_bytes(pickle.dumps(batch))
    (place / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class{i}" for i in range(100)]}))


def _save_image(place: Path, rng: np.random.Generator, height: int, width: int) -> None:
    from PIL import Image

    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(place)


def _image_net(folder: Path) -> None:
    """As ImageNet is unpacked: train and val, a folder a class."""
    rng = _rng()
    for part, number in (("train", 8), ("val", 2)):
        for label in range(8):  # scripts ask for the best five
            for i in range(number):
                _save_image(folder / part / f"n{label:08}" / f"{i}.JPEG", rng, 256, 256)


def _flat_images(folder: Path, where: tuple[str, ...], height: int, width: int, number: int = 8) -> None:
    rng = _rng()
    for part in where:
        for i in range(number):
            _save_image(folder / part / f"{i}.jpg", rng, height, width)


def _coco(folder: Path) -> None:
    """Eight images with boxes, masks and keypoints, in COCO's files of 2017."""
    rng = _rng()
    categories = [{"id": i, "name": f"thing{i}"} for i in range(1, 91)]
    for part in ("train2017", "val2017"):
        images, annotations = [], []
        for i in range(1, 9):
            name = f"{i:012}.jpg"
            _save_image(folder / part / name, rng, 240, 320)
            images.append({"id": i, "file_name": name, "height": 240, "width": 320})
            for j in range(2):
                x, y = 20 + 40 * j, 30 + 10 * j
                ring = [x, y, x + 100, y, x + 100, y + 90, x, y + 90]
                annotations.append({
                    "id": len(annotations) + 1, "image_id": i, "category_id": j + 1, "iscrowd": 0, "area": 9000,
                    "bbox": [x, y, 100, 90], "segmentation": [ring],
                    "keypoints": [x, y, 2] * 17, "num_keypoints": 17,
                })  # fmt: skip
        document = {"images": images, "annotations": annotations, "categories": categories}
        place = folder / "annotations"
        place.mkdir(parents=True, exist_ok=True)
        for kind in ("instances", "person_keypoints"):
            (place / f"{kind}_{part}.json").write_text(json.dumps(document), encoding="utf-8")


def _voc(folder: Path) -> None:
    """Eight images with a segmentation, in the folders of Pascal VOC 2012."""
    from PIL import Image

    rng = _rng()
    root = folder / "VOCdevkit" / "VOC2012"
    names = [f"2007_{i:06}" for i in range(8)]
    for name in names:
        _save_image(root / "JPEGImages" / f"{name}.jpg", rng, 240, 320)
        place = root / "SegmentationClass" / f"{name}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        mask = Image.fromarray(rng.integers(0, 21, (240, 320), np.uint8), mode="P")
        mask.putpalette(list(range(256)) * 3)
        mask.save(place)
    for part in ("train", "val", "trainval"):
        place = root / "ImageSets" / "Segmentation" / f"{part}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(names) + "\n", encoding="utf-8")


def _carvana(folder: Path) -> None:
    """Images and masks side by side, as Kaggle's Carvana has them."""
    from PIL import Image

    rng = _rng()
    for i in range(20):
        _save_image(folder / "imgs" / f"car{i}.jpg", rng, 128, 192)
        place = folder / "masks" / f"car{i}_mask.gif"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.arange(128 * 192).reshape(128, 192) % 2 * 255).astype(np.uint8)).save(place)


def _yolo(folder: Path) -> None:
    rng = _rng()
    for part in ("train", "val"):
        for i in range(8):
            _save_image(folder / "images" / part / f"{i}.jpg", rng, 128, 128)
            label = folder / "labels" / part / f"{i}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_text(f"{i % 2} 0.5 0.5 0.4 0.3\n", encoding="utf-8")
    (folder / "data.yaml").write_text(
        "path: things\ntrain: images/train\nval: images/val\nnames:\n  0: ship\n  1: tree\n", encoding="utf-8"
    )


DATA: dict[str, Callable[[Path], None]] = {
    "mnist": _mnist,
    "mnist-of-omniglot": partial(_mnist, below="raw"),
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "imagenet": _image_net,
    "coco": _coco,
    "voc": _voc,
    "carvana": _carvana,
    "yolo": _yolo,
    "faces": partial(_flat_images, where=(".",), height=218, width=178, number=32),
    "bsds": partial(
        _flat_images, where=("BSDS300/images/train", "BSDS300/images/test"), height=321, width=321
    ),
    "pairs": partial(_flat_images, where=("train/A", "train/B", "test/A", "test/B"), height=256, width=256),
    "side-by-side": partial(_flat_images, where=("train", "test", "val"), height=256, width=512),
    "one-class": partial(_flat_images, where=("train/things",), height=128, width=128, number=16),
    "style-images": partial(_flat_images, where=(".",), height=256, width=256, number=2),
}
