"""gacc-exec on machines without a usable GPU, played by the fake driver (tests/cuda/fake_driver.cpp), and the same
artifact on the CPU, in the emulator and on a GPU. Each test_* function is a ctest."""
import json
import math
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness
import update
from harness import expect, layer, run, sealed

FAKE = os.environ.get("GACC_FAKE_FOLDER", "")
CASES = [  # what the machine is like, words of the sentence
    ({"GACC_FAKE_INIT_ERROR": "100"}, "the NVIDIA driver finds no GPU"),
    ({"GACC_FAKE_INIT_ERROR": "34"}, "stub library"),
    ({"GACC_FAKE_VERSION": "10010"}, "the NVIDIA driver is too old: the artifact is PTX"),
    ({"GACC_FAKE_CAPABILITY": "61"},
     "GPU 0 (Fake 0) has compute capability 6.1, which cannot run an artifact for sm_80"),
]


def machine(**settings):
    return {**os.environ, "LD_LIBRARY_PATH": FAKE, **settings}


def artifact_of(folder):
    return harness.compile_model(harness.example("regression"), folder / "step.ptx")


def test_cuda_without_a_gpu_is_one_sentence(folder):
    artifact = artifact_of(folder)
    for settings, words in CASES:
        done = run("gacc-exec", artifact, "--init-only", "--device", "cuda", "--save", folder / "w", code=1,
                   env=machine(**settings))
        harness.one_error(done, words)
        expect(not (folder / "w").exists(), "something was written")
    done = run("gacc-exec", artifact, "--init-only", "--device", "cuda:3", code=1, env=machine())
    harness.one_error(done, "there is no GPU 3: this machine has 1")


def test_auto_falls_back_to_the_cpu(folder):
    artifact = artifact_of(folder)
    for settings, words in CASES:
        done = run("gacc-exec", artifact, "--init-only", "--log", folder / "log", env=machine(**settings))
        lines = done.stderr.splitlines()
        expect(len(lines) == 1 and words in lines[0] and lines[0].endswith(": using the CPU"), done.stderr)
        expect('"device":"cpu"' in (folder / "log").read_text().replace(" ", ""), "the log names another device")


def test_emulate_tuned_products(folder):
    """The choice is measured once and kept; it is of one machine; a run that goes on takes it from its checkpoint."""
    model = harness.example("regression")
    artifact = harness.compile_model(model, folder / "step.ptx", train__micro_batch=4, train__accumulate=2)
    spec, choices, state = harness.make_data(model, 30, folder), folder / "choices.json", folder / "state"
    common = [artifact, "--data", spec, "--no-shuffle", "--device", "emulate", "--gemm", "cublas"]
    tune = ["--tune-gemm", choices]
    run("gacc-exec", *common, *tune, "--updates", 2, "--save", folder / "a", "--checkpoint", state)
    text = choices.read_text()
    expect(text.count('"product"') > 3 and "cuBLASLt" in text, text)
    run("gacc-exec", *common, *tune, "--updates", 2, "--save", folder / "b")
    expect(choices.read_text() == text, "measured again")
    expect((folder / "a").read_bytes() == (folder / "b").read_bytes(), "the same choice, other bits")
    # The checkpoint has the choice: with --resume the file is made from it.
    choices.unlink()
    run("gacc-exec", *common, *tune, "--updates", 3, "--checkpoint", state, "--resume")
    expect(choices.read_text() == text, "not the checkpoint's choice")
    # A file of another machine, or none at all, stays as it is.
    for bad, words in ((text.replace("sm_", "sm_1"), "name another file"), (text[:200], "does not hold"),
                       ("", "is empty")):
        choices.write_text(bad)
        done = run("gacc-exec", *common, *tune, "--updates", 1, code=1)
        harness.one_error(done, words)
        expect(choices.read_text() == bad, "the file was changed")
    # Nothing to choose among: said, and no file.
    choices.unlink()
    for device in (["--device", "cpu"], ["--device", "emulate"]):
        done = run("gacc-exec", artifact, "--data", spec, "--updates", 1, *device, *tune)
        expect("no algorithms of matrix products" in done.stderr and not choices.exists(), done.stderr)
    run("gacc-exec", *common[:-1], "builtin", *tune, code=2)


def losses(artifact, folder, data, *options):
    log, weights = folder / "log.jsonl", folder / "w.safetensors"
    run("gacc-exec", artifact, *data, "--no-shuffle", "--log", log, "--save", weights, *options, timeout=800)
    events = harness.read_log(log)
    found = [e["loss"] for e in events if e["event"] in ("update", "eval")]
    return found, events[0]["device"], harness.read_safetensors(weights)


def compare(folder, device, options=(), name="mnist_mlp", samples=50, limit=("--updates", 3), bounds=(1e-5, 1e-4),
            **settings):
    """Losses near those of the CPU, and parameters by their norm: three windows of two launches unless said, and an
    evaluation."""
    settings = {"train__micro_batch": 8, "train__accumulate": 2, **settings} if name == "mnist_mlp" else settings
    model = harness.ROOT / name if name.endswith(".toml") else harness.example(name)
    artifact = harness.compile_model(model, folder / "step.ptx", **settings)
    spec = harness.make_data(model, samples, folder)
    data = ("--data", spec, "--eval", f"{spec},limit={samples // 2}", *limit)
    expected, _, expected_weights = losses(artifact, folder, data, "--device", "cpu")
    found, where, weights = losses(artifact, folder, data, "--device", device, *options)
    expect(where.startswith(device), f"the log names {where}")
    expect(len(expected) == len(found) > 0, f"{len(found)} figures, on the CPU {len(expected)}")
    far, tensor = harness.far_apart(weights, expected_weights)
    print(f"{name}: losses {found}, on the CPU {expected}; parameters {far:.1e} apart in {tensor}")
    for a, b in zip(expected, found):
        expect(abs(a - b) <= bounds[0] * max(1, abs(a)), f"losses {found}, on the CPU {expected}")
    expect(far <= bounds[1], f"{tensor} is {far} apart")


def test_emulate_trains_like_the_cpu(folder):
    compare(folder, "emulate", ("--gemm", "builtin"), launch__mode="graph")


def test_emulate_persistent_trains_like_the_cpu(folder):
    compare(folder, "emulate", launch__mode="persistent")


TOKENS = {"shape": [8], "dtype": "i32", "range": 11}
SEQUENCE = harness.model_text(
    layer("embedding", vocab=11, features=16), layer("attention", heads=2, causal=True, dropout=0.1),
    layer("layer_norm"), layer("linear", features=11),
    model={"name": "sequence"}, inputs={"tokens": TOKENS, "next": TOKENS},
    loss={"type": "cross_entropy", "target": "next"}, optimizer={"type": "adamw"})


def test_emulate_launch_modes_have_the_same_bits(folder):
    """Epochs with ragged micro-batches, and the file that --launch wrote rather than --set."""
    model = harness.example("residual_mlp")
    same_bits(folder, model, ("--data", harness.make_data(model, 19, folder)))


WIDE = """
[model]
name = "wide"
[inputs.image]
shape = [2, 51, 169]
[inputs.label]
dtype = "i32"
range = 2
[[layers]]
type = "group_norm"
groups = 1
[[layers]]
type = "flatten"
[[layers]]
type = "linear"
features = 2
[loss]
type = "cross_entropy"
target = "label"
[train]
micro_batch = 2
[precision]
compute = "f16"
[optimizer]
type = "sgd"
"""


def test_emulate_a_persistent_step_of_wide_blocks(folder):
    """Rows of 17,238 elements take blocks of 1,024 threads: gaccc warns of them, and they fit the GPU."""
    model = folder / "wide.toml"
    model.write_text(WIDE)
    small = run("gaccc", model, "-o", folder / "auto.ptx")
    expect("1024 threads" not in small.stderr, small.stderr)
    expect("step_persistent" not in (folder / "auto.ptx").read_text(), "auto takes blocks of 1,024 threads")
    done = run("gaccc", model, "--launch", "persistent", "-o", folder / "step.ptx")
    expect("warning" in done.stderr and "blocks of 1024 threads, with 64 registers for each" in done.stderr,
           done.stderr)
    run("gacc-exec", folder / "step.ptx", "--data", harness.make_data(model, 2, folder), "--device", "emulate",
        "--updates", 1)


def test_emulate_launch_modes_have_the_same_bits_with_special_kernels(folder):
    """Among them attention: a thread for a position, and a team of four, two of which have fewer channels."""
    model = folder / "sequence.toml"
    for features in (16, 80):
        model.write_text(SEQUENCE.replace("features = 16", f"features = {features}"))
        same_bits(folder, model, ("--data", "synthetic:tokens,limit=19"))


def test_emulate_attention_by_tensor_cores(folder):
    """In kernels of its own and in the persistent one; next to the CPU, whose probabilities are not rounded to
    halves."""
    model = folder / "sequence.toml"
    model.write_text(SEQUENCE.replace("features = 16", "features = 32") + '[precision]\ncompute = "f16"\n')
    expect("ex2.approx" in harness.compile_model(model, folder / "step.ptx").read_text(),
           "attention without tensor cores")
    data = ("--data", "synthetic:tokens,limit=19")
    same_bits(folder, model, data)
    found = [losses(folder / "graph.ptx", folder, data, "--epochs", 1, "--device", device)
             for device in ("cpu", "emulate")]
    far, tensor = harness.far_apart(found[1][2], found[0][2])
    print(f"losses {found[0][0]} on the CPU, {found[1][0]} emulated; parameters {far:.1e} apart in {tensor}")
    for a, b in zip(found[0][0], found[1][0]):
        expect(abs(a - b) <= 1e-4 * abs(a), f"losses {found[0][0]} on the CPU, {found[1][0]} emulated")


def same_bits(folder, model, data):
    data = (*data, "--epochs", 1)
    files = []
    for mode in ("graph", "persistent"):
        artifact, weights = folder / f"{mode}.ptx", folder / f"{mode}.safetensors"
        run("gaccc", model, "--launch", mode, "--set", "train.micro_batch=8", "--set", "train.accumulate=2", "-o",
            artifact)
        run("gacc-exec", artifact, *data, "--device", "emulate", "--save", weights, timeout=400)
        files.append(weights.read_bytes())
    expect(files[0] == files[1], "graph and persistent end with other weights")


def test_emulate_trains_with_cublas(folder):
    """The calls of cuBLASLt that the device makes, answered by the emulator."""
    compare(folder, "emulate", ("--gemm", "cublas"))
    # Rows with a pitch are leading dimensions.
    compare(folder, "emulate", ("--gemm", "cublas"), "tests/parity/models/wide_head.toml", 40, launch__mode="graph")
    # In half precision their products have 1008 classes, seven of which are zeros.
    for precision in ("f16", "bf16"):
        choices = folder / f"{precision}.choices"
        compare(folder, "emulate", ("--gemm", "cublas", "--tune-gemm", choices), "tests/parity/models/wide_head.toml",
                40,
                bounds=(1e-3, 5e-3), launch__mode="graph", precision__compute=precision)
        products = re.findall(r'"product": \[(\d+), (\d+), (\d+),', choices.read_text())
        expect({"1008"} == {n for product in products for n in product if int(n) > 1000}, products)
        expect(sum("1008" in product for product in products) == 3, products)


def test_emulate_ragged_micro_batches_and_evaluation(folder):
    """Epochs that end in a micro-batch of 3 samples and a window of its own, every example."""
    for name in ("regression", "residual_mlp"):
        micro_batch = 4
        data = ("--epochs", 1)
        compare(folder, "emulate", (), name, 5 * micro_batch + 3, data, train__micro_batch=micro_batch,
                train__accumulate=2, launch__mode="graph")


def test_emulate_convolutions_and_norms(folder):
    """Kernels of their own: convolutions, pooling; channels of a middle axis. The last micro-batch has 2 samples."""
    compare(folder, "emulate", (), "tests/parity/models/vision.toml", 16, ("--epochs", 1), launch__mode="graph")


SMALL_HALF = dict(train__micro_batch=4, train__accumulate=2, layers__fc1__features=16, layers__fc2__features=16,
                  layers__fc3__features=8)


def test_emulate_half_precision(folder):
    """Half copies, products and loss scale: built-in products, cuBLASLt's, and one persistent kernel."""
    for mode, options, updates in (("graph", ("--gemm", "builtin"), 3), ("graph", ("--gemm", "cublas"), 1),
                                   ("persistent", (), 1)):
        compare(folder, "emulate", options, "mnist_mlp_f16", 16, ("--updates", updates), launch__mode=mode,
                **SMALL_HALF)
    compare(folder, "emulate", (), "mnist_mlp_f16", 16, ("--updates", 3), launch__mode="graph",
            precision__compute="bf16",
            precision__loss_scale="none", **SMALL_HALF)


def test_emulate_pain_33_no_scalar_is_frozen(folder):
    """Rate, scale, counters and the window's count are read at every launch of a captured graph, not when it was
    captured: the log of six windows, one of them skipped, is the CPU's."""
    spec = update.data(folder, "planted", planted=[20])
    for mode in ("graph", "persistent"):
        artifact = harness.compile_model(update.MODEL, folder / "m.ptx", **update.DOUBLED, launch__mode=mode,
                                         train__micro_batch=3, train__accumulate=3,
                                         optimizer__type="adam", optimizer__lr=0.1, schedule__type="cosine",
                                         schedule__total=6,
                                         schedule__warmup=2, precision__loss_scale="dynamic",
                                         precision__scale_interval=2)
        logs = []
        for device in ("cpu", "emulate"):
            events, _, _ = update.train(folder, artifact, spec, device, "--device", device)
            logs.append(events)
        for figure in ("update", "launches", "samples", "loss_scale", "skipped"):
            expect([e[figure] for e in logs[0]] == [e[figure] for e in logs[1]], f"{mode}: {figure}: {logs}")
        for a, b in zip(*logs):
            for figure in ("lr", "loss"):
                far = 0 if a[figure] is None else abs(a[figure] - b[figure])
                expect(far <= 1e-5, f"{mode}: {figure} of update {a['update']}: {a[figure]} and {b[figure]}")
        scales, rates = ([e[k] for e in logs[1]] for k in ("loss_scale", "lr"))
        expect(len(set(scales)) > 1 and len(set(rates)) > 3, f"{mode}: nothing moves: {scales} {rates}")


def test_emulate_half_convolutions_and_norms(folder):
    compare(folder, "emulate", (), "tests/parity/models/vision.toml", 16, ("--epochs", 1), precision__compute="f16",
            launch__mode="graph")


SMALL_IMAGE = "inputs.image.shape=[1, 14, 14]"  # extents of 14, 7 and 3


def convolutions_as_products(folder, name, persistent, **settings):
    """Weights next to the CPU's, which sums in another order: as far apart as rounding moves them. Recompute and, in
    the type `persistent`, both launch modes have the same bits, with a ragged micro-batch at the end."""
    model = harness.example(name)
    data = ("--data", harness.make_data(model, 4, folder, sets=[SMALL_IMAGE]), "--epochs", 1)
    settings = dict(train__micro_batch=3, train__accumulate=2, optimizer__eps=1e-3, **settings)
    settings |= dict([SMALL_IMAGE.replace(".", "__").split("=")])
    for kind, bound in (("f32", 1e-4), ("f16", 4e-3), ("bf16", 3e-2)):
        half = dict(precision__compute=kind) | (dict(precision__loss_scale="none") if kind == "bf16" else {})
        files = []
        for variant in (dict(launch__mode="graph"), dict(launch__mode="graph", recompute__policy="all"),
                        dict(launch__mode="persistent")):
            if variant["launch__mode"] == "persistent" and kind != persistent:
                continue
            artifact, weights = folder / "step.ptx", folder / "weights.safetensors"
            harness.compile_model(model, artifact, **settings, **half, **variant)
            run("gacc-exec", artifact, *data, "--device", "emulate", "--gemm", "builtin", "--save", weights,
                timeout=400)
            files.append(weights.read_bytes())
        expect(len(set(files)) == 1, f"{kind}: persistent or recompute changes bits")
        cpu = folder / "cpu.safetensors"
        run("gacc-exec", artifact, *data, "--device", "cpu", "--save", cpu)
        far, tensor = harness.far_apart(harness.read_safetensors(weights), harness.read_safetensors(cpu))
        print(f"{name} in {kind}: parameters {far:.1e} apart in {tensor}")
        expect(far <= bound, f"{kind}: {tensor} is {far} apart")


def test_emulate_convolutions_as_products(folder):
    convolutions_as_products(folder, "mnist_cnn", "f32", layers__conv1__channels=24, layers__fc__features=16)


def test_emulate_convolutions_as_products_in_a_resnet(folder):
    """With groups and strides of 2."""
    convolutions_as_products(folder, "mnist_resnet", "f16", layers__stage1__repeat=1)


def change_ir(artifact, change):
    """Alters the IR inside an artifact, line by line, and the checksum with it."""

    def changed(body):
        ir, end, rest = body.partition(b"//end\n")
        return b"".join(change(line) for line in ir.splitlines(keepends=True)) + end + rest

    sealed(artifact, changed)


BIAS, WORKSPACE = rb" bias\([^)]*\)\)", rb" workspace\(\d+, \d+\)"


def test_emulate_bias_in_the_product(folder):
    """cuBLASLt adds the bias of attention's first product: one launch less for each, and the same bits; recompute
    changes none either."""
    model = pathlib.Path(__file__).resolve().parents[1] / "parity/models/attention.toml"
    spec = harness.make_data(model, 20, folder)
    removed = []

    def train(name, gemm="cublas", change=None, **settings):
        artifact, weights, trace = folder / f"{name}.ptx", folder / f"{name}.safetensors", folder / f"{name}.json"
        harness.compile_model(model, artifact, launch__mode="graph", **settings)
        if change:
            change_ir(artifact, change)
        run("gacc-exec", artifact, "--data", spec, "--updates", 2, "--device", "emulate", "--gemm", gemm, "--save",
            weights,
            "--profile", trace)
        launches = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") == "kernel"]
        done = [e for e in launches if e["name"].endswith("(in its product)")]
        expect(all(e["dur"] == 0 for e in done), f"what was not launched took time: {done}")
        return weights.read_bytes(), len(launches) - len(done)

    def without(line):
        removed.extend(re.findall(BIAS, line))
        return re.sub(BIAS, b"", line)

    fused, fused_launches = train("fused")
    plain, plain_launches = train("plain", change=without)
    expect(removed, "no product has a bias")
    expect(fused == plain, "other bits with the bias in the product")
    expect(fused_launches < plain_launches,
           f"{fused_launches} launches with the bias in the product, {plain_launches} without")
    # Built-in products have epilogues, which do more than a bias.
    expect(train("builtin", "builtin")[1] < fused_launches, "built-in products have launches that their epilogues do")
    expect(train("recompute", recompute__policy="all")[0] == fused, "recompute changes bits")


def fits(ir, launch):
    """Returns whether the emulator's algorithm, which wants room for one f32 for each element of C, has it in the
    arena."""
    extents = re.search(r" : ([^)]*)\)", launch)[1].split(", ")
    m, n = (math.prod(ir.micro_batch if word == "B" else int(word) for word in extent.split())
            for extent in extents[:2])
    room = re.search(r"workspace\(\d+, (\d+)\)", launch)
    return room is not None and int(room[1]) >= (4 * m * n + 255) // 256 * 256


def cublas_bits(folder, artifact, spec, *options):
    """Weights after two epochs, the second's last micro-batch captured; nothing may be reported."""
    weights = folder / "weights.safetensors"
    run("gacc-exec", artifact, "--data", spec, "--eval", spec, "--epochs", 2, "--device", "emulate", "--gemm", "cublas",
        "--save", weights, *options, timeout=400)
    return weights.read_bytes()


def test_emulate_products_work_in_the_arena(folder):
    """The emulator's algorithm destroys all of the workspace that it is lent. Without any in the plan, with
    recompute, and under a budget that leaves little free, the weights are the same to the bit, ragged micro-batches
    included."""
    folders = pathlib.Path(__file__).resolve().parents[1] / "parity/models"
    for model, samples in ((harness.example("residual_mlp"), 11), (folders / "attention.toml", 5),
                           (folders / "vision.toml", 5)):
        spec = harness.make_data(model, samples, folder)
        settings = dict(launch__mode="graph", train__micro_batch=4, train__accumulate=2)
        artifact = harness.compile_model(model, folder / "plain.ptx", **settings)
        ir = harness.ArtifactIr(artifact)
        expect(any(fits(ir, l) for l in ir.launches() if l.startswith("product ")),
               f"{model}: no product has room in the arena")
        expected = cublas_bits(folder, artifact, spec)
        change_ir(artifact, lambda line: re.sub(WORKSPACE, b"", line))
        expect(cublas_bits(folder, artifact, spec) == expected, f"{model}: other bits beside the arena")
        least = None
        for recompute in (dict(recompute__policy="all"), dict(recompute__policy="sqrt"), "budget"):
            if recompute == "budget":
                recompute = dict(memory__budget=f"{least}B")
            artifact = harness.compile_model(model, folder / "recompute.ptx", **settings, **recompute)
            peak = harness.ArtifactIr(artifact).arena
            least = min(least or peak, peak)
            expect(cublas_bits(folder, artifact, spec) == expected, f"{model}: other bits with {recompute}")


def test_emulate_reports_end_the_run(folder):
    """A kernel that reads or writes beyond the arena: the addresses of its accesses are altered, and the checksum
    with it."""
    model = harness.example("regression")
    artifact = harness.compile_model(model, folder / "step.ptx", launch__mode="graph")
    spec = harness.make_data(model, 64, folder)
    grids = {harness.function_of(l): int(re.search(r"grid\((\d+)", l)[1])
             for l in harness.ArtifactIr(artifact).launches() if l.startswith("kernel ")}
    kernel = max(grids, key=grids.get)

    def stray(body):
        before, entry, code = body.partition(f".entry {kernel}(".encode())
        return before + entry + re.sub(rb"((?:ld|st)\.global\S*\s[^;]*\[%rd\d+)(?:\+-?\d+)?\]", rb"\1+1073741824]",
                                       code)

    sealed(artifact, stray)
    done = run("gacc-exec", artifact, "--data", spec, "--updates", 1, "--device", "emulate", code=1)
    expect(kernel in done.stderr, f"no report names {kernel}:\n{done.stderr}")
    line = int(done.stderr.split(kernel + ": line ", 1)[1].split(":", 1)[0])
    text = artifact.read_text().splitlines()[line - 1]
    expect("ld.global" in text or "st.global" in text, f"line {line} of the artifact is no access: {text}")
    print(done.stderr)


def gpu_or_skip(folder, *options):
    done = run("gacc-exec", artifact_of(folder), "--init-only", "--device", "cuda", *options, code=(0, 1))
    if done.returncode:
        harness.skip(done.stderr.strip())


def test_gpu_trains_like_the_cpu(folder):
    gpu_or_skip(folder)
    compare(folder, "cuda", launch__mode="graph")


def test_gpu_trains_with_builtin_products(folder):
    gpu_or_skip(folder, "--gemm", "builtin")
    compare(folder, "cuda", ("--gemm", "builtin"), launch__mode="graph")


def test_gpu_persistent_trains_like_the_cpu(folder):
    gpu_or_skip(folder)
    compare(folder, "cuda", launch__mode="persistent")


if __name__ == "__main__":
    harness.main(globals())
