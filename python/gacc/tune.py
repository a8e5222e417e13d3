"""From a published model and texts or chats to an adapter, in one command.

    python -m gacc.tune FOLDER chats.jsonl -o DIR
    python -m gacc.tune FOLDER chats.json more.parquet -o DIR --lora 16 --memory 6GiB --epochs 5 --eval test.json

Runs three commands, and prints each before it runs: gacc.tokens makes windows of the data, gaccc compiles the step,
gacc-exec trains. Each may be typed by itself, with other options. DIR then has

    adapter/       the adapter, as PEFT has it: python -m gacc.chat FOLDER DIR/adapter
    log.jsonl      the log: python -m gacc.chart DIR/log.jsonl -o run.svg
    answers.md     the loss over the data and an answer to the first sample, before and after
    tokens.npz, step.ptx   what the commands have made; eval.npz of --eval, whose loss the log has after each epoch
"""
from __future__ import annotations

import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import Error, Session, program
from . import open as open_step
from . import tokens as making
from ._arguments import Parser
from ._tokenizer import Refused, Tokenizer
from .generate import Asked, Model, draw_options, tokens_of

USUAL_CONTEXT, LEAST_CONTEXT = 1024, 64
MOST_BATCH = 32  # windows of an update
UPDATES = 8  # of an epoch, as far as there are windows
ANSWER = 120  # tokens of an answer that is shown


def context_of(tokenizer: Tokenizer, samples: Sequence[making.Sample]) -> int:
    """The window that holds every sample whole, a power of two, up to the usual one."""
    most = min(USUAL_CONTEXT, tokenizer.positions or USUAL_CONTEXT)
    longest = max(len(sample.ids) - 1 for sample in samples)
    context = LEAST_CONTEXT
    while context < longest:
        context *= 2
    return min(context, most)


def run(words: Sequence[str], shown: Sequence[str]) -> float:
    """Prints a command and runs it; gives its seconds."""
    print(f"$ {shlex.join(map(str, shown))}", flush=True)
    path, environment = (words[0], None) if words[0] == sys.executable else program(words[0])
    begin = time.monotonic()
    try:
        status = subprocess.run([path, *map(str, words[1:])], env=environment).returncode
    except FileNotFoundError:
        raise Error(f"needs the program {path}, and it is not on the PATH") from None
    except KeyboardInterrupt:
        raise Error(f"{shown[0]} was interrupted; what it has made stays") from None
    if status:
        raise Error(f"{shown[0]} ended with exit status {status}")
    return time.monotonic() - begin


def measured(session: Session, windows: dict[str, dict[str, np.ndarray]], model: Model, asked: Asked) -> dict[str, Any]:
    """The loss over all windows of each set, and the answer to the first sample."""
    tokens = tokens_of(session, asked.ids, min(ANSWER, max(model.context - len(asked.ids), 1)),
                       draw_options(0, temperature=0))
    loss = {what: session.evaluate_over(each).loss for what, each in windows.items()}
    return {"loss": loss, "answer": "".join(model.text(asked, tokens))}


def tune(model: str, data: Sequence[str], out: str, lora: int, memory: str | None, context: int | None, epochs: int,
         device: str, more: Sequence[str], held_out: Sequence[str]) -> None:
    begin = time.monotonic()
    folder = pathlib.Path(out)
    if (folder / "adapter").exists():
        raise Refused(f"{folder} has an adapter already, {folder / 'adapter'}; give another -o, or remove that folder")
    making.expect_order(model, data)
    tokenizer = Tokenizer(pathlib.Path(model))
    paths = [pathlib.Path(file) for file in data]
    samples = list(making.read_samples(tokenizer, paths, lambda _: None))  # gacc.tokens says the notes
    making.check(samples)
    if both := [file for file in held_out if pathlib.Path(file) in paths]:
        raise Refused(f"{both[0]} is trained on, and --eval names it, too: it stands behind --eval alone")
    if held_out:
        others = [pathlib.Path(file) for file in held_out]
        making.check(list(making.read_samples(tokenizer, others, lambda _: None)))
    context = context or context_of(tokenizer, samples)
    making.check_context(tokenizer, context)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder}: cannot be written: {error.strerror}") from None
    tokens, step, log, adapter = (folder / name for name in ("tokens.npz", "step.ptx", "log.jsonl", "adapter"))
    times = {}

    windows = {}  # by what they are
    sets = {"data": (data, tokens), **({"data of --eval": (held_out, folder / "eval.npz")} if held_out else {})}
    for what, (files, to) in sets.items():
        words = ["-m", "gacc.tokens", model, *files, "-o", to, "--context", context, "--pack"]
        times["tokens"] = times.get("tokens", 0) + run([sys.executable, *words], ["python3", *words])
        with np.load(to) as file:
            windows[what] = {name: file[name] for name in file}

    batch = max(1, min(MOST_BATCH, len(windows["data"]["tokens"]) // UPDATES))
    size = {"train.accumulate": batch}  # with micro-batches of one window
    if memory is not None:
        size = {"train.effective_batch": batch, "train.micro_batch": "auto", "train.accumulate": "auto"}
    settings = [f"{key}={value}" for key, value in size.items()] + list(more)
    words = ["gaccc", model, "--lora", lora, "--context", context, "--pack"]
    words += ["--memory", memory] if memory is not None else []
    words += [word for setting in settings for word in ("--set", setting)] + ["-o", step]
    times["gaccc"] = run(words, words)

    words = ["gacc-exec", step, "--data", f"npz:{tokens}", "--load", model, "--epochs", epochs, "--log", log,
             "--save-adapter", adapter]
    words += ["--eval", f"npz:{folder / 'eval.npz'}"] if held_out else []
    words += [] if device == "auto" else ["--device", device]
    times["gacc-exec"] = run(words, words)

    last = time.monotonic()
    session = Session(open_step(step), device)
    session.load(model)
    speaker = Model(session.compiled, tokenizer)
    asked = first_prompt(speaker, samples[0])
    before = measured(session, windows, speaker, asked)
    session.load(adapter)
    after = measured(session, windows, speaker, asked)
    times["answers"] = time.monotonic() - last
    text = answers(speaker, asked, before, after)
    (folder / "answers.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items())
    print(f"{time.monotonic() - begin:.1f} s in all: {spent}")
    print(f"python3 -m gacc.chat {shlex.join([model, str(adapter)])}" if tokenizer.has_template() else
          f"{adapter} is loaded by --load-adapter, and by PEFT")


def first_prompt(model: Model, sample: making.Sample) -> Asked:
    """What stands in front of the first answer of a sample; of a text its first tokens."""
    counted = next(at for at, counts in enumerate(sample.counts) if counts)
    ids = sample.ids[:counted] or sample.ids[:max(1, len(sample.ids) // 4)][:32]
    ids = ids[-(model.context - 1):]
    ends = model.words.stops | ({sample.end} if sample.end is not None else set())
    return Asked(ids, model.known(ends))


def answers(model: Model, asked: Asked, before: dict[str, Any], after: dict[str, Any]) -> str:
    prompt = model.words.decode(asked.ids)
    text = f"## The first sample is asked\n\n{prompt}\n\n"
    for name, said in ("before", before), ("after", after):
        losses = ", ".join(f"{loss:.4f} over the {what}" for what, loss in said["loss"].items())
        text += f"## {name}: loss {losses}\n\n{said['answer'] or '(nothing)'}\n\n"
    return text.rstrip("\n") + "\n"


def expect_known(words: Sequence[str]) -> None:
    """Refuses options that are none. gaccc says which setting does what one asks for."""
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
    if option is None:
        return
    path, environment = program("gaccc")
    try:
        said = subprocess.run([path, "model.toml", f"{option}=1"], env=environment, stderr=subprocess.PIPE,
                              text=True).stderr
    except FileNotFoundError:
        said = ""
    answer = (said.splitlines() or [""])[0].removeprefix("gaccc: error: ")
    if "--set" not in answer:
        answer = f"there is no option {option}; --help lists those that there are"
    raise Refused(answer)


def main() -> None:
    parser = Parser(prog="python -m gacc.tune", description=__doc__.split("\n\n")[0])
    parser.add_argument("model", metavar="FOLDER|FILE.gguf", help="a published model, with its tokenizer")
    parser.add_argument("data", metavar="DATA", nargs="+", help="texts or samples, as gacc.tokens takes them")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="gets the adapter, the log and the answers")
    parser.add_argument("--lora", type=int, default=8, metavar="R", help="the rank of the adapter (8)")
    parser.add_argument("--memory", metavar="BYTES", help="the most that training may take: 6GiB")
    parser.add_argument("--context", type=int, metavar="T", help="the window in tokens; default: the longest sample's, "
                        "up to 1024")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="over the data (3)")
    parser.add_argument("--eval", action="append", default=[], metavar="FILE", help="samples that are not trained on, "
                        "whose loss is told")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for gaccc, such as "
                        "optimizer.lr=1e-3")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    given, rest = parser.parse_known_args()
    for name, value in ("--lora", given.lora), ("--context", given.context), ("--epochs", given.epochs):
        if value is not None and value < 1:
            parser.error(f"{name}: a number from 1 on, not {value}")
    if said := next((each for each in given.set if each.partition("=")[0].strip() == "train.epochs"), None):
        parser.error(f"--set {said}: --epochs N says how often the data are gone through")
    try:
        expect_known(rest)
        tune(given.model, given.data, given.out, given.lora, given.memory, given.context, given.epochs, given.device,
             given.set, given.eval)
    except (Error, ValueError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
