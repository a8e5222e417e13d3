"""gacc-exec --verify passes for what gaccc makes, and fails for an artifact that is not what it says it is."""
import array
import os
import re
import shutil
import subprocess

import harness
from harness import expect, layer, run, sealed

ALL = ["mnist_mlp", "mnist_mlp_plain", "regression", "residual_mlp", "adam_micro", "schedules"]


def make(name, folder, samples=None, **settings):
    model = harness.example(name)
    artifact = harness.compile_model(model, folder / "step.ptx", **settings)
    return artifact, harness.make_data(model, samples or 40, folder)


def check_report(done, passed):
    found = re.search(r"(\d+) checks passed, (\d+) failed, (\d+) left out", done.stdout)
    expect(found and int(found[1]) >= passed and found[2] == "0", done.stdout)
    for number, what in ((1, "one window"), (2, "recompute"), (3, "resume"), (4, "half")):
        expect(re.search(rf"^{number}\. .*{what}|^{number}\. .*against f32", done.stdout, re.M),
               f"check {number}:\n{done.stdout}")


def test_every_example_passes(folder):
    for name in ALL:
        artifact, spec = make(name, folder, train__micro_batch=8, train__accumulate=3)
        before = sorted(p.name for p in folder.iterdir())
        done = run("gacc-exec", artifact, "--data", spec, "--verify")
        check_report(done, 1 if "not judged: " in done.stdout else 2)
        expect(("not judged: " in done.stdout) == (name == "adam_micro"), "what the plan calls exact is judged")
        expect(re.search(r"^  [\w.]+weight +\d\.\d\de[-+]\d\d$", done.stdout, re.M), "a line for each tensor")
        expect(sorted(p.name for p in folder.iterdir()) == before, "nothing is written")


DROPOUT = harness.classifier("dropped", [12], 3, (
    layer("linear", features=32, activation="gelu"), layer("dropout", p=0.3), layer("layer_norm"),
    layer("linear", features=3)), train="micro_batch = 8\naccumulate = 3", optimizer='type = "adamw"')


def test_dropout_does_not_depend_on_the_split(folder):
    model = folder / "model.toml"
    model.write_text(DROPOUT)
    spec = harness.make_data(model, 40, folder)
    artifact = harness.compile_model(model, folder / "step.ptx")
    check_report(run("gacc-exec", artifact, "--data", spec, "--verify"), 2)
    check_report(run("gacc-exec", artifact, "--data", spec, "--verify", "--device", "emulate"), 2)


def test_settings_leave_out_no_check(folder):
    """The variants that checks 2 and 4 compile have no place for a recompute budget and for a dynamic scale's start.
    That start overflows here, and the scale must settle on the masks that the comparisons will have."""
    model = folder / "model.toml"
    model.write_text(DROPOUT.replace("p = 0.3", "p = 0.9").replace("[optimizer]",
                                                                   "[precision]\nscale_initial = 16777216.0\n"
                                                                   "[optimizer]"))
    spec = harness.make_data(model, 40, folder)
    artifact = harness.compile_model(model, folder / "step.ptx", model__seed=2, precision__compute="f16",
                                     train__micro_batch=2,
                                     train__accumulate=1, recompute__policy="budget", recompute__budget="1MiB")
    done = run("gacc-exec", artifact, "--data", spec, "--verify")
    expect("4 checks passed, 0 failed, 0 left out" in done.stdout, done.stdout)
    harness.write_npy(folder / "y.npy", array.array("i", [-100] * 40),
                      [40])  # no scale can be found, and that is not why
    harness.one_error(run("gacc-exec", artifact, "--data", spec, "--verify", code=1),
                      "nothing is counted in the first window")


def half_model(*between, micro_batch=4, **first):
    """In f16; `first`: more keys of the first layer."""
    return harness.model_text(
        layer("linear", name="a", features=8, activation="tanh", **first), *between,
        layer("linear", name="o", features=3), model={"name": "frozen", "seed": 1},
        inputs={"x": {"shape": [6]}, "y": {"dtype": "i32", "range": 3}},
        loss={"type": "cross_entropy", "target": "y"}, optimizer={"type": "sgd", "lr": 0.1},
        train={"micro_batch": micro_batch, "accumulate": 2}, precision={"compute": "f16"})


def test_loaded_weights_reach_every_variant(folder):
    """Each artifact has them in places and types of its own: frozen ones are halves, and f32 in the one of check 4."""
    for first in ({}, {"trainable": False}, {"lora": {"rank": 2, "alpha": 4}}):
        model = folder / "model.toml"
        model.write_text(half_model(**first))
        spec = harness.make_data(model, 16, folder)
        artifact = harness.compile_model(model, folder / "step.ptx")
        run("gacc-exec", artifact, "--init-only", "--seed", 5, "--save", folder / "w", "--device", "cpu")
        large = {name: (shape, [3 * v for v in values]) for name,
                 (shape, values) in harness.read_safetensors(folder / "w").items()}
        harness.write_safetensors(folder / "w", large)
        done = run("gacc-exec", artifact, "--data", spec, "--load", folder / "w", "--verify", "--device", "cpu")
        check_report(done, 4)


def test_a_check_that_is_not_judged_may_overflow(folder):
    """A launch of one sample has no variance, and the scale that fits larger ones does not fit it."""
    model = folder / "model.toml"
    model.write_text(half_model(layer("batch_norm", name="b"), micro_batch=3))
    spec = harness.make_data(model, 13, folder)
    for seed in range(4):
        artifact = harness.compile_model(model, folder / "step.ptx", model__seed=seed)
        check_report(run("gacc-exec", artifact, "--data", spec, "--verify", "--device", "cpu"), 3)


def test_half_with_batch_norm(folder):
    """The reshapes that recompute repeats stand between f16 kernels; relu and max_pool2d turn over in rounding (check
    4's bound)."""
    small = dict(layers__conv1__channels=6, layers__conv2__channels=6, layers__fc__features=16, train__micro_batch=8)
    artifact, spec = make("mnist_cnn", folder, precision__compute="f16", **small)
    check_report(run("gacc-exec", artifact, "--data", spec, "--verify"), 3)


def test_emulated(folder):
    artifact, spec = make("regression", folder, samples=12, train__micro_batch=4, train__accumulate=2)
    check_report(run("gacc-exec", artifact, "--data", spec, "--verify", "--device", "emulate"), 2)


def test_a_mean_of_means_is_refused(folder):
    """An artifact whose step counts launches in the place of samples, the usual mistake of gradient accumulation."""
    artifact, spec = make("mnist_mlp_plain", folder, train__micro_batch=8, train__accumulate=3)
    sealed(artifact, lambda body: re.sub(rb"total_sum\.acc @loss\.count, %[\w.]+ k\(\d+\)",
                                         b"add.acc @loss.count, 1.0 k(900)", body, count=1))
    done = run("gacc-exec", artifact, "--data", spec, "--verify", code=1)
    expect("the artifact's IR is not sound" in done.stderr and "R18" in done.stderr, done.stderr)


def test_splits_that_are_not_promised_are_not_judged(folder):
    artifact, spec = make("mnist_mlp_plain", folder, train__micro_batch=8, train__accumulate=3)
    # Without the record of its model, against which check 2 would hold it.
    sealed(artifact, lambda body: re.sub(rb"(?m)^//(sets|model) .*\n", b"", body))
    sealed(artifact, lambda body: body.replace(b"//ir   set ",
                                               b'//ir   set equivalence.because = ["it counts launches"]\n//ir   set ',
                                               1))
    done = run("gacc-exec", artifact, "--data", spec, "--verify")
    expect("not judged: " in done.stdout, done.stdout)


def test_a_foreign_model_fails(folder):
    """An artifact whose program is not that of its model: the variant compiled from the record differs."""
    artifact, spec = make("mnist_mlp_plain", folder, train__micro_batch=8, train__accumulate=3)
    sealed(artifact, lambda body: body.replace(b'//model activation = "relu"', b'//model activation = "gelu"', 1))
    done = run("gacc-exec", artifact, "--data", spec, "--verify", code=(0, 1))
    if "recompute: policy" in done.stdout and "left out" in done.stdout.split("2. recompute")[1].split("3. resume")[0]:
        harness.skip("this gaccc has no recompute policies")
    expect(done.returncode == 1 and "2. recompute" in done.stdout and "FAILED" in done.stdout, done.stdout)
    harness.one_error(done, "--verify", "failed")


def test_a_launch_with_batch_norm_is_not_split(folder):
    """With K = 1 the plan is exact, and yet parts of its one launch have statistics of their own; and the bias of a
    convolution before group_norm with a group per channel has a gradient that is rounding alone."""
    model = folder / "model.toml"
    norms = {"batch_norm": {}, "group_norm": {"groups": 4}}
    for norm, keys in norms.items():
        layers = (layer("conv2d", channels=4, kernel=3), layer(norm, **keys), layer("flatten"),
                  layer("linear", features=3))
        model.write_text(harness.classifier("norms", [2, 5, 5], 3, layers, seed=3))
        spec = harness.make_data(model, 20, folder)
        for precision in ("f32", "f16", "bf16"):
            run("gaccc", model, "-o", folder / "step.ptx", "--set", f"precision.compute={precision}")
            done = run("gacc-exec", folder / "step.ptx", "--data", spec, "--verify", "--device", "cpu")
            expect(("not judged: batch_norm takes" in done.stdout) == (norm == "batch_norm"), done.stdout)


def lean_folder(folder):
    """gacc-exec with its plug-in and no gaccc beside it."""
    lean = folder / "bin"
    lean.mkdir()
    os.symlink(harness.BIN / "libgacc-host.so", lean / "libgacc-host.so")
    shutil.copy(harness.BIN / "gacc-exec", lean / "gacc-exec")  # a link would be followed by /proc/self/exe
    return lean


def test_without_a_compiler_it_says_so(folder):
    artifact, spec = make("regression", folder, train__micro_batch=8, train__accumulate=2)
    lean = lean_folder(folder)
    done = subprocess.run([lean / "gacc-exec", artifact, "--data", spec, "--verify"], capture_output=True, text=True,
                          timeout=300)
    expect(done.returncode == 0 and re.search(r"2\. recompute.*\n  left out: .*gaccc is not there", done.stdout),
           done.stdout + done.stderr)


def test_a_fault_of_the_compiler_fails(folder):
    """A refusal leaves the check out; an internal error does not pass for one."""
    artifact, spec = make("regression", folder, train__micro_batch=8, train__accumulate=2)
    lean = lean_folder(folder)
    for status, code, says in ((1, 0, "left out: "), (3, 1, "FAILED: "), (139, 1, "FAILED: ")):
        (lean / "gaccc").write_text(f"#!/bin/sh\necho error: no such luck\nexit {status}\n")
        (lean / "gaccc").chmod(0o755)
        done = subprocess.run([lean / "gacc-exec", artifact, "--data", spec, "--verify"], capture_output=True,
                              text=True, timeout=300)
        expect(done.returncode == code
               and f"\n  {says}gaccc gives up with exit {status}: error: no such luck" in done.stdout,
               done.stdout + done.stderr)


def test_it_goes_with_nothing_that_writes(folder):
    artifact, spec = make("regression", folder)
    for options in (["--save", folder / "w.safetensors"], ["--updates", 3], ["--checkpoint", folder / "c"],
                    ["--init-only"]):
        run("gacc-exec", artifact, "--data", spec, "--verify", *options, code=2)
    run("gacc-exec", artifact, "--verify", code=2)


harness.main(globals())
