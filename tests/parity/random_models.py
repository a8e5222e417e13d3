#!/usr/bin/env python3
"""random_models.py [--count 20] [--seed 1] [--keep DIR] [--device cpu] [--gemm cublas] [--precision f32]: models
nobody wrote, against the oracle.

Each model is a random stack of the layers of the contract (nested, repeated, residual, tied, frozen, with several
inputs), a loss, an optimizer and windows of random sizes; it is trained a few updates in file order and its losses,
gradient norms and weights are compared with ../shared/oracle/oracle.py, which runs in this process, in double (a loss
may be as far from it as four times PyTorch in f32 is). Every model is also compiled with recompute "all", whose
weights must have the same bits, and in f16, whose first loss must be near. With --precision f16 or bf16 all of it
runs in half: the first loss is near, and recompute and threads change no bit. The same seed gives the same models.
The model is evaluated too, with its running statistics. What fails is named, and kept in DIR. Needs numpy and
PyTorch. """
import argparse
import copy
import importlib.util
import math
import os
import pathlib
import random
import shutil
import sys
import tempfile
import tomllib
import traceback

from live import ORACLE, find_python
from parity import harness

ACTIVATIONS = []  # of the op table, those that the oracle has
BOUNDS = (2e-5, 1e-3, 1e-3)  # losses, gradient norms, weights (norm-wise per tensor): relative
FIRST_LOSS = {"f16": 3e-2, "bf16": 2e-1}


def as_text(layer):
    inner = map(as_text, layer.get("layers", []))
    return harness.layer(layer["type"], *inner, **{k: v for k, v in layer.items() if k not in ("type", "layers")})


def model_text(config):
    return harness.model_text(*map(as_text, config["layers"]), **{k: v for k, v in config.items() if k != "layers"})


# ---------------------------------------------------------------- models
class Maker:
    """Grows a list of layers; `shape` is that of what flows, per sample: [C], [T, C] or [C, H, W]."""

    def __init__(self, rng):
        self.rng, self.names = rng, 0

    def name(self):
        self.names += 1
        return f"n{self.names}"

    def maybe(self, chance=0.5):
        return self.rng.random() < chance

    def pick(self, *choices):
        return self.rng.choice(choices)

    def common(self, layer):
        if self.maybe(0.3):
            layer["name"] = self.name()
        if layer["type"] in ("linear", "conv2d") and self.maybe(0.3):
            layer["init"] = self.pick("xavier_normal", "xavier_uniform", "kaiming_uniform", {"normal": 0.1},
                                      {"uniform": 0.2})
        if layer["type"] in ("linear", "conv2d", "layer_norm", "group_norm") and self.maybe(0.08):
            layer["trainable"] = False
        return layer

    def act(self, layer):
        if self.maybe(0.4):
            layer["activation"] = self.pick(*ACTIVATIONS)
            if layer["activation"] == "leaky_relu" and self.maybe():
                layer["slope"] = 0.1
        return layer

    def linear(self, features):
        layer = self.act({"type": "linear", "features": features})
        if self.maybe(0.2):
            layer["bias"] = False
        return self.common(layer)

    def activation(self):
        layer = {"type": "activation", "fn": self.pick(*ACTIVATIONS)}
        if layer["fn"] == "leaky_relu" and self.maybe():
            layer["slope"] = 0.2
        return self.common(layer)

    def norm(self, shape):
        layer = {"type": self.pick("layer_norm", "rms_norm")}
        if len(shape) == 3 and self.maybe(0.8):
            layer = self.pick({"type": "batch_norm"}, {"type": "group_norm", "groups": self.divisor(shape[0])})
            if layer["type"] == "batch_norm" and self.maybe(0.3):
                layer |= {"momentum": 0.3, "accumulation": self.pick("micro", "compensate")}
        if self.maybe(0.3):
            layer["eps"] = self.pick(1e-3, 1e-5)
        return self.common(layer)

    def divisor(self, n):
        return self.pick(*[d for d in range(1, n + 1) if n % d == 0])

    def same(self, shape, depth):
        """A few layers that keep the shape."""
        layers = []
        for _ in range(self.rng.randint(1, 3)):
            layers += self.one_same(shape, depth)
        return layers

    def one_same(self, shape, depth):
        kinds = ["activation", "norm", "softmax"] + ["project"] * 3 + (["nest"] * 2 if depth < 2 else [])
        kind = self.pick(*kinds)
        if kind == "activation":
            return [self.activation()]
        if kind == "norm":
            return [self.norm(shape)]
        if kind == "softmax":
            return [self.common({"type": self.pick("softmax", "log_softmax")})]
        if kind == "nest":
            body = self.same(shape, depth + 1)
            if self.maybe():
                return [self.common({"type": "residual", "layers": body})]
            layer = {"type": "sequential", "layers": body}
            if self.maybe(0.6):
                layer["repeat"] = self.rng.randint(1, 3)
            return [self.common(layer)]
        if len(shape) == 3:
            kernel = self.pick(1, 3, 3, 5)
            layer = {"type": "conv2d", "channels": shape[0], "kernel": kernel,
                     "padding": self.pick("same", kernel // 2)}
            if self.maybe(0.3):
                layer |= {"dilation": 2, "padding": "same"}
            if self.maybe(0.3):
                layer["groups"] = self.divisor(shape[0])
            if self.maybe(0.2):
                layer["bias"] = False
            return [self.common(self.act(layer))]
        if len(shape) == 2 and self.maybe(0.4):
            layer = {"type": "attention", "heads": self.divisor(shape[1]), "causal": self.maybe()}
            if self.maybe(0.2):
                layer["bias"] = False
            return [self.common(layer)]
        if len(shape) == 2 and self.maybe(0.2):
            return [self.common({"type": "position_embedding"})]
        if self.maybe(0.4):
            return [self.linear(self.rng.randint(1, 40)), self.linear(shape[-1])]
        return [self.linear(shape[-1])]

    def change(self, shape):
        """(layers, shape afterwards): something that changes the shape."""
        if len(shape) == 1:
            features = self.pick(1, 3, 7, 16, 33, 64, 130)
            if self.maybe(0.15) and shape[0] % 2 == 0 and shape[0] > 2:
                return [{"type": "reshape", "shape": [shape[0] // 2, 2]}], [shape[0] // 2, 2]
            return [self.linear(features)], [features]
        if len(shape) == 2:
            kind = self.pick("linear", "permute", "flatten")
            if kind == "linear":
                features = self.pick(2, 5, 8, 24)
                return [self.linear(features)], [shape[0], features]
            if kind == "permute":
                return [self.common({"type": "permute", "axes": [1, 0]})], shape[::-1]
            return [{"type": "flatten"}], [shape[0] * shape[1]]
        channels, height, width = shape
        kind = self.pick("conv", "conv", "pool", "permute", "flatten", "global")
        if kind == "conv":
            kernel, stride, padding = self.rng.randint(1, min(4, height,
                                                              width)), self.rng.randint(1, 2), self.rng.randint(0, 1)
            padding = min(padding, kernel // 2)
            out = self.pick(1, 3, 4, 8)
            layer = {"type": "conv2d", "channels": out, "kernel": kernel, "stride": stride, "padding": padding}
            return [self.common(self.act(layer))], [out] + [(n + 2 * padding - kernel) // stride + 1
                                                            for n in (height, width)]
        if kind == "pool" and min(height, width) >= 2:
            kernel = self.pick(2, min(3, height, width))
            layer = {"type": self.pick("max_pool2d", "avg_pool2d"), "kernel": kernel}
            stride, padding = kernel, 0
            if self.maybe(0.4):
                stride = layer["stride"] = self.rng.randint(1, kernel)
            if self.maybe(0.3):
                padding = layer["padding"] = kernel // 2
            return [self.common(layer)], [channels] + [(n + 2 * padding - kernel) // stride + 1
                                                       for n in (height, width)]
        if kind == "permute":
            axes = self.rng.sample(range(3), 3)
            return [self.common({"type": "permute", "axes": axes})], [shape[a] for a in axes]
        if kind == "global":
            return [{"type": "global_avg_pool2d"}], [channels]
        return [{"type": "flatten"}], [channels * height * width]

    def join(self, shape):
        """A branch beside what flows, joined to it: (layers, shape)."""
        a, b = self.name(), self.name()
        first = self.one_same(shape, 1) + [{"type": "activation", "fn": "tanh", "name": a}]
        second = self.one_same(shape, 1) + [{"type": "activation", "fn": "sigmoid", "name": b}]
        kind = self.pick("add", "mul", "concat")
        layer = {"type": kind, "inputs": [a, b]}
        if kind == "concat":
            axis = layer["axis"] = self.rng.randrange(len(shape))
            shape = [n * 2 if i == axis else n for i, n in enumerate(shape)]
        return first + second + [layer], shape

    def head_to(self, shape, wanted):
        """Layers from `shape` to a vector, or to rows of `wanted` features where the rows are targets."""
        return ([{"type": "flatten"}] if len(shape) > 1 else []) + [{"type": "linear", "features": wanted}]

    def body(self, shape):
        layers = []
        for _ in range(self.rng.randint(1, 4)):
            kind = self.pick("same", "same", "change", "join")
            if kind == "same":
                layers += self.same(shape, 0)
            else:
                more, shape = self.join(shape) if kind == "join" else self.change(shape)
                layers += more
            if math.prod(shape) > 2000:
                break
        return layers, shape


def make_model(seed):
    rng = random.Random(seed)
    maker = Maker(rng)
    kind = rng.choice(["vector", "image", "image", "sequence", "tokens", "tokens", "two"])
    inputs, layers = {}, []
    if kind in ("vector", "two"):
        shape = [rng.choice([1, 5, 16, 37])]
        inputs["x"] = {"shape": shape, "dtype": "f32"}
    elif kind == "image":
        shape = [rng.choice([1, 2, 4]), rng.randint(4, 11), rng.randint(4, 11)]
        inputs["x"] = {"shape": shape, "dtype": "f32"}
        if maker.maybe(0.3):
            inputs["x"]["normalize"] = {"mean": 0.1, "std": 0.7}
    elif kind == "sequence":
        shape = [rng.randint(1, 9), rng.choice([2, 6, 12])]
        inputs["x"] = {"shape": shape, "dtype": "f32"}
    else:
        length, vocab, features = rng.randint(1, 13), rng.choice([2, 11, 40]), rng.choice([4, 8, 18])
        inputs["x"] = {"shape": [length], "dtype": "i32", "range": vocab}
        layers.append({"type": "embedding", "vocab": vocab, "features": features, "name": "table"})
        shape = [length, features]
    more, shape = maker.body(shape)
    layers += more
    if kind == "two":  # a second input, of a shape of its own, joined late
        other = [rng.choice([2, 9])]
        inputs["z"] = {"shape": other, "dtype": "f32"}
        if len(shape) > 1:
            layers.append({"type": "flatten"})
        layers += [{"type": "linear", "features": 6, "name": "left"},
                   {"type": "linear", "features": 6, "input": "z", "name": "right"},
                   {"type": rng.choice(["add", "mul"]), "inputs": ["left", "right"]}]
        shape = [6]
    loss = {"type": rng.choice(["cross_entropy"] * 3 + ["mse", "l1", "bce_with_logits"]), "target": "t"}
    if loss["type"] == "cross_entropy":
        classes = rng.choice([2, 5, 10])
        if kind == "tokens" and len(shape) == 2 and shape[0] == inputs["x"]["shape"][0] and maker.maybe(0.7):
            classes, tied = inputs["x"]["range"], shape[1] == layers[0]["features"] and maker.maybe()
            layers.append({"type": "linear", "features": classes} | ({"tied": "table", "bias": False} if tied else {}))
            inputs["t"] = {"shape": [shape[0]], "dtype": "i32", "range": classes}
        else:
            layers += maker.head_to(shape, classes)
            inputs["t"] = {"dtype": "i32", "range": classes}
        if maker.maybe(0.3):
            loss["label_smoothing"] = 0.1
        if maker.maybe(0.4):
            loss["ignore_index"] = rng.choice([-1, -100, 1])
    else:
        width = rng.choice([1, 3])
        layers += maker.head_to(shape, width)
        inputs["t"] = {"shape": [width], "dtype": "f32"}
    train = {"micro_batch": rng.choice([1, 2, 3, 5, 8]), "accumulate": rng.choice([1, 2, 3, 5]),
             "tail": rng.choice(["flush", "drop", "carry"]),
             "epochs": 1000}
    if maker.maybe(0.3):
        train["clip_norm"] = 0.5
    optimizer = rng.choice([{"type": "sgd", "lr": 0.05, "momentum": rng.choice([0.0, 0.9])},
                            {"type": "adam", "lr": 1e-3, "eps": 1e-3},
                            {"type": "adamw", "lr": 1e-3, "eps": 1e-3,
                             "second_moment": rng.choice(["window", "micro"])}])
    weigh(random.Random(f"{seed} weights"), inputs["t"], loss, optimizer)
    return {"model": {"name": f"random-{seed}", "seed": seed % 1000}, "inputs": inputs, "layers": layers, "loss": loss,
            "train": train,
            "optimizer": optimizer}


def weigh(rng, target, loss, optimizer):
    """Weights of the loss and groups of parameters; of a generator of its own, so that the models of a seed stay what
    they were."""
    def some(count):
        return [rng.choice([0.25, 1, 1.5, 4]) for _ in range(count)]
    if rng.random() < 0.4:
        if loss["type"] == "cross_entropy":
            loss["class_weights"] = some(target["range"])
        elif loss["type"] == "bce_with_logits":
            loss["pos_weight"] = some(rng.choice([1, *target["shape"]]))
        elif loss["type"] == "l1":
            loss |= {"type": "huber", "delta": rng.choice([0.3, 1, 2])}
    if rng.random() < 0.4:
        optimizer |= {"weight_decay": 0.1, "decay": rng.choice(["all", "matrices"]),
                      "groups": [{"match": ["*.weight"], "lr_factor": 0.5}
                                 | ({"weight_decay": 0.02} if rng.random() < 0.5 else {})]}


def make_arrays(config, seed, np):
    rng = np.random.default_rng(seed)
    train = config["train"]
    samples = train["micro_batch"] * train["accumulate"] * 2 + int(rng.integers(0, 7)) + 1
    arrays = {}
    for name, keys in config["inputs"].items():
        shape = [samples, *keys.get("shape", [])]
        if keys["dtype"] == "i32":
            arrays[name] = rng.integers(0, keys["range"], shape).astype(np.int32)
        else:
            arrays[name] = rng.standard_normal(shape).astype(np.float32)
    loss = config["loss"]
    if loss["type"] == "bce_with_logits":
        arrays["t"] = (arrays["t"] > 0).astype(np.float32)
    if "ignore_index" in loss:
        arrays["t"][rng.random(arrays["t"].shape) < 0.3] = loss["ignore_index"]
        if (arrays["t"] == loss["ignore_index"]).all():  # a run in which nothing counts is refused
            arrays["t"].flat[0] = 0
    return arrays


# ---------------------------------------------------------------- a case
def difference(a, b):
    return abs(a - b) / max(abs(b), 1e-6) if a is not None and math.isfinite(a) else math.inf


def evaluate(net, config, oracle, data):
    """(sum of the loss, counted elements) over all of the data."""
    size, total, count = config["train"]["micro_batch"], 0.0, 0
    for first in range(0, len(next(iter(data.values()))), size):
        batch = {name: values[first:first + size] for name, values in data.items()}
        net(batch)
        loss, counted = oracle.loss_sum(config, net, batch)
        total, count = total + float(loss.detach()), count + counted
    return total, count


def check(seed, folder, oracle, torch, np, device, gemm, precision, updates=3):
    config = make_model(seed)
    text = model_text(config)
    assert tomllib.loads(text) == config, "the generator's TOML"
    (folder / "model.toml").write_text(text)
    arrays = make_arrays(config, seed, np)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    spec = "npy:" + ",".join(f"{name}={folder / name}.npy" for name in arrays)
    initial = folder / "initial.safetensors"

    def train(name, *settings, options=("--device", "cpu")):
        step, log, final = folder / f"{name}.ptx", folder / f"{name}.jsonl", folder / f"{name}.safetensors"
        harness.run("gaccc", folder / "model.toml", *[word for s in settings for word in ("--set", s)], "-o", step)
        if not initial.exists():
            harness.run("gacc-exec", step, "--data", spec, "--init-only", "--save", initial, "--device", "cpu")
        harness.run("gacc-exec", step, "--data", spec, "--eval", spec, "--no-shuffle", "--updates", updates, "--load",
                    initial,
                    "--log", log, "--save", final, *options)
        return harness.updates_of(log), final, [e for e in harness.read_log(log) if e["event"] == "eval"][-1]

    options = ("--device", device, *(("--gemm", gemm) if gemm else ()))
    plain, final, evaluated = train("plain", f"precision.compute={precision}", options=options)
    problems = []

    def double(tensors):
        return {name: t.double() if t.is_floating_point() else t for name, t in tensors.items()}

    def reference(precise=double):
        return oracle.train(copy.deepcopy(config), precise(oracle.load_safetensors(initial)),
                            precise(oracle.load_data(spec, config)), updates)

    def train_otherwise():
        """Recompute and threads change no bit; in f16 the first loss is near."""
        if device == "cpu" or gemm or precision != "f32":
            _, remade, _ = train("all", f"precision.compute={precision}", "recompute.policy=all", options=options)
            if remade.read_bytes() != final.read_bytes():
                problems.append("recompute changes bits")
        if device == "cpu" and precision != "f32":
            _, threaded, _ = train("threads", f"precision.compute={precision}", options=(*options, "--threads", "2"))
            if threaded.read_bytes() != final.read_bytes():
                problems.append("threads change bits")
        half = precision if precision != "f32" else "f16" if device == "cpu" else None
        if half:
            first = plain if half == precision else train("half", f"precision.compute={half}")[0]
            apart = difference(first[0]["loss"], losses[0])
            if apart > FIRST_LOSS[half]:
                problems.append(f"the first loss in {half} differs by {apart:.1e}")

    net, losses, norms = reference()
    if reference()[1:] != (losses, norms):  # gelu's gradient of PyTorch 1.13 with AVX2, where the layer below permutes
        return ["the oracle differs from itself"], (math.nan, math.nan)
    if precision != "f32":
        train_otherwise()
        return problems, (difference(plain[0]["loss"], losses[0]), math.nan)

    def in_f32():
        """Returns how far PyTorch's own losses in f32 are from those in double: what the model makes of roundings."""
        torch.set_default_dtype(torch.float32)
        try:
            return max(difference(a, b) for a, b in zip(reference(lambda tensors: tensors)[1], losses, strict=True))
        finally:
            torch.set_default_dtype(torch.float64)

    loss = max(difference(e["loss"], r) for e, r in zip(plain, losses, strict=True))
    norm = max(difference(e["grad_norm"], r) for e, r in zip(plain, norms, strict=True)
               if r > 1e-3 * max(norms))  # not of what is learnt or cancels
    if loss > BOUNDS[0] and loss > 4 * in_f32():
        problems.append(f"losses differ by {loss:.1e}")
    if norm > BOUNDS[1]:
        problems.append(f"gradient norms differ by {norm:.1e}")
    ours, theirs = oracle.load_safetensors(final), {**net.params, **net.stats}
    if set(ours) != set(theirs):
        problems.append(f"parameters differ: {sorted(set(ours) ^ set(theirs))}")
    for name in sorted(set(ours) & set(theirs)):
        apart = (ours[name] - theirs[name].detach()).norm().item() / max(
            theirs[name].norm().item(), 1e-2)  # biases start at 0
        if not apart <= BOUNDS[2]:
            problems.append(f"{name} differs by {apart:.1e}")
    net.train = False
    total, count = evaluate(net, config, oracle, double(oracle.load_data(spec, config)))
    if count and difference(evaluated["loss"], total / count) > 10 * BOUNDS[0]:
        problems.append(f"the evaluated loss is {evaluated['loss']}, expected {total / count}")
    train_otherwise()
    return problems, (loss, norm)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--count", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--keep", type=pathlib.Path, help="where the models that fail go")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--precision", choices=["f32", *FIRST_LOSS], default="f32")
    arguments.add_argument("--gemm", help="with --device emulate: cublas, builtin")
    given = arguments.parse_args()
    python = find_python()
    try:
        import numpy as np
        import torch
    except ImportError:
        os.execv(python, [python, *sys.argv])
    loader = importlib.util.spec_from_file_location("oracle", ORACLE)
    oracle = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(oracle)
    ACTIVATIONS.extend(name for name in harness.activations() if name in {"leaky_relu", *oracle.ACT})
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    failed = 0
    for seed in range(given.seed, given.seed + given.count):
        with tempfile.TemporaryDirectory(prefix="gacc-") as name:
            try:
                problems, worst = check(seed, pathlib.Path(name), oracle, torch, np, given.device, given.gemm,
                                        given.precision)
            except (AssertionError, SystemExit, Exception):
                problems, worst = [traceback.format_exc(limit=3)], (math.nan, math.nan)
            print(f"{seed}: loss {worst[0]:.1e}, grad_norm {worst[1]:.1e}{''.join('; ' + p for p in problems)}",
                  flush=True)
            wrong = bool(problems) and problems != ["the oracle differs from itself"]
            failed += wrong
            if wrong and given.keep:
                shutil.copytree(name, given.keep / str(seed), dirs_exist_ok=True)
    print(f"{given.count} models, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
