"""Paths that are no files of ours: names of a hub, and endings of other formats."""
from __future__ import annotations

import os
import pathlib
import re
import shlex

from ._library import Error

OTHERS = {".onnx", ".pt", ".pth", ".safetensors", ".gguf", ".toml", ".csv", ".json", ".npz", ".npy", ".py", ".bin"}


def not_downloaded(path: str | bytes | os.PathLike) -> str:
    """What the error of a path that is not there goes on with, where it may be a model's name on a hub; else ''."""
    name = os.fsdecode(path)
    owner, _, model = name.partition("/")
    plain = re.fullmatch(r"[A-Za-z0-9_-][\w.-]*/[A-Za-z0-9_-][\w.-]*", name, re.ASCII)
    if not plain or pathlib.Path(name).suffix.lower() in OTHERS or os.path.exists(owner):
        return ""
    return (f"; nothing is downloaded: `hf download {name} --local-dir {model}` does that, and then it is the folder "
            f"{model}")


def expect_there(path: str | bytes | os.PathLike, kind: type[Error] = Error) -> None:
    """Raises where there is no such file or folder."""
    if not os.path.exists(path):
        raise kind(f"{os.fsdecode(path)}: there is no such file or folder{not_downloaded(path)}")


def is_adapter(folder: str | os.PathLike) -> bool:
    """Returns whether it is the folder of an adapter, as PEFT has it, and of no model."""
    has = [os.path.exists(os.path.join(folder, name)) for name in ("adapter_config.json", "config.json")]
    return has == [True, False]


def note_of_file(what: str, text: str | None) -> str:
    """What is said of a text that is the name of a file; else ''."""
    if text is None or not os.path.isfile(text):
        return ""
    return (f"note: {what} is the text itself, and {text} is a file: \"$(cat {shlex.quote(text)})\" is the text in it")


def expect_artifact(path: str | bytes | os.PathLike) -> None:
    """Raises where an artifact is to be written under the name of another format."""
    name = pathlib.Path(os.fsdecode(path))
    if name.suffix.lower() in OTHERS:
        raise Error(f"{name}: no {name.suffix.lower()[1:]} files are written, but .ptx: {name.with_suffix('.ptx')}",
                    "wrong call")


def is_artifact(path: pathlib.Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(16) == b"// gacc artifact"
    except OSError:  # whoever reads it says why
        return False
