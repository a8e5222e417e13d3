"""The samples of a data file, as tables of text, messages or prompts, each with its place."""
from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from ._tokenizer import Refused, are_messages, parsed

# What others call those who speak.
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
         "bing": "assistant", "bard": "assistant", "model": "assistant", "system": "system", "tool": "tool",
         "function_call": "assistant", "observation": "tool"}
FORMS = ("a sample is a table with `text`, with `prompt` and `completion`, with `messages`, with `conversations`, or "
         "with `instruction` and `output`")


def lines_of(text: str, path: pathlib.Path) -> Iterator[tuple[Any, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield parsed(line, f"{path}:{number}"), f"{path}:{number}"


def of_json(text: str, path: pathlib.Path) -> Iterator[tuple[Any, str]]:
    """The samples of a list, or of lines as .jsonl has them."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    if first.lstrip().startswith("{"):
        try:
            json.loads(first)
        except (ValueError, RecursionError):  # a table over several lines
            pass
        else:
            yield from lines_of(text, path)
            return
    found = parsed(text, str(path))
    if not isinstance(found, list):
        keys = f" with the keys {', '.join(list(found)[:5])}" if isinstance(found, dict) else ""
        raise Refused(f"{path}: is JSON{keys}, and no list of samples: {FORMS}")
    for number, sample in enumerate(found, 1):
        yield sample, f"{path}: sample {number}"


def of_parquet(path: pathlib.Path) -> Iterator[tuple[Any, str]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise Refused(f"{path}: Parquet needs the package pyarrow: pip install pyarrow") from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield row, f"{path}: sample {number}"
    except pyarrow.ArrowException as error:
        raise Refused(f"{path}: {str(error).splitlines()[0]}") from None


TEXTS: dict[str, Callable[[str, pathlib.Path], Iterator[tuple[Any, str]]]] = {".jsonl": lines_of, ".json": of_json}


def read(path: pathlib.Path) -> Iterator[tuple[Any, str]]:
    """The samples of a file, and where each stands: of .jsonl a line, of .json a line or an element of its list, of
    .parquet a row; of any other file the whole text."""
    try:
        if path.suffix == ".parquet":
            yield from of_parquet(path)
            return
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: is no UTF-8: {error}") from None
    if path.suffix in TEXTS:
        yield from TEXTS[path.suffix](text, path)
    else:
        yield {"text": text}, str(path)


def text_of(table: dict[str, Any], key: str, absent: str | None = None) -> str:
    """The text of a key. `absent`: that of a key that is not there, or null."""
    said = table.get(key)
    if said is None and absent is not None:
        return absent
    if not isinstance(said, str):
        raise Refused(f"`{key}` is no string")
    return said


def of_conversations(turns: Any) -> list[dict[str, Any]]:
    """Turns as ShareGPT has them, `from` and `value`, as messages."""
    messages = []
    for turn in turns if isinstance(turns, list) else [None]:
        if isinstance(turn, dict) and {"role", "content"} <= turn.keys():
            messages.append(turn)
        elif not isinstance(turn, dict) or not isinstance(turn.get("from"), str) or \
                not isinstance(turn.get("value"), str):
            raise Refused("`conversations` is no list of tables with `from` and `value`")
        elif turn["from"].lower() not in ROLES:
            raise Refused(f"`conversations` has a turn from `{turn['from']}`; known are {', '.join(ROLES)}")
        else:
            messages.append({"role": ROLES[turn["from"].lower()], "content": turn["value"]})
    return messages


def of_instruction(table: dict[str, Any]) -> list[dict[str, Any]]:
    """An instruction, as Alpaca has it, as messages."""
    more = text_of(table, "input", "")
    question = text_of(table, "instruction") + (f"\n\n{more}" if more else "")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": text_of(table, "output")}]


def with_system(table: dict[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with what the table says to the model before them."""
    said = text_of(table, "system", "")
    return [{"role": "system", "content": said}, *messages] if said else messages


def messages_of(table: Any) -> list[dict[str, Any]] | None:
    """The messages of a chat, in any form; None of what is none."""
    if not isinstance(table, dict):
        raise Refused(f"is no table: {FORMS}")
    known = {key for key, value in table.items() if value is not None}  # a row of a table has every key
    if "messages" in known:
        messages = table["messages"]
        if not are_messages(messages):
            raise Refused("`messages` is no list of tables with `role` and `content`")
        # Without the keys of other rows, which a template would see.
        return [{key: value for key, value in one.items() if value is not None or key == "content"}
                for one in messages]
    if "conversations" in known:
        messages = of_conversations(table["conversations"])
        if not messages:
            raise Refused("`conversations` is empty")
        return with_system(table, messages)
    if {"instruction", "output"} <= known:
        return with_system(table, of_instruction(table))
    return None
