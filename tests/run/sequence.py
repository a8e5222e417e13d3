"""Sequence models as a user runs them: text and token files, perplexity, a large plan."""
import array
import json
import math
import random
import resource
import struct

import harness
from harness import expect, run

SMALL = dict(inputs__bytes__shape="[16]", inputs__next__shape="[16]", layers__tok__features=32, layers__h__repeat=1,
             layers__h__layers__mlp__layers__up__features=48, layers__h__layers__mlp__layers__down__features=32)


def write_text(folder, size=6000):
    chance = random.Random(5)
    words = [bytes(chance.choice(b"aeiounrst") for _ in range(chance.randint(2, 6))) for _ in range(30)]
    text = b" ".join(chance.choice(words) for _ in range(size // 4))[:size]
    (folder / "t.txt").write_bytes(text)
    return folder / "t.txt", text


def evals(log):
    return [e for e in harness.read_log(log) if e["event"] == "eval"]


def test_text_trains_and_perplexity_is_exp_of_the_loss(folder):
    path, text = write_text(folder)
    artifact = harness.compile_model(harness.example("shakespeare_gpt"), folder / "step.ptx", schedule__warmup=5,
                                     optimizer__lr=0.01, **SMALL)
    run("gacc-exec", artifact, "--data", f"text:{path},split=train", "--eval", f"text:{path},split=test", "--epochs", 3,
        "--log", folder / "log")
    losses = [e["loss"] for e in evals(folder / "log")]
    expect(losses[-1] < 2.9 < math.log(256), f"it learns: {losses}")
    for e in evals(folder / "log"):
        expect(abs(e["perplexity"] - math.exp(e["loss"])) <= 1e-5 * e["perplexity"],
               f"perplexity {e['perplexity']}, loss {e['loss']}")
        expect(e["samples"] == (len(text) - len(text) * 9 // 10 - 1) // 16, f"{e['samples']} windows")


def test_tokens_are_the_same_data_as_text(folder):
    path, text = write_text(folder, 2000)
    (folder / "t.bin").write_bytes(struct.pack(f"<{len(text)}H", *text))
    artifact = harness.compile_model(harness.example("shakespeare_gpt"), folder / "step.ptx", **SMALL)
    for kind, file in (("text", path), ("tokens", folder / "t.bin")):
        run("gacc-exec", artifact, "--data", f"{kind}:{file}", "--updates", 5, "--log", folder / f"{kind}.log",
            "--save", folder / kind)
    expect((folder / "text").read_bytes() == (folder / "tokens").read_bytes(),
           "u8 and u16 tokens train the same weights")


def test_what_is_no_file_of_tokens_is_refused(folder):
    small = harness.compile_model(harness.example("shakespeare_gpt"), folder / "small.ptx", **SMALL)
    large = harness.compile_model(harness.example("shakespeare_gpt"), folder / "large.ptx", layers__tok__vocab=70000,
                                  layers__head__features=70000, **SMALL)
    ids = [1000 + i * 37 % 900 for i in range(100)]
    file, tiny = folder / "t.bin", [i % 100 for i in range(100)]
    text = "\n".join(f"a line of {i} words" for i in range(20))
    for artifact, kind, what, *words in (
            (large, "tokens", struct.pack("<100I", *ids), "every second number", "dtype=u32"),
            (large, "tokens", struct.pack("<100q", *ids), "every second number"),
            (large, "tokens", b"\x28\xb5\x2f\xfd" + bytes(1000), "compressed by zstd"),
            (large, "tokens", struct.pack("<100I", *[i + 65536 for i in ids]), "every second number"),
            (small, "tokens", struct.pack("<100i", *tiny), "every second number"),
            (large, "tokens", b"\x93NUMPY\1\0" + bytes(120), "a NumPy array", "npy:"),
            (large, "tokens", b"PK\3\4" + bytes(100), "zip"), (large, "tokens", b"GGUF" + bytes(100), "GGUF"),
            (large, "tokens", struct.pack("<Q", 20) + b'{"a":{}}' + bytes(100), "safetensors"),
            (large, "tokens", text.encode(), "a text", "text:"),
            (large, "tokens", "äöü und ß, ".encode() * 20, "a text"),
            (large, "text", text.encode(), "70000", "tokens:"),
            (small, "text", b"\x93NUMPY\1\0" + bytes(120), "NumPy")):
        file.write_bytes(what)
        harness.one_error(run("gacc-exec", artifact, "--data", f"{kind}:{file}", "--updates", 1, "--device", "cpu",
                              code=1), str(file), *words)
    # Tokens of four bytes; and of two, which cannot be all of the vocabulary.
    file.write_bytes(struct.pack("<100I", *[i + 66000 for i in ids]))
    run("gacc-exec", large, "--data", f"tokens:{file},dtype=u32", "--updates", 1, "--device", "cpu")
    file.write_bytes(struct.pack("<100q", *ids))
    harness.one_error(run("gacc-exec", large, "--data", f"tokens:{file},dtype=u32", "--updates", 1, "--device", "cpu",
                          code=1),
                      "every second number is 0, the upper half of a token")
    file.write_bytes(struct.pack("<100I", *[2**31 + 5] * 100))
    harness.one_error(run("gacc-exec", large, "--data", f"tokens:{file},dtype=u32", "--updates", 1, "--device", "cpu",
                          code=1), "token 0")
    file.write_bytes(struct.pack("<100H", *ids))
    done = run("gacc-exec", large, "--data", f"tokens:{file}", "--updates", 1, "--device", "cpu")
    expect("warning" in done.stderr and "70000" in done.stderr, done.stderr)


def test_targets_that_are_not_shifted_are_refused(folder):
    artifact = harness.compile_model(harness.example("shakespeare_gpt"), folder / "step.ptx", **SMALL)
    draw = random.Random(4)
    tokens = array.array("i", [draw.randrange(256) for _ in range(8 * 16)])
    for name, values, wrong in (("same", tokens, True), ("later", tokens[1:] + tokens[:1], False),
                                ("answers", array.array("i", [-100 if i % 16 < 8 else v for i, v in enumerate(tokens)]),
                                 True),
                                ("constant", array.array("i", [7] * len(tokens)), False)):
        read = tokens if name != "constant" else values
        spec = harness.write_arrays(folder, {"bytes": (read, [8, 16]), "next": (values, [8, 16])})
        for more in (["--data", spec], ["--data", "synthetic:tokens,limit=8", "--eval", spec]):
            done = run("gacc-exec", artifact, *more, "--updates", 1, "--device", "cpu", code=1 if wrong else 0)
            expect(("one later" in done.stderr) == wrong, f"{name}: {done.stderr}")


def test_the_emulator_agrees(folder):
    """Every kernel of the sequence layers, as PTX, interpreted and checked for races and bounds."""
    artifact = harness.compile_model(harness.ROOT / "tests/parity/models/sequence.toml", folder / "step.ptx",
                                     launch__mode="graph")
    for device in ("cpu", "emulate"):
        run("gacc-exec", artifact, "--data", "synthetic:tokens,limit=20", "--no-shuffle", "--updates", 4, "--device",
            device,
            "--log", folder / f"{device}.log", "--save", folder / device)
    worst = harness.far_apart(harness.read_safetensors(folder / "emulate"), harness.read_safetensors(folder / "cpu"))
    expect(worst[0] < 1e-5, f"CPU and emulator differ by {worst}")


def trained(folder, name, model, device="cpu", **settings):
    """The weights after four updates of two ragged micro-batches; beside them the last window's gradients, and the
    log."""
    artifact = harness.compile_model(model, folder / f"{name}.ptx", **settings)
    run("gacc-exec", artifact, "--data", "synthetic:tokens,limit=20", "--eval", "synthetic:tokens,limit=7",
        "--no-shuffle", "--updates", 4,
        "--device", device, "--log", folder / f"{name}.log", "--save", folder / name, "--dump-grads",
        folder / f"{name}.grads")
    return folder / name


def test_a_loss_in_parts_is_the_same_loss(folder):
    """Within rounding: on the CPU and as PTX; and with and without recompute to the bit."""
    model = harness.ROOT / "tests/parity/models/sequence.toml"
    for precision, bound in (("f32", 1e-5), ("f16", 2e-3), ("bf16", 2e-2)):
        some = dict(precision__compute=precision, optimizer__type="sgd")
        whole = trained(folder, f"{precision}.whole", model, loss__chunks=1, **some)
        for chunks in (2, 4, 6) if precision == "f32" else (4,):
            name = f"{precision}.{chunks}"
            parts = trained(folder, name, model, loss__chunks=chunks, **some)
            for suffix in ("", ".grads"):
                worst = harness.far_apart(harness.read_safetensors(folder / (name + suffix)),
                                          harness.read_safetensors(folder / (f"{precision}.whole" + suffix)))
                expect(worst[0] < bound, f"{name}{suffix}: {worst}")
            losses = [[e["loss"] for e in harness.read_log(folder / f"{n}.log") if e["event"] in ("update", "eval")]
                      for n in (name, f"{precision}.whole")]
            expect(all(abs(a - b) < bound * b for a, b in zip(*losses, strict=True)), f"{name}: losses {losses}")
            again = trained(folder, f"{name}.again", model, loss__chunks=chunks, recompute__policy="all", **some)
            expect(again.read_bytes() == parts.read_bytes(), f"{name}: recompute changes bits")
        emulated = trained(folder, f"{precision}.emulated", model, "emulate", loss__chunks=4, launch__mode="graph",
                           **some)
        worst = harness.far_apart(harness.read_safetensors(emulated), harness.read_safetensors(whole))
        expect(worst[0] < bound, f"{precision} emulated: {worst}")


def test_large_vocabularies_run_in_parts(folder):
    """By itself where it lowers the peak; the plan says so."""
    model = harness.example("gpt2_124m")
    sizes = {n: harness.plan_of(model, precision__compute="f16", **({"loss__chunks": n} if n else {}))
             for n in (0, 1, 16)}
    logits = 4 * 1024 * 50257 * 2
    expect(sizes[0]["loss_chunks"] == 4 and sizes[1]["loss_chunks"] == 1 and sizes[16]["loss_chunks"] == 16,
           "the parts that there are")
    saved = [sizes[1]["bytes"]["peak"] - sizes[n]["bytes"]["peak"] for n in (0, 16)]
    expect(logits * 0.7 < saved[0] < saved[1] < logits, f"parts save {saved} of {logits} bytes of logits")
    expect(harness.plan_of(harness.example("shakespeare_gpt"))["loss_chunks"] == 1, "a narrow head stays whole")
    expect("in 4 parts" in run("gaccc", harness.example("gpt2_124m"), "--plan", "--set",
                               "precision.compute=f16").stdout, "said in words")


def test_gpt2_compiles_in_little_memory(folder):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    plan = json.loads(run("gaccc", harness.example("gpt2_124m"), "-o", folder / "step.ptx", "--plan", "--json").stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    expect(max(before, after) < 1 << 20, f"{after} KiB")
    expect(plan["parameters"] == 124_439_808, f"{plan['parameters']} parameters")
    sizes = plan["bytes"]
    expect(sizes["weights"] >= 4 * plan["parameters"] and sizes["gradients"] >= 4 * plan["parameters"], f"{sizes}")
    expect(sizes["lower_bound"] <= sizes["peak"] <= 1.02 * sizes["lower_bound"], f"{sizes}")
    text = (folder / "step.ptx").read_text()
    expect(text.count(".entry ") < 100, "twelve equal layers share their kernels")


harness.main(globals())
