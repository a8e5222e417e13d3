"""The accuracy that the project promises, on real MNIST where it is found: each of 3 seeds reaches 94.5 % after 2
epochs and 96.7 % after 5 (PyTorch gives 95.1-96.5 with this recipe after 2); in f16 and bf16 it reaches that of f32
less 0.3 points."""
import json
import os
import pathlib

import harness
from harness import expect, run


def accuracies(folder, epochs, **settings):
    """epoch -> accuracy on the test images, of examples/mnist_mlp.toml."""
    places = [pathlib.Path(os.environ["GACC_DATA"]) / "mnist"] if "GACC_DATA" in os.environ else []
    mnist = next((p for p in [*places, harness.ROOT.parent / "shared/data/mnist"]
                  if list(p.glob("train-images-idx3-ubyte*"))), None)
    if mnist is None:
        harness.skip("no MNIST in GACC_DATA/mnist or ../shared/data/mnist")
    artifact, log = harness.compile_model(harness.example("mnist_mlp"), folder / "step.ptx",
                                          **settings), folder / "log.jsonl"
    run("gacc-exec", artifact, "--data", f"mnist:{mnist},split=train", "--eval", f"mnist:{mnist},split=test",
        "--epochs", epochs,
        "--log", log, timeout=600)
    return {e["epoch"]: e["accuracy"] for e in harness.read_log(log) if e["event"] == "eval"}


def train(folder, seed):
    accuracy = accuracies(folder, 5, model__seed=seed)
    print(f"seed {seed}: " + ", ".join(f"{100 * a:.2f} % after {e}" for e, a in sorted(accuracy.items())))
    expect(accuracy[2] >= 0.945, f"{accuracy[2]} after 2 epochs")
    expect(accuracy[5] >= 0.967, f"{accuracy[5]} after 5 epochs")
    return accuracy[2]


def test_seed_2(folder):
    train(folder, 2)


def test_seed_3(folder):
    train(folder, 3)


def test_seed_1_in_every_precision(folder):
    """docs/training.md has three seeds."""
    accuracy = {"f32": train(folder, 1)} | {c: accuracies(folder, 2, model__seed=1, precision__compute=c)[2]
                                            for c in ("f16", "bf16")}
    print(", ".join(f"{c} {100 * a:.2f} %" for c, a in accuracy.items()))
    for c in ("f16", "bf16"):
        expect(accuracy[c] >= accuracy["f32"] - 0.003, f"{c}: {accuracy}")


def test_the_batch_that_fits(folder):
    """Micro-batch, accumulation and recompute chosen for 12 MiB: as accurate as the same effective batch unsplit."""
    fits = {"train__effective_batch": 4096, "train__micro_batch": "auto", "train__accumulate": "auto",
            "memory__budget": "12MiB"}
    told = run("gaccc", harness.example("mnist_mlp"), "--plan", "--json", *harness.sets_of(fits))
    plan = json.loads(told.stdout)
    expect(told.stderr.startswith("effective batch 4096 in 12.00 MiB") and "\n  -> " in told.stderr, told.stderr)
    expect(plan["bytes"]["peak"] <= 12 << 20 and plan["micro_batch"] * plan["accumulate"] == 4096, f"{plan}")
    chosen = accuracies(folder, 5, **fits)[5]
    whole = accuracies(folder, 5, train__micro_batch=4096, train__accumulate=1)[5]
    print(f"{plan['micro_batch']} x {plan['accumulate']}: {100 * chosen:.2f} %, unsplit {100 * whole:.2f} %")
    expect(whole > 0.85 and abs(chosen - whole) <= 0.003, f"{chosen} against {whole}")


harness.main(globals())
