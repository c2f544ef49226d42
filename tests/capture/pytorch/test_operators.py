"""Breadth: operators and layers give the shapes, types and strides torch gives, forward and backward."""

# ruff: noqa: E501  (tables of cases: one line each reads better than forty)
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.pytorch.simulated import run_plainly, simulate


def _describe(value):
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), tuple(value.stride()), str(value.dtype)[6:]
    if isinstance(value, (tuple, list)):
        return [_describe(v) for v in value]
    if isinstance(value, dict):
        return {k: _describe(v) for k, v in value.items()}
    return value


def _images(d, n=2, c=3, size=16):
    return torch.zeros(n, c, size, size, device=d)


CASES = {
    "pointwise": lambda d: [torch.zeros(3, 1, device=d) + torch.zeros(4, device=d), torch.zeros(2, device=d).exp(), -torch.ones(2, device=d),
                            torch.ones(3, device=d, dtype=torch.int) / 2, torch.ones(3, device=d) > 1, torch.ones(2, device=d, dtype=torch.int) * 1.5],
    "reductions": lambda d: [x := torch.zeros(2, 3, 4, device=d), x.sum(), x.sum(1), x.mean((0, 2)), x.max(1), x.argmax(-1), x.std(0), x.var(),
                             x.norm(dim=1), x.logsumexp(2), x.prod(0), x.amax((0, 1)), x.any(1), x.median(1), x.quantile(0.5)][1:],
    "sorting": lambda d: [x := torch.zeros(3, 5, device=d), x.topk(2), x.sort(descending=True), x.argsort(), x.cumsum(1), x.cummax(0), x.kthvalue(2),
                          torch.searchsorted(x[0].contiguous(), x[0]), x.flip(1), x.roll(1)][1:],
    "gather": lambda d: [x := torch.zeros(4, 5, device=d), i := torch.zeros(2, 5, dtype=torch.long, device=d), x.gather(0, i), x.scatter(0, i, 1.0),
                         x.scatter_add(0, i, x[:2]), x.index_select(0, i[0]), x[i[:, 0]], x.index_add(0, i[0][:4] * 0, x), x.take_along_dim(i, 0),
                         x.index_put((i[0],), torch.ones(5, device=d)), x.masked_fill(x > 0, 1.0), x.scatter_reduce(0, i, x[:2], "amax"), x.take(i)][2:],
    "shapes": lambda d: [x := torch.zeros(2, 3, 4, device=d), x.repeat(2, 1, 1), x.tile(2), torch.cat([x, x], 1), torch.stack([x, x]), x.repeat_interleave(2, 1),
                         F.pad(x, (1, 2), value=1), F.pad(x, (1, 1), mode="reflect"), x.unfold(1, 2, 1), torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
                         torch.tril(x), x.diag_embed(), torch.block_diag(x[0], x[1]), torch.cartesian_prod(x[0, 0], x[0, 0]), x.rot90(1, (1, 2))][1:],
    "matmul": lambda d: [a := torch.zeros(2, 3, 4, device=d), b := torch.zeros(2, 4, 5, device=d), a @ b, torch.einsum("bij,bjk->bik", a, b), torch.bmm(a, b),
                         torch.baddbmm(torch.zeros(2, 3, 5, device=d), a, b), a[0] @ b[0], torch.mv(a[0], b[0, :, 0]), torch.dot(a[0, 0], a[0, 1]),
                         torch.outer(a[0, 0], a[0, 1]), torch.kron(a[0], b[0]), torch.einsum("bij,bij->b", a, a), torch.tensordot(a, b, ([2], [1])),
                         torch.linalg.multi_dot([a[0], b[0]])][2:],
    "linalg": lambda d: [m := torch.eye(4, device=d) * 2, torch.linalg.svd(m), torch.linalg.inv(m), torch.linalg.cholesky(m), torch.linalg.qr(m), torch.linalg.eigh(m),
                         torch.linalg.solve(m, m), torch.linalg.det(m), torch.linalg.norm(m), torch.linalg.matrix_exp(m), torch.linalg.slogdet(m),
                         torch.linalg.svdvals(m), torch.linalg.pinv(m), torch.linalg.lu_factor(m), torch.linalg.eigvalsh(m), torch.linalg.matrix_power(m, 3)][1:],
    "fft": lambda d: [x := torch.zeros(4, 16, device=d), torch.fft.fft(x), torch.fft.rfft(x), torch.fft.irfft(torch.fft.rfft(x)), torch.fft.fft2(x),
                      torch.fft.fftshift(x), torch.stft(torch.zeros(2, 400, device=d), 64, return_complex=True, window=torch.ones(64, device=d))][1:],
    "complex": lambda d: [z := torch.zeros(3, dtype=torch.complex64, device=d), z * 2, z.abs(), z.real, z.imag, z.conj() * z, torch.view_as_real(z),
                          torch.polar(torch.ones(2, device=d), torch.ones(2, device=d)), z.angle(), torch.view_as_complex(torch.zeros(3, 2, device=d))][1:],
    "edge shapes": lambda d: [s := torch.tensor(2.0, device=d), e := torch.zeros(0, 3, device=d), s + 1, s.sum(), e.sum(), e @ torch.zeros(3, 2, device=d), torch.cat([e, e]),
                              e.sum(0), s.unsqueeze(0), s.expand(3), F.linear(e, torch.zeros(2, 3, device=d)), e.reshape(0), e.mean(1), F.relu(e)][2:],
    "bool and int": lambda d: [b := torch.ones(3, dtype=torch.bool, device=d), b & b, ~b, b.sum(), b.all(), b.any(), torch.ones(3, dtype=torch.int8, device=d) << 1,
                               torch.ones(3, dtype=torch.int32, device=d) // 2, torch.arange(3, device=d) % 2, b.int(), torch.logical_xor(b, b), F.one_hot(torch.arange(3, device=d), 5)][1:],
    "float8": lambda d: [torch.zeros(4, 4, device=d).to(torch.float8_e4m3fn), torch.zeros(4, device=d).to(torch.float8_e5m2).float()],
    "activations": lambda d: [x := torch.zeros(3, 4, device=d), *(f(x) for f in (F.relu, F.gelu, F.silu, torch.sigmoid, torch.tanh, F.softplus, F.elu, F.mish, F.hardswish,
                              F.leaky_relu, F.glu, F.logsigmoid, F.selu, F.softsign, F.relu6, F.celu)), F.softmax(x, 1), F.log_softmax(x, 0)][1:],
    "losses": lambda d: [x := torch.zeros(4, 5, device=d), y := torch.zeros(4, dtype=torch.long, device=d), F.cross_entropy(x, y), F.cross_entropy(x, y, reduction="none"),
                         F.cross_entropy(x, x.softmax(1), label_smoothing=0.1), F.mse_loss(x, x), F.l1_loss(x, x), F.smooth_l1_loss(x, x), F.huber_loss(x, x),
                         F.binary_cross_entropy_with_logits(x, x), F.nll_loss(x, y), F.kl_div(x, x), F.cosine_similarity(x, x), F.triplet_margin_loss(x, x, x),
                         F.margin_ranking_loss(x, x, x), F.cosine_embedding_loss(x, x, torch.ones(4, device=d)), F.multi_margin_loss(x, y), F.poisson_nll_loss(x, x),
                         F.gaussian_nll_loss(x, x, torch.ones_like(x)), F.binary_cross_entropy(x.sigmoid(), x.sigmoid())][2:],
    "norms": lambda d: [x := _images(d, c=4), F.layer_norm(x, x.shape[1:]), F.group_norm(x, 2), F.instance_norm(x), F.batch_norm(x, torch.zeros(4, device=d), torch.ones(4, device=d), training=True),
                        F.rms_norm(x, (16,)), F.normalize(x, dim=1), F.local_response_norm(x, 2)][1:],
    "pools": lambda d: [x := _images(d), F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, (2, 3)), F.max_pool2d(x, 2, return_indices=True),
                        F.max_pool1d(x[0], 2), F.avg_pool3d(x[None], 2), F.lp_pool2d(x, 2, 2), F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 2)][1:],
    "resize": lambda d: [x := _images(d), F.interpolate(x, scale_factor=2), F.interpolate(x, (5, 7), mode="bilinear"), F.interpolate(x, (5, 7), mode="bicubic", antialias=True),
                         F.interpolate(x, scale_factor=0.5, mode="area"), F.pixel_shuffle(torch.zeros(1, 4, 3, 3, device=d), 2), F.unfold(x, 3), F.fold(F.unfold(x, 3), (16, 16), 3),
                         F.grid_sample(x, F.affine_grid(torch.zeros(2, 2, 3, device=d), list(x.shape), align_corners=False), align_corners=False),
                         F.interpolate(x[0], scale_factor=2, mode="linear"), F.pixel_unshuffle(x, 2)][1:],
    "embedding": lambda d: [w := torch.zeros(10, 4, device=d), i := torch.zeros(2, 3, dtype=torch.long, device=d), F.embedding(i, w), F.embedding_bag(i, w), F.embedding(i, w, padding_idx=0),
                            F.embedding_bag(i.flatten(), w, torch.tensor([0, 3], device=d), mode="sum"), F.embedding_bag(i, w, mode="max")][2:],
    "random": lambda d: [x := torch.zeros(3, 4, device=d), F.dropout(x, 0.5), torch.bernoulli(x), torch.multinomial(x + 1, 2), x.uniform_(), x.normal_(), torch.normal(x, 1.0), x.exponential_(),
                         torch.poisson(x), F.gumbel_softmax(x), F.dropout2d(x[None]), F.alpha_dropout(x, 0.1), torch.randint_like(x, 3)][1:],
    "distance": lambda d: [x := torch.zeros(5, 3, device=d), torch.cdist(x, x), F.pairwise_distance(x, x), torch.pdist(x), torch.cosine_similarity(x, x), torch.histc(x, 4),
                           torch.bucketize(x, torch.arange(3.0, device=d)), torch.lerp(x, x, 0.5), torch.clamp(x, 0, 1), torch.diff(x), torch.trapezoid(x), torch.cov(x)][1:],
    "ctc": lambda d: F.ctc_loss(torch.zeros(50, 2, 10, device=d).log_softmax(2), torch.ones(2, 8, dtype=torch.long, device=d), torch.tensor([50, 50]), torch.tensor([8, 8])),
    "foreach": lambda d: [torch._foreach_add([torch.zeros(2, device=d), torch.zeros(3, device=d)], 1), torch._foreach_norm([torch.ones(4, device=d)])],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_shapes_types_and_strides_match_torch(name):
    case = CASES[name]
    ours, plain = (
        simulate(lambda: _describe(case("cuda"))).answer,
        run_plainly(lambda: _describe(case("cpu"))),
    )
    if name == "linalg":  # cuSOLVER and LAPACK lay their results out differently
        ours, plain = _without_strides(ours), _without_strides(plain)
    assert ours == plain


def _without_strides(value):
    return [_without_strides(v) for v in value] if isinstance(value, list) else (value[0], value[2])


NETS = {
    "mlp": lambda: (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.LayerNorm(16), nn.Linear(16, 4)), (5, 8)),
    "conv": lambda: (nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=8),
                                   nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)), (2, 3, 16, 16)),
    "conv1d": lambda: (nn.Sequential(nn.Conv1d(4, 8, 3, dilation=2), nn.GroupNorm(2, 8), nn.GELU(), nn.ConvTranspose1d(8, 4, 3)), (2, 4, 20)),
    "conv3d": lambda: (nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), nn.ConvTranspose3d(4, 2, 2)), (1, 2, 6, 6, 6)),
    "deconv": lambda: (nn.Sequential(nn.ConvTranspose2d(3, 4, 4, 2, 1), nn.InstanceNorm2d(4), nn.Upsample(scale_factor=2), nn.PixelShuffle(2)), (2, 3, 8, 8)),
    "lstm": lambda: (nn.LSTM(8, 16, 2, batch_first=True, dropout=0.1), (3, 5, 8)),
    "lstm bidirectional": lambda: (nn.LSTM(8, 16, bidirectional=True, proj_size=4), (5, 3, 8)),
    "gru": lambda: (nn.GRU(8, 16, 2, bidirectional=True), (5, 3, 8)),
    "rnn": lambda: (nn.RNN(8, 16), (5, 3, 8)),
    "encoder": lambda: (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2), (2, 6, 16)),
    "weight norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), (2, 8)),
    "spectral norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)), (2, 8)),
    "old weight norm": lambda: (nn.utils.weight_norm(nn.Conv1d(8, 4, 3)), (2, 8, 9)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_layers_train(name):
    def on(device):
        torch.manual_seed(0)
        model, shape = NETS[name]()
        model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.zeros(shape, device=device, requires_grad=True)
        out = model(x)
        first = out[0] if isinstance(out, tuple) else out
        first.sum().backward()
        optimizer.step()
        return (
            _describe(out),
            _describe(x.grad),
            {n: tuple(p.grad.shape) for n, p in model.named_parameters()},
        )

    ours, plain = simulate(lambda: on("cuda")).answer, run_plainly(lambda: on("cpu"))
    if name.startswith(("lstm", "gru", "rnn")):  # cuDNN gives its own strides
        ours, plain = ((_without_strides(a), b[0], c) for a, b, c in (ours, plain))
    assert ours == plain


def test_channels_last_nets_stay_channels_last():
    def on(device):
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)
        )
        model.to(device, memory_format=torch.channels_last)
        x = torch.zeros(2, 3, 8, 8, device=device).contiguous(memory_format=torch.channels_last)
        out = model(x)
        out.sum().backward()
        return (
            _describe(out),
            model[0].weight.is_contiguous(memory_format=torch.channels_last),
            _describe(model[0].weight),
        )

    assert simulate(lambda: on("cuda")).answer == run_plainly(lambda: on("cpu"))


def test_custom_operators_need_a_fake_and_say_so():
    def program():
        @torch.library.custom_op("mine::double", mutates_args=())
        def double(x: torch.Tensor) -> torch.Tensor:
            return x.clone() * 2

        @double.register_fake
        def _(x):
            return torch.empty_like(x)

        double.register_autograd(lambda ctx, g: g * 2)
        x = torch.ones(100, device="cuda", requires_grad=True)
        out = torch.ops.mine.double(x)
        out.sum().backward()

        torch.library.define("mine::nofake", "(Tensor x) -> Tensor")
        torch.library.impl("mine::nofake", "CUDA", lambda x: x)
        found = tuple(out.shape), str(out.device), tuple(x.grad.shape)
        try:
            torch.ops.mine.nofake(x)
        except NotImplementedError as error:
            return found, str(error)

    run = simulate(program)
    found, said = run.answer
    assert found == ((100,), "cuda:0", (100,))
    assert "there is no shape rule for mine.nofake.default" in said
    assert "mine.double.default" in run.op_names


def test_functional_transforms():
    def program():
        model = nn.Linear(4, 2).cuda()
        x = torch.ones(3, 4, device="cuda")
        params = dict(model.named_parameters())
        out = torch.func.functional_call(model, params, (x,))
        loss = lambda p, x: torch.func.functional_call(model, p, (x,)).sum()
        grads = torch.func.grad(loss)(params, x)
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)
        batched = torch.vmap(lambda a: a * 2)(x)
        jacobian = torch.func.jacrev(lambda t: t.sin())(torch.ones(3, device="cuda"))
        return tuple(out.shape), {k: tuple(v.shape) for k, v in grads.items()}, {k: tuple(v.shape) for k, v in per_sample.items()}, tuple(batched.shape), tuple(jacobian.shape)  # fmt: skip

    assert simulate(program).answer == (
        (3, 2), {"weight": (2, 4), "bias": (2,)}, {"weight": (3, 2, 4), "bias": (3, 2)}, (3, 4), (3, 3),
    )  # fmt: skip


def test_higher_gradients():
    def program():
        x = torch.full((3,), 2.0, device="cuda", requires_grad=True)
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        none = torch.autograd.grad(
            (x * 2).sum(), [x, torch.ones(1, device="cuda", requires_grad=True)], allow_unused=True
        )
        penalty = (
            torch.autograd.grad(nn.Linear(3, 1).cuda()(x).sum(), x, create_graph=True)[0].norm() - 1
        ) ** 2
        penalty.backward()
        return first.tolist(), second.tolist(), none[1] is None, tuple(penalty.shape)

    assert simulate(program).answer == ([12.0] * 3, [12.0] * 3, True, ())


def test_forward_mode():
    def program():
        import torch.autograd.forward_ad as fwAD

        with fwAD.dual_level():
            dual = fwAD.make_dual(torch.ones(3, device="cuda"), torch.ones(3, device="cuda"))
            return tuple(fwAD.unpack_dual(dual.sin() * 2).tangent.shape)

    assert simulate(program).answer == (3,)


def test_gradients_of_host_tensors_moved_to_the_device():
    def program():
        leaf = torch.ones(3, requires_grad=True)
        (leaf.cuda() * 2).sum().backward()
        large = torch.randn(1 << 20, requires_grad=True)
        (large.to("cuda") * 2).sum().backward()
        weight = nn.Parameter(torch.ones(4))
        (weight.cuda() * 3).sum().cpu().backward()
        back = torch.ones(3, device="cuda", requires_grad=True)
        (back.cpu() * 2).sum().backward()
        mixed = torch.ones(3, requires_grad=True)
        (mixed.to("cuda", torch.float16) * 2).sum().backward()
        return [
            (str(t.grad.device), str(t.grad.dtype), tuple(t.grad.shape))
            for t in (leaf, large, weight, back, mixed)
        ]

    host = "cpu"
    assert simulate(program).answer == [
        (host, "torch.float32", (3,)), (host, "torch.float32", (1 << 20,)), (host, "torch.float32", (4,)),
        ("cuda:0", "torch.float32", (3,)), (host, "torch.float32", (3,)),
    ]  # fmt: skip


def test_data_parallel_on_one_card_is_the_module():
    def program():
        model = nn.DataParallel(nn.Linear(4, 2).cuda())
        out = model(torch.ones(3, 4, device="cuda"))
        out.sum().backward()
        return tuple(out.shape), model.module.weight.grad is not None

    assert simulate(program).answer == ((3, 2), True)


def test_synchronised_batch_normalisation_keeps_statistics_in_float32():
    """Not in torch's meta kernels; sizes and types as the CUDA kernels return them."""

    def program():
        x = torch.zeros(4, 8, 5, 5, device="cuda", dtype=torch.float16)
        weight = torch.ones(8, device="cuda")
        mean, scale = torch.batch_norm_stats(x, 1e-5)
        out = torch.batch_norm_elemt(x, weight, weight, mean, scale, 1e-5)
        reduced = torch.batch_norm_backward_reduce(x, x, mean, scale, weight, True, True, False)
        count = torch.ones(1, device="cuda", dtype=torch.int32)
        grad = torch.batch_norm_backward_elemt(x, x, mean, scale, weight, *reduced[:2], count)
        return [None if t is None else (tuple(t.shape), t.dtype) for t in (mean, scale, out, grad, *reduced)]

    channels, images = ((8,), torch.float32), ((4, 8, 5, 5), torch.float16)
    assert simulate(program).answer == [
        channels,
        channels,
        images,
        images,
        channels,
        channels,
        channels,
        None,
    ]
