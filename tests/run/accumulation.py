"""An update over K ragged micro-batches is the update of the one big batch: gradients, losses, weights."""
import harness
from harness import expect, run

# norm-wise per tensor: f32 sums of at most 128 terms in another order differ by a few ulp (1.2e-7) times sqrt(128) / 10
BOUND = 1e-6


def gradients(folder, name, model, spec, micro_batch, accumulate):
    artifact = harness.compile_model(model, folder / f"{name}.ptx", train__micro_batch=micro_batch, train__accumulate=accumulate)
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
        expect(abs(other["loss"] - event["loss"]) <= 1e-6 * abs(event["loss"]), f"loss {other['loss']}, at once {event['loss']}")
        expect((other["launches"], other["samples"]) == (accumulate, 100), f"{other['launches']} launches of {other['samples']} samples")


def test_mnist_mlp(folder):
    compare(folder, harness.example("mnist_mlp"))


def test_regression(folder):
    compare(folder, harness.example("regression"))


def test_residual_mlp(folder):
    compare(folder, harness.example("residual_mlp"))


def test_ignored_targets_and_smoothing(folder):
    """Micro-batches with different counts of ignored targets still weigh every counted sample the same."""
    compare(folder, harness.ROOT / "tests/parity/models/adamw_smoothing.toml")


def test_several_targets(folder):
    compare(folder, harness.ROOT / "tests/parity/models/bce_nesterov.toml")


harness.main(globals())
