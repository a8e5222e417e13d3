"""Modules that nobody wrote, beside PyTorch in double: the forward in eval(), the gradients of one update, and the
forward after another state_dict() was loaded. Each is right, or refused with an error of gacc's.

    venv/bin/python tests/parity/many_modules.py [--count N] [--first SEED] [--verbose]

A module is a few random pieces, each of [B, T, C] numbers to as many, and one or no quirk: something that PyTorch
keeps, changes or calls beside the numbers of a forward. Needs a Python with torch.
"""
import argparse
import collections
import copy
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

harness.begin_package("torch", "numpy")
import gacc  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

B, T, C = 4, 6, 8
INFINITY = float("inf")


class Of(nn.Module):
    """A function of the numbers, with modules or tensors of its own."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.function(self, x)


def channels_first(part):
    return Of(lambda self, x: self.part(x.transpose(1, 2)).transpose(1, 2), part=part)


def hidden(x):
    """Which positions a sample hides, some all of them."""
    return x[..., 0] > 0.3


def attention(mask):
    """By scaled_dot_product_attention of two heads."""
    def forward(self, x):
        q, k, v = (y.view(-1, T, 2, C // 2).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(x)).transpose(1, 2).flatten(2)
    return Of(forward, qkv=nn.Linear(C, 3 * C))


def by_hand(x, mask):
    scores = (x @ x.transpose(1, 2) / C).masked_fill(mask, -INFINITY)
    return scores.softmax(-1).nan_to_num(0.0) @ x


def among_heads(self, x):
    return self.mha(x, x, x, key_padding_mask=hidden(x) & (hidden(x).cumsum(1) > 1), need_weights=False)[0]


def activation(r):
    return Of(r.choice([
        lambda _, x: F.gelu(x), lambda _, x: F.silu(x), lambda _, x: F.celu(x, 0.6), lambda _, x: F.elu(x * 4),
        lambda _, x: F.softplus(x * 9), lambda _, x: F.mish(x), lambda _, x: F.hardswish(x * 4), lambda _, x: F.selu(x),
        lambda _, x: F.leaky_relu(x, 0.2), lambda _, x: F.logsigmoid(x), lambda _, x: F.softsign(x),
        lambda _, x: F.tanhshrink(x),
        lambda _, x: F.hardshrink(x, 0.1), lambda _, x: torch.sinc(x), lambda _, x: torch.asinh(x * 5),
        lambda _, x: torch.atan(x),
        lambda _, x: torch.log1p(x * x), lambda _, x: torch.expm1(-x * x), lambda _, x: torch.sin(x * 3),
        lambda _, x: torch.cosh(x.clamp(-2, 2)),
        lambda _, x: torch.sinh(x.tanh()), lambda _, x: torch.erf(x), lambda _, x: (x.abs() + 0.1) ** 1.7,
        lambda _, x: x * x.sigmoid(),
        lambda _, x: torch.rsqrt(x * x + 0.5), lambda _, x: torch.acos(x.tanh() * 0.9),
        lambda _, x: F.threshold(x, 0.1, -0.2)]))


def shape_of(r):
    places = torch.tensor(r.sample(range(C), C))
    return Of(r.choice([
        lambda _, x: x.flip(1), lambda _, x: x.roll(2, -1), lambda _, x: x[..., places],
        lambda _, x: torch.cat([x[:, 1:], x[:, :1]], 1),
        lambda _, x: x.view(-1, T, 2, C // 2).transpose(1, 2).reshape(-1, T, C),
        lambda _, x: x.unfold(2, 2, 2).mean(-1).repeat(1, 1, 2),
        lambda _, x: torch.stack([x[..., ::2], x[..., 1::2]], -1).flatten(2),
        lambda _, x: torch.einsum("btc,btd->btd", x.tanh(), x),
        lambda _, x: F.pad(x, (1, -1)),
        lambda _, x: F.interpolate(x, size=C, mode="linear") + F.interpolate(x[..., :4], scale_factor=2)]))


def ordered(r):
    return Of(r.choice([
        lambda _, x: x.sort(-1)[0], lambda _, x: torch.cat([x.topk(4, -1)[0], x[..., :4]], -1),
        lambda _, x: x.cumsum(1) / T,
        lambda _, x: x * (x == x.amax(-1, keepdim=True)), lambda _, x: x.gather(1, (x > 0).long()),
        lambda _, x: torch.where(x > 0.2, x, x * x),
        lambda _, x: x.masked_fill(x > 1, 0.5), lambda _, x: x - x.logsumexp(-1, keepdim=True),
        lambda _, x: x.cumprod(-1),
        lambda _, x: x * F.one_hot(x.argmax(-1), C), lambda _, x: x.logcumsumexp(1),
        lambda _, x: x + x.median(-1, True)[0],
        lambda _, x: x.scatter(1, (x[:, :2] > 0).long() + torch.tensor([[[0], [2]]]), 0.5),
        lambda _, x: torch.log_softmax(x, 1)]))


def infinite(r):
    """What meets infinities and gets rid of them."""
    return Of(r.choice([
        lambda _, x: torch.where(torch.log(x.relu()) == -INFINITY, x, x * 2),
        lambda _, x: torch.where(1 / (x.relu()) == INFINITY, x * 3, x),
        lambda _, x: torch.nan_to_num(x / (x > 0.2), 0.1, 0.2, 0.3).clamp(-3, 3),
        lambda _, x: x * torch.isfinite((x * 900).exp()),
        lambda _, x: torch.where(torch.isneginf(x.relu().log()), 0.5 * x, x),
        lambda _, x: x.masked_fill(x < 0, -INFINITY).amax(1, True).clamp(-2) + x,
        lambda _, x: torch.logsumexp(torch.stack([x, x.masked_fill(x > 0, -INFINITY)]), 0),
        lambda _, x: x.masked_fill(hidden(x)[..., None], -INFINITY).softmax(1).nan_to_num(0) * x]))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.part = kind(C, C // 2 if options.get("bidirectional") else C, batch_first=True, **options)

    def forward(self, x):
        return self.part(x)[0]


def weight_norm(part):
    return nn.utils.parametrizations.weight_norm(part)


PIECES = [
    lambda r: nn.Linear(C, C),
    lambda r: nn.Sequential(nn.Linear(C, 16), nn.ReLU(), nn.Linear(16, C)),
    activation, activation, activation, shape_of, ordered,
    infinite, lambda r: nn.LayerNorm(C), lambda r: nn.RMSNorm(C), lambda r: channels_first(nn.BatchNorm1d(C)),
    lambda r: channels_first(nn.GroupNorm(2, C)),
    lambda r: channels_first(nn.Conv1d(C, C, 3, padding=1)),
    lambda r: channels_first(nn.Conv1d(C, C, 3, padding=2, dilation=2, groups=C)),
    lambda r: channels_first(nn.InstanceNorm1d(C, affine=True)), lambda r: Recurrent(nn.LSTM),
    lambda r: Recurrent(nn.GRU, bidirectional=True), lambda r: Recurrent(nn.RNN),
    lambda r: attention(lambda x: None), lambda r: attention(lambda x: torch.ones(T, T).tril(r_offset(x)).bool()),
    lambda r: attention(lambda x: hidden(x)[:, None, None]),
    lambda r: attention(lambda x: torch.zeros(len(x), 1, 1, T).masked_fill(hidden(x)[:, None, None], -INFINITY)),
    lambda r: attention(lambda x: torch.zeros(T, T).masked_fill(~torch.ones(T, T).tril(-1).bool(), -INFINITY)),
    lambda r: Of(lambda _, x: by_hand(x, torch.ones(T, T).triu().bool())),
    lambda r: Of(lambda _, x: by_hand(x, hidden(x)[:, None])),
    lambda r: Of(among_heads, mha=nn.MultiheadAttention(C, 2, batch_first=True)),
    lambda r: nn.TransformerEncoderLayer(C, 2, 16, dropout=0.0, batch_first=True, norm_first=r.random() < 0.5),
    lambda r: weight_norm(nn.Linear(C, C)),
    lambda r: Of(lambda self, x: x * self.gate[:, None].exp() + self.shift,
                 gate=nn.Parameter(torch.randn(T) * 0.1), shift=nn.Parameter(torch.randn(C) * 0.1)),
    lambda r: channels_first(nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.AvgPool1d(3, 1, 1))),
    lambda r: Of(lambda self, x: self.inner(x) + x, inner=nn.Linear(C, C, bias=False)),
    lambda r: Of(lambda self, x: (
        self.experts(x).unflatten(-1, (2, C)) * self.router(x).softmax(-1)[..., None]).sum(-2),
                 experts=nn.Linear(C, 2 * C), router=nn.Linear(C, 2)),
]


def r_offset(x):
    return -1  # the first position sees none


# ---------------------------------------------------------------- quirks: each changes a module, or wraps it
def first_linear(net):
    linears = (part for part in net.modules() if isinstance(part, nn.Linear))
    return next(part for part in linears if isinstance(part.weight, nn.Parameter))


def hook_of_a_parameter(net, r):
    first_linear(net).weight.register_hook(lambda g: g * 2)


def hook_of_a_module(net, r):
    net.pieces[0].register_full_backward_hook(lambda *_: None)


def forward_hooks(net, r):
    net.pieces[0].register_forward_hook(lambda _, given, out: out * 0.5)
    net.register_forward_pre_hook(lambda _, given: (given[0] * 0.9, *given[1:]))


def shared_memory(net, r):
    linear = first_linear(net)
    net.head.weight = nn.Parameter(linear.weight.data[:C, :C])


def shared_buffer(net, r):
    net.register_buffer("copy_of_it", net.head.weight.detach())


def tied(net, r):
    net.pieces.append(nn.Linear(C, C))
    net.head.weight = net.pieces[-1].weight


def constant_buffer(net, r):
    net.register_buffer("scale", torch.linspace(0.5, 1.5, C))
    net.pieces.append(Of(lambda _, x: x * net.scale))


def hidden_buffer(net, r):
    net.register_buffer("mask", torch.zeros(C).masked_fill(torch.arange(C) > 5, -INFINITY), persistent=False)
    net.pieces.append(Of(lambda _, x: (x + net.mask).softmax(-1)))


def counts(net, r):
    net.calls = 0
    def counted(_, x):
        net.calls += 1
        return x * net.calls
    net.pieces.append(Of(counted))


def grows(net, r):
    net.seen = []
    net.pieces.append(Of(lambda _, x: (net.seen.append(1), x * len(net.seen))[1]))


def caches(net, r):
    def cached(self, x):
        if self.table is None:
            self.table = torch.arange(C).float().sin()
        return x * self.table
    net.pieces.append(Of(cached, table=None))


def carries(net, r):
    def carried(self, x):
        self.h = x if self.h is None else x + 0.5 * self.h
        return self.h
    net.pieces.append(Of(carried, h=None))


def draws(net, r):
    net.pieces.append(Of(r.choice([lambda _, x: x * random.random(), lambda _, x: x + torch.rand(C),
    lambda _, x: x * torch.randn_like(x)])))


def named_code(net, r):
    net.pieces.append(Of(lambda self, x: self.code(x), code=nn.Linear(C, C)))


def ends_gradients(net, r):
    def no_grad(_, x):
        with torch.no_grad():
            scale = x.abs().amax(-1, keepdim=True) + 1
        return x / scale
    net.pieces.append(Of(r.choice([no_grad, lambda _, x: x * x.detach().sigmoid(),
    lambda _, x: x + (x.sign() - x).detach()])))


def writes(net, r):
    def written(_, x):
        y = x.clone()
        y[:, 0] = y[:, 1] * 2
        y[..., :2] += 1
        return y
    net.pieces.append(Of(written))


def freezes(net, r):
    for part in r.sample(list(net.pieces), max(1, len(net.pieces) // 2)):
        part.requires_grad_(False)


def part_in_eval(net, r):
    net.pieces.append(channels_first(nn.BatchNorm1d(C)))
    net.pieces[-1].eval()


def asks_for_training(net, r):
    net.pieces.append(Of(lambda self, x: x * 2 if self.training else x))


def checkpointed(net, r):
    inner = nn.Linear(C, C)
    net.pieces.append(
        Of(lambda self, x: torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False), inner=inner))


def own_gradient(net, r):
    class Own(torch.autograd.Function):
        forward = staticmethod(lambda _, x: x.sign())
        backward = staticmethod(lambda _, dy: dy)
    net.pieces.append(Of(lambda _, x: Own.apply(x)))


def by_len(net, r):
    net.pieces.append(Of(lambda _, x: torch.cat([torch.ones(1, 1, C).expand(len(x), -1, -1), x], 1)[
        torch.arange(len(x)), 1:]))


def outside(net, r):
    other = net.head.weight * 2 if r.random() < 0.5 else net.head.weight.data
    net.pieces.append(Of(lambda _, x: x @ other[:C, :C].T if other.shape[1] == C else x))


def clamps_weights(net, r):
    net.pieces.append(Of(lambda _, x: (net.head.weight.data.clamp_(-1, 1), x)[1]))


def frozen_after_all(net, r):
    net.pieces.append(Of(lambda _, x: (net.head.requires_grad_(False), x)[1]))


def across_samples(net, r):
    net.pieces.append(Of(lambda _, x: x - x.mean(0)))


def spectral(net, r):
    net.pieces.append(nn.utils.parametrizations.spectral_norm(nn.Linear(C, C)))


def in_a_dict(net, r):
    net.gives_dict = True


QUIRKS = [None] * 8 + [hook_of_a_parameter, hook_of_a_module, forward_hooks, shared_memory, shared_buffer, tied,
                       constant_buffer,
                       hidden_buffer, counts, grows,
                       caches, carries, draws, named_code, ends_gradients, writes, freezes, part_in_eval,
                       asks_for_training, checkpointed, own_gradient, by_len,
                       outside, clamps_weights, frozen_after_all, across_samples, spectral, in_a_dict]


class Net(nn.Module):
    gives_dict = False

    def __init__(self, pieces, outputs):
        super().__init__()
        self.pieces, self.head = nn.ModuleList(pieces), nn.Linear(C, outputs)

    def forward(self, x):
        for i, piece in enumerate(self.pieces):
            x = piece(x) if i % 2 else piece(x) + x * 0.5
        out = self.head(x)
        return {"out": out, "other": x} if self.gives_dict else out


def made(seed):
    r = random.Random(seed)
    torch.manual_seed(seed)
    net = Net([r.choice(PIECES)(r) for _ in range(r.randint(2, 4))], r.choice([3, C]))
    quirk = r.choice(QUIRKS)
    if quirk is not None:
        quirk(net, r)
    x = torch.randn(B, T, C)
    loss = r.choice(["mse", "cross_entropy"])
    outputs = net.head.out_features
    return net, quirk, x, loss, torch.randn(B, T, outputs) if loss == "mse" else torch.randint(0, outputs, (B, T))


def out_of(given):
    return given["out"] if isinstance(given, dict) else given


def pytorch(net, x, loss, y, dtype):
    """The output in eval(), and the state after one update by SGD of rate 1."""
    torch.set_default_dtype(dtype)
    try:
        net, x = copy.deepcopy(net).to(dtype), x.to(dtype)
        with torch.no_grad():
            modes = {part: part.training for part in net.modules()}
            out = out_of(net.eval()(x))
            for part, mode in modes.items():
                part.training = mode
        given = out_of(net(x))
        value = F.mse_loss(given, y.to(dtype)) if loss == "mse" else F.cross_entropy(given.flatten(0, 1), y.flatten())
        trained = [p for p in net.parameters() if p.requires_grad]
        for p, g in zip(trained, torch.autograd.grad(value, trained, allow_unused=True)):
            if g is not None:
                p.data -= g
        return out, net.state_dict()
    finally:
        torch.set_default_dtype(torch.float32)


def off(x, wanted):
    wanted = wanted.double()
    return ((torch.as_tensor(x).double() - wanted).abs().max() / wanted.abs().max().clamp(min=1)).item()


def check(seed):
    """Returns "right", "refused" or "wrong", and why."""
    net, quirk, x, loss, y = made(seed)
    name = quirk.__name__ if quirk else "-"
    try:
        step = gacc.from_torch(net, {"x": x}, loss=loss, target="y", optimizer={"type": "sgd", "lr": 1.0},
                               output="out" if net.gives_dict else None)
    except gacc.Error as error:
        return "refused", f"{name}: {error}"
    (f32, after32), (f64, after64) = (pytorch(net, x, loss, y, dtype) for dtype in (torch.float32, torch.float64))
    run = gacc.Session(step, "cpu", threads=1)
    worst = off(run.predict(x=x), f64)
    if not worst <= 2e-5 + 4 * off(f32, f64):
        return "wrong", f"{name}: the forward is {worst:.1e} off, PyTorch's {off(f32, f64):.1e}"
    run.step(x=x, y=y)
    try:
        run.update()
    except gacc.Error as error:  # a gradient that is not finite, as PyTorch's must be
        finite = all(bool(value.isfinite().all()) for value in after64.values())
        return "wrong" if finite else "right", f"{name}: {error}"
    after = run.parameters()
    for key, value in after64.items():
        if value.is_floating_point() and not off(after[key], value) <= 2e-5 + 4 * off(after32[key], value):
            return "wrong", (f"{name}: after an update `{key}` is {off(after[key], value):.1e} off, PyTorch's "
                             f"{off(after32[key], value):.1e}")
    state = {key: value + 0.1 * torch.rand_like(value) if value.is_floating_point() else value
             for key, value in net.state_dict().items()}
    for key in state:  # what is tied stays so
        if (owner := step.module_state.owners.get(key, key)) in state:
            state[key] = state[owner]
    try:
        run.load(state)
    except gacc.Error as error:
        return "right", f"{name}: another state is refused: {error}"
    net.load_state_dict(state)
    (f32, _), (f64, _) = (pytorch(net, x, loss, y, dtype) for dtype in (torch.float32, torch.float64))
    worst = off(run.predict(x=x), f64)
    if not worst <= 2e-5 + 4 * off(f32, f64):
        return "wrong", f"{name}: after loading the forward is {worst:.1e} off, PyTorch's {off(f32, f64):.1e}"
    return "right", name


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=6)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--verbose", action="store_true")
    options = options.parse_args()
    torch.set_num_threads(1)
    found = collections.Counter()
    for seed in range(options.first, options.first + options.count):
        try:
            how, why = check(seed)
        except Exception as error:  # noqa: BLE001
            how, why = "wrong", f"{type(error).__name__}: {error}"
        found[how] += 1
        if how == "wrong" or options.verbose:
            print(f"{seed}: {how}: {why}", flush=True)
    print(f"{options.count} modules of PyTorch {torch.__version__}: "
          + ", ".join(f"{n} {how}" for how, n in sorted(found.items())))
    sys.exit(1 if found["wrong"] else 0)


main()
