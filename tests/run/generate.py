"""Words: python -m gacc.generate and Session.generate, beside what gacc-exec generates of numbers, and transformers."""
import json
import os
import subprocess
import sys

import harness
from harness import expect, raises, run

harness.begin_package("numpy", "tokenizers")
import gacc  # noqa: E402

CONFIG = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=260, hidden_size=32,
              intermediate_size=48, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, hidden_act="silu", rms_norm_eps=1e-5,
              max_position_embeddings=64, tie_word_embeddings=True)
TEXT = "to be or not to be, that is the quéstion.\n"
FAST = ["--device", "cpu", "--threads", 1]


def trained(folder):
    """The folder of a model that has learnt TEXT; the artifact."""
    base = folder / "base"
    base.mkdir()
    subprocess.run([sys.executable, "-c", harness.MAKE_TOKENIZER, base], check=True)
    known = json.loads((base / "tokenizer.json").read_text())
    numbers = known["model"]["vocab"]
    numbers["!"], numbers["."] = numbers["."], numbers["!"]  # the end of the text is the token 0
    (base / "tokenizer.json").write_text(json.dumps(known))
    (base / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    (base / "config.json").write_text(json.dumps(CONFIG))
    (folder / "text.txt").write_text(TEXT * 40)
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT / "python"))
    subprocess.run([sys.executable, "-m", "gacc.tokens", base, folder / "text.txt", "-o", folder / "tokens.bin"],
                   check=True, env=environment, capture_output=True)
    artifact = folder / "step.ptx"
    run("gaccc", base, "--context", 32, "--set", "train.micro_batch=4", "--set", "train.accumulate=1", "--set",
        "optimizer.lr=1e-2",
        "--set", "schedule.warmup=0", "-o", artifact)
    run("gacc-exec", artifact, "--init-only", "--save", base / "model.safetensors", "--save-as", "published", *FAST)
    run("gacc-exec", artifact, "--data", f"tokens:{folder}/tokens.bin", "--load", base, "--updates", 400, "--save",
        f"{folder}/tuned/", *FAST)
    return folder / "tuned", artifact


def words(*arguments, code=0):
    done = subprocess.run([sys.executable, "-m", "gacc.generate", *map(str, arguments)], capture_output=True,
                          env=dict(os.environ, PYTHONPATH=str(harness.ROOT / "python")))
    expect(done.returncode == code, done.stderr.decode())
    return done.stdout.decode() if code == 0 else done.stderr.decode()


def test_words_are_those_of_the_numbers(folder):
    import tokenizers
    tuned, artifact = trained(folder)
    known = tokenizers.Tokenizer.from_file(str(tuned / "tokenizer.json"))
    prompt = "to be or not"
    ids = known.encode(prompt).ids
    drawn = ["--temperature", 0.7, "--top-k", 20, "--seed", 5]
    for more in ["--temperature", 0], drawn:
        numbers = run("gacc-exec", artifact, "--load", tuned, "--generate", 50, "--prompt", " ".join(map(str, ids)),
                      *more, *FAST).stdout.split()
        wanted = known.decode([*ids, *map(int, numbers)])[len(prompt):]
        expect(words(artifact, prompt, "--load", tuned, "--tokens", 50, *more, *FAST) == wanted + "\n", wanted)
        expect(words(artifact, prompt, "--load", tuned / "model.safetensors", "--tokenizer", tuned, "--tokens", 50,
                     *more, *FAST) == wanted + "\n", wanted)
    said = known.decode([*ids, *map(int, run("gacc-exec", artifact, "--load", tuned, "--generate", 50, "--prompt",
                                             " ".join(map(str, ids)),
                                             "--temperature", 0, *FAST).stdout.split())])[len(prompt):]
    expect(said.startswith(" to be, that is the quéstion."), f"it has not learnt the text: {said!r}")
    expect(words(artifact, prompt, "--load", tuned, "--stop", "is the", "--temperature", 0, *FAST) == " to be, that \n",
           "a text that ends it")
    run_ = gacc.Session(gacc.open(artifact), "cpu", threads=1, updates=1)
    run_.load(tuned)
    expect(run_.generate(prompt, 50, tokenizer=tuned, temperature=0) == said, "the session's")
    expect(run_.generate(prompt, 50, tokenizer=tuned, temperature=0, stop="question") == said,
           "a stop that does not come")
    expect(run_.generate(prompt, 29, tokenizer=tuned, temperature=0, stop="quéstion") == " to be, that is the ",
           "with a letter of two bytes")
    expect(run_.generate(prompt, 0, tokenizer=tuned) == "", "no tokens")
    expect(run_.generate(prompt, 40, tokenizer=tuned, temperature=0.7,
                         seed=5) == run_.generate(prompt, 40, tokenizer=tuned, temperature=0.7, seed=5), "the seed")


def test_words_are_those_of_transformers(folder):
    python = harness.peer("transformers", "torch")
    tuned, artifact = trained(folder)
    code = """
import sys, torch, transformers
transformers.logging.set_verbosity_error()
known = transformers.PreTrainedTokenizerFast(tokenizer_file=sys.argv[1] + "/tokenizer.json")
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]).float().eval()
ids = torch.tensor([known.encode("to be")])
made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=25, do_sample=False, pad_token_id=0, eos_token_id=256)
print(known.decode(made[0]), end="")
"""
    theirs = subprocess.run([python, "-c", code, tuned], capture_output=True, text=True)
    expect(theirs.returncode == 0, theirs.stderr)
    ours = words(artifact, "to be", "--load", tuned, "--tokens", 25, "--temperature", 0, *FAST)
    expect("to be" + ours[:-1] == theirs.stdout, f"{ours!r}, not {theirs.stdout!r}")


def test_the_token_that_ends_a_text_ends_it(folder):
    import tokenizers
    tuned, artifact = trained(folder)
    end = tokenizers.Tokenizer.from_file(str(tuned / "tokenizer.json")).token_to_id(".")
    (tuned / "tokenizer_config.json").write_text('{"eos_token": "."}')
    line = [artifact, "to be or", "--load", tuned, "--temperature", 0, *FAST]
    expect(end == 0 and words(*line) == " not to be, that is the quéstion\n", "beyond the end")
    (tuned / "tokenizer_config.json").write_text("{}")
    comma, letter = (tokenizers.Tokenizer.from_file(str(tuned / "tokenizer.json")).token_to_id(each) for each in ",h")
    (tuned / "config.json").write_text(json.dumps(CONFIG | {"eos_token_id": [259, letter, 0]}))
    expect(words(*line) == " not to be, t\n", "one of config.json's")
    (tuned / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, comma]}))
    expect(words(*line) == " not to be\n", "one of generation_config.json's, which goes before")
    (tuned / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    expect(words(*line) == " not to be, that is the quéstion\n", "generation_config.json's alone")


def test_prompts_and_options_stand_in_any_order(folder):
    import tokenizers
    tuned, artifact = trained(folder)
    fast = [*FAST, "--tokens", 6, "--temperature", 0, "--load", tuned]
    for line in ([artifact, "to be"], [artifact, "--top-k", 5, "to be"], ["--top-k=5", artifact, "--seed", 1, "to be"]):
        expect(words(*line, *fast) == " or no\n", line)
    expect(words(*fast, artifact, "to be") == " or no\n", "options first")
    (folder / "prompts").write_text("to be\nor not\nto \\\\ be\\nor\n")
    alone = [words(artifact, prompt, *fast)[:-1] for prompt in ("to be", "or not", "to \\ be\nor")]
    lines = words(artifact, "--prompts", folder / "prompts", *fast)
    expect(lines.splitlines() == [text.replace("\\", "\\\\").replace("\n", "\\n") for text in alone], lines)
    (folder / "empty").write_text("to be\n\n")
    for told, line in (("nowhere: there is no such file", ["to be", "--load", "nowhere"]),
                       ("empty:2: is empty", ["--prompts", folder / "empty"]),
                       ("none: No such file", ["--prompts", folder / "none"])):
        said = words(artifact, *fast, *line, code=1)
        expect(told in said, said)
    run_ = gacc.Session(gacc.open(artifact), "cpu", threads=1, updates=1)
    run_.load(tuned)
    known = tokenizers.Tokenizer.from_file(str(tuned / "tokenizer.json"))
    for tokenizer in tuned, known:  # also an object
        expect(run_.generate(["to be", "or not", "to \\ be\nor"], 6, tokenizer=tokenizer, temperature=0) == alone,
               "a text for each prompt")
    for tokenizer, told in ((7, "has encode and decode, not 7"), (None, "--tokenizer FOLDER")):
        raises(gacc.Error, told)(lambda: run_.generate("to be", 6, tokenizer=tokenizer))
    if harness.has_modules(sys.executable, "transformers"):
        import transformers
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=known, eos_token=".")
        expect(run_.generate("quéstio", 6, tokenizer=theirs, temperature=0) == "n", "transformers' object, and its end")


def test_what_cannot_speak_is_told(folder):
    tuned, artifact = trained(folder)
    step = gacc.open(artifact)
    for words_, more in (("has no tokenizer.json", ["--tokenizer", folder]),
                         ("the prompt has no tokens", ["--tokenizer", tuned]),
                         ("a tokenizer makes words of them", []), ("--load FILE", ["--tokenizer", tuned])):
        prompt = "" if "no tokens" in words_ else "to be"
        load = [] if words_ == "--load FILE" else ["--load", tuned / "model.safetensors"]
        told = words(artifact, prompt, *load, *more, *FAST, code=1)
        expect(told.startswith("error: ") and words_ in told, told)
    told = run("gacc-exec", artifact, "--load", tuned, "--generate", 5, "--prompt", "ROMEO:", *FAST, code=1).stderr
    expect("python3 -m gacc.generate takes and gives words" in told, told)
    # A vocabulary of bytes needs no tokenizer.
    small = gacc.compile(harness.example("shakespeare_gpt"), set={"train.micro_batch": 1, "train.accumulate": 1})
    said = gacc.Session(small, "cpu", threads=1, seed=1).generate("RO", 5, temperature=0)
    small.save(folder / "small.ptx")
    run("gacc-exec", folder / "small.ptx", "--init-only", "--seed", 1, "--save", folder / "w", *FAST)
    line = [str(harness.BIN / "gacc-exec"), folder / "small.ptx", "--load", folder / "w", "--generate", "5", "--prompt",
            "RO", "--temperature", "0", "--quiet", *FAST]
    expect(said == subprocess.run([*map(str, line)], capture_output=True).stdout.decode(errors="replace"), said)
    expect(isinstance(step.output_shape, tuple), "of tokens")
    # The words of a model without tokens, and of one that knows fewer bytes.
    (folder / "fewer").mkdir()
    (folder / "fewer/config.json").write_text(json.dumps(CONFIG | {"vocab_size": 200}))
    for model, told in ((harness.example("mnist_mlp"), "the model has no tokens: its output is [10] a sample"),
                                  (folder / "fewer",
                                   "'日' has the byte 230, and the model's tokens are the bytes 0 to 199")):
        small = gacc.compile(model, set={"train.micro_batch": 1, "train.accumulate": 1})
        raises(gacc.Error, told)(lambda: gacc.Session(small, "cpu", threads=1, seed=1).generate("日", 5))


harness.main(globals())
