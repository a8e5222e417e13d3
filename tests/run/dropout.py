"""Dropout's masks belong to samples, counted since training began: they are equal for every split of an effective batch
into micro-batches, on the CPU and under emulation, and after --resume; eval has none. Attention's own, of its
probabilities, is seen by the window's gradients: with other masks they are far away."""
import array
import json
import random

import harness
from harness import expect, layer, model_text, run

N = 24  # samples; sample s has a 1 at the elements 0 .. WIDTH-1 of its own row and 0 elsewhere
WIDTH = 8
LEARNS_NOTHING = {"loss": {"type": "mse", "target": "y"}, "train": {"micro_batch": 4, "accumulate": 6},
                  "optimizer": {"type": "sgd", "lr": 0.0}}

# The gradient of `sum` is, element by element, the sum over samples of x times the mask (the target is 1, the start 0,
# so that every sample's error is -1, and the loss's derivative -2): sample s alone reaches its own elements.
MODEL = model_text(
    layer("dropout", name="drop", p=0.375), layer("flatten"),
    layer("linear", name="sum", features=1, bias=False, init="zeros"),
    model={"name": "masks", "seed": 5}, inputs={"x": {"shape": [N, WIDTH]}, "y": {"shape": [1]}}, **LEARNS_NOTHING)


def prepare(folder):
    model = folder / "masks.toml"
    model.write_text(MODEL)
    x = array.array("f", [float(e // WIDTH == s) for s in range(N) for e in range(N * WIDTH)])
    return model, harness.write_arrays(folder, {"x": (x, [N, N, WIDTH]), "y": (array.array("f", [1.0] * N), [N, 1])})


def gradients(folder, model, spec, micro_batch, accumulate, *options, device="cpu", updates=1, **settings):
    """Returns the gradients of the last window, by parameter. The artifact stays in the folder: attends4x6.ptx of
    attends.toml at 4 x 6."""
    artifact = harness.compile_model(model, folder / f"{model.stem}{micro_batch}x{accumulate}.ptx",
                                     train__micro_batch=micro_batch,
                                     train__accumulate=accumulate, **settings)
    dump = folder / "grads.safetensors"
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--device", device, "--updates", updates, "--dump-grads",
        dump, *options)
    return harness.read_safetensors(dump)


def masks(folder, model, spec, micro_batch, accumulate, *options, **settings):
    """Returns the elements that the last window kept. The rest as for `gradients`."""
    values = gradients(folder, model, spec, micro_batch, accumulate, *options, **settings)["sum.weight"][1]
    kept = [v != 0 for v in values]
    each = -2 / 0.625 / min(accumulate * micro_batch, N)  # the mean over the window's samples
    for v in values:
        expect(v == 0 or abs(v / each - 1) < 1e-6, f"{v} is neither 0 nor {each}")
    return kept


def test_splits(folder):
    """Every split of 24 samples gives the same masks, in the first window and in the third; all CPUs' threads too."""
    model, spec = prepare(folder)
    seen = []
    for updates in (1, 3):
        whole = masks(folder, model, spec, N, 1, updates=updates)
        for micro_batch, accumulate in ((4, 6), (1, 24), (7, 4), (23, 2)):
            split = masks(folder, model, spec, micro_batch, accumulate, updates=updates)
            expect(split == whole, f"update {updates}: {micro_batch} x {accumulate} drops other elements than {N} x 1")
        expect(masks(folder, model, spec, 7, 4, "--threads", 3, updates=updates) == whole, "threads change masks")
        seen.append(whole)
    share = sum(map(sum, seen)) / (2 * N * WIDTH)
    expect(seen[0] != seen[1], "every update has the same masks")
    expect(abs(share - 0.625) < 0.1, f"{share:.3f} of the elements are kept, expected 0.625")  # 4 deviations of 384
    other = masks(folder, model, spec, N, 1, model__seed=6)
    expect(other != seen[0], "the seed does not matter")


def test_emulator(folder):
    model, spec = prepare(folder)
    whole = masks(folder, model, spec, N, 1)
    for micro_batch, accumulate in ((N, 1), (7, 4), (1, 24), (4, 6)):
        expect(masks(folder, model, spec, micro_batch, accumulate, device="emulate") == whole,
               f"emulated, {micro_batch} x {accumulate}: other masks than on the CPU")


def test_resume(folder):
    """Resumed within the second window."""
    model, spec = prepare(folder)
    straight = masks(folder, model, spec, 4, 6, updates=2)
    for device in ("cpu", "emulate"):
        checkpoint = ["--checkpoint", folder / device]
        run("gacc-exec", folder / "masks4x6.ptx", "--data", spec, "--no-shuffle", "--device", device, *checkpoint,
            "--launches", 8)
        resumed = masks(folder, model, spec, 4, 6, *checkpoint, "--resume", device=device, updates=2)
        expect(resumed == straight, f"{device}: after --resume other elements are dropped")


def test_tails(folder):
    """Samples that tail = "drop" leaves out are counted, launched or not: 2 windows of 10 a pass, 4 samples left."""
    model, spec = prepare(folder)
    runs = [masks(folder, model, spec, m, k, updates=4, train__tail="drop") for m,
            k in ((10, 1), (5, 2), (2, 5), (1, 10))]
    expect(all(r == runs[0] for r in runs), "the masks of the second epoch depend on the split")


def test_eval(folder):
    """Evaluation drops nothing: its loss is that of the model without dropout, and training goes on as without it."""
    model, spec = prepare(folder)
    losses = []
    for p in (0.375, 0.0):
        artifact = harness.compile_model(model, folder / "e.ptx", layers__drop__p=p)
        log = folder / "e.jsonl"
        run("gacc-exec", artifact, "--data", spec, "--eval", spec, "--device", "cpu", "--updates", 1, "--log", log)
        losses.append([e["loss"] for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "eval"])
    expect(losses[0] == losses[1], f"evaluated with dropout {losses[0]}, without {losses[1]}")
    plain = masks(folder, model, spec, 4, 6, updates=3)
    expect(masks(folder, model, spec, 4, 6, "--eval", spec, "--eval-every", 1, updates=3) == plain,
           "an evaluation moves the masks")


ATTENTION = model_text(
    layer("attention", name="attn", heads=1, causal=True, dropout=0.375),
    model={"name": "attends", "seed": 5}, inputs={"x": {"shape": [9, 16]}, "y": {"shape": [9, 16]}}, **LEARNS_NOTHING)


def attention_data(folder):
    model = folder / "attends.toml"
    model.write_text(ATTENTION)
    numbers = random.Random(3)
    arrays = {name: (array.array("f", [numbers.uniform(-1, 1) for _ in range(N * 9 * 16)]), [N, 9, 16])
              for name in "xy"}
    return model, harness.write_arrays(folder, arrays)


def near(found, wanted, within, what):
    far, tensor = harness.far_apart(found, wanted)
    expect(far <= within, f"{what}: {tensor} is {far:.1e} apart: other probabilities are dropped")


def other_masks_are_far(folder, model, spec, whole, **settings):
    """Measures what the bounds of the tests below must stay under: the second window has the same samples, weights
    and rate 0."""
    far, _ = harness.far_apart(gradients(folder, model, spec, N, 1, updates=2, **settings), whole)
    expect(far > 0.1, f"with other masks gradients are only {far:.1e} apart")


def test_attention_splits(folder):
    """Every split, in the first window and in the third."""
    model, spec = attention_data(folder)
    for updates in (1, 3):
        whole = gradients(folder, model, spec, N, 1, updates=updates)
        for micro_batch, accumulate in ((4, 6), (1, 24), (7, 4), (23, 2)):
            split = gradients(folder, model, spec, micro_batch, accumulate, updates=updates)
            near(split, whole, 1e-5, f"update {updates}, {micro_batch} x {accumulate}")
        if updates == 1:
            other_masks_are_far(folder, model, spec, whole)


def test_attention_on_the_emulator(folder):
    """In f32, and in f16 by tensor cores, whose masks are the CPU's too."""
    model, spec = attention_data(folder)
    for compute, within in (("f32", 1e-5), ("f16", 1e-2)):
        settings = dict(precision__compute=compute)
        whole = gradients(folder, model, spec, N, 1, **settings)
        for micro_batch, accumulate in ((7, 4), (4, 6)):
            found = gradients(folder, model, spec, micro_batch, accumulate, device="emulate", **settings)
            near(found, whole, within, f"emulated in {compute}, {micro_batch} x {accumulate}")


CONVOLVES = harness.classifier("convolves", [2, 4, 5], 3, (
    layer("conv2d", channels=4, kernel=3, padding=1, activation="gelu"), layer("dropout", p=0.375),
    layer("conv2d", channels=4, kernel=2), layer("dropout", p=0.2), layer("flatten"),
    layer("linear", features=3)), optimizer='type = "sgd"\nlr = 0.0')


def test_behind_convolutions(folder):
    """A kernel that adds the channels' bias walks an image in other rows than its shape has: masks are those of the
    elements all the same, in every split, in the backward pass (or recompute would change bits), and on the
    emulator."""
    model = folder / "convolves.toml"
    model.write_text(CONVOLVES)
    spec = harness.make_data(model, N, folder)
    whole = gradients(folder, model, spec, N, 1)
    for micro_batch, accumulate in ((4, 6), (7, 4), (1, 24)):
        near(gradients(folder, model, spec, micro_batch, accumulate), whole, 1e-5, f"{micro_batch} x {accumulate}")
    near(gradients(folder, model, spec, 7, 4, device="emulate"), whole, 1e-5, "emulated")
    expect(gradients(folder, model, spec, N, 1, recompute__policy="all") == whole, "recompute drops other elements")
    other_masks_are_far(folder, model, spec, whole)


harness.main(globals())
