"""PyTorch modules as models: the forward, one update and the parameters are PyTorch's, and what cannot be said is
refused with the line of Python."""
import contextlib
import copy
import gc
import io
import warnings

import harness
from harness import expect, raises

harness.begin_package("torch", "numpy")
import gacc  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_nets import SGD, a_budget_changes_no_bit, a_ragged_window_is_one_batch, apart, made, session, updated  # noqa: E402


def as_pytorch(*names):
    """The forward and an update by AdamW; tests/parity/torch_modules.py has the other modules and optimizers."""
    for name in names:
        module, inputs, loss, target = made(name)
        run = session(gacc.from_torch(module, inputs, loss=loss, target="y",
                                      optimizer={"type": "adamw", "lr": 1e-3, "eps": 1e-2}))
        with torch.no_grad():
            wanted = module.eval()(*inputs.values())
        off = ((torch.as_tensor(run.predict(inputs)) - wanted).abs().max() / wanted.abs().max().clamp(min=1)).item()
        expect(off <= 1e-5, f"{name}: the forward is {off:.1e} off")
        run.step(inputs, y=target)
        window = run.update()
        value, after = updated(module, inputs, loss, target, lambda p: torch.optim.AdamW(p, 1e-3, eps=1e-2))
        ours = run.parameters()
        module.load_state_dict(ours, strict=True)
        worst, where = apart(ours, after)
        expect(abs(window.loss - value) <= 1e-5 * max(1, abs(value)),
               f"{name}: the loss is {window.loss}, PyTorch's {value}")
        expect(worst <= 1e-6, f"{name}: after one update {where} is {worst:.1e} off")
        print(f"{name}: forward {off:.0e}, update {worst:.0e}", flush=True)


def test_image_networks(_):
    as_pytorch("resnet18", "mobilenet_v3", "unet")


def test_other_networks(_):
    as_pytorch("llama_block", "wavenet", "perceiver", "act_policy", "deepsets", "tab_transformer")


def test_a_batch_norm_of_two_calls_moves_its_statistics_twice(_):
    """In the order of the calls, in every launch of a window, and where lanes are joined."""
    as_pytorch("siamese")
    module, inputs, loss, target = made("siamese")
    wanted, parts = copy.deepcopy(module).train(), [({n: x[i:i + 1] for n, x in inputs.items()}, target[i:i + 1])
                                                    for i in range(4)]
    for given, _ in parts:
        wanted(*given.values())
    for lanes in (1, 4):
        run = session(gacc.from_torch(module, inputs, loss=loss, target="y", optimizer=SGD,
                                      train={"micro_batch": 1, "accumulate": 4, "lanes": lanes}))
        for given, y in parts:
            run.step(given, y=y)
        run.update()
        worst, where = apart(run.parameters(), {n: x for n, x in wanted.state_dict().items() if "running" in n})
        expect(worst <= 1e-6, f"{lanes} lanes: {where} is {worst:.1e} off")


def test_budgets_and_ragged_windows(folder):
    for name in ("nanogpt", "unet"):
        a_budget_changes_no_bit(name, folder)
        a_ragged_window_is_one_batch(name)


def test_a_module_is_trained_and_written_back(_):
    torch.manual_seed(1)
    x = torch.randn(96, 6)
    y = (x[:, 0] * x[:, 1] > 0).long()
    net = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    losses = []
    run = gacc.train(module=net, loader=loader, loss="cross_entropy", target="y",
                     optimizer={"type": "adam", "lr": 1e-2}, metrics=["accuracy"],
                     epochs=20, seed=1, device="cpu", threads=1, on_update=lambda _, window: losses.append(window.loss))
    expect(losses[-1] < 0.75 * losses[0], f"the loss went from {losses[0]} to {losses[-1]}")
    with torch.no_grad():
        accuracy = (net.eval()(x).argmax(1) == y).float().mean().item()
    expect(abs(run.evaluate(input=x, y=y).metrics["accuracy"] - accuracy) < 1e-6,
           "the module has other weights than the session")


def test_classes_may_be_on_axis_1(_):
    """An example of the target says so; where both axes fit it is the last one."""
    torch.manual_seed(2)
    net, x, y = nn.Conv2d(3, 5, 3, padding=1), torch.randn(4, 3, 6, 7), torch.randint(0, 5, (4, 6, 7))
    run = session(gacc.from_torch(net, {"input": x, "y": y}, loss="cross_entropy", target="y",
                                  optimizer={"type": "sgd", "lr": 1.0}))
    with torch.no_grad():
        expect(np.allclose(run.predict(input=x), net(x).permute(0, 2, 3, 1).numpy(), atol=1e-5), "classes are not last")
    run.step(input=x, y=y)
    window = run.update()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    worst, where = apart(run.parameters(), {n: p.detach() - p.grad for n, p in net.named_parameters()})
    expect(abs(window.loss - loss.item()) < 1e-5 and worst < 1e-6,
           f"{window.loss}, {loss.item()}; {where} is {worst:.1e} off")
    square = gacc.from_torch(nn.Linear(5, 5), {"input": torch.randn(2, 5, 5), "y": torch.zeros(2, 5).long()},
                             loss="cross_entropy", target="y", optimizer="sgd")
    expect(list(square.output_shape) == [5, 5] and list(square.inputs["y"].shape) == [5], f"{square.inputs}")


def test_the_state_is_the_module_s(_):
    """Tied parameters, buffers, what the forward does not read and what is frozen: all of state_dict(), and back."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head, self.unused = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False), nn.Linear(3, 3)
            self.head.weight = self.embed.weight
            self.frozen = nn.Linear(8, 8)
            self.frozen.requires_grad_(False)
            self.norm = nn.BatchNorm1d(8)
            self.register_buffer("scale", torch.arange(8).float())

        def forward(self, tokens):
            self.last = y = self.frozen(self.embed(tokens)) * self.scale
            return self.head(self.norm(y.transpose(1, 2)).transpose(1, 2))
    torch.manual_seed(0)
    net, tokens = Net(), torch.randint(0, 11, (4, 5))
    step = gacc.from_torch(net, {"tokens": tokens}, loss="cross_entropy", target="next",
                           optimizer={"type": "sgd", "lr": 0.1})
    expect("head.weight" not in step.source and "unused" not in step.source and not hasattr(net, "last"), step.source)
    run = session(step)
    expect(run.parameters()._metadata == net.state_dict()._metadata, "the versions of the modules are lost")
    before = {n: x.clone() for n, x in net.state_dict().items()}
    expect(all(torch.equal(before[n], x) for n, x in run.parameters().items()), "a session starts from other values")
    run.step(tokens=tokens, next=tokens)
    run.update()
    after = run.parameters()
    net.load_state_dict(after, strict=True)
    same = {n for n in before if torch.equal(before[n], after[n])}
    expect(same == {"frozen.weight", "frozen.bias", "unused.weight", "unused.bias", "scale",
                    "norm.num_batches_tracked"}, f"what stayed: {same}")
    expect(torch.equal(after["head.weight"], after["embed.weight"]), "the tie is lost")
    run.load(before)
    expect(all(torch.equal(before[n], x) for n, x in run.parameters().items()), "load gave other values")


class One(nn.Module):
    """A module of one function, which has a parameter."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.ones(4)), function

    def forward(self, x):
        return self.function(x * self.weight)


def one_update(name, net, inputs, y):
    """Loss and parameters beside PyTorch's."""
    run = session(gacc.from_torch(net, inputs, loss="mse", target="y", optimizer=SGD))
    run.step(inputs, y=y)
    window = run.update()
    value, after = updated(net, inputs, "mse", y)
    worst, where = apart(run.parameters(), after)
    expect(abs(window.loss - value) <= 1e-5 * max(1, value) and worst <= 1e-6,
           f"{name}: loss {window.loss} and {value}, {where} {worst:.1e} off")


def learns_as_pytorch(name, function, net=None):
    """One update of a function of [5, 12] numbers around 0."""
    torch.manual_seed(0)
    x = torch.randn(5, 12)
    net = net or One(function)
    net.weight = nn.Parameter(torch.rand(12) + 0.5)
    one_update(name, net, {"x": x}, torch.randn_like(function(x)))


def refused(function, *words, x=None, module=None, **more):
    x = torch.randn(4, 4) if x is None else x
    inputs = {"input" if isinstance(module, nn.Sequential) else "x": x}
    return raises(gacc.Error, *words)(
        lambda: gacc.from_torch(module or One(function), inputs, loss="mse", target="y", optimizer="sgd", **more))


def test_refusals_name_the_line(_):
    class Inner(One):
        def forward(self, x):
            return torch.special.i0(x * self.weight)
    inside = () if torch.__version__.startswith("2.4.") else ("module `1`",
                                                              "Inner")  # that one's export forgets it of i0
    error = refused(None, "i0", "from_torch.py", "return torch.special.i0(x", *inside,
                    module=nn.Sequential(nn.Linear(4, 4), Inner(None)))
    expect(error.file == __file__ and error.line is not None, f"{error.file}:{error.line}")
    for function in (lambda x: x - x.mean(0), lambda x: x - x.mean(), lambda x: x - x.max(), lambda x: x.flip(0),
                     lambda x: x @ x.T):
        refused(function, "batch", "from_torch.py")
    refused(lambda x: x.reshape(2, -1), "")
    refused(lambda x: x[x[:, 0] > 0], "")
    refused(lambda x: x.double(), "float64")
    refused(lambda x: {"a": x, "b": x * 2, "cache": object()}, "2 tensors", "output= one of 'a', 'b'")
    refused(lambda x: object(), "gives object")
    refused(lambda x: (x * 2).long(), "floats")
    for function in (lambda x: x / x.shape[0], lambda x: x + x.size(0),
                     lambda x: torch.where(x > 0.1 * x.shape[0], x, 0), lambda x: x * x.numel() ** -0.5,
                     lambda x: torch.add(x, x, alpha=x.shape[0])):
        refused(function, "the number of samples", "from_torch.py")
    class Item(One):
        def forward(self, x):
            return x * self.weight[0].item()
    refused(None, ".item(): give the tensor itself", module=Item(None))
    refused(lambda x: x + torch.randn_like(x), "is an input")
    refused(lambda x: x.repeat(1, 100).topk(3)[0], "it orders 400 numbers, and gacc at most 256", "max, min and argmax")
    refused(lambda x: F.conv_transpose3d(x.view(-1, 1, 2, 2, 1), torch.ones(1, 1, 1, 1, 1)), "its images have 3 axes",
            "with that axis among the channels", "from_torch.py")
    reading = One(lambda x: norm(x) - norm.running_mean)
    reading.norm = norm = nn.BatchNorm1d(4)
    refused(None, "in training a forward does not read them", module=reading)
    refused(None, "scale_grad_by_freq", module=nn.Sequential(nn.Embedding(9, 4, scale_grad_by_freq=True)),
            x=torch.randint(0, 9, (4, 2)))
    refused(None, "`0` (BatchNorm1d) has momentum=None", "such as 0.1",
            module=nn.Sequential(nn.BatchNorm1d(4, momentum=None)))
    nothing = One(lambda x: x)
    nothing.requires_grad_(False)
    refused(None, "no trainable parameter", module=nothing)
    raises(gacc.Error, "sgd")(
        lambda: gacc.from_torch(One(lambda x: x), {"x": torch.randn(4, 4)}, loss="mse", target="y",
                                optimizer={"type": "sdg"}))


def test_operations(_):
    """One update of small functions: broadcasts, views with the batch elsewhere, gathers by constants."""
    a = torch.randn(3, 4)
    functions = {
        "middle": lambda x: (x.view(-1, 2, 6).unsqueeze(2) * a[:, None,
                                                               :2].transpose(0, 1).reshape(2, 3, 1)).flatten(1),
        "pairs": lambda x: (x.view(-1, 3, 4)[:, :, None] - x.view(-1, 3, 4)[:, None]).abs().sum(-1),
        "batch behind": lambda x: x.view(-1, 3, 4).permute(1, 0, 2).reshape(3, -1, 2, 2).permute(1, 2, 0, 3).flatten(1),
        "strides": lambda x: torch.stack([-x[:, 1::2], x[:, ::2]], -1).flatten(1),
        "flip": lambda x: x.flip(1) * x.roll(2, 1),
        "gather": lambda x: x[:, torch.tensor([0, 5, 2, 2, 11])],
        "powers": lambda x: (x.abs() + 1) ** 1.5 + x ** 3 + (x.abs() + 0.5) ** -0.5,
        "clamps": lambda x: x.clamp(-0.5, 0.5) + F.relu6(x * 3) + F.hardswish(x),
        "functions": lambda x: torch.erf(x) + F.elu(x) + F.mish(x) + F.softplus(x) + F.logsigmoid(x) + F.celu(x, 0.7)
        + F.gelu(x, approximate="tanh"),
        "siren": lambda x: torch.sin(8 * (x.view(-1, 3, 4) @ a.T)),
        "times": lambda x: torch.cat([f(x.abs()[:, :2, None] * 1000 * torch.exp(-1.5 * torch.arange(6)))
                                      for f in (torch.sin, torch.cos)], -1),
        "where": lambda x: torch.where(x > 0.1, x * 2, torch.minimum(x, x * x)),
        "norms": lambda x: F.normalize(x.view(-1, 3, 4), dim=-1) + x.view(-1, 3, 4).var(1, keepdim=True)
        + x.view(-1, 3, 4).std(-1, keepdim=True),
        "sums": lambda x: torch.logsumexp(x.view(-1, 3, 4), 1) + x.view(-1, 3, 4).cumsum(1)[:, -1]
        + x.view(-1, 3, 4).amin(1),
        "written": lambda x: torch.slice_scatter(x, x[:, :3] * 2, 1, 4, 7)
        + torch.slice_scatter(x, x[:, :3], 1, 9) * torch.slice_scatter(x, x[:, 3:5], 1, 0, 2),
        "written in steps": lambda x: sum(
            torch.slice_scatter(x, 2 * x[:, :n], 1, begin, end, step) for n, begin, end, step in (
                (4, 1, 12, 3), (6, 0, 12, 2), (1, 5, 6, 7), (2, -4, -1, 2)))
        + torch.slice_scatter(x.view(-1, 3, 4), a[None, :2].expand(len(x), 2, 4), 1, 0, 3, 2).flatten(1),
        "ones": lambda x: torch.cat([x[:, :1], torch.zeros(x.shape[0], 2), torch.ones_like(x[:, :1])], 1),
        "images": lambda x: F.interpolate(F.avg_pool2d(F.pad(x.view(-1, 1, 3, 4), (1, 1, 1, 0), value=0.5), 2, 2),
                                          scale_factor=2, mode="bilinear"),
        "pads": lambda x: F.avg_pool2d(x.view(-1, 1, 3, 4), 3, 1, 1, count_include_pad=False)
        + F.max_pool2d(x.view(-1, 1, 3, 4), 2, 1, 1)[..., 1:, 1:],
        "windows beyond the end": lambda x: F.max_pool1d(x.view(-1, 1, 12), 3, 2, 1, ceil_mode=True)[:, :, None]
        + F.max_pool2d(x.view(-1, 1, 2, 6), 3, 2, 1, ceil_mode=True)[:, :, :, -1:],
        "adaptive": lambda x: F.adaptive_avg_pool2d(x.view(-1, 1, 3, 4), (2, 3)),
        "shuffle": lambda x: F.pixel_shuffle(x.view(-1, 4, 1, 3), 2),
        "wholes": lambda x: x * torch.tensor([1.0, 2.0, 4.0] * 4).mean() - a.max() + a.min(),
        "parts of a sum": lambda x: torch.addmm(x[:, :4], x, torch.ones(12, 4), beta=0.5, alpha=2),
        "left": lambda x: a.T @ x.view(-1, 3, 4),
        "groups": lambda x: F.group_norm(x.view(-1, 4, 3), 2) + F.instance_norm(x.view(-1, 4, 3))
        + F.layer_norm(x.view(-1, 4, 3), (4, 3)),
        "mask": lambda x: F.scaled_dot_product_attention(*[x.view(-1, 1, 6, 2)] * 3,
                                                         attn_mask=torch.ones(6, 6).tril().bool()),
        "scales": lambda x: sum(F.scaled_dot_product_attention(*[x.view(-1, 1, 6, 2)] * 3, scale=scale)
                                for scale in (0.0, -0.5, 1e-50, 2.0)),
        "values of another width": lambda x: torch.cat([F.scaled_dot_product_attention(
            *[x.view(-1, 1, 4, 3)[..., -n:] for n in (q, q, v)], is_causal=True) for q, v in ((2, 1), (1, 3))], -1)
        + F.scaled_dot_product_attention(*[x.view(-1, 6, 2)] * 2, x.view(-1, 6, 2)[..., :1]).sum(1)[:, None, None],
        "zeros behind": lambda x: F.pad(x.view(-1, 3, 4), (0, 0, 0, 2, 0, 0)),  # none beside the samples
        "causal": lambda x: F.scaled_dot_product_attention(*[x.view(-1, 1, 6, 2)] * 3, is_causal=True)
        + F.scaled_dot_product_attention(
            x.view(-1, 1, 6, 2), *[x.view(-1, 1, 6, 2)[:, :, :4]] * 2, is_causal=True),
        "repeated": lambda x: (x.view(-1, 3, 4).repeat(1, 2,
                                                       1)[:, 1:5] * x[:, None,
                                                                      :4].expand(-1, 4, -1)[:, :, 1:3].sum(-1, True)).flip(1),
        "in front": lambda x: torch.stack([x, x.tanh()], 0).sum(0)
        + torch.stack([x[:, :6], x[:, 6:]]).amax(0).repeat(1, 2),
        "numbers alone": lambda x: torch.where(x > 0, x, -9.0 * torch.ones_like(x))
        + x.view(-1, 3, 4).matmul(torch.eye(4)).flatten(1),
        "signs": lambda x: torch.sign(x) * x + x * (x > 1).any(-1, keepdim=True)
        + x * ((x > 1).all(1, keepdim=True) ^ (x < 0)) + F.one_hot(x.argmin(-1), 12),
        "bases": lambda x: 2 ** x + torch.log2(x.abs() + 1) - torch.log10(x.abs() + 1) + torch.nan_to_num(x),
        "moments": lambda x: torch.cat(torch.var_mean(x.view(-1, 3, 4), -1), -1)
        + torch.cat([torch.linalg.vector_norm(x, p, -1, True) for p in (0.5, 1, 2, 3, float("inf"), -float("inf"))], 1),
        "norms of zeros": lambda x: F.normalize((x * 0).view(-1, 3, 4), dim=-1) + x.view(-1, 3, 4)
        + (x * 0).std(1)[:, None, None] + (x * 0).norm(dim=1)[:, None, None],
        "empty parts": lambda x: torch.cat([x[:, 3:3], x.new_zeros(x.shape[0], 0), x, x[:, 12:]],
                                             1) * x[torch.arange(x.shape[0]), 2][:, None],
        "elu of zeros": lambda x: F.elu(x * 0) + F.selu(x * 0),
        "limits": lambda x: (x * 0).clamp(0, 1) + (x * 0 + 1).clamp(max=1) + x,
        "rows for each sample": lambda x: x.view(-1, 3, 4) * a[
            torch.arange(3).flip(0).repeat(x.shape[0], 1)],
        "rows by a choice": lambda x: x[:, :7] + F.embedding(torch.where(x > 0, torch.arange(12), 4), torch.linspace(
            -1, 1, 84).view(12, 7)).sum(1),
        "gather by data": lambda x: x.gather(1, (x[:, :7].abs() * 3).long())
        + x.view(-1, 3, 4).gather(1, (x.view(-1, 3, 4)[:, :2] > 0).long()).flatten(1)[:, :7],
        "gather beside infinity": lambda x: x.masked_fill(x > 5, float("-inf")).gather(1, (x > 0).long()[:, :3]),
        "gather by samples": lambda x: torch.cat([x.view(-1, 3, 4)[torch.arange(x.shape[0]), (x[:, 0] > 0).long() - 1],
            x.view(-1, 3, 4)[torch.arange(x.shape[0])[:, None], :, (x[:, :2] > 0).long()].flatten(1)], 1),
        "largest few": lambda x: torch.cat([*x.topk(3), x.view(-1, 3, 4).topk(2, 1, largest=False)[0].flatten(1)], 1),
        "sorted": lambda x: x.sort(descending=True)[0] + (x * 2).round().sort(stable=True)[1] + x.argsort(),
        "rounded": lambda x: x * ((x * 4).round() + (x.detach() * 0 + torch.tensor([-1.5, -0.5, 0.5, 1.5] * 3)).round()
                                  + torch.floor(x * 3) - torch.ceil(-x)) + torch.frac(x * 1e9),
        "distances": lambda x: torch.cdist(x.view(-1, 3, 4), x.view(-1, 3, 4)[:, :2]).flatten(1)
        + torch.cdist(x.view(-1, 6, 2), torch.eye(2), p=1).flatten(1)[:, :6],
        "products of many": lambda x: x.cumprod(1) + (x * (x > 0)).view(-1, 3, 4).prod(1).repeat(1, 3)
        + x.view(-1, 3, 4).cumprod(1).flatten(1),
        "sums of exponents": lambda x: x.logcumsumexp(1) + (x * 0).logcumsumexp(1)
        + x.masked_fill(torch.arange(12) % 5 == 0, float("-inf")).logcumsumexp(1).clamp(-9),
        "remainders": lambda x: x.remainder(0.7) + torch.fmod(x, -0.7) + (x * 2).remainder(-x.abs() - 1)
        + (x.detach() // 0.3) + torch.tan(x * 0.3),
        "the largest and its place": lambda x: x.max(1, True)[0] * x.max(1)[1][:, None]
        + torch.eye(12)[2:][x.argmax(1).clamp(0, 9)] + x.min(1)[1][:, None],
        "scattered": lambda x: x.scatter(1, (x[:, :3] * 3).int().abs().long(), 0.5)
        + torch.zeros_like(x).scatter_add(1, (x * 3).abs().long(), x)
            + x.scatter(1, (x[:, :5] * 0).long() + torch.arange(3, 8),
                        x[:, :5] * 2) * torch.where((x > 0).any(1), 2, 3)[:, None],
        "einsum": lambda x: torch.einsum("bij,jk,bik->bk", x.view(-1, 3, 4), a.T @ a, x.view(-1, 3, 4).tanh())
        + torch.einsum("bii->b", x.view(-1, 3, 4)[..., 1:])[:, None]
        + torch.einsum("qj,bij->biq", a, x.view(-1, 3, 4)).sum(1).repeat(1, 2)[:, :4],
        "a factor for each row": lambda x: torch.einsum("nbij,jik->nbik", torch.stack([x, -x]).view(2, -1, 3, 4),
                                                        a.expand(5, 3, 4).permute(2, 1, 0)).sum((0, 2)),
        **({} if torch.__version__.startswith("2.4.")
           else {"heads as samples": lambda x: x.reshape(-1, 4)[:].tanh().view(-1, 12)}),
        "every second": lambda x: (lambda y: (y[:, ::2].copy_(x[:, 1::2]), y[:, 1::2].mul_(3), y)[2])(x.clone()),
        "volumes": lambda x: F.local_response_norm(x.view(-1, 6, 1, 2), 3, 0.5)
        + F.avg_pool3d(x.view(-1, 1, 2, 2, 3), (2, 1, 2), 1, (1, 0, 1),
                       count_include_pad=False).sum((1, 2, 3, 4))[:, None, None, None],
        "bilinear": lambda x: F.bilinear(x.view(-1, 3, 4), x.view(-1, 3, 4).tanh(),
                                         torch.linspace(-1, 1, 32).view(2, 4, 4)),
        "windows": lambda x: torch.cat([x.unfold(1, 4, 2).flatten(1), x.view(-1, 3, 4).unfold(1, 2, 1).flatten(1)], 1),
        "one number": lambda x: x[:, None].cumsum(1)[:, 0] + x[:, :1] @ torch.tensor([[2.0]]),
        "largest of parts": lambda x: F.adaptive_max_pool1d(x.view(-1, 2, 6), 3)
        + F.adaptive_max_pool2d(x.view(-1, 2, 2, 3), 1).flatten(2),
    }
    for name, function in functions.items():
        learns_as_pytorch(name, function)


def test_operations_that_others_say(_):
    functions = {
        "arcs": lambda x: torch.atan(x * 3) + torch.atan2(x, x.flip(1)) + torch.atan2(x.abs() * 0, -x.abs())
        + torch.asin(x.tanh()) - torch.acos(x.tanh() * 0.9),
        "hyperbolic": lambda x: torch.cosh(x) + torch.asinh(x * 9) + torch.atanh(x.tanh() * 0.9) + torch.exp2(x)
        + torch.logaddexp(x, -x),
        "digits of small numbers": lambda x: (torch.log1p(x * 1e-5) + torch.expm1(x * 1e-5)
                                              + F.elu(x * 1e-5)) * 1e5 - F.logsigmoid(x.abs() + 15) * 1e7,
        "in the middle": lambda x: x.median(1, True)[0] + x.kthvalue(3, 1)[0][:, None]
        + x.quantile(0.3, 1, True) * x.quantile(torch.tensor([0.1, 0.9]), -1).sum(0)[:, None]
        + torch.bucketize(x, torch.linspace(-1, 1, 5)),
        "at places": lambda x: x.index_copy(1, torch.tensor([0, 3]), x[:, 5:7] * 2)
        + x.index_add(1, torch.tensor([0, 3, 0]), x[:, 5:8]) + x.index_fill(1, torch.tensor([2, -3]), 2.0)
            + (lambda y, m: (y.__setitem__((slice(None), m), x[:, :6]),
                             y.view(-1, 3, 4).__setitem__((slice(None), 1, m[:4]), 0.5),
                             y)[2])(x * 1, torch.arange(12) % 2 == 0),
        "overlaps": lambda x: F.fold(x.view(-1, 4, 3), (2, 4), 2)
        + F.fold(x.view(-1, 6, 2), (3, 2), (3, 2), padding=(0, 1), stride=2)[:, :, :2, :1]
        + F.avg_pool1d(x.view(-1, 1, 12), 5, 3, ceil_mode=True)[:, :, None],
        "samples of an image": lambda x: sum(F.grid_sample(x.view(-1, 1, 3, 4), x.view(-1, 3, 2, 2), padding_mode=p,
                                                           align_corners=c) for p in ("zeros", "border")
                                                           for c in (True, False)),
        "quotients of whole numbers": lambda x: x * sum(f(w, n) for w in [(x * 20).int()]
                                                        for n in (-3, 7, (x > 0) * 2 + 3)
                                                        for f in (torch.floor_divide, torch.remainder, torch.fmod,
                                                                  lambda a,
                                                                  b: torch.div(a, b, rounding_mode="trunc"))) * 0.1
            + (torch.arange(12) + (x > 0)) * 178956953 % 1000003 * 1e-6,
        "rotary, by complex numbers": lambda x: torch.view_as_real(
            torch.view_as_complex(x.view(-1, 2, 3, 2)) * torch.polar(torch.ones(4, 3),
                                                                     torch.outer(torch.arange(4.0), torch.linspace(0.1, 1, 3)))[:2].view(1, 2, 3)).flatten(1)
            + torch.view_as_real(torch.complex(x[:, :6], x[:, 6:]) * torch.polar(x[:, :6].exp(), x[:, 6:])).flatten(1),
        "convolutions of volumes": lambda x: F.conv3d(x.view(-1, 2, 3, 2, 1),
                                                      torch.linspace(-1, 1, 32).view(4, 1, 2, 2, 2), torch.ones(4),
                                                      (2, 1, 1), 1, (2, 1, 1), 2),
    }
    for name, function in functions.items():
        learns_as_pytorch(name, function)


def test_frames_of_a_sample(_):
    """Convolutions, pools and norms of several images of a sample, whose number is one axis with the batch."""
    class Frames(One):
        def __init__(self, *parts):
            super().__init__(None)
            self.parts = nn.Sequential(*parts)

        def forward(self, x):
            x = (x * self.weight).view(-1, 3, 4)
            return self.parts(x.reshape(-1, 4, 1, 1).expand(-1, 4, 2, 3) if self.wide
                              else x.flatten(0, 1)).reshape(x.shape[0], 3, -1)
    image = (nn.Conv2d(4, 6, 2, groups=2), nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 4, 2, bias=False),
             nn.GroupNorm(2, 4), nn.MaxPool2d((1, 3)),
             nn.InstanceNorm2d(4, affine=True), nn.AdaptiveAvgPool2d(1))
    for name, wide, parts in (("images", True, image), ("rows", False,
                                                        (nn.BatchNorm1d(4), nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 3, 2),
                                                         nn.BatchNorm1d(3)))):
        net = Frames(*parts)
        net.wide, net.function = wide, None
        learns_as_pytorch(name, lambda x, net=net: copy.deepcopy(net)(x), net)


def test_masks_of_a_transformer(_):
    """A mask of a decoder without a word that it is causal, and outputs that only training has."""
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
                                                           2), nn.Linear(8, 3)

        def forward(self, **given):
            x = given["x"]
            out = self.head(self.layers(x, x, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5)))
            return (out, out * 2, object()) if self.training else out
    net, x, y = Decoder(), torch.randn(4, 5, 8), torch.randn(4, 5, 3)
    run = session(gacc.from_torch(net, {"x": x}, loss="mse", target="y", optimizer=SGD, output=0))
    run.step(x=x, y=y)
    run.update()
    ours, wanted = run.parameters(), copy.deepcopy(net)
    F.mse_loss(wanted(x=x)[0], y).backward()
    torch.optim.SGD(wanted.parameters(), SGD["lr"], momentum=SGD["momentum"]).step()
    worst, where = apart(ours, wanted.state_dict())
    expect(worst <= 1e-6, f"{where} {worst:.1e} off")


def test_masks_of_segments_by_the_samples_numbers(_):
    """As transformers makes them. A lower triangle becomes gacc's causal attention, with each head of keys once; where
    each position is a segment of its own, a window of one."""
    class Net(One):
        def forward(self, x):
            rows, columns, samples = torch.arange(6)[:, None], torch.arange(6), torch.arange(x.shape[0])[
                :, None, None, None]
            segments = (torch.arange(6).expand(x.shape[0], -1).diff(dim=1,
                                                                    prepend=torch.zeros(x.shape[0], 1)) > self.function).cumsum(1)
            mask = (columns <= rows) & ~(segments[samples, rows] != segments[samples, columns])
            q = (x * self.weight).view(-1, 6, 2, 1).transpose(1, 2)
            k, v = (y[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for y in ((q + 1)[:, :1], q[:, 1:].tanh()))
            return F.scaled_dot_product_attention(q, k, v, mask).flatten(1) + x[torch.arange(x.shape[0]), -1][:, None]
    for whole in (True, False):
        learns_as_pytorch("segments", net := Net(1 if whole else 0.5), net)
        source = gacc.from_torch(net, {"x": torch.randn(3, 12)}, loss="mse", target="y", optimizer=SGD).source
        expect("causal" in source and "kv_heads = 1" in source and ("window = 1" in source) != whole, source)
    refused(lambda x: x + torch.arange(x.shape[0])[:, None], "numbers of the samples")


def test_gradients_end_where_pytorch_ends_them(_):
    def no_grad(x):
        with torch.no_grad():
            factor = (x * 2).exp().clone()
            factor[:, 1] = 0.5
            with torch.enable_grad():
                factor = factor * x.tanh()
            again = x.sin()
            part = again[:, :2]
            part += 1
            F.relu(again, inplace=True).mul_(x)
        with torch.inference_mode():
            other = x.exp()
            other[:, 0] *= x[:, 1]
        again[:, 2] = x[:, 3]
        with torch.no_grad():
            last = again.exp()
        return x * factor * again + other + last

    def written(x):
        y = x * 2
        y[:, 1:3] = 0.5
        y[:, 0] *= x[:, 1]
        return y

    def masked(x):
        y, z = x * 2, x.view(-1, 3, 4).tanh() + 1
        y[y < -0.5] = 0.1
        z[z[..., 0] > 1] = z.new_tensor([1.0, 2.0, 3.0, 4.0])
        return y + z.flatten(1)
    functions = {"masked": masked, "asked": lambda x: x * (2 if torch.is_grad_enabled() else 3),
                 "detach": lambda x: x * x.detach().tanh() + torch.detach(x) * 0.1, "data": lambda x: x * x.data,
                 "no_grad": no_grad, "written": written,
                 "checkpoint": lambda x: checkpoint(torch.tanh, x, use_reentrant=True)
                 + checkpoint(torch.exp, x, use_reentrant=False),
                 "straight through": lambda x: x + ((x > 0) * 2.0 - x).detach()}
    for name, function in functions.items():
        learns_as_pytorch(name, function)

    def own(forward, backward):
        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, *more):
                ctx.save_for_backward(x)
                return ahead(x, *more)

            @staticmethod
            def backward(ctx, dy):
                return back(*ctx.saved_tensors, dy), *[None] * (len(ctx.needs_input_grad) - 1)
        ahead, back = forward, backward
        return lambda *x: Own.apply(*x)
    straight, bounded = own(torch.sign, lambda x, dy: dy), own(lambda x, p: x ** p, lambda x, dy: dy * x.clamp(-1, 1))
    rounded = own(lambda x: (x / x.abs().amax(1, True) * 7).round(), lambda x, dy: dy)
    learns_as_pytorch("Function", lambda x: straight(x) * 0.5 + bounded(x, 2) * x + rounded(x))
    for forward, backward in ((torch.exp, lambda x, dy: dy - dy.mean(1, True)), (torch.exp, lambda x, dy: dy.flip(-1)),
                              (torch.exp, lambda x, dy: dy.abs()), (torch.exp, lambda x, dy: dy.clamp(-50, 50)),
                              (lambda x: x.sum(), lambda x, dy: dy * x)):
        refused(lambda x: own(forward, backward)(x), "`Own`", "gradient of its own", "from_torch.py")

    class Kept(torch.autograd.Function):
        forward = staticmethod(lambda _, x: x.sign())
        backward = staticmethod(lambda _, dy: dy)
    apply = Kept.apply
    refused(lambda x: apply(x), "torch.autograd.Function", "taken before", "from_torch.py")
    refused(lambda x: (x * 2).detach_() * x, "in place", "from_torch.py")
    for write in (lambda y: y.data.clamp_(0), lambda y: y.detach().view(-1, 2, 2)[:, 0].mul_(2),
                  lambda y: y.data.__setitem__(0, 0.5), torch.no_grad()(lambda y: y.mul_(2))):
        refused(lambda x: (lambda y: (write(y), y * x)[1])(x * 2), "into a tensor that has a gradient", "clone()",
                "from_torch.py")
    refused(lambda x: (lambda y: (setattr(y, "data", x.detach()), y)[1])(x * 2), "x.data = y", "from_torch.py")
    net = One(lambda x: x.detach())
    refused(None, "no trainable parameter", module=net)
    refused(lambda x: torch.autograd.grad(x.exp().sum(), x, create_graph=True)[0], "a gradient in the forward",
            "from_torch.py")
    net, x = One(functions["asked"]).eval(), torch.randn(4, 4)
    with torch.no_grad():
        got = session(gacc.from_torch(net, {"x": x}, loss="mse", target="y", optimizer="sgd")).predict(x=x)
        expect(torch.equal(torch.as_tensor(got), net(x)), "a prediction is made as where gradients are")
    expect("forward" not in vars(net) and torch.is_grad_enabled(), "the module or PyTorch was left changed")


def test_samples_are_dropped_whole_and_in_place(_):
    """In training each element, or each sample, is 0 or divided by what stays; in eval() nothing changes."""
    def stochastic_depth(x):  # torchvision's
        noise = torch.empty([x.shape[0], 1]).bernoulli_(0.75)
        return x * noise.div_(0.75)

    def drop_path(x):  # transformers'
        noise = 0.75 + torch.rand((x.shape[0], 1), dtype=x.dtype)
        return x.div(0.75) * noise.floor_()

    class Drops(One):
        def forward(self, x):
            x = x * self.weight
            return (stochastic_depth(x) if self.function is None else self.function(x)) if self.training else x
    for function in (None, drop_path, nn.Dropout(0.25, inplace=True)):
        net, x = Drops(function), torch.rand(512, 4) + 1
        run = session(gacc.from_torch(net, {"x": x}, loss="l1", target="y", optimizer={"type": "sgd", "lr": 1.0}))
        expect(np.array_equal(run.predict(x=x), x.numpy()), "eval() drops something")
        run.step(x=x, y=torch.zeros_like(x))
        loss = run.update().loss  # the mean of 0 or x / 0.75
        share = loss / x.mean().item()
        expect(0.9 < share < 1.1 and share != 1, f"{share} of the sum is left")
    refused(lambda x: x * torch.empty([1, 1]).bernoulli_(0.5), "all samples", "from_torch.py")


def test_truths_are_0_and_1(_):
    def function(x):
        whole, other = (x * 3).int(), (x * 2).int()
        truths = [(x * 0.3).bool(), whole.bool(), torch.logical_and(whole, other), torch.logical_or(whole, x),
                  torch.logical_not(whole),
                  (whole.bool() & (x > 0)) | ~(x < 0.5), whole.bool() + other.bool(), torch.full_like(x, 0.5).bool(),
                  torch.full_like(x, 0.5, dtype=torch.bool),
                  torch.where(whole.bool(), x > 0, other.bool()),
                  torch.ones(12, dtype=torch.int32) & (x > 0).int() | whole.bool() ^ torch.zeros(12, dtype=torch.int32)]
        return torch.cat([x * truth + truth for truth in truths],
                         1) + torch.cat([whole.bool(), other.bool()], 1).sum(1, True)
    learns_as_pytorch("truths", function)

    class Masked(One):
        def forward(self, x, flags):
            return x * self.weight * flags + torch.logical_and(flags, x > 0)
    net, x, flags = Masked(None), torch.randn(4, 4), torch.tensor([[True, False, True, True]] * 4)
    run = session(gacc.from_torch(net, {"x": x, "flags": flags}, loss="mse", target="y", optimizer="sgd"))
    with torch.no_grad():
        wanted = net(x, flags)
    for given in (flags, flags.int() * 2):  # a bool is what is not 0
        expect(torch.equal(torch.as_tensor(run.predict(x=x, flags=given)), wanted), "the flags are not 0 and 1")
    for function in (lambda x: (x * 3).int() & (x * 2).int(), lambda x: (x * 3).int() | (x * 2).int(),
                     lambda x: ~(x * 3).int()):
        refused(function, "bitwise_", "torch.bool", "x != 0", "from_torch.py")


def test_thresholds_scales_and_powers(_):
    learns_as_pytorch("softplus", lambda x: F.softplus(x * 3, threshold=2) + F.softplus(x, beta=2, threshold=1)
                      + F.softplus(x * 200))
    learns_as_pytorch("scales", lambda x: F.interpolate(x.view(-1, 1, 3, 4),
                                                        scale_factor=1.7).flatten(1) * F.interpolate(
                                                            x.view(-1, 1, 3, 4), size=(5, 6)).flatten(1))
    learns_as_pytorch("bilinear", lambda x: F.interpolate(x.view(-1, 1, 3, 4), scale_factor=1.2, mode="bilinear")
                      + F.interpolate(x.view(-1, 3, 4), size=4)[:, None])
    learns_as_pytorch("powers", lambda x: x ** 0 + x ** torch.tensor(2.0) + x ** torch.tensor([3.0]) + (x * 0.3) ** 65
                      + (x * 0) ** torch.tensor(0)
                      + (x.abs() + 1) ** torch.tensor([0.3, 1.7, -0.6] * 4))
    refused(lambda x: x ** torch.arange(4), "whole numbers", "x ** 2", "from_torch.py")
    refused(lambda x: x ** torch.tensor([1.5, 2.0, 0.5, 2.5]), "whole numbers")
    refused(lambda x: x ** (x * 2).int(), "whole numbers")
    refused(lambda x: x ** float("inf"), "exponent")


def test_what_export_cannot_follow_names_the_line(_):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        for function, words in ((lambda x: x if x.sum() > 0 else -x, "depends on data"),
                                (lambda x: x * int(x[0, 0]), "depends on data"),
                                (lambda x: x @ torch.ones(5, 5), "same reduction dim"),
                                (lambda x: x.foo(), "no attribute 'foo'")):
            error = refused(None, words, "module `0` (One)", "from_torch.py", module=nn.Sequential(One(function)))
            expect(error.file == __file__ and error.line == function.__code__.co_firstlineno,
                   f"{error.file}:{error.line}: {error}")
    expect(said.getvalue() == "", f"PyTorch said beside it:\n{said.getvalue()}")


def test_wrong_arguments_are_told(_):
    def error_of(kind, module, inputs, *words):
        raises(kind, *words)(lambda: gacc.from_torch(module, inputs, loss="mse", target="y", optimizer="sgd"))
    x = torch.randn(4, 4)
    error_of(TypeError, lambda x: x, {"x": x}, "nn.Module")
    error_of(TypeError, torch.compile(nn.Linear(4, 4)), {"input": x}, "torch.compile", "the module itself")
    error_of(TypeError, nn.Linear(4, 4), x, "by the names", "{'input': input}")
    error_of(TypeError, nn.Linear(4, 4), {"input": "abc"}, "`input`", "no array")
    error_of(gacc.Error, nn.Bilinear(4, 4, 2), {"a": x}, "the forward takes input1, input2, and the inputs are a")
    error_of(gacc.Error, nn.Bilinear(4, 4, 2), {"y": x}, "the inputs are y, of which `y` is the target")
    error_of(gacc.Error, nn.Linear(4, 4), {"x": x[0]}, "The input `x` is [4]: 4 samples of one number each",
             "one of 4 numbers is [1, 4]")
    for name, given, such in (("loss", F.mse_loss, "cross_entropy"), ("optimizer", torch.optim.Adam, "adamw")):
        raises(TypeError, f"{name} is", "a dict", f'by name, such as "{such}"')(
            lambda: gacc.from_torch(nn.Linear(4, 4), {"input": x},
                                    **({"loss": "mse", "target": "y", "optimizer": "sgd"} | {name: given})))
    for given, rate in (({}, "0.001"), ({"optimizer": {"lr": 0.1}}, "0.1")):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gacc.from_torch(nn.Linear(4, 4), {"input": x}, loss="mse", target="y", **given)
        expect(any(f"it is SGD, at a rate of {rate}; optimizer=" in str(one.message) for one in caught), caught)
    raises(TypeError, 'did you mean optimizer={"type": "adamw", "lr": 0.1}?')(
        lambda: gacc.train(module=nn.Linear(4, 4), loader=[(x, x)], loss="mse", target="y", learning_rate=0.1))
    second = nn.TransformerEncoderLayer(4, 2, 8)
    error_of(gacc.Error, second, {"src": torch.randn(2, 3, 4)}, "`self_attn` has batch_first=False")
    one = "a batch has one array; the forward takes input, and the loss the target `y`"
    for loader, words in (([None], "not None"), ([1], "not 1"), ([()], "no samples"), ([], "the loader has no batch"),
                          ([(x,)], one)):
        raises((gacc.Error, TypeError, ValueError),
               words)(lambda: gacc.train(module=nn.Linear(4, 4), loader=loader, loss="mse", target="y",
                                         optimizer="sgd"))
    for dtype in (torch.float64, torch.float16, torch.int16, torch.uint8, torch.complex64):
        error_of(gacc.Error, nn.Linear(4, 4), {"input": x.to(dtype)}, "`input`", str(dtype).split(".")[1], "float32")
    error_of(gacc.Error, nn.Linear(4, 4).double(), {"input": x}, "`weight`", "float64", "module.float()")


def test_the_target_may_be_the_input(_):
    """As an autoencoder's, under any name."""
    net, x = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)), torch.randn(8, 4)
    for name in "input", "x":
        step = gacc.from_torch(net, {name: x}, loss="mse", target=name, optimizer="sgd")
        expect(list(step.inputs) == [name], f"{step.inputs}")
        got = session(step).evaluate({name: x}).loss
        expect(abs(got - F.mse_loss(net(x), x).item()) < 1e-5, f"{name}: {got}")


def test_no_op_is_written_that_nothing_reads(_):
    """As what stands behind an attention that the next layer takes as it is: gaccc would warn of it."""
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
            return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gacc.from_torch(Attends(), {"x": torch.randn(2, 6, 8)}, loss="mse", optimizer="sgd")


def test_whole_numbers_are_inputs(_):
    net, whole = One(lambda x: x), torch.tensor([[-3, 0, 7, 1 << 20]] * 4)
    for dtype in (torch.int64, torch.int32, torch.bool):
        given = whole.to(dtype)
        got = session(gacc.from_torch(net, {"x": given}, loss="mse", target="y", optimizer="sgd")).predict(x=given)
        expect(torch.equal(torch.as_tensor(got), given.float()), f"{dtype}: {got[0]}")

    class Before(One):
        def forward(self, x):
            return (x.clamp(0.5, 1.5) + F.pad(x, (1, -1), value=4)) * self.weight
    net, given = Before(None), whole.clamp(max=7)
    got = torch.as_tensor(session(gacc.from_torch(net, {"x": given}, loss="mse", target="y",
                                                  optimizer="sgd")).predict(x=given))
    expect(torch.equal(got, net(given).detach()), f"{got[0]}, PyTorch: {net(given)[0]}")


def test_a_frozen_part_is_loaded_in_half_precision(_):
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(8, 16).bfloat16().float()
    net[0].requires_grad_(False)
    for precision in ("bf16", "f16"):
        run = session(gacc.from_torch(net, {"input": x}, loss="mse", target="y", optimizer="sgd", precision=precision))
        off = (torch.as_tensor(run.predict(input=x.bfloat16().requires_grad_())) - net(x).detach()).abs().max().item()
        expect(off < 0.02, f"{precision}: {off} off")


def test_a_module_on_a_card_is_copied(_):
    """Its parameters say that they are there until they are brought to the CPU, which is done to a copy."""
    class There(nn.Parameter):
        device = torch.device("cuda", 0)

        def __deepcopy__(self, memo):
            return There(self.detach().clone())

    class Net(One):
        def cpu(self):
            self.weight = nn.Parameter(self.weight.detach().as_subclass(torch.Tensor))
            return self
    net, x = Net(lambda x: x), torch.randn(4, 4)
    net.weight = There(torch.rand(4))
    step = gacc.from_torch(net, {"x": x}, loss="mse", target="y", optimizer={"type": "sgd", "lr": 0.1})
    expect(isinstance(net.weight, There), "the module itself was moved")
    run = session(step)
    expect(np.allclose(run.predict(x=x), (x * net.weight.detach()).numpy()), "the values are other ones")
    run.step(x=x, y=x)
    run.update()
    net.load_state_dict(run.parameters())
    expect(isinstance(net.weight, There) and np.allclose(run.predict(x=x), (x * net.weight.detach()).numpy()),
           "the parameters went elsewhere")


def test_what_is_not_there_names_the_line(_):
    images = torch.randn(4, 2, 3, 4)

    def deep(function):
        module = One(function)
        return dict(module=module, x=images)
    place = "from_torch.py"
    refused(None, "side by side", place, **deep(lambda x: x[:, torch.tensor([0, 1]), :, torch.tensor([0, 1])]))
    refused(None, "mask.nonzero()", place, **deep(lambda x: x[..., torch.tensor([True, False, True, True])]))
    refused(lambda x: x[:, (x[:, 0] > 0).long()], "by numbers that are data", "gather or x[torch.arange(len(x)), i]",
            place)
    refused(lambda x: F.max_pool1d(x[:, None], 2, return_indices=True)[1] * 1.0, "no result 1", place)
    refused(lambda x: x.index_put(((x[:, 0] > 0).long(),), torch.ones(4)), "index_put", "torch.where(mask, a, b)",
            place)
    refused(lambda x: x[:, 2:2], "no element", place)
    refused(lambda x: x + x.argmax(), "argmax(-1)", place)
    refused(lambda x: x.var(1, correction=4), "4 elements less 4", place)
    refused(lambda x: torch.kron(torch.ones(1, 2), x), "`kron` takes the number of samples", place)
    refused(lambda x: x.quantile(0.5), "say dim=", place)
    refused(lambda x: (x * 2).int() * 2654435761 % 7, "2654435761", "32 bits", place)
    refused(lambda x: (x * 2).int() * torch.tensor([73856093, 19349663, 1, 2]), "2^24", place)
    refused(lambda x: torch.view_as_complex(x.view(-1, 2, 2)).abs(), "complex numbers", "view_as_real", place)
    refused(lambda x: torch.linalg.inv(x[:, :, None] * x[:, None]), "linalg_inv_ex", place)


def test_names_of_constants_are_not_the_module_s(_):
    class Net(One):
        def __init__(self):
            super().__init__(None)
            self.constants = nn.ParameterList([torch.rand(12), torch.rand(12)])

        def forward(self, x):
            return x * self.weight * torch.arange(12) + self.constants[1]  # 0 is not read
    net = Net()
    learns_as_pytorch("constants", net.forward, net)
    state = gacc.from_torch(net, {"x": torch.randn(5, 12)}, loss="mse", target="y", optimizer="sgd").module_state
    expect(torch.equal(state.values["constants.2"], torch.arange(12).float()), f"{list(state.values)}")


class Tables(nn.Module):
    def __init__(self, *rows):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in rows)

    def forward(self, columns):
        return sum(table(columns[:, i]) for i, table in enumerate(self.tables))


def test_tables_of_one_input_have_as_many_rows(_):
    columns = {"columns": torch.tensor([[4, 2], [3, 4]])}
    raises(gacc.Error, "`columns`", "of 5 and of 7 rows", "separate inputs", "module `tables.1`")(
        lambda: gacc.from_torch(Tables(5, 7), columns, loss="mse", target="y", optimizer="sgd"))
    net = Tables(5, 5)
    got = session(gacc.from_torch(net, columns, loss="mse", target="y", optimizer="sgd")).predict(columns)
    with torch.no_grad():
        expect(torch.allclose(torch.as_tensor(got), net(**columns)), "two tables of as many rows")


def test_rows_of_a_tensor_are_those_of_a_table(_):
    """A buffer and a parameter, by elements of an input, which is compared with the number of rows."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Parameter(torch.randn(7, 2, 3))
            self.register_buffer("scale", torch.linspace(0.1, 0.9, 7))

        def forward(self, t):
            return self.rows[t] * self.scale[t][:, None, None] + self.rows.index_select(0, t)
    torch.manual_seed(0)
    t, net = torch.tensor([0, 6, 3, 3]), Net()
    one_update("rows", net, {"t": t}, torch.randn(4, 2, 3))
    for mode in "sum", "mean", "max":
        one_update(mode, nn.Sequential(nn.EmbeddingBag(9, 4, mode=mode, padding_idx=0)),
                   {"input": torch.tensor([[0, 1, 8], [2, 2, 0]])}, torch.randn(2, 4))
    run = session(gacc.from_torch(net, {"t": t}, loss="mse", target="y", optimizer=SGD))
    raises(gacc.Error, '"t"', "it takes 0 to 6")(lambda: run.predict(t=t + 1))


def test_positions_are_counted_without_the_padding(_):
    """As in RoBERTa: rows by a cumulative sum that cannot leave the table, exact also where products are of halves."""
    class Net(nn.Module):
        def __init__(self, rows):
            super().__init__()
            self.places = nn.Embedding(rows, 3, padding_idx=1)

        def forward(self, tokens):
            there = (tokens != 1).int()
            return self.places((torch.cumsum(there, 1).type_as(there) * there).long() + 1)
    torch.manual_seed(0)
    tokens, y = torch.randint(0, 5, (3, 300)), torch.randn(3, 300, 3)
    net = Net(302)
    one_update("positions", net, {"tokens": tokens}, y)
    half = session(gacc.from_torch(net, {"tokens": tokens}, loss="mse", target="y", optimizer=SGD, precision="bf16"))
    with torch.no_grad():
        expect(torch.allclose(torch.as_tensor(half.predict(tokens=tokens)), net(tokens), rtol=2 ** -7, atol=1e-3),
               "bf16 takes other rows")
    class Offsets(Tables):  # columns that share a table, and are hashed into it
        def forward(self, columns):
            return self.tables[0]((columns
                                   + torch.tensor([0, 5])).clamp(0, 8)) * self.tables[0]((columns * 7919 - 13) % 9)
    class Joined(Tables):  # numbers of the input beside known ones, or where a mask shows them
        def forward(self, columns):
            shown = torch.where(columns > 2, columns, 1)
            return self.tables[0](torch.cat([torch.arange(6, 8).repeat(len(columns), 1), shown.to(torch.int32)], 1))
    one_update("joined", joined := Joined(9), {"columns": torch.tensor([[4, 2], [3, 8]])}, torch.randn(2, 4, 4))
    run = session(gacc.from_torch(joined, {"columns": torch.tensor([[4, 2], [3, 8]])}, loss="mse", target="y",
                                  optimizer=SGD))
    raises(gacc.Error, '"columns"', "it takes 0 to 8")(lambda: run.predict(columns=torch.tensor([[4, 9], [3, 8]])))
    refused(None, "may lie beyond the table", x=torch.tensor([[4, 2], [3, 3]]), module=Joined(7))
    one_update("offsets", Offsets(9), {"columns": torch.tensor([[4, 2], [3, 3]])}, torch.randn(2, 2, 4))
    refused(None, "may lie beyond the table", "cumsum(1)", "clamp(0, 300)", x=tokens, module=nn.Sequential(Net(301)))


def test_a_target_that_the_forward_takes_for_nothing_is_told(_):
    class Net(One):
        def forward(self, x, labels):
            return {"logits": x * self.weight, "loss": F.mse_loss(x[:, 1:], labels[:, :-1])}
    x = torch.randn(3, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gacc.from_torch(Net(None), {"x": x, "labels": x}, loss="mse", target="labels", output="logits", optimizer="sgd")
    expect(any("`labels`" in str(each.message) and each.filename == __file__ for each in said), f"{said}")


def test_batches_larger_than_the_example_are_told(_):
    """Where each makes several updates and nobody has said how large a micro-batch is."""
    x, y, words = torch.randn(16, 4), torch.arange(16) % 3, "a batch makes 8 updates: the micro-batch is the example's"
    for train, told in ((None, True), ({"micro_batch": 1}, False)):
        step = gacc.from_torch(nn.Linear(4, 3), {"input": x[:1]}, loss="cross_entropy", target="y", optimizer="sgd",
                               train=train)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            gacc.train(step, [(x[:8], y[:8]), (x[8:], y[8:])], epochs=1, device="cpu", threads=1)
        expect([words in str(one.message) for one in said] == [True] * told, f"{[str(one.message) for one in said]}")


def test_targets_that_are_the_tokens_are_told(_):
    """Refused where each position sees itself and earlier ones alone; else a warning, once a session."""
    ids, words = torch.randint(0, 50, (4, 17)), '"input" and "labels" are the same in 64 of 64 places'
    x, after = ids[:, :-1], ids[:, 1:]
    def step_of(*middle):
        net = nn.Sequential(nn.Embedding(50, 8), *middle, nn.Linear(8, 50))
        return gacc.from_torch(net, {"input": x}, loss="cross_entropy", target="labels", optimizer="adamw")
    step = step_of(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    for labels, told in ((x, [words]), (after, [])):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            gacc.train(step, [{"input": x, "labels": labels}] * 2, epochs=2, device="cpu", threads=1)
        said = [str(one.message) for one in said]
        expect(len(said) == len(told) and all(text in one for text, one in zip(told, said)), f"{said}")
    raises(gacc.Error, words, "labels = tokens[:, 1:]")(
        lambda: gacc.Session(step_of(), "cpu").step(input=x, labels=x))


def test_a_saved_step_has_its_values_beside_it(folder):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
    step = gacc.from_torch(net, {"input": x}, loss="cross_entropy", target="y", optimizer="sgd")
    step.save(folder / "net.ptx")
    expect({f.name for f in folder.iterdir()} == {"net.ptx", "net.safetensors"}, f"{list(folder.iterdir())}")
    there = session(gacc.open(folder / "net.ptx"))
    there.load(folder / "net.safetensors")
    expect(np.array_equal(there.predict(input=x), session(step).predict(input=x)), "the file has other values")
    np.savez(folder / "data.npz", input=x.numpy(), y=y.int().numpy())
    harness.run("gacc-exec", folder / "net.ptx", "--device", "cpu", "--data", f"npz:{folder / 'data.npz'}", "--load",
                folder / "net.safetensors",
                "--predict", folder / "out.npy")
    with torch.no_grad():
        expect(np.allclose(np.load(folder / "out.npy"), net.eval()(x).numpy(), atol=1e-5),
               "gacc-exec --load has other values")
    raises(gacc.Error, "values.ptx")(lambda: step.save(folder / "values.safetensors"))


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return [str(each.message) for each in caught if "since from_torch" in str(each.message)], result


def test_a_module_that_has_changed_is_told(_):
    """Once, where a session is used that starts from older values; what gacc has written into it is no change."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    own = torch.optim.SGD(net.parameters(), 0.1)
    F.cross_entropy(net(x), y).backward()
    own.step()  # before from_torch
    made = lambda: gacc.from_torch(net, {"input": x}, loss="cross_entropy", target="y", optimizer="sgd")  # noqa: E731
    train = lambda step, **more: warned(lambda: gacc.train(  # noqa: E731
        step, [(x, y)], epochs=1, device="cpu", threads=1, **more))[0]
    step = made()
    net(x)  # moves statistics, which training does anyway
    expect(train(step) == [], "nothing has changed")
    expect(train(step, module=net) == train(step, module=net) == [], "gacc.train wrote it")
    more = dict(loss="cross_entropy", target="y", optimizer="sgd", device="cpu", loader=[(x, y)], epochs=1)
    for _ in range(2):
        expect(warned(lambda: gacc.train(module=net, **more))[0] == [], "it is compiled anew")
    step = made()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(before)
    expect(train(step) == [], "the same numbers")
    for change in (lambda: net.load_state_dict({name: torch.ones_like(value) for name, value in before.items()}),
                   lambda: net[0].weight.data.mul_(2), lambda: (F.cross_entropy(net(x), y).backward(), own.step())):
        step = made()
        change()
        said = train(step)
        expect(len(said) == 1 and "run.load(module.state_dict()) takes its values of now" in said[0], said)
        said, run = warned(lambda: session(step))
        expect(said == [], "before it is used")
        expect(len(warned(lambda: (run.predict(input=x), run.predict(input=x)))[0]) == 1, "once a session")
        run = session(step)
        expect(warned(lambda: (run.load(net.state_dict()), run.predict(input=x)))[0] == [], "it was loaded")
    net[0].weight.data.mul_(2)
    del net, own
    gc.collect()  # PyTorch's graph of the last loss holds on to it
    expect(train(step) == [], "the module is gone")


def test_objects_of_pytorch_are_answered_by_words(_):
    net, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.arange(8) % 3
    made = lambda **more: gacc.from_torch(net, {"input": x}, **{  # noqa: E731
        "loss": "cross_entropy", "target": "y", "optimizer": "sgd", **more})
    raises(TypeError, "it is the name of an input")(lambda: made(target=y))
    raises(TypeError, 'and takes a str, a dict or None; that is "bf16"')(lambda: made(precision=torch.bfloat16))
    raises(TypeError, 'device is device(type=\'cpu\'), and takes a str; that is "cpu"')(
        lambda: gacc.Session(made(), torch.device("cpu")))
    for call in (lambda: gacc.train(net, [(x, y)]), lambda: gacc.Session(net), lambda: gacc.compile(net)):
        raises(TypeError, "gacc.from_torch(module, ...) makes a step of a PyTorch module")(call)
    data = torch.utils.data.TensorDataset(x, y)
    for given in dict(step=made()), dict(module=net, loss="cross_entropy", target="y", optimizer="sgd"):
        raises(ValueError, "it is a TensorDataset, of which torch.utils.data.DataLoader(dataset, batch_size=32)")(
            lambda: gacc.train(loader=data, device="cpu", **given))


def test_one_target_is_said_once(_):
    for loss, target in (({"type": "mse", "target": "a"}, "a"), ({"type": "mse", "target": "a"}, None)):
        expect("a" in gacc.from_torch(nn.Linear(2, 2), {"input": torch.randn(4, 2)}, loss=loss, target=target,
                                      optimizer="sgd").inputs, f"{loss}, {target}")
    net, inputs, loss = nn.Linear(2, 2), {"input": torch.randn(4, 2)}, {"type": "mse", "target": "a"}
    raises(ValueError, "'a'", "'b'")(lambda: gacc.from_torch(net, inputs, loss=loss, target="b", optimizer="sgd"))


harness.main(globals())
