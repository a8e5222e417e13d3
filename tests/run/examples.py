"""Every example compiles, trains, evaluates, saves and loads; the log has the fields and figures the contract
states."""
import json
import math

import harness
from harness import expect, run

UPDATE = {"event", "epoch", "update", "launches", "samples", "loss", "lr", "loss_scale", "skipped", "grad_norm",
          "effective_batch", "seconds"}
START = {"event", "model", "device", "micro_batch", "accumulate", "effective_batch", "arena_bytes", "parameters"}
EPOCH = {"event", "epoch", "loss", "updates", "skipped", "samples", "seconds"}
END = {"event", "epochs", "updates", "skipped", "samples", "seconds", "peak_bytes"}
BYTES = {"weights", "half_weights", "gradients", "optimizer", "activations", "workspace", "inputs", "peak",
         "lower_bound"}


def train(name, folder, because=()):
    model, artifact, log = harness.example(name), folder / "step.ptx", folder / "log.jsonl"
    plan = json.loads(run("gaccc", model, "-o", artifact, "--plan", "--json").stdout)
    samples = 5 * plan["effective_batch"] + plan["micro_batch"] + 3  # two epochs with a ragged tail
    spec = harness.make_data(model, samples, folder)
    run("gacc-exec", artifact, "--data", spec, "--eval", spec, "--epochs", 2, "--log", log, "--save",
        folder / "weights.safetensors")
    events = harness.read_log(log)
    starts, updates, epochs, evals, ends = ([e for e in events if e["event"] == k]
                                            for k in ("start", "update", "epoch", "eval", "end"))

    # the plan is what runs
    expect(len(starts) == len(ends) == 1 and START <= set(starts[0]) and END <= set(ends[0]), "start and end events")
    expect(set(plan["bytes"]) >= BYTES, f"the plan's bytes: {sorted(plan['bytes'])}")
    expect(starts[0]["arena_bytes"] == plan["bytes"]["peak"], "the arena is as large as the plan says")
    expect(plan["bytes"]["lower_bound"] <= plan["bytes"]["peak"], "no plan is below its lower bound")
    expect(starts[0]["parameters"] == plan["parameters"], "parameters")
    tensors = harness.read_safetensors(folder / "weights.safetensors")
    kept = [len(v) for key, (_, v) in tensors.items() if not key.endswith((".running_mean", ".running_var"))]
    expect(sum(kept) == plan["parameters"], "every parameter is saved")
    expect(plan["equivalence"] == ({"exact": False, "because": list(because)} if because else {"exact": True}),
           "the verdict")

    # the log adds up
    expect(all(UPDATE <= set(e) for e in updates) and all(EPOCH <= set(e) for e in epochs),
           "fields of updates and epochs")
    expect([e["update"] for e in updates] == list(range(1, len(updates) + 1)), "windows are counted from 1")
    launches = -(-samples // plan["micro_batch"])
    expect(len(updates) == 2 * -(-launches // plan["accumulate"]), f"{len(updates)} updates")
    expect(sum(e["launches"] for e in updates) == 2 * launches, "launches")
    expect(sum(e["samples"] for e in updates) == 2 * samples == ends[0]["samples"], "samples")
    expect(all(math.isfinite(e["loss"]) and e["grad_norm"] > 0 and not e["skipped"] for e in updates),
           "losses and norms")
    expect([e["epoch"] for e in epochs] == [1, 2], "epochs are counted from 1")
    for epoch in epochs:
        of_it = [e for e in updates if e["epoch"] == epoch["epoch"]]
        mean = sum(e["loss"] * e["samples"] for e in of_it) / samples
        expect(abs(mean - epoch["loss"]) <= 1e-4 * abs(mean),
               f"mean loss of epoch {epoch['epoch']}: {epoch['loss']}, its updates give {mean}")
    expect(len(evals) >= 2 and all(e["samples"] == samples for e in evals), "an evaluation after every epoch")
    expect(all(0 <= e["accuracy"] <= 1 for e in evals if "accuracy" in e), "accuracy is 0..1")
    expect(epochs[1]["loss"] < epochs[0]["loss"], f"it learns: {[e['loss'] for e in epochs]}")

    # what was saved is what was evaluated
    run("gacc-exec", artifact, "--data", spec, "--init-only", "--load", folder / "weights.safetensors", "--save",
        folder / "again.safetensors")
    expect((folder / "again.safetensors").read_bytes() == (folder / "weights.safetensors").read_bytes(),
           "load and save change nothing")


def test_small_networks(folder):
    for name in harness.EXAMPLE_NAMES:
        train(name, folder)


def test_sequences(folder):
    for name in ("mixer", "shakespeare_gpt"):
        train(name, folder)


def test_mnist_cnn(folder):
    train("mnist_cnn", folder, [f"batch_norm bn{i} takes its statistics per micro-batch" for i in (1, 2)])
    names = harness.read_safetensors(folder / "weights.safetensors")
    expect({"bn1.running_mean", "bn2.running_var"} <= set(names) and not any("change" in n for n in names),
           f"statistics are saved: {list(names)}")


def test_mnist_resnet(folder):
    train("mnist_resnet", folder)


def test_generated_digits_can_be_learned(folder):
    """synthetic:digits is a set a user can learn on: far better than chance after one epoch, also on digits not
    seen."""
    artifact, log = harness.compile_model(harness.example("mnist_mlp"), folder / "step.ptx"), folder / "log.jsonl"
    run("gacc-exec", artifact, "--data", "synthetic:digits,limit=8000", "--eval",
        "synthetic:digits,split=test,limit=2000",
        "--epochs", 2, "--log", log)
    accuracy = [e["accuracy"] for e in harness.read_log(log) if e["event"] == "eval"][-1]
    expect(accuracy > 0.5, f"accuracy {accuracy} after two epochs of generated digits")


harness.main(globals())
