"""Texts and chats as the numbers that a model of tokens trains on.

    python -m gacc.tokens FOLDER text.txt -o tokens.bin                  # one stream: --data tokens:tokens.bin
    python -m gacc.tokens FOLDER chats.jsonl -o chats.npz --context 512  # windows with targets: --data npz:chats.npz
    python -m gacc.tokens FOLDER a.json b.parquet -o chats.npz --context 2048 --pack   # several samples a window

FOLDER has the model's tokenizer.json, as Hugging Face writes it; a GGUF will do, too, which holds its vocabulary. A
sample is a line of .jsonl, an element of the list or a line of .json, a row of .parquet, or a row of .csv or .tsv whose
first line has these names:

    {"text": ...}
    {"prompt": ..., "completion": ...}
    {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}, ...]}
    {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}, ...]}
    {"instruction": ..., "input": ..., "output": ...}

A chat may have "tools", a list of tables, which the template is given.
What counts for the loss is every token of a text, the completions, and the turns of the assistant, each with the token
that ends it; the target of all else is -100, which `loss.ignore_index` is where the model does not say another. A text
longer than a window goes on in the next one. --pack puts as many samples into each window as fit, and writes which is
where as `documents`: the model's attention must have `documents = "documents"`. Needs the package `tokenizers`; chats
also need `jinja2` or `minijinja`, .parquet needs `pyarrow`. In Python:

    run = gacc.train(step, gacc.tokens.arrays(FOLDER, "chats.jsonl", 512))
"""
from __future__ import annotations

import copy
import os
import pathlib
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from . import _records
from ._arguments import Parser
from ._arrays import warn, whole
from ._tokenizer import MARK, NoTemplate, Refused, Tokenizer, expect_positions

__all__ = ["Refused", "Sample", "Tokenizer", "arrays"]
HELD_OUT = "(test|val|valid|validation|eval|evaluation|dev|heldout|holdout)(set|data)?[0-9]*"
IGNORED = -100  # the target of a token that does not count


class Sample(NamedTuple):
    """The tokens of a document, which of them the model is to predict, which of them ends what it says, if any does,
    and where the document stands in its file."""

    ids: list[int]
    counts: list[bool]
    end: int | None
    place: str


def framed(tokenizer: Tokenizer, ids: list[int], given: int, place: str) -> Sample:
    """A text with what stands in front of it and behind it. Its first `given` tokens are a prompt, which does not
    count; without one all does."""
    front = [] if ids[:len(tokenizer.front)] == tokenizer.front else tokenizer.front
    behind = tokenizer.whole(ids)
    counts = [given == 0] * len(front) + [False] * given + [True] * (len(ids) - given + len(behind))
    ids = [*front, *ids, *behind]
    return Sample(ids, counts, ids[-1] if behind or ids[-1:] == [tokenizer.end] else None, place)


def of_completion(tokenizer: Tokenizer, prompt: str, completion: str, place: str) -> Sample:
    """Both are one text, and are encoded as one. Where a token would be of both, each has its own: the prompt those
    with which a model is asked."""
    parts, border = tokenizer.parts(prompt + completion), len(prompt)
    if not any(part.begin < border < part.end for part in parts):
        ids = [part.token for part in parts]
        given = next((at for at, part in enumerate(parts) if part.begin >= border), len(ids))
        return framed(tokenizer, ids, given, place)
    asked = tokenizer.encode(prompt)
    return framed(tokenizer, asked + tokenizer.following(completion), len(asked), place)


class Turn(NamedTuple):
    """Where an answer stands in the text of a chat, and how many letters behind it the template writes to end it."""

    begin: int
    end: int
    ending: int


def turn_of(tokenizer: Tokenizer, messages: list[dict[str, Any]], number: int, text: str) -> Turn:
    """The place of message `number`, of the assistant, in the text of all messages."""
    before, after, (front, behind) = messages[:number], messages[number + 1:], ("", "")
    begins = []  # the texts that may stand in front of it
    try:
        if before:
            begins.append(tokenizer.write(before, begin=True))  # what a model is given that is to answer
        front, behind = tokenizer.around(before)
        begins.append(front)
    except Refused:  # the template writes no answer of a single word there, or nothing without one
        pass
    upto = tokenizer.write(messages[:number + 1], begin=False) if after else text
    if text.startswith(upto):
        ending = len(behind) if upto.endswith(behind) else 0
        end = len(upto) - ending
    else:  # it writes a turn in another way when more turns follow: the text around this one
        marked = tokenizer.write([*before, messages[number] | {"content": MARK}, *after], begin=False)
        front, mark, rest = marked.rpartition(MARK)
        end = len(text) - len(rest)
        ending = len(os.path.commonprefix([rest, behind]))
        begins.append(front)
        if not mark or not text.startswith(front) or not text.endswith(rest) or len(front) > end:
            begins = []
    for begin in begins:
        if text.startswith(begin) and len(begin) <= end:
            return Turn(len(begin), end, ending)
    if number == 0:
        raise Refused("the chat begins with the assistant, which the chat template of "
                      f"{tokenizer.path} does not write; begin it with a turn of the user")
    raise Refused(f"the template writes turn {number + 1} in another way when more turns follow, so that its tokens "
                  "cannot be told; write it as `prompt` and `completion`")


def of_messages(tokenizer: Tokenizer, messages: list[dict[str, Any]], place: str) -> Sample:
    try:
        text = tokenizer.write(messages, begin=False)
    except NoTemplate:
        raise Refused(f"{tokenizer.path} has no chat template, which chats need; a sample may be `prompt` and "
                      "`completion`") from None
    except Refused:
        _records.expect_contents(messages)
        raise
    parts = tokenizer.parts(text)
    counts, ended = [False] * len(parts), None
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        turn = turn_of(tokenizer, messages, number, text)
        last = turn.end + turn.ending
        behind = [part for part in parts if part.end > turn.end and part.begin < last]
        end = next((part for known in (tokenizer.stops, tokenizer.special) for part in behind if part.token in known),
                   None)
        if end is None:  # the template writes none; perhaps the data do
            end = next((part for part in reversed(parts) if turn.begin <= part.begin < last
                        and part.token in tokenizer.stops and not text[part.end:last].strip()), None)
        if end is not None:  # nothing behind it: a model that stops there never writes it
            last, ended = end.begin + 1, end.token
        for at, part in enumerate(parts):
            # A special token may take spaces from the answer; any other that has a letter of it must be predicted.
            of_answer = part.begin >= turn.begin or (part.end > turn.begin and part.token not in tokenizer.added)
            counts[at] |= of_answer and part.begin < last
    return Sample([part.token for part in parts], counts, ended, place)


def of_record(tokenizer: Tokenizer, record: Any, place: str) -> Sample:
    messages = _records.messages_of(record)
    if messages is not None and "instruction" in record and not tokenizer.has_template():
        *asked, answered = (message["content"] for message in messages)
        record = {"prompt": "\n\n".join(asked) + "\n", "completion": answered}
        messages = None
    if messages is not None:
        if tools := _records.tools_of(record):
            tokenizer = copy.copy(tokenizer)
            tokenizer.tools = tools
        return of_messages(tokenizer, messages, place)
    if record.get("prompt") is not None and record.get("completion") is not None:
        prompt, completion = _records.text_of(record, "prompt"), _records.answer_of(record, "completion")
        return of_completion(tokenizer, prompt, completion, place)
    if record.get("text") is not None:
        return framed(tokenizer, tokenizer.encode(_records.text_of(record, "text")), 0, place)
    _records.expect_values(record)
    raise Refused(f"its keys are {', '.join(sorted(map(str, record))) or 'none'}; {_records.FORMS}")


def read_samples(tokenizer: Tokenizer, paths: Sequence[pathlib.Path], note: Callable[[str], None]) -> Iterator[Sample]:
    """The documents of files. Those without an answer are left out, and counted by a note."""
    unanswered, given = list[str](), 0
    for path in paths:
        for record, place in _records.read(path):
            try:
                yield of_record(tokenizer, record, place)
                given += 1
            except _records.Unanswered as error:
                unanswered.append(f"{place}: {error}")
            except Refused as error:
                raise Refused(f"{place}: {error}") from None
    if unanswered and not given:
        raise Refused(f"{unanswered[0]}, and the model would learn to answer nothing")
    if unanswered:
        note(f"{len(unanswered):,} of {given + len(unanswered):,} samples have no answer, and are left out; the first: "
             f"{unanswered[0]}")


def check(samples: list[Sample]) -> None:
    """Refuses what could not train: samples that count nothing, and answers of which no end ever counts."""
    if not samples:
        raise Refused("there are no samples")
    for sample in samples:
        # The first token is given: there is nothing that it could be predicted from.
        if not any(sample.counts[1:]):
            raise Refused(f"{sample.place}: no token of it would count"
                          + ("; it has " + str(len(sample.ids)) if len(sample.ids) < 2 else
                             ": it has no turn of the assistant, or an empty one"))
    if any(not all(sample.counts) for sample in samples) and all(sample.end is None for sample in samples):
        raise Refused("no token that ends a turn ever counts: the model would never learn to stop; the chat "
                      "template must write one after the assistant's turns, or the folder name an eos_token")


def check_context(tokenizer: Tokenizer, context: int) -> None:
    expect_positions(context, tokenizer.positions, tokenizer.path)


def expect_order(model: str | os.PathLike, data: Sequence[str | os.PathLike]) -> None:
    """Refuses a model that stands behind the data."""
    first = pathlib.Path(model)
    if first.suffix in _records.SUFFIXES and first.is_file():
        meant = next((each for each in map(pathlib.Path, data) if each.suffix == ".gguf"
                      or any((each / name).exists() for name in ("tokenizer.json", "config.json"))), None)
        if meant is not None:
            raise Refused(f"{first}: is data, and the model stands before it: {meant} {first}")


class Piece(NamedTuple):
    """Tokens that stay together in a window, and their targets."""

    tokens: list[int]
    targets: list[int]


def pieces(samples: list[Sample], length: int) -> list[Piece]:
    """The samples in pieces of at most a window's length. Where all of a sample counts, it goes on in further pieces;
    else it is cut."""
    made = []
    for sample in samples:
        whole, pairs = all(sample.counts), len(sample.ids) - 1
        for first in range(0, pairs if whole else min(pairs, length), length):
            targets = [t if c else IGNORED for t, c in zip(sample.ids[first + 1:first + length + 1],
                                                           sample.counts[first + 1:first + length + 1])]
            if all(target == IGNORED for target in targets):
                raise Refused(f"{sample.place}: nothing of its first {length} tokens counts; it has "
                              f"{len(sample.ids)}: a larger --context holds it")
            made.append(Piece(sample.ids[first:first + len(targets)], targets))
    return made


def packed(lengths: list[int], room: int, seed: int) -> list[list[int]]:
    """Puts lengths that fit together into windows of `room`, by first fit: the longest first, each into the first
    window that has room for it. The seed orders what is equally long, and the windows."""
    order = random.Random(seed)
    numbers = list(range(len(lengths)))
    order.shuffle(numbers)
    numbers.sort(key=lambda number: -lengths[number])
    leaves = 1 << max(len(lengths) - 1, 0).bit_length()
    most = [room] * (2 * leaves)  # the most room of a window below each node of a tree; windows are its leaves
    made: list[list[int]] = []
    for number in numbers:
        at = 1
        while at < leaves:
            at = 2 * at if most[2 * at] >= lengths[number] else 2 * at + 1
        if at - leaves == len(made):
            made.append([])
        made[at - leaves].append(number)
        most[at] -= lengths[number]
        while at > 1:
            at //= 2
            most[at] = max(most[2 * at], most[2 * at + 1])
    order.shuffle(made)
    return made


def windows(rows: list[list[Piece]], length: int, fill: int) -> dict[str, np.ndarray]:
    """Tokens, their targets and the number of the piece that each is of, [windows, length] each; -1 behind the last."""
    tokens = np.full((len(rows), length), fill, np.int32)
    following = np.full((len(rows), length), IGNORED, np.int32)
    documents = np.full((len(rows), length), -1, np.int32)
    for row, members in enumerate(rows):
        at = 0
        for number, piece in enumerate(members):
            there = slice(at, at + len(piece.tokens))
            tokens[row, there], following[row, there], documents[row, there] = piece.tokens, piece.targets, number
            at = there.stop
    return {"tokens": tokens, "next": following, "documents": documents}


def made_windows(tokenizer: Tokenizer, samples: list[Sample], length: int, seed: int | None) -> dict[str, np.ndarray]:
    """Windows of samples that were checked. `seed`: several samples share one."""
    made = pieces(samples, length)
    together = [[number] for number in range(len(made))]
    if seed is not None:
        together = packed([len(piece.tokens) for piece in made], length, seed)
    found = windows([[made[number] for number in row] for row in together], length, tokenizer.end or 0)
    if seed is None:
        del found["documents"]
    cut = any(len(sample.ids) - 1 > length and not all(sample.counts) for sample in samples)
    if cut and not np.isin(found["next"], [s.end for s in samples if s.end is not None]).any():
        raise Refused(f"no end of a turn lies within the first {length} tokens of any sample: the model would never "
                      "learn to stop; a larger --context holds them")
    return found


def arrays(model: str | os.PathLike, data: str | os.PathLike | Sequence[str | os.PathLike], context: int,
           pack: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """The windows of a file of texts or samples, or of several, as gacc.train takes them: "tokens" and "next", i32
    [windows, context]; with `pack` several samples a window, and "documents"."""
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError("the tokenizer is a folder with tokenizer.json, or a GGUF (an object writes one by "
                        f"save_pretrained), not {model!r:.60}")
    files = [data] if isinstance(data, (str, os.PathLike)) else data
    expect_order(model, files)
    tokenizer = Tokenizer(pathlib.Path(model))
    check_context(tokenizer, context)
    samples = list(read_samples(tokenizer, [pathlib.Path(file) for file in files], warn))
    check(samples)
    return made_windows(tokenizer, samples, context, seed if pack else None)


def shown(tokenizer: Tokenizer, sample: Sample, most: int = 400) -> str:
    """A sample as text, what counts between marks."""
    text, start = "", 0
    for at in range(1, len(sample.ids) + 1):
        if at == len(sample.ids) or sample.counts[at] != sample.counts[start]:
            part = tokenizer.tokenizer.decode(sample.ids[start:at], skip_special_tokens=False)
            text += f"[[{part}]]" if sample.counts[start] else part
            start = at
    return text if len(text) <= most else text[:most] + " ..."


def write(path: pathlib.Path, put: Callable[[BinaryIO], object]) -> None:
    try:
        with whole(path) as file:
            put(file)
    except OSError as error:
        raise Refused(f"{path}: cannot be written: {error.strerror}") from None


def held_out(paths: Sequence[pathlib.Path]) -> list[pathlib.Path]:
    """Files whose names say that they are no data to train on, beside others."""
    named = [path for path in paths
             if any(re.fullmatch(HELD_OUT, word) for word in re.split("[^a-z0-9]+", path.stem.lower()))]
    return named if len(named) < len(paths) else []


def by_file(paths: Sequence[pathlib.Path], samples: Sequence[Sample]) -> str:
    """How many samples each file has."""
    counts = dict.fromkeys(paths, 0)
    for sample in samples:
        own = (path for path in paths if sample.place.startswith(str(path)))
        counts[max(own, key=lambda path: len(str(path)))] += 1
    return ", ".join(f"{path} {count:,}" for path, count in counts.items())


def convert(folder: str, data: list[str], out: str, context: int | None, seed: int | None) -> None:
    expect_order(folder, data)
    tokenizer, path = Tokenizer(pathlib.Path(folder)), pathlib.Path(out)
    if path.suffix not in (".bin", ".npz"):
        raise Refused(f"{out}: ends neither in .bin (a stream, for tokens:) nor in .npz (windows, for npz:)")
    if (context is not None) != (path.suffix == ".npz"):
        raise Refused(f"{out}: " + ("windows have a length: --context T, as the model's" if context is None else
                                    "a stream has no windows; the model's inputs say how it is cut"))
    if seed is not None and path.suffix != ".npz":
        raise Refused(f"{out}: --pack makes windows: it writes a .npz")
    if context is not None:
        check_context(tokenizer, context)
    notes: list[str] = []
    paths = [pathlib.Path(file) for file in data]
    samples = list(read_samples(tokenizer, paths, notes.append))
    check(samples)
    if len(paths) > 1:
        print(f"samples: {by_file(paths, samples)}")
    for each in held_out(paths):
        print(f"warning: {each} is among what is trained on, and its name says that it is held out: a file of its own "
              f"is for gacc-exec --eval, and gacc.tune takes it as --eval {each}", file=sys.stderr)
    for each in notes:
        print(f"note: {each}")
    if path.suffix == ".bin":
        if partly := next((s for s in samples if not all(s.counts)), None):
            raise Refused(f"{partly.place}: has tokens that do not count, which a stream cannot say; write a .npz")
        dtype = "u16" if tokenizer.size <= 1 << 16 else "u32"
        stream = np.concatenate([np.asarray(s.ids, "<" + dtype.replace("u16", "u2").replace("u32", "u4"))
                                 for s in samples])
        write(path, stream.tofile)
        option = "" if dtype == "u16" else ",dtype=u32"
        documents = f"{len(samples):,} document{'s'[:len(samples) > 1]}"
        print(f"{out}: {stream.size:,} tokens of {documents}; --data tokens:{out}{option}")
    else:
        made = made_windows(tokenizer, samples, context, seed)
        counted = int((made["next"] != IGNORED).sum())
        write(path, lambda file: np.savez(file, **made))
        print(f"{out}: {len(made['tokens']):,} windows of {context}, {counted:,} tokens count; --data npz:{out}")
        if seed is not None:
            used = (made["documents"] >= 0).mean()
            print(f"{len(samples):,} samples are packed; {100 * used:.1f} % of all positions are used; the model's "
                  "attention takes `documents`")
        for all_count, what in (True, "go on in further windows"), (False, "are cut"):
            some = sum(len(s.ids) - 1 > context and all(s.counts) == all_count for s in samples)
            if some:
                print(f"note: {some:,} of {len(samples):,} samples are longer than {context} tokens, and {what}")
    print(f"the first sample, what counts in [[ ]]:\n{shown(tokenizer, samples[0])}")


def end_without_output(error: OSError) -> NoReturn:
    """Ends a program whose standard output takes nothing more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Python still holds goes there at the exit
    sys.exit(f"error: cannot write standard output: {error.strerror}")


def main() -> None:
    parser = Parser(prog="python -m gacc.tokens", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", metavar="FOLDER|FILE.gguf", help="has tokenizer.json, or a vocabulary")
    parser.add_argument("data", metavar="DATA", nargs="+",
                        help="a text, or samples: .jsonl with one a line, .json with a list, .parquet, .csv")
    parser.add_argument("-o", "--out", required=True, help="FILE.bin: a stream; FILE.npz: windows with targets")
    parser.add_argument("--context", type=int, metavar="T", help="of .npz: the tokens of a window")
    parser.add_argument("--pack", action="store_true", help="of .npz: several samples a window, and `documents`")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="with --pack: the order of windows")
    given = parser.parse_args()
    if given.context is not None and given.context < 1:
        parser.error("--context: a window has at least one token")
    try:
        convert(given.folder, given.data, given.out, given.context, given.seed if given.pack else None)
        sys.stdout.flush()
    except Refused as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.filename is not None:  # that of standard output has none
            raise
        end_without_output(error)


if __name__ == "__main__":
    main()
