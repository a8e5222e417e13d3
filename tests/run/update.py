"""The work once per window, by whole commands: skipped windows, rates that evaluations cut."""
import array
import math
import tomllib

import harness
from harness import expect, run

MODEL = harness.ROOT / "tests/parity/models/update.toml"
# The model gets twice what the file has: 3e38, which a file may hold, is infinite there.
DOUBLED = dict(inputs__x__normalize="{ mean = 0, std = 0.5 }")
FULL = dict(DOUBLED, train__micro_batch=4, train__accumulate=2, optimizer__type="adam",
            optimizer__second_moment="micro", optimizer__lr=0.01,
            schedule__type="cosine", schedule__total=20, schedule__warmup=2, precision__on_nonfinite="skip")


def data(folder, name, without=(), planted=(), value=3e38):
    """48 samples in file order but those of `without`; in the rows `planted` one input is `value`."""
    arrays = harness.make_arrays(MODEL, 48, 3)
    values, shape = arrays["x"]
    for row in planted:
        values[row * math.prod(shape[1:])] = value
    return harness.write_arrays(folder / name, arrays, without)


def train(folder, artifact, spec, name, *words, code=0):
    log, final = folder / f"{name}.jsonl", folder / f"{name}.safetensors"
    done = run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--log", log, "--save", final, *words, code=code)
    return harness.updates_of(log), final, done.stderr


def test_pain_15_a_skipped_window_leaves_no_trace(folder):
    """Pains 12, 15: weights, moments, counters and rates are those of a run in which the window never was."""
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **FULL)
    events, final, _ = train(folder, artifact, data(folder, "planted", planted=[13]), "planted")
    clean, reference, _ = train(folder, artifact, data(folder, "clean", without=range(8, 16)), "clean")
    expect([e["skipped"] for e in events] == [False, True, False, False, False, False], f"{events}")
    expect(events[1]["grad_norm"] is None, f"{events[1]}")  # the loss may be finite: tanh is
    good = [e for e in events if not e["skipped"]]
    for key in ("loss", "lr", "grad_norm"):
        expect([e[key] for e in good] == [e[key] for e in clean], f"{key} differs from the run without the window")
    expect(final.read_bytes() == reference.read_bytes(), "the weights differ from those of the run without the window")


def test_plateaus_cut_the_rate(folder):
    """The rate is too small to move a weight: every evaluation is the first one's equal."""
    artifact = harness.compile_model(MODEL, folder / "m.ptx", train__micro_batch=48, optimizer__lr=1e-12,
                                     schedule__type="plateau",
                                     schedule__patience=2, schedule__factor=0.5, schedule__min_lr=3e-13)
    spec = data(folder, "data")
    events, _, _ = train(folder, artifact, spec, "run", "--epochs", 12, "--eval", spec)
    expected = [1e-12] * 4 + [5e-13] * 3 + [3e-13] * 5
    expect(all(abs(e["lr"] / want - 1) < 1e-6 for e, want in zip(events, expected, strict=True)),
           f"{[e['lr'] for e in events]}")


def test_pain_29_the_rate_follows_the_effective_batch(folder):
    """As far as the model file says so, whatever M and K; the log has the rate that was used."""
    spec = data(folder, "data")
    for scaling, rate in (("none", 0.5), ("linear", 2.0), ("sqrt", 1.0)):
        for micro_batch, accumulate in ((32, 1), (8, 4)):
            artifact = harness.compile_model(MODEL, folder / "m.ptx", train__micro_batch=micro_batch,
                                             train__accumulate=accumulate,
                                             optimizer__lr=0.5, optimizer__lr_scaling=scaling,
                                             **({} if scaling == "none" else dict(optimizer__reference_batch=8)))
            events, _, _ = train(folder, artifact, spec, "run")
            expect([(e["lr"], e["effective_batch"]) for e in events] == [(rate, 32)] * 2, f"{scaling}: {events}")


def test_pain_10_a_launch_without_targets_adds_nothing(folder):
    """All its targets are ignored: no 0 / 0, and the window is the mean of what is counted. A window of such launches
    is no update, and no skip either."""
    model = harness.ROOT / "tests/parity/models/adamw_smoothing.toml"
    arrays, ignored = harness.make_arrays(model, 48, 3), tomllib.loads(model.read_text())["loss"]["ignore_index"]
    target = tomllib.loads(model.read_text())["loss"]["target"]

    def written(name, silent, without=()):
        values, shape = arrays[target]
        width, values = math.prod(shape[1:]), values[:]
        for row in silent:
            values[row * width:(row + 1) * width] = array.array("i", [ignored] * width)
        return harness.write_arrays(folder / name, arrays | {target: (values, shape)}, without)

    artifact = harness.compile_model(model, folder / "m.ptx", train__micro_batch=4, train__accumulate=4)
    silent = {*range(4, 8), *range(16, 32)}  # launch 2 of the first window, and the whole second
    events, final, _ = train(folder, artifact, written("silent", silent), "silent", "--epochs", 1)
    alone, reference, _ = train(folder, artifact, written("alone", range(4, 8), range(16, 32)), "alone", "--epochs", 1)
    expect([e["skipped"] for e in events] == [False, False] and all(math.isfinite(e["loss"]) for e in events),
           f"{events}")
    expect([e["loss"] for e in events] == [e["loss"] for e in alone], f"{events} and {alone}")
    expect(final.read_bytes() == reference.read_bytes(), "the window without targets has left a trace")
    short = harness.compile_model(model, folder / "s.ptx", train__micro_batch=12, train__accumulate=1)
    whole, _, _ = train(folder, short, written("whole", (), {*range(4, 8), *range(16, 48)}), "whole", "--epochs", 1)
    expect(abs(whole[0]["loss"] - events[0]["loss"]) <= 1e-6 * whole[0]["loss"],
           f"{events[0]}, without the launch {whole[0]}")


def test_a_layer_that_the_loss_does_not_reach_stays_as_it_starts(folder):
    """As in PyTorch, where its gradient is None: no decay either. All others are trained as without it."""
    text = harness.example("regression").read_text()
    last = tomllib.loads(text)["layers"][-1]["name"]
    model = folder / "aside.toml"
    model.write_text(text.replace("[loss]",
                                  f'[[layers]]\ntype = "linear"\nname = "aside"\nfeatures = 3\n\n[loss]\ninput = '
                                  f'"{last}"'))
    spec = harness.make_data(model, 48, folder)
    settings = dict(optimizer__weight_decay=0.5)
    plain = harness.compile_model(harness.example("regression"), folder / "plain.ptx", **settings)
    aside = harness.compile_model(model, folder / "aside.ptx", **settings)
    _, reference, _ = train(folder, plain, spec, "plain", "--updates", 3)
    for device in ("cpu", "emulate"):
        train(folder, aside, spec, "start", "--updates", 0, "--device", device)
        _, final, _ = train(folder, aside, spec, "aside", "--updates", 3, "--device", device)
        start, ours, theirs = (harness.read_safetensors(folder / f"{name}.safetensors")
                               for name in ("start", "aside", "plain"))
        expect(all(ours.pop(name) == start[name] for name in ("aside.weight", "aside.bias")),
               f"{device}: aside has changed")
        expect(ours == theirs if device == "cpu" else set(ours) == set(theirs),
               f"{device}: others are trained otherwise")
    run("gacc-exec", aside, "--data", spec, "--verify")


if __name__ == "__main__":
    harness.main(globals())
