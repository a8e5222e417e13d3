"""Words from a trained model of tokens.

    python -m gacc.generate step.ptx "ROMEO:" --load FOLDER                      # FOLDER has the tokenizer, too
    python -m gacc.generate step.ptx "What is 2 + 2?" --load FOLDER --chat       # as a chat, by the model's template
    python -m gacc.generate step.ptx "ROMEO:" --load w.safetensors --tokenizer FOLDER --tokens 200 --top-k 40
    python -m gacc.generate step.ptx --prompts FILE --load FOLDER                # a prompt a line, a line for each

The tokenizer is a folder's tokenizer.json or the vocabulary of a GGUF, read by the package `tokenizers`. gacc-exec
makes the tokens: it gets every option that is not named here (docs/using-a-model.md), and draws as it does alone. The
text ends after N tokens, before a token that ends a text, or before the text of --stop. In a prompt \\n is a newline,
and \\\\ a backslash. In Python:

    run.generate("ROMEO:", tokenizer=FOLDER)
    run.generate(messages=[{"role": "user", "content": "What is 2 + 2?"}], tokenizer=FOLDER)
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from . import Error, Session, Step, byref, call, program
from . import open as open_step
from ._library import CDrawOptions
from ._arguments import Parser
from ._paths import expect_there, note_of_file
from ._tokenizer import Refused, Tokenizer, Words, are_messages, words_by

BYTES = 256  # a vocabulary of no more is bytes for gacc-exec
AT_ONCE = 16  # tokens of a prompt that a call of the library takes, which Ctrl-C waits for
ESCAPES = {"n": "\n", "\\": "\\"}


def without_program(path: str) -> Error:
    return Error(f"generating needs the program {path}, and it is not on the PATH")


def printed(artifact: str | os.PathLike, options: list[Any]) -> Iterator[bytes]:
    """What gacc-exec prints, as it comes; ends it when nobody wants more."""
    path, environment = program("gacc-exec")
    with tempfile.TemporaryFile() as told:
        try:
            child = subprocess.Popen([path, os.fspath(artifact), "--quiet", *options], env=environment,
                                     stdout=subprocess.PIPE, stderr=told)
        except FileNotFoundError:
            raise without_program(path) from None
        try:
            while piece := os.read(child.stdout.fileno(), 1 << 16):
                yield piece
        except BaseException:  # also of a generator that is closed
            child.kill()
            raise
        finally:
            child.stdout.close()
            status = child.wait()
        if status:
            told.seek(0)
            raise Error(told.read().decode(errors="replace").replace("gacc-exec: error: ", ""))


def text_of(tokens: Iterable[int], words: Words | None, prompt: list[int], stop: str | None) -> Iterator[str]:
    """The text of tokens, piece by piece, up to `stop`. Without a tokenizer they are bytes."""
    made: list[int] = []

    def decoded(ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace") if words is None else words.decode(ids)

    begin = len(decoded(prompt))
    given = 0  # letters of the text
    text = ""
    for token in tokens:
        made.append(token)
        text = decoded([*prompt, *made])[begin:]
        if stop and (at := text.find(stop)) >= 0:
            yield text[given:at]
            return
        # Text that may be half a letter, or the beginning of `stop`, is held back.
        whole = len(text.rstrip("\ufffd"))
        held = next((n for n in range(min(len(stop or ""), whole), 0, -1) if text[:whole].endswith(stop[:n])), 0)
        if whole - held > given:
            yield text[given:whole - held]
            given = whole - held
    yield text[given:]


class Asked:
    """A prompt as tokens, the tokens that end its answer, and, at the end, which of them has."""

    def __init__(self, ids: list[int], ends: set[int]):
        self.ids, self.ends = ids, ends
        self.ended: int | None = None

    def until_end(self, tokens: Iterable[int]) -> Iterator[int]:
        for token in tokens:
            if token in self.ends:
                self.ended = token
                return
            yield token


class Model:
    """What a step's model speaks: its tokens, as words where there is a tokenizer."""

    def __init__(self, step: Step, tokenizer: Any, stop: str | None = None):
        shape = step.output_shape or ()
        if len(shape) != 2 or not any(it.dtype == "i32" and it.shape == shape[:1] for it in step.inputs.values()):
            raise Refused(f"the model has no tokens: its output is {list(shape)} a sample, and a text is made of "
                          "logits [tokens, vocabulary]")
        self.context, self.vocabulary = shape
        if tokenizer is None and self.vocabulary > BYTES:
            raise Refused(f"the model has {self.vocabulary:,} tokens, which are no bytes: a tokenizer makes words of "
                          "them (--tokenizer FOLDER|FILE.gguf, in Python tokenizer=)")
        self.words, self.stop = words_by(tokenizer), stop
        self.bytewise = self.vocabulary <= BYTES

    def known(self, ends: Iterable[int]) -> set[int]:
        return {end for end in ends if 0 <= end < self.vocabulary}

    def asked(self, prompt: Any) -> Asked:
        """A prompt, checked: a text to go on with, or messages to answer."""
        if isinstance(prompt, str):
            return Asked(self._checked(self._ids(prompt)), self.known(self.words.stops if self.words else ()))
        if self.words is None:
            raise Refused("a chat needs a tokenizer with a chat template (--tokenizer FOLDER, in Python tokenizer=)")
        check_messages(prompt)
        return Asked(self._checked(self.words.chat(prompt)), self.known(self.words.stops_of(prompt)))

    def _ids(self, prompt: str) -> list[int]:
        if self.words is not None:
            try:
                return self.words.prompt(prompt)
            except Refused as error:
                raise Refused(f"the prompt {error}") from None
        for letter in prompt:
            if (most := max(letter.encode(errors="surrogateescape"))) >= self.vocabulary:
                raise Refused(f"the prompt's {letter!r} has the byte {most}, and the model's tokens are the bytes "
                              f"0 to {self.vocabulary - 1}")
        return list(prompt.encode(errors="surrogateescape"))

    def _checked(self, ids: list[int]) -> list[int]:
        if not ids and self.words is not None:
            raise Refused("the prompt has no tokens: the text begins with something")
        if ids and max(ids) >= self.vocabulary:
            raise Refused(f"the prompt has the token {max(ids)}, and the model {self.vocabulary:,}: the tokenizer "
                          "is of another model")
        return ids

    def text(self, asked: Asked, tokens: Iterable[int]) -> Iterator[str]:
        """The text of the tokens that follow, piece by piece."""
        return text_of(asked.until_end(tokens), self.words, asked.ids, self.stop)


def check_messages(messages: Any) -> None:
    if isinstance(messages, str):
        raise Refused("messages are a list of tables with `role` and `content`, not a text; it is the prompt, or "
                      f'messages=[{{"role": "user", "content": {json.dumps(messages)[:40]}}}]')
    if not are_messages(messages):
        raise Refused(f"a prompt is a text, and messages are a list of tables with `role` and `content`, not "
                      f"{messages!r:.60}")


class Writer:
    """Writes texts with a model, by gacc-exec with these options."""

    def __init__(self, model: Model, artifact: str, count: int, options: list[str]):
        self.model, self.artifact = model, artifact
        self.options = ["--generate", str(count), *options]

    def _written(self, ids: Iterable[int]) -> bytes:
        return bytes(ids) if self.model.bytewise else " ".join(map(str, ids)).encode()

    def _options(self, asked: Asked) -> list[Any]:
        if self.model.bytewise and 0 in asked.ids:
            raise Refused("the prompt has the token 0, which a command line cannot hold")
        one = len(asked.ends) == 1 and not (self.model.bytewise and 0 in asked.ends)  # a line has no byte 0
        return [*self.options, *(["--stop", self._written(asked.ends)] if one else [])]

    def _tokens(self, pieces: Iterator[bytes]) -> Iterator[int]:
        rest = b""
        for piece in pieces:
            if self.model.bytewise:
                yield from piece
                continue
            *numbers, rest = re.split(rb"\s", rest + piece)
            yield from map(int, filter(None, numbers))
        if rest:
            yield int(rest)

    def text(self, asked: Asked) -> Iterator[str]:
        """The text after the prompt, piece by piece."""
        pieces = printed(self.artifact,
                         [*self._options(asked), *(["--prompt", self._written(asked.ids)] if asked.ids else [])])
        try:
            yield from self.model.text(asked, self._tokens(pieces))
        finally:
            pieces.close()

    def texts(self, prompts: Sequence[Asked]) -> Iterator[str]:
        """The text after each prompt, as it would be alone."""
        if self.model.bytewise or len(prompts) < 2:  # a line of a file has no newline in it
            yield from ("".join(self.text(asked)) for asked in prompts)
            return
        with tempfile.NamedTemporaryFile(prefix="gacc-") as file:  # the parameters are read once for all
            file.write(b"".join(self._written(asked.ids) + b"\n" for asked in prompts))
            file.flush()
            rest, waiting = b"", iter(prompts)
            for piece in printed(self.artifact, [*self._options(prompts[0]), "--prompts", file.name]):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield "".join(self.model.text(next(waiting), map(int, line.split())))


def tokens_of(session: Session, ids: Sequence[int], count: int, options: CDrawOptions) -> Iterator[int]:
    """At most so many tokens that follow these, drawn as gacc-exec draws them."""
    text = np.empty(len(ids) + count, np.int32)
    text[:len(ids)] = ids
    for length in range(AT_ONCE, len(ids), AT_ONCE):
        call("session_next_token", session._handle, text.ctypes.data, length, None, None)
    token = ctypes.c_int32()
    for length in range(len(ids), len(text)):
        call("session_next_token", session._handle, text.ctypes.data, length, byref(options), byref(token))
        text[length] = token.value
        yield token.value


def draw_options(seed: int, temperature: float | None = None, top_k: int | None = None,
                 top_p: float | None = None) -> CDrawOptions:
    for name, value, right in (("temperature", temperature, temperature is None or temperature >= 0),
                               ("top_k", top_k, top_k is None or top_k >= 1),
                               ("top_p", top_p, top_p is None or 0 < top_p <= 1), ("seed", seed, seed >= 0)):
        if not right:
            raise Refused(f"{name} is {value}; a temperature and a seed are at least 0, top_k is at least 1, top_p is "
                          "above 0 and at most 1")
    return CDrawOptions(1.0 if temperature is None else temperature, top_k or 0, 1.0 if top_p is None else top_p, seed)


def of_session(session: Session, prompts: Sequence[Any], count: int, tokenizer: Any, stop: str | None,
               options: CDrawOptions) -> list[str]:
    """The text after each prompt, with the session's parameters as they are."""
    if count < 0:
        raise Refused(f"tokens is {count}; it is a number from 0")
    model = Model(session.compiled, tokenizer, stop)
    newline = [ord("\n")]  # what a text of bytes begins with, as gacc-exec has it
    asked = [model.asked(prompt) for prompt in prompts]
    return ["".join(model.text(one, tokens_of(session, one.ids or newline, count, options))) for one in asked]


def unescaped(text: str) -> str:
    """The text of a prompt in which \\n is a newline and \\\\ a backslash."""
    return re.sub(r"\\([n\\])", lambda found: ESCAPES[found[1]], text)


def prompts_of(path: str) -> list[str]:
    """The prompts of a file, a line each; \\n is a newline in one, and \\\\ a backslash."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = [line.removesuffix("\r") for line in file.read().removesuffix("\n").split("\n")]
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: is no UTF-8: {error}") from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if "" in lines:
        raise Refused(f"{path}:{lines.index('') + 1}: is empty; a line is a prompt")
    return [unescaped(line) for line in lines]


def nothing(model: Model, asked: Asked, chat: bool) -> str:
    """Why a text has no letter."""
    if asked.ended is None:
        return "the text has no letter" + (" before --stop" if model.stop else "")
    token = asked.ended
    name = f" `{model.words.tokenizer.id_to_token(token)}`" if isinstance(model.words, Tokenizer) else ""
    said = f"the text is empty: its first token is {token}{name}, which ends it; --temperature 1 --seed N draws others"
    if not chat and isinstance(model.words, Tokenizer) and model.words.has_template():
        said += f", and --chat asks as {model.words.path} was trained, by its chat template"
    return said


class PassOn(argparse.Action):
    """Keeps an option of gacc-exec with its value."""

    def __call__(self, parser: argparse.ArgumentParser, given: argparse.Namespace, value: Any,
                 option: str | None = None) -> None:
        given.options = [*given.options, option, *([] if self.nargs == 0 else [value])]


def add_options_of_gacc_exec(parser: argparse.ArgumentParser) -> None:
    """Lets the parser know them, and which take a value: the program's help shows one behind the name."""
    path, environment = program("gacc-exec")
    try:
        said = subprocess.run([path, "--help"], env=environment, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise without_program(path) from None
    own = {"--generate", "--prompt", "--prompts", "--quiet", "--load", "--stop", "--help", "--version", "--chat"}
    for name, value in re.findall(r"^  (--[a-z-]+)( \S)?", said, re.MULTILINE):
        if name not in own:
            parser.add_argument(name, action=PassOn, nargs=None if value else 0, dest="options",
                                help=argparse.SUPPRESS)


def main() -> None:
    parser = Parser(prog="python -m gacc.generate", description=__doc__.split("\n\n")[0],
                    usage="%(prog)s ARTIFACT TEXT|--prompts FILE [OPTIONS]",
                    epilog="All other options are gacc-exec's: --temperature, --top-k, --seed ...",
                    allow_abbrev=False, meant={"prompt": "TEXT stands behind ARTIFACT, without an option"})
    several = any(word.partition("=")[0] == "--prompts" for word in sys.argv[1:])
    parser.add_argument("artifact", metavar="ARTIFACT", help="what gaccc wrote (step.ptx)")
    if not several:
        parser.add_argument("prompt", metavar="TEXT", help="what the text follows")
    parser.add_argument("--prompts", metavar="FILE", help="in place of TEXT: a prompt a line; prints a line for each, "
                        r"with \n for a newline and \\ for a backslash, as in FILE")
    parser.add_argument("--load", metavar="FOLDER|FILE", help="the parameters")
    parser.add_argument("--tokenizer", metavar="FOLDER|FILE.gguf",
                        help="has tokenizer.json, or a vocabulary; default: the folder of --load")
    parser.add_argument("--tokens", type=int, default=100, metavar="N", help="at most so many (100)")
    parser.add_argument("--stop", metavar="TEXT", help="end before this text")
    parser.add_argument("--chat", action="store_true", help="the prompt is what a user says: the tokenizer's chat "
                        "template writes it, and the assistant answers")
    parser.add_argument("--system", metavar="S", help="with --chat: what the model is told before it")
    parser.add_argument("--quiet", action="store_true", help="say nothing on standard error but what is wrong")
    parser.set_defaults(options=[])
    try:
        add_options_of_gacc_exec(parser)
        given = parser.parse_args()
        if not several and os.path.isfile(given.prompt) and not os.path.exists(given.artifact):
            raise Refused(f"{given.artifact}: there is no such artifact, which stands before the text: python3 -m "
                          f"gacc.generate {given.prompt} {shlex.quote(given.artifact)}")
        for path in filter(None, (given.load, given.tokenizer)):
            expect_there(path, Refused)
        if os.path.isdir(given.artifact):
            raise Refused(f"{given.artifact} is a folder, and ARTIFACT is a compiled step: gaccc {given.artifact} -o "
                          f"step.ptx makes it. python3 -m gacc.chat {given.artifact} needs none")
        tokenizer = given.tokenizer
        if tokenizer is None and given.load is not None and os.path.isfile(os.path.join(given.load, "tokenizer.json")):
            tokenizer = given.load
        if given.system is not None and not given.chat:
            raise Refused("--system is what a chat begins with: it goes with --chat")
        for what, text in ("--system", given.system), ("TEXT", None if several else given.prompt):
            if not given.quiet and (said := note_of_file(what, text)):
                print(said, file=sys.stderr)
        step = open_step(given.artifact)
        model = Model(step, tokenizer, given.stop)
        writer = Writer(model, given.artifact, given.tokens,
                        [*given.options, *([] if given.load is None else ["--load", given.load])])
        if not given.quiet and given.load is not None and not {"--load-adapter", "--checkpoint"} & {*given.options} \
                and (os.path.isdir(given.load) or given.load.endswith(".gguf")) and step.has_adapters:
            print("note: the step has adapters, and none was loaded (--load-adapter FOLDER): this is the base's text",
                  file=sys.stderr)
        told = [] if given.system is None else [{"role": "system", "content": given.system}]

        def asked(prompt: str) -> Asked:
            return model.asked([*told, {"role": "user", "content": prompt}] if given.chat else prompt)

        if several:
            for text in writer.texts([asked(prompt) for prompt in prompts_of(given.prompts)]):
                print(text.replace("\\", r"\\").replace("\n", r"\n"), flush=True)
            return
        one, letters = asked(unescaped(given.prompt)), 0
        for piece in writer.text(one):
            letters += len(piece)
            print(piece, end="", flush=True)
        print()
        if not letters and given.tokens > 0 and not given.quiet:
            print(f"note: {nothing(model, one, given.chat)}", file=sys.stderr)
    except Error as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
