"""gacc.tokens: texts and chats become what counts, where a Python has the package tokenizers (GACC_PEERS_PYTHON)."""
import json
import os
import random
import struct
import subprocess

import harness
from harness import expect

MAKE = harness.MAKE_TOKENIZER + r"""
template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|end|>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
(folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 257}))
(folder / "tokenizer_config.json").write_text(json.dumps(
    {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}))
"""


def convert(python, folder, data, out, *options, refused=None):
    """Runs it; gives what it printed. `refused`: words of the error."""
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT / "python"),
                       GACC_LIBRARY=str(harness.BIN / "libgacc.so.0"))
    files = data if isinstance(data, list) else [data]
    done = subprocess.run([python, "-m", "gacc.tokens", folder, *files, "-o", out, *options], text=True,
                          capture_output=True,
                          env=environment)
    if refused is None:
        expect(done.returncode == 0, done.stderr)
        return done.stdout
    expect(done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr)
    harness.says(done, *refused)
    expect(not out.exists(), f"{out} was left behind")
    return ""


def arrays(python, path):
    load = f"import numpy, json; f = numpy.load({str(path)!r}); print(json.dumps({{k: f[k].tolist() for k in f}}))"
    return json.loads(subprocess.run([python, "-c", load], text=True, capture_output=True, check=True).stdout)


def lines(path, *samples):
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def test_a_text_becomes_one_stream_that_ends(folder):
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    (folder / "a.txt").write_text("ab\nab\n")
    shown = convert(python, folder, folder / "a.txt", folder / "a.bin")
    expect("7 tokens of 1 document;" in shown and "[[ab\nab\n<|end|>]]" in shown, shown)
    stream = (folder / "a.bin").read_bytes()
    numbers = [int.from_bytes(stream[i:i + 2], "little") for i in range(0, len(stream), 2)]
    expect(len(numbers) == 7 and numbers[:3] == numbers[3:6] and numbers[6] == 256, numbers)


def test_targets_are_one_later_and_only_completions_count(folder):
    python = harness.peer("numpy", "tokenizers")
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
    python = harness.peer("numpy", "tokenizers", "jinja2")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}] * 2
    shown = convert(python, folder, lines(folder / "m.jsonl", {"messages": turns}), folder / "m.npz", "--context", "99")
    expect("[assistant][[yo<|end|>]]\n[user]hi<|end|>\n[assistant][[yo<|end|>]]\n" in shown, shown)
    counted = [t for t in arrays(python, folder / "m.npz")["next"][0] if t != -100]
    expect(len(counted) == 6 and counted[2] == counted[5] == 256, counted)


def test_the_template_is_given_the_tools_of_a_chat(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    said = json.loads((folder / "tokenizer_config.json").read_text())
    said["chat_template"] = "{% if tools %}{{ tools[0].name }} {% endif %}" + said["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    for tools in [{"name": "search"}], json.dumps([{"name": "search"}]):
        data = lines(folder / "m.jsonl", {"messages": CHAT, "tools": tools})
        shown = convert(python, folder, data, folder / "m.npz", "--context", "99")
        expect("search [user]hi" in shown, shown)
    convert(python, folder, lines(folder / "m.jsonl", {"messages": CHAT, "tools": "f()"}), folder / "n.npz",
            "--context", "99", refused=["m.jsonl:1", "`tools` is a text that is no JSON"])
    convert(python, folder, lines(folder / "m.jsonl", {"prompt": CHAT[:1], "completion": CHAT[1:]}), folder / "n.npz",
            "--context", "99", refused=["m.jsonl:1", "`prompt` is a list of messages"])


CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
PLAIN = {"messages": CHAT}
# The same chat in each form that data sets have.
FORMS = {"messages.jsonl": json.dumps(PLAIN) + "\n", "list.json": json.dumps([PLAIN], indent=1),
         "lines.json": json.dumps(PLAIN) + "\n",
         "conversations.json": json.dumps([{"id": "1",
                                            "conversations": [{"from": "human", "value": "hi"},
                                                              {"from": "gpt", "value": "yo"}]}]),
         "instruction.json": json.dumps([{"instruction": "hi", "input": "", "output": "yo", "text": "else"}]),
         "instruction.jsonl": json.dumps({"instruction": "hi", "output": "yo"}) + "\n"}


def test_each_form_of_a_chat_gives_the_same_windows(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    found = {}
    for name, text in FORMS.items():
        (folder / name).write_text(text)
        convert(python, folder, folder / name, folder / "m.npz", "--context", "40")
        found[name] = arrays(python, folder / "m.npz")
    expect(all(made == found["messages.jsonl"] for made in found.values()), found)
    convert(python, folder, [folder / name for name in FORMS], folder / "all.npz", "--context", "40")
    expect(arrays(python, folder / "all.npz")["tokens"] == found["messages.jsonl"]["tokens"] * len(FORMS),
           "several files")
    with_input = [{"instruction": "hi", "input": "there", "output": "yo", "system": "be brief"}]
    (folder / "input.json").write_text(json.dumps(with_input))
    shown = convert(python, folder, folder / "input.json", folder / "i.npz", "--context", "60")
    expect("[system]be brief<|end|>\n[user]hi\n\nthere<|end|>\n[assistant][[yo<|end|>]]" in shown, shown)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')  # a model without a template
    shown = convert(python, folder, folder / "instruction.json", folder / "i.npz", "--context", "60")
    expect("hi\n[[yo<|end|>]]" in shown, shown)


def test_rows_of_parquet_are_samples(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2", "pyarrow.parquet")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    rows = [PLAIN | {"text": None}, {"messages": None, "text": "ab"}]
    write = f"import pyarrow, pyarrow.parquet as p; p.write_table(pyarrow.Table.from_pylist({rows!r}), {str(folder / 'd.parquet')!r})"
    subprocess.run([python, "-c", write], check=True)
    data = lines(folder / "d.jsonl", PLAIN, {"text": "ab"})
    made = []
    for name in "d.parquet", "d.jsonl":
        convert(python, folder, folder / name, folder / "d.npz", "--context", "40")
        made.append(arrays(python, folder / "d.npz"))
    expect(made[0] == made[1], made)
    (folder / "no.parquet").write_bytes(data.read_bytes())
    convert(python, folder, folder / "no.parquet", folder / "no.npz", "--context", "40", refused=["no.parquet: "])


def test_what_is_no_sample_is_refused_and_no_text(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    turn = {"from": "alien", "value": "yo"}
    for name, text, *words in (
            ("table.json", '{"data": [1], "more": 2}', "its keys are data, more", "`conversations`"),
            ("long.json", '{"data":\n[1]}', "is JSON with the keys data"), ("number.json", "3", "no list of samples"),
            ("broken.json", "[{", "is no JSON"), ("strings.json", '["a"]', "strings.json: sample 1", "is no table"),
            ("deep.jsonl", "[" * 100_000 + "\n", "deep.jsonl:1", "nested too deeply"),
            ("deep.json", "[" * 100_000, "nested too deeply"),
            ("half.jsonl", '{"text": "a\\ud800b"}\n', "half.jsonl:1", "has half of a letter, \\ud800"),
            ("half2.jsonl",
             '{"messages": [{"role": "user", "content": "\\udc00"}, {"role": "assistant", "content": "x"}]}\n',
             "half2.jsonl:1", "\\udc00"),
            ("alien.json", json.dumps([{"conversations": [turn]}]), "sample 1", "a turn from `alien`", "human"),
            ("turns.json", json.dumps([{"conversations": [{"from": "gpt"}]}]), "`from` and `value`"),
            ("roles.jsonl", '{"messages": [{"content": "x"}]}\n', "roles.jsonl:1", "`role` and `content`"),
            ("latin.txt", b"caf\xe9", "is no UTF-8"), ("nowhere.jsonl", None, "No such file"),
            ("d.jsonl.gz", b"\x1f\x8b\x08\0", "is gzip: gunzip -k ", "d.jsonl.gz unpacks it"),
            ("wide.txt", "ab".encode("utf-16"), "is UTF-16: iconv -f UTF-16 -t UTF-8 "),
            ("d.pdf", b"%PDF-1.7\n", "is PDF: pdftotext "), ("d.docx", b"PK\x03\x04", "is a zip file"),
            ("null.jsonl", '{"text": null}', "null.jsonl:1: `text` is null, and must be a text"),
            ("null.json", '[{"prompt": "a", "completion": null}]', "`completion` is null, and must be a text"),
            ("bot.jsonl", '{"messages": [{"role": "user", "content": "x"}, {"role": "bot", "content": "y"}]}',
             "bot.jsonl:1: `messages` has the role `bot`", "known are system, user, assistant, tool")):
        if text is not None:
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        convert(python, folder, folder / name, folder / "no.npz", "--context", "40", refused=words)


def test_what_stands_for_the_data_is_told(folder):
    """A folder names a file of data in it, what datasets wrote how it is read, and a swapped order the right one."""
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    made, stored, split, deep = (folder / name for name in ("made", "stored", "split", "deep"))
    for each in made, stored, split / "test", split / "train", deep / "data":
        each.mkdir(parents=True)
    for path in (made / "dataset_info.json", made / "a.txt", made / "test.jsonl", made / "train.jsonl",
                 stored / "dataset_info.json", stored / "state.json", stored / "data.arrow",
                 split / "dataset_dict.json", deep / "README.md", deep / "data/train-0.parquet",
                 folder / "alone.arrow"):
        path.write_bytes(b"ARROW\xff")
    load = "is of the package datasets, whose .arrow files are not read: datasets."
    for data, *words in ((made, f"is a folder, and data are files, such as {made / 'train.jsonl'}"),
                         (deep, f"such as {deep / 'data/train-0.parquet'}"),
                         (stored, f"{load}load_from_disk('{stored}').to_json('{stored}.jsonl') writes one"),
                         (stored / "data.arrow", f"{load}load_from_disk('{stored}').to_json('{stored}.jsonl')"),
                         (split, f"{load}load_from_disk('{split}')['train'].to_json('{split}.jsonl')"),
                         (folder / "alone.arrow", f"Dataset.from_file('{folder}/alone.arrow').to_json('{folder}/a")):
        convert(python, folder, data, folder / "no.npz", "--context", "40", refused=words)
    convert(python, lines(folder / "d.jsonl", {"text": "ab"}), folder, folder / "no.bin",
            refused=[f"d.jsonl: is data, and the model stands before it: {folder} {folder}/d.jsonl"])


def test_contents_in_parts_are_their_texts(folder):
    """As OpenAI writes messages. Parts that are no texts, and what the template does not write, are named."""
    python = harness.peer("numpy", "tokenizers", "jinja2")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    chat = lambda content, **more: lines(  # noqa: E731
        folder / "parts.jsonl", {"messages": [CHAT[0], {"role": "assistant", "content": content} | more]})
    parts = [{"type": "text", "text": "yo"}, {"type": "text", "text": "ho"}]
    said = convert(python, folder, chat(parts), folder / "m.npz", "--context", "40")
    expect("[assistant][[yo\nho<|end|>]]" in said, said)
    template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] + '<|end|>' }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": template}))
    for content, more, *words in (
            ([{"type": "image_url", "image_url": {"url": "a"}}], {}, 'has a part of the type "image_url"'),
            ([{"type": "text"}], {}, "has a part whose `text` is no text"), (3, {}, "is a number, and must be a text"),
            (None, {}, "is null, and must be a text"),
            (None, {"tool_calls": [{"type": "function"}]}, "is null beside `tool_calls`", "must be a text")):
        convert(python, folder, chat(content, **more), folder / "no.npz", "--context", "40",
                refused=["parts.jsonl:1: `content` of message 2", *words])


def test_rows_of_csv_are_samples(folder):
    """Where the first one has the names of a sample; other tables are refused, and are no text."""
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    rows = [{"prompt": "a\nb", "completion": 'c, "d"'}, {"prompt": "", "completion": "e"}]
    wanted = arrays(python, folder / "l.npz") if convert(
        python, folder, lines(folder / "l.jsonl", *rows), folder / "l.npz", "--context", "16") else None
    for name, text in (("d.csv", '\ufeffprompt,completion\r\n"a\nb","c, ""d"""\r\n\r\n,e\r\n'),
                       ("d.tsv", 'n\tcompletion\tprompt\n1\t"c, ""d"""\t"a\nb"\n2\te\t\n')):
        (folder / name).write_bytes(text.encode())
        convert(python, folder, folder / name, folder / "d.npz", "--context", "16")
        expect(arrays(python, folder / "d.npz") == wanted, name)
    (folder / "gap.csv").write_text("prompt,completion\na,b\na,\n")
    said = convert(python, folder, folder / "gap.csv", folder / "gap.npz", "--context", "16")
    expect("note: 1 of 2 samples have no answer, and are left out; the first: " in said and
           "gap.csv:3: `completion` is empty\n" in said, said)
    for text, *words in (("question,answer\na,b\n", "its columns are question, answer;", ".jsonl"),
                         ("prompt,completion\n\na,b,c\n", "bad.csv:3: has 3 fields, and the first line 2"),
                         ('prompt,completion\na,"b\n', "bad.csv:2"), ("", "its columns are none")):
        (folder / "bad.csv").write_text(text)
        convert(python, folder, folder / "bad.csv", folder / "no.npz", "--context", "16", refused=words)


def test_names_of_a_hub_and_a_full_output(folder):
    """Nothing is downloaded; and where nothing can be printed a line says so."""
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    data = lines(folder / "d.jsonl", {"text": "ab"})
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT / "python"), PATH=f"{harness.BIN}:{os.environ['PATH']}",
                       GACC_LIBRARY=str(harness.BIN / "libgacc.so.0"))

    def called(*words, **more):
        return subprocess.run([python, "-m", *map(str, words)], text=True, cwd=folder, stderr=subprocess.PIPE,
                              env=environment, **more)
    out = ["-o", folder / "no.npz"]
    for words in (["gacc.tokens", "Some/Model-1", data, *out], ["gacc.tune", "Some/Model-1", data, *out],
                  ["gacc.chat", "Some/Model-1"]):
        done = called(*words)
        expect(done.returncode == 1 and done.stderr == (
            "error: Some/Model-1: there is no such file or folder; nothing is downloaded: `hf download Some/Model-1 "
            "--local-dir Model-1` does that, and then it is the folder Model-1\n"), done.stderr)
    for option, said in (("--lr", "there is no --lr: write --set optimizer.lr=X"),
                         ("--batch-size=3", "there is no --batch-size: write --set train.micro_batch=N"),
                         ("--nonesuch", "there is no option --nonesuch; --help lists those that there are")):
        done = called("gacc.tune", folder, data, option, *out)
        expect(done.returncode == 1 and done.stderr == f"error: {said}\n", done.stderr)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = called("gacc.tokens", folder, data, "-o", folder / "d.npz", "--context", 8, stdout=full)
        expect(done.returncode == 1 and done.stderr.startswith("error: cannot write standard output: No space")
               and done.stderr.count("\n") == 1, done.stderr)


def test_a_folder_that_says_something_else_is_refused(folder):
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    data = lines(folder / "d.jsonl", {"text": "ab"})
    for said, *words in (([1], "config.json: is a list, no table"), (3, "config.json: is 3, no table"),
                         ({"eos_token_id": "y"}, 'config.json: `eos_token_id` is "y"', "a token's number"),
                         ({"eos_token_id": [[1]]}, "`eos_token_id` is [[1]]"),
                         ({"eos_token_id": 999}, "`eos_token_id` is 999", "257 tokens"),
                         ({"max_position_embeddings": 16}, "--context 40 is more than the 16 positions of the model")):
        (folder / "config.json").write_text(json.dumps(said))
        (folder / "tokenizer_config.json").write_text("{}")
        convert(python, folder, data, folder / "no.npz", "--context", "40", refused=words)
    (folder / "config.json").write_text("[" * 100_000)
    convert(python, folder, data, folder / "no.npz", "--context", "40", refused=["config.json: is no JSON"])
    (folder / "config.json").unlink()
    for name in "generation_config.json", "tokenizer_config.json":
        (folder / name).write_text("[]")
        convert(python, folder, data, folder / "no.npz", "--context", "40", refused=[f"{name}: is a list"])
        (folder / name).write_text("{}")


def with_template(python, folder, template, **more):
    """The folder of MAKE with this template."""
    subprocess.run([python, "-c", MAKE, folder], check=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": template}
                                                             | more))


def test_a_turn_ends_where_the_template_says(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2")
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b<|in|>c"}] * 2
    head = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    tail = "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    data = lines(folder / "m.jsonl", {"messages": turns})
    make = """
import sys, tokenizers
made = tokenizers.Tokenizer.from_file(sys.argv[1])
made.add_special_tokens(["<|in|>", "<|turn|>"])
made.save(sys.argv[1])
"""
    for end, shown in (("<|turn|>\n", "b<|in|>c<|turn|>"),
                       # the template's own, though the folder's is <|end|>
                       ("<|turn|><|end|>\n", "b<|in|>c<|turn|><|end|>"),
                       # what ends texts, behind another special token
                       ("<|end|>{{ '<|turn|>' if loop.last }}\n",
                        "b<|in|>c<|end|>")):  # what only the last turn has is not waited for
        with_template(python, folder, head + end + tail)
        subprocess.run([python, "-c", make, folder / "tokenizer.json"], check=True)
        (folder / "config.json").write_text(json.dumps({"vocab_size": 300}))
        said = convert(python, folder, data, folder / "m.npz", "--context", "99")
        expect(said.count(f"[assistant][[{shown}]]") == 2, said)
    with_template(python, folder, head + "\n" + tail)  # none at all: an inner special token is none
    subprocess.run([python, "-c", make, folder / "tokenizer.json"], check=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 300}))
    convert(python, folder, data, folder / "no.npz", "--context", "99",
            refused=["no token that ends a turn ever counts"])


def test_a_chat_that_begins_with_the_assistant(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2")
    data = lines(folder / "m.jsonl", {"messages": [{"role": "assistant", "content": "hello"}, *CHAT]})
    head = "{% if messages and messages[0].role != 'system' %}[system]be kind<|end|>{% endif %}"
    body = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    with_template(python, folder, head + body)
    said = convert(python, folder, data, folder / "m.npz", "--context", "99")
    expect("[system]be kind<|end|>[assistant][[hello<|end|>]][user]hi<|end|>[assistant][[yo<|end|>]]" in said, said)
    with_template(python, folder, "{{ raise_exception('the user is the first') if messages[0].role != 'user' }}" + body)
    convert(python, folder, data, folder / "no.npz", "--context", "99", refused=["m.jsonl:1", "the user is the first"])


def test_a_turn_that_is_written_otherwise_when_more_follow(folder):
    """As templates that leave out what was thought in earlier turns."""
    python = harness.peer("numpy", "tokenizers", "jinja2")
    with_template(python, folder,
                  "{% for m in messages %}[{{ m.role }}]{{ '(thinks)' if loop.last and m.role == 'assistant' }}{{ "
                  "m.content }}<|end|>"
                                  "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")
    said = convert(python, folder, lines(folder / "m.jsonl", {"messages": CHAT * 2}), folder / "m.npz", "--context",
                   "99")
    expect("[user]hi<|end|>[assistant][[yo<|end|>]][user]hi<|end|>[assistant][[(thinks)yo<|end|>]]" in said, said)


def test_templates_are_read_by_minijinja_too(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2", "minijinja")
    with_template(python, folder,
                  "{% for m in messages %}{% generation %}[{{ m['role'].upper() }}]{% endgeneration %}{{ "
                  "m['content'].strip() }}<|end|>\n"
                                  "{% endfor %}{% if add_generation_prompt %}[ASSISTANT]{% endif %}")
    data = lines(folder / "m.jsonl", {"messages": CHAT})
    made = []
    for hidden in "", "jinja2":  # a module that is None cannot be imported
        code = (f"import sys\nif {hidden!r}: sys.modules[{hidden!r}] = None\nimport gacc.tokens\n"
                f"print(gacc.tokens.arrays({str(folder)!r}, {str(data)!r}, 40)['next'].tolist())")
        done = subprocess.run([python, "-c", code], text=True, capture_output=True,
                              env=dict(os.environ, PYTHONPATH=str(harness.ROOT / "python"),
                                       GACC_LIBRARY=str(harness.BIN / "libgacc.so.0")))
        expect(done.returncode == 0, done.stderr)
        made.append(done.stdout)
    expect(made[0] == made[1] and "256" in made[0], made)


def test_what_could_not_train_is_refused_by_file_and_line(folder):
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    out = folder / "x.npz"
    for sample, words in (({"text": "a"} | {"text": ""}, ["x.jsonl:1", "no token of it would count"]),
                          ({"prompt": "a", "completion": 3}, ["x.jsonl:1", "`completion` is a number"]),
                          ({"prompt": "a", "completion": ""}, ["x.jsonl:1", "`completion` is empty"]),
                          ({"instruction": "a", "output": ""}, ["x.jsonl:1", "`output` is empty"]),
                          ({"question": "a"}, ["x.jsonl:1", "its keys are question"]),
                          ([1], ["x.jsonl:1", "no table"])):
        convert(python, folder, lines(folder / "x.jsonl", sample), out, "--context", "8", refused=words)
    (folder / "x.jsonl").write_text('{"text": "ab"}\n{"text": \n')
    convert(python, folder, folder / "x.jsonl", out, "--context", "8", refused=["x.jsonl:2", "no JSON"])
    (folder / "config.json").write_text(json.dumps({"vocab_size": 100}))
    convert(python, folder, lines(folder / "x.jsonl", {"text": "ab"}), out, "--context", "8",
            refused=["257", "100", "vocab_size"])


GGUF = r"""
import json, pathlib, struct, sys
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
folder = pathlib.Path(sys.argv[1])

def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()

def value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    kind, parts = {str: (8, map(text, v)), int: (5, (struct.pack("<i", n) for n in v)), float: (6, (struct.pack("<f", n) for n in v))}[type(v[0])]
    return struct.pack("<IIQ", 9, kind, len(v)) + b"".join(parts)

def write(name, **facts):
    facts = {"general.architecture": "llama"} | {"tokenizer." + ("" if k == "chat_template" else "ggml.") + k: v for k, v in facts.items()}
    (folder / name).write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(facts)) + b"".join(text(k) + value(v) for k, v in facts.items()))

def special(made):
    made.add_special_tokens(["<s>", "<|end|>"])

sample = ["to be or not to be 2026!", "It's the question:\n  whether", "ünï ✓"]
# Byte-level BPE.
made = tokenizers.Tokenizer(models.BPE())
made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
made.decoder = decoders.ByteLevel()
made.train_from_iterator(sample * 4, tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<s>", "<|end|>"],
                                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
state = json.loads(made.to_str())["model"]
tokens = sorted(state["vocab"], key=state["vocab"].get)
merges = [" ".join(m) if isinstance(m, list) else m for m in state["merges"]]
kinds = [3 if t in ("<s>", "<|end|>") else 1 for t in tokens]
template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|end|>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
write("bytes.gguf", model="gpt2", pre="smollm", tokens=tokens, merges=merges, token_type=kinds, eos_token_id=1, chat_template=template)
write("strange.gguf", model="gpt2", pre="strange", tokens=tokens, merges=merges, token_type=kinds)
write("wordpiece.gguf", model="bert", tokens=tokens)
write("fewer.gguf", model="gpt2", tokens=tokens[:-1], merges=merges)
expected = {"bytes.gguf": [made.encode(s).ids for s in sample]}
# Pieces with scores: the better ones are merged first. By hand: "▁to" is made of "▁t" and "o" (score -1 before "to" of -2).
pieces = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0} | {f"<0x{b:02X}>": 0.0 for b in range(256)}
pieces |= {"▁t": -1.0, "to": -2.0, "▁to": -3.0, "be": -4.0, "▁be": -5.0} | {c: -9.0 for c in "▁tobe"}
tokens = list(pieces)
kinds = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
write("pieces.gguf", model="llama", tokens=tokens, scores=list(pieces.values()), token_type=kinds, bos_token_id=1, eos_token_id=2)
ids = {t: i for i, t in enumerate(tokens)}
expected["pieces.gguf"] = [[ids["<s>"], ids["▁to"], ids["▁be"], ids["<0x78>"]]]
(folder / "expected.json").write_text(json.dumps([sample, expected]))
# As llama.cpp has it: a text of these begins with a mark where the file says nothing, and a chat's template knows it.
for pre, said in ("llama-bpe", {}), ("llama3", {}), ("llama-v3", {"add_bos_token": False}), ("gpt-2", {}), ("gpt-2", {"add_bos_token": True}):
    name = f"{pre}.{said.get('add_bos_token', '')}.gguf"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["<s>", "<|end|>"]
    write(name, model="gpt2", pre=pre, tokens=alphabet, token_type=[1] * 256 + [3, 3], bos_token_id=256, eos_token_id=257,
          chat_template="{% for m in messages %}{{ (bos_token if loop.first else '') + m['content'] + eos_token }}{% endfor %}", **said)
"""


def test_the_vocabulary_of_a_gguf_gives_the_tokens_of_its_tokenizer(folder):
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", GGUF, folder], check=True)
    sample, expected = json.loads((folder / "expected.json").read_text())
    for name, texts in ("bytes.gguf", sample), ("pieces.gguf", ["to bex"]):
        data = lines(folder / "t.jsonl", *({"text": text} for text in texts))
        convert(python, folder / name, data, folder / "t.npz", "--context", "99")
        made = arrays(python, folder / "t.npz")
        end = {"bytes.gguf": 1, "pieces.gguf": 2}[name]
        for ids, targets, wanted in zip(made["tokens"], made["next"], expected[name], strict=True):
            expect([ids[0], *(t for t in targets if t != -100)] == [*wanted, end], f"{name}: {ids}, {wanted}")
    for name, words in (("strange.gguf", ["`strange`", "tokenizer.ggml.pre"]),
                        ("wordpiece.gguf", ["`bert`", "gpt2, llama"]),
                        ("expected.json", ["is no GGUF"]), ("fewer.gguf",
                                                            ["merges what are no tokens, `",
                                                             "(tokenizer.ggml.merges)"])):
        convert(python, folder / name, folder / "t.jsonl", folder / "no.npz", "--context", "9", refused=words)
    half = folder / "half.gguf"
    half.write_bytes((folder / "bytes.gguf").read_bytes()[:900])
    convert(python, half, folder / "t.jsonl", folder / "no.npz", "--context", "9",
            refused=["half.gguf", "ends within its metadata"])


def test_a_damaged_gguf_is_refused(folder):
    python = harness.peer("numpy", "tokenizers")
    text = lambda value: struct.pack("<Q", len(value)) + value
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"key")
    nested = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
    for name, value, word in (("nested", nested, "arrays of arrays"),
                              ("cut", struct.pack("<IQ", 8, 100) + b"short", "ends within its metadata"),
                              ("cut in an array", struct.pack("<IIQ", 9, 8, 1) + struct.pack("<Q", 9) + b"short",
                               "ends within its metadata")):
        (folder / f"{name}.gguf").write_bytes(head + value)
        convert(python, folder / f"{name}.gguf", lines(folder / "t.jsonl", {"text": "a"}), folder / "no.npz",
                "--context", "9", refused=[f"{name}.gguf", word])


def test_a_gguf_has_its_own_chat_template(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2")
    subprocess.run([python, "-c", GGUF, folder], check=True)
    turns = [{"role": "user", "content": "to be"}, {"role": "assistant", "content": "or not"}]
    shown = convert(python, folder / "bytes.gguf", lines(folder / "m.jsonl", {"messages": turns}), folder / "m.npz",
                    "--context", "99")
    expect("[assistant][[or not<|end|>]]" in shown, shown)
    convert(python, folder / "pieces.gguf", folder / "m.jsonl", folder / "no.npz", "--context", "9",
            refused=["no chat template"])
    subprocess.run([python, "-c", MAKE.replace('"{% for m', "\"{{ raise_exception('no user here') }}{% for m"), folder],
                   check=True)
    convert(python, folder, folder / "m.jsonl", folder / "no.npz", "--context", "9",
            refused=["m.jsonl:1: the chat template of", "does not write that: no user here"])


def test_a_gguf_that_does_not_say_begins_a_text_as_llama_cpp_does(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2")
    subprocess.run([python, "-c", GGUF, folder], check=True)
    for name, marked in (("llama-bpe..gguf", True), ("llama3..gguf", True), ("llama-v3.False.gguf", False),
                         ("gpt-2..gguf", False), ("gpt-2.True.gguf", True)):
        convert(python, folder / name, lines(folder / "t.jsonl", {"text": "ab"}), folder / "t.npz", "--context", "9")
        expect((arrays(python, folder / "t.npz")["tokens"][0][0] == 256) == marked, name)
        said = convert(python, folder / name, lines(folder / "m.jsonl", {"messages": CHAT}), folder / "m.npz",
                       "--context", "19")
        expect("<s>hi<|end|>[[yo<|end|>]]" in said, said)


def test_a_long_text_goes_on_in_the_next_window(folder):
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    convert(python, folder, lines(folder / "l.jsonl", {"text": "abcdefg"}), folder / "l.npz", "--context", "3")
    made = arrays(python, folder / "l.npz")
    a, b, c, d, e, f, g = (made["tokens"][0] + made["tokens"][1] + made["tokens"][2])[:7]
    expect(made["next"] == [[b, c, d], [e, f, g], [256, -100, -100]], made)


def test_ends_that_are_all_cut_off_are_refused(folder):
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    data = lines(folder / "c.jsonl", *({"prompt": "ab", "completion": "cdefgh"} for _ in range(3)))
    convert(python, folder, data, folder / "c.npz", "--context", "4", refused=["never", "--context"])
    convert(python, folder, data, folder / "c.npz", "--context", "8")


def test_packed_windows_have_every_sample_whole(folder):
    python = harness.peer("numpy", "tokenizers")
    subprocess.run([python, "-c", MAKE, folder], check=True)
    chance = random.Random(3)
    texts = [(chr(97 + i % 26) * chance.randrange(1, 4), "".join(chance.choice("abcdef")
                                                                 for _ in range(chance.randrange(1, 30))))
                                                                 for i in range(60)]
    data = lines(folder / "c.jsonl", *({"prompt": p, "completion": c} for p, c in texts))
    shown = convert(python, folder, data, folder / "c.npz", "--context", "40", "--pack")
    expect("60 samples are packed" in shown, shown)
    convert(python, folder, data, folder / "alone.npz", "--context", "40")
    made, alone = arrays(python, folder / "c.npz"), arrays(python, folder / "alone.npz")
    found, used = [], 0
    for tokens, targets, numbers in zip(made["tokens"], made["next"], made["documents"]):
        count = max(numbers) + 1
        expect(numbers == sorted(numbers[:40 - numbers.count(-1)]) + [-1] * numbers.count(-1)
               and set(numbers) - {-1} == set(range(count)), numbers)
        for number in range(count):
            at = [i for i, n in enumerate(numbers) if n == number]
            found.append(([tokens[i] for i in at], [targets[i] for i in at]))
        used += 40 - numbers.count(-1)
    whole = [(t[:len(p) + len(c)], n[:len(p) + len(c)]) for (p, c), t, n in zip(texts, alone["tokens"], alone["next"])]
    expect(sorted(found) == sorted(whole), "each sample is one document, with the targets that it has alone")
    expect(len(made["tokens"]) <= used / 40 * 1.25 + 1, f"{len(made['tokens'])} windows for {used} tokens")
    expect("documents" not in alone, list(alone))
    for seed, same in ((0, True), (1, False)):
        convert(python, folder, data, folder / "again.npz", "--context", "40", "--pack", "--seed", str(seed))
        expect((arrays(python, folder / "again.npz") == made) == same, f"seed {seed}")
    shown = convert(python, folder, data, folder / "short.npz", "--context", "20", "--pack")
    expect(" samples are longer than 20 tokens, and are cut" in shown, shown)
    convert(python, folder, lines(folder / "l.jsonl", {"text": "abcdefg"}), folder / "l.bin", "--pack",
            refused=["--pack", ".npz"])


if __name__ == "__main__":
    harness.main(globals())
