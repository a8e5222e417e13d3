"""GGUFs as models, as weights, as exports, and as adapters; --check."""
import json
import math
import os
import shutil
import struct
import subprocess

import gguf_files as files
import harness
from folder_out import FAST, GPT2, LLAMA, base_of, compiled, predicted, tokens
from gguf_files import BF16, F16, F32, Q4_1, Q8_0, REAL, U32
from harness import expect, one_error, run, says

WIDE = LLAMA | dict(hidden_size=32, intermediate_size=64)
QWEN2 = {key: what for key, what in WIDE.items() if key not in ("architectures",
                                                                )} | dict(model_type="qwen2", tie_word_embeddings=True)
QWEN3 = QWEN2 | dict(model_type="qwen3", head_dim=16, tie_word_embeddings=False)

SMOLLM3 = QWEN2 | dict(model_type="smollm3", num_hidden_layers=4, rope_theta=2000000.0)
OLMO2 = QWEN3 | dict(model_type="olmo2", head_dim=8)
GRANITE = QWEN2 | dict(model_type="granite", embedding_multiplier=6.0, attention_multiplier=0.25,
                       residual_multiplier=0.5, logits_scaling=4.0)

GEMMA2 = QWEN2 | dict(model_type="gemma2", head_dim=16, query_pre_attn_scalar=16, sliding_window=5, num_hidden_layers=3,
                      attn_logit_softcapping=3.0, final_logit_softcapping=2.0, hidden_activation="gelu_pytorch_tanh")
del GEMMA2["hidden_act"]
GEMMA3 = {key: what for key, what in GEMMA2.items() if "softcapping" not in key} | dict(
    model_type="gemma3_text", num_hidden_layers=7, rope_theta=1000000.0)


def gguf_of(folder, config=LLAMA, name="base", kinds=lambda name, shape: F32, seed=1, **changes):
    base, artifact = base_of(folder, config, name, seed, **changes)
    path = folder / f"{name}.gguf"
    metadata, tensors = files.convert(base, path, kinds)
    return base, artifact, path, metadata, tensors


def matrices_in(kind):
    return lambda name, shape: kind if len(shape) == 2 and "_embd" not in name else F32


def floats(data):
    return struct.unpack(f"<{len(data[data.index(10) + 1:]) // 4}f", data[data.index(10) + 1:])


def difference(ours, theirs):
    a, b = floats(ours), floats(theirs)
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / max(map(abs, a))


def test_a_gguf_is_the_model_of_its_folder(folder):
    other = WIDE | dict(tie_word_embeddings=True, num_key_value_heads=4, rope_theta=500000.0)
    for config in LLAMA, GPT2, QWEN2, QWEN3, SMOLLM3, OLMO2, GRANITE, GEMMA2, GEMMA3, other:
        here = folder / f"{config['model_type']}{len(list(folder.iterdir()))}"
        here.mkdir()
        base, artifact, path, *_ = gguf_of(here, config)
        own = compiled(path, here / "own.ptx")
        # Dropouts are of training, and no GGUF has them. It says how wide a head is where a config.json need not.
        told = [[line.split("   #")[0] for line in run("gaccc", model, "--emit", "toml", "--set", "model.name=m",
                                                       "--set", "precision.compute=f32", "-o", "-").stdout.splitlines()
                 if not line.startswith(("p = ", "dropout = ", "head_dim = "))] for model in (path, base)]
        expect(told[0] == told[1], [pair for pair in zip(*told) if pair[0] != pair[1]])
        want = predicted(here, artifact, "--load", base)
        expect(predicted(here, artifact, "--load", path) == want, f"{config['model_type']}: other weights")
        expect(predicted(here, own, "--load", path) == want or config is GPT2, f"{config['model_type']}: another model")


def test_blocks_are_the_numbers_that_they_stand_for(folder):
    for number, kind in enumerate((Q8_0, Q4_1, F16, BF16)):
        here = folder / str(number)
        here.mkdir()
        base, artifact, path, _, tensors = gguf_of(here, WIDE, kinds=matrices_in(kind))
        plain = here / "plain.gguf"
        files.write(plain, _metadata(path), {name: (F32, shape, files.unpack(kind, files.pack(kind, numbers)))
                                             if of == kind else (of, shape, numbers)
                                             for name, (of, shape, numbers) in tensors.items()})
        got = predicted(here, artifact, "--load", path)
        expect(got == predicted(here, artifact, "--load", plain) != predicted(here, artifact, "--load", base),
               f"type {kind}")
    done = run("gacc-exec", artifact, "--init-only", "--load", folder / "0/base.gguf", "--device", "cpu")
    expect("base.gguf: 15 tensors of Q8_0 read as the numbers that they stand for" in done.stderr, done.stderr)


def _metadata(path):
    return [(f"{key}", files.TEXT if isinstance(what, str) else REAL if isinstance(what, float) else U32, what)
            for key, what in files.read(path)[0].items() if not isinstance(what, list)]


def test_scaled_positions_come_from_the_tensor_of_their_factors(folder):
    rope = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=8, rope_theta=10000.0)
    base, artifact = base_of(folder, LLAMA, rope_parameters=rope)
    factors = []
    for i in range(2):
        length = 2 * math.pi * 10000.0 ** (2 * i / 4)
        smooth = (8 / length - 1) / 3
        factors.append(4.0 if length > 8 else 1.0 if length < 2 else 1 / ((1 - smooth) / 4 + smooth))
    files.convert(base, folder / "plain.gguf")
    metadata, tensors = files.convert(base, folder / "base.gguf")
    files.write(folder / "base.gguf", metadata, tensors | {"rope_freqs.weight": (F32, (2,), factors)})
    own = compiled(folder / "base.gguf", folder / "own.ptx")
    got, want = predicted(folder, own, "--load", folder / "base.gguf"), predicted(folder, artifact, "--load", base)
    expect(difference(got, want) < 1e-6, difference(got, want))
    done = run("gacc-exec", compiled(folder / "plain.gguf", folder / "plain.ptx"), "--init-only", "--load",
               folder / "base.gguf", *FAST, code=1)
    one_error(done, 'rope_scaling.rope_type is "longrope", nothing in the model')


def test_what_a_gguf_says_otherwise_is_an_error(folder):
    base, artifact, path, metadata, tensors = gguf_of(folder)

    def other(name, change=lambda tensors: tensors, **said):
        at = folder / f"{name}.gguf"
        files.write(at, [(key, kind, said.pop(key.rsplit(".", 1)[-1], what)) for key, kind, what in metadata]
                    + list(said.get("more", ())), change(dict(tensors)))
        return at

    def compile_error(at, *words):
        one_error(run("gaccc", at, "-o", folder / "x.ptx", code=1), at.name + ": error: ", *words)
        expect(not (folder / "x.ptx").exists(), "an artifact")

    compile_error(other("kind", architecture="lama"),
                  'no family has the `general.architecture` "lama"; did you mean "llama"?')
    compile_error(other("moe", more=[("llama.expert_count", U32, 8)]), "`expert_count` = 8 cannot be expressed")
    compile_error(other("key", more=[("llama.logit_scale", REAL, 0.5)]),
                  "`logit_scale` = 0.5: llama.toml does not say what that means")
    compile_error(other("partial", dimension_count=2), "`rope.dimension_count` = 2")
    compile_error(other("adapter", type="adapter"), 'its general.type is "adapter"; only a model is compiled')
    (folder / "cut.gguf").write_bytes(path.read_bytes()[:-100])
    compile_error(folder / "cut.gguf", "it is cut off")

    def load_error(at, *words):
        one_error(run("gacc-exec", artifact, "--init-only", "--load", at, *FAST, code=1), at.name, *words)

    load_error(other("eps", layer_norm_rms_epsilon=1e-6),
               "is of another model: rms_norm_eps is 1e-06, 1e-05 in the model")
    load_error(other("theta", freq_base=500000.0), "rope_theta is 500000, 10000 in the model")
    load_error(other("heads", head_count_kv=4, head_count=8), "num_attention_heads is 8, 4 in the model")
    load_error(other("less", lambda all: {name: each for name, each in all.items() if name != "blk.1.ffn_up.weight"}),
               "(blk.1.ffn_up.weight)", "is missing")
    load_error(other("more", lambda all: all | {"blk.2.ffn_up.weight": all["blk.1.ffn_up.weight"],
                                                "x": (F32, (3,), [1, 2, 3])}),
               'the model has no "x" [3]')
    load_error(other("nan", lambda all: all | {"output_norm.weight": (F32, (16,), [math.nan] * 16)}),
               "output_norm.weight", "nan")
    harness.compile_model(harness.example("regression"), folder / "r.ptx")
    one_error(run("gacc-exec", folder / "r.ptx", "--init-only", "--load", path, *FAST, code=1),
              "the model file has no [gguf]")


def test_what_a_gguf_lacks_is_compared(folder):
    """Positions that its metadata do not scale, and the base of their angles, which is 10000 in llama.cpp."""
    for name, config, words in (("theta", dict(rope_theta=500000.0), "rope_theta is 10000, 500000 in the model"),
                                ("scaled", dict(rope_scaling=dict(type="linear", factor=2.0)),
                                 "rope_scaling is missing, linear in the model")):
        (here := folder / name).mkdir()
        base, artifact, path, metadata, tensors = gguf_of(here, LLAMA | config)
        files.write(here / "less.gguf", [each for each in metadata if ".rope.freq" not in each[0]
                                         and ".rope.scaling" not in each[0]], tensors)
        one_error(run("gacc-exec", artifact, "--init-only", "--load", here / "less.gguf", *FAST, code=1), "less.gguf",
                  words)


def trained(folder, artifact, *words, updates=3, **options):
    return run("gacc-exec", artifact, "--data", tokens(folder), "--updates", updates, *words, *FAST, **options)


def test_a_saved_gguf_is_its_pattern_with_other_numbers(folder):
    kinds = {"ffn_up": Q8_0, "ffn_down": F16, "attn_v": BF16}
    base, artifact, path, *_ = gguf_of(folder, WIDE, kinds=lambda name,
                                       shape: next((kind for part, kind in kinds.items() if part in name), F32))
    own, out = folder / "own.safetensors", folder / "out.gguf"
    trained(folder, artifact, "--load", path, "--save", out, "--like", path)
    trained(folder, artifact, "--load", path, "--save", own)
    (_, head, before), (_, head_out, after) = files.read(path), files.read(out)
    expect(head == head_out and list(before) == list(after), "another header")
    expect(all(before[name][2] != after[name][2] for name in before), "numbers that were trained are BASE's")
    weights = {name: list(numbers) for name, (_, numbers) in harness.read_safetensors(own).items()}
    up = weights["layers.1.mlp.up.weight"]
    expect(files.pack(Q8_0, up) == after["blk.1.ffn_up.weight"][2], "ffn_up is not Q8_0 of its numbers")
    expect(files.pack(F16, weights["layers.0.mlp.down.weight"]) == after["blk.0.ffn_down.weight"][2], "ffn_down")
    wide = 32 * 32
    q = files.interleaved(files.rows_of((32, 32), weights["layers.0.mix.attn.qkv.weight"][:wide]), 8)
    expect(files.pack(F32, sum(q, [])) == after["blk.0.attn_q.weight"][2], "the rows of q")
    # All of it in f32 is the model itself.
    files.convert(base, folder / "plain.gguf")
    trained(folder, artifact, "--load", folder / "plain.gguf", "--save", out, "--like", folder / "plain.gguf")
    trained(folder, artifact, "--load", folder / "plain.gguf", "--save", own)
    expect(predicted(folder, artifact, "--load", out) == predicted(folder, artifact, "--load", own), "another model")
    untouched = folder / "untouched.gguf"
    run("gacc-exec", artifact, "--init-only", "--load", path, "--save", untouched, "--like", path, *FAST)
    expect(untouched.read_bytes() == path.read_bytes(), "what was not trained is another file")


def test_norms_of_gemma_have_their_1_in_the_file(folder):
    base, artifact, path, *_ = gguf_of(folder, GEMMA2)
    own, out = folder / "own.safetensors", folder / "out.gguf"
    trained(folder, artifact, "--load", path, "--save", out, "--like", path)
    trained(folder, artifact, "--load", path, "--save", own)
    weights, after = harness.read_safetensors(own), files.read(out)[2]
    for ours, theirs in {"norm.weight": "output_norm.weight", "layers.0.mix.ln.weight": "blk.0.attn_norm.weight",
                         "layers.1.mix.after.weight": "blk.1.post_attention_norm.weight",
                         "layers.2.mlp.ln.weight": "blk.2.ffn_norm.weight",
                         "layers.2.mlp.after.weight": "blk.2.post_ffw_norm.weight"}.items():
        numbers = weights[ours][1]
        expect(any(numbers) and files.pack(F32, [number + 1 for number in numbers]) == after[theirs][2], ours)
    got, want = (predicted(folder, artifact, "--load", file) for file in (out, own))
    expect(difference(got, want) < 1e-6, difference(got, want))
    untouched = folder / "untouched.gguf"
    run("gacc-exec", artifact, "--init-only", "--load", path, "--save", untouched, "--like", path, *FAST)
    expect(untouched.read_bytes() == path.read_bytes(), "what was not trained is another file")


def test_blocks_that_cannot_be_written_stay_only_where_nothing_changed(folder):
    base, artifact, path, *_ = gguf_of(folder, WIDE, kinds=matrices_in(Q4_1))
    out = folder / "out.gguf"
    done = trained(folder, artifact, "--load", path, "--save", out, "--like", path, code=1)
    says(done, "base.gguf", "blk.0.attn_q.weight is Q4_1 there and is trained here", "F32, F16, BF16 and Q8_0")
    frozen = compiled(path, folder / "frozen.ptx", "--lora", 2, "--set", 'lora.match=["*.attn"]', "--set",
                      "precision.frozen=compute")
    one_error(trained(folder, frozen, "--load", path, "--save", out, "--like", path, code=1), "--merge adds them",
              "--save-adapter writes them alone")
    done = trained(folder, frozen, "--load", path, "--save", out, "--merge", "--like", path, code=1)
    expect("blk.1.attn_output.weight is Q4_1 there and --merge changes it" in done.stderr and "ffn" not in done.stderr,
           done.stderr)
    mixed = folder / "mixed.gguf"
    files.convert(base, mixed, lambda name, shape: Q4_1 if "ffn_" in name and len(shape) == 2 else F32)
    trained(folder, frozen, "--load", mixed, "--save", out, "--merge", "--like", mixed)
    (_, head, before), (_, head_out, after) = files.read(mixed), files.read(out)
    same = {name for name in before if before[name] == after[name]}
    expect(head == head_out and same == {name for name in before if "attn_" not in name or "norm" in name},
           sorted(same))
    # Another base has the same shapes.
    (folder / "other").mkdir()
    other, *_ = base_of(folder / "other", WIDE, seed=9)
    out.unlink()
    one_error(trained(folder, frozen, "--load", other, "--save", out, "--merge", "--like", mixed, code=1),
              "it was not loaded from there")
    expect(not out.exists() and not [path for path in folder.iterdir() if path.name.startswith(".gacc")], "half a file")
    one_error(trained(folder, frozen, "--load", mixed, "--save", out, "--merge", code=1),
              "--like BASE.gguf names the file")
    one_error(trained(folder, frozen, "--load", mixed, "--save", folder / "x.safetensors", "--merge", "--like", mixed,
                      code=1), "is no GGUF")


def test_an_adapter_of_llama_cpp_is_the_adapter(folder):
    base, _, path, *_ = gguf_of(folder, WIDE)
    artifact = compiled(path, folder / "lora.ptx", "--lora", 2)
    adapter, peft = folder / "a.gguf", folder / "peft"
    trained(folder, artifact, "--load", path, "--save-adapter", adapter)
    trained(folder, artifact, "--load", path, "--save-adapter", peft)
    metadata, _, tensors = files.read(adapter)
    expect(metadata == {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora",
                        "adapter.lora.alpha": 4.0}, metadata)
    theirs = harness.read_safetensors(peft / "adapter_model.safetensors")
    expect(len(theirs) == len(tensors) == 28, len(tensors))
    for name, (shape, numbers) in theirs.items():
        module, which = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
        ours = files.name_of(f"{module}.weight") + "." + which.lower()
        rows = files.rows_of(shape, list(numbers))
        if ("attn_q" in ours or "attn_k" in ours) and which == "lora_B":
            rows = files.interleaved(rows, 8)
        kind, as_shape, data = tensors[ours]
        expect((kind, list(as_shape), data) == (F32, shape, files.pack(F32, sum(rows, []))), ours)
    want = predicted(folder, artifact, "--load", path, "--load-adapter", peft)
    expect(predicted(folder, artifact, "--load", path, "--load-adapter",
                     adapter) == want != predicted(folder, artifact, "--load", path), "another adapter")
    # One whose factor is in B, as another program writes it.
    files.write(folder / "b.gguf", [(key, REAL, 0.0) if key == "adapter.lora.alpha" else (key, files.TEXT, what)
                                    for key, what in metadata.items()],
                {name: (F32, shape, [2 * x if name.endswith("_b") else x for x in files.unpack(F32, data)]) for name,
                 (_, shape, data) in tensors.items()})
    expect(predicted(folder, artifact, "--load", path, "--load-adapter", folder / "b.gguf") == want, "alpha of 0")
    files.write(folder / "c.gguf", [(key, files.TEXT, "model") if key == "general.type"
                                    else (key, REAL if isinstance(what, float) else files.TEXT, what)
                                    for key, what in metadata.items()],
                {name: (F32, shape, files.unpack(F32, data)) for name,
                 (_, shape, data) in tensors.items() if "blk.0.attn_k" not in name})
    done = run("gacc-exec", artifact, "--data", tokens(folder), "--load", path, "--load-adapter", folder / "c.gguf",
               "--updates", 1, *FAST, code=1)
    says(done, 'general.type is "model"; that of an adapter is "adapter"',
         "blk.0.attn_k.weight.lora_a [2, 32] is missing")
    # A base that is no GGUF does not say what the adapter is of.
    one_error(trained(folder, artifact, "--load", base, "--save-adapter", adapter, code=1),
              "--like BASE.gguf says which model it is an adapter of")
    before = adapter.read_bytes()
    trained(folder, artifact, "--load", base, "--save-adapter", adapter, "--like", path)
    expect(adapter.read_bytes() == before, "the same adapter")


def test_products_that_are_one_in_the_file_have_one_adapter(folder):
    config = {key: what for key, what in GPT2.items()} | dict(n_embd=32)
    base, _, path, *_ = gguf_of(folder, config)
    artifact = compiled(base, folder / "lora.ptx", "--set", "lora.match=[\"h.*\"]", "--set", "lora.rank=2", "--set",
                        "lora.alpha=3",
                        "--set", 'lora.on=["q","v","proj"]')
    trained(folder, artifact, "--load", base, "--save-adapter", folder / "a.gguf", "--like", path, "--check", 2)
    metadata, _, tensors = files.read(folder / "a.gguf")
    expect(metadata["adapter.lora.alpha"] == 0.0 and tensors["blk.0.attn_qkv.weight.lora_a"][1] == (4, 32), metadata)


def test_check_says_what_the_written_files_compute(folder):
    base, artifact, path, *_ = gguf_of(folder, WIDE)
    lora = compiled(base, folder / "lora.ptx", "--lora", 2)
    half = compiled(base, folder / "half.ptx", "--lora", 2, "--set", "precision.compute=bf16")
    log = folder / "log.jsonl"

    def checks(step, *words, **options):
        done = trained(folder, step, "--load", base, *words, "--check", 3, "--log", log, **options)
        found = [line for line in map(json.loads, log.read_text().splitlines()) if line["event"] == "check"]
        expect(all(line["samples"] == 3 and f"check: {line['file']}: 3 samples" in done.stdout for line in found),
               done.stdout)
        expect(json.loads(log.read_text().splitlines()[-1])["event"] == "end", "the log's end")
        return found, done

    for name, words in {"own": ["--save", folder / "w"], "published": ["--save", folder / "w", "--save-as",
                                                                       "published"],
                                                                       "folder": ["--save", f"{folder}/out/"],
                        "gguf": ["--save", folder / "w.gguf", "--like", path]}.items():
        found, _ = checks(artifact, *words)
        expect([line["check"] for line in found] == [0] and found[0]["bound"] == 1e-6, f"{name}: {found}")
    for step, bound in (lora, 1e-6), (half, 2**-7):
        found, _ = checks(step, "--save", folder / "merged", "--merge", "--save-adapter", folder / "adapter")
        expect([line["file"] for line in found] == [str(folder / "adapter"), str(folder / "merged")], found)
        expect(found[0]["check"] == 0 and 0 < found[1]["check"] < bound == found[1]["bound"], found)
        found, _ = checks(step, "--save", folder / "m.gguf", "--merge", "--save-adapter", folder / "a.gguf", "--like",
                          path)
        expect(len(found) == 2 and all(line["check"] < bound for line in found), found)
    found, _ = checks(artifact, "--save", folder / "w", "--save-type", "f16")
    expect(0 < found[0]["check"] < 2**-7 == found[0]["bound"], found)
    expect("--check needs --save or --save-adapter" in trained(folder, artifact, "--check", 2, code=2).stderr,
           "no need")
    # What is there is merged without a launch, and checked on the data that are named.
    run("gacc-exec", lora, "--data", tokens(folder), "--updates", 2, "--load", base, "--save-adapter", folder / "there",
        *FAST)
    merge = ["--init-only", "--load", base, "--load-adapter", folder / "there", "--save", folder / "now", "--merge",
             "--check", 2]
    done = run("gacc-exec", lora, *merge, "--data", tokens(folder), *FAST)
    expect(f"check: {folder}/now: 2 samples computed from it alone; largest difference " in done.stdout, done.stdout)
    expect("--check needs --data" in run("gacc-exec", lora, *merge, *FAST, code=2).stderr, "no data")
    # Of many tensors that cannot be written some are named.
    files.convert(base, folder / "q4.gguf", matrices_in(Q4_1))
    said = trained(folder, artifact, "--load", base, "--save", folder / "m.gguf", "--like", folder / "q4.gguf",
                   code=1).stderr.splitlines()
    expect(len(said) == 10 and said[-1].startswith("  and ") and said[-1].endswith(" more tensors"), said)
    # Blocks of large numbers beside small ones say something else.
    tensors = {name: (shape, list(numbers)) for name, (shape,
                                                       numbers) in harness.read_safetensors(
                                                           base / "model.safetensors").items()}
    for shape, numbers in tensors.values():
        if len(shape) == 2:
            numbers[::32] = [300 * x for x in numbers[::32]]
    harness.write_safetensors(base / "model.safetensors", tensors)
    files.convert(base, folder / "q.gguf", matrices_in(Q8_0))
    found, done = checks(artifact, "--save", folder / "w.gguf", "--like", folder / "q.gguf", code=1)
    expect(len(found) == 1 and found[0]["check"] > 2**-7, found)
    expect("error: --check: " in done.stderr and "is off by" in done.stderr, done.stderr)


def checked(python, export, artifact, data, *words):
    """The exit status of `python -m gacc.check`, and what it says."""
    environment = os.environ | {"PYTHONPATH": str(harness.ROOT / "python"),
                                "GACC_LIBRARY": str(harness.BIN / "libgacc.so.0"),
                                "PATH": f"{harness.BIN}:{os.environ['PATH']}"}
    done = subprocess.run([python, "-m", "gacc.check", export, artifact, data, *map(str, words)], capture_output=True,
                          text=True, env=environment, timeout=300)
    expect(done.returncode in (0, 1) and "Traceback" not in done.stderr,
           f"{done.returncode}: {done.stdout}{done.stderr}")
    expect((done.returncode == 1) == ("gacc.check: error: " in done.stderr), done.stderr)
    return done.returncode, done.stdout + done.stderr


def test_a_check_follows_the_types_and_says_what_does_not_fit(folder):
    python = harness.peer("numpy", "transformers", "torch")
    base, artifact = base_of(folder, WIDE)
    data = tokens(folder)
    run("gacc-exec", artifact, "--init-only", "--load", base, "--save", f"{folder}/half/", "--save-type", "bf16", *FAST)
    own = ["--of", base / "model.safetensors"]

    def said(*arguments, code=0):
        found, text = checked(python, *arguments)
        expect(found == code, text)
        return text

    said(base, artifact, data)
    said(folder / "half", artifact, data)
    said(folder / "half", artifact, data, *own)
    expect("is rounding (--bound)" in said(folder / "half", artifact, data, *own, "--bound", 1e-4, code=1),
           "the option")
    for samples, more in (2, []), (1, ["--samples", 1]), (2, ["--samples", 3]):
        expect(f": {samples} sample" in said(base, artifact, data + ",limit=2", *more), f"{samples} samples")
    expect("limit is a whole number" in said(base, artifact, data + ",limit=x", code=1), "the limit")
    text = folder / "text"
    text.write_bytes(bytes(i * i % 48 for i in range(16 * 20 + 1)))
    expect(": 17 samples" in said(base, artifact, f"text:{text},split=train", "--samples", 20), "the first 90 %")
    for form in "probabilities", "class":
        compiled(base, folder / "other.ptx", "--set", f"predict.form={form}")
        expect("compile it with --set predict.form=logits" in said(base, folder / "other.ptx", data, code=1), form)
    (folder / "half/config.json").unlink()
    expect("half: has no config.json" in said(folder / "half", artifact, data, code=1), "a folder")


def test_planted_faults_in_exports_are_found(folder):
    python = harness.peer("numpy")
    config = QWEN2 | dict(tie_word_embeddings=False)
    base, artifact = base_of(folder, config)
    other, _ = base_of(folder, config, "other", seed=9)
    (folder / "l").mkdir()
    llama, full, llama_gguf, *_ = gguf_of(folder / "l", WIDE)
    lora = compiled(llama, folder / "lora.ptx", "--lora", 2)
    data, large = tokens(folder), ["--lr", 0.1]
    trained(folder, artifact, "--load", base, *large, "--save", folder / "own")
    trained(folder, artifact, "--load", base, *large, "--save", f"{folder}/out/")
    trained(folder, full, "--load", llama, *large, "--save", folder / "own_llama")
    trained(folder, full, "--load", llama, *large, "--save", folder / "out.gguf", "--like", llama_gguf)
    trained(folder, lora, "--load", llama, *large, "--save", folder / "own_lora", "--save-adapter", folder / "peft")
    trained(folder, lora, "--load", llama_gguf, *large, "--save-adapter", folder / "a.gguf")
    found = {}

    def plant(fault, export, step, of, *words, right=False):
        code, said = checked(python, export, step, data, "--by", "gacc", "--of", folder / of, *words)
        found[fault] = code
        expect(code == (0 if right else 1), f"{fault}: {said}")

    # 1. The folder of a published model.
    def folder_with(fault, change=lambda tensors: None, config_says=(), raw=lambda data: data):
        here = folder / fault.replace(" ", "_")
        shutil.copytree(folder / "out", here)
        tensors = {name: [shape, list(numbers)] for name, (shape,
                                                           numbers) in harness.read_safetensors(
                                                               here / "model.safetensors").items()}
        change(tensors)
        harness.write_safetensors(here / "model.safetensors", tensors)
        (here / "model.safetensors").write_bytes(raw((here / "model.safetensors").read_bytes()))
        (here / "config.json").write_text(json.dumps(json.loads((here / "config.json").read_text())
                                                     | dict(config_says)))
        plant(fault, here, artifact, "own", right=fault == "none")

    def exchange(tensors):
        for name in list(tensors):
            if ".layers.0." in name:
                another = name.replace(".layers.0.", ".layers.1.")
                tensors[name], tensors[another] = tensors[another], tensors[name]

    def transpose(tensors):
        shape, numbers = tensors["model.layers.1.self_attn.o_proj.weight"]
        tensors["model.layers.1.self_attn.o_proj.weight"][1] = [x for column in zip(*files.rows_of(shape, numbers))
                                                                for x in column]

    def permute(tensors):
        shape, numbers = tensors["model.layers.0.self_attn.q_proj.weight"]
        tensors["model.layers.0.self_attn.q_proj.weight"][1] = sum(files.interleaved(files.rows_of(shape, numbers), 8),
                                                                   [])

    def drop(tensors):
        tensors["model.layers.0.self_attn.q_proj.bias"][1] = [0.0] * 32

    def tie(tensors):
        tensors["lm_head.weight"][1] = tensors["model.embed_tokens.weight"][1]

    folder_with("none")
    folder_with("two layers exchanged", exchange)
    folder_with("a transposed matrix", transpose)
    folder_with("rows of q in another order", permute)
    folder_with("a dropped bias", drop)
    folder_with("a head that is tied", tie)
    folder_with("a bias that is missing", lambda tensors: tensors.pop("model.layers.0.self_attn.q_proj.bias"))
    folder_with("another theta", config_says={"rope_theta": 500000.0})
    trained(folder, artifact, "--load", base, *large, "--save", folder / "halves", "--save-as", "published",
            "--save-type", "bf16")
    plant("none, in bf16", folder / "halves", artifact, "own", right=True)
    (folder / "halves").write_bytes((folder / "halves").read_bytes().replace(b'"BF16"', b'"F16" '))
    plant("f16 where bf16 was meant", folder / "halves", artifact, "own")

    # 2. An adapter's folder.
    def adapter_with(fault, change=lambda tensors: None, **said):
        here = folder / fault.replace(" ", "_")
        shutil.copytree(folder / "peft", here)
        tensors = {name: [shape, list(numbers)] for name, (shape,
                                                           numbers) in harness.read_safetensors(
                                                               here / "adapter_model.safetensors").items()}
        change(tensors)
        harness.write_safetensors(here / "adapter_model.safetensors", tensors)
        (here / "adapter_config.json").write_text(json.dumps(json.loads((here / "adapter_config.json").read_text())
                                                             | said))
        plant(fault, here, lora, "own_lora", right=fault == "an adapter")

    def double(tensors):
        for name in tensors:
            if "lora_B" in name:
                tensors[name][1] = [2 * x for x in tensors[name][1]]

    (folder / "w").mkdir()
    wrong, *_ = base_of(folder / "w", WIDE, seed=9)
    adapter_with("an adapter")
    adapter_with("alpha", lora_alpha=8)
    adapter_with("alpha twice in B", double)
    adapter_with("the wrong base", base_model_name_or_path=str(wrong))

    # 3. A GGUF, and llama.cpp's adapter.
    def gguf_with(fault, source, step, of, change=lambda tensors: None, alpha=4.0, *words):
        metadata, _, tensors = files.read(folder / source)
        tensors = {name: [kind, shape, files.unpack(kind, numbers)] for name, (kind, shape, numbers) in tensors.items()}
        change(tensors)
        here = folder / (fault.replace(" ", "_") + ".gguf")
        said = [(key, files.TEXT if isinstance(what, str) else REAL if isinstance(what, float) else U32,
                 alpha if key.endswith(".alpha") else what)
                for key, what in metadata.items() if not isinstance(what, list)]
        files.write(here, said, tensors)
        plant(fault, here, step, of, *words, right=fault.startswith("a GGUF"))

    def swap(one, another):
        def change(tensors):
            tensors[one], tensors[another] = tensors[another], tensors[one]
        return change

    def straighten(tensors):
        kind, shape, numbers = tensors["blk.0.attn_q.weight"]
        rows = files.rows_of(shape, numbers)
        tensors["blk.0.attn_q.weight"][2] = sum((rows[at + 2 * i + half] for at in range(0, 32, 8) for half in (0, 1)
                                                 for i in range(4)), [])

    base_words = ["--base", llama_gguf]
    gguf_with("a GGUF", "out.gguf", full, "own_llama")
    gguf_with("q as in the folder", "out.gguf", full, "own_llama", straighten)
    gguf_with("gate for up", "out.gguf", full, "own_llama", swap("blk.1.ffn_gate.weight", "blk.1.ffn_up.weight"))
    gguf_with("a GGUF of an adapter", "a.gguf", lora, "own_lora", lambda tensors: None, 4.0, *base_words)
    gguf_with("alpha in a GGUF", "a.gguf", lora, "own_lora", lambda tensors: None, 8.0, *base_words)
    gguf_with("k for v", "a.gguf", lora, "own_lora", swap("blk.0.attn_k.weight.lora_b", "blk.0.attn_v.weight.lora_b"),
              4.0, *base_words)
    expect(sum(found.values()) == 15, found)
    code, said = checked(python, folder / "out", artifact, data, "--by", "gacc")
    expect(code == 1 and "--of WEIGHTS names the weights that were trained" in said, said)
    code, said = checked(python, folder / "a.gguf", lora, data)
    expect(code == 1 and "--base says of which model" in said, said)


def test_transformers_and_peft_compute_what_was_exported(folder):
    python = harness.peer("transformers", "torch", "peft", "numpy")
    base, artifact = base_of(folder, LLAMA, dtype="float32")
    lora = compiled(base, folder / "lora.ptx", "--lora", 2)
    trained(folder, artifact, "--load", base, "--save", folder / "own")
    trained(folder, artifact, "--load", base, "--save", f"{folder}/out/")
    trained(folder, lora, "--load", base, "--lr", 0.1, "--save-adapter", folder / "peft", "--save", folder / "own_lora")
    for export, step, of, by in ("out", artifact, "own", "transformers"), ("peft", lora, "own_lora", "peft"):
        code, said = checked(python, folder / export, step, tokens(folder), "--of", folder / of)
        expect(code == 0 and f"4 samples in {by}: largest difference " in said, said)
    (folder / "w").mkdir()
    other, _ = base_of(folder / "w", LLAMA, seed=9, dtype="float32")
    code, said = checked(python, folder / "peft", lora, tokens(folder), "--of", folder / "own_lora", "--base", other)
    expect(code == 1 and "is off by" in said, said)


harness.main(globals())
