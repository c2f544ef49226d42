"""Vision models as torchvision builds them, written compactly: block structure, channels and parameter tensors are true.

MODELS has a function for each; PARAMETERS the published numbers, which they have to the last weight.
"""

import torch
import torch.nn.functional as F
from torch import nn

PARAMETERS = {
    "resnet18": 11_689_512, "resnet50": 25_557_032, "resnet101": 44_549_160, "vgg16": 138_357_544,
    "densenet121": 7_978_856, "mobilenet_v2": 3_504_872, "regnet_x_400mf": 5_495_976, "convnext_tiny": 28_589_128,
    "vit_b_16": 86_567_656, "shufflenet_v2": 2_278_604, "efficientnet_b0": 5_288_548, "mobilenet_v3_large": 5_483_032,
    "swin_tiny": 28_288_354, "googlenet": 6_624_904,
}  # fmt: skip


def conv(cin, cout, k=3, s=1, groups=1, act=nn.ReLU):
    layers = [nn.Conv2d(cin, cout, k, s, (k - 1) // 2, groups=groups, bias=False), nn.BatchNorm2d(cout)]
    return nn.Sequential(*layers, *([act()] if act else []))


def head(features, width, classes=1000):
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class Residual(nn.Module):
    def __init__(self, body, shortcut=None):
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x):
        return F.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


# -- ResNet, VGG, DenseNet -----------------------------------------------------------------------------------


def resnet(blocks, is_deep):
    layers, cin = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, (width, n) in enumerate(zip((64, 128, 256, 512), blocks, strict=True)):
        cout = width * 4 if is_deep else width
        for i in range(n):
            s = 2 if stage and not i else 1
            if is_deep:
                body = nn.Sequential(
                    conv(cin, width, 1), conv(width, width, 3, s), conv(width, cout, 1, act=None)
                )
            else:
                body = nn.Sequential(conv(cin, width, 3, s), conv(width, width, act=None))
            layers.append(Residual(body, conv(cin, cout, 1, s, act=None) if s > 1 or cin != cout else None))
            cin = cout
    return head(nn.Sequential(*layers), cin)


def vgg16():
    layers, cin = [], 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        layers += [nn.Conv2d(cin, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        cin = width or cin
    tail = [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *tail, nn.Linear(4096, 1000))


class Dense(nn.Module):
    def __init__(self, cin, growth=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(cin), nn.ReLU(), nn.Conv2d(cin, 4 * growth, 1, bias=False), nn.BatchNorm2d(4 * growth),
            nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x):
        return torch.cat([x, self.body(x)], 1)


def densenet121():
    layers, cin = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, n in enumerate((6, 12, 24, 16)):
        layers += [Dense(cin + 32 * i) for i in range(n)]
        cin += 32 * n
        if stage < 3:
            layers += [
                nn.BatchNorm2d(cin),
                nn.ReLU(),
                nn.Conv2d(cin, cin // 2, 1, bias=False),
                nn.AvgPool2d(2),
            ]
            cin //= 2
    return head(nn.Sequential(*layers, nn.BatchNorm2d(cin), nn.ReLU()), cin)


# -- inverted residuals --------------------------------------------------------------------------------------


class Squeeze(nn.Module):
    def __init__(self, width, inner, act, gate):
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)
        self.act, self.gate = act(), gate()

    def forward(self, x):
        return x * self.gate(self.up(self.act(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    def __init__(self, cin, inner, cout, k, s, act, squeeze=None):
        super().__init__()
        wide = [conv(cin, inner, 1, act=act)] if inner != cin else []
        middle = [squeeze] if squeeze is not None else []
        self.body = nn.Sequential(
            *wide, conv(inner, inner, k, s, inner, act), *middle, conv(inner, cout, 1, act=None)
        )
        self.is_residual = s == 1 and cin == cout

    def forward(self, x):
        return x + self.body(x) if self.is_residual else self.body(x)


def mobilenet_v2():
    layers, cin = [conv(3, 32, 3, 2, act=nn.ReLU6)], 32
    for t, c, n, s in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for i in range(n):
            layers.append(Inverted(cin, cin * t, c, 3, s if not i else 1, nn.ReLU6))
            cin = c
    return head(nn.Sequential(*layers, conv(cin, 1280, 1, act=nn.ReLU6)), 1280)


def mobilenet_v3_large():
    rows = (
        (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
        (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
        (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1), (5, 960, 160, 1, 1, 1),
    )  # fmt: skip
    layers, cin = [conv(3, 16, 3, 2, act=nn.Hardswish)], 16
    for k, inner, c, squeezed, hard, s in rows:
        narrow = (inner // 4 + 4) // 8 * 8
        narrow += 8 if narrow < 0.9 * (inner // 4) else 0
        squeeze = Squeeze(inner, narrow, nn.ReLU, nn.Hardsigmoid) if squeezed else None
        layers.append(Inverted(cin, inner, c, k, s, nn.Hardswish if hard else nn.ReLU, squeeze))
        cin = c
    features = nn.Sequential(
        *layers, conv(cin, 960, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return nn.Sequential(features, nn.Linear(960, 1280), nn.Hardswish(), nn.Dropout(), nn.Linear(1280, 1000))


def efficientnet_b0():
    layers, cin = [conv(3, 32, 3, 2, act=nn.SiLU)], 32
    rows = (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    )
    for t, k, s, c, n in rows:
        for i in range(n):
            squeeze = Squeeze(cin * t, cin // 4, nn.SiLU, nn.Sigmoid)
            layers.append(Inverted(cin, cin * t, c, k, s if not i else 1, nn.SiLU, squeeze))
            cin = c
    return head(nn.Sequential(*layers, conv(cin, 1280, 1, act=nn.SiLU)), 1280)


class Shuffle(nn.Module):
    def __init__(self, cin, cout, s):
        super().__init__()
        half = cout // 2
        self.left = nn.Sequential(conv(cin, cin, 3, s, cin, None), conv(cin, half, 1)) if s > 1 else None
        self.right = nn.Sequential(
            conv(cin if s > 1 else half, half, 1), conv(half, half, 3, s, half, None), conv(half, half, 1)
        )

    def forward(self, x):
        if self.left is None:
            left, right = x.chunk(2, 1)
            joined = torch.cat([left, self.right(right)], 1)
        else:
            joined = torch.cat([self.left(x), self.right(x)], 1)
        n, c, h, w = joined.shape
        return joined.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet_v2():
    layers, cin = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)], 24
    for n, c in ((4, 116), (8, 232), (4, 464)):
        for i in range(n):
            layers.append(Shuffle(cin, c, 1 if i else 2))
            cin = c
    return head(nn.Sequential(*layers, conv(cin, 1024, 1)), 1024)


def regnet_x_400mf():
    layers, cin = [conv(3, 32, 3, 2)], 32
    for n, c in ((1, 32), (2, 64), (7, 160), (12, 400)):
        for i in range(n):
            s = 1 if i else 2
            body = nn.Sequential(conv(cin, c, 1), conv(c, c, 3, s, c // 16), conv(c, c, 1, act=None))
            layers.append(Residual(body, None if i else conv(cin, c, 1, s, act=None)))
            cin = c
    return head(nn.Sequential(*layers), cin)


# -- attention, and convolutions in its style ---------------------------------------------------------------


class ChannelNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.mix, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c, eps=1e-6)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.full((c, 1, 1), 1e-6))

    def forward(self, x):
        y = self.down(F.gelu(self.up(self.norm(self.mix(x).permute(0, 2, 3, 1)))))
        return x + self.scale * y.permute(0, 3, 1, 2)


def convnext_tiny():
    layers, cin = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)], 96
    for c, n in ((96, 3), (192, 3), (384, 9), (768, 3)):
        layers += [ChannelNorm(cin), nn.Conv2d(cin, c, 2, 2)] if c != cin else []
        layers += [ConvNext(c) for _ in range(n)]
        cin = c
    tail = [nn.AdaptiveAvgPool2d(1), ChannelNorm(768), nn.Flatten(), nn.Linear(768, 1000)]
    return nn.Sequential(*layers, *tail)


class Attention(nn.Module):
    def __init__(self, width, heads, window=0):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads)) if window else None
        if window:
            where = torch.stack(
                torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
            ).flatten(1)
            apart = where[:, :, None] - where[:, None, :] + window - 1
            self.register_buffer("index", (apart[0] * (2 * window - 1) + apart[1]).flatten())

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        bias = None if self.bias is None else self.bias[self.index].view(t, t, -1).permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(y.transpose(1, 2).reshape(n, t, c))


class Layer(nn.Module):
    def __init__(self, width, heads, window=0):
        super().__init__()
        self.window = window
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, window)
        self.norm2, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        y = self.norm1(x)
        if self.window:  # x is an image: cut into windows, and put together again
            (n, h, w, c), k = y.shape, self.window
            y = y.view(n, h // k, k, w // k, k, c).transpose(2, 3).reshape(-1, k * k, c)
            y = self.attention(y).view(n, h // k, w // k, k, k, c).transpose(2, 3).reshape(n, h, w, c)
        else:
            y = self.attention(y)
        x = x + y
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, width=768, depth=12, heads=12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(depth)], nn.LayerNorm(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.layers(x)[:, 0])


class Merge(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x):
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class SwinTiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 96, 4, 4), nn.LayerNorm(96)
        layers, width = [], 96
        for stage, (depth, heads) in enumerate(((2, 3), (2, 6), (6, 12), (2, 24))):
            if stage:
                layers.append(Merge(width))
                width *= 2
            layers += [Layer(width, heads, 7) for _ in range(depth)]
        self.layers, self.last, self.head = (
            nn.Sequential(*layers),
            nn.LayerNorm(width),
            nn.Linear(width, 1000),
        )

    def forward(self, x):
        x = self.norm(self.patches(x).permute(0, 2, 3, 1))
        return self.head(self.last(self.layers(x)).mean((1, 2)))


class Inception(nn.Module):
    def __init__(self, cin, a, b0, b1, c0, c1, d):
        super().__init__()
        self.branches = nn.ModuleList([
            conv(cin, a, 1), nn.Sequential(conv(cin, b0, 1), conv(b0, b1)), nn.Sequential(conv(cin, c0, 1), conv(c0, c1)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(cin, d, 1)),
        ])  # fmt: skip

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


def googlenet():
    rows = (
        (192, 64, 96, 128, 16, 32, 32), (256, 128, 128, 192, 32, 96, 64), None, (480, 192, 96, 208, 16, 48, 64),
        (512, 160, 112, 224, 24, 64, 64), (512, 128, 128, 256, 24, 64, 64), (512, 112, 144, 288, 32, 64, 64),
        (528, 256, 160, 320, 32, 128, 128), None, (832, 256, 160, 320, 32, 128, 128), (832, 384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    stem = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), conv(64, 64, 1), conv(64, 192), nn.MaxPool2d(3, 2, 1)]
    return head(
        nn.Sequential(*stem, *[Inception(*row) if row else nn.MaxPool2d(3, 2, 1) for row in rows]), 1024
    )


MODELS = {
    "resnet18": lambda: resnet((2, 2, 2, 2), False), "resnet50": lambda: resnet((3, 4, 6, 3), True),
    "resnet101": lambda: resnet((3, 4, 23, 3), True), "vgg16": vgg16, "densenet121": densenet121,
    "mobilenet_v2": mobilenet_v2, "mobilenet_v3_large": mobilenet_v3_large, "efficientnet_b0": efficientnet_b0,
    "shufflenet_v2": shufflenet_v2, "regnet_x_400mf": regnet_x_400mf, "convnext_tiny": convnext_tiny,
    "vit_b_16": VisionTransformer, "swin_tiny": SwinTiny, "googlenet": googlenet,
}  # fmt: skip
