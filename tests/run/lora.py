"""Low-rank adapters: what is trained and what stays, the files of PEFT's kind, merged weights."""
import array
import json
import struct

import harness
from harness import expect, layer, model_text, run

LENGTH, WIDTH, VOCABULARY = 10, 24, 29
MIX = layer("residual", layer("rms_norm", name="ln"),
            layer("attention", name="attn", heads=4, kv_heads=2, causal=True, rope={}), name="mix")
MLP = layer("residual", layer("linear", name="up", features=40, activation="gelu"),
            layer("linear", name="down", features=WIDTH), name="mlp")
MODEL = model_text(
    layer("embedding", name="embed", vocab=VOCABULARY, features=WIDTH),
    layer("sequential", MIX, MLP, name="h", repeat=2), layer("rms_norm", name="norm"),
    layer("linear", name="head", features=VOCABULARY, bias=False),
    model={"name": "adapted", "seed": 3}, inputs=harness.tokens_and_next(LENGTH, VOCABULARY),
    loss={"type": "cross_entropy", "target": "next"}, train={"micro_batch": 2, "accumulate": 4},
    optimizer={"type": "adamw", "lr": 0.01, "weight_decay": 0.1})
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


def build(folder, *tables, name="m", text=MODEL, **settings):
    artifact = harness.compile_text(folder, text + "".join(tables), name, **settings)
    if not (folder / "tokens.npy").exists():
        harness.make_data(artifact.with_suffix(".toml"), 16, folder)
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
    run("gacc-exec", artifact, "--data", data(folder, "tokens"), "--predict", folder / "out.npy", "--device", "cpu",
        *more)
    raw = (folder / "out.npy").read_bytes()
    body = raw[10 + struct.unpack_from("<H", raw, 8)[0]:]
    return struct.unpack(f"<{len(body) // 4}f", body)


def test_adapters_alone_are_trained(folder):
    """B starts at zero, so nothing changes at first; afterwards nothing but adapters has moved."""
    plain, adapted = build(folder, name="plain"), build(folder, lora())
    before = initial(folder, adapted)
    expect({k: v for k, v in before.items() if "lora" not in k} == initial(folder, plain), "other starts with adapters")
    expect(sum("lora" in name for name in before) == 2 * 2 * 6, f"adapters: {list(before)}")
    expect(before["h.0.mix.attn.k.lora_A.weight"][0] == [4, WIDTH] and before["h.1.mlp.up.lora_B.weight"][0] == [40, 4],
           "shapes")
    expect(not any(any(values) for name, (_, values) in before.items() if "lora_B" in name), "B starts at zero")
    run("gacc-exec", plain, "--init-only", "--save", folder / "w.safetensors", "--device", "cpu")
    expect(predicted(folder, adapted, "--load",
                     folder / "w.safetensors") == predicted(folder, plain, "--load", folder / "w.safetensors"),
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
        'name = "mlp"\n', 'name = "mlp"\ntrainable = true\n').replace('name = "down"\n',
                                                                      'name = "down"\ntrainable = false\n')
    artifact = build(folder, lora('["h.0.mix.*"]'), text=text)
    before = initial(folder, artifact)
    moved = {name for name, value in trained(folder, artifact).items() if value != before[name]}
    wanted = {name for name in before if "lora" in name or name.startswith("norm.") or ".mlp.up." in name}
    expect(moved == wanted, f"{sorted(moved)}, expected {sorted(wanted)}")


def test_ragged_micro_batches_are_one_batch(folder):
    """7 samples as 2 2 2 1, and as one micro-batch; in the emulator; made again: the same gradients."""
    dumps = {}
    for name, device, settings in (("one", "cpu", dict(train__micro_batch=7, train__accumulate=1)), ("four", "cpu", {}),
                                   ("emulated", "emulate", {}),
                                   ("again", "cpu", dict(recompute__policy="all")),
                                   ("half", "cpu", dict(precision__compute="f16")),
                                   ("half again", "cpu", dict(precision__compute="f16", recompute__policy="all")),
                                   ("half emulated", "emulate", dict(precision__compute="f16"))):
        artifact = build(folder, lora(on='["q", "v"]'), **settings)
        # Adapters that are not zero: those of a run before.
        if name == "one":
            trained(folder, artifact, "--save-adapter", folder / "adapter")
        run("gacc-exec", artifact, "--data", data(folder) + ",limit=7", "--no-shuffle", "--updates", 1,
            "--load-adapter", folder / "adapter",
            "--dump-grads", folder / "grads", "--device", device)
        dumps[name] = harness.read_safetensors(folder / "grads")
    for a, b, bound in (("one", "four", 1e-6), ("four", "emulated", 1e-5), ("half", "half emulated", 2e-2),
                        ("half", "one", 2e-2)):
        worst, who = harness.far_apart(dumps[a], dumps[b])
        print(f"{a} and {b}: {worst:.1e} ({who})")
        expect(worst <= bound, f"{a}, {b}: {who} is {worst} apart")
    expect(dumps["four"] == dumps["again"] and dumps["half"] == dumps["half again"], "other bits when made again")


def test_adapters_and_merged_weights_are_the_model(folder):
    plain = build(folder, PUBLISHED, name="plain")
    adapted = build(folder, PUBLISHED, lora())
    run("gacc-exec", plain, "--init-only", "--save", folder / "base.safetensors", "--save-as", "published", "--device",
        "cpu", "--seed", 9)
    base = ["--load", folder / "base.safetensors"]
    run("gacc-exec", adapted, "--data", data(folder), *base, "--updates", 3, "--device", "cpu", "--save-adapter",
        folder / "adapter",
        "--save", folder / "merged.safetensors", "--save-as", "published", "--merge")
    run("gacc-exec", adapted, "--data", data(folder), *base, "--updates", 3, "--device", "cpu", "--save",
        folder / "own.safetensors")
    own = predicted(folder, adapted, "--load", folder / "own.safetensors")
    expect(predicted(folder, adapted, *base, "--load-adapter", folder / "adapter") == own,
           "the adapter alone is not all that was trained")
    merged = predicted(folder, plain, "--load", folder / "merged.safetensors")
    far = max(abs(a - b) for a, b in zip(own, merged, strict=True))
    expect(far < 1e-5 and own != predicted(folder, plain, *base), f"merged weights: {far}")
    names = set(harness.read_safetensors(folder / "base.safetensors"))
    expect(set(harness.read_safetensors(folder / "merged.safetensors")) == names and "model.h.1.k_proj.bias" in names,
           "names of merged weights")
    adapter = harness.read_safetensors(folder / "adapter/adapter_model.safetensors")
    expect(adapter["base_model.model.model.h.0.q_proj.lora_A.weight"][0] == [4, WIDTH], list(adapter))
    expect(adapter["base_model.model.model.h.0.v_proj.lora_B.weight"][0] == [WIDTH // 2, 4], list(adapter))
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    expect((config["r"], config["lora_alpha"], config["bias"], config["task_type"]) == (4, 8, "none", "CAUSAL_LM"),
           config)
    expect(config["target_modules"] == ["down_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"], config)
    # Tensors alone; in place; in a run that goes on.
    alone = folder / "alone.safetensors"
    run("gacc-exec", adapted, *base, "--load-adapter", folder / "adapter", "--init-only", "--save-adapter", alone,
        "--device", "cpu")
    expect(harness.read_safetensors(alone) == adapter, "the tensors alone")
    expect(predicted(folder, adapted, *base, "--load-adapter", alone) == own, "loaded alone")
    for updates, more in ((2, base), (3, ["--resume", "--save-adapter", folder / "resumed"])):
        run("gacc-exec", adapted, "--data", data(folder), "--updates", updates, "--checkpoint", folder / "run",
            "--device", "cpu", *more)
    expect(harness.read_safetensors(folder / "resumed/adapter_model.safetensors") == adapter, "a resumed run")
    run("gacc-exec", adapted, "--data", data(folder), "--updates", 3, "--checkpoint", folder / "run", "--resume",
        "--device", "cpu",
        "--save", folder / "later.safetensors", "--save-as", "published", "--merge")
    expect(harness.read_safetensors(folder / "later.safetensors") == harness.read_safetensors(
        folder / "merged.safetensors"), "published by a resumed run")


def test_ranks_and_alphas_apart(folder):
    """A layer's own `lora` counts more; what differs from most stands in PEFT's patterns."""
    text = MODEL.replace('name = "down"\n', 'name = "down"\nlora = { rank = 2, alpha = 5 }\n')
    artifact = build(folder, lora('["*attn", "*up"]', on='["q"]'), text=text)
    run("gacc-exec", artifact, "--init-only", "--save-adapter", folder / "adapter", "--device", "cpu")
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    expect(config["rank_pattern"] == {"h.0.mlp.down": 2, "h.1.mlp.down": 2} and config["r"] == 4, config)
    expect(config["alpha_pattern"] == {"h.0.mlp.down": 5, "h.1.mlp.down": 5} and config["lora_alpha"] == 8, config)
    run("gacc-exec", artifact, "--init-only", "--load-adapter", folder / "adapter", "--device", "cpu")


# Queries, keys and values of a head side by side, as GPT-NeoX has them; here with as many heads of keys.
FUSED = """
[load]
[load.split."h.{i}.mix.attn.qkv.*"]
tensor = "h.{i}.heads.*"
sizes = [6, 6, 6]
parts = [0, 1, 2]
groups = 4
"""


def test_adapters_of_rows_of_one_matrix_are_one_of_pefts(folder):
    """Its rank is the sum of theirs; one that PEFT made has one A for all of them."""
    def fused(name, *tables):
        return build(folder, *tables, name=name, text=MODEL.replace("kv_heads = 2\n", ""))
    whole, some, each = (fused(name, FUSED, lora('["*attn"]', on=on)) for name,
                         on in (("whole", '["qkv"]'), ("some", '["q", "v"]'), ("each", '["q", "k", "v"]')))
    run("gacc-exec", fused("plain", FUSED), "--init-only", "--save", folder / "base.safetensors", "--save-as",
        "published", "--device", "cpu")
    base = ["--load", folder / "base.safetensors"]
    for artifact, rank in ((whole, 4), (some, 8), (each, 12)):
        run("gacc-exec", artifact, "--data", data(folder), *base, "--updates", 3, "--device", "cpu", "--save",
            folder / "own.safetensors", "--save-adapter", folder / "adapter")
        adapter = harness.read_safetensors(folder / "adapter/adapter_model.safetensors")
        expect(set(adapter) == {f"base_model.model.h.{i}.heads.lora_{m}.weight" for i in (0, 1) for m in "AB"},
               list(adapter))
        b = adapter["base_model.model.h.0.heads.lora_B.weight"]
        expect(b[0] == [72, rank] and adapter["base_model.model.h.1.heads.lora_A.weight"][0] == [rank, WIDTH],
               f"{rank}: {b[0]}")
        rows = [any(b[1][row * rank:(row + 1) * rank]) for row in range(72)]
        expect(rows == [artifact is not some or row // 6 % 3 != 1 for row in range(72)],
               "rows of keys are zeros, head by head")
        config = json.loads((folder / "adapter/adapter_config.json").read_text())
        expect((config["r"], config["lora_alpha"], config["target_modules"]) == (rank, 2 * rank, ["heads"]), config)
        own = predicted(folder, artifact, "--load", folder / "own.safetensors")
        expect(predicted(folder, artifact, *base, "--load-adapter", folder / "adapter") == own,
               f"rank {rank} does not come back")
    # PEFT's own, of rank 4 for all rows: the same function by three adapters with one A.
    run("gacc-exec", whole, "--data", data(folder), *base, "--updates", 3, "--device", "cpu", "--save-adapter",
        folder / "adapter")
    one, three = (predicted(folder, artifact, *base, "--load-adapter", folder / "adapter")
                  for artifact in (whole, each))
    far = max(abs(a - b) for a, b in zip(one, three, strict=True))
    expect(far < 1e-5 and one != predicted(folder, whole, *base), f"one A for three: {far}")
    done = run("gacc-exec", some, "--init-only", "--load-adapter", folder / "adapter", "--device", "cpu", code=1)
    expect("changes rows of h.0.heads that have no adapter in the model" in done.stderr, done.stderr)


def test_what_does_not_fit_is_listed_whole(folder):
    artifact = build(folder, PUBLISHED, lora())
    good = folder / "adapter"
    run("gacc-exec", artifact, "--init-only", "--save-adapter", good, "--device", "cpu")

    def refused(artifact, *words, path=good, option="--load-adapter", more=()):
        done = run("gacc-exec", artifact, "--init-only", option, path, "--device", "cpu", *more, code=1)
        expect(done.stderr.count("error:") == 1, done.stderr)
        harness.says(done, *words)

    config = json.loads((good / "adapter_config.json").read_text())
    for change, *words in (({"lora_alpha": 16}, "lora_alpha of model.h.0.q_proj is 16, 8 in the model"),
                           ({"use_rslora": True}, "use_rslora is true"),
                           ({"peft_type": "IA3"}, 'peft_type is "IA3"'), ({"bias": "all"}, "bias is")):
        (good / "adapter_config.json").write_text(json.dumps(config | change))
        refused(artifact, *words)
    for text in ("[", "3", "[]", ""):
        (good / "adapter_config.json").write_text(text)
        refused(artifact, "adapter_config.json is no JSON object")
    (good / "adapter_config.json").unlink()
    refused(artifact, "adapter_config.json")
    (good / "adapter_config.json").write_text(json.dumps(config))
    refused(build(folder, PUBLISHED, lora(rank=2, on='["q", "v"]'), name="other"),
            "base_model.model.model.h.0.q_proj.lora_A.weight is [4, 24] in the file, [2, 24] in the model",
            'the model has no "base_model.model.model.h.1.k_proj.lora_B.weight"')
    refused(build(folder, PUBLISHED, name="plain"), "the model has no adapters")
    tensors = (good / "adapter_model.safetensors").read_bytes()
    for cut in (0, 7, 100, len(tensors) - 1):
        (good / "adapter_model.safetensors").write_bytes(tensors[:cut])
        refused(artifact)
    refused(artifact, "nowhere", path=folder / "nowhere")
    # Parameters that PEFT has no name for, and a set that is not asked for whole.
    fused = build(folder, PUBLISHED, lora(on='["qkv"]'), name="fused")
    refused(fused, "PEFT cannot name the adapter h.0.mix.attn.qkv", "model.h.0.q_proj.weight", option="--save-adapter",
            path=folder / "none")
    expect(not (folder / "none").exists(), "a folder stays behind")
    refused(artifact, "--merge adds them", option="--save", path=folder / "none", more=["--save-as", "published"])
    refused(build(folder, PUBLISHED, name="plain"), "the model has no adapters", option="--save", path=folder / "none",
            more=["--merge"])
    run("gacc-exec", artifact, "--init-only", "--merge", "--device", "cpu", code=2)


TIED = MODEL.replace('name = "head"\nfeatures = 29\n', 'name = "head"\nfeatures = 29\ntied = "embed"\n')
NAMED = PUBLISHED.replace("[load.rename]\n", '[load.rename]\n"head.weight" = "lm_head.weight"\n')


def test_an_adapter_of_a_tied_layer_is_not_merged(folder):
    """B A of the head is no part of the embedding. The same of an owner, whose weight another layer reads."""
    alike = TIED.replace('name = "down"\nfeatures = 24\n',
                         'name = "down"\nfeatures = 24\ntied = "flat"\nbias = false\n').replace(
        'name = "up"\nfeatures = 40\nactivation = "gelu"\n', 'name = "flat"\nfeatures = 24\n')
    for text, match, words in ((TIED, '["head"]', ["adapter head", "embed.weight", "head.weight"]),
                               (TIED, '["*"]', ["embed.weight"]),
                               (alike, '["h.0.mlp.down"]', ["adapter h.0.mlp.down"]),
                               (alike, '["h.1.mlp.flat"]', ["adapter h.1.mlp.flat", "h.1.mlp.down.weight"])):
        artifact = build(folder, lora(match), text=text)
        done = run("gacc-exec", artifact, "--init-only", "--save", folder / "merged", "--merge", "--device", "cpu",
                   code=1)
        harness.one_error(done, "--merge", "tied", "--save-adapter", *words)
        expect(not (folder / "merged").exists(), "a file stays behind")


def test_an_adapter_of_a_tied_layer_has_its_own_name(folder):
    """PEFT's module is the head, whatever the weight is called; its files have the base beside the adapter."""
    unnamed = build(folder, PUBLISHED, lora('["head"]'), name="unnamed", text=TIED)
    done = run("gacc-exec", unnamed, "--init-only", "--save-adapter", folder / "adapter", "--device", "cpu", code=1)
    harness.one_error(done, "head.weight", "load.rename")
    artifact = build(folder, NAMED, lora('["head"]'), text=TIED)
    base = ["--load", folder / "base.safetensors"]
    plain = build(folder, NAMED, name="plain", text=TIED)
    run("gacc-exec", plain, "--init-only", "--save", base[1], "--save-as", "published", "--device", "cpu", "--seed", 9)
    expect("lm_head.weight" not in harness.read_safetensors(base[1]), "a tied weight stands once")
    run("gacc-exec", artifact, "--data", data(folder), *base, "--updates", 3, "--device", "cpu", "--save-adapter",
        folder / "adapter", "--save", folder / "own")
    tensors = harness.read_safetensors(folder / "adapter/adapter_model.safetensors")
    expect(sorted(tensors) == [f"base_model.model.model.lm_head.lora_{m}.weight" for m in "AB"], list(tensors))
    config = json.loads((folder / "adapter/adapter_config.json").read_text())
    expect(config["target_modules"] == ["lm_head"] and config["modules_to_save"] is None, config)
    own = predicted(folder, artifact, "--load", folder / "own")
    expect(predicted(folder, artifact, *base, "--load-adapter", folder / "adapter") == own,
           "the adapter alone is not all that was trained")
    # PEFT writes the base of an adapted head, too.
    weight = harness.read_safetensors(base[1])["model.embed.weight"]
    harness.write_safetensors(folder / "adapter/adapter_model.safetensors",
                              tensors | {"base_model.model.model.lm_head.base_layer.weight": weight})
    expect(predicted(folder, artifact, *base, "--load-adapter", folder / "adapter") == own,
           "with the base layer beside it")
    # A copy that only one of the two has is another model.
    (folder / "adapter/adapter_config.json").write_text(json.dumps(config | {"modules_to_save": ["embed"]}))
    harness.write_safetensors(folder / "adapter/adapter_model.safetensors",
                              tensors | {"base_model.model.model.embed.weight": weight})
    done = run("gacc-exec", artifact, *base, "--init-only", "--load-adapter", folder / "adapter", "--device", "cpu",
               code=1)
    harness.one_error(done, "modules_to_save", "embed.weight and head.weight")


def normed(first, norm, last, **train):
    """Keys of the three layers and of [train]."""
    return model_text(layer("linear", name="a", features=4, **first), layer("batch_norm", name="b", **norm),
                      layer("linear", name="o", features=2, **last), model={"name": "normed", "seed": 1},
                      inputs={"x": {"shape": [3]}, "y": {"shape": [2]}}, loss={"type": "mse", "target": "y"},
                      optimizer={"type": "sgd", "lr": 0.05}, train={"micro_batch": 4, **train})


ADAPTED, TRAINED = {"lora": {"rank": 2, "alpha": 4}}, {"trainable": True}


def test_what_is_trained_beside_adapters_goes_with_them(folder):
    """Heads and the statistics of batch norms: PEFT's modules_to_save. A layer that is trained and adapted: its
    base."""
    for norm, head, modules in (({}, {}, None), ({}, TRAINED, ["o"]), (TRAINED, TRAINED, ["b", "o"]),
                                ({}, TRAINED | {"lora": {"rank": 1}}, None)):
        artifact = harness.compile_text(folder, normed(ADAPTED, norm, head, epochs=3))
        spec = harness.make_data(folder / "m.toml", 16, folder)
        before = initial(folder, artifact)
        run("gacc-exec", artifact, "--data", spec, "--load", folder / "initial.safetensors", "--save", folder / "w",
            "--save-adapter", folder / "adapter", "--device", "cpu")
        after = harness.read_safetensors(folder / "w")
        expect((after["b.running_mean"] != before["b.running_mean"]) == bool(norm),
               f"{norm}: statistics move where the layer is trained")
        config = json.loads((folder / "adapter/adapter_config.json").read_text())
        expect(config["modules_to_save"] == modules, config)
        names = {n.removeprefix("base_model.model.")
                 for n in harness.read_safetensors(folder / "adapter/adapter_model.safetensors")}
        infix = "base_layer." if "lora" in head else ""
        expect({f"o.{infix}weight", f"o.{infix}bias"} <= names or not head, f"{names}")
        expect(("b.running_var" in names) == bool(norm), f"{names}")
        run("gacc-exec", artifact, "--load", folder / "initial.safetensors", "--load-adapter", folder / "adapter",
            "--init-only", "--save", folder / "again", "--device", "cpu")
        expect(harness.read_safetensors(folder / "again") == after,
               f"{norm} {head}: base and adapter are not what was trained")
    # An adapter without them leaves them as they are, and that is said.
    tensors = harness.read_safetensors(folder / "adapter/adapter_model.safetensors")
    harness.write_safetensors(folder / "few.safetensors", {n: t for n, t in tensors.items() if "lora" in n})
    done = run("gacc-exec", artifact, "--load", folder / "initial.safetensors", "--load-adapter",
               folder / "few.safetensors", "--init-only", "--device", "cpu")
    expect("keep their start: o.weight, o.bias" in done.stderr or "keep their start: o.bias, o.weight" in done.stderr,
           done.stderr)


def test_a_frozen_batch_norm_is_as_in_evaluations(folder):
    """In PyTorch's terms: the module in eval(), its parameters without a gradient."""
    for frozen in ({}, {"trainable": False}):
        artifact = harness.compile_text(folder, normed({} if frozen else ADAPTED, frozen, {}, accumulate=2))
        spec = harness.make_data(folder / "m.toml", 8, folder)
        weights = initial(folder, artifact)
        for name, values in (("running_mean", [.5, -1, 2, .25]), ("running_var", [.5, 2, 1, 4]),
                             ("weight", [1.5, -1, 2, .5]), ("bias", [.25, 0, -1, 1])):
            weights[f"b.{name}"] = ([4], array.array("f", values))
        harness.write_safetensors(folder / "w", weights)
        load = ["--data", spec, "--load", folder / "w", "--device", "cpu"]
        run("gacc-exec", artifact, *load, "--lr", 0, "--log", folder / "log", "--eval", spec, "--save",
            folder / "after")
        expect(harness.read_safetensors(folder / "after") == weights, "something of it moved")
        losses = [e["loss"] for e in harness.read_log(folder / "log") if e["event"] in ("update", "eval")]
        expect(abs(losses[0] - losses[-1]) < 1e-6 * abs(losses[-1]),
               f"training and evaluation see other layers: {losses}")
        # The gradient of the weight before it, beside differences.
        name = "a.lora_B.weight" if not frozen else "a.weight"
        run("gacc-exec", artifact, *load, "--updates", 1, "--dump-grads", folder / "grads")
        grads = harness.read_safetensors(folder / "grads")
        expect("b.weight" not in grads and name in grads, list(grads))
        for i in (0, 3):
            ends = []
            for step in (1e-2, -1e-2):
                shape, values = weights[name]
                moved = list(values)
                moved[i] += step
                harness.write_safetensors(folder / "moved", weights | {name: (shape, moved)})
                run("gacc-exec", artifact, "--eval", spec, "--load", folder / "moved", "--log", folder / "log",
                    "--device", "cpu")
                ends.append(next(e["loss"] for e in harness.read_log(folder / "log") if e["event"] == "eval"))
            slope, found = (ends[0] - ends[1]) / 2e-2, grads[name][1][i]
            expect(abs(slope - found) < 1e-2 * max(abs(slope), .1), f"{name}[{i}]: {found}, by differences {slope}")
    plan = json.loads(run("gaccc", folder / "m.toml", "--plan", "--json", "-o", folder / "m.ptx").stdout)
    expect(plan["equivalence"] == {"exact": True}, plan["equivalence"])


def test_configurations_that_mean_something_else_are_refused(folder):
    artifact = build(folder, lora('["h.*.mlp.*"]'))
    good = folder / "adapter"
    run("gacc-exec", artifact, "--init-only", "--save-adapter", good, "--device", "cpu")
    config = json.loads((good / "adapter_config.json").read_text())

    def loads(change, code=0, text=None):
        (good / "adapter_config.json").write_text(text or json.dumps(config | change))
        return run("gacc-exec", artifact, "--init-only", "--load-adapter", good, "--device", "cpu", code=code)

    for change in ({"init_lora_weights": "gaussian"}, {"init_lora_weights": "eva", "eva_config": {"rho": 2}},
                   {"init_lora_weights": False},
                   {"init_lora_weights": "orthogonal"}, {"use_dora": False, "corda_config": None,
                                                         "layer_replication": None, "trainable_token_indices": None},
                   {"target_parameters": [], "loftq_config": {}},
                   {"lora_dropout": .1, "layers_to_transform": None, "peft_version": "0.18.0", "qalora_group_size": 16},
                   {"lora_alpha": 3, "alpha_pattern": {"up": 8, "mlp.down": 8}},
                   {"lora_alpha": 3, "alpha_pattern": {"h.0.mlp.up": 8, "h.1.mlp.up": 8, "^h.0.mlp.down": 8,
                                                       "h.1.mlp.down": 8}},
                   {"r": 7, "rank_pattern": {"mlp.up": 4, "down": 4}}):
        loads(change)
    for change, *words in (({"init_lora_weights": "pissa"}, 'init_lora_weights is "pissa"'),
                           ({"init_lora_weights": "olora"}, "init_lora_weights"),
                           ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens is [5]"),
                           ({"layer_replication": [[0, 1]]}, "layer_replication"),
                           ({"use_dora": True}, "use_dora is true"), ({"use_rslora": True}, "use_rslora"),
                           ({"lora_bias": True}, "lora_bias"),
                           ({"trainable_token_indices": [1]}, "trainable_token_indices"),
                           ({"something_new": 3}, "something_new is 3"),
                           ({"alpha_pattern": {"h.[0-9].mlp.up": 8}}, "alpha_pattern has the key",
                            "regular expression"), ({"rank_pattern": {"(up)": 4}}, "rank_pattern"),
                           ({"lora_alpha": "8"}, 'lora_alpha is "8"'),
                           ({"r": 3}, "r of h.0.mlp.down is 3, 4 in the model"),
                           ({"target_modules": ["up"]}, "target_modules does not name h.0.mlp.down"),
                           ({"alpha_pattern": {"^mlp.up": 9, "p": 9, "up": 8.5}}, "lora_alpha of h.0.mlp.up is 8.5")):
        harness.says(loads(change, 1), *words)
    # The first key that fits counts.
    text = json.dumps({k: v for k, v in config.items() if k != "alpha_pattern"})[:-1]
    loads(None, text=text + ', "alpha_pattern": {"up": 8, "h.0.mlp.up": 9}}')
    loads(None, 1, text + ', "alpha_pattern": {"h.0.mlp.up": 9, "up": 8}}')


def test_memory_of_the_example(folder):
    """SmolLM2's shape in bf16, a micro-batch of one: what adapters take of full fine-tuning."""
    sets = ["--set", "precision.compute=bf16", "--set", "train.micro_batch=1"]
    full, adapters = (json.loads(run("gaccc", harness.example(name), "-o", folder / "m.ptx", "--plan", "--json",
                                     *sets).stdout)["bytes"]
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


def test_adapters_beside_weights_are_not_passed_over_in_silence(folder):
    """transformers would put them on the weights of such a folder."""
    artifact, both = build(folder, lora()), folder / "both"
    words = ("gacc-exec", artifact, "--init-only", "--device", "cpu")
    run(*words, "--save-adapter", both)
    run(*words, "--save", both / "model.safetensors")
    for more, said in (((), True), (("--load-adapter", both), False)):
        done = run(*words, "--load", both, *more)
        expect(("has adapters beside its weights (adapter_config.json)" in done.stderr) == said, done.stderr)


if __name__ == "__main__":
    harness.main(globals())
