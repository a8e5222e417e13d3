"""The parity cases, and what stored references keep of a trained model. Standard library only.

A case is one model file with settings, trained a few updates in file order from the initial values that
`gacc-exec --init-only --save` writes. live.py compares it in full with ../shared/oracle/oracle.py; stored.py compares
it with references/CASE.json, which make_references.py wrote from the same oracle.

The examples have up to 567,434 weights, too many to commit. So a reference keeps of each tensor a *sketch*: the
elements, each with a fixed random sign, summed into 16 buckets (element i goes to bucket i mod 16). For two tensors
||sketch(a) - sketch(b)||^2 has the expectation ||a - b||^2: the norm-wise difference of the whole tensors is estimated
to within some 20 %, from every element. Tensors of up to 16 elements are kept as they are.
"""
import hashlib
import math
import operator
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
REFERENCES = HERE / "references"
LOSS_BOUND, NORM_BOUND, WEIGHT_BOUND = 1e-5, 1e-4, 1e-4  # relative; weights norm-wise per tensor
BUCKETS = 16


def case(name, model, samples, seed=1, updates=10, bounds=(LOSS_BOUND, NORM_BOUND, WEIGHT_BOUND), windows=(),
         group=None, live=True,
         device="cpu", **settings):
    """`device`: where gacc-exec trains. `windows`: the launches and samples of each window, where the case is about
    them. `group`: the ctest that compares it with its stored reference, one of its own unless said. `live`: also
    compared with the oracle in every run of the tests."""
    return dict(name=name, model=model, samples=samples, seed=seed, updates=updates, bounds=bounds, windows=windows,
                group=group or name, live=live, device=device,
                sets=[f"{k.replace('__', '.')}={v}" for k, v in {"model__seed": seed, **settings}.items()])


def make_cases():
    cases = []
    # A relu or a max-pool whose input is zero but for rounding goes one way here and the other way there, on one of
    # the CPUs (with and without AVX-512) if not on this one, and a high rate makes much of it: these cases learn
    # slowly.
    slowly = dict(optimizer__lr=1e-4)
    for name in harness.EXAMPLE_NAMES:  # 3.3 windows of 4 micro-batches and a bit: the last window and micro-batch are ragged
        cases.append(case(f"{name}-seed1", f"examples/{name}.toml", 426))
    # Convolutions and both batch-norm modes; windows of 21, micro-batches of 7 and a last one of 3.
    for name in ("mnist_cnn", "mnist_resnet"):
        cases.append(case(f"{name}-seed1", f"examples/{name}.toml", 101, bounds=(LOSS_BOUND, 1e-3, 1e-3),
                          train__micro_batch=7, train__accumulate=3, **slowly))
    cases.append(case("mnist_cnn-drop", "examples/mnist_cnn.toml", 60, 5, 4, (LOSS_BOUND, 1e-3, 1e-3),
                      train__tail="drop",
                      train__micro_batch=7, train__accumulate=3))
    for tail in ("flush", "drop", "carry"):
        for name in ("mnist_mlp", "regression"):
            cases.append(case(f"{name}-{tail}", f"examples/{name}.toml", 301, 5, train__tail=tail,
                              train__micro_batch=16, train__accumulate=4, **slowly))
    for name in ("mnist_mlp", "regression"):
        cases.append(case(f"{name}-micro1", f"examples/{name}.toml", 23, 6, train__micro_batch=1, train__accumulate=4))
        cases.append(case(f"{name}-k1", f"examples/{name}.toml", 150, 7, train__micro_batch=32, train__accumulate=1))
    # 1,000 samples, 16 x 4, 3 epochs: 63 launches each, the last window has 3, the last micro-batch 8; 48 updates.
    thousand = dict(train__micro_batch=16, train__accumulate=4, train__epochs=3,
                    windows=3 * (15 * [(4, 64)] + [(3, 40)]))
    assert sum(launches for launches, _ in thousand["windows"]) == 3 * 63
    cases.append(case("regression-thousand", "examples/regression.toml", 1000, 8, 48, **thousand))
    cases.append(case("mnist_mlp-thousand", "examples/mnist_mlp.toml", 1000, 8, 10, **thousand))
    # The update: every optimizer, second moment, schedule; clipping, decay, scaling. Windows of 4, the last of an epoch
    # short, on the smallest model; each case has two or three features that do not hide one another.
    def update(name, **settings):
        settings = dict(train__micro_batch=5, train__accumulate=4, optimizer__lr=0.1, optimizer__type="sgd") | settings
        cases.append(case(f"update-{name}-seed11", "tests/parity/models/update.toml", 94, 11, 12,
                          group=f"update-{name}",
                          **settings))
    update("clip", train__clip_norm=0.05, optimizer__momentum=0.9)
    update("decay", optimizer__weight_decay=0.3, optimizer__momentum=0.8, optimizer__dampening=0.3)
    update("lion", optimizer__type="lion", optimizer__weight_decay=0.1, optimizer__lr=0.001)
    update("nesterov", optimizer__momentum=0.9, optimizer__nesterov="true", optimizer__weight_decay=0.05)
    # Adam and AdamW differ by the decay alone: each has the tails of one kind of second moment.
    tails = ("flush", "carry", "drop")
    for kind, whole, micro in (("adam", tails, tails[:1]), ("adamw", tails[:1], tails)):
        for tail in whole:
            update(f"{kind}-{tail}", optimizer__type=kind, optimizer__weight_decay=0.05, optimizer__betas="[0.8, 0.95]",
                   optimizer__lr=0.01, train__tail=tail)
        for tail in micro:
            update(f"{kind}_micro-{tail}", optimizer__type=kind, optimizer__second_moment="micro",
                   optimizer__weight_decay=0.05,
                   optimizer__betas="[0.8, 0.95]", optimizer__lr=0.01, train__clip_norm=0.2, train__tail=tail)
    update("linear_scaling", optimizer__lr_scaling="linear", optimizer__reference_batch=8)
    update("sqrt_scaling", optimizer__lr_scaling="sqrt", optimizer__reference_batch=80)
    # Groups: the first that matches counts, a group's decay beats `decay`, its factor comes after min_lr.
    groups = dict(train__micro_batch=5, train__accumulate=4, optimizer__lr=0.01, optimizer__weight_decay=0.1,
                  optimizer__decay="matrices",
                  schedule__type="cosine", schedule__warmup=2, schedule__total=9, schedule__min_lr=0.004,
                  optimizer__groups='[{match=["fc2.*"],lr_factor=0.3},{match=["*2.bias","fc1.b*"],weight_decay=0.2,lr=0.03}]')
    for kind, more in (("sgd", {"momentum": 0.9}), ("adam", {}), ("adamw", {}), ("adamw", {"second_moment": "micro"}),
                       ("lion", {}), ("lamb", {})):
        for device in ("cpu", "emulate") if kind == "adamw" and not more else ("cpu",):
            name = "-".join(["update-groups", kind, *map(str, more.values()), *([device] if device != "cpu" else [])])
            cases.append(case(name, "tests/parity/models/update.toml", 94, 11, 12, group="update-groups",
                              live=device != "cpu", device=device,
                              optimizer__type=kind, **{f"optimizer__{k}": v for k, v in more.items()}, **groups))
    for unit in ("updates", "epochs"):
        size = dict(schedule__unit=unit, schedule__warmup=1 if unit == "epochs" else 3)
        update(f"constant-{unit}", schedule__type="constant", **size)
        update(f"step-{unit}", schedule__type="step", schedule__step_size=1 if unit == "epochs" else 2,
               schedule__gamma=0.5, **size)
        update(f"multistep-{unit}", schedule__type="multistep",
               schedule__milestones="[0, 1]" if unit == "epochs" else "[2, 5]",
               schedule__gamma=0.3, **size)
        update(f"exponential-{unit}", schedule__type="exponential", schedule__gamma=0.7, **size)
        for kind in ("linear", "cosine"):  # the end is reached in the run
            update(f"{kind}-{unit}", schedule__type=kind, schedule__total=4 if unit == "epochs" else 9,
                   schedule__min_lr=0.001, **size)
    # Sequence models, in small: windows of 3 + 3 + 2 or fewer samples.
    ragged = dict(train__micro_batch=3, train__accumulate=2)
    def window(length, **names):
        return {f"inputs__{name}__shape": f"[{length}]" for name in names.values()}
    gpt = dict(ragged, layers__tok__features=32, layers__h__repeat=2, layers__h__layers__mlp__layers__up__features=48,
               layers__h__layers__mlp__layers__down__features=32, **window(11, x="bytes", y="next"))
    gpt2 = dict(ragged, layers__wte__features=24, layers__wte__vocab=61, layers__head__features=61, layers__h__repeat=2,
                layers__h__layers__mix__layers__attn__heads=3, layers__h__layers__mlp__layers__fc__features=40,
                layers__h__layers__mlp__layers__proj__features=24, schedule__warmup=3, schedule__total=9,
                **window(9, x="tokens", y="next"))
    # The keys' biases shift all scores of a row alike, so their gradients are rounding noise, which Adam makes full
    # steps of.
    noisy = (LOSS_BOUND, 1e-3, 1e-3)
    cases.append(case("shakespeare_gpt-seed1", "examples/shakespeare_gpt.toml", 20, bounds=noisy, **gpt))
    cases.append(case("gpt2_124m-seed1", "examples/gpt2_124m.toml", 20, bounds=noisy, **gpt2))
    cases.append(case("mixer-seed1", "examples/mixer.toml", 38, train__micro_batch=6, train__accumulate=2))
    cases.append(case("sequence-seed1", "tests/parity/models/sequence.toml", 20, **ragged))
    # The loss in parts: tied heads without and with a bias.
    cases.append(case("gpt2_124m-chunks-seed1", "examples/gpt2_124m.toml", 20, bounds=noisy, loss__chunks=3, **gpt2))
    for seed in (1, 2):
        cases.append(case(f"sequence-chunks-seed{seed}", "tests/parity/models/sequence.toml", 19 + seed, seed,
                          live=seed == 1,
                          loss__chunks=2 + seed, **ragged))
    # Weighted losses and huber: one at a time and on the emulator, with the second moment of launches, in parts of
    # the sequence.
    exact = (1e-5, 1e-5, 1e-5)
    losses = {"class_weights": ({}, dict(loss__label_smoothing=0.0), dict(optimizer__second_moment="micro"),
                                dict(loss__ignore_index=-100)),
              "pos_weight": ({}, dict(loss__pos_weight=2.5)), "huber": ({}, dict(loss__delta=2.0))}
    for name, variants in losses.items():
        for i, variant in enumerate(variants):
            for device in ("cpu", "emulate") if i == 0 else ("cpu",):
                cases.append(case(f"{name}-{device}-{i}", f"tests/parity/models/{name}.toml", 43, 9, bounds=exact,
                                  group=name,
                                  live=i == 0, device=device, **variant))
    for chunks in (1, 3):
        cases.append(case(f"class_weights-chunks{chunks}", "tests/parity/models/sequence.toml", 20, 1, bounds=exact,
                          group="class_weights",
                          live=False, loss__chunks=chunks, loss__class_weights="[2, 0, 0.5, 1, 1, 3, 0.1, 1, 1]",
                          **ragged))
    # Rows with a pitch, also where the loss is done in parts. Its epochs have windows of 18, 18 and 7: the emulator
    # does one.
    for device, updates in (("cpu", 10), ("emulate", 3)):
        for chunks in (1, 2):
            cases.append(case(f"wide_head-{device}-{chunks}", "tests/parity/models/wide_head.toml", 43, 9, updates,
                              bounds=exact, group="wide_head",
                              live=(device, chunks) == ("cpu", 1), device=device, loss__chunks=chunks))
    for path in sorted((HERE / "models").glob("*.toml")):  # what the examples leave out
        if path.stem not in ("update", "sequence", "wide_head", *losses):
            cases.append(case(path.stem, f"tests/parity/models/{path.name}", 90, 9))
    return cases


CASES = {c["name"]: c for c in make_cases()}


# ---------------------------------------------------------------- sketches
SIGNS = []


def signs(count):
    """The first `count` of a fixed sequence of +1.0 and -1.0."""
    while len(SIGNS) < count:
        block = random.Random(len(SIGNS)).getrandbits(1 << 20)
        SIGNS.extend([1.0 if bit == "1" else -1.0 for bit in f"{block:0{1 << 20}b}"])
    return SIGNS


def sketch(values):
    if len(values) <= BUCKETS:
        return list(values)
    s = signs(len(values))
    return [math.fsum(map(operator.mul, values[b::BUCKETS], s[b:len(values):BUCKETS])) for b in range(BUCKETS)]


# ---------------------------------------------------------------- running gacc
def data_digest(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.npy")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def start(case, folder):
    """Makes the data and compiles; returns (SPEC, artifact, initial values' file)."""
    model = harness.ROOT / case["model"]
    spec = harness.make_data(model, case["samples"], folder, seed=case["seed"], sets=case["sets"])
    sets = [word for s in case["sets"] for word in ("--set", s)]
    artifact, initial = folder / "step.ptx", folder / "initial.safetensors"
    harness.run("gaccc", model, *sets, "-o", artifact)
    harness.run("gacc-exec", artifact, "--data", spec, "--init-only", "--save", initial)
    return spec, artifact, initial


def train(case, folder, spec, artifact, initial):
    """Trains; returns (losses, gradient norms, weights' file). The log's update events are in folder/log.jsonl."""
    log, final = folder / "log.jsonl", folder / "final.safetensors"
    epochs = next((s.split("=")[1] for s in case["sets"] if s.startswith("train.epochs=")), "1000")
    harness.run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--device", case["device"], "--epochs", epochs,
                "--updates", case["updates"],
                "--load", initial, "--log", log, "--save", final)
    events = harness.updates_of(log)
    harness.expect(len(events) == case["updates"], f"{len(events)} updates, expected {case['updates']}")
    harness.expect(not any(e["skipped"] for e in events), "an update was skipped")
    for event, (launches, samples) in zip(events, case["windows"]):
        harness.expect((event["launches"], event["samples"]) == (launches, samples),
                       f"update {event['update']}: {event['launches']} launches, {event['samples']} samples; expected "
                       f"{launches}, {samples}")
    return [e["loss"] for e in events], [e["grad_norm"] for e in events], final


def far(got, reference):
    """Largest relative difference of two lists of numbers."""
    if any(g is None or not math.isfinite(g) for g in got):
        return math.inf
    return max(abs(g - r) / max(abs(r), 1e-6) for g, r in zip(got, reference, strict=True))


def judge(case, loss, grad_norm, weights, who):
    print(f"{case['name']}: {case['updates']} updates, largest relative difference: loss {loss:.2e}, "
          f"grad_norm {grad_norm:.2e}, weights {weights:.2e} ({who})")
    bounds = case["bounds"]
    if loss > bounds[0] or grad_norm > bounds[1] or weights > bounds[2]:
        sys.exit(f"past the bounds {bounds}")
