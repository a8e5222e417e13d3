"""Published models by their folder: gaccc FOLDER, --emit toml, --context, --lora, --families, and folders that are
none."""
import array
import json
import subprocess

import harness

SMALL = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=64, hidden_size=16,
             intermediate_size=24,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_act="silu", rms_norm_eps=1e-5,
             max_position_embeddings=32, tie_word_embeddings=False)


def gaccc(*words):
    return subprocess.run([str(harness.BIN / "gaccc"), *map(str, words)], capture_output=True, text=True)


def folder_of(folder, name, **changes):
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps({k: v for k, v in (SMALL | changes).items() if v is not ...}))
    return path


def test_the_emitted_file_is_the_same_artifact(folder):
    model = folder_of(folder, "small")
    for words in [], ["--context", 8], ["--lora", 2]:
        for source, out in (model, "a.ptx"), (model / "config.json", "b.ptx"):
            done = gaccc(source, *words, "--quiet", "-o", folder / out)
            assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr  # what was written
        assert gaccc(model, *words, "--emit", "toml", "-o", folder / "model.toml").returncode == 0
        done = gaccc(folder / "model.toml", "--quiet", "-o", folder / "c.ptx")
        assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr  # what was written
        texts = {(folder / out).read_text() for out in ("a.ptx", "b.ptx", "c.ptx")}
        assert len(texts) == 1, words
    assert "[lora]" in (folder / "model.toml").read_text()
    for type in "optimizer.type=sgd", "schedule.type=constant":  # what the family says of its own type falls away
        done = gaccc(model, "--set", type, "-o", folder / "d.ptx")
        assert done.returncode == 0 and ": note: " in done.stderr, done.stderr
    done = gaccc(model, "--set", "optimizer.type=sgd", "--set", "optimizer.lr=0.1", "-o", folder / "d.ptx")
    assert 'note: `optimizer` of another type keeps weight_decay = 0.1, decay = "matrices" and loses betas\n' \
        in done.stderr, done.stderr
    assert 'warmup = "3%"' in gaccc(model, "--set", "schedule.type=linear", "--emit", "toml", "-o", "-").stdout


def test_a_folder_computes_in_the_type_of_its_numbers(folder):
    """The first line of a plan and of --fits says which, and what says so."""
    for number, (said, words, compute, because) in enumerate([
            (dict(torch_dtype="bfloat16"), [], "bf16", 'torch_dtype is "bfloat16"'),
            (dict(dtype="float16"), [], "f16", 'dtype is "float16"'),
            (dict(torch_dtype="float32"), [], "f32", 'torch_dtype is "float32"'),
            (dict(dtype="float32", torch_dtype="bfloat16"), [], "f32", 'dtype is "float32"'),  # the newer name counts
            (dict(torch_dtype="torch.bfloat16"), [], "bf16", 'torch_dtype is "torch.bfloat16"'),
            (dict(torch_dtype="float64"), [], "f32", 'torch_dtype is "float64"'),
            (dict(), [], "f32", "there is no torch_dtype"),
            (dict(torch_dtype=None), [], "f32", "there is no torch_dtype"),
            (dict(torch_dtype="bfloat16"), ["--target", "sm_75"], "f16",
             'torch_dtype is "bfloat16", which sm_75 does not multiply'),
            (dict(torch_dtype="bfloat16"), ["--target", "sm_90"], "bf16", 'torch_dtype is "bfloat16"'),
            (dict(torch_dtype="bfloat16"), ["--set", "precision.compute=f32"], "f32",
             'as set; torch_dtype is "bfloat16"'),
            (dict(torch_dtype="bfloat16"), ["--lora", 2], "bf16", 'torch_dtype is "bfloat16"')]):
        model = folder_of(folder, f"m{number}", **said)
        name = f"m{number}"
        target = words[1] if "--target" in words else "sm_80"
        first = gaccc(model, *words, "--plan").stdout.partition("\n")[0]
        assert first.startswith(f"plan of {name} for {target} ({compute}: {because}; "), first
        first = gaccc(model, *words, "--fits", "8").stdout.partition("\n")[0]
        assert first.startswith(f"{name} in {compute} ({because}) for {target}, "), first
        plan = json.loads(gaccc(model, *words, "--plan", "--json").stdout)
        assert (plan["precision"], plan["precision_because"]) == (compute, because), plan
        text = gaccc(model, *words, "--emit", "toml", "-o", "-").stdout
        assert (f'[precision]\ncompute = "{compute}"' in text) == (because[:5] != "there"), text
    # Dynamic loss scaling comes with f16.
    assert 'loss_scale = "dynamic"' in gaccc(folder / "m1", "--emit", "ir", "-o", "-").stdout


def test_a_folder_that_is_none_says_what_it_is(folder):
    (folder / "empty").mkdir()
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_text("{}")
    (folder_of(folder, "half") / "config.json").write_text('{"model_type": "llama", "hid')
    for name, expected in [("empty", "there is no config.json"), ("adapter", "it is an adapter"),
                           ("half", "it is no JSON"),
                           ("gone/config.json", "No such file")]:
        done = gaccc(folder / name, "-o", folder / "step.ptx")
        assert done.returncode == 1 and expected in done.stderr, done.stderr
    for number, (change, expected) in enumerate([
            (dict(model_type="lama"), 'error: no family has the `model_type` "lama"; did you mean "llama"?'),
            (dict(model_type=...), "error: it has no `model_type`"),
            (dict(brand_new=1), "error: `brand_new` = 1:"), (dict(hidden_act="relu2"), 'error: `hidden_act` = "relu2"'),
            (dict(vocab_size=...), "error: there is no `vocab_size`"),
            (dict(rms_norm_eps=-1), "rms_norm_eps: error: `eps` must be above 0, not -1 [out-of-range]\n"),
            (dict(num_hidden_layers=0), "num_hidden_layers: error: `repeat` must"),
            (dict(rope_scaling=dict(type="linear", factor=0.5)),
             "rope_scaling.factor: error: `rope.scaling.factor` must be at least 1, not 0.5")]):
        wrong = folder_of(folder, f"wrong{number}", **change)
        done = gaccc(wrong, "-o", folder / "step.ptx")
        assert done.returncode == 1 and done.stderr.startswith(
            f"{wrong}/config.json: {expected}") and done.stderr.count("\n") == 1, done.stderr
    assert not (folder / "step.ptx").exists()


def test_what_does_not_go_together_is_a_wrong_command(folder):
    model = folder_of(folder, "small")
    toml = folder / "model.toml"
    toml.write_text(gaccc(model, "--emit", "toml", "-o", "-").stdout)
    for words in [[toml, "--emit", "toml"], [toml, "--context", 8], [toml, "--families", folder],
                  [model, "--emit", "toml", "--plan"],
                  [model, "--context", 0], [model, "--lora", "x"]]:
        assert gaccc(*words).returncode == 2, words


def test_adapters_of_a_model_file_are_those_of_its_folder(folder):
    model = folder_of(folder, "small")
    (folder / "model.toml").write_text(gaccc(model, "--emit", "toml", "-o", "-").stdout)
    summaries = [gaccc(source, "--lora", 4, "--summary").stdout for source in (model, folder / "model.toml")]
    assert summaries[0] == summaries[1] and "in part" in summaries[0], summaries


def test_a_family_of_ones_own(folder):
    model = folder_of(folder, "mine", model_type="mine")
    (families := folder / "families").mkdir()
    assert gaccc(model, "--families", families, "--summary").returncode == 1
    theirs = gaccc(folder_of(folder, "theirs"), "--summary", "-o", folder / "theirs.ptx").stdout
    harness.run("gacc-exec", folder / "theirs.ptx", "--init-only", "--save", model / "model.safetensors", "--save-as",
                "published")
    llama = (harness.ROOT / "frontend/families/llama.toml").read_text().replace('match = ["llama"]', 'match = ["mine"]')
    for text in llama, 'match = ["mine"]\nbase = "llama"\n':
        (families / "mine.toml").write_text(text)
        done = gaccc(model, "--families", families, "--summary", "-o", folder / "mine.ptx")
        assert done.returncode == 0 and done.stdout == theirs, done.stderr
        harness.run("gacc-exec", folder / "mine.ptx", "--init-only", "--load", model)
    (families / "mine.toml").write_text('match = ["mine"]\nbase = "lama"\n')
    done = gaccc(model, "--families", families, "--summary")
    assert done.returncode == 1 and "mine.toml:2: error: there is no other family `lama`" in done.stderr, done.stderr
    (model / "config.json").write_text(json.dumps(SMALL | dict(model_type="other")))
    harness.one_error(harness.run("gacc-exec", folder / "mine.ptx", "--init-only", "--load", model, code=1),
                      'model_type is "other", "mine" in the model')


def test_weights_and_tokens_that_do_not_fit_are_told(folder):
    """Weights of another size, an index that lies, half a file, tokens beyond the vocabulary: an error each, with
    file and name."""
    model, wide = folder_of(folder, "small"), folder_of(folder, "wide", hidden_size=32)
    for path in model, wide:
        assert gaccc(path, "--context", 8, "-o", f"{path}.ptx").returncode == 0
        harness.run("gacc-exec", f"{path}.ptx", "--init-only", "--save", path / "model.safetensors", "--save-as",
                    "published", "--device", "cpu")
    artifact = f"{model}.ptx"

    def refused(*words, **options):
        spec = f"tokens:{folder}/tokens.bin"
        (folder / "tokens.bin").write_bytes(b"".join(token.to_bytes(2, "little")
                                                     for token in options.get("tokens", range(33))))
        done = harness.run("gacc-exec", artifact, "--load", model, "--data", spec, "--save", folder / "out", "--device",
                           "cpu", code=1)
        harness.one_error(done, *words)
        assert not (folder / "out").exists()

    refused("token", "64", tokens=[*range(32), 64])
    good = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes((wide / "model.safetensors").read_bytes())
    refused("small/model.safetensors does not fit the model",
            "embed.weight (model.embed_tokens.weight) is [64, 32] in the file, [64, 16] in the model")
    (model / "model.safetensors").write_bytes(good[:len(good) // 2])
    refused("small/model.safetensors")
    (model / "model.safetensors").rename(model / "part.safetensors")
    (model / "part.safetensors").write_bytes(good)
    names = list(harness.read_safetensors(model / "part.safetensors"))
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names[1:] + ["ghost"], "part.safetensors")}))
    refused('"ghost" is not in part.safetensors', f'"{names[0]}" is in part.safetensors and not in the index')
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "gone.safetensors")}))
    refused("gone.safetensors")
    index.unlink()
    refused("has neither model.safetensors")


NEOX = dict(model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"], vocab_size=64, hidden_size=16,
            intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, max_position_embeddings=32)
PHI3 = dict(model_type="phi3", architectures=["Phi3ForCausalLM"], num_key_value_heads=4,
            original_max_position_embeddings=8)
MISTRAL = dict(model_type="mistral", architectures=["MistralForCausalLM"])
LONGROPE = dict(type="longrope", short_factor=[1.0, 1.5], long_factor=[1.0, 4.0])
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8)


def test_a_key_that_a_loaded_folder_lacks_stands_for_its_default(folder):
    """Compiled with a value and loaded without it, or the other way round: an error with the key and both values."""
    for number, (base, compiled, loaded, words) in enumerate([
            (SMALL, dict(rope_scaling=dict(type="linear", factor=2.0)), {},
             ["rope_scaling is missing, linear in the model"]),
            (SMALL, dict(rope_scaling=YARN), dict(rope_scaling=None), ["rope_scaling is missing, yarn in the model"]),
            (SMALL, {}, dict(rope_scaling=YARN), ['rope_scaling.rope_type is "yarn", nothing in the model']),
            (SMALL, dict(rope_scaling=YARN | dict(attention_factor=1.25)), dict(rope_scaling=YARN),
             ["attention_factor is missing, 1.25 in the model"]),
            (SMALL, dict(rope_scaling=YARN | dict(beta_slow=0.01)), dict(rope_scaling=YARN),
             ["beta_slow is missing, 0.01 in the model"]),
            (SMALL, dict(rope_scaling=YARN), dict(rope_scaling=YARN | dict(beta_slow=0.01)),
             ["rope_scaling.beta_slow is 0.01", "nothing in the model"]),
            (SMALL, dict(rope_theta=77.0), dict(rope_parameters=dict(rope_type="default")),
             ["rope_theta is missing, which is 10000, 77"]),
            (SMALL, {}, dict(rope_parameters=dict(rope_type="default", rope_theta=77.0)),
             ["rope_parameters.rope_theta is 77, 10000"]),
            (SMALL | PHI3, dict(partial_rotary_factor=0.5), {},
             ["partial_rotary_factor is missing, which is 1, 0.5 in the model"]),
            (SMALL | PHI3, {}, dict(partial_rotary_factor=0.5), ["partial_rotary_factor is 0.5, 1 in the model"]),
            (SMALL | PHI3, dict(rope_scaling=LONGROPE), dict(rope_scaling=LONGROPE, max_position_embeddings=64),
             ["max_position_embeddings is 64", "`factor` is 8, 4 in the model"]),
            (SMALL | MISTRAL, dict(sliding_window=6), {}, ["sliding_window is missing, 6 in the model"]),
            (SMALL | MISTRAL, dict(sliding_window=None), dict(sliding_window=6), ["sliding_window is 6"]),
            (NEOX, dict(rotary_pct=0.5), {}, ["rotary_pct is missing, which is 0.25, 0.5 in the model"]),
            (NEOX, dict(rotary_emb_base=77), {}, ["rotary_emb_base is missing, which is 10000, 77 in the model"]),
            (NEOX, dict(use_parallel_residual=False), {},
             ["use_parallel_residual is missing"]),
            (NEOX, {}, dict(use_parallel_residual=False), ["use_parallel_residual is false"])]):
        model, other = folder / f"m{number}", folder / f"o{number}"
        for path, changes in (model, compiled), (other, loaded):
            path.mkdir()
            (path / "config.json").write_text(json.dumps(base | changes))
        done = gaccc(model, "--context", 16, "-o", folder / "step.ptx")
        assert done.returncode == 0, done.stderr
        words_of = "gacc-exec", folder / "step.ptx", "--init-only", "--device", "cpu"
        harness.run(*words_of, "--save", other / "model.safetensors", "--save-as", "published")
        harness.says(harness.run(*words_of, "--load", other, code=1), other / "config.json", *words)
        (other / "config.json").write_text(json.dumps(base | compiled))
        harness.run(*words_of, "--load", other)


def test_a_config_means_what_transformers_takes_it_for(folder):
    def emitted(name, **changes):
        done = gaccc(folder_of(folder, name, **changes), "--emit", "toml", "-o", "-")
        assert done.returncode == 0, done.stderr
        return done.stdout

    # Of both spellings of the positions the older one counts, as a whole. What the other one says beside is refused.
    both = gaccc(folder_of(folder, "both", rope_scaling=dict(type="default"),
                           rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=500000.0)), "--summary")
    assert both.returncode == 1 and "`rope_parameters.factor` = 2:" in both.stderr, both.stderr
    assert "theta = 77.0" in emitted("older", rope_scaling=dict(type="default", rope_theta=77.0),
                                     rope_parameters=dict(rope_type="default", rope_theta=5.0))
    # Phi3's class takes 32000 for a padding that is not there.
    phi3 = PHI3 | dict(vocab_size=32064)
    assert "padding = 32000" in emitted("phi3",
                                        **phi3) and "padding" not in emitted("phi3-null", **phi3, pad_token_id=None)
    # What config.to_dict() writes of every model.
    neutral = dict(is_encoder_decoder=False, add_cross_attention=False, tie_encoder_decoder=False, pruned_heads={},
                   bad_words_ids=None, output_scores=False,
                   return_dict_in_generate=False, forced_bos_token_id=None, remove_invalid_values=False,
                   encoder_no_repeat_ngram_size=0, tf_legacy_loss=False)
    assert emitted("common", **neutral).replace('"common"', '"plain"') == emitted("plain")
    for key in "is_encoder_decoder", "tie_encoder_decoder":
        done = gaccc(folder_of(folder, key, **{key: True}), "--emit", "toml", "-o", "-")
        assert done.returncode == 1 and f"`{key}` = true" in done.stderr, done.stderr


def test_texts_and_documents_go_by_their_own_length_with_longrope(folder):
    """Packed documents, and texts that are generated across the border, are turned as each alone is by transformers."""
    vocabulary, short = 300, 8  # prompts of such a vocabulary are numbers
    rope = dict(rope_type="longrope", rope_theta=100.0, factor=4.0, original_max_position_embeddings=short,
                short_factor=[1.0, 1.1, 1.3, 1.5], long_factor=[1.0, 2.0, 4.0, 6.0])
    model = folder_of(folder, "small", vocab_size=vocabulary, num_attention_heads=2, num_key_value_heads=2,
                      rope_parameters=rope)

    def compiled(length, *words):
        out = folder / f"{length}{len(words)}.ptx"
        if not out.exists():
            harness.run("gaccc", model, "--context", length, "--set", "train.micro_batch=1", *words, "-o", out)
        return out

    def executed(*words, device="cpu"):
        return harness.run("gacc-exec", *words, "--device", device, "--threads", 1, "--quiet").stdout

    def logits(length, rows, documents=None, device="cpu"):
        flat = [token for row in rows for token in row]
        shape = len(rows), length
        arrays = {"tokens": (array.array("i", flat), shape),
                  "next": (array.array("i", [(token + 1) % vocabulary for token in flat]), shape)}
        if documents:
            arrays["documents"] = array.array("i", [number for row in documents for number in row]), shape
        (folder / "data").mkdir(exist_ok=True)
        executed(compiled(length, *(["--pack"] if documents else [])), "--data",
                 harness.write_arrays(folder / "data", arrays), "--load", model, "--predict", folder / "p.npy",
                 device=device)
        return harness.read_npy(folder / "p.npy")[1]

    executed(compiled(short), "--init-only", "--seed", 3, "--save", model / "model.safetensors", "--save-as",
             "published")
    one, two = [(7 * i + 3) % vocabulary for i in range(short)], [(5 * i * i + 1) % vocabulary for i in range(short)]
    long = [(3 * i + 1) % vocabulary for i in range(12)]
    alone = [*logits(short, [one]), *logits(short, [two]), *logits(12, [long])]
    packed = [one + two + long + [0] * 4], [[5] * short + [2] * short + [7] * 12 + [-1] * 4]
    for device in "cpu", "emulate":
        off = max(abs(a - b) for a, b in zip(logits(32, *packed, device=device), alone))  # the last four are of none
        assert off < 1e-5, f"{device}: {off}"

    wanted = [3, 1, 4, 1, 5]
    for _ in range(10):
        last = logits(len(wanted), [wanted])[-vocabulary:]
        wanted.append(max(range(vocabulary), key=lambda token: last[token]))
    for words in [], ["--pack"]:
        text = executed(compiled(24, *words), "--load", model, "--generate", 10, "--prompt", "3 1 4 1 5",
                        "--temperature", 0)
        assert [int(word) for word in text.split()][-10:] == wanted[5:], f"{words}: {text} {wanted}"


EXAMPLES = {
    "gpt2_hf": ["gpt2.json", "--set", "model.name=gpt2-hf"],
    "llama_hf": ["smollm2-135m.json", "--context", 512, "--set", "model.name=llama-hf"],
    "llama_lora": ["smollm2-135m.json", "--context", 512, "--lora", 8, "--set", "model.name=llama-lora", "--set",
                   "precision.compute=bf16", "--memory", "1GiB"],
}


def test_examples_of_published_models_are_what_gaccc_prints(folder):
    for name, (config, *words) in EXAMPLES.items():
        text = (harness.ROOT / "tests/frontend/configs" / config).read_text()
        text = text.replace('_pdrop": 0.1', '_pdrop": 0.0')  # fine-tuning goes without
        (folder / config).write_text(text.replace('  "torch_dtype": "bfloat16",\n', ""))  # in f32, unless it is set
        done = gaccc(folder / config, *words, "--emit", "toml", "-o", "-")
        assert done.returncode == 0, done.stderr
        assert done.stdout == harness.example(name).read_text(), f"examples/{name}.toml is not gaccc's {config} {words}"


harness.main(globals())
