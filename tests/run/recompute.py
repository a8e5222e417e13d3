"""Recompute changes no bit, and the arena is what the plan says: on the CPU, through whole commands.

    recompute.py test_random_cases         15 random (model, plan, precision) cases
    recompute.py --cases N [--from SEED]   any number of them, with a line each
"""
import json
import random
import re
import sys
import tempfile
import pathlib

import harness
from harness import expect, layer, plan_of, run

PRECISIONS = ["f32", "f16", "bf16"]


def gradients(folder, name, model, spec, *options, device="cpu", updates=3):
    """The bytes of the last window's gradients and of the weights, and the arena that was allocated. More windows
    than one: with the initial weights, ones and zeros among them, many roundings are exact."""
    artifact, log = folder / f"{name}.ptx", folder / f"{name}.jsonl"
    out, weights = folder / f"{name}.safetensors", folder / f"{name}.weights.safetensors"
    run("gaccc", model, "-o", artifact, *options)
    run("gacc-exec", artifact, "--device", device, "--data", spec, "--updates", updates, "--epochs", 1000,
        "--no-shuffle",
        "--dump-grads", out, "--save", weights, "--log", log, "--quiet")
    return out.read_bytes() + weights.read_bytes(), harness.read_log(log)[0]["arena_bytes"]


def budgets_of(model, *options):
    """Budgets between the least that is possible and what policy none needs."""
    most = plan_of(model, *options)["bytes"]["peak"]
    done = run("gaccc", model, "--plan", "--set", "recompute.policy=budget", "--set", "recompute.budget=1B", *options,
               code=1)
    number, unit = re.search(r"needs at least ([0-9.]+) (B|KiB|MiB)", done.stderr).groups()
    return int(float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]), most


def check(folder, model, spec, *options, choices, **how):
    """Compiles `model` without recompute and with each of `choices`; all gradients must be equal. Returns clones."""
    plain, _ = gradients(folder, "plain", model, spec, *options, **how)
    clones = 0
    for choice in choices:
        plan = plan_of(model, *options, *choice)
        got, arena = gradients(folder, "other", model, spec, *options, *choice, **how)
        expect(got == plain, f"{model.name} {options} {choice}: the gradients differ from those of policy none")
        expect(arena == plan["bytes"]["peak"], f"{model.name} {choice}: the plan says {plan['bytes']['peak']}, "
                                               f"the runtime allocates {arena}")
        recompute = plan["recompute"]
        expect(recompute["gap"] >= 0 and recompute["overhead"] >= recompute["overhead_lower_bound"], f"{recompute}")
        clones += recompute["recomputed_ops"]
    return clones


def test_half_needs_no_more(folder):
    """Under every policy a step in half takes at most what it takes in f32, and its half weights."""
    large = ("gpt2_hf", "llama")  # minutes; the golden half_copies of the pass recompute shows their kind
    for model in sorted(harness.EXAMPLES.glob("*.toml")):
        for policy in ("none", "all", "sqrt") if not model.name.startswith(large) else ():
            sizes = {precision: plan_of(model, "--set", f"precision.compute={precision}",
                                        "--set", f"recompute.policy={policy}")["bytes"] for precision in PRECISIONS}
            for half in PRECISIONS[1:]:
                most = sizes["f32"]["peak"] + sizes[half]["half_weights"]
                expect(sizes[half]["peak"] <= most, f"{model.name} {half} {policy}: {sizes[half]}, at most {most}")
    plan = plan_of(harness.example("gpt2_124m"), "--set", "recompute.policy=all", "--set", "precision.compute=f16")
    expect(plan["bytes"]["peak"] <= 2_460_000_000, f"gpt2_124m in f16 needs {plan['bytes']} when all is made again")


def test_what_would_fit(folder):
    """A budget of the recompute policy alone is too small: what is needed, proven, and what fits."""
    model = harness.example("residual_mlp")
    options = ["--set", "train.micro_batch=64", "--set", "recompute.policy=budget"]
    told = run("gaccc", model, "--plan", *options, "--set", "recompute.budget=4.75MiB", code=1).stderr
    found = re.search(r"needs at least [0-9.]+ MiB with micro_batch 64 \(proven\); micro_batch ([0-9]+) fits", told)
    expect(found, told)
    fits = ["--set", f"train.micro_batch={found[1]}", "--set", "recompute.budget=4.75MiB"]
    expect(plan_of(model, *options, *fits)["bytes"]["peak"] <= 19 << 18, f"micro_batch {found[1]} does not fit")
    told = run("gaccc", model, "--plan", *options, "--set", "recompute.budget=4MiB", code=1).stderr
    expect(re.search(r"; micro_batch 1 needs at least [0-9.]+ MiB \(proven\)", told), told)


def test_rows_with_a_pitch(folder):
    """Logits of 1,001 classes lie 1,024 apart: gradients keep their bits whatever is made again and however it is
    launched, and CPU and emulator agree; micro-batches of 6 and, at an epoch's end, of 1."""
    model = harness.ROOT / "tests/parity/models/wide_head.toml"
    spec = harness.make_data(model, 13, folder)
    again = [["--set", "recompute.policy=all", "--set", f"loss.chunks={chunks}"] for chunks in (1, 3)]
    for precision, near in (("f32", 1e-6), ("f16", 2e-3), ("bf16", 2e-2)):
        options = ["--set", f"precision.compute={precision}"]
        expect("1001 in 1024" in run("gaccc", model, *options, "--emit", "ir", "-o", "-").stdout, "no pitch")
        check(folder, model, spec, *options, choices=again[:1])
        if precision != "bf16":  # whose kernels are those of f16, of another type
            check(folder, model, spec, *options, "--set", "launch.mode=persistent", device="emulate", updates=1,
                  choices=[again[0], ["--set", "launch.mode=graph"]])
        found = {}
        for device in ("cpu", "emulate"):
            gradients(folder, device, model, spec, *options, device=device, updates=1)
            found[device] = harness.read_safetensors(folder / f"{device}.weights.safetensors")
        for name, (_, values) in found["cpu"].items():
            other = found["emulate"][name][1]
            off = harness.norm([a - b for a, b in zip(values, other)]) / harness.norm(values)
            expect(off <= near, f"{precision}: {name} differs by {off}")
        chunked, _ = gradients(folder, "chunked", model, spec, *options, *again[1])
        expect(len(chunked) > 0, "the loss in parts runs")


def choices_for(model, chance, count, *options):
    least, most = budgets_of(model, *options)
    choices = []
    for _ in range(count):
        budget = least + int((most - least) * chance.choice([0.9, 0.7, 0.5, 0.3]))
        choice = ["--set", "recompute.policy=budget", "--set", f"recompute.budget={budget}B"]
        if run("gaccc", model, "--plan", *options, *choice, code=(0, 1)).returncode == 0:
            choices.append(choice)
    return choices


def test_examples(folder):
    """Every example, every policy; micro-batches large enough that activations matter."""
    for name in harness.EXAMPLE_NAMES:
        model = harness.example(name)
        spec = harness.make_data(model, 200, folder)
        options = ["--set", "train.micro_batch=64"]
        policies = [["--set", f"recompute.policy={policy}"] for policy in ("all", "sqrt", "marked")]
        check(folder, model, spec, *options, choices=policies + choices_for(model, random.Random(1), 1, *options))


def test_marked_layers(folder):
    model = harness.example("residual_mlp")
    spec = harness.make_data(model, 200, folder)
    marked = ["--set", "recompute.policy=marked", "--set", "layers.blocks.recompute=true"]
    clones = check(folder, model, spec, "--set", "train.micro_batch=64", choices=[marked])
    expect(clones > 0, "a marked block is made again")
    text = run("gaccc", model, *marked, "--emit", "ir", "-o", "-").stdout
    segments = {line.split("seg(")[1].split(")")[0] for line in text.splitlines() if "remat(" in line}
    expect(segments >= {"0", "1", "2"}, f"each copy of the block is a segment of its own, not {segments}")


def test_a_segment_is_made_again_once(folder):
    """A segment's inputs are kept, also where the backward pass itself does not read it; so nothing is made again
    twice, and the memory that the segments' insides took is free."""
    model = harness.example("shakespeare_gpt")
    for precision in PRECISIONS:
        options = ["--set", f"precision.compute={precision}"]
        most = plan_of(model, *options)["bytes"]["peak"]
        for policy in ("all", "sqrt"):
            chosen = [*options, "--set", f"recompute.policy={policy}"]
            text = run("gaccc", model, *chosen, "--emit", "ir", "-o", "-").stdout
            again = [line.split("remat(")[1].split(")")[0] for line in text.splitlines() if "remat(" in line]
            expect(len(again) > 50 and len(again) == len(set(again)),
                   f"{precision}, {policy}: {len(again)} clones of {len(set(again))} ops")
            peak = plan_of(model, *chosen)["bytes"]["peak"]
            expect(peak < 0.9 * most, f"{precision}, {policy}: {peak} bytes, {most} without recompute")


def chosen_batch(model, batch, budget, *options):
    """The micro-batch that gaccc takes for a budget; none that it has a time for is faster."""
    auto = [word for key, value in (("micro_batch", "auto"), ("accumulate", "auto"), ("effective_batch", batch))
            for word in ("--set", f"train.{key}={value}")]
    done = run("gaccc", model, *auto, "--memory", budget, "--set", "recompute.policy=budget", "--plan", "--json",
               *options)
    times, chosen = {}, None
    for line in done.stderr.splitlines():
        row = re.match(r"  (->|  ) (\d+) x (\d+): ([\d.]+) (\S+) an update", line)
        if row:
            times[int(row[2])] = float(row[4]) * {"s": 1, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6}[row[5]]
        if line.startswith("  ->"):
            chosen = int(line.split()[1])
    expect(chosen == json.loads(done.stdout)["micro_batch"] and chosen in times, done.stderr)
    expect(times[chosen] == min(times.values()), done.stderr)
    return chosen


def test_the_choice_is_the_fastest_that_fits(folder):
    """The micro-batches that gaccc names are those that it takes."""
    taken = {chosen_batch(harness.example("residual_mlp"), 4096, budget)
             for budget in ("5MiB", "8MiB", "24MiB", "96MiB")}
    expect(len(taken) > 1, f"every budget takes {taken}")
    # Neither the largest nor the smallest micro-batch is the fastest.
    expect(chosen_batch(harness.example("gpt2_124m"), 64, "8GiB", "--set", "precision.compute=f16") == 16,
           "gpt2_124m in 8 GiB")


# ---------------------------------------------------------------- layers of other families
def classifier(shape, *layers):
    return harness.classifier("family", shape, 3, (*layers, layer("linear", features=3)),
                              train="micro_batch = 16\naccumulate = 3", seed=4)


# Statistics of the micro-batch and their effects; reshapes of what is made again.
BATCH_NORM = classifier([2, 6, 6], layer("conv2d", channels=4, kernel=3), layer("batch_norm"),
                        layer("activation", fn="relu"), layer("global_avg_pool2d"))
# Sums over a row in a kernel with much other work.
LAYER_NORM = classifier([16], layer("linear", features=300), layer("layer_norm"), layer("activation", fn="tanh"),
                        layer("linear", features=6))
# Masks that must come out the same when they are made again.
MIX = layer("residual", layer("layer_norm"), layer("attention", heads=2, causal=True), layer("dropout", p=0.25),
            name="mix", recompute=True)
ATTENTION = classifier([6, 8], MIX, layer("dropout", p=0.25), layer("flatten"))


def family(folder, text, policies, precisions=PRECISIONS, options=(), samples=50, **how):
    model = folder / "family.toml"
    model.write_text(text)
    spec = harness.make_data(model, samples, folder)
    for precision in precisions:
        chosen = [*options, "--set", f"precision.compute={precision}"]
        choices = [["--set", f"recompute.policy={policy}"] for policy in policies]
        budgets = choices_for(model, random.Random(3 if how else 2), 1, *chosen)
        expect(budgets or not how, f"{precision}: no budget")
        clones = check(folder, model, spec, *chosen, choices=choices + budgets, **how)
        expect(clones > 0, f"{precision}: nothing was made again")


def test_a_norm_made_again_in_a_larger_kernel(folder):
    """Forward and backward sum the same row in kernels of different sizes."""
    family(folder, LAYER_NORM, ["all", "sqrt"])


def test_batch_norm(folder):
    family(folder, BATCH_NORM, ["all", "sqrt"])


def test_attention_and_dropout(folder):
    family(folder, ATTENTION, ["all", "marked"])


# ---------------------------------------------------------------- the GPU's kernels
def emulated(folder, text, precisions):
    """Every policy on the emulator, which runs the artifact's PTX."""
    smaller = ("--set", "train.micro_batch=4", "--set", "train.accumulate=2")
    family(folder, text, ["all", "sqrt", "marked"], precisions, smaller, 16, device="emulate", updates=2)


def test_emulated_attention_and_dropout_f32(folder):
    emulated(folder, ATTENTION, ["f32"])


def test_emulated_attention_and_dropout_f16(folder):
    emulated(folder, ATTENTION, ["f16"])


def test_emulated_batch_norm_bf16(folder):
    emulated(folder, BATCH_NORM, ["bf16"])


# ---------------------------------------------------------------- random models
def random_model(chance):
    """A small stack over [12] or [5, 12]: linear layers, activations, norms, dropout, attention, residual blocks."""
    shape = chance.choice([[12], [5, 12]])
    seed, layers = chance.randrange(1000), []

    def drawn():
        kinds = ["linear", "linear", "activation", "layer_norm", "rms_norm", "softmax", "dropout"]
        kind, keys = chance.choice(kinds + ["attention"] * (shape != [12])), {}
        if kind == "linear":
            keys = {"features": 12, "activation": chance.choice(harness.activations())}
        if kind == "activation":
            keys = {"fn": chance.choice(harness.activations())}
        if kind == "dropout":
            keys = {"p": chance.choice([0.1, 0.5])}
        if kind == "attention":
            keys = {"heads": chance.choice([1, 3]), "causal": chance.choice([True, False]),
                    "dropout": chance.choice([0.0, 0.2])}
        return layer(kind, **keys, **marked(0.4))

    def marked(often):
        return {"recompute": True} if chance.random() < often else {}

    for _ in range(chance.randrange(2, 6)):
        if chance.random() < 0.4:
            keys = marked(0.5)
            layers.append(layer("residual", *(drawn() for _ in range(chance.randrange(1, 4))), **keys))
        else:
            layers.append(drawn())
    return harness.model_text(
        *layers, layer("linear", features=12), model={"name": "random", "seed": seed},
        inputs={"x": {"shape": shape}, "y": {"shape": shape}}, loss={"type": "mse", "target": "y"},
        train={"micro_batch": chance.choice([16, 64, 200]), "accumulate": 3}, optimizer={"type": "sgd"})


def one_case(folder, seed):
    chance = random.Random(seed)
    model = folder / "model.toml"
    model.write_text(random_model(chance))
    spec = harness.make_data(model, 150, folder, seed)
    precision = PRECISIONS[seed % len(PRECISIONS)]
    options = ["--set", f"precision.compute={precision}"]
    policy = chance.choice(["all", "sqrt", "marked", "budget", "budget"])
    if policy == "budget":
        choices = choices_for(model, chance, 1, *options)
    else:
        choices = [["--set", f"recompute.policy={policy}"]]
    clones = check(folder, model, spec, *options, choices=choices)
    return f"case {seed}: {precision}, {' '.join(choices[0][1::2]) if choices else 'no plan'}: {clones} ops again, equal"


def test_random_cases(folder):
    for seed in range(15):
        one_case(folder, seed)


def test_more_memory_never_takes_longer(folder):
    """Budgets from the least to the most, through the joint choice: the time of an update by the model never grows."""
    model = harness.example("residual_mlp")
    options = ["--set", "train.micro_batch=auto", "--set", "train.accumulate=auto", "--set", "train.effective_batch=64"]
    before = None
    for kib in range(5000, 6400, 200):
        done = run("gaccc", model, "--plan", "--memory", f"{kib}KiB", *options, code=(0, 1))
        if done.returncode == 1:
            expect(before is None, f"{kib} KiB does not fit, less did")
            expect("does-not-fit" in done.stderr, done.stderr)
            continue
        chosen = next(line for line in done.stderr.splitlines() if "->" in line)
        number, unit = chosen.split(": ")[1].split()[:2]
        seconds = float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]
        expect(before is None or seconds <= before, f"{kib} KiB takes {seconds} s, less took {before} s")
        before = seconds
    expect(before is not None, "some budget fits")


if __name__ == "__main__":
    if "--cases" in sys.argv:
        first = int(sys.argv[sys.argv.index("--from") + 1]) if "--from" in sys.argv else 0
        for seed in range(first, first + int(sys.argv[sys.argv.index("--cases") + 1])):
            with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
                print(one_case(pathlib.Path(folder), seed), flush=True)
    else:
        harness.main(globals())
