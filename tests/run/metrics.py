"""f1, auc, balanced_accuracy and the confusion matrix are exact over the whole evaluation, however it is cut, and class
weights are what they are called."""
import array
import json
import math
import random

import harness
import ranks
from harness import expect, run

METRICS = ["accuracy", "f1", "balanced_accuracy"]


def rows_of(path):
    """The f32 numbers of an npy file, in rows."""
    (_, *shape), numbers = harness.read_npy(path)
    each = math.prod(shape)
    return [list(numbers[i:i + each]) for i in range(0, len(numbers), each)]


def model(classes, metrics, train="micro_batch = 4", layers=None):
    layers = layers or harness.layer("linear", features=classes)
    text = harness.classifier("judged", [3], classes, layers, train=train, seed=3)
    return text.replace("seed = 3", f"seed = 3\nmetrics = {json.dumps(metrics)}")


def draw(folder, samples, classes, seed, ignored=False):
    """x and y files, with labels that are drawn unevenly; returns the SPEC and the labels."""
    chance = random.Random(seed)
    labels = [min(int(chance.expovariate(1.5) * classes / 2), classes - 1) for _ in range(samples)]
    if ignored:
        labels[::5] = [-100] * len(labels[::5])
    digits = 0 if classes == 2 else 1  # many samples are equal, so that scores are
    numbers = [round(chance.gauss(max(label, 0) / classes, 1), digits) for label in labels for _ in range(3)]
    harness.write_npy(folder / "x.npy", array.array("f", numbers), [samples, 3])
    harness.write_npy(folder / "y.npy", array.array("i", labels), [samples])
    return f"npy:x={folder / 'x.npy'},y={folder / 'y.npy'}", labels


def reference(targets, answers, classes):
    """f1 and balanced accuracy as scikit-learn's f1_score (binary, or macro) and balanced_accuracy_score say."""
    matrix = [[sum(t == row and a == column for t, a in zip(targets, answers)) for column in range(classes)]
              for row in range(classes)]
    hits = [matrix[c][c] for c in range(classes)]
    wanted, given = [sum(row) for row in matrix], [sum(row[c] for row in matrix) for c in range(classes)]
    f1 = [2 * hits[c] / (wanted[c] + given[c]) if wanted[c] + given[c] else 0.0 for c in range(classes)]
    there = [c for c in range(classes) if wanted[c] + given[c]]
    recalls = [hits[c] / wanted[c] for c in range(classes) if wanted[c]]
    return {"f1": f1[1] if classes == 2 else sum(f1[c] for c in there) / len(there),
            "balanced_accuracy": sum(recalls) / len(recalls)}, matrix


def area(scores, positives):
    """The part of the pairs that a score puts in order, pair by pair."""
    pairs = [(a > b) + (a == b) / 2 for a, p in zip(scores, positives) if p
             for b, n in zip(scores, positives) if not n]
    return sum(pairs) / len(pairs)


def evaluated(folder, artifact, spec, *words):
    run("gacc-exec", artifact, "--eval", spec, "--load", folder / "w", "--log", folder / "log.jsonl", *words)
    return next(e for e in harness.read_log(folder / "log.jsonl") if e["event"] == "eval")


def check(found, wanted, what):
    for name, value in wanted.items():
        expect(abs(found[name] - value) < 1e-12, f"{what}: {name} is {found[name]}, should be {value}")


def test_classes(folder):
    """Two, five and 25 classes, ragged, in lanes, with ignored targets; the matrix up to 20 classes."""
    for classes, ignored in ((2, False), (5, False), (5, True), (25, False)):
        spec, labels = draw(folder, 103, classes, seed=classes, ignored=ignored)
        metrics = [*METRICS, *(["auc"] if classes == 2 else [])]
        for micro_batch, lanes in ((8, 1), (7, 4), (103, 1)):
            train = f"micro_batch = {micro_batch}\naccumulate = 4\nlanes = {lanes}"
            artifact = harness.compile_text(folder, model(classes, metrics, train))
            run("gacc-exec", artifact, "--data", spec, "--updates", 2, "--save", folder / "w", "--no-shuffle")
            run("gacc-exec", artifact, "--data", spec, "--load", folder / "w", "--predict", folder / "p.npy")
            logits = rows_of(folder / "p.npy")
            counted = [i for i, label in enumerate(labels) if label >= 0]
            targets = [labels[i] for i in counted]
            answers = [max(range(classes), key=lambda c: logits[i][c]) for i in counted]
            wanted, matrix = reference(targets, answers, classes)
            if classes == 2:
                wanted["auc"] = area([logits[i][1] - logits[i][0] for i in counted], targets)
            for device in ("cpu", "emulate"):
                found = evaluated(folder, artifact, spec, "--device", device)
                check(found, wanted, f"{classes} classes, {micro_batch} x 4, {lanes} lanes, {device}")
                expect(found.get("confusion", matrix) == matrix and ("confusion" in found) == (classes <= 20), found)


def test_every_answer_of_a_predict(folder):
    """--predict over labels measures the same beside it, and prints the matrix."""
    spec, _ = draw(folder, 50, 3, seed=9)
    artifact = harness.compile_text(folder, model(3, METRICS))
    run("gacc-exec", artifact, "--data", spec, "--updates", 3, "--save", folder / "w")
    found = evaluated(folder, artifact, spec)
    done = run("gacc-exec", artifact, "--data", spec, "--load", folder / "w", "--predict", folder / "p.csv")
    expect(f"f1 {found['f1']:.6g}" in done.stderr, done.stderr)
    expect("confusion (rows: targets, columns: answers)\n" in done.stderr, done.stderr)
    expect(all(f"{number}" in done.stderr for row in found["confusion"] for number in row), done.stderr)


def test_yes_and_no(folder):
    """bce_with_logits: of one output the matrix, of several the elements of all together; half precision and bits."""
    for outputs in (1, 3):
        text = harness.model_text(harness.layer("linear", features=outputs),
                                  inputs={"x": {"shape": [3]}, "y": {"shape": [outputs]}},
                                  model={"name": "m", "metrics": ["f1", "auc", "balanced_accuracy"]},
                                  loss={"type": "bce_with_logits", "target": "y"},
                                  train={"micro_batch": 8, "accumulate": 2}, optimizer={"type": "sgd", "lr": 0.1})
        chance = random.Random(outputs)
        labels = [float(chance.random() < 0.3) for _ in range(61 * outputs)]
        harness.write_npy(folder / "x.npy", array.array("f", [chance.gauss(0, 1) for _ in range(183)]), [61, 3])
        harness.write_npy(folder / "y.npy", array.array("f", labels), [61, outputs])
        spec = f"npy:x={folder / 'x.npy'},y={folder / 'y.npy'}"
        for more in ({}, {"precision__compute": "f16"}, {"train__require": "bits"}):
            artifact = harness.compile_text(folder, text, **more)
            run("gacc-exec", artifact, "--data", spec, "--updates", 2, "--save", folder / "w")
            run("gacc-exec", artifact, "--data", spec, "--load", folder / "w", "--predict", folder / "p.npy")
            scores = [score for row in rows_of(folder / "p.npy") for score in row]
            wanted, matrix = reference([int(label) for label in labels], [int(score > 0) for score in scores], 2)
            for device in ("cpu", "emulate"):
                found = evaluated(folder, artifact, spec, "--device", device)
                check(found, wanted | {"auc": area(scores, labels)}, f"{outputs} outputs, {more}, {device}")
                expect(found["confusion"] == matrix, found)


def test_sequences_on_ranks(folder):
    """A target for each of five positions, in lanes, on one rank and on two: the same numbers."""
    classes, samples = 4, 37
    chance = random.Random(8)
    labels = [-100 if chance.random() < 0.2 else min(int(chance.expovariate(1)), 2) for _ in range(5 * samples)]
    harness.write_npy(folder / "x.npy", array.array("f", [chance.gauss(0, 1) for _ in range(15 * samples)]),
                      [samples, 5, 3])
    harness.write_npy(folder / "y.npy", array.array("i", labels), [samples, 5])
    spec = f"npy:x={folder / 'x.npy'},y={folder / 'y.npy'}"
    text = harness.classifier("m", [5, 3], classes, harness.layer("linear", features=classes),
                              train="micro_batch = 4\naccumulate = 2\nlanes = 2", seed=3)
    text = text.replace("seed = 3", f"seed = 3\nmetrics = {json.dumps(METRICS)}")
    text = text.replace("[inputs.y]", "[inputs.y]\nshape = [5]")
    artifact = harness.compile_text(folder, text)
    run("gacc-exec", artifact, "--data", spec, "--updates", 3, "--save", folder / "w")
    run("gacc-exec", artifact, "--data", spec, "--load", folder / "w", "--predict", folder / "p.npy")
    logits = [number for row in rows_of(folder / "p.npy") for number in row]
    counted = [i for i, label in enumerate(labels) if label >= 0]
    wanted, matrix = reference([labels[i] for i in counted],
                               [max(range(classes), key=lambda c: logits[i * classes + c]) for i in counted], classes)
    found = evaluated(folder, artifact, spec)
    check(found, wanted, "one rank")
    expect(found["confusion"] == matrix, found)
    ranks.need_mpi()
    log = folder / "ranks.jsonl"
    ranks.mpirun(2, [harness.BIN / "gacc-exec", artifact, "--eval", spec, "--load", folder / "w", "--log", log,
                     "--device", "cpu"])
    both = next(e for e in harness.read_log(log) if e["event"] == "eval")
    check(both, wanted, "two ranks")
    expect(both["confusion"] == matrix, both)


def test_what_cannot_be_measured(folder):
    (folder / "m.toml").write_text(model(3, ["auc"]))
    done = run("gaccc", folder / "m.toml", "-o", folder / "no.ptx", code=1)
    expect('metric "auc" is for two classes' in done.stderr, done.stderr)
    spec, _ = draw(folder, 12, 2, seed=1)
    harness.write_npy(folder / "y.npy", array.array("i", [1] * 12), [12])
    artifact = harness.compile_text(folder, model(2, ["auc"]))
    run("gacc-exec", artifact, "--init-only", "--save", folder / "w")
    found = evaluated(folder, artifact, spec)
    expect(found["auc"] is None and found["confusion"][0] == [0, 0], found)


def test_class_weights(folder):
    """By name, by number and "balanced" are the numbers that they stand for; --resume and --load keep the balanced."""
    spec, labels = draw(folder, 40, 3, seed=4)
    counts = [labels.count(c) for c in range(3)]
    text = model(3, ["accuracy"], "micro_batch = 8\naccumulate = 2")
    ways = {"balanced": '"balanced"', "numbers": [len(labels) / (3 * count) for count in counts],
            "named": "{ " + ", ".join(f'"{c}" = {len(labels) / (3 * n)}' for c, n in enumerate(counts)) + " }"}
    weights = {}
    for name, value in ways.items():
        artifact = harness.compile_text(folder, text, name, loss__class_weights=value)
        run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--epochs", 2, "--save", folder / "w")
        weights[name] = harness.read_safetensors(folder / "w")
    for name in ways:
        worst = harness.far_apart(weights[name], weights["numbers"])
        expect(worst[0] <= 1e-6, f"{name}: {worst}")
    expect(weights["numbers"] == weights["named"], "a table is its numbers")
    # What the training data have taught is kept.
    artifact = harness.compile_text(folder, text, "step", loss__class_weights='"balanced"')
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--epochs", 2, "--save", folder / "whole")
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--epochs", 1, "--checkpoint", folder / "run")
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--epochs", 2, "--checkpoint", folder / "run",
        "--resume", "--save", folder / "parts")
    expect((folder / "whole").read_bytes() == (folder / "parts").read_bytes(), "a resumed run has other weights")
    run("gacc-exec", artifact, "--eval", spec, "--load", folder / "whole", "--log", folder / "a.jsonl")
    run("gacc-exec", harness.compile_text(folder, text, "same", loss__class_weights=ways["numbers"]), "--eval", spec,
        "--load", folder / "whole", "--log", folder / "b.jsonl")
    losses = [next(e["loss"] for e in harness.read_log(folder / f"{log}.jsonl") if e["event"] == "eval")
              for log in "ab"]
    expect(abs(losses[0] - losses[1]) < 1e-6, losses)
    run("gacc-exec", artifact, "--init-only", "--save", folder / "untaught")
    done = run("gacc-exec", artifact, "--eval", spec, "--load", folder / "untaught", code=1)
    harness.one_error(done, 'loss.class_weights = "balanced"', "give --data")
    wrong = run("gaccc", folder / "step.toml", "--set", 'loss.class_weights={ "7" = 1 }', code=1)
    expect('there is no class "7"' in wrong.stderr, wrong.stderr)


harness.main(globals())
