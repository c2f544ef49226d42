"""Static graphs to save: `saved_graphs.py WORDS`, for a dry run of MindSpore as one rank of 8.

    MS_SIMULATION_LEVEL=1 RANK_SIZE=8 RANK_ID=3 MS_ALLOC_CONF=memory_tracker:True \\
        MS_DEV_SAVE_GRAPHS=1 MS_DEV_SAVE_GRAPHS_PATH=ir python saved_graphs.py transformer,recompute,adamw

WORDS, joined by commas: `mlp` or `transformer`; `dp` (data parallel); `pipeline`; `recompute`; `lazy` (lazy_inline);
`adam`, `adamw` (else momentum); `shard` (parallel optimizer); `h1024`, `s512`, `l4`, `v8192` set sizes.
"""

import os
import re
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, context, nn, ops
from mindspore.communication import init
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell

WORDS = set(sys.argv[1].split(","))
SIZES = {"h": 256, "s": 128, "b": 8, "l": 2, "v": 1024, "a": 4}
SIZES |= {m[1]: int(m[2]) for word in WORDS if (m := re.fullmatch(r"([hsblva])(\d+)", word))}
HIDDEN, SEQUENCE, BATCH, LAYERS, VOCABULARY, HEADS = SIZES.values()
RANKS = int(os.environ["RANK_SIZE"])
STAGES = 2 if "pipeline" in WORDS else 1
MICRO_BATCHES = 4
TP = 2
DP = RANKS // TP // STAGES
HALF = ms.float16
lazy_inline = ms.lazy_inline if "lazy" in WORDS else (lambda function: function)


class Linear(nn.Cell):
    def __init__(self, n_in, n_out, split_in, split_weight):
        super().__init__()
        self.w = Parameter(Tensor(np.zeros((n_out, n_in), np.float32)))
        self.matmul = ops.MatMul(transpose_b=True).shard((split_in, split_weight))
        self.cast = ops.Cast()

    def construct(self, x):
        return self.matmul(x, self.cast(self.w, HALF))


class Block(nn.Cell):
    @lazy_inline
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm((HIDDEN,)), nn.LayerNorm((HIDDEN,))
        for norm in (self.ln1, self.ln2):
            norm.layer_norm.shard(((DP, 1), (1,), (1,)))
        self.q, self.k, self.v = (Linear(HIDDEN, HIDDEN, (DP, 1), (TP, 1)) for _ in range(3))
        self.o = Linear(HIDDEN, HIDDEN, (DP, TP), (1, TP))
        self.up = Linear(HIDDEN, 4 * HIDDEN, (DP, 1), (TP, 1))
        self.down = Linear(4 * HIDDEN, HIDDEN, (DP, TP), (1, TP))
        heads = (DP, TP, 1, 1)
        self.gelu = ops.GeLU().shard(((DP, TP),))
        self.scores = ops.BatchMatMul(transpose_b=True).shard((heads, heads))
        self.mix = ops.BatchMatMul().shard((heads, heads))
        self.softmax = ops.Softmax(-1).shard((heads,))
        self.to_heads = ops.Transpose().shard(((DP, 1, TP, 1),))
        self.from_heads = ops.Transpose().shard((heads,))
        self.add = ops.Add().shard(((DP, 1), (DP, 1)))
        self.scale = ops.Mul().shard((heads, ()))
        self.cast, self.reshape = ops.Cast(), ops.Reshape()

    def split(self, x):
        return self.to_heads(self.reshape(x, (BATCH, SEQUENCE, HEADS, HIDDEN // HEADS)), (0, 2, 1, 3))

    def construct(self, x):
        h = self.cast(self.ln1(self.cast(x, ms.float32)), HALF)
        q, k, v = self.split(self.q(h)), self.split(self.k(h)), self.split(self.v(h))
        p = self.softmax(self.scale(self.scores(q, k), Tensor(0.125, HALF)))
        a = self.reshape(self.from_heads(self.mix(p, v), (0, 2, 1, 3)), (BATCH * SEQUENCE, HIDDEN))
        x = self.add(x, self.o(a))
        h = self.cast(self.ln2(self.cast(x, ms.float32)), HALF)
        return self.add(x, self.down(self.gelu(self.up(h))))


class Transformer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.emb = Parameter(Tensor(np.zeros((VOCABULARY, HIDDEN), np.float32)))
        self.gather = ops.Gather().shard(((1, 1), (DP,)))
        self.blocks = nn.CellList([Block() for _ in range(LAYERS)])
        self.head = Linear(HIDDEN, VOCABULARY, (DP, 1), (TP, 1))
        self.cast = ops.Cast()
        for i, block in enumerate(self.blocks):
            if "recompute" in WORDS:
                block.recompute()
            if STAGES > 1:
                block.pipeline_stage = i * STAGES // LAYERS
        if STAGES > 1:
            self.head.pipeline_stage = STAGES - 1

    def construct(self, ids):
        x = self.cast(self.gather(self.emb, ops.reshape(ids, (-1,)), 0), HALF)
        for block in self.blocks:
            x = block(x)
        return self.cast(self.head(x), ms.float32)


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.entropy = ops.SoftmaxCrossEntropyWithLogits().shard(((DP, 1), (DP, 1)))
        self.one_hot = ops.OneHot().shard(((DP, 1), (), ()))
        self.mean = ops.ReduceMean()

    def construct(self, logits, label):
        one, zero = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
        target = self.one_hot(ops.reshape(label, (-1,)), VOCABULARY, one, zero)
        return self.mean(self.entropy(logits, target)[0])


def main() -> None:
    context.set_context(mode=context.GRAPH_MODE, device_target="Ascend", jit_level="O0")
    init()
    if "dp" in WORDS:
        context.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    else:
        context.set_auto_parallel_context(
            parallel_mode="semi_auto_parallel",
            full_batch=True,
            pipeline_stages=STAGES,
            enable_parallel_optimizer="shard" in WORDS,
        )
    if "mlp" in WORDS:
        sizes = ((HIDDEN, 4 * HIDDEN, "relu"), (4 * HIDDEN, 4 * HIDDEN, "gelu"), (4 * HIDDEN, HIDDEN, None))
        net = nn.SequentialCell(*(nn.Dense(i, o, activation=f) for i, o, f in sizes))
        network = nn.WithLossCell(net, nn.MSELoss())
        data = [Tensor(np.ones([BATCH * SEQUENCE, HIDDEN], np.float32)) for _ in range(2)]
    else:
        net = Transformer()
        network = nn.WithLossCell(net, Loss())
        n_samples = BATCH * (MICRO_BATCHES if STAGES > 1 else 1)
        data = [Tensor(np.zeros([n_samples, SEQUENCE], np.int32)) for _ in range(2)]
    optimizers = {"adam": nn.Adam, "adamw": nn.AdamWeightDecay}
    chosen = next((optimizers[word] for word in optimizers if word in WORDS), None)
    weights = net.trainable_params()
    optimizer = chosen(weights) if chosen else nn.Momentum(weights, learning_rate=0.1, momentum=0.9)
    if STAGES > 1:
        step = _TrainGradAccuStepCell(nn.PipelineCell(network, MICRO_BATCHES), optimizer)
    else:
        step = nn.TrainOneStepCell(network, optimizer)
    step.set_train()
    step(*data)
    print("ran", ms.runtime.max_memory_allocated())


main()
