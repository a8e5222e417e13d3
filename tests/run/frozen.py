"""Frozen matrices in blocks: what they hold, that the function of their numbers is trained, bits, and bytes."""
import math
import shutil
import struct

import harness
import lora as adapted
import ranks
from harness import expect, run

MODEL = adapted.MODEL.replace("features = 24", "features = 32").replace("features = 40", "features = 64")
TIED = MODEL.replace('name = "head"\nfeatures = 29\n', 'name = "head"\nfeatures = 29\ntied = "embed"\n')
BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}
TYPES = list(BYTES)


def build(folder, name, model=MODEL, lora=adapted.lora(), **settings):
    return adapted.build(folder, lora, name=name, text=model, **settings)


def initial(folder, artifact, *more, device="cpu"):
    run("gacc-exec", artifact, "--init-only", "--save", folder / "initial", "--device", device, *more)
    return harness.read_safetensors(folder / "initial")


def f16(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def numbers(kind, block):
    """Returns what ggml's reference makes of 32 numbers."""
    far = max(block, key=abs)
    low = min(block) if kind == "q4_1" else 0
    scale = f32({"q8_0": abs(far) / 127, "q4_0": far / -8, "q4_1": f32(max(block) - low) / 15}[kind])
    factor = f32(1 / scale) if scale else 0
    out = []
    for x in block:
        steps = f32(f32(x - low) * factor)
        if kind == "q8_0":
            code = math.copysign(math.floor(abs(steps) + 0.5), steps)
        else:
            code = min(15, math.floor(f32(steps + (8.5 if kind == "q4_0" else 0.5)))) - (8 if kind == "q4_0" else 0)
        out.append(f32(f32(code * f16(scale)) + (f16(low) if kind == "q4_1" else 0)))
    return out


def is_matrix(name, model=MODEL):
    return name.endswith("weight") and "lora" not in name and not name.startswith("norm") and ".ln." not in name


def test_the_vector_of_the_padding_gets_no_gradient(folder):
    """Except the head's, where that is tied."""
    def gradient(name, model, **settings):
        artifact = build(folder, name, model, "", **settings)
        run("gacc-exec", artifact, "--data", adapted.data(folder), "--updates", 1, "--dump-grads", folder / name,
            "--device", "cpu", "--no-shuffle")
        (rows, width), values = harness.read_safetensors(folder / name)["embed.weight"]
        return [values[i * width:(i + 1) * width] for i in range(rows)]
    plain, padded = gradient("plain", MODEL), gradient("padded", MODEL, layers__embed__padding=3)
    expect(any(plain[3]) and not any(padded[3]) and plain[:3] + plain[4:] == padded[:3] + padded[4:],
           f"{plain[3]}\n{padded[3]}")
    expect(any(gradient("tied", TIED, layers__embed__padding=3)[3]), "the head's gradient is lost")
    harness.one_error(run("gaccc", folder / "plain.toml", "--set", "layers.embed.padding=29", code=1),
                      "`padding` is 29", "has 29 vectors")


def test_numbers_are_those_of_ggml(folder):
    """The blocks that `init` writes, on the CPU and by PTX, are what a load of the same numbers writes; embeddings
    are in q8_0, vectors as they were."""
    whole = initial(folder, build(folder, "plain"))
    shutil.copy(folder / "initial", folder / "whole")
    for kind in TYPES:
        artifact = build(folder, kind, precision__frozen=kind)
        kept = initial(folder, artifact)
        for name, (shape, values) in whole.items():
            used = "q8_0" if name == "embed.weight" else kind
            wanted = values if not is_matrix(name) else [x for i in range(0, len(values), 32)
                                                         for x in numbers(used, values[i:i + 32])]
            far = [i for i, (a, b) in enumerate(zip(kept[name][1], wanted, strict=True)) if a != b]
            expect(not far, f"{kind}: {name} at {far[:5]}: {[(kept[name][1][i], wanted[i]) for i in far[:5]]}")
        for device in ("cpu", "emulate"):
            expect(initial(folder, artifact, "--load", folder / "whole", device=device) == kept,
                   f"{kind}: loaded on {device}")
        expect(initial(folder, artifact, device="emulate") == kept, f"{kind}: by PTX")
        shutil.copy(folder / "initial", folder / "kept")
        expect(initial(folder, artifact, "--load", folder / "kept") == kept,
               f"{kind}: saved numbers are others when they are loaded")


def resumed(folder, artifact, checkpoint, *ends, device="cpu"):
    """Returns the parameters of a run that stops at each of the ends and goes on from its checkpoint."""
    for end in ends:
        run("gacc-exec", artifact, "--data", adapted.data(folder), *end, "--checkpoint", checkpoint, "--resume",
            "--device", device,
            "--save", folder / "resumed")
    return harness.read_safetensors(folder / "resumed")


def trained(folder, artifact, *more, device="cpu", updates=3, limit=""):
    run("gacc-exec", artifact, "--data", adapted.data(folder) + limit, "--eval", adapted.data(folder), "--updates",
        updates, "--save", folder / "out",
        "--log", folder / "log", "--device", device, *more)
    log = [{k: v for k, v in e.items() if k in ("loss", "update", "kind", "grad_norm")}
           for e in harness.read_log(folder / "log")]
    return harness.read_safetensors(folder / "out"), [entry for entry in log if "loss" in entry]


def test_the_function_of_the_quantised_numbers_is_trained(folder):
    """A model whose weights are those numbers, not in blocks, does the same: to the bit, in every precision."""
    for model in (MODEL, TIED):
        for compute in ("f32", "f16", "bf16"):
            plain = build(folder, "plain", model, precision__compute=compute)
            for kind in TYPES:
                artifact = build(folder, kind, model, precision__compute=compute, precision__frozen=kind)
                kept = initial(folder, artifact)
                blocks, log = trained(folder, artifact)
                shutil.copy(folder / "initial", folder / "numbers")
                same, as_log = trained(folder, plain, "--load", folder / "numbers")
                expect(log == as_log, f"{compute}, {kind}: {log}, {as_log}")
                for name in blocks:
                    if "lora" in name:
                        expect(blocks[name] == same[name] and blocks[name] != kept[name], f"{compute}, {kind}: {name}")
                    else:
                        expect(blocks[name] == kept[name], f"{compute}, {kind}: {name} moved")


def test_bits(folder):
    """Threads, what is made again, checkpoints and lanes change no bit, in the emulator too; it is as near as its
    rounding."""
    for compute, kind in (("f32", "q4_1"), ("bf16", "q8_0"), ("f16", "q4_0")):
        how = dict(precision__compute=compute, precision__frozen=kind)
        artifact = build(folder, "one", TIED, **how)
        one = trained(folder, artifact, "--threads", 1)
        expect(trained(folder, artifact, "--threads", 3) == one, f"{kind}: threads")
        for policy in ("all", "sqrt"):
            expect(trained(folder, build(folder, policy, TIED, recompute__policy=policy, **how)) == one,
                   f"{kind}: recompute {policy}")
        ends = [("--launches", 5), ("--launches", 9), ("--updates", 3)]
        expect(resumed(folder, artifact, folder / f"run-{kind}", *ends) == one[0], f"{kind}: resumed")
        emulated = trained(folder, artifact, device="emulate", updates=1)[0]
        expect(trained(folder, folder / "all.ptx", device="emulate", updates=1)[0] == emulated,
               f"{kind}: recompute in the emulator")
        ends = [("--launches", 1), ("--updates", 1)]
        expect(resumed(folder, artifact, folder / f"emulated-{kind}", *ends, device="emulate") == emulated,
               f"{kind}: resumed in the emulator")
        on_cpu = trained(folder, artifact, updates=1)[0]
        worst, who = harness.far_apart(emulated, on_cpu)
        expect(worst < (1e-4 if compute == "f32" else 5e-2), f"{kind}: {who} is {worst} apart in the emulator")


def test_ranks(folder):
    """Two of them, with and without shares of the optimizer's state, end with the bytes of one."""
    ranks.need_mpi()
    build(folder, "m", TIED)
    how = dict(model=folder / "m.toml", spec=adapted.data(folder), limits=("--updates", 3), train__lanes=4,
               train__accumulate=4, precision__frozen="q4_1",
               precision__compute="bf16")
    case = ranks.Case(folder, **how)
    one = case.train(1)
    ranks.same(case.train(2), one, "2 ranks")
    ranks.same(ranks.Case(folder, **how, memory__shard="optimizer", train__ranks=2).train(2), one, "2 ranks that share")
    emulated = ranks.Case(folder, **dict(how, limits=("--updates", 1)), device="emulate")
    ranks.same(emulated.train(2), emulated.train(1), "2 ranks in the emulator")


def test_ragged_micro_batches_are_one_batch(folder):
    artifacts = [build(folder, name, TIED, precision__frozen="q4_0", **settings)
                 for name, settings in (("one", dict(train__micro_batch=7, train__accumulate=1)), ("four", {}))]
    trained(folder, artifacts[0], "--save-adapter", folder / "adapter")
    for device in ("cpu", "emulate"):
        dumps = []
        for artifact in artifacts:
            run("gacc-exec", artifact, "--data", adapted.data(folder) + ",limit=7", "--no-shuffle", "--updates", 1,
                "--load-adapter", folder / "adapter",
                "--dump-grads", folder / "grads", "--device", device)
            dumps.append(harness.read_safetensors(folder / "grads"))
        worst, who = harness.far_apart(*dumps)
        expect(worst <= 1e-6, f"{device}: {who} is {worst} apart")


def test_bytes(folder):
    """Blocks alone are there all the time. A matrix whose rows are no whole blocks stays as it was."""
    odd = MODEL.replace("features = 64", "features = 48")
    for compute in ("f32", "bf16"):
        for kind in TYPES:
            how = dict(precision__frozen=kind, precision__compute=compute)
            build(folder, "odd", odd)
            shapes = {name: shape for name, (shape, _) in initial(folder, folder / "odd.ptx").items()}
            matrices = vectors = 0
            for name, shape in shapes.items():
                count = math.prod(shape)
                if "lora" in name:
                    continue
                if is_matrix(name) and shape[1] % 32 == 0:
                    matrices += count // 32 * BYTES["q8_0" if name == "embed.weight" else kind]
                elif is_matrix(name):
                    matrices += count * (4 if compute == "f32" else 2)
                else:
                    vectors += count
            found = harness.plan_of(folder / "odd.toml", **how)
            rest = found["frozen"]["bytes"] - matrices  # f32, some with a half copy
            expect(4 * vectors <= rest <= (4 if compute == "f32" else 6) * vectors,
                   f"{compute}, {kind}: {found['frozen']}, {matrices}, {vectors}")
            said = run("gaccc", folder / "odd.toml", "--set", f"precision.frozen={kind}", "--plan").stdout
            expect("rows of 2 tensors are no whole blocks" in said, said)


def test_weights_that_blocks_cannot_hold_are_refused(folder):
    artifact = build(folder, "m", precision__frozen="q4_0")
    whole = initial(folder, artifact)
    for value, word in ((float("nan"), "nan"), (1e9, "head.weight")):
        bad = dict(whole)
        shape, values = bad["head.weight"]
        bad["head.weight"] = (shape, [*values[:40], value, *values[41:]])
        harness.write_safetensors(folder / "bad", bad)
        done = run("gacc-exec", artifact, "--init-only", "--load", folder / "bad", "--save", folder / "out", "--device",
                   "cpu", "--quiet", code=1)
        harness.one_error(done, "head.weight", word)


def test_predictions_in_parts(folder):
    """The parts of a large output read the head out of its blocks."""
    wide = MODEL.replace("shape = [10]", "shape = [64]").replace("29", "512")
    whole = build(folder, "whole", wide, precision__frozen="q4_0", train__micro_batch=1, train__accumulate=1)
    parts = build(folder, "parts", wide, precision__frozen="q4_0", train__micro_batch=1, train__accumulate=1,
                  loss__chunks=16, recompute__policy="all")
    expect(harness.plan_of(folder / "parts.toml", precision__frozen="q4_0", train__micro_batch=1, train__accumulate=1,
                           loss__chunks=16,
                recompute__policy="all")["predict"].get("parts", 1) > 1, "not in parts")
    outputs = []
    initial(folder, whole)
    for artifact in (whole, parts):
        run("gacc-exec", artifact, "--data", adapted.data(folder, "tokens"), "--load", folder / "initial", "--predict",
            folder / "out.npy", "--device", "cpu")
        outputs.append((folder / "out.npy").read_bytes())
    expect(outputs[0] == outputs[1], "other predictions")


harness.main(globals())
