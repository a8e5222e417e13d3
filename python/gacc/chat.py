"""A conversation with a model, by its own chat template.

    python -m gacc.chat FOLDER                                     # a published model's folder, or a GGUF
    python -m gacc.chat FOLDER ADAPTER --system "Be brief." --temperature 0.7 --seed 1

Lines of standard input are what the user says; in one \\n is a newline. /clear forgets all of it, /exit or the end of
the input (Ctrl-D) ends the conversation, and Ctrl-C an answer. The program that answers is compiled the first time, and
kept in $XDG_CACHE_HOME/gacc/chat, else ~/.cache/gacc/chat. The weights are read once. Of what was said before nothing
is computed again. Without --temperature and the like the folder's generation_config.json says how tokens are drawn; the
most likely one is taken where it says nothing.
"""
from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import Error, Session, Step, __version__, compile
from . import open as open_step
from ._library import CDrawOptions
from ._arguments import Parser
from ._paths import expect_there, is_adapter, note_of_file
from ._tokenizer import Refused, Tokenizer, Words, numbers_of, read_json
from .generate import Asked, Model, draw_options, tokens_of, unescaped
from .tokens import check_context

ENDS = ("/exit", "/quit", "/bye")
DRAWN = {"temperature": float, "top_p": float, "top_k": int}  # keys of generation_config.json


def libraries() -> list[tuple[str, int, int]]:
    """The libraries of gacc that this process has, and their versions by size and time."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    paths = {pathlib.Path(line.rpartition(" ")[2]) for line in maps}
    folders = {path.parent for path in paths if path.name.startswith("libgacc")}
    files = {str(file): file.stat() for folder in folders for file in folder.glob("libgacc*.so*")}
    return sorted((name, info.st_size, info.st_mtime_ns) for name, info in files.items())


def cached(model: pathlib.Path, settings: Mapping[str, Any], lora: int, context: int | None) -> Step:
    """The step of a published model, from the cache where it was compiled before."""
    config = model / "config.json" if model.is_dir() else model
    try:
        info = config.stat()
        state = f"{config.resolve()} {info.st_size} {info.st_mtime_ns}"
        said = config.read_bytes() if model.is_dir() else state.encode()
    except OSError as error:
        raise Refused(f"{config}: {error.strerror}") from None
    words = [__version__, libraries(), sorted(settings.items()), lora, context]
    key = hashlib.sha256(json.dumps(words).encode() + said).hexdigest()[:32]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = pathlib.Path(home, "gacc", "chat", f"{key}.ptx")
    if path.exists():
        try:
            return open_step(path)
        except Error:  # damaged: it is compiled again
            pass
    print(f"compiling {model} (once; {path} keeps it)", file=sys.stderr, flush=True)
    step = compile(model, lora=lora, context=context, set=settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        step.save(path)
    except (OSError, Error) as error:
        print(f"note: {path} cannot be written, and the next start compiles again: {error}", file=sys.stderr)
    return step


def opened(model: pathlib.Path, adapter: pathlib.Path | None, context: int | None, device: str) -> Session:
    """A session of a published model with its weights, and with those of an adapter's folder."""
    # Training is not what it is for: with all of it computed again its memory is least.
    settings: dict[str, Any] = {"train.micro_batch": 1, "train.accumulate": 1, "recompute.policy": "all"}
    rank = 1  # adapters that are zero leave the base frozen, which needs no memory for training
    if adapter is not None:
        place = adapter / "adapter_config.json"
        said = read_json(place)
        rank = next(iter(numbers_of(said, "r", place, several=False)), 8)
        alpha = said.get("lora_alpha")
        if isinstance(alpha, (int, float)) and alpha != 2 * rank:
            settings["lora.alpha"] = alpha
    session = Session(cached(model, settings, rank, context), device)
    session.load(model)
    if adapter is not None:
        session.load(adapter)
    return session


def base_of(adapter: pathlib.Path) -> str:
    """The model that an adapter's folder names."""
    base = read_json(adapter / "adapter_config.json").get("base_model_name_or_path")
    return shlex.quote(base) if isinstance(base, str) and base else "FOLDER"


def adapter_folder(model: pathlib.Path, adapter: pathlib.Path | None) -> pathlib.Path | None:
    """The folder of an adapter, of which a file of weights may be given. Refuses what is no model, or no adapter."""
    if is_adapter(model):
        base = base_of(model) if adapter is None else adapter
        raise Refused(f"{model}: is an adapter, and its model stands before it: python3 -m gacc.chat {base} {model}")
    if adapter is None:
        inside = next(iter(sorted(model.glob("*/adapter_config.json"))), None)
        if inside is not None and not any((model / name).exists() for name in ("config.json", "tokenizer.json")):
            raise Refused(f"{model}: is no model, but has an adapter of one: python3 -m gacc.chat "
                          f"{base_of(inside.parent)} {inside.parent}")
        return None
    folder = adapter if adapter.is_dir() else adapter.parent
    if not (folder / "adapter_config.json").exists():
        kind = " but a model's config.json" if (folder / "config.json").exists() else ""
        inside = next(iter(sorted(adapter.glob("*/adapter_config.json"))), None)
        if inside is not None:
            raise Refused(f"{adapter}: is no adapter, but has one: python3 -m gacc.chat {model} {inside.parent}")
        raise Refused(f"{adapter}: is no adapter: {'it' if folder == adapter else folder} has no adapter_config.json"
                      f"{kind}. ADAPTER is a folder as gacc-exec --save-adapter or PEFT writes it")
    return folder


def drawn_by(model: pathlib.Path, **given: float | int | None) -> dict[str, float | int | None]:
    """How tokens are drawn: as given, else as generation_config.json says."""
    if any(value is not None for value in given.values()):
        return given
    place = model / "generation_config.json"
    said = read_json(place) if model.is_dir() else {}
    if not said.get("do_sample"):
        return {**given, "temperature": 0.0}
    found = {key: said[key] for key, kind in DRAWN.items() if isinstance(said.get(key), (int, kind))}
    return {**given, **{key: value for key, value in found.items() if key != "top_k" or value > 0}}


class Chat:
    """What was said, and the model that answers."""

    def __init__(self, session: Session, model: Model, options: CDrawOptions, system: str | None = None):
        if not isinstance(model.words, Words):
            raise Refused("a chat needs a tokenizer")
        self.session, self.model, self.options = session, model, options
        self.told = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = list(self.told)
        self.forgot = 0  # messages, before the last question
        self.full = False  # the last answer ended where the window does

    def clear(self) -> None:
        self.messages = list(self.told)

    def _asked(self, room: int) -> Asked:
        """The question's tokens, without what was said first where they are more than there is room for."""
        self.forgot = 0
        asked = self.model.asked(self.messages)
        while len(asked.ids) + room > self.model.context:
            begin = len(self.told)
            if len(self.messages) <= begin + 2:
                raise Refused(f"what was said has {len(asked.ids):,} tokens, and the window {self.model.context:,}: "
                              "--context makes it longer")
            del self.messages[begin:begin + 2]
            self.forgot += 2
            asked = self.model.asked(self.messages)
        return asked

    def answer(self, said: str, most: int | None = None) -> Iterator[str]:
        """What the assistant answers, piece by piece: at most so many tokens, or as the window has room for."""
        before = list(self.messages)
        self.messages.append({"role": "user", "content": said})
        try:
            asked = self._asked(min(most or self.model.context, self.model.context) // 8 + 1)
        except BaseException:  # what was refused was not said
            self.messages, self.forgot = before, 0
            raise
        room = self.model.context - len(asked.ids)
        tokens = tokens_of(self.session, asked.ids, room if most is None else min(room, most), self.options)
        pieces: list[str] = []
        try:
            for piece in self.model.text(asked, tokens):
                pieces.append(piece)
                yield piece
        finally:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
        self.full = asked.ended is None and most is None


def converse(chat: Chat, lines: Iterator[str], most: int | None) -> None:
    for line in lines:
        said = unescaped(line.rstrip("\n"))
        if not said.strip():
            continue
        if said.strip() in ENDS:
            return
        if said.strip() == "/clear":
            chat.clear()
            continue
        letters = 0
        try:
            for piece in chat.answer(said, most):
                letters += len(piece)
                print(piece, end="", flush=True)
            print(flush=True)
            if not letters:
                print("note: the answer is empty: its first token ends it", file=sys.stderr)
            if chat.full:
                print("note: the answer ends where the window does; --context makes it longer", file=sys.stderr)
        except KeyboardInterrupt:
            print(flush=True)
        except Refused as error:
            print(f"error: {error}", file=sys.stderr)
        if chat.forgot:
            print(f"note: the first {chat.forgot} messages are forgotten: the window has {chat.model.context:,} "
                  "tokens (--context)", file=sys.stderr)


def typed() -> Iterator[str]:
    """The lines of a terminal, or of what stands in for one."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    try:
        import readline  # noqa: F401  (input then has the keys of an editor)
    except ImportError:
        pass
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def main() -> None:
    said = "what is said are lines of standard input, as echo Hello | python3 -m gacc.chat FOLDER"
    parser = Parser(prog="python -m gacc.chat", description=__doc__.split("\n\n")[0],
                    epilog="In a line \\n is a newline; /clear forgets; /exit or Ctrl-D ends.",
                    meant={"prompt": said, "message": said, "load_adapter": "ADAPTER stands behind the model"})
    parser.add_argument("model", metavar="FOLDER|FILE.gguf", help="a published model, with its tokenizer")
    parser.add_argument("adapter", metavar="ADAPTER", nargs="?", help="a folder as gacc-exec --save-adapter or PEFT "
                        "writes it")
    parser.add_argument("--system", metavar="S", help="what the model is told before the conversation")
    parser.add_argument("--temperature", type=float, metavar="X", help="divides the logits; 0: the most likely token")
    parser.add_argument("--top-k", type=int, metavar="N", help="draw among the N most likely tokens")
    parser.add_argument("--top-p", type=float, metavar="X",
                        help="draw among the fewest tokens whose probabilities make X")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random numbers")
    parser.add_argument("--tokens", type=int, metavar="N", help="of an answer at most; default: as the window has room")
    parser.add_argument("--context", type=int, metavar="T",
                        help="the window in tokens; default: the smaller of 1024 and the model's positions")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or emulate")
    given = parser.parse_args()
    model, adapter = pathlib.Path(given.model), None if given.adapter is None else pathlib.Path(given.adapter)
    try:
        expect_there(model, Refused)
        if model.suffix == ".ptx":
            raise Refused(f"{model} is an artifact, and a chat takes the model's folder, or its GGUF: python3 -m "
                          f"gacc.generate {model} TEXT --load FOLDER --chat answers once")
        if adapter is not None and " " in given.adapter and not adapter.exists():
            raise Refused(f"{adapter}: there is no such ADAPTER, which is what stands behind the model. What is "
                          f"said to it are lines of standard input: echo {shlex.quote(given.adapter)} | "
                          f"python3 -m gacc.chat {model}")
        if adapter is not None:
            expect_there(adapter, Refused)
        if given.tokens is not None and given.tokens < 1:
            raise Refused(f"--tokens {given.tokens}: an answer has at least one")
        if said := note_of_file("--system", given.system):
            print(said, file=sys.stderr)
        how = drawn_by(model, temperature=given.temperature, top_k=given.top_k, top_p=given.top_p)
        chat = start(model, adapter, given.context, given.device, given.system, how, given.seed)
        if sys.stdin.isatty():
            print(f"{model.name}, a window of {chat.model.context:,} tokens. /clear forgets, /exit ends",
                  file=sys.stderr)
        converse(chat, typed(), given.tokens)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    except (Error, ValueError) as error:
        sys.exit(f"error: {error}")


def start(model: pathlib.Path, adapter: pathlib.Path | None, context: int | None, device: str, system: str | None,
          how: Mapping[str, Any], seed: int | None) -> Chat:
    """Opens the model for a chat. What is wrong with the tokenizer or the options comes before any work."""
    adapter = adapter_folder(model, adapter)
    words = Tokenizer(model)
    if context is not None:
        check_context(words, context)
    draw_options(seed or 0, **how)
    told: Sequence[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    words.write([*told, {"role": "user", "content": "?"}], begin=True)
    session = opened(model, adapter, context, device)
    options = draw_options(session.compiled.seed if seed is None else seed, **how)
    return Chat(session, Model(session.compiled, words), options, system)


if __name__ == "__main__":
    main()
