"""The samples of a data file, as tables of text, messages or prompts, each with its place."""
from __future__ import annotations

import csv
import io
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._paths import is_adapter
from ._tokenizer import Refused, are_messages, parsed

# What others call those who speak.
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
         "bing": "assistant", "bard": "assistant", "model": "assistant", "system": "system", "tool": "tool",
         "function_call": "assistant", "observation": "tool"}
SPEAK = ("system", "user", "assistant", "tool", "developer", "function")  # the roles of `messages`
KEYS = ("text", "prompt", "completion", "messages", "conversations", "instruction", "output")
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


# What a row of a table of texts may be.
COLUMNS = ({"text"}, {"prompt", "completion"}, {"instruction", "output"})


def of_csv(text: str, path: pathlib.Path) -> Iterator[tuple[Any, str]]:
    """Rows as samples. The first one names the columns."""
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True,
                      delimiter="\t" if path.suffix == ".tsv" else ",")
    before = csv.field_size_limit(max(len(text), csv.field_size_limit()))
    try:
        header, line, made = next(rows, []), rows.line_num + 1, []
        for row in rows:
            if row:
                made.append((row, line))
            line = rows.line_num + 1
    except csv.Error as error:
        raise Refused(f"{path}:{rows.line_num}: {error}") from None
    finally:
        csv.field_size_limit(before)
    if not any(form <= set(header) for form in COLUMNS):
        raise Refused(f"{path}: its columns are {', '.join(header)[:200] or 'none'}; those of samples are `text`, "
                      "`prompt` and `completion`, or `instruction` and `output`: name them so, or write it as JSON "
                      "lines (.jsonl); a text is called .txt")
    for row, line in made:
        if len(row) != len(header):
            raise Refused(f"{path}:{line}: has {len(row)} fields, and the first line {len(header)}")
        yield dict(zip(header, row)), f"{path}:{line}"


TEXTS: dict[str, Callable[[str, pathlib.Path], Iterator[tuple[Any, str]]]] = {
    ".jsonl": lines_of, ".json": of_json, ".csv": of_csv, ".tsv": of_csv}
# How files of other kinds begin, what they are, and what makes a text of one.
OTHERS = ((b"\x1f\x8b", "gzip", "gunzip -k FILE unpacks it"), (b"BZh91AY&SY", "bzip2", "bunzip2 -k FILE unpacks it"),
          (b"\xfd7zXZ", "xz", "unxz -k FILE unpacks it"),
          (b"\x28\xb5\x2f\xfd", "Zstandard", "unzstd FILE unpacks it"),
          (b"PK\x03\x04", "a zip file, as .docx is one", "give the text that is in it"),
          (b"%PDF-", "PDF", "pdftotext FILE makes a text of it"),
          (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE makes UTF-8 of it"),
          (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8 FILE makes UTF-8 of it"))


SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".txt")  # of data, in the order in which one is named
NO_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json", "README.txt")


def text_in(path: pathlib.Path) -> str:
    """The text of a file in UTF-8."""
    said = path.read_bytes()
    for begin, kind, remedy in OTHERS:
        if said.startswith(begin):
            raise Refused(f"{path}: is {kind}: {remedy.replace('FILE', str(path))}")
    return io.TextIOWrapper(io.BytesIO(said), encoding="utf-8").read()


def of_folder(folder: pathlib.Path) -> str:
    """What a folder is that stands where a file of data does, and what would be right."""
    if is_adapter(folder):
        return ("is an adapter, and no data. What goes on from one is gacc-exec STEP --data DATA --load MODEL "
                f"--load-adapter {folder}, with the STEP and the DATA that gacc.tune makes")
    if (folder / "config.json").exists():
        return "is a model, of which there is one, before the data"
    if said := of_datasets(folder):
        return said
    for pattern in "*", "*/*":
        files = [each for each in folder.glob(pattern) if each.suffix in SUFFIXES and each.name not in NO_DATA]
        if files:
            files.sort(key=lambda each: (SUFFIXES.index(each.suffix), "train" not in each.name, each))
            return f"is a folder, and data are files, such as {files[0]}"
    return "is a folder, and data are files"


def of_datasets(path: pathlib.Path) -> str:
    """What a file or a folder of the package datasets is, and what makes a file that is read of it; else ''."""
    folder = path if path.is_dir() else path.parent
    arrow = path if path.suffix == ".arrow" else next(iter(sorted(folder.glob("*.arrow"))), None)
    if path.is_dir() and (folder / "dataset_dict.json").exists():
        split = next((f"[{each.name!r}]" for each in sorted(folder.iterdir(), key=lambda at: (at.name != "train", at))
                      if each.is_dir()), "")
        made, to = f"datasets.load_from_disk({str(folder)!r}){split}", folder
    elif arrow is None:
        return ""
    elif (folder / "dataset_info.json").exists() and (folder / "state.json").exists():
        made, to = f"datasets.load_from_disk({str(folder)!r})", folder
    else:
        made, to = f"datasets.Dataset.from_file({str(arrow)!r})", arrow
    return (f"is of the package datasets, whose .arrow files are not read: "
            f"{made}.to_json({str(to.with_suffix('.jsonl'))!r}) writes one that is")


def read(path: pathlib.Path) -> Iterator[tuple[Any, str]]:
    """The samples of a file, and where each stands: of .jsonl a line, of .json a line or an element of its list, of
    .parquet, .csv and .tsv a row; of any other file the whole text."""
    if path.is_dir():
        raise Refused(f"{path}: {of_folder(path)}")
    if path.suffix == ".arrow" and path.exists():
        raise Refused(f"{path}: {of_datasets(path)}")
    try:
        if path.suffix == ".parquet":
            yield from of_parquet(path)
            return
        text = text_in(path)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise Refused(f"{path}: is no UTF-8: {error}") from None
    if path.suffix in TEXTS:
        yield from TEXTS[path.suffix](text, path)
    else:
        yield {"text": text}, str(path)


def kind_of(said: Any) -> str:
    """What JSON calls a value."""
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a text",
             list: "a list", dict: "a table"}
    return names.get(type(said), type(said).__name__)


def expect_values(table: dict[str, Any]) -> None:
    """Refuses a sample whose key is null."""
    if nothing := next((key for key in KEYS if key in table and table[key] is None), None):
        raise Refused(f"`{nothing}` is null, and must be {'a list' if nothing in KEYS[3:5] else 'a text'}")


def content_of(message: dict[str, Any], number: int) -> Any:
    """The text of a message. One in parts, as OpenAI has them, is their texts in lines of their own. Beside
    `tool_calls` it may be null, which some templates write."""
    said = message["content"]
    if isinstance(said, str) or said is None and message.get("tool_calls"):
        return said
    place = f"`content` of message {number}"
    if not isinstance(said, Sequence):
        raise Refused(f"{place} is {kind_of(said)}, and must be a text")
    for part in said:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise Refused(f"{place} has a part of the type {json.dumps(kind)}, and a model of texts reads those of the "
                          'type "text"' if kind != "text" else f"{place} has a part whose `text` is no text")
    return "\n".join(part["text"] for part in said)


def expect_contents(messages: list[dict[str, Any]]) -> None:
    """Refuses messages without a text, which a template has refused."""
    for number, message in enumerate(messages, 1):
        if message["content"] is None:
            raise Refused(f"`content` of message {number} is null beside `tool_calls`, which the chat template does "
                          "not write: `content` must be a text, with the call as the model is to write it")


def tools_of(table: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What a chat may call, as a list or the JSON of one; None where it has nothing."""
    said = table.get("tools")
    if isinstance(said, str) and said.strip():
        try:
            said = json.loads(said)
        except ValueError:
            raise Refused("`tools` is a text that is no JSON, and must be a list of tables") from None
    if not said:
        return None
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise Refused(f"`tools` is {kind_of(said)}, and must be a list of tables")
    return said


def text_of(table: dict[str, Any], key: str, absent: str | None = None) -> str:
    """The text of a key. `absent`: that of a key that is not there, or null."""
    said = table.get(key)
    if said is None and absent is not None:
        return absent
    if key == "prompt" and are_messages(said):
        raise Refused('`prompt` is a list of messages: write {"messages": [...]} with those of `completion` behind it')
    if not isinstance(said, str):
        raise Refused(f"`{key}` is {kind_of(said)}, and must be a text")
    return said


class Unanswered(Refused):
    """A sample without an answer, by which a model would learn to say nothing."""


def answer_of(table: dict[str, Any], key: str) -> str:
    """The text of a key that is learnt."""
    said = text_of(table, key)
    if not said:
        raise Unanswered(f"`{key}` is empty")
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
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer_of(table, "output")}]


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
        roles = {one["role"] for one in messages}
        if "assistant" not in roles and (other := sorted(roles - set(SPEAK))):
            raise Refused(f"`messages` has the role `{other[0]}`, and none is `assistant`, whose turns are learnt; "
                          f"known are {', '.join(SPEAK)}")
        # Without the keys of other rows, which a template would see.
        return [{key: value for key, value in one.items() if value is not None} | {"content": content_of(one, number)}
                for number, one in enumerate(messages, 1)]
    if "conversations" in known:
        messages = of_conversations(table["conversations"])
        if not messages:
            raise Refused("`conversations` is empty")
        return with_system(table, messages)
    if {"instruction", "output"} <= known:
        return with_system(table, of_instruction(table))
    return None
