"""--save FOLDER/, --save-best FOLDER/, --save-best-adapter: whole folders of published models, from the one that was
loaded."""
import json
import shutil
import subprocess

import disk
import harness
from harness import expect, run

LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=64, hidden_size=16,
             intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, hidden_act="silu", rms_norm_eps=1e-5,
             max_position_embeddings=32,
             tie_word_embeddings=False, dtype="bfloat16", bos_token_id=1, eos_token_id=2)
GPT2 = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=48, n_embd=16, n_head=2, n_layer=2,
            n_positions=16, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_new", torch_dtype="float16", bos_token_id=1,
            eos_token_id=2)
BESIDE = {"tokenizer.json": "{}", "tokenizer_config.json": '{"eos_token": "</s>"}', "special_tokens_map.json": "{}",
          "generation_config.json": '{"eos_token_id": 2}', "chat_template.jinja": "{{ messages }}"}
FAST = ["--device", "cpu", "--threads", 1, "--quiet"]
FILES = sorted(["config.json", "model.safetensors", *BESIDE])


def base_of(folder, config=LLAMA, name="base", seed=1, **changes):
    """The folder of a published model with random weights."""
    base = folder / name
    base.mkdir()
    (base / "config.json").write_text(json.dumps(config | changes, indent=1))
    for file, text in BESIDE.items():
        (base / file).write_text(text)
    (base / "README.md").write_text("not of the model")
    artifact = compiled(base, folder / f"{name}.ptx")
    run("gacc-exec", artifact, "--init-only", "--seed", seed, "--save", base / "model.safetensors", "--save-as",
        "published", *FAST)
    return base, artifact


def compiled(base, artifact, *words):
    """In f32, whatever the folder's own type is."""
    run("gaccc", base, "--set", "precision.compute=f32", "--context", 16, "--set", "train.micro_batch=2", "--set",
        "train.accumulate=2", "--set", "optimizer.lr=1e-2", *words, "-o", artifact)
    return artifact


def tokens(folder, samples=12, vocabulary=48):
    path = folder / "tokens.bin"
    path.write_bytes(b"".join((7 * i * i % vocabulary).to_bytes(2, "little") for i in range(16 * samples + 1)))
    return f"tokens:{path}"


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def predicted(folder, artifact, *words):
    run("gacc-exec", artifact, "--data", tokens(folder), *words, "--predict", folder / "out.npy", *FAST)
    return (folder / "out.npy").read_bytes()


def stored_types(file):
    raw = file.read_bytes()
    head = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
    return {entry["dtype"] for name, entry in head.items() if name != "__metadata__"}


def nothing_else(folder):
    expect(not [path for path in folder.iterdir() if path.name.startswith(".gacc")],
           f"left behind: {list(folder.iterdir())}")


def test_a_saved_folder_is_the_loaded_one_with_other_weights(folder):
    for config, key, in_f32 in (LLAMA, "dtype", "float32"), (GPT2, "torch_dtype", "float32"):
        base, artifact = base_of(folder, config, config["model_type"])
        before, out, own = files(base), folder / f"{base.name}-out", folder / "own"
        run("gacc-exec", artifact, "--data", tokens(folder), "--load", base, "--updates", 3, "--save", f"{out}/",
            "--save-as", "published", *FAST)
        run("gacc-exec", artifact, "--data", tokens(folder), "--load", base, "--updates", 3, "--save", own, *FAST)
        expect(sorted(files(out)) == FILES, f"{sorted(files(out))}")
        expect(files(base) == before, "the loaded folder is another one")
        for name in BESIDE:
            expect(files(out)[name] == before[name], f"{name} is another one")
        told = json.loads((out / "config.json").read_text())
        expect(list(told) == list(config) and told == config | {key: in_f32}, told)
        expect(predicted(folder, artifact, "--load", out) == predicted(folder, artifact, "--load",
                                                                       own) != predicted(folder, artifact, "--load", base),
               "another model")
        read = [run("gaccc", where, "--set", "model.name=m", "--set", "precision.compute=f32", "--emit", "toml", "-o",
                    "-").stdout for where in (base, out)]
        expect(read[0] == read[1], "the folder is another model")
        for kind, stored, called in ("bf16", "BF16", "bfloat16"), ("f16", "F16", "float16"), ("f32", "F32", "float32"):
            # Over the folder that is there, and in place of what was loaded.
            run("gacc-exec", artifact, "--init-only", "--load", out, "--save", out, "--save-type", kind, *FAST)
            expect(stored_types(out / "model.safetensors") == {stored}
                   and json.loads((out / "config.json").read_text())[key] == called, kind)
            expect(sorted(files(out)) == FILES, f"{sorted(files(out))}")
            predicted(folder, artifact, "--load", out)
        nothing_else(folder)


def test_a_file_of_parameters_has_the_type_that_is_asked_for(folder):
    base, artifact = base_of(folder)
    for kind, stored in ("bf16", "BF16"), ("f16", "F16"):
        run("gacc-exec", artifact, "--init-only", "--load", base, "--save", folder / "w", "--save-type", kind, *FAST)
        expect(stored_types(folder / "w") == {stored}, kind)
        run("gacc-exec", artifact, "--init-only", "--load", folder / "w", "--save", folder / "again", "--save-type",
            kind, *FAST)
        expect((folder / "w").read_bytes() == (folder / "again").read_bytes(), "rounded twice")
    tensors = {name: (shape, list(values)) for name, (shape,
                                                      values) in harness.read_safetensors(
                                                          base / "model.safetensors").items()}
    tensors["model.norm.weight"][1][3] = 70000
    harness.write_safetensors(folder / "large", tensors)
    before = (folder / "w").read_bytes()
    harness.one_error(run("gacc-exec", artifact, "--init-only", "--load", folder / "large", "--save", folder / "w",
                          "--save-type", "f16", *FAST, code=1),
                      'tensor "norm.weight" holds 70000 at [3], which is beyond f16; f32 has room for it')
    expect((folder / "w").read_bytes() == before, "half a file")


def test_what_cannot_be_a_folder_is_refused_before_the_run(folder):
    base, artifact = base_of(folder)
    data = ["--data", tokens(folder), "--updates", 1]
    text = run("gaccc", base, "--context", 16, "--set", "precision.compute=f32", "--emit", "toml", "-o", "-").stdout
    others = {"fewer": text.replace("repeat = 2", "repeat = 1").replace("[load]\n", '[load]\npart = true\n').replace(
                  'ignore = [', 'ignore = ["model.layers.1.*", '),
              "more": text.replace("repeat = 2", "repeat = 3").replace("[load]\n", "[load]\npart = true\n")}
    for name, changed in others.items():
        expect(changed != text, name)
        harness.compile_text(folder, changed, name)
    (folder / "bare").mkdir()
    shutil.copy(base / "model.safetensors", folder / "bare")
    (folder / "notes").mkdir()
    (folder / "notes/todo.txt").write_text("mine")
    broken = ["model/model.safetensors", "config/config.json", "tokenizer/tokenizer.json"]
    for name in broken:
        shutil.copytree(base, (folder / name).parent, ignore=shutil.ignore_patterns(name.partition("/")[2]))
        (folder / name).symlink_to("nowhere")
    out = folder / "out"
    for step, more, words in (
            *((artifact, ["--load", (folder / name).parent, "--save", f"{out}/"],
               [f"cannot read {folder}/{name}: No such file"]) for name in broken),
            (artifact, ["--save", f"{out}/"], [f"--save {out}/: ", "load the folder of the published model"]),
            (artifact, ["--load", base / "model.safetensors", "--save", f"{out}/"],
             ["load the folder of the published model, not a file of weights"]),
            (artifact, ["--load", folder / "bare", "--save", f"{out}/"],
             [f"{folder}/bare was loaded, and has no config.json"]),
            (folder / "fewer.ptx", ["--load", base, "--save", f"{out}/"],
             [f"{base} is of another model", "it has model.layers.1.mlp.up_proj.weight, which the model leaves out"]),
            (folder / "more.ptx", ["--load", base, "--save", f"{out}/"],
             [f"{base} is of another model", "it lacks model.layers.2.mlp.up_proj.weight"]),
            (artifact, ["--load", base, "--save", f"{base}/"],
             [f"cannot write the folder {base}: README.md is in it, and would go with the old folder"]),
            (artifact, ["--load", base, "--save", folder / "notes"], ["todo.txt is in it"]),
            (artifact, ["--load", base, "--save", f"{folder}/none/out/"], [f"there is no folder {folder}/none"]),
            (artifact, ["--load", base, "--save", f"{base}/config.json/"], ["it is a file"])):
        told = run("gacc-exec", step, *data, *more, *FAST, code=1).stderr
        expect(told.count("error:") == 1 and all(str(word) in told for word in words), told)
    expect(not out.exists() and (folder / "notes/todo.txt").read_text() == "mine", "something was written")
    out.mkdir()
    for more, words in ((["--save", out, "--log", out / "log"],
                         f"--save {out} is written as a whole, and --log {out}/log is in that folder"),
                        (["--save", f"{folder}/new/", "--log", folder / "new/log"],
                         f"--save {folder}/new cannot be a file and the folder of --log"),
                        (["--save-type", "bf16"], "--save-type needs --save or --save-best"),
                        (["--eval", data[1], "--save-best", "a", "--save-best-adapter", "b"], "take one of them"),
                        (["--save", "w", "--save-type", "f64"], "--save-type")):
        done = run("gacc-exec", artifact, *data, "--load", base, *more, *FAST, code=2)
        expect(words in done.stderr, done.stderr)
    nothing_else(folder)


def test_positions_and_vocabulary_are_the_models(folder):
    """A window beyond the folder's positions, of rotary ones that are not scaled, and a config.json that has another
    vocabulary."""
    base, _ = base_of(folder)
    text = run("gaccc", base, "--context", 16, "--set", "precision.compute=f32", "--emit", "toml", "-o", "-").stdout
    artifact = harness.compile_text(folder, text.replace("shape = [16]", "shape = [48]"), "long")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"vocab_size": 63}))
    run("gacc-exec", artifact, "--init-only", "--load", base, "--save", f"{folder}/out/", *FAST)
    told = json.loads((folder / "out/config.json").read_text())
    expect(told == config | {"max_position_embeddings": 48, "dtype": "float32"}, told)


def test_the_best_can_be_a_folder_or_an_adapter(folder):
    """At every better evaluation, and put back by a run that goes on."""
    base, plain = base_of(folder)
    adapted = compiled(base, folder / "lora.ptx", "--lora", 2)
    data = tokens(folder)
    best = folder / "best"
    for artifact, option, path, more in ((plain, "--save-best", f"{best}/", ["--save-type", "bf16"]),
                                         (adapted, "--save-best", f"{best}/", ["--merge"]),
                                         (adapted, "--save-best-adapter", best, [])):
        line = [artifact, "--data", data, "--eval", data, "--eval-every", 1, "--load", base, option, path, *more, *FAST]
        state = ["--checkpoint", folder / "run", "--resume"]
        log = folder / "log"
        run("gacc-exec", *line, "--updates", 4, "--log", log)
        straight = files(best)
        expect(sorted(straight) == (FILES if option == "--save-best"
                                    else ["adapter_config.json", "adapter_model.safetensors"]), sorted(straight))
        wanted = min(e["loss"] for e in harness.read_log(log) if e["event"] == "eval")
        ask = ["--load", base, "--load-adapter", best] if option != "--save-best" else ["--load", best]
        asked = run("gacc-exec", plain if more else artifact, "--eval", data, *ask, *FAST)
        got = float(asked.stdout.split("loss ")[1].split(",")[0])
        expect(abs(got - wanted) < (2e-2 if "bf16" in more else 1e-4), f"{got}, not {wanted}")
        shutil.rmtree(best)
        run("gacc-exec", *line, "--updates", 2, *state)
        shutil.rmtree(best)
        run("gacc-exec", *line, "--updates", 4, *state)
        expect(files(best) == straight, "a resumed run has another best")
        shutil.rmtree(best)
        run("gacc-exec", *line, "--updates", 4, *state)  # has nothing to do
        expect(files(best) == straight, "the best is put back")
        shutil.rmtree(best), shutil.rmtree(folder / "run")
    done = run("gacc-exec", adapted, "--data", data, "--eval", data, "--load", base, "--save-best", f"{best}/",
               "--updates", 1, *FAST, code=1)
    harness.one_error(done, "the model has adapters. --merge adds them")
    expect(not best.exists(), "a folder was made")
    nothing_else(folder)


def test_a_run_that_is_killed_leaves_a_whole_folder(folder):
    base, artifact = base_of(folder)
    data, best = tokens(folder, 40), folder / "best"
    line = [str(harness.BIN / "gacc-exec"), artifact, "--data", data, "--eval", data + ",limit=2", "--eval-every", 1,
            "--load", base, "--save-best", f"{best}/", *FAST]
    for wait in (0.4, 0.55, 0.7, 0.85, 1.0):
        child = subprocess.Popen([*map(str, line), "--epochs", "2000"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        try:
            child.wait(wait)
        except subprocess.TimeoutExpired:
            child.kill()
        child.wait()
        if best.exists():
            expect(sorted(files(best)) == FILES, sorted(files(best)))
            predicted(folder, artifact, "--load", best)


PEER = """
import json, pathlib, sys, warnings
warnings.filterwarnings("ignore")
import numpy, torch, transformers
transformers.logging.set_verbosity_error()
what, folder, base = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
ids = torch.from_numpy(numpy.fromfile(folder / "tokens.bin", "<u2")[:32].astype("int64").reshape(2, 16))
if what == "adapter":
    import peft
    model = peft.AutoPeftModelForCausalLM.from_pretrained(base)
else:
    model, told = transformers.AutoModelForCausalLM.from_pretrained(base, output_loading_info=True)
    wrong = {k: v for k, v in told.items() if v}
    assert not wrong, wrong
    assert str(model.dtype) == what, model.dtype
model = model.float().eval()
with torch.no_grad():
    wanted = model(ids).logits.numpy()
got = numpy.load(folder / "out.npy")[:2]
print(abs(got - wanted).max() / abs(wanted).max())
"""


def far_from_transformers(python, folder, what, base):
    done = subprocess.run([python, "-c", PEER, what, folder, base], capture_output=True, text=True, cwd="/")
    expect(done.returncode == 0, done.stderr)
    return float(done.stdout)


def test_a_saved_folder_opens_in_transformers(folder):
    python = harness.peer("transformers", "torch")
    for config in LLAMA, GPT2:
        base, artifact = base_of(folder, config, config["model_type"])
        out = folder / f"{base.name}-out"
        for kind, what in ("f32", "torch.float32"), ("bf16", "torch.bfloat16"), ("f16", "torch.float16"):
            run("gacc-exec", artifact, "--data", tokens(folder), "--load", base, "--updates", 3, "--save", f"{out}/",
                "--save-as", "published", "--save-type", kind, *FAST)
            predicted(folder, artifact, "--load", out)
            far = far_from_transformers(python, folder, what, out)
            print(f"{base.name}, {kind}: {far:.1e}")
            expect(far < 1e-5, f"{base.name}, {kind}: {far}")


def test_an_adapter_opens_in_peft_by_itself(folder):
    """It names the folder that it was trained on, from wherever it is opened."""
    base, _ = base_of(folder, dtype="float32")
    artifact = compiled(base, folder / "lora.ptx", "--lora", 2)
    run("gacc-exec", artifact, "--data", tokens(folder), "--load", "base", "--updates", 3, "--save-adapter", "adapter",
        *FAST, cwd=folder)
    told = json.loads((folder / "adapter/adapter_config.json").read_text())
    expect(told["base_model_name_or_path"] == str(base.resolve()), told)
    run("gacc-exec", artifact, "--init-only", "--load", base / "model.safetensors", "--save-adapter", folder / "other",
        *FAST)
    before = files(folder / "other")
    for path, most, words in ((base, 1 << 20,
                               "the folder holds a model, of which the adapter would become a part: name another"),
                              (folder / "none", 200, "none/adapter_config.json: File too large"),
                              (folder / "none", 1000, "none/adapter_model.safetensors: File too large"),
                              (folder / "other", 1000, "other/adapter_model.safetensors: File too large")):
        done = run("gacc-exec", artifact, "--init-only", "--load", base, "--save-adapter", path, *FAST, code=1,
                   **disk.files_of(most))
        harness.one_error(done, words)
        expect(not (folder / "none").exists() and files(folder / "other") == before, f"{path}: half an adapter")
    nothing_else(folder)
    expect(json.loads((folder / "other/adapter_config.json").read_text())["base_model_name_or_path"] is None,
           "a file is no base")
    python = harness.peer("peft", "transformers")
    predicted(folder, artifact, "--load", base, "--load-adapter", folder / "adapter")
    far = far_from_transformers(python, folder, "adapter", folder / "adapter")
    expect(far < 1e-5, far)


def test_an_adapter_of_a_head_has_pefts_name_of_it(folder):
    """GPT-NeoX's files call the head embed_out, transformers and PEFT lm_head: PEFT skips what it does not know."""
    neox = dict(model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"], vocab_size=64, hidden_size=16,
                intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=32,
                rotary_pct=0.5, dtype="float32", bos_token_id=1, eos_token_id=2)
    for name, tied in ("own", False), ("tied", True):
        base, _ = base_of(folder, neox, name, tie_word_embeddings=tied)
        artifact = compiled(base, folder / "lora.ptx", "--lora", 2, "--set", 'lora.match=["layers.*", "head"]')
        adapter = folder / f"{name}-adapter"
        run("gacc-exec", artifact, "--data", tokens(folder), "--load", base, "--updates", 3, "--save-adapter", adapter,
            *FAST)
        raw = (adapter / "adapter_model.safetensors").read_bytes()
        head = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
        expect({"base_model.model.lm_head.lora_A.weight", "base_model.model.lm_head.lora_B.weight"} <= set(head), head)
        expect(not any("embed_out" in key for key in head), head)
        # One of the days when it had the file's name is taken as well.
        want = predicted(folder, artifact, "--load", base, "--load-adapter", adapter)
        text = json.dumps({key.replace("lm_head", "embed_out"): value for key, value in head.items()}).encode()
        (adapter / "adapter_model.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + raw[8 + int.from_bytes(raw[:8], "little"):])
        expect(predicted(folder, artifact, "--load", base, "--load-adapter", adapter) == want, "the older name")
        (adapter / "adapter_model.safetensors").write_bytes(raw)
        python = harness.peer("peft", "transformers")
        predicted(folder, artifact, "--load", base, "--load-adapter", adapter)
        far = far_from_transformers(python, folder, "adapter", adapter)
        expect(far < 1e-5, far)


if __name__ == "__main__":
    harness.main(globals())
