"""Train a stack of transformer layers, data parallel, with a plain loop: an ordinary MindSpore script.

Every device holds the whole model and sums its gradients with the others. --graph compiles the step.

    msrun --worker_num 2 --local_worker_num 2 examples/mindspore/transformer.py --layers 4 --seq 2048
"""

import argparse

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import get_group_size, get_rank, init
from mindspore.mint.distributed import all_reduce
from mindspore.utils.dryrun import mock

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--hidden", type=int, default=1024)
parser.add_argument("--heads", type=int, default=8)
parser.add_argument("--vocab", type=int, default=32000)
parser.add_argument("--seq", type=int, default=1024)
parser.add_argument("--batch", type=int, default=1, help="sequences per device")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--graph", action="store_true", help="GRAPH_MODE instead of PyNative")
args = parser.parse_args()

ms.set_context(mode=ms.GRAPH_MODE if args.graph else ms.PYNATIVE_MODE, jit_config={"jit_level": "O0"})
ms.set_device("Ascend")
init()
RANK, CARDS = get_rank(), get_group_size()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
ms.set_seed(0)
HEAD_DIM = args.hidden // args.heads


def weight(*shape):
    return ms.Parameter(initializer("normal", shape, ms.bfloat16))


class Norm(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gamma = ms.Parameter(initializer("ones", (args.hidden,), ms.bfloat16))

    def construct(self, x):
        return ops.rms_norm(x, self.gamma, 1e-6)[0]


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = weight(args.hidden, 3 * args.hidden), weight(args.hidden, args.hidden)
        self.mask = ms.Tensor(np.triu(np.ones((2048, 2048), np.bool_), 1))

    def construct(self, x, cos, sin):
        heads = (args.batch, args.seq, args.heads, HEAD_DIM)
        q, k, v = ops.split(ops.matmul(x, self.qkv), args.hidden, -1)
        q = ops.rotary_position_embedding(q.reshape(heads), cos, sin, 0).reshape(x.shape)
        k = ops.rotary_position_embedding(k.reshape(heads), cos, sin, 0).reshape(x.shape)
        # Sparse mode 2 is causal: it reads only this corner of the mask, whatever the length.
        y = ops.flash_attention_score(
            q, k, v, args.heads,
            attn_mask=self.mask, scalar_value=HEAD_DIM**-0.5, input_layout="BSH", sparse_mode=2,
        )  # fmt: skip
        return ops.matmul(y, self.out)


class FeedForward(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.down = weight(args.hidden, 8 * args.hidden), weight(4 * args.hidden, args.hidden)

    def construct(self, x):
        return ops.matmul(ops.swiglu(ops.matmul(x, self.up)), self.down)


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = Norm(), Attention()
        self.ffn_norm, self.ffn = Norm(), FeedForward()

    def construct(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Transformer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = weight(args.vocab, args.hidden)
        self.layers = nn.CellList([Layer() for _ in range(args.layers)])
        self.norm, self.head = Norm(), weight(args.hidden, args.vocab)
        angles = np.outer(np.arange(args.seq), 1e4 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
        angles = np.concatenate((angles, angles), -1).reshape(1, args.seq, 1, HEAD_DIM)
        self.cos, self.sin = ms.Tensor(np.cos(angles), ms.bfloat16), ms.Tensor(np.sin(angles), ms.bfloat16)

    def construct(self, tokens):
        x = ops.gather(self.embedding, tokens, 0)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return ops.matmul(self.norm(x), self.head)


class Loss(nn.Cell):
    """Mean cross-entropy of the next token."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def construct(self, tokens, labels):
        logits = self.net(tokens).astype(ms.float32)
        return ops.cross_entropy(logits.reshape(-1, args.vocab), labels.reshape(-1))


def average_in_place(gradients):
    """Mean gradient over all devices, one collective per tensor."""
    for gradient in gradients:
        all_reduce(gradient)
        gradient.div_(CARDS)
    return gradients


class Step(nn.Cell):
    """Forward, backward, mean of the gradients over all devices, update of the weights."""

    def __init__(self, loss, optimizer):
        super().__init__()
        self.optimizer = optimizer
        self.gradients_of = ms.value_and_grad(loss, None, optimizer.parameters)
        if args.graph:
            self.reduce = nn.DistributedGradReducer(optimizer.parameters, mean=True, degree=CARDS)
        else:
            self.reduce = average_in_place

    def construct(self, tokens, labels):
        loss, gradients = self.gradients_of(tokens, labels)
        self.optimizer(self.reduce(gradients))
        return loss


def main():
    net = Transformer()
    net.set_train()
    optimizer = nn.AdamWeightDecay(net.trainable_params(), learning_rate=1e-4, weight_decay=0.1)
    step_cell = Step(Loss(net), optimizer)
    random = np.random.default_rng(RANK)
    for step in range(args.steps):
        tokens = random.integers(0, args.vocab, (args.batch, args.seq + 1)).astype(np.int32)
        loss = step_cell(ms.Tensor(tokens[:, :-1]), ms.Tensor(tokens[:, 1:]))
        value = mock(10.0, loss.asnumpy)
        if np.isnan(value):
            raise SystemExit(f"step {step}: the loss is not a number")
        print(f"rank {RANK} of {CARDS}, step {step}: loss {value:.3f}", flush=True)


if __name__ == "__main__":
    main()
