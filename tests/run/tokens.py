"""gacc.tokens: texts and chats become what counts, where a Python has the package tokenizers (GACC_PEERS_PYTHON)."""
import json
import os
import subprocess
import sys

import harness
from harness import expect

MAKE = r"""
import json, pathlib, sys
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
folder = pathlib.Path(sys.argv[1])
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
made = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.add_special_tokens(["<|end|>"])
made.save(str(folder / "tokenizer.json"))
template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|end|>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
(folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 257}))
(folder / "tokenizer_config.json").write_text(json.dumps(
    {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}))
"""


def peer(*modules):
    for python in filter(None, (os.environ.get("GACC_PEERS_PYTHON"), sys.executable, "/usr/bin/python3")):
        wanted = "import numpy, tokenizers" + "".join(f", {module}" for module in modules)
        if subprocess.run([python, "-c", wanted], capture_output=True).returncode == 0:
            return python
    return harness.skip("no Python with tokenizers here (GACC_PEERS_PYTHON)")


def convert(python, folder, data, out, *options, refused=None):
    """Runs it; gives what it printed. `refused`: words of the error."""
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT / "python"), GACC_LIBRARY=str(harness.BIN / "libgacc.so.0"))
    done = subprocess.run([python, "-m", "gacc.tokens", folder, data, "-o", out, *options], text=True, capture_output=True, env=environment)
    if refused is None:
        expect(done.returncode == 0, done.stderr)
        return done.stdout
    expect(done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr)
    for word in refused:
        expect(word in done.stderr, f"{done.stderr} lacks {word}")
    expect(not out.exists(), f"{out} was left behind")
    return ""


def arrays(python, path):
    load = f"import numpy, json; f = numpy.load({str(path)!r}); print(json.dumps({{k: f[k].tolist() for k in f}}))"
    return json.loads(subprocess.run([python, "-c", load], text=True, capture_output=True, check=True).stdout)


def lines(path, *samples):
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def test_a_text_becomes_one_stream_that_ends(folder):
    python = peer()
    subprocess.run([python, "-c", MAKE, folder], check=True)
    (folder / "a.txt").write_text("ab\nab\n")
    shown = convert(python, folder, folder / "a.txt", folder / "a.bin")
    expect("7 tokens of 1 document;" in shown and "[[ab\nab\n<|end|>]]" in shown, shown)
    stream = (folder / "a.bin").read_bytes()
    numbers = [int.from_bytes(stream[i:i + 2], "little") for i in range(0, len(stream), 2)]
    expect(len(numbers) == 7 and numbers[:3] == numbers[3:6] and numbers[6] == 256, numbers)


def test_targets_are_one_later_and_only_completions_count(folder):
    python = peer()
    subprocess.run([python, "-c", MAKE, folder], check=True)
    data = lines(folder / "c.jsonl", {"prompt": "ab", "completion": "cd"}, {"text": "xyz"})
    convert(python, folder, data, folder / "c.npz", "--context", "6")
    made = arrays(python, folder / "c.npz")
    a, b, c, d = made["tokens"][0][:4]
    expect(made["next"][0] == [-100, c, d, 256, -100, -100], made)
    expect(made["next"][1][:3] == [*made["tokens"][1][1:3], 256], made)
    convert(python, folder, data, folder / "c.bin", refused=["do not count", ".npz"])
    convert(python, folder, data, folder / "c2.npz", "--context", "1", refused=["c.jsonl:1", "--context"])


def test_of_a_chat_the_assistants_turns_count_with_their_ends(folder):
    python = peer("transformers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}] * 2
    shown = convert(python, folder, lines(folder / "m.jsonl", {"messages": turns}), folder / "m.npz", "--context", "99")
    expect("[assistant][[yo<|end|>]]\n[user]hi<|end|>\n[assistant][[yo<|end|>]]\n" in shown, shown)
    counted = [t for t in arrays(python, folder / "m.npz")["next"][0] if t != -100]
    expect(len(counted) == 6 and counted[2] == counted[5] == 256, counted)


def test_what_could_not_train_is_refused_by_file_and_line(folder):
    python = peer()
    subprocess.run([python, "-c", MAKE, folder], check=True)
    out = folder / "x.npz"
    for sample, words in (({"text": "a"} | {"text": ""}, ["x.jsonl:1", "no token of it would count"]),
                          ({"prompt": "a", "completion": 3}, ["x.jsonl:1", "`completion` is no string"]),
                          ({"question": "a"}, ["x.jsonl:1", "its keys are question"]), ([1], ["x.jsonl:1", "no table"])):
        convert(python, folder, lines(folder / "x.jsonl", sample), out, "--context", "8", refused=words)
    (folder / "x.jsonl").write_text('{"text": "ab"}\n{"text": \n')
    convert(python, folder, folder / "x.jsonl", out, "--context", "8", refused=["x.jsonl:2", "no JSON"])
    (folder / "config.json").write_text(json.dumps({"vocab_size": 100}))
    convert(python, folder, lines(folder / "x.jsonl", {"text": "ab"}), out, "--context", "8", refused=["257", "100", "vocab_size"])


if __name__ == "__main__":
    harness.main(globals())
