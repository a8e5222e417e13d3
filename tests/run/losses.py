"""Weighted losses and what evaluations measure: one big batch's mean however it is cut, in every precision, on CPU
and emulator."""
import array
import math
import re

import harness
from harness import expect, run

MODELS = {name: harness.ROOT / f"tests/parity/models/{name}.toml" for name in ("class_weights", "pos_weight", "huber")}
SAMPLES = 18  # 5 + 5 + 5 + 3


def train(folder, name, spec, model, *words, **settings):
    """Four updates; the losses and the weights."""
    settings = dict(optimizer__type="sgd", optimizer__lr=0.1, optimizer__weight_decay=0.0) | settings
    artifact = harness.compile_model(model, folder / f"{name}.ptx", **settings)
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--epochs", 4, "--log", folder / f"{name}.log", "--save",
        folder / name, *words)
    return [e["loss"] for e in harness.updates_of(folder / f"{name}.log")], harness.read_safetensors(folder / name)


def test_ragged_windows_are_the_big_batch(folder):
    for kind, model in MODELS.items():
        spec = harness.make_data(model, SAMPLES, folder)
        big = train(folder, "big", spec, model, train__micro_batch=SAMPLES, train__accumulate=1)
        for device in ("cpu", "emulate"):
            for policy in ("none", "all"):
                ragged = train(folder, f"ragged-{policy}", spec, model, "--device", device, train__micro_batch=5,
                               train__accumulate=4,
                               recompute__policy=policy)
                expect(all(abs(a - b) <= 1e-6 * b for a, b in zip(big[0], ragged[0], strict=True)),
                       f"{kind}: {big[0]}, ragged {ragged[0]}")
                worst = harness.far_apart(ragged[1], big[1])
                expect(worst[0] <= 1e-6, f"{kind} on {device}: {worst}")
            expect((folder / "ragged-none").read_bytes() == (folder / "ragged-all").read_bytes(),
                   f"{kind}: recompute changes bits")


def test_groups_and_decay_in_ragged_windows(folder):
    """A group's rate and decay, and decay of matrices alone: also one big batch's."""
    groups = '[{match=["fc2.*"],lr_factor=0.3},{match=["fc1.b*"],weight_decay=0.2,lr=0.03}]'
    for kind, more in (("sgd", dict(optimizer__momentum=0.9)), ("adamw", dict(optimizer__lr=0.01))):
        for decay in (dict(optimizer__decay="matrices"), dict(optimizer__decay="matrices", optimizer__groups=groups)):
            settings = dict(optimizer__type=kind, optimizer__weight_decay=0.1) | more | decay
            spec = harness.make_data(MODELS["huber"], SAMPLES, folder)
            big = train(folder, "big", spec, MODELS["huber"], train__micro_batch=SAMPLES, train__accumulate=1,
                        **settings)
            for device in ("cpu", "emulate"):
                ragged = train(folder, "ragged", spec, MODELS["huber"], "--device", device, train__micro_batch=5,
                               train__accumulate=4, **settings)
                expect(all(abs(a - b) <= 1e-6 * b for a, b in zip(big[0], ragged[0], strict=True)),
                       f"{kind}: {big[0]}, ragged {ragged[0]}")
                worst = harness.far_apart(ragged[1], big[1])
                expect(worst[0] <= 1e-6, f"{kind} with {decay} on {device}: {worst}")


def test_half_precision_is_near(folder):
    """docs/training.md's bounds of one window's gradient, 3e-3 in f16 and 8 times that in bf16, hold for the weights
    of four updates."""
    for kind, model in MODELS.items():
        spec = harness.make_data(model, SAMPLES, folder)
        full = train(folder, "f32", spec, model, train__micro_batch=5, train__accumulate=4)
        for compute, bound in (("f16", 3e-3), ("bf16", 2.4e-2)):
            for device in ("cpu", "emulate"):
                half = train(folder, compute, spec, model, "--device", device, train__micro_batch=5,
                             train__accumulate=4, precision__compute=compute)
                worst = harness.far_apart(half[1], full[1])
                expect(worst[0] <= bound, f"{kind} in {compute} on {device}: {worst}")
                expect(all(abs(a - b) <= bound * b for a, b in zip(half[0], full[0], strict=True)),
                       f"{kind} in {compute}: {half[0]}, {full[0]}")


def test_verify(folder):
    for kind, model in MODELS.items():
        spec = harness.make_data(model, 40, folder)
        for compute in ("f32", "f16"):
            artifact = harness.compile_model(model, folder / "step.ptx", precision__compute=compute)
            done = run("gacc-exec", artifact, "--data", spec, "--verify")
            expect(" 0 failed" in done.stdout, f"{kind} in {compute}:\n{done.stdout}")


def test_scale_of_weights_is_no_matter(folder):
    """Not to a bit for powers of two, and for others no more than one rounding of f16."""
    model = MODELS["class_weights"]
    spec = harness.make_data(model, SAMPLES, folder)
    for compute, factor, bound in (("f32", 2.0 ** -20, 0), ("f16", 1e-6, 1e-3)):
        settings = dict(precision__compute=compute, train__micro_batch=5, train__accumulate=4)
        plain = train(folder, "plain", spec, model, **settings)
        scaled = train(folder, "scaled", spec, model, loss__class_weights=[0.3 * factor, 5 * factor, factor, 0],
                       **settings)
        worst = harness.far_apart(scaled[1], plain[1])
        expect(worst[0] <= bound, f"{compute}: {worst}")


def test_weights_of_zero_count_nothing(folder):
    """A window of such targets makes no update; a run of nothing else is an error; and no weight above 0 is refused
    at once."""
    model = MODELS["class_weights"]
    arrays = harness.make_arrays(model, 12, 1)
    harness.write_npy(folder / "x.npy", *arrays["x"])
    spec = f"npy:x={folder / 'x.npy'},y={folder / 'y.npy'}"
    harness.write_npy(folder / "y.npy", array.array("i", [3] * 4 + [0, 1, 3, 0] + [3] * 4), [12])
    losses, _ = train(folder, "some", spec, model, train__micro_batch=2, train__accumulate=2)
    expect(len(losses) == 4, f"one window an epoch counts: {losses}")
    harness.write_npy(folder / "y.npy", array.array("i", [3] * 12), [12])
    harness.says(run("gacc-exec", folder / "some.ptx", "--data", spec, code=1),
                 'warning: all targets of the input "y" are 3', "error: no update can ever happen", "weight 0",
                 "nothing was counted in epoch 1")


def test_layers_may_be_named_as_sums_are(folder):
    """@loss.weights is the sum of the targets' weights, @loss.weight would be a layer's."""
    model, named = MODELS["class_weights"], folder / "named.toml"
    text = re.sub(r'(name = "fc.")', r'\1\ninit = "ones"\nbias_init = "ones"',
                  model.read_text())  # the default goes by the name
    named.write_text(text)
    spec = harness.make_data(named, SAMPLES, folder)
    plain = train(folder, "plain", spec, named, "--eval", spec)
    named.write_text(text.replace('"fc1"', '"eval"').replace('"fc2"', '"loss"'))
    again = train(folder, "again", spec, named, "--eval", spec)
    expect(plain[0] == again[0], f"losses {plain[0]}, with a layer named `loss` {again[0]}")
    expect(list(plain[1].values()) == list(again[1].values()), "the weights differ")


def measured(folder, model, spec, device, **settings):
    """Returns an evaluation of the initial weights, and they themselves."""
    artifact = harness.compile_model(model, folder / "eval.ptx", **settings)
    log = folder / "eval.log"
    run("gacc-exec", artifact, "--data", spec, "--eval", spec, "--updates", 0, "--device", device, "--log", log,
        "--save", folder / "eval.weights")
    return next(e for e in harness.read_log(log)
                if e["event"] == "eval"), harness.read_safetensors(folder / "eval.weights")


def outputs(tensors, x, samples):
    """Returns the output of the models here: fc2(tanh(fc1(x)))."""
    def linear(name, row):
        (out, width), weight = tensors[f"{name}.weight"]
        return [math.fsum(weight[o * width + i] * row[i] for i in range(width)) + tensors[f"{name}.bias"][1][o]
                for o in range(out)]
    return [linear("fc2", [math.tanh(v) for v in linear("fc1", x[n * 7:(n + 1) * 7])]) for n in range(samples)]


def test_metrics(folder):
    """In double, from the saved weights; targets of 1e6 + what they were keep the digits of r2."""
    for kind, model in MODELS.items():
        arrays = harness.make_arrays(model, SAMPLES, 1)
        spec = harness.make_data(model, SAMPLES, folder)
        for shift in (0.0, 1e6) if kind == "huber" else (0.0,):
            y = arrays["y"][0]
            if shift:
                y = array.array("f", [v * 64 + shift for v in y])
                harness.write_npy(folder / "y.npy", y, arrays["y"][1])
            event, tensors = measured(folder, model, spec, "cpu", train__micro_batch=5)
            rows = outputs(tensors, arrays["x"][0], SAMPLES)
            flat = [v for row in rows for v in row]
            if kind == "huber":
                mean = math.fsum(y) / len(y)
                squares = math.fsum((a - b) ** 2 for a, b in zip(flat, y, strict=True))
                want = {"mae": math.fsum(abs(a - b) for a, b in zip(flat, y)) / len(y),
                        "rmse": math.sqrt(squares / len(y)),
                        "r2": 1 - squares / math.fsum((v - mean) ** 2 for v in y)}
            elif kind == "pos_weight":
                want = {"accuracy": sum((a > 0) == (b > 0.5) for a, b in zip(flat, y, strict=True)) / len(y)}
            else:  # class 2 is ignored; a weight is no matter here
                counted = [n for n in range(SAMPLES) if y[n] != 2]
                want = {"accuracy": sum(rows[n].index(max(rows[n])) == y[n] for n in counted) / len(counted)}
            emulated, _ = measured(folder, model, spec, "emulate", train__micro_batch=5)
            for name, value in want.items():
                for device, found in (("cpu", event[name]), ("emulate", emulated[name])):
                    expect(abs(found - value) <= 1e-5 * abs(value),
                           f"{kind} {name} at {shift} on {device}: {found}, expected {value}")


harness.main(globals())
