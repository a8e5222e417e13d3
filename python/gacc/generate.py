"""Words from a trained model of tokens.

    python -m gacc.generate step.ptx "ROMEO:" --load FOLDER                      # FOLDER has the tokenizer, too
    python -m gacc.generate step.ptx "ROMEO:" --load w.safetensors --tokenizer FOLDER --tokens 200 --top-k 40
    python -m gacc.generate step.ptx --prompts FILE --load FOLDER                # a prompt a line, a line for each

The tokenizer is a folder's tokenizer.json or the vocabulary of a GGUF, read by the package `tokenizers`. gacc-exec
makes the tokens: it gets every option that is not named here (docs/using-a-model.md), and draws as it does alone. The
text ends after N tokens, before a token that ends a text, or before the text of --stop. In Python:

    run.generate("ROMEO:", tokenizer=FOLDER)
"""
from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from . import Error, Session, Step, call, path_bytes, program
from . import open as open_step
from .tokens import Refused, Tokenizer

BYTES = 256  # a vocabulary of no more is bytes for gacc-exec
SPACES = "clean_up_tokenization_spaces"  # transformers' tokenizers take some out where they decode
ESCAPES = {"n": "\n", "\\": "\\"}


class Given:
    """A tokenizer that the caller has made, of transformers or tokenizers."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        end = getattr(tokenizer, "eos_token_id", None)
        self.stops = {end} if isinstance(end, int) else set()

    def encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        return list(getattr(ids, "ids", ids))

    def decode(self, ids: list[int]) -> str:
        more = {SPACES: False} if hasattr(self.tokenizer, SPACES) else {}
        return self.tokenizer.decode(ids, skip_special_tokens=True, **more)


def words_by(tokenizer: Any) -> Tokenizer | Given | None:
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, (str, bytes, os.PathLike)):
        return Tokenizer(pathlib.Path(os.fsdecode(tokenizer)))
    if hasattr(tokenizer, "encode") and hasattr(tokenizer, "decode"):
        return Given(tokenizer)
    raise Refused(f"the tokenizer is a folder with tokenizer.json, a GGUF, or an object that has encode and decode, "
                  f"not {tokenizer!r:.60}")


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


def text_of(tokens: Iterable[int], words: Tokenizer | Given | None, prompt: list[int],
            stop: str | None) -> Iterator[str]:
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


class Writer:
    """Writes texts with a step, by gacc-exec with these options."""

    def __init__(self, step: Step, artifact: str | os.PathLike, count: int, tokenizer: Any, stop: str | None,
                 options: list[str]):
        shape = step.output_shape or ()
        if len(shape) != 2 or not any(it.dtype == "i32" and it.shape == shape[:1] for it in step.inputs.values()):
            raise Refused(f"the model has no tokens: its output is {list(shape)} a sample, and a text is made of "
                          "logits [tokens, vocabulary]")
        self.vocabulary = shape[1]
        if tokenizer is None and self.vocabulary > BYTES:
            raise Refused(f"the model has {self.vocabulary:,} tokens, which are no bytes: a tokenizer makes words of "
                          "them (--tokenizer FOLDER|FILE.gguf, in Python tokenizer=)")
        self.artifact, self.stop, self.words = artifact, stop, words_by(tokenizer)
        self.options = ["--generate", str(count), *options]
        self.bytewise = self.vocabulary <= BYTES
        self.ends = {end for end in (self.words.stops if self.words else ()) if 0 <= end < self.vocabulary}
        if len(self.ends) == 1 and not (self.bytewise and 0 in self.ends):  # a line has no byte 0
            self.options += ["--stop", self._written([*self.ends])]

    def _written(self, ids: list[int]) -> bytes:
        return bytes(ids) if self.bytewise else " ".join(map(str, ids)).encode()

    def _ids(self, prompt: str) -> list[int]:
        """The tokens of a prompt, checked."""
        if not isinstance(prompt, str):
            raise Refused(f"a prompt is a text, not {prompt!r:.60}")
        if self.words is None:
            for letter in prompt:
                if (most := max(letter.encode(errors="surrogateescape"))) >= self.vocabulary:
                    raise Refused(f"the prompt's {letter!r} has the byte {most}, and the model's tokens are the bytes "
                                  f"0 to {self.vocabulary - 1}")
            ids = list(prompt.encode(errors="surrogateescape"))
        else:
            ids = self.words.encode(prompt)
            if not ids:
                raise Refused("the prompt has no tokens: the text begins with something")
            if max(ids) >= self.vocabulary:
                raise Refused(f"the prompt has the token {max(ids)}, and the model {self.vocabulary:,}: the tokenizer "
                              "is of another model")
        if self.bytewise and 0 in ids:
            raise Refused("the prompt has the token 0, which a command line cannot hold")
        return ids

    def _until_end(self, tokens: Iterable[int]) -> Iterator[int]:
        for token in tokens:
            if token in self.ends:
                return
            yield token

    def _tokens(self, pieces: Iterator[bytes]) -> Iterator[int]:
        rest = b""
        for piece in pieces:
            if self.bytewise:
                yield from piece
                continue
            *numbers, rest = re.split(rb"\s", rest + piece)
            yield from map(int, filter(None, numbers))
        if rest:
            yield int(rest)

    def text(self, prompt: str) -> Iterator[str]:
        """The text after the prompt, piece by piece."""
        ids = self._ids(prompt)
        pieces = printed(self.artifact, [*self.options, *(["--prompt", self._written(ids)] if ids else [])])
        try:
            yield from text_of(self._until_end(self._tokens(pieces)), self.words, ids, self.stop)
        finally:
            pieces.close()

    def texts(self, prompts: Sequence[str]) -> Iterator[str]:
        """The text after each prompt, as it would be alone."""
        known = [self._ids(prompt) for prompt in prompts]
        if self.bytewise or len(prompts) < 2:  # a line of a file has no newline in it
            yield from ("".join(self.text(prompt)) for prompt in prompts)
            return
        with tempfile.NamedTemporaryFile(prefix="gacc-") as file:  # the parameters are read once for all
            file.write(b"".join(self._written(ids) + b"\n" for ids in known))
            file.flush()
            rest, waiting = b"", iter(known)
            for piece in printed(self.artifact, [*self.options, "--prompts", file.name]):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    tokens = self._until_end(map(int, line.split()))
                    yield "".join(text_of(tokens, self.words, next(waiting), self.stop))


def of_session(session: Session, prompt: str | Sequence[str], count: int, tokenizer: Any, stop: str | None,
               options: dict[str, Any]) -> str | list[str]:
    """Generates the text after the prompt, or after each, with the session's parameters as they are."""
    given = [str(word) for name, value in options.items() if value is not None
             for word in (f"--{name.replace('_', '-')}", value)]
    with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
        artifact, parameters = os.path.join(folder, "step.ptx"), os.path.join(folder, "parameters")
        writer = Writer(session.compiled, artifact, count, tokenizer, stop, ["--load", parameters, *given])
        call("step_save", session.compiled._handle, path_bytes(artifact))
        session.save(parameters)
        return "".join(writer.text(prompt)) if isinstance(prompt, str) else list(writer.texts(list(prompt)))


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
    return [re.sub(r"\\([n\\])", lambda found: ESCAPES[found[1]], line) for line in lines]


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
    own = {"--generate", "--prompt", "--prompts", "--quiet", "--load", "--stop", "--help", "--version"}
    for name, value in re.findall(r"^  (--[a-z-]+)( \S)?", said, re.MULTILINE):
        if name not in own:
            parser.add_argument(name, action=PassOn, nargs=None if value else 0, dest="options",
                                help=argparse.SUPPRESS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gacc.generate", description=__doc__.split("\n\n")[0],
                                     usage="%(prog)s ARTIFACT TEXT|--prompts FILE [OPTIONS]",
                                     epilog="All other options are gacc-exec's: --temperature, --top-k, --seed ...",
                                     allow_abbrev=False)
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
    parser.set_defaults(options=[])
    try:
        add_options_of_gacc_exec(parser)
        given = parser.parse_args()
        for path in filter(None, (given.load, given.tokenizer)):
            if not os.path.exists(path):
                raise Refused(f"{path}: there is no such file or folder")
        tokenizer = given.tokenizer
        if tokenizer is None and given.load is not None and os.path.isfile(os.path.join(given.load, "tokenizer.json")):
            tokenizer = given.load
        writer = Writer(open_step(given.artifact), given.artifact, given.tokens, tokenizer, given.stop,
                        [*given.options, *([] if given.load is None else ["--load", given.load])])
        if several:
            for text in writer.texts(prompts_of(given.prompts)):
                print(text.replace("\\", r"\\").replace("\n", r"\n"), flush=True)
            return
        for piece in writer.text(given.prompt):
            print(piece, end="", flush=True)
        print()
    except Error as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
