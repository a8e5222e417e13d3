"""PyTorch's modules at sizes that people train, beside PyTorch: the forward, the first update in f32, and both halves.

    venv/bin/python tests/parity/torch_modules.py [NAME ...] [--most N]

In f32 the forward is within 1e-5 of PyTorch's and what one update makes is within 1e-6. AdamW's first update divides a
gradient by its own size, and a relu decides by a sign, so where a number is only rounding PyTorch's f32 is as far from
the truth as we are. Where the two differ more, PyTorch in f64 is the judge: we may be no farther from it than twice
PyTorch's f32. In bf16 and f16 the forward is within 4 roundings of the largest output, and the direction of an update
by plain SGD within the bounds of `gacc-exec --verify`; where a network turns roundings into more, within twice what
PyTorch's autocast makes of them. A max_pool2d decides between two numbers, and one of a million windows turns over by a
rounding on either side: a module that is wrong has three tries, with other numbers each.

Needs a Python with torch. Where there is torchvision the five networks of images are its own.
"""
import argparse
import copy
import importlib.util
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

harness.begin_package("torch", "numpy")
import gacc  # noqa: E402
import torch  # noqa: E402
import torch_nets as nets  # noqa: E402
from torch_nets import LOSSES, SGD, a_budget_changes_no_bit, a_ragged_window_is_one_batch, apart, updated  # noqa: E402

OPTIMIZERS = {"sgd": (SGD, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)),
              "adamw": ({"type": "adamw", "lr": 1e-3}, lambda p: torch.optim.AdamW(p, 1e-3))}
HALVES = {"bf16": (2.0 ** -8, 2.5e-1), "f16": (2.0 ** -11, 9e-2)}  # a rounding, and the bound of a gradient


MEMORY = {"nanogpt", "unet", "autoencoder", "gnn", "deepsets", "wavenet"}  # of torch_nets.NETS


def of_torchvision(name, **sizes):
    def make():
        from torchvision import models
        net = getattr(models, name)(**sizes)
        if name == "vgg11_bn":  # whose first Linear has 100 million numbers
            net.classifier = torch.nn.Sequential(torch.nn.Linear(512 * 49, 64), torch.nn.ReLU(True), torch.nn.Dropout(),
                                                 torch.nn.Linear(64, 10))
        return net, {"x": nets.images(size=64)}, "cross_entropy", nets.classes(10)
    return make


def sized(module, inputs, loss, target):
    return lambda: (module(), inputs(), loss, target())


def tokens(vocab, length, batch=2):
    return lambda: torch.randint(0, vocab, (batch, length))


MODULES = dict(nets.NETS)
if importlib.util.find_spec("torchvision"):
    MODULES |= {name: of_torchvision(name, num_classes=10)
                for name in ("resnet18", "mobilenet_v3_small", "convnext_tiny", "vgg11_bn")}
    MODULES["vit_small"] = of_torchvision("VisionTransformer", image_size=64, patch_size=8, num_layers=6, num_heads=6,
                                          hidden_dim=384, mlp_dim=1536,
                                          num_classes=10)
    for small in ("mobilenet_v3", "convnext", "vgg_bn", "vit"):
        del MODULES[small]
else:
    MODULES["resnet18"] = sized(lambda: nets.ResNet(n=10), lambda: {"x": nets.images(size=64)}, "cross_entropy",
                                lambda: nets.classes(10))
MODULES["nanogpt"] = sized(lambda: nets.NanoGPT(nets.CausalSelfAttention, 512, 192, 6, 128, 4),
                           lambda: {"idx": tokens(512, 128)()}, "cross_entropy",
                           tokens(512, 128))
MODULES["llama_block"] = sized(lambda: nets.LlamaBlock(256, 8, 2, 96), lambda: {"x": torch.randn(4, 96, 256)}, "mse",
                               lambda: torch.randn(4, 96, 256))


def seeded(call, seed):
    torch.manual_seed(seed)
    return call()


def length(some, others):
    return sum((some[n].double() - x.double()).square().sum() for n, x in others.items()).sqrt().item()


def judged(ours, f32, f64):
    """Returns a line about an update, and whether it is right."""
    off, _ = apart(ours, f32)
    if off <= 1e-6:
        return f"{off:.0e}", True
    mine, its = length(ours, f64), length(f32, f64)
    return f"{off:.0e} (from f64 {mine:.1e}, PyTorch {its:.1e})", mine <= 2 * its


def first_window(step, inputs, target):
    run = gacc.Session(step, "cpu")
    run.step(inputs, y=target)
    if not run.update().applied:
        raise harness.Failed("the window was not applied")
    return run.parameters()


def direction(after, before):
    return torch.cat([(after[n].double() - before[n].double()).flatten() for n in before if n in after])


def used(module, inputs):
    """Makes a new module one in use. Parameters whose numbers are all the same, as of a head that begins at 0, become
    different ones. Batch norms get the statistics of these inputs: by those of a new module the output of a deep
    network is near 0."""
    for p in module.parameters():
        if p.numel() > 1 and p.min() == p.max():
            p.data += 0.1 * torch.randn_like(p)
    norms = [part for part in module.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
    momenta = [part.momentum for part in norms]
    for part in norms:
        part.momentum = 1.0
    with torch.no_grad():
        module.train()(*inputs.values())
    for part, momentum in zip(norms, momenta):
        part.momentum = momentum


def by_autocast(module, inputs, loss, target, dtype):
    """Returns PyTorch's results in half precision: the output in eval(), and the direction of an update."""
    module = copy.deepcopy(module)
    with torch.autocast("cpu", dtype=dtype):
        with torch.no_grad():
            out = module.eval()(*inputs.values()).float()
        value = LOSSES[loss](module.train()(*inputs.values()).float(), target)
    value.backward()
    return out, torch.cat([-p.grad.double().flatten() for p in module.parameters()])


def far(x, wanted):
    """The largest difference relative to the largest number, and the distance relative to the length."""
    return ((x - wanted).abs().max() / wanted.abs().max()).item(), ((x - wanted).norm() / wanted.norm()).item()


def check(name, seed):
    """Lines of what was found, each with whether it is right."""
    module, inputs, loss, target = seeded(MODULES[name], seed)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if type(part).__name__ == "StochasticDepth":
            part.p = 0.0
    used(module, inputs)
    before = {n: x.clone() for n, x in module.state_dict().items()}
    trained = [n for n, _ in module.named_parameters()]

    def compiled(optimizer, **more):
        return gacc.from_torch(module.train(), inputs, loss=loss, target="y", optimizer=optimizer, **more)
    began = time.process_time()
    step = compiled(OPTIMIZERS["sgd"][0])
    yield f"compiled in {time.process_time() - began:.1f} s", True
    with torch.no_grad():
        wanted = module.eval()(*inputs.values())
    most = wanted.abs().max()
    off = ((torch.as_tensor(gacc.Session(step, "cpu").predict(inputs)) - wanted).abs().max() / most.clamp(min=1)).item()
    yield f"forward {off:.0e}", off <= 1e-5
    for optimizer, (table, moves) in OPTIMIZERS.items():
        ours = first_window(step if optimizer == "sgd" else compiled(table), inputs, target)
        module.load_state_dict(ours, strict=True)
        module.load_state_dict(before)
        text, right = judged(ours, *(updated(module, inputs, loss, target, moves, dtype)[1]
                                     for dtype in (torch.float32, torch.float64)))
        yield f"{optimizer} {text}", right
    plain = {"type": "sgd", "lr": 1.0}
    moved = direction(first_window(compiled(plain), inputs, target), {n: before[n] for n in trained})
    for precision, (rounding, bound) in HALVES.items():
        step = compiled(plain, precision=precision)
        off, _ = far(torch.as_tensor(gacc.Session(step, "cpu").predict(inputs)), wanted)
        _, turned = far(direction(first_window(step, inputs, target), {n: before[n] for n in trained}), moved)
        text, right = f"{precision} forward {off / rounding:.1f} roundings, gradient {turned:.0e}", off <= 4 * rounding and turned <= bound
        if not right:
            out, way = by_autocast(module, inputs, loss, target,
                                   {"bf16": torch.bfloat16, "f16": torch.float16}[precision])
            (its_off, _), (_, its_turned) = far(out, wanted), far(way, moved)
            text += f" (autocast {its_off / rounding:.1f}, {its_turned:.0e})"
            right = off <= max(4 * rounding, 2 * its_off) and turned <= max(bound, 2 * its_turned)
        yield text, right
    if name in MEMORY:
        with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
            a_budget_changes_no_bit(name, pathlib.Path(folder))
        a_ragged_window_is_one_batch(name)
        yield "the same bits in a budget, a ragged window as one batch", True


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", choices=[*MODULES, []], metavar="NAME")
    parser.add_argument("--most", type=int, help="so many of them")
    given = parser.parse_args()
    chosen = (given.names or list(MODULES))[:given.most]
    failed = 0
    for name in chosen:
        for seed in range(3):
            try:
                found = list(check(name, seed))
            except (gacc.Error, harness.Failed) as error:
                found = [(str(error), False)]
            right = all(right for _, right in found)
            print(f"{name}: {', '.join(text + ' WRONG' * (not right) for text, right in found)}", flush=True)
            if right:
                break
        failed += not right
    print(f"{failed} of {len(chosen)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
