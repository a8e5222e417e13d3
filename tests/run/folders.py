"""Published models by their folder: gaccc FOLDER, --emit toml, --context, --lora, --families, and folders that are none."""
import json
import subprocess

import harness

SMALL = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=64, hidden_size=16, intermediate_size=24,
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
            done = gaccc(source, *words, "-o", folder / out)
            assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr  # what was written
        assert gaccc(model, *words, "--emit", "toml", "-o", folder / "model.toml").returncode == 0
        done = gaccc(folder / "model.toml", "-o", folder / "c.ptx")
        assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr  # what was written
        texts = {(folder / out).read_text() for out in ("a.ptx", "b.ptx", "c.ptx")}
        assert len(texts) == 1, words
    assert "[lora]" in (folder / "model.toml").read_text()


def test_a_folder_that_is_none_says_what_it_is(folder):
    (folder / "empty").mkdir()
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_text("{}")
    half = folder_of(folder, "half")
    (half / "config.json").write_text('{"model_type": "llama", "hid')
    for name, expected in [("empty", "there is no config.json"), ("adapter", "it is an adapter"), ("half", "it is no JSON"),
                           ("gone/config.json", "No such file")]:
        done = gaccc(folder / name, "-o", folder / "step.ptx")
        assert done.returncode == 1 and expected in done.stderr, done.stderr
    for change, expected in [(dict(model_type="lama"), 'did you mean "llama"?'), (dict(model_type=...), "no `model_type`"),
                             (dict(brand_new=1), "`brand_new` = 1:"), (dict(hidden_act="relu2"), '`hidden_act` = "relu2"'),
                             (dict(vocab_size=...), "`vocab_size`")]:
        done = gaccc(folder_of(folder, expected.strip("`").replace("/", "_")[:12], **change), "-o", folder / "step.ptx")
        assert done.returncode == 1 and expected in done.stderr and "config.json: error: " in done.stderr, done.stderr
    assert not (folder / "step.ptx").exists()


def test_what_does_not_go_together_is_a_wrong_command(folder):
    model = folder_of(folder, "small")
    toml = folder / "model.toml"
    toml.write_text(gaccc(model, "--emit", "toml", "-o", "-").stdout)
    for words in [[toml, "--emit", "toml"], [toml, "--context", 8], [toml, "--families", folder], [model, "--emit", "toml", "--plan"],
                  [model, "--context", 0], [model, "--lora", "x"]]:
        assert gaccc(*words).returncode == 2, words


def test_adapters_of_a_model_file_are_those_of_its_folder(folder):
    model = folder_of(folder, "small")
    (folder / "model.toml").write_text(gaccc(model, "--emit", "toml", "-o", "-").stdout)
    summaries = [gaccc(source, "--lora", 4, "--summary").stdout for source in (model, folder / "model.toml")]
    assert summaries[0] == summaries[1] and "in part" in summaries[0], summaries


def test_a_family_of_ones_own(folder):
    model = folder_of(folder, "mine", model_type="mine")
    families = folder / "families"
    families.mkdir()
    assert gaccc(model, "--families", families, "--summary").returncode == 1
    llama = (harness.ROOT / "frontend/families/llama.toml").read_text()
    (families / "mine.toml").write_text(llama.replace('match = ["llama"]', 'match = ["mine"]'))
    done = gaccc(model, "--families", families, "--summary")
    assert done.returncode == 0, done.stderr
    assert done.stdout == gaccc(folder_of(folder, "theirs"), "--summary").stdout


harness.main(globals())
