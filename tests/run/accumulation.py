"""An update over K ragged micro-batches is the update of the one big batch: gradients, losses, weights."""
import harness
from harness import expect, run

# norm-wise per tensor: f32 sums of at most 128 terms in another order differ by a few ulp (1.2e-7) times sqrt(128) / 10
BOUND = 1e-6


def gradients(folder, name, model, spec, micro_batch, accumulate, **settings):
    artifact = harness.compile_model(model, folder / f"{name}.ptx", train__micro_batch=micro_batch,
                                     train__accumulate=accumulate,
                                     **settings)
    dump, log = folder / f"{name}.safetensors", folder / f"{name}.jsonl"
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--updates", 1, "--dump-grads", dump, "--log", log)
    return harness.read_safetensors(dump), harness.updates_of(log)[0]


def compare(folder, model):
    """100 samples at once, and as 32 32 32 4; 48 48 4; 7 x 14 and 2; 1 x 100."""
    spec = harness.make_data(model, 100, folder)
    whole, event = gradients(folder, "whole", model, spec, 100, 1)
    for micro_batch, accumulate in ((32, 4), (48, 3), (7, 15), (1, 100)):
        split, other = gradients(folder, f"split{micro_batch}", model, spec, micro_batch, accumulate)
        worst, who = harness.far_apart(split, whole)
        print(f"{model.stem}: {micro_batch} x {accumulate} against 100 at once: {worst:.2e} ({who})")
        expect(worst <= BOUND, f"gradient of {who} is {worst:.2e} away from the big batch's")
        expect(abs(other["loss"] - event["loss"]) <= 1e-6 * abs(event["loss"]),
               f"loss {other['loss']}, at once {event['loss']}")
        expect((other["launches"], other["samples"]) == (accumulate, 100),
               f"{other['launches']} launches of {other['samples']} samples")


def test_examples(folder):
    for name in ("mnist_mlp", "regression", "residual_mlp"):
        compare(folder, harness.example(name))


def test_pain_1_8_ignored_targets_and_smoothing(folder):
    """Micro-batches with different counts of ignored targets still weigh every counted sample the same."""
    compare(folder, harness.ROOT / "tests/parity/models/adamw_smoothing.toml")


def test_several_targets(folder):
    compare(folder, harness.ROOT / "tests/parity/models/bce_nesterov.toml")


def test_pain_4_5_neither_k_nor_the_scale_is_divided_out_twice(folder):
    """Loss and gradient of 15 scaled launches are those of one that is not."""
    model = harness.example("regression")
    spec = harness.make_data(model, 100, folder)
    whole, event = gradients(folder, "whole", model, spec, 100, 1)
    split, scaled = gradients(folder, "split", model, spec, 7, 15, precision__loss_scale=1024)
    worst, who = harness.far_apart(split, whole)
    expect(worst <= BOUND, f"gradient of {who} is {worst:.2e} away from the big batch's")
    for figure in ("loss", "grad_norm"):
        expect(abs(scaled[figure] - event[figure]) <= 1e-6 * abs(event[figure]),
               f"{figure} {scaled[figure]}, at once {event[figure]}")


def test_pain_7_an_epoch_smaller_than_a_window_trains_or_is_refused(folder):
    """Three samples, K = 4: an update over three, under carry every fourth launch, or no run at all."""
    model = harness.example("regression")
    spec = harness.make_data(model, 3, folder)
    whole, _ = gradients(folder, "whole", model, spec, 3, 1)
    tail, event = gradients(folder, "tail", model, spec, 1, 4)
    worst, who = harness.far_apart(tail, whole)
    expect(worst <= BOUND, f"gradient of {who} is {worst:.2e} away from the big batch's")
    expect((event["launches"], event["samples"]) == (3, 3), f"{event}")
    for rule, code in (("carry", 0), ("drop", 1)):
        artifact = harness.compile_model(model, folder / f"{rule}.ptx", train__micro_batch=1, train__accumulate=4,
                                         train__tail=rule)
        done = run("gacc-exec", artifact, "--data", spec, "--epochs", 4, "--log", folder / "log.jsonl", code=code)
        if code == 0:
            windows = [(e["launches"], e["samples"]) for e in harness.updates_of(folder / "log.jsonl")]
            expect(windows == [(4, 4)] * 3, f"{windows}")
        else:
            harness.one_error(done, "no update could ever happen")


harness.main(globals())
