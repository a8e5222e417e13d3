"""Operations of PyTorch at their edges: infinities, rows of attention that see nothing, and functions of numbers from
-3e38 to 3e38, its value and its slope."""
import math
import os
import random

import harness
from harness import expect

harness.begin_package("torch", "numpy")
import gacc  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_nets import SGD, apart, session, updated  # noqa: E402

INFINITY = float("inf")


def stacked(x, *more):
    return torch.stack([x, *(x * factor for factor in more)], -1)


# Functions of numbers, each of one to one of them.
FUNCTIONS = {
    **{name: getattr(torch, name) for name in (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "erf", "exp",
        "exp2", "expm1",
        "floor", "frac", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "log", "log10", "log1p", "log2", "logit",
        "nan_to_num", "neg", "rad2deg", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "signbit",
        "sin", "sinc",
        "sinh", "sqrt", "square", "tan", "tanh", "trunc")},
    **{name: getattr(F, name) for name in (
        "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
        "relu6",
        "selu", "silu", "softplus", "softshrink", "softsign", "tanhshrink")},
    **{f"power {p}": lambda x, p=p: x ** p for p in (0.5, 1.5, 2, 2.5, 3, -0.5, -1, -2, 0.3, -0.3, 1.7)},
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "celu 0.7": lambda x: F.celu(x, 0.7),
    "elu 0.3": lambda x: F.elu(x, 0.3),
    "softplus 2": lambda x: F.softplus(x, 2.0, 5.0),
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "power of 2": lambda x: 2.0 ** x,
    "reciprocal is infinite": lambda x: (1 / x == INFINITY) * 1.0,
    "logarithm is infinite": lambda x: (x.log() == -INFINITY) * 1.0,
    "exponential is infinite": lambda x: (x.exp() == INFINITY) * 1.0,
    "xlogy": lambda x: torch.xlogy(x, x),
    "entropy": torch.special.entr,
    "atan2 of 1": lambda x: torch.atan2(x, torch.ones_like(x)),
    "atan2 of x": lambda x: torch.atan2(torch.ones_like(x), x),
    "copysign": lambda x: torch.copysign(x, -x),
    "logaddexp": lambda x: torch.logaddexp(x, -x),
    "logsumexp": lambda x: stacked(x, -1, 0).logsumexp(-1),
    "logcumsumexp": lambda x: stacked(x, -1, 0).logcumsumexp(-1)[..., 2],
    "softmax": lambda x: stacked(x, -1, 0).softmax(-1)[..., 0],
    "log_softmax": lambda x: stacked(x, -1, 0).log_softmax(-1)[..., 1],
    "norm": lambda x: stacked(x, -1).norm(dim=-1),
    "norm 3": lambda x: stacked(x, -1, 0).norm(p=3, dim=-1),
    "norm 0.5": lambda x: stacked(x, -1, 0).norm(p=0.5, dim=-1),
    "deviation": lambda x: stacked(x, -1, 0).std(-1),
    "normalize": lambda x: F.normalize(stacked(x, 0.5), dim=-1).sum(-1),
    "product": lambda x: stacked(x, 0.5).prod(-1),
    "glu": lambda x: F.glu(stacked(x, 1), -1)[..., 0],
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, torch.full_like(x, 0.3), reduction="none"),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none"),
}
# sin and cos are some number between -1 and 1 beyond 4e6 (docs/from-pytorch.md).
BOUNDED = {"sin": 4e6, "cos": 4e6, "tan": 4e6, "sinc": 1e6, "deviation": 1e18, "power -2": 1e18}
# Those that the suite tries; GACC_OPERATIONS=N are N of all, chosen by GACC_SEED.
FEW = ("celu", "celu 0.7", "asinh", "acosh", "asin", "atanh", "cosh", "sinh", "sinc", "logit", "entropy", "elu 0.3")
SINGULAR = 0.0, 1.0, math.pi / 2, 3.0, 20.5, 88.8, 104.0
POINTS = torch.tensor([sign * x for sign in (1, -1) for x in (
    *SINGULAR, 1e-45, 1e-38, 1e-20, 1e-7, 1e-3, 0.5, 8.0, 10.0, 65.0, 1e3, 1e4, 2.0 ** 24, 1e10, 1.9e19, 3e38)])


class Functions(nn.Module):
    """Each function at each point, [functions, points], and times `factor`, where it is not 0."""

    def __init__(self, names):
        super().__init__()
        self.names, self.weight = names, nn.Parameter(torch.zeros(len(names), len(POINTS)))

    def forward(self, x, factor):
        out = []
        for i, name in enumerate(self.names):
            y = FUNCTIONS[name](x[:, i] + self.weight[i])
            out.append(torch.where(factor[:, i] != 0, (y.float() if y.dtype is torch.bool else y) * factor[:, i], 0.0))
        return torch.stack(out, 1)


def of_pytorch(names, points, dtype):
    """The values and the slopes, as f32."""
    values, slopes = [], []
    for name, at in zip(names, points.to(dtype)):
        x = at.clone().requires_grad_(True)
        y = FUNCTIONS[name](x)
        values.append(y.detach().float())
        slopes.append(torch.autograd.grad(y.sum(), x)[0].float() if y.requires_grad else torch.zeros_like(x).float())
    return torch.stack(values), torch.stack(slopes)


def near(x, y, bound):
    return (x == y) | (x.isnan() & y.isnan()) | ((x - y).abs() <= bound * y.abs() + 1e-30)


def test_functions_from_the_least_number_to_the_largest(_):
    count = int(os.environ.get("GACC_OPERATIONS", 0))
    names = random.Random(int(os.environ.get("GACC_SEED", 1))).sample(list(FUNCTIONS), count) or list(FEW)
    for name in BOUNDED:
        expect(name in FUNCTIONS, name)
    points = torch.stack([torch.where(POINTS.abs() <= BOUNDED.get(name, 1e39), POINTS, 0.25) for name in names])
    net = Functions(names).eval()  # which is exported once
    x, ones = points[None].expand(2, -1, -1).contiguous(), torch.ones(2, *points.shape)
    run = session(gacc.from_torch(net, {"x": x, "factor": ones}, loss="l1", target="y",
                                  optimizer={"type": "sgd", "lr": 1.0}))
    got = torch.as_tensor(run.predict(x=x, factor=ones))[0]
    (y32, slope32), (y64, slope64) = (of_pytorch(names, points, dtype) for dtype in (torch.float32, torch.float64))
    wrong = ~(near(got, y32, 1e-5) | near(got, y64, 1e-5))
    # Slopes where both are numbers: the gradient of |y factor - t|, where t lies on the other side of 0 and the factor
    # makes value and slope small.
    size = torch.stack([y32.abs(), slope32.abs(), torch.ones_like(y32)]).amax(0)
    factor = torch.where(y32.isfinite() & slope32.isfinite(), 1 / size, 0.0)
    t = torch.where(y32 * factor >= 0, -1.0, 1.0)
    # Elsewhere it is that of another point, times 0: of an infinite slope PyTorch's would be NaN, too.
    asked = torch.where(factor != 0, points, points.gather(1, (factor != 0).int().argmax(1, keepdim=True)))
    run.step(**{name: numbers[None].expand(2, -1, -1).contiguous()
                for name, numbers in (("x", asked), ("factor", factor), ("y", t))})
    run.update()
    slope = run.parameters()["weight"] * t * points.numel()  # -sign(y - t) dy / elements
    right = near(slope, slope32 * factor, 1e-4) | near(slope, slope64 * factor, 1e-4)
    off = (factor != 0) & ~(right | ((slope - slope64 * factor).abs() < 1e-6))
    slope = slope / factor
    said = [f"{names[i]} of {points[i, j]:g} is {got[i, j]:g}, PyTorch's {y32[i, j]:g}"
            for i, j in wrong.nonzero().tolist()]
    said += [f"{names[i]}'s slope at {points[i, j]:g} is {slope[i, j]:g}, PyTorch's {slope32[i, j]:g}"
             for i, j in off.nonzero().tolist()]
    expect(not said, "\n".join(said))


class Attention(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.q, self.v, self.mask = nn.Linear(4, 4), nn.Linear(4, 4), mask

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.q(x), self.v(x), attn_mask=self.mask(x))


class ByHand(Attention):
    """As PyTorch's users wrote it before 2.5."""

    def forward(self, x):
        scores = (self.q(x) @ self.q(x).transpose(1, 2)).masked_fill(~self.mask(x), -INFINITY)
        return scores.softmax(-1).nan_to_num(0.0) @ self.v(x)


class Layer(nn.Module):
    """PyTorch's own layers, of which a sample's last positions are padding."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        if isinstance(self.layer, nn.MultiheadAttention):
            return self.layer(x, x, x, key_padding_mask=x[..., 0] > 0.5, need_weights=False)[0]
        return self.layer(x, src_key_padding_mask=x[..., 0] > 0.5)


def in_double(module, x):
    with torch.no_grad():
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        out = module.double().eval()(x.double())
        torch.backends.mha.set_fastpath_enabled(fast)
    module.float().train()
    return out.float()


def test_queries_that_see_no_key_get_zeros(_):
    """In the forward, and for the gradients of an update."""
    earlier = torch.ones(3, 3).tril(-1).bool()
    added = torch.zeros(3, 3).masked_fill(~earlier, -INFINITY)
    modules = {
        "a constant of truths": Attention(lambda x: earlier),
        "a constant that is added": Attention(lambda x: added),
        "truths of data": Attention(lambda x: (x[..., 0] > 0)[:, :, None].expand(-1, 3, 3)),
        "data that are added": Attention(
            lambda x: torch.zeros_like(x[..., :1]).masked_fill(x[..., :1] > 0, -INFINITY).expand(-1, 3, 3)),
        "by hand": ByHand(lambda x: earlier),
        "a layer's padding": Layer(nn.MultiheadAttention(4, 2, batch_first=True)),
        "an encoder's padding": Layer(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)),
    }
    torch.manual_seed(1)
    x, y = torch.randn(5, 3, 4), torch.randn(5, 3, 4)
    x[1, :, 0] = 1  # a sample of nothing but padding
    for name, net in modules.items():
        run = session(gacc.from_torch(net, {"x": x}, loss="mse", target="y", optimizer=SGD))
        off = np.abs(run.predict(x=x) - in_double(net, x).numpy()).max()
        expect(off < 1e-5, f"{name}: {off:.1e} off")
        run.step(x=x, y=y)
        expect(run.update().applied, name)
        _, after = updated(net, {"x": x}, "mse", y)
        worst, where = apart(run.parameters(), after)
        expect(worst <= 1e-6, f"{name}: {where} is {worst:.1e} off")


def test_constants_may_be_infinite(_):
    """Also several numbers, in what is saved of a step and compiled from its text."""
    numbers = torch.tensor([1.0, INFINITY, -INFINITY, 3.0, -3.4e38])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(5))

        def forward(self, x):
            y = x * self.weight
            return torch.where(torch.isfinite(numbers), y, torch.where(numbers > 0, 2 * y, 3 * y)) + torch.where(
                y > numbers, 0.5, 0.25) + (y + torch.tensor([0, -INFINITY, 0, 0, 0])).exp()
    net, x = Net(), torch.randn(4, 5)
    for precision in ("f32", "bf16"):
        step = gacc.from_torch(net, {"x": x}, loss="mse", target="y", optimizer=SGD, precision=precision)
        for device in ("cpu", "emulate"):
            off = np.abs(gacc.Session(step, device).predict(x=x) - net(x).detach().numpy()).max()
            expect(off < (1e-5 if precision == "f32" else 0.1), f"{precision} on {device}: {off} off")


harness.main(globals())
