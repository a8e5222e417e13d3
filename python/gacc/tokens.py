"""Texts and chats as the numbers that a model of tokens trains on.

    python -m gacc.tokens FOLDER text.txt -o tokens.bin                  # one stream: --data tokens:tokens.bin
    python -m gacc.tokens FOLDER chats.jsonl -o chats.npz --context 512  # windows with targets: --data npz:chats.npz
    python -m gacc.tokens FOLDER chats.jsonl -o chats.npz --context 2048 --pack   # several samples a window

FOLDER has the model's tokenizer.json, as Hugging Face writes it; a GGUF will do, too, which holds its vocabulary. A
line of a .jsonl file is {"text": ...}, {"prompt": ..., "completion": ...} or {"messages": [{"role": ..., "content":
...}, ...]}. What counts for the loss is every token of a text, the completions, and the turns of the assistant, each
with the token that ends it; the target of all else is -100, which `loss.ignore_index` is where the model does not say
another. A text longer than a window goes on in the next one. --pack puts as many samples into each window as fit, and
writes which is where as `documents`: the model's attention must have `documents = "documents"`. Needs the package
`tokenizers`; messages also need `transformers`, which has the chat template. In Python:

    run = gacc.train(step, gacc.tokens.arrays(FOLDER, "chats.jsonl", 512))
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ._arrays import whole
from ._library import Error

IGNORED = -100  # the target of a token that does not count


class Refused(Error):
    """An error of the folder or the data, in one line."""


class Sample(NamedTuple):
    """The tokens of a document, which of them the model is to predict, and where it stands in its file."""

    ids: list[int]
    counts: list[bool]
    place: str


def read_json(path: pathlib.Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refused(f"{path}: is no JSON: {error}") from None


def numbers_of(tokens: Any) -> set[int]:
    """The tokens that a configuration names: a number, or a list of them."""
    return {token for token in (tokens if isinstance(tokens, list) else [tokens]) if type(token) is int}


class Tokenizer:
    """The tokenizer of a folder or of a GGUF: its vocabulary, the token that ends a text, and its chat template."""

    def __init__(self, model: pathlib.Path):
        try:
            import tokenizers
        except ImportError:
            raise Refused("needs the package tokenizers: pip install tokenizers") from None
        self.path, self._chat, self._template = model, None, None
        self.end: int | None = None  # ends the texts that gacc.tokens makes
        self.stops: set[int] = set()  # each ends a text that a model makes
        if model.is_dir():
            self._read_folder(model, tokenizers)
        else:
            self._read_gguf(model, tokenizers)
        self.size = 1 + max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if self.rows is not None and self.size > self.rows:
            raise Refused(f"{model}: the tokenizer has {self.size:,} tokens, more than the model's {self.rows:,} "
                          f"({'config.json, vocab_size' if model.is_dir() else 'the embedding'}): resize the model's "
                          "embedding where that was published, or take the tokenizer that belongs to it")

    def _read_folder(self, folder: pathlib.Path, tokenizers: Any) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise Refused(f"{folder}: has no tokenizer.json")
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises Exception itself
            raise Refused(f"{path}: {error}") from None
        # A file may say how to pad and to cut; a stream has neither.
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        model = read_json(folder / "config.json")
        rows = model.get("vocab_size")
        self.rows = rows if isinstance(rows, int) else None
        named = read_json(folder / "tokenizer_config.json").get("eos_token")
        text = named.get("content") if isinstance(named, dict) else named
        number = model.get("eos_token_id")
        self.end = self.tokenizer.token_to_id(text) if isinstance(text, str) else None
        if self.end is None:
            self.end = next(iter(number), None) if isinstance(number, list) else number
        # As transformers' generate has it; and the end of the texts that a model was trained on.
        said = read_json(folder / "generation_config.json").get("eos_token_id")
        self.stops = numbers_of(number if said is None else said) | numbers_of(self.end)

    def _read_gguf(self, path: pathlib.Path, tokenizers: Any) -> None:
        from . import _gguf

        try:
            facts = _gguf.read_metadata(path)
            self.tokenizer = _gguf.tokenizer_of(facts, tokenizers)
        except (_gguf.Unreadable, OSError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise Refused(f"{path}: {said}" + (": a folder has tokenizer.json, a GGUF its vocabulary"
                                               if "is no GGUF" in str(said) else "")) from None
        except Exception as error:  # the package raises Exception itself
            raise Refused(f"{path}: its vocabulary (tokenizer.ggml.*) is damaged: {error}") from None
        rows = facts.get(f"{facts.get('general.architecture')}.vocab_size")
        self.rows = rows if isinstance(rows, int) else None
        self.end = facts.get("tokenizer.ggml.eos_token_id")
        self.stops = set().union(*(numbers_of(facts.get(f"tokenizer.ggml.{name}_token_id"))
                                   for name in ("eos", "eot", "eom")))
        self._template = facts.get("tokenizer.chat_template")

    def ends(self) -> set[int]:
        """The tokens that may end a text or a turn: the special ones."""
        special = {number for number, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        return special if self.end is None else special | {self.end}

    def encode(self, text: str, start: bool = True) -> list[int]:
        """The tokens of a text, with those that mark its start where the tokenizer has such and `start` asks."""
        return self.tokenizer.encode(text, add_special_tokens=start).ids

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)

    def ended(self, ids: list[int]) -> list[int]:
        return ids if self.end is None or ids[-1:] == [self.end] else [*ids, self.end]

    def chat(self, messages: list[dict[str, Any]], prompt: bool) -> list[int]:
        """The tokens of messages by the folder's template; `prompt`: with what begins the assistant's next turn."""
        if self._chat is None:
            try:
                import transformers
            except ImportError:
                raise Refused("`messages` need the package transformers: pip install transformers") from None
            if self.path.is_dir():
                self._chat = transformers.AutoTokenizer.from_pretrained(str(self.path))
            else:
                self._chat = transformers.PreTrainedTokenizerFast(
                    tokenizer_object=self.tokenizer, chat_template=self._template,
                    eos_token=None if self.end is None else self.tokenizer.id_to_token(self.end))
            if not self._chat.chat_template:
                raise Refused(f"{self.path}: has no chat template; write lines of `prompt` and `completion`")
        text = self._chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        return self.encode(text, start=False)  # the template writes what marks the start


def of_messages(tokenizer: Tokenizer, messages: Any, place: str) -> Sample:
    known = isinstance(messages, list) and all(isinstance(m, dict) and "role" in m and "content" in m for m in messages)
    if not known or not messages:
        raise Refused(f"{place}: `messages` is no list of tables with `role` and `content`")

    def written(upto: int, prompt: bool) -> list[int]:
        try:
            return tokenizer.chat(messages[:upto], prompt)
        except Refused:
            raise
        except Exception as error:  # of the template, or of transformers at a damaged one
            raise Refused(f"{place}: the chat template of {tokenizer.path} does not write that: {error}") from None

    ids, counts = written(len(messages), prompt=False), []
    ends = tokenizer.ends()
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        # The template's text of a turn is what it adds to all that came before.
        for upto, prompt, counted in ((number, True, False), (number + 1, False, True)):
            part = written(upto, prompt)
            if part != ids[:len(part)] or len(part) < len(counts):
                raise Refused(f"{place}: the template writes turn {number + 1} in another way when more turns follow, "
                              "so that its tokens cannot be told; write it as `prompt` and `completion`")
            begin, turn = len(counts), ids[len(counts):len(part)]
            # Nothing behind the token that ends the turn: a model that stops there never writes it.
            last = max((at for at, token in enumerate(turn) if token in ends), default=len(turn) - 1)
            counts += [counted and at <= last for at in range(len(part) - begin)]
    return Sample(ids, counts + [False] * (len(ids) - len(counts)), place)


def of_line(tokenizer: Tokenizer, line: Any, place: str) -> Sample:
    if not isinstance(line, dict):
        raise Refused(f"{place}: is no table like {{\"text\": ...}}")
    for key in ("text", "prompt", "completion"):
        if key in line and not isinstance(line[key], str):
            raise Refused(f"{place}: `{key}` is no string")
    if "messages" in line:
        return of_messages(tokenizer, line["messages"], place)
    if "prompt" in line and "completion" in line:
        prompt = tokenizer.encode(line["prompt"])
        answer = tokenizer.ended(tokenizer.encode(line["completion"], start=False))
        return Sample(prompt + answer, [False] * len(prompt) + [True] * len(answer), place)
    if "text" in line:
        ids = tokenizer.ended(tokenizer.encode(line["text"]))
        return Sample(ids, [True] * len(ids), place)
    raise Refused(f"{place}: has neither `text`, nor `prompt` and `completion`, nor `messages`; "
                  f"its keys are {', '.join(sorted(map(str, line))) or 'none'}")


def read_samples(tokenizer: Tokenizer, path: pathlib.Path) -> Iterator[Sample]:
    """The documents of a file: of .jsonl one a line, of any other the whole text."""
    try:
        if path.suffix != ".jsonl":
            ids = tokenizer.ended(tokenizer.encode(path.read_text(encoding="utf-8")))
            yield Sample(ids, [True] * len(ids), str(path))
            return
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise Refused(f"{path}:{number}: is no JSON: {error}") from None
                yield of_line(tokenizer, value, f"{path}:{number}")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: is no UTF-8: {error}") from None


def check(tokenizer: Tokenizer, samples: list[Sample]) -> None:
    """Refuses what could not train: samples that count nothing, and answers of which no end ever counts."""
    if not samples:
        raise Refused("there are no samples")
    for sample in samples:
        # The first token is given: there is nothing that it could be predicted from.
        if not any(sample.counts[1:]):
            raise Refused(f"{sample.place}: no token of it would count"
                          + ("; it has " + str(len(sample.ids)) if len(sample.ids) < 2 else
                             ": it has no turn of the assistant, or an empty completion"))
    if any(not all(sample.counts) for sample in samples):
        ends = tokenizer.ends()
        if not any(c and token in ends for s in samples for token, c in zip(s.ids, s.counts)):
            raise Refused("no token that ends a turn ever counts: the model would never learn to stop; the chat "
                          "template must write one after the assistant's turns, or the folder name an eos_token")


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
    if cut and not np.isin(found["next"], list(tokenizer.ends())).any():
        raise Refused(f"no end of a turn lies within the first {length} tokens of any sample: the model would never "
                      "learn to stop; a larger --context holds them")
    return found


def arrays(model: str | os.PathLike, data: str | os.PathLike, context: int, pack: bool = False,
           seed: int = 0) -> dict[str, np.ndarray]:
    """The windows of a text or of samples, as gacc.train takes them: "tokens" and "next", i32 [windows, context]; with
    `pack` several samples a window, and "documents"."""
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError("the tokenizer is a folder with tokenizer.json, or a GGUF (an object writes one by "
                        f"save_pretrained), not {model!r:.60}")
    tokenizer = Tokenizer(pathlib.Path(model))
    samples = list(read_samples(tokenizer, pathlib.Path(data)))
    check(tokenizer, samples)
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


def convert(folder: str, data: str, out: str, context: int | None, seed: int | None) -> None:
    tokenizer, path = Tokenizer(pathlib.Path(folder)), pathlib.Path(out)
    if path.suffix not in (".bin", ".npz"):
        raise Refused(f"{out}: ends neither in .bin (a stream, for tokens:) nor in .npz (windows, for npz:)")
    if (context is not None) != (path.suffix == ".npz"):
        raise Refused(f"{out}: " + ("windows have a length: --context T, as the model's" if context is None else
                                    "a stream has no windows; the model's inputs say how it is cut"))
    if seed is not None and path.suffix != ".npz":
        raise Refused(f"{out}: --pack makes windows: it writes a .npz")
    samples = list(read_samples(tokenizer, pathlib.Path(data)))
    check(tokenizer, samples)
    if path.suffix == ".bin":
        if any(not all(s.counts) for s in samples):
            raise Refused(f"{data}: has tokens that do not count, which a stream cannot say; write a .npz")
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gacc.tokens", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", metavar="FOLDER|FILE.gguf", help="has tokenizer.json, or a vocabulary")
    parser.add_argument("data", metavar="DATA", help="a text, or .jsonl with one sample a line")
    parser.add_argument("-o", "--out", required=True, help="FILE.bin: a stream; FILE.npz: windows with targets")
    parser.add_argument("--context", type=int, metavar="T", help="of .npz: the tokens of a window")
    parser.add_argument("--pack", action="store_true", help="of .npz: several samples a window, and `documents`")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="with --pack: the order of windows")
    given = parser.parse_args()
    if given.context is not None and given.context < 1:
        parser.error("--context: a window has at least one token")
    try:
        convert(given.folder, given.data, given.out, given.context, given.seed if given.pack else None)
    except Refused as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
