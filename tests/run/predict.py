"""--predict and --generate: the outputs of a trained model, and text that it goes on with."""
import array
import ctypes
import itertools
import json
import math
import os
import re
import struct
import subprocess
import sys

import harness
from harness import expect, layer, model_text, run

ORACLE = harness.ROOT.parent / "shared/oracle"
MLP = "".join((layer("linear", name="hidden", features=11, activation="gelu"), layer("dropout", p=0.4),
               layer("linear", name="out", features=5)))
CNN = "".join((layer("conv2d", name="conv", channels=6, kernel=3, padding=1), layer("batch_norm", name="norm"),
               layer("activation", fn="relu"), layer("max_pool2d", kernel=2), layer("dropout", p=0.3), layer("flatten"),
               layer("linear", name="out", features=4)))
LENGTH, VOCABULARY = 8, 128


def gpt(attention=layer("attention", name="attn", heads=2, causal=True), vocabulary=VOCABULARY, last="", predict=""):
    """A tiny model of text; `last`: layers before the head."""
    return model_text(
        layer("embedding", name="wte", vocab=vocabulary, features=16), layer("position_embedding", name="wpe"),
        layer("sequential", layer("residual", layer("layer_norm", name="ln"), attention, name="r"), name="h", repeat=2),
        last, layer("rms_norm", name="norm"), layer("linear", name="head", tied="wte", features=vocabulary, bias=False),
        predict,
        model={"name": "tiny-gpt", "seed": 3}, inputs=harness.tokens_and_next(LENGTH, vocabulary),
        loss={"type": "cross_entropy", "target": "next"}, train={"micro_batch": 4},
        optimizer={"type": "adam", "lr": 0.01})


def trained(folder, model, samples, updates=6, name="m", data=None, **settings):
    """The model compiled and trained: (artifact, weights, data)."""
    artifact = harness.compile_text(folder, model, name, **settings)
    data = data or harness.make_data(artifact.with_suffix(".toml"), samples, folder)
    weights = folder / f"{name}.safetensors"
    run("gacc-exec", artifact, "--data", data, "--updates", updates, "--save", weights, "--device", "cpu")
    return artifact, weights, data


def predict(artifact, weights, data, out, *more, device="cpu"):
    """(shape, values) of --predict."""
    done = run("gacc-exec", artifact, "--data", data, "--load", weights, "--predict", out, "--device", device, *more)
    expect(done.stdout == "", done.stdout)
    return harness.read_npy(out)


def generate(artifact, weights, tokens, *more, code=0, device="cpu"):
    command = [harness.BIN / "gacc-exec", artifact, "--load", weights, "--generate", str(tokens), "--device", device,
               *map(str, more)]
    done = subprocess.run(command, capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
    expect(done.returncode == code, f"exit {done.returncode}: {done.stderr.decode()}")
    return done.stdout if code == 0 else done.stderr.decode()


def far(got, wanted):
    return harness.norm([a - b for a, b in zip(got, wanted, strict=True)]) / harness.norm(wanted)


def test_outputs_are_those_that_eval_measures(folder):
    """The mean of the outputs' losses is the one that --eval gives; 13 samples in runs of 4; the same file whatever
    the threads."""
    for device in ("cpu", "emulate"):
        artifact, weights, data = trained(folder, harness.classifier("mlp", [7], 5, MLP, "micro_batch = 4", seed=2), 13)
        shape, logits = predict(artifact, weights, data, folder / "out.npy", device=device)
        expect(shape == [13, 5], shape)
        labels = harness.make_arrays(folder / "m.toml", 13)["y"][0]
        rows = [logits[5 * i:5 * i + 5] for i in range(13)]
        loss = math.fsum(math.log(math.fsum(math.exp(z) for z in row)) - row[y] for row, y in zip(rows, labels)) / 13
        run("gacc-exec", artifact, "--eval", data, "--load", weights, "--log", folder / "log", "--device", device)
        measured = next(e["loss"] for e in harness.read_log(folder / "log") if e["event"] == "eval")
        expect(abs(loss - measured) < 1e-6 * measured, f"{device}: {loss}, and --eval gives {measured}")
        for spec, told in ((data, True), (f"npy:x={folder}/x.npy", False)):
            done = run("gacc-exec", artifact, "--data", spec, "--load", weights, "--predict", folder / "out.npy",
                       "--device", device)
            expect((f"eval: loss {measured:.6g}, 13 samples\n" in done.stderr) == told, done.stderr)
        for n in (1, 2) if device == "cpu" else ():
            expect(predict(artifact, weights, data, folder / "again.npy", "--threads", n)[1] == logits, f"{n} threads")
    expect(predict(artifact, weights, data + ",limit=3",
                   folder / "out.npy")[1] == predict(artifact, weights, data, folder / "all.npy")[1][:15], "limit")


# As on a CPU with these instructions, of those that this one has (docs/using-a-model.md).
ISAS = ("", "AVX2", "SSE41")
NEIGHBOURS = {
    "mlp": (harness.classifier("mlp", [7], 5, MLP, "micro_batch = 4", seed=2), {}),
    "wide": (harness.classifier("wide", [300], 33, layer("linear", features=65, activation="tanh")
                                + layer("linear", features=33)), {}),
    "half": (harness.classifier("half", [40], 6, layer("linear", features=24) + layer("linear", features=6)),
             {"precision__compute": "f16"}),
    "cnn": (harness.classifier("cnn", [2, 8, 8], 4, CNN), {}),
    "gpt": (gpt(), {}),
}


def test_a_row_does_not_depend_on_its_neighbours(folder):
    """Of 13 samples each has the same bits, whether 1, 2, 3, 5 or all are computed, on any CPU."""
    for isa in ISAS:
        env = os.environ | ({"ONEDNN_MAX_CPU_ISA": isa} if isa else {})
        for name, (model, settings) in NEIGHBOURS.items():
            artifact, weights, data = trained(folder, model, 13, **settings)
            common = ["gacc-exec", artifact, "--load", weights, "--device", "cpu", "--predict", folder / "out.npy",
                      "--data"]
            run(*common, data, env=env)
            (samples, *_), whole = harness.read_npy(folder / "out.npy")
            each = len(whole) // samples
            for count in (1, 2, 3, 5):
                run(*common, f"{data},limit={count}", env=env)
                expect(harness.read_npy(folder / "out.npy")[1] == whole[:count * each],
                       f"{name} on {isa or 'this CPU'}: {count} of 13 samples")


def test_labels_cost_no_second_pass(folder):
    """What is printed beside predictions is what --eval prints, by `measure` where the artifact has it: not where
    sums are cut as a window's are."""
    weighted = harness.classifier("mlp", [7], 5, MLP, "micro_batch = 4",
                                  seed=2).replace('target = "y"', 'target = "y"\nclass_weights = [1, 2, 0.5, 1, 3]')
    regression = model_text(layer("linear", features=2), model={"name": "r", "metrics": ["mae", "rmse", "r2"]},
                            inputs={"x": {"shape": [6]}, "y": {"shape": [2], "normalize": "data"}},
                            optimizer={"type": "sgd"}, loss={"type": "mse", "target": "y"}, train={"micro_batch": 4})
    for text, sets, at_once in ((weighted, {"precision.compute": "f16"}, True),
                                (regression, {"train.accumulate": "2", "train.lanes": "2"}, True),
                                (regression, {"train.require": "bits"}, False)):
        artifact, weights, data = trained(folder, text, 13, **{key.replace(".", "__"): value for key,
                                                               value in sets.items()})
        ir = run("gaccc", folder / "m.toml", "--emit", "ir", "-o", "-",
                 *(word for each in sets.items() for word in ("--set", "=".join(each)))).stdout
        expect(("\n  measure(" in ir) == at_once, sets)
        told = run("gacc-exec", artifact, "--eval", data, "--load", weights, "--device", "cpu").stdout.splitlines()[0]
        done = run("gacc-exec", artifact, "--data", data, "--load", weights, "--predict", folder / "out.npy",
                   "--device", "cpu")
        expect(told.startswith("eval: loss ") and told in done.stderr.splitlines(),
               f"{sets}: {told!r}, and {done.stderr}")


def test_labelled_data_are_read_once(folder):
    artifact, weights, data = trained(folder, harness.classifier("mlp", [7], 5, MLP, "micro_batch = 4", seed=2), 13)
    libc, event = ctypes.CDLL(None), 16  # bytes, of a file that is watched itself
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, bytes(folder / "x.npy"), 0x30)  # IN_OPEN, IN_CLOSE_NOWRITE
    done = run("gacc-exec", artifact, "--data", data, "--load", weights, "--predict", folder / "out.npy", "--device",
               "cpu")
    expect("eval: loss" in done.stderr and len(os.read(watch, 4096)) == 2 * event,
           f"the data are opened more than once:\n{done.stderr}")


def test_standard_streams(folder):
    """`-` is the artifact on standard input, and the outputs on standard output, where nothing else is."""
    artifact, weights, data = trained(folder, harness.classifier("mlp", [7], 5, MLP, "micro_batch = 4", seed=2), 13)
    predict(artifact, weights, data, folder / "out.npy")
    with open(artifact, "rb") as stdin:
        done = subprocess.run([harness.BIN / "gacc-exec", "-", "--data", data, "--load", weights, "--predict", "-",
                               "--device", "cpu"],
                              stdin=stdin, capture_output=True, cwd=folder)
    expect(done.returncode == 0 and done.stdout == (folder / "out.npy").read_bytes(), done.stderr)
    expect(not (folder / "-").exists(), "a file called -")


def test_labels_are_not_needed(folder):
    artifact, weights, data = trained(folder, harness.classifier("mlp", [7], 5, MLP, "micro_batch = 4"), 13)
    shape, logits = predict(artifact, weights, data, folder / "out.npy")
    only = f"npy:x={folder}/x.npy"
    expect(predict(artifact, weights, only, folder / "b.npy")[1] == logits, "without labels")
    values = harness.make_arrays(folder / "m.toml", 13)["x"][0]
    lines = [",".join(map(repr, values[7 * i:7 * i + 7])) for i in range(13)]
    (folder / "x.csv").write_text("a,b,c,d,e,f,g\n" + "\n".join(lines) + "\n")
    expect(predict(artifact, weights, f"csv:{folder}/x.csv", folder / "c.npy")[1] == logits, "a csv without labels")
    harness.write_npy(folder / "y.npy", array.array("i", [99] * 13), [13])  # no class of the model
    expect(predict(artifact, weights, data, folder / "d.npy")[1] == logits, "labels that nobody reads")
    done = run("gacc-exec", artifact, "--data", f"npy:y={folder}/y.npy", "--load", weights, "--predict",
               folder / "e.npy", code=1)
    harness.one_error(done, 'nothing is given for the input "x"')
    expect(not (folder / "e.npy").exists(), "an output is left behind")
    # From a checkpoint, for other data than the run's; the folder stays as it is.
    state = ("--checkpoint", folder / "run")
    (folder / "y.npy").unlink()
    data = harness.make_data(folder / "m.toml", 13, folder)
    run("gacc-exec", artifact, "--data", data, "--updates", 6, *state, "--save", folder / "w", "--device", "cpu")
    before = (folder / "run/checkpoint").read_bytes()
    run("gacc-exec", artifact, "--data", only + ",limit=5", *state, "--resume", "--predict", folder / "f.npy",
        "--device", "cpu")
    expect(far(harness.read_npy(folder / "f.npy")[1], logits[:25]) < 1e-6, "from a checkpoint")  # in runs of 4 and 1
    expect((folder / "run/checkpoint").read_bytes() == before, "the checkpoint was written")
    # The result of predict is no part of training: the run goes on with an artifact that gives something else.
    harness.compile_model(folder / "m.toml", folder / "m.ptx", predict__layer="hidden")
    run("gacc-exec", artifact, "--data", data, "--updates", 7, *state, "--resume", "--device", "cpu")


COMPARE = """
import sys, tomllib, pathlib
sys.path.insert(0, sys.argv[1])
import numpy, torch, oracle
model, weights, data, out, layer = sys.argv[2:]
cfg = tomllib.loads(pathlib.Path(model).read_text())
for each in cfg["layers"]:
    if each["type"] == "dropout":
        each["p"] = 0
wide = lambda tensors: {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}
net = oracle.Net(cfg, wide(oracle.load_safetensors(weights)))
net.train = False
with torch.no_grad():
    wanted = net(wide(oracle.load_data(data, cfg)))
wanted = (net.named[layer] if layer else wanted).numpy()
got = numpy.load(out)
assert got.dtype == numpy.float32 and got.shape == wanted.shape, (got.dtype, got.shape, wanted.shape)
print(numpy.linalg.norm(got - wanted) / numpy.linalg.norm(wanted))
"""


def test_outputs_are_pytorchs(folder):
    """The trained parameters in PyTorch: the same outputs."""
    python = next((p for p in ("/usr/bin/python3", sys.executable)
                   if subprocess.run([p, "-c", "import torch, numpy"], capture_output=True).returncode == 0), None)
    if not (ORACLE / "oracle.py").exists() or python is None:
        harness.skip("no ../shared/oracle/oracle.py, or no Python with numpy and PyTorch")
    cases = [("mlp", harness.classifier("mlp", [7], 5, MLP, "micro_batch = 4", seed=2), 13, ""),
             ("hidden", harness.classifier("mlp", [7], 5, MLP + '[predict]\nlayer = "hidden"', "micro_batch = 4",
                                           seed=2), 13, "hidden"),
             ("cnn", harness.classifier("cnn", [3, 6, 6], 4, CNN, "micro_batch = 4", seed=2), 14, ""),
             ("gpt", gpt(), 11, "")]
    for name, model, samples, layer in cases:
        artifact, weights, data = trained(folder, model, samples, name=name)
        for device in ("cpu", "emulate"):
            predict(artifact, weights, data, folder / "out.npy", device=device)
            done = subprocess.run([python, "-c", COMPARE, ORACLE, folder / f"{name}.toml", weights, data,
                                   folder / "out.npy", layer],
                                  capture_output=True, text=True)
            expect(done.returncode == 0, done.stderr)
            print(f"{name} on {device}: {float(done.stdout):.2g}")
            expect(float(done.stdout) < 1e-5, f"{name} on {device}: {done.stdout}")


def test_half_precision_gives_f32(folder):
    model = harness.classifier("half", [7], 5, MLP, "micro_batch = 4", seed=2)
    artifact, weights, data = trained(folder, model, 13, name="full")
    wanted = predict(artifact, weights, data, folder / "full.npy")[1]
    for compute in ("f16", "bf16"):
        half = harness.compile_text(folder, model, "half", precision__compute=compute)
        got = predict(half, weights, data, folder / "half.npy")[1]
        expect(0 < far(got, wanted) < 2e-2, f"{compute}: {far(got, wanted)}")
        expect(far(predict(half, weights, data, folder / "again.npy", device="emulate")[1], got) < 5e-3,
               f"{compute}: the emulator's")


def test_the_text_goes_on(folder):
    """Greedily, each token is the most likely one at the last position of its window, also beyond the model's
    length."""
    (folder / "text").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 12)
    artifact, weights, _ = trained(folder, gpt(), 0, updates=40, data=f"text:{folder}/text")
    tokens = list(b"the ")
    while len(tokens) < 16:
        window = tokens[-LENGTH:]
        harness.write_npy(folder / "w.npy", array.array("i", window + [0] * (LENGTH - len(window))), [1, LENGTH])
        logits = predict(artifact, weights, f"npy:tokens={folder}/w.npy", folder / "out.npy")[1]
        row = logits[(len(window) - 1) * VOCABULARY:len(window) * VOCABULARY]
        tokens.append(max(range(VOCABULARY), key=lambda t: row[t]))
    greedy = ("--prompt", "the ", "--temperature", 0)
    text = generate(artifact, weights, 12, *greedy)
    expect(text == bytes(tokens[4:]), f"{text}, expected {bytes(tokens)}")
    expect(generate(artifact, weights, 12, *greedy, "--seed", 9) == text, "a seed has no part in it")
    expect(generate(artifact, weights, 12, "--prompt", "the ", "--top-k", 1) == text, "one choice")
    expect(generate(artifact, weights, 0) == b"", "no tokens")
    drawn = [generate(artifact, weights, 40, "--seed", seed, "--threads", n) for seed in (1, 2) for n in (1, 2, 1)]
    expect(len(drawn[0]) == 40 and drawn[0] == drawn[1] == drawn[2] != drawn[3] == drawn[4] == drawn[5], drawn)
    expect(generate(artifact, weights, 40, "--prompt", "\n", "--seed", 1) == drawn[0],
           "the prompt is a newline unless said")
    expect(generate(artifact, weights, 12, "--seed", 1, device="emulate") == drawn[0][:12],
           "the emulator says something else")
    full = subprocess.run(["bash", "-c",
                           f"'{harness.BIN}/gacc-exec' '{artifact}' --load '{weights}' --generate 3 --device cpu "
                           f">/dev/full"],
                          capture_output=True, text=True)
    harness.one_error(full, "cannot write standard output")
    # A position's token depends on the text before it, not on how much of it was asked for at once.
    first = generate(artifact, weights, 10, "--prompt", "a", "--seed", 5)
    expect(generate(artifact, weights, 30, "--prompt", "a", "--seed", 5)[10:] ==
           generate(artifact, weights, 20, "--prompt", (b"a" + first).decode(), "--seed", 5), "in two parts")


def test_the_text_ends_before_what_stops_it(folder):
    (folder / "text").write_bytes(b"the quick brown fox jumps over the lazy dog. " * 12)
    artifact, weights, _ = trained(folder, gpt(), 0, updates=40, data=f"text:{folder}/text")
    whole = generate(artifact, weights, 40, "--seed", 3)
    for first, last in ((5, 6), (7, 10), (0, 2)):
        stop = whole[first:last].decode()
        wanted = whole[:whole.index(stop.encode())]
        got = generate(artifact, weights, 40, "--seed", 3, "--stop", stop)
        expect(got == wanted, f"{got} for {wanted}, before {stop!r}")
    expect(generate(artifact, weights, 40, "--seed", 3, "--stop", "~never~") == whole, "nothing stops it")
    expect(generate(artifact, weights, 40, "--seed", 3, "--top-p", 1) == whole, "all tokens")
    greedy = generate(artifact, weights, 12, "--temperature", 0)
    expect(generate(artifact, weights, 12, "--top-p", 1e-6, "--seed", 8) == greedy, "the most likely alone")
    for wrong in (0, 1.5, "x"):
        expect(f'--top-p: "{wrong}" is not a number above 0, up to 1' in generate(
            artifact, weights, 3, "--top-p", wrong, code=2), wrong)


def drawn_token(logits, seed, position, temperature=1, top_k=None, top_p=1):
    """The token that --generate draws at a position of the text: all are sorted, of equal ones the lower number
    first."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[:top_k]
    sums = list(itertools.accumulate(math.exp((logits[token] - logits[order[0]]) / temperature) for token in order))
    sums = sums[:1 + next(i for i, each in enumerate(sums) if each >= top_p * sums[-1])]
    words, low, high = [position, 0, 0, 0x4745], seed, 0  # Philox4x32-10
    for _ in range(10):
        a, b = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [b >> 32 ^ words[1] ^ low, b % 2**32, a >> 32 ^ words[3] ^ high, a % 2**32]
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    number = (words[1] << 32 | words[0]) // 2**11 * 2.0**-53 * sums[-1]
    return order[next(i for i, each in enumerate(sums) if each > number)]


def test_tokens_are_drawn_from_the_most_likely_on(folder):
    """Of an untrained model's 700 tokens, of which the first 600 are equal or all differ."""
    vocabulary = 700
    artifact, weights, _ = trained(folder, gpt(vocabulary=vocabulary), 4)
    for ties in (False, True):
        tensors = harness.read_safetensors(weights)
        if ties:
            tensors["wte.weight"][1][:600 * 16] = tensors["wte.weight"][1][:16] * 600
        harness.write_safetensors(folder / "w.safetensors", tensors)
        harness.write_npy(folder / "w.npy", array.array("i", [5] + [0] * (LENGTH - 1)), [1, LENGTH])
        logits = predict(artifact, folder / "w.safetensors", f"npy:tokens={folder}/w.npy",
                         folder / "out.npy")[1][:vocabulary]
        for seed, (option, value) in enumerate([("temperature", 1), ("temperature", 0.1), ("top-k", 3), ("top-k", 500),
                                                ("top-p", 0.3), ("top-p", 0.999)] * 4):
            got = int(generate(artifact, folder / "w.safetensors", 1, "--prompt", "5", "--seed", seed, f"--{option}",
                               value))
            wanted = drawn_token(logits, seed, 1, **{option.replace("-", "_"): value})
            expect(got == wanted, f"ties {ties}, --seed {seed} --{option} {value}: {got}, expected {wanted}")


def test_a_prompt_a_line(folder):
    """Each line is what the prompt alone gives."""
    (folder / "text").write_bytes(b"the quick brown fox\njumps over \\ the lazy dog. " * 12)
    artifact, weights, _ = trained(folder, gpt(), 0, updates=40, data=f"text:{folder}/text")
    prompts = ["the ", "q", "over the lazy", "fox\n\\"]

    def line(text):
        return text.replace("\\", "\\\\").replace("\n", "\\n") + "\n"

    (folder / "p.txt").write_text("".join(map(line, prompts)))
    lines = generate(artifact, weights, 20, "--seed", 3, "--prompts", folder / "p.txt").decode("latin1")
    wanted = [generate(artifact, weights, 20, "--seed", 3, "--prompt", prompt).decode("latin1") for prompt in prompts]
    expect(lines == "".join(map(line, wanted)), f"{lines!r} for {wanted}")
    (folder / "p.txt").write_text("a\\q\n")
    expect(f"{folder}/p.txt:1: a \\ stands before n" in generate(artifact, weights, 3, "--prompts", folder / "p.txt",
                                                                 code=1), "")
    (folder / "p.txt").write_text("a\n\nb\n")
    expect(f"{folder}/p.txt:2: is empty; a line is a prompt" in generate(
        artifact, weights, 3, "--prompts", folder / "p.txt", code=1), "")
    expect("take one of them" in generate(artifact, weights, 3, "--prompts", folder / "p.txt", "--prompt", "a", code=2),
           "")


def test_numbers_for_large_vocabularies(folder):
    artifact, weights, data = trained(folder, gpt(vocabulary=300), 6)
    text = generate(artifact, weights, 5, "--prompt", " 7 299  0", "--seed", 1)
    numbers = [int(word) for word in text.decode().rstrip("\n").split(" ")]
    expect(text.endswith(b"\n") and len(numbers) == 5 and all(0 <= n < 300 for n in numbers), text)
    expect(generate(artifact, weights, 5, "--prompt", " 7 299  0", "--seed", 1, "--stop", numbers[2]).split() ==
           text.split()[:numbers.index(numbers[2])], "a number stops it")
    (folder / "p.txt").write_text("7 299 0\n1\n")
    lines = generate(artifact, weights, 5, "--prompts", folder / "p.txt", "--seed", 1).splitlines()
    expect(lines[0] == text.rstrip(b"\n") and len(lines) == 2, lines)
    for prompt, words in ((["--prompt", "7 300"], '"300" is no token: the model has the numbers 0 to 299'),
                          (["--prompt", "x"], '"x" is no token'),
                          ([], "the model has 300 tokens, which are no bytes: --prompt gives numbers")):
        expect(words in generate(artifact, weights, 5, *prompt, code=1), words)


def refused(folder, model, words):
    artifact = harness.compile_text(folder, model)
    run("gacc-exec", artifact, "--init-only", "--save", folder / "w", "--device", "cpu")
    harness.one_error(run("gacc-exec", artifact, "--load", folder / "w", "--generate", 3, code=1),
                      "--generate is for models of tokens, whose positions meet in causal attention alone: " + words)


def test_other_models_do_not_generate(folder):
    refused(folder, gpt(layer("attention", name="attn", heads=2)),
            "`attention` makes `h.0.r.attn.heads` of several positions, also of later ones")
    swap = layer("permute", axes=[1, 0])
    refused(folder, gpt(last=swap + layer("linear", features=8) + swap),
            "`permute` makes `permute_0` of several positions")
    reshaped = layer("flatten") + layer("linear", features=16 * LENGTH) + layer("reshape", shape=[LENGTH, 16])
    refused(folder, gpt(last=reshaped), "`reshape` makes `flatten_0` of several positions")
    refused(folder, gpt(predict='[predict]\nlayer = "norm"').replace("dtype = \"i32\"\n[inputs.next]",
                                                                     "dtype = \"i32\"\nrange = 9\n[inputs.next]"),
            'it gives what the layer "norm" makes, and the loss takes another')
    refused(folder, harness.classifier("mlp", [7], 5, MLP), 'the input "x" is f32[7], not i32[T]')
    for last in (layer("softmax"), layer("activation", fn="gelu"), layer("dropout", p=0.5),
                 layer("concat", name="c", inputs=["wte", "wpe"], axis=1) + layer("linear", features=16)):
        artifact = harness.compile_text(folder, gpt(last=last))  # these keep positions apart
        run("gacc-exec", artifact, "--init-only", "--save", folder / "w", "--device", "cpu")
        expect(len(generate(artifact, folder / "w", 3)) == 3, last)
    few = harness.compile_text(folder, gpt(vocabulary=7))
    run("gacc-exec", few, "--init-only", "--save", folder / "w", "--device", "cpu")
    expect("--prompt: an empty one is a newline, byte 10, and the model knows 0 to 6" in generate(
        few, folder / "w", 3, code=1), "no newline")


def plans(folder, model):
    """Returns the plans of IR in phase model, with and without its `predict` and `measure`."""
    begin = model.index("\n  predict(")
    end = len(model) - 2  # they are the last
    passes = [line.split()[0] for line in run("gacc-opt", "--list-passes").stdout.splitlines()]
    for text in (model, model[:begin] + model[end:]):
        (folder / "in.gir").write_text(text)
        yield run("gacc-opt", folder / "in.gir", "--passes", ",".join(passes[:passes.index("plan-memory") + 1])).stdout


def training(plan):
    """Returns what a plan says of training."""
    return re.sub(r"\n  set predict\.\S+ = .*", "", re.sub(r"(?s)\n\n  (predict|answer|decode|measure)\(.*?\n  }", "",
                                                           plan))


def test_predictions_cost_no_memory(folder):
    """The plan with and without `predict`: the same arena, and the same step and update; in f32 and in f16. A whole
    micro-batch fits."""
    names = [path.stem for path in sorted((harness.ROOT / "examples").glob("*.toml"))
             if path.stem != "gpt2_124m"]  # whose plan takes long
    for name, compute in itertools.product(names, ("f32", "f16")):
        model = run("gaccc", harness.example(name), *harness.SHORTER.get(name, []), "--set",
                    f"precision.compute={compute}", "--emit", "ir", "--stop-after", "model", "-o", "-").stdout
        with_it, without = plans(folder, model)
        setting = lambda key: re.search(rf"\n  set {key} = (.*)", with_it)[1]
        expect(setting("predict.batch") == setting("train.micro_batch"), f"{name} in {compute}: fewer samples")
        expect(training(with_it) == training(without), f"{name} in {compute}: the plan of training differs")


def wide(features, predict=""):
    """A wide layer that the loss does not depend on: the step has no room for its output."""
    layers = (layer("linear", name="inner", features=64), layer("linear", name="small", features=3),
              layer("linear", name="wide", input="x", features=features, trainable=False), predict)
    return harness.classifier("wide", [4], 3, layers, "micro_batch = 16").replace("[loss]", '[loss]\ninput = "small"')


def test_as_many_samples_as_fit(folder):
    """With a wide output a run takes fewer samples; when not even one fits, compiling goes on and --predict says
    why."""
    asked = '[predict]\nlayer = "wide"'
    for features, most in ((4, (16, 16)), (400, (1, 15)), (100000, (0, 0))):
        (folder / "m.toml").write_text(wide(features, asked))
        plan = json.loads(run("gaccc", folder / "m.toml", "--plan", "--json").stdout)
        (folder / "n.toml").write_text(wide(features))
        expect(plan["bytes"]["peak"] == json.loads(run("gaccc", folder / "n.toml", "--plan",
                                                       "--json").stdout)["bytes"]["peak"], "peak")
        expect(most[0] <= plan["predict"]["batch"] <= most[1], f"{features}: {plan['predict']}")
        text = run("gaccc", folder / "m.toml", "--plan").stdout
        expect(("predictions " in text) == (most != (16, 16)), text)
        artifact, weights, data = trained(folder, wide(features, asked), 21, updates=1)
        if most == (0, 0):
            done = run("gacc-exec", artifact, "--data", data, "--load", weights, "--predict", folder / "out.npy",
                       code=1)
            harness.one_error(done,
                              f"the output of one sample does not fit into the artifact's memory: it needs "
                              f"{plan['predict']['needs']} bytes")
            continue
        shape, values = predict(artifact, weights, data, folder / "out.npy")
        expect(shape == [21, features], shape)
        rows = harness.make_arrays(folder / "m.toml", 21)["x"][0]
        tensors = harness.read_safetensors(weights)
        weight, bias = tensors["wide.weight"][1], tensors["wide.bias"][1]
        for i in (0, 7, 20):
            row = [bias[j] + math.fsum(weight[4 * j + k] * rows[4 * i + k] for k in range(4)) for j in range(features)]
            expect(far(values[features * i:features * (i + 1)], row) < 1e-5, f"sample {i}")
        expect(far(predict(artifact, weights, data, folder / "e.npy", device="emulate")[1], values) < 1e-6,
               "the emulator")


def test_a_large_head_in_parts(folder):
    """Logits of one sample without room come in parts: the same as in one piece, for the same memory."""
    vocabulary, rows = 1009, LENGTH
    text = gpt(vocabulary=vocabulary)
    for compute, most in (("f16", 1e-3), ("f32", 1e-6)):
        small = {"precision__compute": compute, "train__micro_batch": 1, "loss__chunks": 4}
        artifact, weights, data = trained(folder, text, 5, updates=3, name="whole", precision__compute=compute)
        parts = harness.compile_text(folder, text, "parts", **small)
        shape, values = predict(artifact, weights, data, folder / "out.npy")
        again, got = predict(parts, weights, data, folder / "out.npy")
        expect(shape == again == [5, rows, vocabulary] and far(got, values) < most, f"{compute}: {far(got, values)}")
        one = [predict(each, weights, data + ",limit=1", folder / "out.npy", device="emulate")[1]
               for each in (artifact, parts)]
        expect(one[0] == one[1] and far(one[1], got[:len(one[1])]) < most, f"{compute}: the emulator")
    expect(predict(parts, weights, data, folder / "out.npy", "--threads", 2)[1] == got, "2 threads")
    words = [generate(each, weights, 12, "--prompt", "1 2 3", "--seed", 4) for each in (artifact, parts)]
    expect(words[0] == words[1] and len(words[0].split()) == 12, words)
    # A checkpoint says nothing of how predictions are made.
    run("gacc-exec", parts, "--data", data, "--updates", 1, "--device", "cpu", "--checkpoint", folder / "kept")
    inner = harness.compile_text(folder, gpt(vocabulary=vocabulary, predict='[predict]\nlayer = "h"\n'), "inner",
                                 **small)
    run("gacc-exec", inner, "--data", data, "--predict", folder / "inner.npy", "--device", "cpu", "--checkpoint",
        folder / "kept", "--resume")
    expect(harness.read_npy(folder / "inner.npy")[0] == [5, rows, 16], "the output of a layer")

    model = [folder / "parts.toml", *harness.sets_of(small)]
    asked = json.loads(run("gaccc", *model, "--plan", "--json").stdout)["predict"]
    expect(asked["batch"] == 1 and asked["needs"] == 0 and asked["parts"] > 1 and rows % asked["parts"] == 0, asked)
    said = f"of 1 sample at once, in {asked['parts']} parts of {rows // asked['parts']} of its {rows} rows, for which the peak has room"
    expect(f"\n  predictions       {said}\n" in run("gaccc", *model, "--plan").stdout, said)
    run("gaccc", *model, "--report", folder / "page.html", "-o", folder / "m.ptx")
    expect(f'"text":"{said}"' in (folder / "page.html").read_text(), "the report")
    with_it, without = plans(folder, run("gaccc", *model, "--emit", "ir", "--stop-after", "model", "-o", "-").stdout)
    expect("\n  answer(" in with_it and training(with_it) == training(without), "the plan of training differs")


def test_labels_are_not_looked_at(folder):
    """They may be missing, empty, text or damaged, and no row is left out for them."""
    step = harness.compile_text(folder, harness.classifier("m", [2], 2, layer("linear", name="o", features=2)))
    run("gacc-exec", step, "--init-only", "--save", folder / "w")
    out, file = folder / "p.csv", folder / "a.csv"

    def outputs(spec):
        run("gacc-exec", step, "--data", spec, "--load", folder / "w", "--predict", out)
        rows = out.read_text().splitlines()
        expect(rows[0] == "y_0,y_1", rows[0])
        return [[float(each) for each in row.split(",")] for row in rows[1:]]

    harness.write_npy(folder / "x.npy", array.array("f", [1, 2, 3, 4]), [2, 2])
    wanted = outputs(f"npy:x={folder}/x.npy")
    expect(len(wanted) == 2 and wanted[0] != wanted[1], wanted)
    for text, spec in (("a,b\n1,2\n3,4\n", ""), ("a,b,y\n1,2,\n3,4,\n", ",label=y"), ("a,b,y\n1,2,\n3,4,\n", ""),
                       ("a,b,z\n1,2,nan\n3,4,nan\n", ",label=z"), ("a,b,y\n1,2,cat\n3,4,dog\n", ",label=y"),
                       ("a,b,y\n1,2,0\n3,4,\n", ",label=y,missing=drop"), ("a,b\n1,2\n3,4\n", ",label=y")):
        file.write_text(text)
        expect(outputs(f"csv:{file}{spec}") == wanted, f"{text!r} {spec}")
    (folder / "y.npy").write_bytes(b"no array")
    expect(outputs(f"npy:x={folder}/x.npy,y={folder}/y.npy") == wanted, "a damaged file of labels")


def test_mnist_without_labels(folder):
    text = """
model = { name = "m", seed = 1 }
inputs.image = { shape = [2, 3] }
inputs.label = { dtype = "i32" }
loss = { type = "cross_entropy", target = "label" }
optimizer = { type = "sgd", lr = 0.1 }
[[layers]]
type = "flatten"
[[layers]]
type = "linear"
features = 3
"""
    step = harness.compile_text(folder, text)
    run("gacc-exec", step, "--init-only", "--save", folder / "w")
    (folder / "train-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 2, 3)
                                                     + bytes(range(12)))
    for spec, samples in ((f"mnist:{folder}", 2), (f"mnist:{folder},limit=1", 1)):
        run("gacc-exec", step, "--data", spec, "--load", folder / "w", "--predict", folder / "p.csv")
        rows = (folder / "p.csv").read_text().splitlines()
        expect(rows[0] == "label_0,label_1,label_2" and len(rows) == 1 + samples, rows)


def test_questions_that_make_no_sense(folder):
    artifact, weights, data = trained(folder, harness.classifier("mlp", [7], 5, MLP, "micro_batch = 4"), 9)
    out = folder / "out.npy"
    asked = [artifact, "--data", data, "--predict", out]
    for arguments, words in (
            (asked,
             "--predict writes the model's outputs: --load FILE, or --checkpoint FOLDER --resume, gives it the "
             "trained parameters"),
            ([artifact, "--generate", 3], "--generate goes on with a text: --load FILE, or"),
            ([artifact, "--load", weights, "--predict", out], "--predict needs --data"),
            ([*asked, "--load", weights, "--epochs", 1],
             "--predict writes the model's outputs: --epochs does not go with it"),
            ([*asked, "--load", weights, "--eval", data], "--eval does not go with it"),
            ([*asked, "--load", weights, "--prompt", "x"], "--prompt does not go with it"),
            ([*asked, "--checkpoint", folder / "run"], "--checkpoint goes with it only to --resume from"),
            ([*asked, "--load", weights, "--checkpoint", folder / "run", "--resume"],
             "--load and --resume both give it the parameters; take one of them"),
            ([artifact, "--eval", data, "--load", weights, "--checkpoint", folder / "run", "--resume"],
             "--load and --resume both give it"),
            ([artifact, "--data", data, "--save", "-"],
             "--save -: standard output has the results; write ./- for a file of that name"),
            ([artifact, "--load", weights, "--data", data, "--generate", 3],
             "--generate goes on with a text: --data does not go with it"),
            ([artifact, "--load", weights, "--generate", 3, "--temperature", "inf"],
             '--temperature: "inf" is neither 0 nor a number from'),
            ([artifact, "--load", weights, "--data", data, "--top-k", 3], "--top-k needs --generate"),
            ([artifact, "--data", data, "--load", weights, "--predict", folder / "o.csv.gz"],
             "no gz files are written, but"),
            *(([artifact, "--data", data, "--lr", x], f'--lr: "{x}" is neither 0 nor')
              for x in ("1e-300", "1e-400", "-1", "0x10", " 3")),
            ([artifact, "--load", weights, "--generate", -1], "is not a whole number")):
        done = run("gacc-exec", *arguments, code=2)
        expect(words in done.stderr and done.stdout == "", f"{words}\n{done.stderr}")
    one = run("gacc-exec", *asked, "--load", folder / "none", code=1)
    harness.one_error(one, "none")
    one = run("gacc-exec", artifact, "--data", data, "--predict", folder / "no/out.npy", "--load", weights, code=1)
    harness.one_error(one, "no/out.npy")
    expect(not out.exists(), "an output is left behind")
    for text, words in (('layer = "hiden"', 'did you mean "hidden"'),
                        ('layer = "y"', "predictions are f32, input `y` is i32"), ("layers = 1", "no key `layers`")):
        (folder / "m.toml").write_text(harness.classifier("mlp", [7], 5, MLP + f"[predict]\n{text}\n"))
        done = run("gaccc", folder / "m.toml", "-o", folder / "x.ptx", code=1)
        expect(words.replace('"', "`") in done.stderr.replace('"', "`"), f"{words}\n{done.stderr}")


harness.main(globals())
