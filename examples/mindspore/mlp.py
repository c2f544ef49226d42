"""Train a multi-layer perceptron in PyNative mode: an ordinary MindSpore script without any windtunnel code.

python examples/mindspore/mlp.py --batch-size 4096
"""

import argparse
from itertools import pairwise

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.utils.dryrun import mock

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1024)
parser.add_argument("--inputs", type=int, default=784)
parser.add_argument("--hidden", type=int, default=2048)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--classes", type=int, default=10)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("Ascend")
ms.set_seed(0)


class Block(nn.Cell):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.dense = nn.Dense(inputs, outputs)
        self.relu = nn.ReLU()

    def construct(self, x):
        return self.relu(self.dense(x))


class MLP(nn.Cell):
    def __init__(self):
        super().__init__()
        widths = [args.inputs] + [args.hidden] * args.layers
        self.blocks = nn.CellList([Block(i, o) for i, o in pairwise(widths)])
        self.head = nn.Dense(args.hidden, args.classes)

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    net = MLP()
    net.set_train()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=1e-3, weight_decay=0.01)

    def forward(images, labels):
        return loss_fn(net(images), labels)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
    random = np.random.default_rng(0)
    for step in range(args.steps):
        images = ms.Tensor(random.standard_normal((args.batch_size, args.inputs), np.float32))
        labels = ms.Tensor(random.integers(0, args.classes, args.batch_size).astype(np.int32))
        loss, gradients = gradients_of(images, labels)
        optimizer(gradients)
        print(f"step {step}: loss {mock(0.0, loss.asnumpy):.4f}", flush=True)


if __name__ == "__main__":
    main()
