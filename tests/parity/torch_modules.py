"""PyTorch's modules at sizes that people train, beside PyTorch: the forward, the first update in f32, and both halves.

    GACC_PEERS_PYTHON=venv/bin/python tests/parity/torch_modules.py [NAME ...] [--most N]

In f32 the forward is within 1e-5 of PyTorch's and what one update makes is within 1e-6. AdamW's first update divides a
gradient by its own size, and a relu decides by a sign, so where a number is only rounding PyTorch's f32 is as far from
the truth as we are. Where the two differ more, PyTorch in f64 is the judge: we may be no farther from it than twice
PyTorch's f32. In bf16 and f16 the forward is within 4 roundings of the largest output, and the direction of an update
by plain SGD within the bounds of `gacc-exec --verify`.

Needs a Python with torch. Where there is torchvision the five networks of images are its own.
"""
import argparse
import copy
import importlib.util
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

harness.begin_package("torch", "numpy")
import gacc  # noqa: E402
import torch  # noqa: E402
import torch_nets as nets  # noqa: E402
from torch.nn import functional as F  # noqa: E402

LOSSES = {"cross_entropy": lambda out, y: F.cross_entropy(out.flatten(0, -2), y.flatten()), "mse": F.mse_loss, "l1": F.l1_loss,
          "bce_with_logits": F.binary_cross_entropy_with_logits, "huber": F.huber_loss}
OPTIMIZERS = {"sgd": ({"type": "sgd", "lr": 0.01, "momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)),
              "adamw": ({"type": "adamw", "lr": 1e-3}, lambda p: torch.optim.AdamW(p, 1e-3))}
HALVES = {"bf16": (2.0 ** -8, 2.5e-1), "f16": (2.0 ** -11, 9e-2)}  # a rounding, and the bound of a gradient


def of_torchvision(name, **sizes):
    def make():
        from torchvision import models
        return getattr(models, name)(**sizes), {"x": nets.images(size=64)}, "cross_entropy", nets.classes(10)
    return make


def sized(module, inputs, loss, target):
    return lambda: (module(), inputs(), loss, target())


def tokens(vocab, length, batch=2):
    return lambda: torch.randint(0, vocab, (batch, length))


MODULES = dict(nets.NETS)
if importlib.util.find_spec("torchvision"):
    MODULES |= {name: of_torchvision(name, num_classes=10) for name in ("resnet18", "mobilenet_v3_small", "convnext_tiny", "vgg11_bn")}
    MODULES["vit_small"] = of_torchvision("VisionTransformer", image_size=64, patch_size=8, num_layers=6, num_heads=6, hidden_dim=384, mlp_dim=1536,
                                          num_classes=10)
    for small in ("mobilenet_v3", "convnext", "vgg_bn", "vit"):
        del MODULES[small]
else:
    MODULES["resnet18"] = sized(lambda: nets.ResNet(n=10), lambda: {"x": nets.images(size=64)}, "cross_entropy", lambda: nets.classes(10))
MODULES["nanogpt"] = sized(lambda: nets.NanoGPT(nets.CausalSelfAttention, 512, 192, 6, 128, 4), lambda: {"idx": tokens(512, 128)()}, "cross_entropy",
                           tokens(512, 128))
MODULES["llama_block"] = sized(lambda: nets.LlamaBlock(256, 8, 2, 96), lambda: {"x": torch.randn(4, 96, 256)}, "mse", lambda: torch.randn(4, 96, 256))


def floats(given, dtype):
    return {n: x.to(dtype) if x.is_floating_point() else x for n, x in given.items()}


def seeded(call):
    torch.manual_seed(0)
    return call()


def updated(module, inputs, loss, target, optimizer, dtype):
    """The state of a copy after one update."""
    module = copy.deepcopy(module).to(dtype).train()
    moves = OPTIMIZERS[optimizer][1](module.parameters())
    target = floats({"": target}, dtype)[""]
    LOSSES[loss](module(*floats(inputs, dtype).values()), target).backward()
    moves.step()
    return {n: x.detach().double() for n, x in module.state_dict().items() if not n.endswith("num_batches_tracked")}


def apart(some, others):
    """The largest difference, relative to the tensor's largest number where that is above 1; and where it is."""
    return max(((some[n].double() - x).abs().max() / x.abs().max().clamp(min=1)).item() for n, x in others.items())


def length(some, others):
    return sum((some[n].double() - x).square().sum() for n, x in others.items()).sqrt().item()


def judged(ours, f32, f64):
    """What is said of an update, and whether it is right."""
    off = apart(ours, f32)
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


def check(build):
    """Lines of what was found, each with whether it is right."""
    module, inputs, loss, target = seeded(build)
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if type(part).__name__ == "StochasticDepth":
            part.p = 0.0
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
    for optimizer, (table, _) in OPTIMIZERS.items():
        ours = first_window(step if optimizer == "sgd" else compiled(table), inputs, target)
        module.load_state_dict(ours, strict=True)
        module.load_state_dict(before)
        text, right = judged(ours, *(updated(module, inputs, loss, target, optimizer, dtype) for dtype in (torch.float32, torch.float64)))
        yield f"{optimizer} {text}", right
    plain = {"type": "sgd", "lr": 1.0}
    moved = direction(first_window(compiled(plain), inputs, target), {n: before[n] for n in trained})
    for precision, (rounding, bound) in HALVES.items():
        step = compiled(plain, precision=precision)
        off = ((torch.as_tensor(gacc.Session(step, "cpu").predict(inputs)) - wanted).abs().max() / most).item()
        turned = direction(first_window(step, inputs, target), {n: before[n] for n in trained})
        gradient = ((turned - moved).norm() / moved.norm()).item()
        yield f"{precision} forward {off / rounding:.1f} roundings, gradient {gradient:.0e}", off <= 4 * rounding and gradient <= bound


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", choices=[*MODULES, []], metavar="NAME")
    parser.add_argument("--most", type=int, help="so many of them")
    given = parser.parse_args()
    chosen = (given.names or list(MODULES))[:given.most]
    failed = 0
    for name in chosen:
        try:
            found = list(check(MODULES[name]))
        except (gacc.Error, harness.Failed) as error:
            found = [(str(error), False)]
        print(f"{name}: {', '.join(text + ' WRONG' * (not right) for text, right in found)}", flush=True)
        failed += not all(right for _, right in found)
    print(f"{failed} of {len(chosen)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
