"""Low-rank adapters: what is trained and what stays, the files of PEFT's kind, merged weights."""
import json
import struct

import harness
from harness import expect, run

LENGTH, WIDTH, VOCABULARY = 10, 24, 29
MODEL = """
[model]
name = "adapted"
seed = 3
[inputs.tokens]
shape = [10]
dtype = "i32"
[inputs.next]
shape = [10]
dtype = "i32"
range = 29
[[layers]]
type = "embedding"
name = "embed"
vocab = 29
features = 24
[[layers]]
type = "sequential"
name = "h"
repeat = 2
[[layers.layers]]
type = "residual"
name = "mix"
[[layers.layers.layers]]
type = "rms_norm"
name = "ln"
[[layers.layers.layers]]
type = "attention"
name = "attn"
heads = 4
kv_heads = 2
causal = true
rope = {}
[[layers.layers]]
type = "residual"
name = "mlp"
[[layers.layers.layers]]
type = "linear"
name = "up"
features = 40
activation = "gelu"
[[layers.layers.layers]]
type = "linear"
name = "down"
features = 24
[[layers]]
type = "rms_norm"
name = "norm"
[[layers]]
type = "linear"
name = "head"
features = 29
bias = false
[loss]
type = "cross_entropy"
target = "next"
[train]
micro_batch = 2
accumulate = 4
[optimizer]
type = "adamw"
lr = 1e-2
weight_decay = 0.1
"""
PUBLISHED = """
[load]
prefix = "model."
[load.rename]
"h.{i}.mix.attn.proj.*" = "h.{i}.o_proj.*"
"h.{i}.mlp.*.*" = "h.{i}.*_proj.*"
[load.concat]
"h.{i}.mix.attn.qkv.weight" = ["h.{i}.q_proj.weight", "h.{i}.k_proj.weight", "h.{i}.v_proj.weight"]
"h.{i}.mix.attn.qkv.bias" = ["h.{i}.q_proj.bias", "h.{i}.k_proj.bias", "h.{i}.v_proj.bias"]
"""


def lora(match='["h.*"]', rank=4, alpha=8, on='["q", "k", "v", "proj"]'):
    return f"\n[lora]\nmatch = {match}\nrank = {rank}\nalpha = {alpha}\non = {on}\n"


def build(folder, *tables, name="m", **settings):
    path = folder / f"{name}.toml"
    path.write_text(MODEL + "".join(tables))
    artifact = harness.compile_model(path, folder / f"{name}.ptx", **settings)
    if not (folder / "tokens.npy").exists():
        harness.make_data(path, 16, folder)
    return artifact


def data(folder, *names):
    return "npy:" + ",".join(f"{name}={folder}/{name}.npy" for name in names or ("tokens", "next"))


def trained(folder, artifact, *more, device="cpu", updates=3):
    out = folder / "trained.safetensors"
    run("gacc-exec", artifact, "--data", data(folder), "--updates", updates, "--save", out, "--device", device, *more)
    return harness.read_safetensors(out)


def initial(folder, artifact, *more):
    run("gacc-exec", artifact, "--init-only", "--save", folder / "initial.safetensors", "--device", "cpu", *more)
    return harness.read_safetensors(folder / "initial.safetensors")


def predicted(folder, artifact, *more):
    run("gacc-exec", artifact, "--data", data(folder, "tokens"), "--predict", folder / "out.npy", "--device", "cpu", *more)
    raw = (folder / "out.npy").read_bytes()
    body = raw[10 + struct.unpack_from("<H", raw, 8)[0]:]
    return struct.unpack(f"<{len(body) // 4}f", body)


def test_adapters_alone_are_trained(folder):
    """B starts at zero, so nothing changes at first; afterwards nothing but adapters has moved."""
    plain, adapted = build(folder, name="plain"), build(folder, lora())
    before = initial(folder, adapted)
    expect({k: v for k, v in before.items() if "lora" not in k} == initial(folder, plain), "other starts with adapters")
    expect(sum("lora" in name for name in before) == 2 * 2 * 6, f"adapters: {list(before)}")
    expect(before["h.0.mix.attn.k.lora_A.weight"][0] == [4, WIDTH] and before["h.1.mlp.up.lora_B.weight"][0] == [40, 4], "shapes")
    expect(not any(any(values) for name, (_, values) in before.items() if "lora_B" in name), "B starts at zero")
    run("gacc-exec", plain, "--init-only", "--save", folder / "w.safetensors", "--device", "cpu")
    expect(predicted(folder, adapted, "--load", folder / "w.safetensors") == predicted(folder, plain, "--load", folder / "w.safetensors"),
           "adapters that are zero change the output")
    for compute in ("f32", "f16"):
        artifact = build(folder, lora(), precision__compute=compute)
        before = initial(folder, artifact)
        for name, value in trained(folder, artifact).items():
            expect((value == before[name]) == ("lora" not in name), f"{compute}: {name}")
    plan = json.loads(run("gaccc", folder / "m.toml", "--plan", "--json", "-o", folder / "m.ptx").stdout)
    expect(plan["trained"]["parameters"] == sum(len(v) for n, (_, v) in before.items() if "lora" in n), plan["trained"])
    expect(plan["bytes"]["gradients"] < 5 * plan["trained"]["parameters"], "frozen parameters have gradients")
    said = run("gaccc", folder / "m.toml", "--plan").stdout
    expect("  trained           " in said and "  frozen            " in said, said)


def test_what_says_trainable_is_trained_too(folder):
    text = MODEL.replace('name = "norm"\n', 'name = "norm"\ntrainable = true\n').replace(
        'name = "mlp"\n', 'name = "mlp"\ntrainable = true\n').replace('name = "down"\n', 'name = "down"\ntrainable = false\n')
    path = folder / "m.toml"
    path.write_text(text + lora('["h.0.mix.*"]'))
    artifact = harness.compile_model(path, folder / "m.ptx")
    harness.make_data(path, 16, folder)
    before = initial(folder, artifact)
    moved = {name for name, value in trained(folder, artifact).items() if value != before[name]}
    wanted = {name for name in before if "lora" in name or name.startswith("norm.") or ".mlp.up." in name}
    expect(moved == wanted, f"{sorted(moved)}, expected {sorted(wanted)}")


def test_ragged_micro_batches_are_one_batch(folder):
    """7 samples as 2 2 2 1, and as one micro-batch; in the emulator; made again: the same gradients."""
    dumps = {}
    for name, device, settings in (("one", "cpu", dict(train__micro_batch=7, train__accumulate=1)), ("four", "cpu", {}), ("emulated", "emulate", {}),
                                   ("again", "cpu", dict(recompute__policy="all")), ("half", "cpu", dict(precision__compute="f16")),
                                   ("half again", "cpu", dict(precision__compute="f16", recompute__policy="all")), ("half emulated", "emulate", dict(precision__compute="f16"))):
        artifact = build(folder, lora(on='["q", "v"]'), **settings)
        # Adapters that are not zero: those of a run before.
        if name == "one":
            trained(folder, artifact, "--save-adapter", folder / "adapter")
        run("gacc-exec", artifact, "--data", data(folder) + ",limit=7", "--no-shuffle", "--updates", 1, "--load-adapter", folder / "adapter",
            "--dump-grads", folder / "grads", "--device", device)
        dumps[name] = harness.read_safetensors(folder / "grads")
    for a, b, bound in (("one", "four", 1e-6), ("four", "emulated", 1e-5), ("half", "half emulated", 2e-2), ("half", "one", 2e-2)):
        worst, who = harness.far_apart(dumps[a], dumps[b])
        print(f"{a} and {b}: {worst:.1e} ({who})")
        expect(worst <= bound, f"{a}, {b}: {who} is {worst} apart")
    expect(dumps["four"] == dumps["again"] and dumps["half"] == dumps["half again"], "other bits when made again")


def test_adapters_and_merged_weights_are_the_model(folder):
    plain = build(folder, PUBLISHED, name="plain")
    adapted = build(folder, PUBLISHED, lora())
    run("gacc-exec", plain, "--init-only", "--save", folder / "base.safetensors", "--save-as", "published", "--device", "cpu", "--seed", 9)
    base = ["--load", folder / "base.safetensors"]
    run("gacc-exec", adapted, "--data", data(folder), *base, "--updates", 3, "--device", "cpu", "--save-adapter", folder / "adapter",
        "--save", folder / "merged.safetensors", "--save-as", "published", "--merge")
    run("gacc-exec", adapted, "--data", data(folder), *base, "--updates", 3, "--device", "cpu", "--save", folder / "own.safetensors")
    own = predicted(folder, adapted, "--load", folder / "own.safetensors")
    expect(predicted(folder, adapted, *base, "--load-adapter", folder / "adapter") == own, "the adapter alone is not all that was trained")
    merged = predicted(folder, plain, "--load", folder / "merged.safetensors")
    far = max(abs(a - b) for a, b in zip(own, merged, strict=True))
    expect(far < 1e-5 and own != predicted(folder, plain, *base), f"merged weights: {far}")
    names = set(harness.read_safetensors(folder / "base.safetensors"))
    expect(set(harness.read_safetensors(folder / "merged.safetensors")) == names and "model.h.1.k_proj.bias" in names, "names of merged weights")
    adapter = harness.read_safetensors(folder / "adapter/adapter_model.safetensors")
    expect(adapter["base_model.model.model.h.0.q_proj.lora_A.weight"][0] == [4, WIDTH], list(adapter))
    expect(adapter["base_model.model.model.h.0.v_proj.lora_B.weight"][0] == [WIDTH // 2, 4], list(adapter))
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    expect((config["r"], config["lora_alpha"], config["bias"], config["task_type"]) == (4, 8, "none", "CAUSAL_LM"), config)
    expect(config["target_modules"] == ["down_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"], config)
    # Tensors alone; in place; in a run that goes on.
    alone = folder / "alone.safetensors"
    run("gacc-exec", adapted, *base, "--load-adapter", folder / "adapter", "--init-only", "--save-adapter", alone, "--device", "cpu")
    expect(harness.read_safetensors(alone) == adapter, "the tensors alone")
    expect(predicted(folder, adapted, *base, "--load-adapter", alone) == own, "loaded alone")
    for updates, more in ((2, base), (3, ["--resume", "--save-adapter", folder / "resumed"])):
        run("gacc-exec", adapted, "--data", data(folder), "--updates", updates, "--checkpoint", folder / "run", "--device", "cpu", *more)
    expect(harness.read_safetensors(folder / "resumed/adapter_model.safetensors") == adapter, "a resumed run")
    run("gacc-exec", adapted, "--data", data(folder), "--updates", 3, "--checkpoint", folder / "run", "--resume", "--device", "cpu",
        "--save", folder / "later.safetensors", "--save-as", "published", "--merge")
    expect(harness.read_safetensors(folder / "later.safetensors") == harness.read_safetensors(folder / "merged.safetensors"), "published by a resumed run")


def test_ranks_and_alphas_apart(folder):
    """A layer's own `lora` counts more; what differs from most stands in PEFT's patterns."""
    text = MODEL.replace('name = "down"\n', 'name = "down"\nlora = { rank = 2, alpha = 5 }\n')
    path = folder / "m.toml"
    path.write_text(text + lora('["*attn", "*up"]', on='["q"]'))
    artifact = harness.compile_model(path, folder / "m.ptx")
    run("gacc-exec", artifact, "--init-only", "--save-adapter", folder / "adapter", "--device", "cpu")
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    expect(config["rank_pattern"] == {"h.0.mlp.down": 2, "h.1.mlp.down": 2} and config["r"] == 4, config)
    expect(config["alpha_pattern"] == {"h.0.mlp.down": 5, "h.1.mlp.down": 5} and config["lora_alpha"] == 8, config)
    run("gacc-exec", artifact, "--init-only", "--load-adapter", folder / "adapter", "--device", "cpu")


def test_what_does_not_fit_is_listed_whole(folder):
    artifact = build(folder, PUBLISHED, lora())
    good = folder / "adapter"
    run("gacc-exec", artifact, "--init-only", "--save-adapter", good, "--device", "cpu")

    def refused(artifact, *words, path=good, option="--load-adapter", more=()):
        done = run("gacc-exec", artifact, "--init-only", option, path, "--device", "cpu", *more, code=1)
        expect(done.stderr.count("error:") == 1, done.stderr)
        for word in words:
            expect(word in done.stderr, f"no {word!r} in {done.stderr}")

    config = json.loads((good / "adapter_config.json").read_text())
    for change, *words in (({"lora_alpha": 16}, "lora_alpha of model.h.0.q_proj is 16, 8 in the model"), ({"use_rslora": True}, "use_rslora is true"),
                           ({"peft_type": "IA3"}, 'peft_type is "IA3"'), ({"bias": "all"}, "bias is")):
        (good / "adapter_config.json").write_text(json.dumps(config | change))
        refused(artifact, *words)
    for text in ("[", "3", "[]", ""):
        (good / "adapter_config.json").write_text(text)
        refused(artifact, "adapter_config.json is no JSON object")
    (good / "adapter_config.json").unlink()
    refused(artifact, "adapter_config.json")
    (good / "adapter_config.json").write_text(json.dumps(config))
    refused(build(folder, PUBLISHED, lora(rank=2, on='["q", "v"]'), name="other"), "base_model.model.model.h.0.q_proj.lora_A.weight is [4, 24] in the file, [2, 24] in the model",
            'the model has no "base_model.model.model.h.1.k_proj.lora_B.weight"')
    refused(build(folder, PUBLISHED, name="plain"), "the model has no adapters")
    tensors = (good / "adapter_model.safetensors").read_bytes()
    for cut in (0, 7, 100, len(tensors) - 1):
        (good / "adapter_model.safetensors").write_bytes(tensors[:cut])
        refused(artifact)
    refused(artifact, "nowhere", path=folder / "nowhere")
    # What PEFT has no name for, and what is not asked for whole.
    fused = build(folder, PUBLISHED, lora(on='["qkv"]'), name="fused")
    refused(fused, "PEFT cannot name the adapter h.0.mix.attn.qkv", "model.h.0.q_proj.weight", option="--save-adapter", path=folder / "none")
    expect(not (folder / "none").exists(), "a folder stays behind")
    refused(artifact, "--merge adds them", option="--save", path=folder / "none", more=["--save-as", "published"])
    refused(build(folder, PUBLISHED, name="plain"), "the model has no adapters", option="--save", path=folder / "none", more=["--merge"])
    run("gacc-exec", artifact, "--init-only", "--merge", "--device", "cpu", code=2)


def test_memory_of_the_example(folder):
    """SmolLM2's shape in bf16, a micro-batch of one: what adapters take of full fine-tuning."""
    sets = ["--set", "precision.compute=bf16", "--set", "train.micro_batch=1"]
    full, adapters = (json.loads(run("gaccc", harness.example(name), "-o", folder / "m.ptx", "--plan", "--json", *sets).stdout)["bytes"]
                      for name in ("llama_hf", "llama_lora"))
    expect(adapters["peak"] <= 0.3 * full["peak"], f"{adapters['peak']} of {full['peak']}")
    most = full["half_weights"] + full["activations"] + full["workspace"]
    expect(adapters["peak"] <= 1.1 * most, f"{adapters['peak']}, frozen weights and activations take {most}")


def test_weights_with_some_adapters_are_refused(folder):
    """A file of --load has all adapters or none."""
    few, many = build(folder, lora('["*up"]'), name="few"), build(folder, lora())
    run("gacc-exec", few, "--init-only", "--save", folder / "few.safetensors", "--device", "cpu")
    done = run("gacc-exec", many, "--init-only", "--load", folder / "few.safetensors", "--device", "cpu", code=1)
    expect("h.0.mix.attn.q.lora_A.weight [4, 24] is missing" in done.stderr, done.stderr)


harness.main(globals())
