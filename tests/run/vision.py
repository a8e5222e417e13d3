"""Layers of images, by whole commands: running statistics belong to their window, convolutions not to their threads."""
import array
import json
import math

import harness
from harness import expect, run

MODEL = harness.ROOT / "tests/parity/models/vision.toml"
SETS = dict(train__micro_batch=4, train__accumulate=2, precision__on_nonfinite="skip")


def data(folder, name, samples=48, without=(), planted=(), unlabelled=()):
    """Real images in file order but those of `without`; the rows `planted` hold a number that normalising makes
    infinite, `unlabelled` the label -100."""
    arrays = harness.make_arrays(MODEL, samples, 3)
    (values, shape), (labels, _) = arrays["image"], arrays["label"]
    values = array.array("f", [v / 255 for v in values])
    for row in planted:
        values[row * math.prod(shape[1:])] = 3e38
    for row in unlabelled:
        labels[row] = -100
    return harness.write_arrays(folder / name, arrays | {"image": (values, shape)}, without)


def train(folder, artifact, spec, name, *words):
    log, final = folder / f"{name}.jsonl", folder / f"{name}.safetensors"
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--log", log, "--save", final, *words)
    return harness.updates_of(log), final


def statistics(path):
    return {k: list(v) for k, (_, v) in harness.read_safetensors(path).items()
            if k.endswith((".running_mean", ".running_var"))}


def test_a_skipped_window_leaves_no_statistics(folder):
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **SETS)
    events, final = train(folder, artifact, data(folder, "planted", planted=[13]), "planted")
    expect([e["skipped"] for e in events] == [False, True, False, False, False, False], f"{events}")
    _, reference = train(folder, artifact, data(folder, "clean", without=range(8, 16)), "clean")
    expect(len(statistics(final)) == 4, f"{list(statistics(final))}")
    expect(final.read_bytes() == reference.read_bytes(),
           "statistics or weights differ from those of the run without the window")


def test_a_dropped_window_leaves_no_statistics(folder):
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **SETS | dict(train__tail="drop"))
    _, final = train(folder, artifact, data(folder, "rest"), "rest")
    _, reference = train(folder, artifact, data(folder, "whole", without=range(40, 48)), "whole", "--updates", 5)
    _, longer = train(folder, artifact, data(folder, "tail", without=range(44, 48)),
                      "tail")  # a last window of one launch
    expect(longer.read_bytes() == reference.read_bytes(), "the dropped launch left a trace")
    expect(final.read_bytes() != reference.read_bytes(), "the sixth window counts when it is full")


def test_a_window_in_which_nothing_is_counted_keeps_its_statistics(folder):
    # At a rate of 0 the statistics follow from the images alone.
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **SETS | dict(optimizer__lr="0.0"))
    events, final = train(folder, artifact, data(folder, "unlabelled", unlabelled=range(8, 16)), "unlabelled")
    all_events, reference = train(folder, artifact, data(folder, "labelled"), "labelled")
    expect(len(events) == len(all_events) - 1, f"{len(events)} updates, {len(all_events)} with labels")
    expect(statistics(final) == statistics(reference), "images without labels did not move the statistics")


def test_statistics_survive_a_checkpoint_inside_a_window(folder):
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **SETS)
    spec = data(folder, "data")
    _, straight = train(folder, artifact, spec, "straight", "--launches", 12)
    train(folder, artifact, spec, "first", "--launches", 5, "--checkpoint", folder / "ck")
    _, resumed = train(folder, artifact, spec, "second", "--launches", 12, "--checkpoint", folder / "ck", "--resume")
    expect(resumed.read_bytes() == straight.read_bytes(), "a run that was resumed inside a window differs")


def test_threads_change_no_bit(folder):
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **SETS)
    spec = data(folder, "data")
    results = [train(folder, artifact, spec, f"threads{n}", "--threads", n)[1].read_bytes() for n in (1, 3)]
    expect(results[0] == results[1], "one thread and three give other bits")


def test_the_plan_names_batch_norm(folder):
    verdicts = [json.loads(run("gaccc", MODEL, "--plan", "--json", "--set",
                               f"train.accumulate={k}").stdout)["equivalence"] for k in (1, 2)]
    expect(verdicts[0] == {"exact": True}, f"one micro-batch is the batch: {verdicts[0]}")
    expect(verdicts[1] == {"exact": False, "because": [f"batch_norm {n} takes its statistics per micro-batch"
                                                       for n in ("bn_a", "bn_c")]}, f"{verdicts[1]}")
    done = run("gaccc", MODEL, "--set", "train.require=exact", "-o", folder / "no.ptx", code=1)
    expect(done.stderr.count("error:") == 2 and "bn_a" in done.stderr and "group_norm" in done.stderr, done.stderr)


harness.main(globals())
