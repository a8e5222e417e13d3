"""Weights from elsewhere: --load by the table [load] of the model file, and --save-as published."""
import array
import json
import random
import struct

import harness
from harness import expect, layer, model_text, run

T, V, C, H = 6, 40, 16, 32


def model(trainable=True):
    tokens = {"shape": [T], "dtype": "i32"}
    block = (layer("layer_norm", name="ln"), layer("attention", name="attn", heads=2, causal=True),
             layer("linear", name="fc", features=H, activation="relu"), layer("linear", name="out", features=C))
    return model_text(
        layer("embedding", name="wte", vocab=V, features=C),
        layer("sequential", *block, name="h", repeat=2, trainable=trainable),
        layer("linear", name="head", features=V, tied="wte", bias=False),
        model={"name": "tiny"}, inputs={"tokens": tokens, "next": tokens},
        loss={"type": "cross_entropy", "target": "next"}, train={"micro_batch": 2},
        optimizer={"type": "adam", "lr": 0.01})


TABLE = """
[load]
prefix = "model."
transpose = ["h.{i}.fc.weight", "h.{i}.attn.qkv.weight"]
ignore = ["*.mask"]
[load.rename]
"wte.weight" = "embed.weight"
"h.{i}.*" = "layers.{i}.*"
[load.concat]
"h.{i}.attn.qkv.weight" = ["layers.{i}.q.weight", "layers.{i}.k.weight", "layers.{i}.v.weight"]
"h.{i}.attn.qkv.bias" = ["layers.{i}.q.bias", "layers.{i}.k.bias", "layers.{i}.v.bias"]
"""


def build(folder, table=TABLE, trainable=True, sets=(), name="step"):
    (folder / f"{name}.toml").write_text(model(trainable) + table)
    artifact = folder / f"{name}.ptx"
    run("gaccc", folder / f"{name}.toml", "-o", artifact, *[w for s in sets for w in ("--set", s)])
    return artifact


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def write(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, list of numbers or bytes)"""
    header, body = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, values) in tensors.items():
        data = values if isinstance(values, bytes) else b"".join(
            struct.pack("<f", v) if dtype == "F32" else struct.pack("<e", v) if dtype == "F16"
            else struct.pack("<H", bf16(v)) for v in values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def elsewhere(seed=1, dtype="F32"):
    """Loads what another program wrote: other names, matrices turned, three of them where we have one."""
    draw = random.Random(seed)

    def tensor(*shape):
        # Numbers that bf16 and f16 have as well.
        return (dtype, list(shape), [draw.randrange(-128, 128) / 256 for _ in range(harness.math.prod(shape))])
    tensors = {"model.embed.weight": tensor(V, C)}
    for i in range(2):
        p = f"model.layers.{i}."
        for part in "qkv":
            tensors |= {f"{p}{part}.weight": tensor(C, C), f"{p}{part}.bias": tensor(C)}
        tensors |= {p + "attn.proj.weight": tensor(C, C), p + "attn.proj.bias": tensor(C), p + "ln.weight": tensor(C),
                    p + "ln.bias": tensor(C), p + "fc.weight": tensor(C, H), p + "fc.bias": tensor(H),
                    p + "out.weight": tensor(C, H), p + "out.bias": tensor(C)}
        tensors[p + "attn.mask"] = ("BOOL", [1, T, T], bytes(T * T))
    return tensors


def values_of(tensors):
    return {n: (s, list(v)) for n, (_, s, v) in tensors.items() if not n.endswith(".mask")}


def turned(shape, values):
    rows, columns = shape
    return [values[r * columns + c] for c in range(columns) for r in range(rows)]


def saved(path):
    return {n: (s, list(v)) for n, (s, v) in harness.read_safetensors(path).items()}


def loaded(artifact, file, folder, *more):
    out = folder / "out.safetensors"
    run("gacc-exec", artifact, "--init-only", "--load", file, "--save", out, *more, "--device", "cpu")
    return saved(out)


def test_names_axes_and_parts(folder):
    artifact, file = build(folder), folder / "w.safetensors"
    for dtype in ("F32", "F16", "BF16"):
        tensors = elsewhere(dtype=dtype)
        write(file, tensors)
        ours = loaded(artifact, file, folder)
        theirs = values_of(tensors)
        expect(ours["wte.weight"] == theirs["model.embed.weight"], "renamed")
        expect(ours["h.1.out.weight"] == theirs["model.layers.1.out.weight"], "as it lies")
        expect(ours["h.1.fc.weight"] == ([H, C], turned(*theirs["model.layers.1.fc.weight"])), "transposed")
        parts = [turned(*theirs[f"model.layers.0.{p}.weight"]) for p in "qkv"]
        expect(ours["h.0.attn.qkv.weight"] == ([3 * C, C], sum(parts, [])), "transposed, then one behind the other")
        expect(ours["h.0.attn.qkv.bias"][1] == sum((theirs[f"model.layers.0.{p}.bias"][1] for p in "qkv"), []), "bias")
        expect(loaded(artifact, file, folder, "--save-as", "published") == theirs, "what came in goes out")
    # A file of --save is taken under our names.
    loaded(artifact, file, folder)
    expect(loaded(artifact, folder / "out.safetensors", folder) == ours, "our own names")


def drawn(artifact, device, folder, *options):
    """Trains one update with a trace: how many launches of `init` draw numbers, and the parameters."""
    trace, out = folder / "trace.json", folder / "out.safetensors"
    (folder / "text.bin").write_bytes(bytes(range(40)))
    run("gacc-exec", artifact, "--data", f"text:{folder / 'text.bin'}", "--updates", 1, "--lr", 1e-30,
        "--device", device, "--profile", trace, "--save", out, *options)
    kernels = [e for e in json.loads(trace.read_text())["traceEvents"] if e["cat"] == "kernel"]
    return sum(e["args"]["program"] == "init" and "random" in e["name"] for e in kernels), saved(out)


def test_what_is_loaded_is_not_drawn(folder):
    """Frozen blocks, whose launches make nothing else. What is not loaded has the numbers that it has without."""
    artifact = build(folder, TABLE.replace("[load]", "[load]\npart = true", 1), trainable=[False, False])
    file, tensors = folder / "w.safetensors", elsewhere()
    few = {n: t for n, t in tensors.items() if ".layers.1." not in n}
    for device in ("cpu", "emulate"):
        write(file, tensors)
        all_drawn, fresh = drawn(artifact, device, folder)
        least, _ = drawn(artifact, device, folder, "--load", file)
        write(file, few)
        _, partly = drawn(artifact, device, folder, "--load", file)
        expect(least < all_drawn, f"{device}: {least} and {all_drawn} launches draw")
        for name, value in partly.items():
            expect((value == fresh[name]) == name.startswith("h.1."), f"{device}: {name}")


# Queries, keys and values head by head, and two of our matrices in one.
SPLIT = """
[load]
prefix = "model."
outside = ["out.bias", "h.{i}.out.bias"]
transpose = ["h.{i}.attn.proj.weight", "h.{i}.fc.weight"]
[load.rename]
"wte.weight" = "embed.weight"
[load.split."h.{i}.attn.qkv.*"]
tensor = "h.{i}.heads.*"
sizes = [8, 8, 8]
parts = [0, 1, 2]
groups = 2
[load.split."h.{i}.attn.proj.*"]
tensor = "h.{i}.joined.*"
sizes = [16, 32]
parts = [0]
[load.split."h.{i}.fc.*"]
tensor = "h.{i}.joined.*"
sizes = [16, 32]
parts = [1]
""".replace('"out.bias", ', "")


def test_parts_of_a_tensor(folder):
    """Rows of one tensor are several parameters, or one in another order; written back they are joined."""
    artifact = build(folder, SPLIT)
    draw = random.Random(5)

    def tensor(*shape):
        return ("F32", list(shape), [draw.randrange(-128, 128) / 256 for _ in range(harness.math.prod(shape))])
    tensors = {"model.embed.weight": tensor(V, C)}
    for i in range(2):
        p = f"model.h.{i}."
        tensors |= {p + "heads.weight": tensor(48, C), p + "heads.bias": tensor(48), p + "joined.weight": tensor(C, 48),
                    p + "joined.bias": tensor(48),
                    p + "ln.weight": tensor(C), p + "ln.bias": tensor(C), p + "out.weight": tensor(C, H),
                    f"h.{i}.out.bias": tensor(C)}
    file = folder / "w.safetensors"
    write(file, tensors)
    ours, theirs = loaded(artifact, file, folder), values_of(tensors)

    def rows(values, width, *runs):
        return sum((values[begin * width:end * width] for begin, end in runs), [])
    by_part = [(head * 24 + part * 8, head * 24 + part * 8 + 8) for part in range(3) for head in range(2)]
    for name, width in (("weight", C), ("bias", 1)):
        expect(ours[f"h.1.attn.qkv.{name}"][1] == rows(theirs[f"model.h.1.heads.{name}"][1], width, *by_part),
               f"{name} head by head")
        whole = theirs[f"model.h.0.joined.{name}"]
        values = turned(*whole) if name == "weight" else whole[1]
        expect(ours[f"h.0.attn.proj.{name}"][1] == rows(values, width, (0, 16)), f"the first part of {name}")
        expect(ours[f"h.0.fc.{name}"][1] == rows(values, width, (16, 48)), f"the second part of {name}")
    expect(ours["h.1.out.bias"] == theirs["h.1.out.bias"], "a name without the prefix")
    expect(loaded(artifact, file, folder, "--save-as", "published") == theirs, "what came in goes out")
    write(file, tensors | {"model.h.0.joined.weight": ("F32", [C, 47], [0] * 47 * C),
                           "model.h.1.heads.bias": ("F32", [46], [0] * 46)})
    refused(artifact, file,
            "h.0.fc.weight (model.h.0.joined.weight, part 1 of 16 + 32 rows) is [16, 47] in the file, [16, 48] in the "
            "model",
            "h.1.attn.qkv.bias (model.h.1.heads.bias, part 0 and 1 and 2 of 8 + 8 + 8 rows, 2 times) is [46] in the "
            "file, [48] in the model")
    write(file, {n: t for n, t in tensors.items() if n != "model.h.0.joined.bias"})
    refused(artifact, file, "h.0.fc.bias (model.h.0.joined.bias, part 1 of 16 + 32 rows) [32] is missing")
    # Rows that are nobody's part cannot be written.
    table = SPLIT.replace('"h.{i}.attn.proj.*"]\ntensor = "h.{i}', '"h.1.attn.proj.*"]\ntensor = "h.1')
    write(file, tensors | {f"model.h.0.attn.proj.{n}": t for n, t in (("weight", tensor(C, C)), ("bias", tensor(C)))})
    partly = build(folder, table, name="partly")
    loaded(partly, file, folder)
    done = run("gacc-exec", partly, "--init-only", "--save", folder / "no.safetensors", "--save-as", "published",
               "--device", "cpu", code=1)
    harness.one_error(done, "part 0 of the tensor model.h.0.joined.bias (16 + 32 rows) is no parameter's here")


def shards(folder, tensors, change=None, files=2):
    names = list(tensors)
    weight_map = {}
    for i in range(files):
        shard = f"model-{i}.safetensors"
        part = {n: tensors[n] for n in names[i::files]}
        write(folder / shard, part)
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": 1, "more": [{}, [1]]}, "weight_map": weight_map}
    if change:
        change(index)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    return path


def test_shards(folder):
    artifact = build(folder)
    (folder / "model").mkdir()
    tensors = elsewhere()
    index = shards(folder / "model", tensors)
    write(folder / "w.safetensors", tensors)
    whole = loaded(artifact, folder / "w.safetensors", folder)
    expect(loaded(artifact, index, folder) == whole, "the shards")
    expect(loaded(artifact, folder / "model", folder) == whole, "the folder")
    expect(loaded(artifact, index, folder, "--save-as", "published") == values_of(tensors), "written back as one")


def refused(artifact, file, *words):
    done = run("gacc-exec", artifact, "--init-only", "--load", file, "--save", file.parent / "no.safetensors", code=1)
    harness.one_error(done, *words)
    expect(not (file.parent / "no.safetensors").exists(), "nothing is written")
    return done.stderr


def test_what_does_not_fit_is_listed_whole(folder):
    artifact, file = build(folder), folder / "w.safetensors"

    def changed(change):
        tensors = elsewhere()
        change(tensors)
        write(file, tensors)
        return file

    def many(t):
        t["model.embeds.weight"] = t.pop("model.embed.weight")
        t["model.layers.0.fc.weight"] = ("F32", [H, C], t["model.layers.0.fc.weight"][2])
        t.pop("model.layers.1.k.bias")
        t["model.layers.1.out.bias"] = ("I64", [C], bytes(8 * C))
        t["model.rotary"] = ("F32", [2], [1, 2])
        for i in range(20):
            t[f"extra.{i}"] = ("F32", [1], [0])
    text = refused(artifact, changed(many),
                   'wte.weight (model.embed.weight) [40, 16] is missing; did you mean "model.embeds.weight"?',
                   "h.0.fc.weight (model.layers.0.fc.weight) is [32, 16] in the file, [16, 32] in the model; without "
                   "load.transpose it would fit",
                   "model.layers.1.k.bias is missing", "has the type I64", 'the model has no "model.rotary" [2]',
                   'the model has no "extra.19" [1]')
    expect(len(text.splitlines()) == 27, text)
    refused(artifact, changed(lambda t: t.update({"model.layers.0.ln.bias": ("F32", [C], [float("nan")] * C)})),
            "holds nan at [0]")
    # Masks are ignored by pattern, and refused by name without it.
    write(file, elsewhere())
    plain = build(folder, TABLE.replace('ignore = ["*.mask"]\n', ""), name="plain")
    refused(plain, file, 'the model has no "model.layers.0.attn.mask" [1, 6, 6]',
            'the model has no "model.layers.1.attn.mask" [1, 6, 6]')
    # Without a prefix the file's names still are near.
    bare = build(folder, TABLE.replace('prefix = "model."\n', ""), name="bare")
    refused(bare, file, 'did you mean "model.embed.weight"?')


def test_tied_weights_may_stand_twice(folder):
    artifact = build(folder)
    tensors = elsewhere()
    dtype, shape, values = tensors["model.embed.weight"]
    tensors["lm_head.weight"] = (dtype, shape, values)
    write(folder / "w.safetensors", tensors)
    loaded(artifact, folder / "w.safetensors", folder)
    tensors["lm_head.weight"] = (dtype, shape, [values[0] + 1] + values[1:])
    write(folder / "w.safetensors", tensors)
    refused(artifact, folder / "w.safetensors", 'the model has no "lm_head.weight" [40, 16]')


def test_damaged_files_are_refused(folder):
    artifact = build(folder)
    tensors = elsewhere()
    whole = folder / "whole.safetensors"
    write(whole, tensors)
    cut = folder / "cut.safetensors"
    cut.write_bytes(whole.read_bytes()[:-10])
    refused(artifact, cut, "cut.safetensors", "lies outside")

    def index(change, *words):
        return refused(artifact, shards(folder, tensors, change), *words)
    first = next(iter(tensors))
    index(lambda x: x["weight_map"].update({"ghost": "model-0.safetensors"}), '"ghost" is not in model-0.safetensors')
    index(lambda x: x["weight_map"].pop(first), f'"{first}" is in model-0.safetensors and not in the index')
    index(lambda x: x["weight_map"].update({first: "model-1.safetensors"}), f'"{first}" is not in model-1.safetensors',
          f'"{first}" is in model-0.safetensors, and the index says in model-1.safetensors')
    index(lambda x: x["weight_map"].update({first: "gone.safetensors"}), "gone.safetensors")
    index(lambda x: x["weight_map"].update({first: "../w.safetensors"}), "no file beside the index")
    index(lambda x: x["weight_map"].update({first: 3}), "does not name a file")
    index(lambda x: x.pop("weight_map"), "has no list weight_map")
    path = shards(folder, tensors)
    path.write_text(path.read_text().replace('"weight_map": {', f'"weight_map": {{"{first}": "model-1.safetensors", '))
    refused(artifact, path, f'has two tensors "{first}"')
    both = shards(folder, tensors)
    write(folder / "model-1.safetensors", tensors)  # has all, also those of the other shard
    refused(artifact, both, f'"{first}" is in model-1.safetensors, and the index says in model-0.safetensors')
    path.write_text("{]")
    refused(artifact, path, "no valid JSON")
    (folder / "empty").mkdir()
    refused(artifact, folder / "empty", "has neither model.safetensors")


def test_a_part_of_the_parameters(folder):
    tensors, file = elsewhere(), folder / "w.safetensors"
    write(file, {n: t for n, t in tensors.items() if not n.startswith("model.layers.1")})
    refused(build(folder), file, "h.1.ln.weight (model.layers.1.ln.weight) [16] is missing")
    artifact = build(folder, TABLE.replace("[load]", "[load]\npart = true"), name="part")
    run("gacc-exec", artifact, "--init-only", "--save", folder / "start.safetensors")
    start, ours = saved(folder / "start.safetensors"), loaded(artifact, file, folder)
    for name, value in ours.items():
        expect((value == start[name]) == name.startswith("h.1."), f"{name} of the file or the start")
    write(file, {n: t for n, t in tensors.items() if n != "model.layers.1.ln.weight"})
    expect("lacks 1 parameter, which keeps its start: h.1.ln.weight\n" in run(
        "gacc-exec", artifact, "--load", file, "--init-only").stderr, "of one")
    write(file, {"other": ("F32", [1], [0])})
    refused(artifact, file, "none of the model's parameters", 'the model has no "other" [1]')


def test_a_folder_with_a_file_and_an_index(folder):
    """transformers takes the file; the index may be left from before, its shards gone or not."""
    artifact = build(folder)
    place = folder / "both"
    place.mkdir()
    one, other = elsewhere(1), elsewhere(2)
    write(place / "model.safetensors", one)
    (place / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {name: "shard.safetensors" for name in other}}))
    expect(loaded(artifact, place, folder, "--save-as", "published") == values_of(one), "the shards are gone")
    write(place / "shard.safetensors", other)
    expect(loaded(artifact, place, folder, "--save-as", "published") == values_of(one), "the file comes first")
    (place / "model.safetensors").unlink()
    expect(loaded(artifact, place, folder, "--save-as", "published") == values_of(other), "the index alone")


def test_a_head_of_its_own_for_a_tied_model(folder):
    """The error says that the model ties what the file does not."""
    tensors = elsewhere() | {"lm_head.weight": ("F32", [V, C], [i / 7 for i in range(V * C)])}
    write(folder / "w.safetensors", tensors)
    done = run("gacc-exec", build(folder), "--init-only", "--load", folder / "w.safetensors", "--device", "cpu", code=1)
    harness.one_error(done, '"lm_head.weight" [40, 16]', "head is tied to wte.weight", "Without `tied`")
    # Equal numbers, constant or not, are a copy: where [load] says so by name.
    named = build(folder, TABLE.replace("[load.rename]\n", '[load.rename]\n"head.weight" = "lm_head.weight"\n'),
                  name="named")
    for values in ([0.5] * (V * C), tensors["model.embed.weight"][2]):
        write(folder / "w.safetensors", elsewhere() | {name: ("F32", [V, C], values)
                                                       for name in ("model.embed.weight", "model.lm_head.weight")})
        run("gacc-exec", named, "--init-only", "--load", folder / "w.safetensors", "--device", "cpu")


ROTARY = model_text(
    layer("rms_norm", name="n", eps=1e-6),
    layer("attention", name="a", heads=4, kv_heads=2, causal=True, rope={"theta": 10000}),
    layer("linear", name="f", features=16, activation="silu"),
    model={"name": "rotary"}, inputs={"x": {"shape": [12, 16]}, "y": {"shape": [12, 16]}},
    loss={"type": "mse", "target": "y"}, optimizer={"type": "sgd"})
CONFIG = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
          "hidden_act": "silu", "rms_norm_eps": 1e-6, "intermediate_size": 24,
          "rope_theta": 10000.0, "rope_scaling": None, "hidden_size": 16, "torch_dtype": "bfloat16",
          "architectures": ["LlamaForCausalLM"],
          "attention_bias": True, "max_position_embeddings": 64, "tie_word_embeddings": False,
          "transformers_version": "4.50.0", "bos_token_id": 1}


def test_a_folder_s_config_is_compared(folder):
    """Each key is the model's, is known to change nothing, or is named in the error. The file itself is loaded as it
    is."""
    place = folder / "published"
    place.mkdir()

    def build(text=ROTARY):
        return harness.compile_text(folder, text, "r")

    def loads(change, *words, artifact=build(), without=()):
        (place / "config.json").write_text(json.dumps({k: v for k, v in (CONFIG | change).items() if k not in without}))
        done = run("gacc-exec", artifact, "--init-only", "--load", place, "--device", "cpu", code=1 if words else 0)
        harness.says(done, *words)

    run("gacc-exec", build(), "--init-only", "--save", place / "model.safetensors", "--device", "cpu")
    for right in ({}, {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "float32"},
                  {"sliding_window": 12}, {"layer_types": ["full_attention"]},
                  {"sliding_window": 4, "use_sliding_window": False}, {"final_logit_softcapping": None},
                  {"residual_multiplier": 1.0, "logits_scaling": 1},
                  {"full_attn_mod": 1, "interpolate_factor": 1, "n_special": 0, "is_encoder_decoder": False,
                   "forced_bos_token_id": 3, "pruned_heads": {}},
                  {"partial_rotary_factor": 1.0},
                  {"model_type": "qwen3", "sliding_window": 4, "use_sliding_window": True, "num_hidden_layers": 28},
                  {"sliding_window": 4, "layer_types": ["full_attention"]}):
        loads(right)
    loads({"model_type": "qwen2", "sliding_window": 4}, without=["attention_bias"])
    loads({}, without=["num_key_value_heads"], *["num_attention_heads is 4, 2 in the model"])
    for wrong, *words in (({"rope_theta": 500000.0}, "rope_theta is 500000", "10000 in the model"),
                          ({"num_attention_heads": 8, "head_dim": 2}, "num_attention_heads is 8, 4",
                           "head_dim is 2, 4"),
                          ({"rope_parameters": {"rope_theta": 5e5}}, "rope_parameters.rope_theta"),
                          ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor"),
                          ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "not scaled"),
                          ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0}},
                           "rope_parameters"),
                          ({"hidden_act": "gelu"}, 'hidden_act is "gelu"', "silu in the model"),
                          ({"rms_norm_eps": 1e-5}, "rms_norm_eps is"),
                          ({"sliding_window": 4}, "`sliding_window` = 4 cannot be expressed"),
                          ({"model_type": "qwen3", "sliding_window": 4, "use_sliding_window": True,
                            "num_hidden_layers": 29}, "use_sliding_window"),
                          ({"model_type": "qwen3", "sliding_window": 4, "use_sliding_window": True,
                            "num_hidden_layers": 29, "max_window_layers": 0},
                           "sliding_window is 4", "nothing in the model"),
                          ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
                          ({"logits_scaling": 8.0}, "logits_scaling\" is 8,"),
                          ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
                          ({"attention_multiplier": 0.25}, "attention_multiplier"),
                          ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` = 0.5 cannot be expressed"),
                          ({"model_type": "gemma"}, 'model_type is "gemma"'),
                          ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
                          ({"something_new": 3}, '"something_new" is 3', "[load.config]"),
                          ({"layer_types": ["chunked_attention"]}, "layer_types")):
        loads(wrong, str(place / "config.json"), *words)
        run("gacc-exec", folder / "r.ptx", "--init-only", "--load", place / "model.safetensors", "--device", "cpu")
    loads({}, "missing, which is 10000", artifact=build(ROTARY.replace("10000", "500000")), without=["rope_theta"])
    loads({}, artifact=build(), without=["hidden_act", "rms_norm_eps"])
    loads({"model_type": "phi3"}, "rms_norm_eps is missing, which is 1e-05, 1e-06 in the model",
          without=["rms_norm_eps", "attention_bias"])
    loads({}, 'hidden_act is missing, which is "silu", relu in the model',
          artifact=build(ROTARY.replace("silu", "relu")), without=["hidden_act"])
    loads({"model_type": "mine"}, artifact=build(ROTARY + '[load.config]\nmodel_type = "mine"\n'),
          without=["rms_norm_eps"])
    loads({}, "causal is missing, which is true, false in the model",
          artifact=build(ROTARY.replace("causal = true\n", "")))
    scaled = build(ROTARY.replace("theta = 10000",
                                  'theta = 10000, scaling = { type = "llama3", factor = 8, low_freq_factor = 1, '
                                  'high_freq_factor = 4, original_max_position_embeddings = 8 }'))
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8}
    loads({"rope_scaling": scaling}, artifact=scaled)
    loads({"rope_parameters": scaling | {"rope_theta": 1e4}}, artifact=scaled, without=["rope_theta", "rope_scaling"])
    loads({}, "rope_theta is missing", artifact=build(ROTARY.replace("10000", "500000")), without=["rope_theta"])
    scaled = build(ROTARY.replace("theta = 10000", 'theta = 10000, scaling = { type = "linear", factor = 8 }'))
    loads({"rope_scaling": scaling}, 'rope_scaling.rope_type is "llama3", linear in the model', artifact=scaled)
    loads({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling.factor is 4", "8 in the model",
          artifact=scaled)
    loads({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}, "the model's positions are scaled",
          artifact=scaled, without=["rope_scaling"])
    scaled = build(ROTARY.replace("10000",
                                  '10000, scaling = { type = "longrope", factor = 4, original_max_position_embeddings '
                                  '= 16, short_factor = [1, 1], long_factor = [2, 2] }'))
    lists = {"short_factor": [1, 1], "long_factor": [2, 2]}
    for named in {"type": "su"}, {"type": "su", "finetuned": True}, {"type": "yarn"}:  # as the first files call it
        loads({"model_type": "phi3", "rope_scaling": named | lists, "original_max_position_embeddings": 16},
              artifact=scaled, without=["attention_bias"])
    loads({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 'rope_scaling.type is "yarn", longrope in the model',
          artifact=scaled)
    loads({"model_type": "phi3", "rope_scaling": {"type": "su"} | lists, "original_max_position_embeddings": 32},
          "original_max_position_embeddings is 32", "16 in the model", artifact=scaled, without=["attention_bias"])
    # Keys that the model file answers for.
    own = build(ROTARY + '[load.config]\nmodel_type = "mine"\nsomething_new = 3\n')
    loads({"model_type": "mine", "something_new": 3}, artifact=own)
    loads({"model_type": "mine", "something_new": 4}, "something_new is 4, 3 in the model", artifact=own)
    (place / "config.json").write_text("[]")
    harness.one_error(run("gacc-exec", own, "--init-only", "--load", place, "--device", "cpu", code=1),
                      "config.json", "it is no JSON object")


def test_the_table_is_checked_when_compiling(folder):
    def wrong(table, *words):
        (folder / "m.toml").write_text(model() + table)
        harness.says(run("gaccc", folder / "m.toml", "-o", folder / "m.ptx", code=1), *words)
    wrong('[load]\ntranspose = ["h.{i}.fc.bias"]', "`h.0.fc.bias` [32] is no matrix: it cannot be transposed")
    wrong('[load]\nrename = { "wta.weight" = "x" }', "no parameter is named `wta.weight`; did you mean \"wte.weight\"?")
    wrong('[load]\nrename = { "h.{i}.fc.weight" = "h.{j}.w" }', "does not have `{j}`")
    wrong('[load]\nrename = { "h.{i}.fc.weight" = "w" }', "would both be the file's `w`")
    wrong('[load]\nrename = { "wte.weight" = 3 }', "must be a string")
    wrong('[load]\nconcat = { "wte.weight" = "x" }', "must be a list of strings")


def tokens(folder, ignored=False):
    draw = random.Random(3)
    x = array.array("i", [draw.randrange(V) for _ in range(4 * T)])
    y = array.array("i", [draw.randrange(V) if not ignored or i % T >= T // 2 else -100 for i in range(4 * T)])
    return harness.write_arrays(folder, {"tokens": (x, (4, T)), "next": (y, (4, T))})


def test_frozen_copies_stay(folder):
    """trainable = [false, true]: of the blocks only the second moves; the first has no gradient, moment or master."""
    data = tokens(folder)
    write(folder / "w.safetensors", elsewhere())
    for compute in ("f32", "bf16", "f16"):
        artifact = build(folder, trainable=[False, True], sets=(f"precision.compute={compute}",))
        before = loaded(artifact, folder / "w.safetensors", folder)
        run("gacc-exec", artifact, "--data", data, "--load", folder / "w.safetensors", "--updates", 2, "--save",
            folder / "after.safetensors", "--device", "cpu" if compute == "f32" else "emulate")
        for name, value in saved(folder / "after.safetensors").items():
            expect((value == before[name]) == name.startswith("h.0."), f"{compute}: {name}")
        run("gacc-exec", artifact, "--data", data, "--checkpoint", folder / compute, "--updates", 1, "--device", "cpu")
        run("gacc-exec", artifact, "--data", data, "--checkpoint", folder / compute, "--updates", 2, "--resume",
            "--device", "cpu")
        whole, frozen = (json.loads(run("gaccc", folder / "step.toml", "--plan", "--json", "--set",
                                        f"precision.compute={compute}",
                                        "--set", f"layers.h.trainable={t}").stdout)["bytes"]
                                        for t in ("true", "[false,true]"))
        trained = 3 * C * C + 3 * C + C * C + C + 2 * C + C * H + H + H * C + C  # of one block
        expect(whole["gradients"] - frozen["gradients"] == 4 * trained, "no accumulator")
        saves = whole["weights"] + whole["half_weights"] - frozen["weights"] - frozen["half_weights"]
        # Neither master nor copy but for the norm's, which f32 kernels read: half itself.
        expect(saves == (0 if compute == "f32" else 4 * (trained - 2 * C)), f"{compute}: {saves}")


def test_targets_that_count_nothing(folder):
    """Supervised fine-tuning: -100 where the prompt stands. The loss is that of the other targets."""
    write(folder / "w.safetensors", elsewhere())
    artifact = build(folder)
    run("gacc-exec", artifact, "--data", tokens(folder, ignored=True), "--load", folder / "w.safetensors", "--updates",
        1,
        "--log", folder / "log", "--device", "cpu")
    update = next(row for row in harness.read_log(folder / "log") if "loss" in row)
    expect(update["loss"] > 0, update)


harness.main(globals())
