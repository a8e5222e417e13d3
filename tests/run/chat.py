"""Chats: python -m gacc.chat, gacc.generate --chat and Session.generate(messages=...), beside transformers;
gacc.tune."""
import json
import os
import subprocess

import harness
from harness import expect

# A model of two layers, with a tokenizer of bytes and a chat template; what it says is drawn once and for all.
MAKE = harness.MAKE_TOKENIZER + r"""
import torch, transformers
made.add_special_tokens(["<|user|>", "<|bot|>"])
made.save(str(folder / "tokenizer.json"))
template = ("{% if messages[0]['role'] != 'system' %}{{ 'be kind<|end|>' }}{% endif %}{% for m in messages %}"
            "{{ '<|bot|>' if m['role'] == 'assistant' else '<|user|>' }}{{ m['content'].strip() }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|bot|>{% endif %}")
(folder / "tokenizer_config.json").write_text(json.dumps(
    {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}))
torch.manual_seed(3)
config = transformers.LlamaConfig(vocab_size=259, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                  num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.2, eos_token_id=256,
                                  bos_token_id=None, pad_token_id=256, tie_word_embeddings=False)
transformers.LlamaForCausalLM(config).save_pretrained(folder)
"""

# What transformers answers to each question, greedily, the whole chat encoded anew each time; as JSON.
THEIRS = r"""
import json, sys, torch, transformers
transformers.logging.set_verbosity_error()
folder, questions, most = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
words = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
messages, said = [], []
for question in questions:
    messages.append({"role": "user", "content": question})
    text = words.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = torch.tensor([words.encode(text, add_special_tokens=False)])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False, pad_token_id=256)[0, ids.shape[1]:].tolist()
    answer = [token for token in made if token != 256]
    said.append({"prompt": ids[0].tolist(), "tokens": made, "text": words.decode(answer, skip_special_tokens=True)})
    messages.append({"role": "assistant", "content": said[-1]["text"]})
print(json.dumps(said))
"""

OURS = r"""
import json, pathlib, sys
from gacc.chat import opened
from gacc.generate import Model, draw_options, tokens_of
folder, questions, most = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
session = opened(pathlib.Path(folder), None, None, "cpu")
model = Model(session.compiled, folder)
messages, said = [], []
for question in questions:
    messages.append({"role": "user", "content": question})
    asked, made = model.asked(messages), []
    for token in tokens_of(session, asked.ids, most, draw_options(1, temperature=0)):
        made.append(token)
        if token in asked.ends:
            break
    answer = model.words.decode([token for token in made if token not in asked.ends])
    alone = session.generate(messages=messages, tokens=most, tokenizer=folder, temperature=0)
    said.append({"prompt": asked.ids, "tokens": made, "text": answer, "alone": alone})
    messages.append({"role": "assistant", "content": answer})
print(json.dumps(said))
"""

QUESTIONS = ["hi", "who are you?", " and\nthen", "Ünï ✓", "2 + 2?", "a", "b", "cc", "why?", "so long"]


def called(python, *words, text=None, code=0):
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT / "python"),
                       GACC_LIBRARY=str(harness.BIN / "libgacc.so.0"),
                       PATH=f"{harness.BIN}:{os.environ['PATH']}", OMP_NUM_THREADS="2", PYTHONUTF8="1")
    done = subprocess.run([python, *map(str, words)], input=None if text is None else text.encode(),
                          capture_output=True, env=environment)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()  # with line ends as they are
    expect(done.returncode == code, done.stderr)
    return done


def folder_of(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2", "torch", "transformers")
    base = folder / "base"
    base.mkdir()
    called(python, "-c", MAKE, base)
    return python, base


def test_ten_turns_are_those_of_transformers(folder):
    python, base = folder_of(folder)
    theirs = json.loads(called(python, "-c", THEIRS, base, json.dumps(QUESTIONS), 24).stdout)
    ours = json.loads(called(python, "-c", OURS, base, json.dumps(QUESTIONS), 24).stdout)
    for turn, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        expect(our["prompt"] == their["prompt"],
               f"turn {turn}: the template writes {our['prompt']}, not {their['prompt']}")
        expect(our["tokens"] == their["tokens"], f"turn {turn}: {our['tokens']}, not {their['tokens']}")
        expect(our["alone"] == our["text"] == their["text"], f"turn {turn}: {our}, not {their}")
    # The program: a line a question, with \n for a newline.
    lines = "".join(question.replace("\n", "\\n") + "\n" for question in QUESTIONS)
    command = ["-m", "gacc.chat", base, "--tokens", 24, "--device", "cpu"]
    done = called(python, *command, text=lines)
    expect(done.stdout == "".join(their["text"] + "\n" for their in theirs), f"{done.stdout!r}, not {theirs}")
    # A question after /clear is a first one; the program that answers is no longer compiled.
    done = called(python, *command, text="hi\n/clear\nhi\n/exit\nhi\n")
    expect(done.stdout == 2 * (theirs[0]["text"] + "\n") and done.stderr == "", done)
    # One question, by gacc-exec.
    artifact = folder / "step.ptx"
    harness.run("gaccc", base, "--context", 256, "-o", artifact)
    command = ["-m", "gacc.generate", artifact, "hi", "--load", base, "--chat", "--tokens", 24, "--temperature", 0,
               "--device", "cpu", "--quiet"]
    expect(called(python, *command).stdout == theirs[0]["text"] + "\n", "gacc.generate --chat")
    (folder / "questions").write_text("hi\nwho are you?\n")
    command[3:4] = ["--prompts", folder / "questions"]
    expect(called(python,
                  *command).stdout.split("\n")[0] == theirs[0]["text"].replace("\\", "\\\\").replace("\n", "\\n"),
                  "of several")


def test_what_a_chat_cannot_do_is_told(folder):
    python, base = folder_of(folder)
    (folder / "out" / "adapter").mkdir(parents=True)
    (folder / "out" / "adapter" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    for option, told in (("--prompt", "what is said are lines of standard input"),
                         ("--max-new-tokens", "did you mean --tokens?")):
        said = called(python, "-m", "gacc.chat", base, option, "5", text="", code=2).stderr
        expect(f"there is no {option}" in said and told in said, said)
    for words, more in (("nowhere: there is no such file", ["nowhere"]),
                        ("--context 4096 is more than the 1,024 positions", [base, "--context", 4096]),
                        (f"echo 'What is 2?' | python3 -m gacc.chat {base}", [base, "What is 2?"]),
                        (f"is no adapter, but has one: python3 -m gacc.chat {base} {folder / 'out' / 'adapter'}",
                         [base, folder / "out"]),
                        (f"has an adapter of one: python3 -m gacc.chat {base} {folder / 'out' / 'adapter'}",
                         [folder / "out"]),
                        ("is no adapter", [base, base]), ("temperature is -1", [base, "--temperature", -1]),
                        ("--tokens 0", [base, "--tokens", 0])):
        done = called(python, "-m", "gacc.chat", *more, text="hi\n", code=1)
        expect(done.stderr.splitlines()[-1].startswith("error: ") and words in done.stderr, done.stderr)
    system = folder / "system prompt.txt"
    system.write_text("Be brief.")
    said = f"note: --system is the text itself, and {system} is a file: \"$(cat '{system}')\" is the text in it"
    for more, count in ([system], 1), (["Be brief."], 0):
        done = called(python, "-m", "gacc.chat", base, "--system", *more, "--device", "cpu", text="")
        expect(done.stderr.count(said) == count, done.stderr)
    # A conversation longer than the window loses what was said first; a question longer than it is refused.
    done = called(python, "-m", "gacc.chat", base, "--context", 64, "--tokens", 8,
                  text="one\ntwo two two\nthree three three\n" + "x" * 99 + "\n")
    expect("messages are forgotten: the window has 64 tokens" in done.stderr and "what was said has 1" in done.stderr,
           done.stderr)
    expect(len(done.stdout.splitlines()) >= 3, done.stdout)
    (base / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    done = called(python, "-m", "gacc.chat", base, text="hi\n", code=1)
    expect("has no chat template" in done.stderr and "gacc.generate goes on with a text" in done.stderr, done.stderr)
    expect("compiling" not in done.stderr, done.stderr)
    code = f"""
import gacc
run = gacc.Session(gacc.compile({str(base)!r}, context=64, set={{"train.accumulate": 1}}), "cpu", updates=1)
for arguments in {{}}, {{"messages": "hi"}}, {{"prompt": "a", "messages": []}}, {{"messages": [{{"role": "user"}}]}}, {{"prompt": "a", "temperature": -1.0}}:
    try:
        run.generate(**arguments, tokenizer={str(base)!r})
    except (TypeError, gacc.Error) as error:
        print(error)
"""
    said = called(python, "-c", code).stdout.splitlines()
    words = ("takes a prompt", 'not a text; it is the prompt, or messages=[{"role": "user", "content": "hi"}]',
             "takes a prompt", "`role` and `content`", "temperature is -1")
    expect(all(word in line for word, line in zip(words, said, strict=True)), said)


def test_an_empty_answer_is_told(folder):
    python, base = folder_of(folder)
    artifact = folder / "step.ptx"
    harness.run("gaccc", base, "--context", 128, "-o", artifact)
    first = json.loads(called(python, "-c", THEIRS, base, '["hi"]', 1).stdout)[0]["tokens"][0]
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [first]}))
    command = [artifact, "--load", base, "--tokens", 9, "--temperature", 0, "--device", "cpu"]
    done = called(python, "-m", "gacc.generate", *command, "hi", "--chat")
    expect(done.stdout == "\n" and f"the text is empty: its first token is {first} `" in done.stderr, done)
    done = called(python, "-m", "gacc.generate", *command, "hi", "--chat", "--quiet")
    expect((done.stdout, done.stderr) == ("\n", ""), done)
    done = called(python, "-m", "gacc.chat", base, "--tokens", 9, "--device", "cpu", text="hi\n")
    expect(done.stdout == "\n" and "the answer is empty" in done.stderr, done)


def test_one_command_tunes_and_the_adapter_answers(folder):
    python, base = folder_of(folder)
    chats = [{"messages": [{"role": "user", "content": f"{n} and {n}"}, {"role": "assistant", "content": str(2 * n)}]}
             for n in range(40)]
    (folder / "chats.json").write_text(json.dumps(chats))
    out = folder / "out"
    done = called(python, "-m", "gacc.tune", base, folder / "chats.json", "-o", out, "--epochs", 2, "--device", "cpu",
                  "--set", "optimizer.lr=1e-2")
    commands = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("$ ")]
    expect(commands == ["python3", "gaccc", "gacc-exec"], done.stdout)
    expect(sorted(path.name for path in out.iterdir()) == ["adapter", "answers.md", "log.jsonl", "step.ptx",
                                                           "tokens.npz"], list(out.iterdir()))
    said = (out / "answers.md").read_text()
    before, after = (float(line.split()[3]) for line in said.splitlines() if "over the data" in line)
    expect(after < before and said in done.stdout, said)
    answer = called(python, "-m", "gacc.chat", base, out / "adapter", "--tokens", 4, "--device", "cpu",
                    text="3 and 3\n").stdout
    expect(answer != called(python, "-m", "gacc.chat", base, "--tokens", 4, "--device", "cpu", text="3 and 3\n").stdout,
           answer)
    again = ["-m", "gacc.tune", base, folder / "chats.json", "-o", out]
    kept = (out / "adapter/adapter_model.safetensors").read_bytes()
    said = called(python, *again, code=1).stderr
    expect(f"{out} has an adapter already" in said and "give another -o" in said, said)
    expect((out / "adapter/adapter_model.safetensors").read_bytes() == kept, "it was replaced")
    said = called(python, *again, "--set", "train.epochs=5", code=2).stderr
    expect("--set train.epochs=5: --epochs N says" in said, said)
    asked = ["--tokens", 4, "--device", "cpu"]
    by_file = called(python, "-m", "gacc.chat", base, out / "adapter/adapter_model.safetensors", *asked,
                     text="3 and 3\n").stdout
    expect(by_file == answer, f"{by_file!r}, not {answer!r}: the file of the adapter")
    for words, told in (([out / "adapter", base], f"its model stands before it: python3 -m gacc.chat {base} {out}"),
                        ([out / "adapter"], f"python3 -m gacc.chat {base} {out / 'adapter'}"),
                        ([out], f"has an adapter of one: python3 -m gacc.chat {base} {out / 'adapter'}"),
                        ([base, base], "has no adapter_config.json but a model's config.json"),
                        ([base, out / "step.ptx"], f"{out} has no adapter_config.json. ADAPTER is a folder")):
        said = called(python, "-m", "gacc.chat", *words, text="", code=1).stderr
        expect(told in said, said)
    said = called(python, "-m", "gacc.generate", base, "hi", code=1).stderr
    expect(f"gaccc {base} -o step.ptx" in said and f"python3 -m gacc.chat {base}" in said, said)
    # What an adapter is not: a model, or data. What is held out has an option.
    for words, told in (([base, out / "adapter", folder / "chats.json"], "is an adapter, and no data. What goes on"),
                        ([base, base], f"{base}: is a model, of which there is one"),
                        ([base, folder], f"is a folder, and data are files, such as {folder / 'chats.json'}"),
                        ([out / "adapter", folder / "chats.json"], "is an adapter, and MODEL is the folder of its"),
                        ([base, folder / "chats.json", "--eval", folder / "chats.json"], "is trained on, and --eval")):
        said = called(python, "-m", "gacc.tune", *words, "-o", folder / "no", code=1).stderr
        expect(told in said and not (folder / "no").exists(), said)
    for name in "test", "contest":
        (folder / f"{name}.json").write_text(json.dumps(chats[:8]))
    short = ["-o", folder / "more", "--epochs", 1, "--device", "cpu"]
    done = called(python, "-m", "gacc.tune", base, folder / "chats.json", folder / "contest.json", "--eval",
                  folder / "test.json", *short)
    expect("over the data of --eval" in done.stdout and "held out" not in done.stderr, done)
    expect(f"samples: {folder / 'chats.json'} 40, {folder / 'contest.json'} 8\n" in done.stdout, done.stdout)
    log = harness.read_log(folder / "more/log.jsonl")
    expect(any(event["event"] == "eval" for event in log), "no evaluation")
    done = called(python, "-m", "gacc.tokens", base, folder / "chats.json", folder / "test.json", "-o",
                  folder / "all.npz", "--context", 64)
    expect(f"warning: {folder / 'test.json'} is among what is trained on" in done.stderr, done)
    done = called(python, "-m", "gacc.tokens", base, folder / "test.json", "-o", folder / "all.npz", "--context", 64)
    expect(done.stderr == "", done)
    # A step with adapters answers as its base does where none are loaded, and says so.
    words = ["-m", "gacc.generate", out / "step.ptx", "hi", "--load", base, "--tokens", 2, "--device", "cpu"]
    said = "note: the step has adapters, and none was loaded (--load-adapter FOLDER): this is the base's text\n"
    expect(said in called(python, *words).stderr, "no note")
    for more in ["--quiet"], ["--load-adapter", out / "adapter"]:
        expect(said not in called(python, *words, *more).stderr, more)
    code = f"""
import gacc
run = gacc.Session(gacc.open({str(out / "step.ptx")!r}), "cpu", updates=1)
run.load({str(base)!r})
run.generate("hi", 1, tokenizer={str(base)!r})
run.generate("hi", 1, tokenizer={str(base)!r})
run.load({str(out / "adapter")!r})
run.generate("hi", 1, tokenizer={str(base)!r})
"""
    said = called(python, "-W", "always", "-c", code).stderr
    expect(said.count("the step has adapters, and none was loaded or trained: this is the base's text") == 1, said)
    (folder / "bad.jsonl").write_text("{\n")
    done = called(python, "-m", "gacc.tune", base, folder / "bad.jsonl", "-o", folder / "no", code=1)
    expect("bad.jsonl:1: is no JSON" in done.stderr and not (folder / "no").exists(), done.stderr)
    done = called(python, "-m", "gacc.tune", base, folder / "chats.json", "-o", folder / "no", "--set",
                  "optimizer.rate=1", code=1)
    expect("gaccc ended with exit status 1" in done.stderr, done.stderr)


harness.main(globals())
