"""Words from a trained model of tokens.

    python -m gacc.generate step.ptx "ROMEO:" --load FOLDER                      # FOLDER has the tokenizer, too
    python -m gacc.generate step.ptx "ROMEO:" --load w.safetensors --tokenizer FOLDER --tokens 200 --top-k 40

The tokenizer is a folder's tokenizer.json or the vocabulary of a GGUF, read by the package `tokenizers`. gacc-exec
makes the tokens: it gets every option that is not named here (docs/using-a-model.md), and draws as it does alone. The
text ends after N tokens, before the token that ends a text, or before the text of --stop. In Python:

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
from collections.abc import Iterator
from typing import Any

from . import Error, Session, Step, call, path_bytes, program
from . import open as open_step
from .tokens import Refused, Tokenizer

BYTES = 256  # a vocabulary of no more is bytes for gacc-exec


def tokens_of(step: Step, artifact: str | os.PathLike, prompt: list[int], count: int, end: int | None,
              options: list[str]) -> Iterator[int]:
    """The tokens that gacc-exec makes, one by one; ends it when nobody wants more."""
    bytewise = bool(step.output_shape) and step.output_shape[-1] <= BYTES

    def written(tokens: list[int]) -> bytes:
        return bytes(tokens) if bytewise else " ".join(map(str, tokens)).encode()

    if bytewise and 0 in prompt:
        raise Refused("the prompt has the token 0, which a command line cannot hold")
    path, environment = program("gacc-exec")
    command = [path, os.fspath(artifact), "--generate", str(count), "--quiet", *options]
    if prompt:
        command += ["--prompt", written(prompt)]
    if end:  # a stop of the byte 0 cannot be written
        command += ["--stop", written([end])]
    with tempfile.TemporaryFile() as told:
        try:
            child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=told)
        except FileNotFoundError:
            raise Error(f"generating needs the program {path}, and it is not on the PATH") from None
        try:
            rest = b""
            while piece := os.read(child.stdout.fileno(), 1 << 16):
                if bytewise:
                    yield from piece
                    continue
                *words, rest = re.split(rb"\s", rest + piece)
                yield from map(int, filter(None, words))
            if rest:
                yield int(rest)
        except BaseException:  # also of a generator that is closed
            child.kill()
            raise
        finally:
            child.stdout.close()
            status = child.wait()
        if status:
            told.seek(0)
            raise Error(told.read().decode(errors="replace").replace("gacc-exec: error: ", ""))


def words_of(tokens: Iterator[int], tokenizer: Tokenizer | None, prompt: list[int], stop: str | None) -> Iterator[str]:
    """The text of tokens, piece by piece, up to `stop`. Without a tokenizer they are bytes."""
    made: list[int] = []

    def decoded(ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace") if tokenizer is None else tokenizer.tokenizer.decode(ids)

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


def text_of(step: Step, artifact: str | os.PathLike, prompt: str, count: int, tokenizer: str | os.PathLike | None,
            stop: str | None, options: list[str]) -> Iterator[str]:
    """Generates the text after the prompt, piece by piece."""
    vocabulary = step.output_shape[-1] if step.output_shape else 0
    if tokenizer is None and vocabulary > BYTES:
        raise Refused(f"the model has {vocabulary:,} tokens, which are no bytes: a tokenizer makes words of them")
    words = None if tokenizer is None else Tokenizer(pathlib.Path(os.fsdecode(tokenizer)))
    ids = list(prompt.encode()) if words is None else words.encode(prompt)
    if words is not None and not ids:
        raise Refused("the prompt has no tokens: the text begins with something")
    if max(ids, default=0) >= max(vocabulary, 1):
        raise Refused(f"the prompt has the token {max(ids)}, and the model {vocabulary:,}: the tokenizer is of another "
                      "model")
    tokens = tokens_of(step, artifact, ids, count, None if words is None else words.end, options)
    return words_of(tokens, words, ids, stop)


def of_session(session: Session, prompt: str, count: int, tokenizer: str | os.PathLike | None, stop: str | None,
               options: dict[str, Any]) -> str:
    """Generates the text after the prompt with the session's parameters as they are."""
    given = [str(word) for name, value in options.items() if value is not None
             for word in (f"--{name.replace('_', '-')}", value)]
    with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
        artifact, parameters = os.path.join(folder, "step.ptx"), os.path.join(folder, "parameters")
        call("step_save", session.compiled._handle, path_bytes(artifact))
        session.save(parameters)
        return "".join(text_of(session.compiled, artifact, prompt, count, tokenizer, stop,
                               ["--load", parameters, *given]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gacc.generate", description=__doc__.split("\n\n")[0],
                                     epilog="All other options are gacc-exec's: --temperature, --top-k, --seed ...",
                                     allow_abbrev=False)
    parser.add_argument("artifact", metavar="ARTIFACT", help="what gaccc wrote (step.ptx)")
    parser.add_argument("prompt", metavar="TEXT", help="what the text follows")
    parser.add_argument("--load", metavar="FOLDER|FILE", help="the parameters")
    parser.add_argument("--tokenizer", metavar="FOLDER|FILE.gguf",
                        help="has tokenizer.json, or a vocabulary; default: the folder of --load")
    parser.add_argument("--tokens", type=int, default=100, metavar="N", help="at most so many (100)")
    parser.add_argument("--stop", metavar="TEXT", help="end before this text")
    given, options = parser.parse_known_args()
    if given.load is not None:
        options += ["--load", given.load]
    tokenizer = given.tokenizer
    if tokenizer is None and given.load is not None and os.path.isfile(os.path.join(given.load, "tokenizer.json")):
        tokenizer = given.load
    try:
        for piece in text_of(open_step(given.artifact), given.artifact, given.prompt, given.tokens, tokenizer,
                             given.stop, options):
            print(piece, end="", flush=True)
        print()
    except (Refused, Error) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
