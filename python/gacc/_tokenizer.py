"""A model's tokenizer: what stands in front of a text and behind it, what ends one, and how a chat is written.

Of a folder it reads tokenizer.json, tokenizer_config.json, config.json, generation_config.json and chat_template.jinja,
as transformers does; of a GGUF the metadata, as llama.cpp does.
"""
from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _template
from ._library import Error
from ._paths import expect_there, is_adapter

MARK = "Zq7answer"  # stands for an answer where only what is around it is wanted
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
POSITIONS = ("max_position_embeddings", "n_positions")  # keys of a config.json
PROBES = ("a", "0", "the", ".")
BEFORE = "\n:=.a0"  # of which one makes no token with what follows
SPACES = "clean_up_tokenization_spaces"  # transformers' tokenizers take some out where they decode


class Refused(Error):
    """An error of the folder or the data, in one line."""


class NoTemplate(Refused):
    """There is no chat template."""


def expect_positions(context: int, positions: int | None, model: object) -> None:
    """Refuses a window that is longer than the model."""
    if positions is not None and context > positions:
        raise Refused(f"--context {context} is more than the {positions:,} positions of the model ({model})")


class Part(NamedTuple):
    """A token of a text, and which of its letters it stands for."""

    token: int
    begin: int
    end: int


def parsed(text: str, place: object) -> Any:
    """What a text of JSON says."""
    try:
        return json.loads(text)
    except RecursionError:
        raise Refused(f"{place}: is no JSON: it is nested too deeply") from None
    except ValueError as error:
        raise Refused(f"{place}: is no JSON: {error}") from None


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The table of a file; an empty one where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = parsed(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: is no JSON: {error}") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if not isinstance(found, dict):
        raise Refused(f"{path}: is {'a list' if isinstance(found, list) else json.dumps(found)[:40]}, no table of keys "
                      "and values")
    return found


def numbers_of(facts: Mapping[str, Any], key: str, place: object, several: bool = True) -> list[int]:
    """The tokens that a key names: none, a number, or a list of them."""
    said = facts.get(key)
    numbers = [] if said is None else said if several and isinstance(said, list) else [said]
    for number in numbers:
        if type(number) is not int or number < 0:
            kind = "a token's number, or a list of them" if several else "a token's number"
            raise Refused(f"{place}: `{key}` is {json.dumps(said, default=str)[:60]}, and is {kind}")
    return numbers


def are_messages(said: Any) -> bool:
    """Returns whether that is a chat: tables with `role` and `content`, at least one."""
    return isinstance(said, Sequence) and len(said) > 0 and all(
        isinstance(one, Mapping) and isinstance(one.get("role"), str) and "content" in one for one in said)


def word_of(said: Any) -> str | None:
    """The text of a token, as tokenizer_config.json writes it: by itself, or in a table with its properties."""
    text = said.get("content") if isinstance(said, dict) else said
    return text if isinstance(text, str) else None


def surroundings(encode: Callable[[str, bool], list[int]], words: Sequence[str] = ()) -> tuple[list[int], list[int]]:
    """What the tokenizer puts in front of a text, and behind it: around one of `words`, or of PROBES.
    `encode(text, marked)` gives a text's tokens, with those marks or without."""
    for probe in (*PROBES, *words):
        try:
            plain, marked = encode(probe, False), encode(probe, True)
        except Exception:  # a vocabulary without that text, and without a token for what is unknown
            continue
        for at in range(len(marked) - len(plain) + 1 if plain else 0):
            if marked[at:at + len(plain)] == plain:
                return marked[:at], marked[at + len(plain):]
    return [], []


class Words:
    """What tokenizers of each kind have in common. A text is `front`, its own tokens, and what ends it."""

    front: list[int] = []  # stands in front of a text
    stops: set[int] = set()  # each ends a text that a model makes
    special: set[int] = set()  # are no text
    name: object = "the tokenizer"  # in errors
    tools: list[dict[str, Any]] | None = None  # that the template is given, of the chat that is written

    def encode(self, text: str) -> list[int]:
        """The text's own tokens."""
        raise NotImplementedError

    def decode(self, ids: list[int]) -> str:
        raise NotImplementedError

    def write(self, messages: Sequence[Mapping[str, Any]], begin: bool) -> str:
        """The text of a chat by the model's template. `begin`: with what begins the assistant's next turn."""
        raise NotImplementedError

    def prompt(self, text: str) -> list[int]:
        """The tokens of a text that goes on. What stands in front of one is written once."""
        ids = self.encode(text)
        return ids if ids[:len(self.front)] == self.front else self.front + ids

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a chat that the assistant goes on; the template has written what stands in front."""
        return self.encode(self.write(messages, begin=True))

    def around(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """What the template writes in front of the assistant's answer to the messages, and behind it."""
        text = self.write([*messages, {"role": "assistant", "content": MARK}], begin=False)
        front, mark, behind = text.rpartition(MARK)
        if not mark:
            raise Refused(f"the chat template of {self.name} leaves out what the assistant says")
        return front, behind

    def ending(self, behind: str) -> int | None:
        """Which of the tokens behind an answer ends it: the first that ends texts, else the first special one."""
        ids = self.encode(behind)
        return next((token for known in (self.stops, self.special) for token in ids if token in known), None)

    def stops_of(self, messages: Sequence[Mapping[str, Any]]) -> set[int]:
        """The tokens that end the assistant's answer: those that end texts, and the template's own."""
        try:
            end = self.ending(self.around(messages)[1])
        except Refused:  # it writes no answer there, as behind one that is to go on
            return self.stops
        return self.stops if end is None else self.stops | {end}


class Tokenizer(Words):
    """The tokenizer of a folder or of a GGUF."""

    def __init__(self, model: pathlib.Path):
        try:
            import tokenizers
        except ImportError:
            raise Refused("needs the package tokenizers: pip install tokenizers") from None
        expect_there(model, Refused)
        if is_adapter(model):
            raise Refused(f"{model}: is an adapter, and MODEL is the folder of its base")
        self.path = self.name = model
        self.end: int | None = None  # ends the texts that gacc.tokens makes
        self.rows: int | None = None  # tokens that the model knows
        self.positions: int | None = None  # that the model has
        self._variables: dict[str, Any] = {}  # of the chat template
        self._template: str | None = None
        self._render: Callable[..., str] | None = None
        marks = self._read_folder(model, tokenizers) if model.is_dir() else self._read_gguf(model, tokenizers)
        added = self.tokenizer.get_added_tokens_decoder()
        self.added = set(added)  # found in a text before anything else is
        self.special = {number for number, token in added.items() if token.special}
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        self.size = 1 + max(vocabulary.values(), default=-1)
        if self.rows is not None and self.size > self.rows:
            raise Refused(f"{model}: the tokenizer has {self.size:,} tokens, more than the model's {self.rows:,} "
                          f"({'config.json, vocab_size' if model.is_dir() else 'the embedding'}): resize the model's "
                          "embedding where that was published, or take the tokenizer that belongs to it")
        if self.end is not None and self.end >= max(self.size, self.rows or 0):
            raise Refused(f"{model}: `eos_token_id` is {self.end}, and the model has {self.rows or self.size:,} tokens")
        some = [word for word, number in vocabulary.items() if number not in self.special][:99]
        self.front, self.behind = marks or surroundings(
            lambda text, marked: self.tokenizer.encode(text, add_special_tokens=marked).ids, some)
        # What is left gives each token the letters that it stands for, spaces too.
        self.tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A", pair="$A $B:1")

    def _read_folder(self, folder: pathlib.Path, tokenizers: Any) -> tuple[list[int], list[int]] | None:
        """Gives what stands in front of a text and behind it, where the folder says it beside the tokenizer."""
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
        config, facts = read_json(folder / "config.json"), read_json(folder / "tokenizer_config.json")
        rows = config.get("vocab_size")
        self.rows = rows if type(rows) is int else None
        self.positions = next((config[key] for key in POSITIONS if type(config.get(key)) is int), None)
        words = read_json(folder / "special_tokens_map.json") | {k: v for k, v in facts.items() if v is not None}
        self._variables = {key: word for key in NAMED if (word := word_of(words.get(key))) is not None}
        ids = {key: self.tokenizer.token_to_id(word) for key, word in self._variables.items()}
        ends = numbers_of(config, "eos_token_id", folder / "config.json")
        own = ids.get("eos_token")
        self.end = own if own is not None else next(iter(ends), None)
        # As transformers' generate has it; and the end of the texts that a model was trained on.
        said = numbers_of(read_json(folder / "generation_config.json"), "eos_token_id",
                          folder / "generation_config.json")
        self.stops = {*(said or ends), *([] if self.end is None else [self.end])}
        template = folder / "chat_template.jinja"
        if template.is_file():
            self._template = template.read_text(encoding="utf-8", errors="replace")
        else:
            self._template = template_of(facts.get("chat_template"), folder / "tokenizer_config.json")
        if "add_bos_token" not in facts and "add_eos_token" not in facts:
            return None
        # As in transformers these replace the post-processor.
        front, behind = ([number for number in [ids.get(f"{mark}_token")] if facts.get(f"add_{mark}_token")
                          and number is not None] for mark in ("bos", "eos"))
        return front, behind

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
        kind = facts.get("general.architecture")
        rows, positions = facts.get(f"{kind}.vocab_size"), facts.get(f"{kind}.context_length")
        self.rows = rows if type(rows) is int else None
        self.positions = positions if type(positions) is int else None
        ids = {name: numbers_of(facts, f"tokenizer.ggml.{name}_token_id", path, several=False)
               for name in ("bos", "eos", "eot", "eom")}
        for name, usual in _gguf.usual_ids(facts).items():
            ids[name] = ids[name] or [usual]
        self.end = next(iter(ids["eos"]), None)
        self.stops = {*ids["eos"], *ids["eot"], *ids["eom"]}
        self._variables = {f"{name}_token": self.tokenizer.id_to_token(number)
                           for name in ("bos", "eos") for number in ids[name]}
        self._template = template_of(facts.get("tokenizer.chat_template"), path)

    def parts(self, text: str) -> list[Part]:
        """The text's own tokens, and where each of them stands."""
        try:
            found = self.tokenizer.encode(text, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            wrong = next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None)
            if wrong is None:
                raise
            raise Refused(f"has half of a letter, \\u{ord(wrong):x}, which is no text") from None
        except Exception as error:  # the package raises Exception itself
            raise Refused(f"cannot be written with the tokens of {self.path}: {error}") from None
        return [Part(token, *place) for token, place in zip(found.ids, found.offsets)]

    def encode(self, text: str) -> list[int]:
        return [part.token for part in self.parts(text)]

    def following(self, text: str) -> list[int]:
        """The tokens of a text that goes on with another one. SentencePiece and its like begin one with a space, which
        this one has not: it is encoded behind a letter, and that letter's tokens are left out."""
        for letter in BEFORE:
            parts = self.parts(letter + text)
            if not any(part.begin < 1 < part.end for part in parts):
                return [part.token for part in parts if part.begin >= 1]
        return self.encode(text)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)

    def whole(self, ids: list[int]) -> list[int]:
        """The tokens that stand behind those of a text that has come to its end: none that it has already."""
        behind = self.behind
        if self.end is not None and self.end not in behind:
            behind = [*behind, self.end]
        return [] if ids[-1:] == behind[-1:] else behind

    def has_template(self) -> bool:
        return self._template is not None

    def write(self, messages: Sequence[Mapping[str, Any]], begin: bool) -> str:
        if self._template is None:
            raise NoTemplate(f"{self.path} has no chat template, which chats need: a model that was made for chats "
                             "has one, and gacc.generate goes on with a text")
        try:
            self._render = self._render or _template.compiled(self._template)
            return self._render(messages=list(messages), add_generation_prompt=begin, tools=self.tools, documents=None,
                                **self._variables)
        except _template.NoTemplates as error:
            raise Refused(str(error)) from None
        except _template.Unwritten as error:
            raise Refused(f"the chat template of {self.path} does not write that: {error}") from None


class Given(Words):
    """A tokenizer that the caller has made, of transformers or tokenizers, or any that encodes and decodes."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        end = getattr(tokenizer, "eos_token_id", None)
        self.stops = {end} if isinstance(end, int) else set()
        self.special = set(getattr(tokenizer, "all_special_ids", ()))
        self._unmarked = {"add_special_tokens": False}
        try:
            self.encode("a")
        except TypeError:  # it knows nothing of marks
            self._unmarked = {}
        else:
            self.front, _ = surroundings(lambda text, marked: self._ids(text, add_special_tokens=marked))

    def _ids(self, text: str, **marks: bool) -> list[int]:
        found = self.tokenizer.encode(text, **marks)
        return list(getattr(found, "ids", found))

    def encode(self, text: str) -> list[int]:
        return self._ids(text, **self._unmarked)

    def decode(self, ids: list[int]) -> str:
        more = {SPACES: False} if hasattr(self.tokenizer, SPACES) else {}
        return self.tokenizer.decode(ids, skip_special_tokens=True, **more)

    def write(self, messages: Sequence[Mapping[str, Any]], begin: bool) -> str:
        if not hasattr(self.tokenizer, "apply_chat_template"):
            raise Refused("the tokenizer has no chat template: a folder has one, or an object of transformers")
        try:
            return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=begin)
        except Exception as error:  # of the template
            raise Refused(f"the tokenizer's chat template does not write that: {error}") from None


def template_of(said: Any, place: object) -> str | None:
    """The template for chats, of one, or of several with names."""
    if isinstance(said, list):
        named = {one.get("name"): one.get("template") for one in said if isinstance(one, dict)}
        said = named.get("default", next(iter(named.values()), None))
    if said is not None and not isinstance(said, str):
        raise Refused(f"{place}: the chat template is no text")
    return said


def words_by(tokenizer: Any) -> Words | None:
    """The tokenizer of a path or an object; None of none."""
    if tokenizer is None or isinstance(tokenizer, Words):
        return tokenizer
    if isinstance(tokenizer, (str, bytes, os.PathLike)):
        return Tokenizer(pathlib.Path(os.fsdecode(tokenizer)))
    if hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode"):
        return Given(tokenizer)
    raise Refused(f"the tokenizer is a folder with tokenizer.json, a GGUF, or an object that has encode and decode, "
                  f"not {tokenizer!r:.60}")
