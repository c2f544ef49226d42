"""Mistakes of real scripts, made on the simulated device: the sentence each of them gets."""

from __future__ import annotations

import pytest
import torch

from tests.capture.pytorch.simulated import simulate
from windtunnel.capture.failure_hints import explain


def _sentence_of_a_small_image() -> str:
    """The shape rule of torch 2.12 does not name the kernel."""
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Conv2d(3, 8, 7, device="meta")(torch.empty(2, 3, 4, 4, device="meta"))
    if "Kernel size" in str(caught.value):
        return "a kernel of 7 x 7 was given an image of only 4 x 4"
    return "a convolution was given an image of only [4, 4], smaller than its kernel"


MISTAKES = {
    "nn.Linear(16, 4).cuda()(rand(8, 12))": "a layer that takes 16 features was given 12; compare the",
    "nn.Linear(16, 4).cuda()(rand(2, 8, 12))": "a layer that takes 16 features was given 12",
    "nn.LSTM(16, 4).cuda()(rand(5, 2, 12))": "a layer that takes 16 features was given 12",
    "torch.bmm(rand(2, 8, 12), rand(2, 16, 4))": "the second factor of a batched product is [2, 16, ...]",
    "nn.LayerNorm(16).cuda()(rand(8, 12))": "a normalisation over [16] was given a tensor of size [8, 12]",
    "nn.BatchNorm2d(8).cuda()(rand(2, 4, 5, 5))": "a batch normalisation of 8 channels was given 4",
    "nn.BatchNorm1d(8).cuda()(rand(1, 8))": "batch normalisation cannot train on one sample, an input of",
    "nn.Conv2d(3, 8, 3).cuda()(rand(2, 4, 32, 32))": "the data does not fit the model: a convolution",
    "nn.Conv2d(3, 8, 7).cuda()(rand(2, 3, 4, 4))": _sentence_of_a_small_image(),
    "nn.Conv2d(3, 8, 3).cuda()(rand(2, 3, 9, 9).half())": "two tensors of one operator have different types",
    "torch.bmm(rand(2, 8, 12), rand(2, 12, 4).half())": "have different types, Float and",
    "nn.Embedding(10, 4).cuda()(rand(3))": "an embedding takes integers and was given Float",
    "nn.Linear(16, 4).cuda()(torch.randn(8, 16))": "tensors on two devices, cuda:0 and cpu: move model and",
    "nn.Linear(16, 4)(rand(8, 16))": "tensors on two devices, cpu and cuda:0",
    "F.cross_entropy(rand(8, 10), labels(7))": "the output has 8 rows and there are 7 labels",
    "F.cross_entropy(rand(8, 10, 5), labels(8, 4))": "labels of [8, 5] were expected, but got [8, 4]",
    "F.binary_cross_entropy_with_logits(rand(8, 1), rand(7, 1))": "the output is [8, 1] and the labels are",
    "rand(8, 3) + rand(8, 4)": "8",
    "torch.cat([rand(8, 3), rand(7, 4)], 1)": "must agree in all other dimensions, but have 8 and 7",
    "rand(8, 3).view(5, 5)": "a tensor of 24 elements cannot be viewed as [5, 5]",
    "rand(8, 3)[9]": "an index of 9 was used on a dimension of size 8",
    "torch.einsum('bi,ij->bj', rand(8, 12), rand(16, 4))": "an einsum was given 12 and 16 for the same",
    "nn.Linear(3, 4).load_state_dict({'weight': torch.zeros(4, 3)})": "does not fit the model: it lacks",
    "nn.Linear(3, 1, bias=False).load_state_dict({'weight': torch.zeros(2, 3)})": "weight is [2, 3] in the",
    "rand(3).sum().backward()": "the loss does not depend on any trainable parameter",
    "rand(3).numpy()": "numpy cannot read a tensor on cuda:0: call .cpu() first",
    "{}['input_ids']": "the script looked up the key 'input_ids', which does not exist",
}  # fmt: skip


@pytest.fixture(scope="module")
def sentences():
    def make_every_mistake():
        import torch
        from torch import nn
        from torch.nn import functional as F

        scope = {
            "torch": torch,
            "nn": nn,
            "F": F,
            "rand": lambda *shape: torch.randn(*shape, device="cuda"),
            "labels": lambda *shape: torch.zeros(*shape, dtype=torch.long, device="cuda"),
        }
        found = {}
        for mistake in MISTAKES:
            try:
                eval(mistake, scope)
                found[mistake] = "no error"
            except Exception as error:
                found[mistake] = explain(error)
        return found

    return simulate(make_every_mistake).answer


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_plain_sentence(sentences, mistake):
    assert MISTAKES[mistake] in sentences[mistake]
    assert "\n" not in sentences[mistake]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "mat1 and mat2 shapes cannot be multiplied (64x1024 and 777x4096)",
            "a layer that takes 777 features was given 1024",
        ),
        (
            "mat1 and mat2 must have the same dtype, but got BFloat16 and Float",
            "different types, BFloat16 and Float",
        ),
        (
            "Given groups=1, weight of size [8, 3, 3, 3], expected input[2, 4, 32, 32] to have 3 channels, "
            "but got 4 channels instead",
            "a convolution that takes 3 channels was given 4",
        ),
        (
            "world_size (8) is not divisible by tensor_parallel (3) x pipeline (2)",
            "number of devices: world size 8 is not divisible by tensor_parallel (3) x pipeline (2)",
        ),
        ("world size 8 must not be divisible by", "the script raised RuntimeError"),
        (
            "Invalid parallel dims: dp(2) * tp(3) != WORLD_SIZE(8)",
            "number of devices: dp(2) * tp(3) != WORLD_SIZE(8)",
        ),
        (
            "Mesh should not be bigger than default world size 8, but found 16 ranks!",
            "a mesh of 16 ranks is larger than the world size of 8",
        ),
        (
            "Rank 9 is out of range. Valid ranks are 0 to 7 (world_size=8)",
            "a group contains rank 9, but there are only 8",
        ),
        ("EOF when reading a line", "the script waits for input, which a dry run does not have"),
        (
            "Caught IndexError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
            "IndexError: index 9 is out of bounds for dimension 0 with size 8\n",
            "an index of 9 was used on a dimension of size 8",
        ),
        (
            "Exception thrown from user defined Python function in dataset. \n\n----------------\n- Python Call Stack: \n"
            "----------------\nTraceback (most recent call last):\n"
            '  File "/site-packages/mindspore/dataset/engine/datasets_user_defined.py", line 136, in _cpp_sampler_fn\n'
            "    val = dataset[i]\n"
            '  File "data/text.py", line 8, in __getitem__\n    raise FileNotFoundError("no part")\n'
            "FileNotFoundError: no part\n\n----------------\n- Dataset Pipeline Error Message: \n----------------\n"
            "[ERROR] Execute user Python code failed, check 'Python Call Stack' above.\n",
            "the dataset's own code raised FileNotFoundError: no part in text.py:8",
        ),
        (
            "rank 0 waits for the key 'rpc_prefix_0/0/1', which neither it nor rank 0 sets",
            "torch.distributed.rpc is not simulated",
        ),
        ("something else", "the script raised RuntimeError: something else"),
        ("", "the script raised RuntimeError"),
    ],
)
def test_words_of_torch_on_real_devices_and_of_strategies(text, sentence):
    assert sentence in explain(RuntimeError(text))
