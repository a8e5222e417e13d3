"""Loss scaling by whole commands: exact where it must be, a skipped window without a trace, ends with a reason."""
import array
import json

import harness
import update
from harness import expect, layer, run

MODEL = update.MODEL
FULL = dict(update.FULL, train__accumulate=4,
            train__clip_norm=0.5) | dict(precision__loss_scale="dynamic", precision__scale_interval=2)
FULL.pop("precision__on_nonfinite")


def without(events, *keys):
    return [{k: v for k, v in e.items() if k not in (*keys, "seconds")} for e in events]


def test_a_power_of_two_scale_changes_no_bit(folder):
    """Adam with the second moment "micro", clipping, a ragged tail: every figure but the scale, and every weight."""
    settings = {k: v for k, v in FULL.items() if not k.startswith("precision")}
    spec, runs = update.data(folder, "data", without=[46, 47]), []
    for scale in ("none", 4096, 0.0078125):
        artifact = harness.compile_model(MODEL, folder / f"{scale}.ptx", **settings, precision__loss_scale=scale)
        gradients = folder / f"{scale}.grads"
        events, final, _ = update.train(folder, artifact, spec, f"{scale}", "--epochs", 2, "--dump-grads", gradients)
        expect(all(e["loss_scale"] == (1 if scale == "none" else scale) for e in events), f"{events[0]}")
        runs.append((without(events, "loss_scale"), final.read_bytes(), gradients.read_bytes()))
    expect(runs[0] == runs[1] == runs[2], "the scale has left a trace")


def test_pain_15_an_overflow_in_launch_2_of_4_skips_its_window(folder):
    """Pains 12, 15, 19: weights, moments, counters, rates are those of a run in which the window never was; the scale
    is halved."""
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **FULL)
    events, final, _ = update.train(folder, artifact, update.data(folder, "planted", planted=[22]), "planted")
    clean, reference, _ = update.train(folder, artifact, update.data(folder, "clean", without=range(16, 32)), "clean")
    expect([e["skipped"] for e in events] == [False, True, False], f"{events}")
    expect([e["loss_scale"] for e in events] == [65536, 65536, 32768], f"{events}")
    good = [e for e in events if not e["skipped"]]
    expect([e["loss"] for e in good] == [e["loss"] for e in clean]
           and [e["lr"] for e in good] == [e["lr"] for e in clean],
           "the window has left a trace in the log")
    expect(final.read_bytes() == reference.read_bytes(), "the window has left a trace in the weights")


def test_pain_16_a_hundred_skips_end_the_run(folder):
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **FULL | dict(precision__scale_backoff=0.99))
    spec = update.data(folder, "bad", planted=[5, 17, 33])  # every window
    events, final, text = update.train(folder, artifact, spec, "bad", "--epochs", 50, code=1)
    expect(len(events) == 100 and all(e["skipped"] for e in events), f"{len(events)} windows")
    expect("100 windows in a row were skipped (precision.max_skips)" in text, text)
    expect("the gradient of fc1.weight is not finite since launch 2 of 4" in text, text)  # epoch 34: row 5
    expect(not final.exists(), "weights were saved")


def test_pain_19_a_resumed_scale_goes_on(folder):
    """Broken off in a window, after a skip and before the scale would grow: the same bits."""
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **FULL)
    spec = update.data(folder, "planted", planted=[5])
    events, final, _ = update.train(folder, artifact, spec, "straight", "--updates", 6)
    expect(len({e["loss_scale"] for e in events}) == 2, f"{events}")
    words = ("--data", spec, "--no-shuffle", "--checkpoint", folder / "ck", "--log", folder / "log.jsonl")
    run("gacc-exec", artifact, *words, "--launches", 7)
    run("gacc-exec", artifact, *words, "--launches", 18, "--resume")
    run("gacc-exec", artifact, *words, "--updates", 6, "--resume", "--save", folder / "resumed.safetensors")
    expect((folder / "resumed.safetensors").read_bytes() == final.read_bytes(), "other weights")
    expect(without(harness.updates_of(folder / "log.jsonl")) == without(events), "another log")


def losses(folder, name, spec, words=(), **settings):
    artifact = harness.compile_model(harness.example("small_gradients_f16"), folder / f"{name}.ptx", **settings)
    log = folder / f"{name}.jsonl"
    run("gacc-exec", artifact, "--data", spec, "--updates", 120, "--log", log, *words)
    return [e["loss"] for e in harness.updates_of(log)]


def test_small_gradients_need_a_scale(folder):
    """The example: f16 alone stays where it starts, dynamic scaling follows f32 (docs/training.md, small gradients)."""
    spec = harness.make_data(harness.example("small_gradients_f16"), 512, folder)
    f32 = losses(folder, "f32", spec, precision__compute="f32", precision__loss_scale="none")
    none = losses(folder, "none", spec, precision__loss_scale="none")
    scaled = losses(folder, "scaled", spec)
    for name, values in (("f32", f32), ("f16, no scale", none), ("f16, dynamic", scaled)):
        print(f"{name:14}", " ".join(f"{values[i]:.3g}" for i in (0, 20, 40, 80, 119)))
    expect(sum(none[100:]) > 0.6 * sum(none[:20]), f"without a scale it learns: {none[::20]}")
    expect(f32[-1] < 0.2 * f32[0], f"f32 does not learn: {f32[::20]}")
    expect(all(abs(a - b) < 0.05 * f32[0] for a, b in zip(f32, scaled)), "the scaled run leaves the f32 curve")


SUM = harness.model_text(
    layer("linear", name="fc", features=1, init="zeros", bias_init="zeros"),
    model={"name": "sum"}, inputs={"x": {"shape": [1]}, "y": {"shape": [1]}}, loss={"type": "mse", "target": "y"},
    train={"micro_batch": 1, "accumulate": 2}, optimizer={"type": "sgd"}, precision={"loss_scale": "none"})


def test_pain_18_accumulators_are_f32(folder):
    """Two launches whose gradients are 256 and 1 (bf16 has no 257), 2048 and 1 (f16 has no 2049): their mean is
    exact."""
    model = folder / "sum.toml"
    model.write_text(SUM)
    for compute, large in (("bf16", 256), ("f16", 2048)):
        harness.write_npy(folder / "x.npy", array.array("f", [1, 1]), [2, 1])
        harness.write_npy(folder / "y.npy", array.array("f", [-large / 2, -0.5]), [2, 1])
        artifact = harness.compile_model(model, folder / f"{compute}.ptx", precision__compute=compute)
        for device in ("cpu", "emulate"):
            dump = folder / "gradients.safetensors"
            run("gacc-exec", artifact, "--data", f"npy:x={folder}/x.npy,y={folder}/y.npy", "--no-shuffle", "--updates",
                1,
                "--device", device, "--dump-grads", dump)
            means = {name: list(values) for name, (_, values) in harness.read_safetensors(dump).items()}
            want = [(large + 1) / 2]
            expect(means == {"fc.weight": want, "fc.bias": want}, f"{compute} on {device}: {means}, not {want}")


def test_k_launches_do_not_shrink_half_gradients(folder):
    """A launch of a window of 64 gives the bits of a window of 1, down to the smallest, also where f16 ends."""
    for example, scale in (("mnist_mlp_f16", "none"), ("mnist_mlp_f16", 1024), ("small_gradients_f16", 256)):
        model, dumps = harness.example(example), []
        spec = harness.make_data(model, 64, folder)
        for k in (1, 64):
            artifact = harness.compile_model(model, folder / f"{k}.ptx", train__accumulate=k,
                                             precision__loss_scale=scale)
            dumps.append(folder / f"{k}.safetensors")
            run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--launches", 1, "--dump-grads", dumps[-1])
        smallest = [min(abs(v) for _, values in harness.read_safetensors(d).values() for v in values if v != 0)
                    for d in dumps]
        print(f"{example}, scale {scale}: the smallest gradient is {smallest[0]:.3g}")
        expect(smallest[0] == smallest[1], f"{example}: {smallest}")
        expect(dumps[0].read_bytes() == dumps[1].read_bytes(), f"{example}: K = 64 has other gradients than K = 1")


NORMED = harness.classifier("normed", [6], 4, (
    layer("linear", name="fc1", features=10), layer("batch_norm", name="bn"), layer("linear", name="fc2", features=4)))
# State that a skipped window may change: the scale and its counter, the row of skips, what is reported of the window,
# and the ordinals of samples, which count launches (docs/training.md, dropout).
OF_THE_WINDOW = {"loss.scale", "scale.good", "skips", "samples.low", "samples.high", "window.sum", "window.count",
                 "window.loss",
                 "window.norm", "window.lr", "window.ok", "window.scale"}


def checkpoint(folder):
    """The buffers of a checkpoint, name -> (kind, bytes), and the loop's state (runtime/store/checkpoint.h)."""
    raw = (folder / "checkpoint").read_bytes()
    size, offset, tensors = int.from_bytes(raw[-24:-16], "little"), 24, {}
    table = json.loads(raw[-24 - size:-24])
    for t in table["tensors"]:
        tensors[t["name"]] = t["kind"], raw[offset:offset + t["bytes"]]
        offset += t["bytes"]
    expect(offset == len(raw) - 24 - size, "the buffers and the table overlap")
    return tensors, table["train"]


def test_pain_15_a_skipped_window_leaves_no_trace_in_any_state(folder):
    """f16: a number past 65504 in launch 2 of 4 of the second window. Checkpoints before and after that window:
    weights and their half copies, moments, step counts, the schedule's and the bias corrections' state, batch-norm
    statistics and cleared accumulators are the same bytes, with both second moments; the scale is halved."""
    model = folder / "normed.toml"
    model.write_text(NORMED)
    spec = update.data(folder, "planted", planted=[22], value=1e6)
    for moment in ("window", "micro"):
        settings = FULL | dict(precision__compute="f16", precision__scale_initial=1024, precision__scale_interval=5,
                               optimizer__second_moment=moment)
        artifact = harness.compile_model(model, folder / f"{moment}.ptx", **settings)
        states = []
        for launches in (4, 8, 12):
            place = folder / f"{moment}{launches}"
            events, _, _ = update.train(folder, artifact, spec, f"{moment}{launches}", "--launches", launches,
                                        "--checkpoint", place)
            states.append(checkpoint(place))
        expect([(e["skipped"], e["loss_scale"]) for e in events] == [(False, 1024), (True, 1024), (False, 512)],
               f"{events}")
        (before, loop), (after, loop_after), (later, _) = states
        names = set(before)
        expect(names == set(after), f"other buffers: {names ^ set(after)}")
        for wanted in ("fc1.weight", "fc1.weight.h", "fc1.weight.m", "fc1.weight.v", "bn.running_mean",
                       "bn.running_var", "updates"):
            expect(wanted in names, f"no {wanted} among {sorted(names)}")
        changed = {name for name in names if before[name] != after[name]}
        print(f"{moment}: {len(names)} buffers, changed by the skipped window: {sorted(changed)}")
        expect(changed <= OF_THE_WINDOW, f"the window has left a trace in {sorted(changed - OF_THE_WINDOW)}")
        expect({"loss.scale", "skips", "window.ok"} <= changed, f"only {sorted(changed)} changed")
        moving = {name for name in names if later[name] != after[name]}
        for wanted in ("fc1.weight", "fc1.weight.m", "fc1.weight.v", "bn.running_mean", "bn.running_var", "updates"):
            expect(wanted in moving, f"{wanted} does not move in a good window either: the comparison says nothing")
        expect((loop["updates"], loop["skipped"]) == (1, 0) and loop_after["skipped"] == 1, f"{loop} {loop_after}")


harness.main(globals())
