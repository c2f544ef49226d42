"""Train a stack of transformer-like feed-forward blocks in graph mode, sharded over the devices by MindSpore itself.

semi_auto_parallel (default): the batch is split by --dp, every pair of matrix multiplications by --tp. The product of
the two must be the number of devices: MindSpore refuses anything else. data_parallel: only the batch is split.

    msrun --worker_num 8 --local_worker_num 8 examples/mindspore/semi_auto.py --tp 4
    msrun --worker_num 8 --local_worker_num 8 examples/mindspore/semi_auto.py --mode data_parallel
"""

import argparse

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_group_size, get_rank, init
from mindspore.utils.dryrun import mock

parser = argparse.ArgumentParser()
parser.add_argument("--mode", choices=("semi_auto_parallel", "data_parallel"), default="semi_auto_parallel")
parser.add_argument("--tp", type=int, help="devices that share a weight; default: 4, or all if fewer")
parser.add_argument("--dp", type=int, help="parts of the batch; default: devices / tp")
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--hidden", type=int, default=1024)
parser.add_argument("--tokens", type=int, default=2048, help="tokens in the global batch")
parser.add_argument("--classes", type=int, default=1024)
parser.add_argument("--optimizer", choices=("adam", "momentum"), default="adam")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

ms.set_context(mode=ms.GRAPH_MODE, jit_config={"jit_level": "O0"})
ms.set_device("Ascend")
init()
RANK, CARDS = get_rank(), get_group_size()
SEMI_AUTO = args.mode == "semi_auto_parallel"
TP = (args.tp or min(4, CARDS)) if SEMI_AUTO else 1
DP = (args.dp or max(1, CARDS // TP)) if SEMI_AUTO else 1
ms.set_auto_parallel_context(parallel_mode=args.mode, gradients_mean=True, full_batch=SEMI_AUTO)
ms.set_seed(0)


class Block(nn.Cell):
    """x + down(gelu(up(norm(x)))): the first weight is split by columns, the second by rows."""

    def __init__(self):
        super().__init__()
        size, wide = args.hidden, 4 * args.hidden
        self.gamma = ms.Parameter(initializer("ones", (size,)))
        self.beta = ms.Parameter(initializer("zeros", (size,)))
        self.up = ms.Parameter(initializer("normal", (size, wide)))
        self.down = ms.Parameter(initializer("normal", (wide, size)))
        self.norm, self.gelu, self.add = ops.LayerNorm(), ops.GeLU(), ops.Add()
        self.matmul_up, self.matmul_down = ops.MatMul(), ops.MatMul()
        if SEMI_AUTO:
            self.norm.shard(((DP, 1), (1,), (1,)))
            self.matmul_up.shard(((DP, 1), (1, TP)))
            self.gelu.shard(((DP, TP),))
            self.matmul_down.shard(((DP, TP), (TP, 1)))
            self.add.shard(((DP, 1), (DP, 1)))

    def construct(self, x):
        y = self.norm(x, self.gamma, self.beta)[0]
        y = self.gelu(self.matmul_up(y, self.up))
        return self.add(x, self.matmul_down(y, self.down))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.SequentialCell([Block() for _ in range(args.layers)])
        self.head = ms.Parameter(initializer("normal", (args.hidden, args.classes)))
        self.matmul = ops.MatMul()
        if SEMI_AUTO:
            self.matmul.shard(((DP, 1), (1, TP)))

    def construct(self, x):
        return self.matmul(self.blocks(x), self.head)


def main():
    net = Net()
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    if args.optimizer == "adam":
        optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=1e-3)
    else:
        optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
    step_cell = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn), optimizer)
    step_cell.set_train()

    random = np.random.default_rng(RANK if not SEMI_AUTO else 0)
    # Graph mode splits the batch itself (full_batch); in data parallel each device brings its own part.
    tokens = args.tokens if SEMI_AUTO else args.tokens // CARDS
    for step in range(args.steps):
        x = ms.Tensor(random.standard_normal((tokens, args.hidden), np.float32))
        labels = ms.Tensor(random.integers(0, args.classes, tokens).astype(np.int32))
        loss = step_cell(x, labels)
        print(f"rank {RANK} of {CARDS}, step {step}: loss {mock(0.0, loss.asnumpy):.4f}", flush=True)


if __name__ == "__main__":
    main()
