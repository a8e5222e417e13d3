"""train.require = "bits": one effective batch gives the same weights and losses, to the bit, however it is split into
micro-batches, ranks and threads, and whatever recompute does. GACC_SPLITS is the number of random (model, split) on the
CPU (24), GACC_SPLITS_EMULATED that in the emulator (6), GACC_SPLITS_SEED where they begin (1)."""
import array
import hashlib
import os
import random
import struct

import harness
import ranks
from harness import expect, run

SPLITS = int(os.environ.get("GACC_SPLITS", "24"))
EMULATED = int(os.environ.get("GACC_SPLITS_EMULATED", "6"))
SEED = int(os.environ.get("GACC_SPLITS_SEED", "1"))
OF_A_MODEL = 8  # splits


def layer(kind, name, *inner, **keys):
    return harness.layer(kind, *inner, name=name, **keys)


def flat(chance):
    width, kind = chance.choice([5, 12, 33]), chance.choice(["cross_entropy", "mse", "bce_with_logits", "huber"])
    parts = [f"[inputs.x]\nshape = [{width}]"]
    out = chance.choice([3, 10])
    parts.append(f'[inputs.y]\ndtype = "i32"\nrange = {out}' if kind == "cross_entropy"
                 else f"[inputs.y]\nshape = [{out}]")
    if chance.random() < 0.3:  # a weight that is used three times, at two sides
        parts += [layer("linear", "in", features=16), *(layer("linear", f"again{i}", features=16, tied="first",
                                                              activation="tanh") if i else
                                                        layer("linear", "first", features=16, activation="gelu")
                                                        for i in range(3))]
    for i in range(chance.randint(1, 3)):
        features = chance.choice([7, 16, 40])
        parts.append(layer("linear", f"fc{i}", features=features, activation=chance.choice(["relu", "gelu", "tanh"]),
                           bias=chance.random() < 0.8))
        if chance.random() < 0.4:
            parts.append(layer(chance.choice(["layer_norm", "rms_norm"]), f"norm{i}"))
        if chance.random() < 0.3:
            parts.append(layer("dropout", f"drop{i}", p=0.3))
        if chance.random() < 0.4:
            parts.append(layer("residual", f"res{i}", layer("linear", "inner", features=features, activation="silu")))
    parts.append(layer("linear", "out", features=out))
    return parts, f'[loss]\ntype = "{kind}"\ntarget = "y"'


def images(chance):
    parts = ["[inputs.x]\nshape = [3, 9, 8]", '[inputs.y]\ndtype = "i32"\nrange = 5']
    channels = chance.choice([4, 8])
    for i in range(chance.randint(1, 2)):
        kernel = chance.choice([1, 3])
        parts.append(layer("conv2d", f"conv{i}", channels=channels, kernel=kernel, padding=kernel // 2,
                           stride=chance.choice([1, 2]), bias=chance.random() < 0.5,
                           groups=chance.choice([1, 1, 2]) if i else 1))
        if chance.random() < 0.6:
            parts.append(layer("group_norm", f"norm{i}", groups=2))
        parts.append(layer("activation", f"act{i}", fn="relu"))
    parts.append(layer(chance.choice(["max_pool2d", "avg_pool2d"]), "pool", kernel=2))
    parts.append(layer("flatten", "flat") if chance.random() < 0.7 else layer("global_avg_pool2d", "mean"))
    parts.append(layer("linear", "out", features=5))
    return parts, '[loss]\ntype = "cross_entropy"\ntarget = "y"\nlabel_smoothing = 0.1'


def sequences(chance):
    length, width = chance.choice([6, 16, 21, 40]), 16
    parts = [f'[inputs.x]\nshape = [{length}]\ndtype = "i32"\nrange = 30',
             f'[inputs.y]\nshape = [{length}]\ndtype = "i32"\nrange = 30',
             layer("embedding", "tok", vocab=30, features=width), layer("position_embedding", "pos")]
    norm, attention = chance.choice(["layer_norm", "rms_norm"]), {"heads": 2, "causal": chance.random() < 0.7}
    if chance.random() < 0.3:
        attention["dropout"] = 0.2
    for i in range(chance.randint(1, 2)):
        parts += [layer("residual", f"mix{i}", layer(norm, "norm"), layer("attention", "attn", **attention)),
                  layer("residual", f"mlp{i}", layer(norm, "norm"),
                        layer("linear", "up", features=32, activation="gelu_tanh"),
                        layer("linear", "down", features=width))]
    parts += [layer(norm, "norm"), layer("linear", "head", features=30, bias=False,
                                         **({"tied": "tok"} if chance.random() < 0.5 else {}))]
    return parts, '[loss]\ntype = "cross_entropy"\ntarget = "y"\nignore_index = -1'


def narrow(chance):
    """Parameters of one element: a layer of one feature, a convolution of one channel, norms over one."""
    if chance.random() < 0.5:
        parts = ["[inputs.x]\nshape = [1, 6, 6]", "[inputs.y]\nshape = [1]",
                 layer("conv2d", "conv", channels=1, kernel=chance.choice([1, 3])),
                 layer("group_norm", "norm", groups=1),
                 layer("conv2d", "point", channels=1, kernel=1), layer("global_avg_pool2d", "mean")]
    else:
        parts = [f"[inputs.x]\nshape = [{chance.choice([1, 4])}]", "[inputs.y]\nshape = [1]",
                 layer("linear", "one", features=1, activation="tanh"),
                 layer(chance.choice(["layer_norm", "rms_norm"]), "norm")]
    loss = chance.choice(["mse", "bce_with_logits"])
    return [*parts, layer("linear", "out", features=1,
                          bias=chance.random() < 0.8)], f'[loss]\ntype = "{loss}"\ntarget = "y"'


def write_model(path, kind, chance, **train):
    layers, loss = kind(chance)
    optimizer = chance.choice(['type = "adamw"\nlr = 0.01\nweight_decay = 0.1',
                               'type = "sgd"\nlr = 0.05\nmomentum = 0.9', 'type = "lamb"\nlr = 0.01'])
    keys = {"require": '"bits"', "tail": chance.choice(['"flush"', '"drop"']), **train}
    if chance.random() < 0.5:
        keys["clip_norm"] = 0.5
    path.write_text("\n".join(['[model]\nname = "m"', *layers, loss, "[train]",
                               *(f"{k} = {v}" for k, v in keys.items()),
                               f"[optimizer]\n{optimizer}"]) + "\n")


def splits(chance, effective, lanes, count):
    """Different ways to train one effective batch; the first is a launch a lane."""
    found = [{"micro_batch": effective // lanes}]
    for _ in range(count - 1):
        micro = chance.choice([m for m in range(1, effective + 1) if effective % m == 0
                               and effective // m % lanes == 0])
        found.append({"micro_batch": micro, "recompute": chance.choice(["none", "all", "sqrt"]),
                      "threads": chance.choice([1, 2, 3]),
                      "ranks": chance.choice([1, lanes]) if lanes > 1 else 1, "shard": chance.random() < 0.3})
    return found


def trained(folder, model, spec, effective, split, device="cpu", **settings):
    """The hash of what a split trains: weights, and what the log says of updates and evaluations."""
    if split.get("ranks", 1) > 1 and split["shard"]:
        settings |= {"train__ranks": split["ranks"], "memory__shard": "optimizer"}
    artifact = harness.compile_model(model, folder / "m.ptx", train__micro_batch=split["micro_batch"],
                                     train__accumulate=effective // split["micro_batch"],
                                     recompute__policy=split.get("recompute", "none"), **settings)
    weights, log = folder / "w.safetensors", folder / "log.jsonl"
    command = [harness.BIN / "gacc-exec", artifact, "--data", spec, "--eval", spec, "--device", device, "--epochs", 2,
               "--seed", 3,
               "--save", weights, "--log", log, *(["--threads", split["threads"]] if "threads" in split
                                                  and device == "cpu" else [])]
    if split.get("ranks", 1) > 1:
        ranks.mpirun(split["ranks"], command)
    else:
        run("gacc-exec", *command[1:])
    kept = [{k: e[k] for k in ("event", "loss", "grad_norm", "samples", "accuracy") if k in e}
            for e in harness.read_log(log)
            if e["event"] in ("update", "eval")]
    expect(len(kept) > 2, "nothing was trained")
    return hashlib.sha256(weights.read_bytes() + repr(kept).encode()).hexdigest()


def check(folder, kind, count, device="cpu", precision="f32"):
    """`count` random splits of random models: one hash a model."""
    for first in range(0, count, OF_A_MODEL):
        chance = random.Random(f"{SEED} {kind.__name__} {device} {precision} {first}")
        effective, lanes = chance.choice([12, 16, 24] if device == "cpu" else [8, 12]), chance.choice([1, 1, 2, 4])
        has_mpi = ranks.MPIRUN and (harness.BIN / "libgacc-mpi.so").exists() and not harness.sanitized()
        model = folder / f"{kind.__name__}{first}.toml"
        write_model(model, kind, chance, lanes=lanes)
        samples = effective * (2 if device == "cpu" else 1) + chance.randint(1, effective - 1)
        spec, hashes = harness.make_data(model, samples, folder), {}
        for split in splits(chance, effective, lanes, min(OF_A_MODEL, count - first)):
            if not has_mpi or device != "cpu":
                split["ranks"] = 1
            hashes.setdefault(trained(folder, model, spec, effective, split, device, precision__compute=precision),
                              []).append(split)
        kept = "" if len(hashes) == 1 else model.read_text()
        expect(len(hashes) == 1,
               f"{len(hashes)} results of effective batch {effective}, {lanes} lanes, {samples} samples:\n"
               + "\n".join(f"{h[:8]} {s}" for h, s in hashes.items()) + "\n" + kept)
        print(f"{kind.__name__} {precision} {device} {first}: {min(OF_A_MODEL, count - first)} splits of {effective} "
              f"samples in {lanes} lanes, one result",
              flush=True)


def test_flat_models(folder):
    check(folder, flat, SPLITS // 3)


def test_images(folder):
    check(folder, images, SPLITS // 3)


def test_parameters_of_one_element(folder):
    for precision in ("f32", "f16"):
        check(folder, narrow, OF_A_MODEL // 2, precision=precision)
    check(folder, narrow, max(2, EMULATED // 3), device="emulate")


def test_sequences(folder):
    check(folder, sequences, SPLITS // 3)


def test_half_precision(folder):
    for kind, precision in ((flat, "f16"), (sequences, "bf16"), (images, "f16")):
        check(folder, kind, max(3, SPLITS // 8), precision=precision)


def test_emulated(folder):
    for kind in (flat, sequences, images):
        check(folder, kind, max(2, EMULATED // 3), device="emulate")


def refused(folder, *said, example="regression", **settings):
    done = run("gaccc", harness.example(example), "-o", folder / "no.ptx", "--set", "train.require=bits", code=1,
               *harness.sets_of(settings))
    for part in said:
        expect(part in done.stderr, f"`{part}` is not in:\n{done.stderr}")


def test_a_million_samples_keep_their_digits(folder):
    """A window's loss and its bias's gradient, of a million equal samples; the same bits however it is split."""
    samples, wanted = 1000000, struct.unpack("f", struct.pack("f", 0.3))[0]
    model = folder / "m.toml"
    model.write_text(harness.model_text(
        layer("linear", "out", features=2, init="zeros", bias_init="zeros"),
        inputs={"x": {"shape": [1]}, "y": {"shape": [2]}}, model={"name": "m"}, loss={"type": "mse", "target": "y"},
        optimizer={"type": "sgd", "lr": 1.0},
        train={"micro_batch": 1, "accumulate": 1, "shuffle": False, "require": "bits"}))
    harness.write_npy(folder / "x.npy", array.array("f", [1.0] * samples), [samples, 1])
    harness.write_npy(folder / "y.npy", array.array("f", [-wanted] * (2 * samples)), [samples, 2])
    found = []
    for micro_batch in (1000, 50000):
        artifact = harness.compile_model(model, folder / "m.ptx", train__micro_batch=micro_batch,
                                         train__accumulate=samples // micro_batch)
        run("gacc-exec", artifact, "--device", "cpu", "--data", f"npy:x={folder / 'x.npy'},y={folder / 'y.npy'}",
            "--log", folder / "log.jsonl", "--save", folder / "w.safetensors")
        loss = harness.updates_of(folder / "log.jsonl")[0]["loss"]
        weights = harness.read_safetensors(folder / "w.safetensors")
        bias = max(abs(value) for value in weights["out.bias"][1])
        # The right answers are those of one sample; 1e-6 is f32's epsilon of the division and of the log.
        expect(abs(loss / wanted**2 - 1) < 1e-6, f"micro_batch {micro_batch}: the loss is {loss}, not {wanted**2}")
        expect(abs(bias / wanted - 1) < 1e-6, f"micro_batch {micro_batch}: the bias's gradient is {bias}, not {wanted}")
        found.append((loss, weights))
    expect(found[0] == found[1], f"the split shows: {found}")


def test_what_cannot_keep_them_is_refused(folder):
    refused(folder, "batch_norm bn1 takes its statistics per micro-batch", example="mnist_cnn")
    refused(folder, "second_moment", example="adam_micro")
    refused(folder, "carry", train__tail="carry")
    refused(folder, "no divisor of `train.accumulate` 10", train__lanes=4)
    refused(folder,
            '`train.micro_batch` is 65537; with "bits", which adds up a launch sample after sample, it is at most '
            '65536',
            train__micro_batch=65537)


harness.main(globals())
