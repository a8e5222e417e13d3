"""A model that is a dict, as the text of a model file."""
from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

import numpy as np


DTYPES = {"float32": "f32", "int32": "i32", "float16": "f16", "bfloat16": "bf16"}  # what others call ours


def dtype_of(it: object) -> str | None:
    """The name of a type of numbers, of numpy's, PyTorch's or Python's; None of what is none."""
    if isinstance(it, type) and issubclass(it, (np.generic, int, float)):
        return it.__name__
    if isinstance(it, np.dtype):
        return it.name
    is_torch = (type(it).__module__, type(it).__name__) == ("torch", "dtype")
    return str(it).removeprefix("torch.") if is_torch else None


def value(it: object, place: str) -> str:
    """TOML of a value, on one line. `place`: the key that has it, for errors."""
    if (name := dtype_of(it)) is not None:
        if name not in DTYPES:
            raise TypeError(f"`{place}` is {it!r:.40}; types are called by name here, as \"f32\" and \"i32\"")
        it = DTYPES[name]
    if hasattr(it, "item") and getattr(it, "ndim", 0) == 0:  # a number of numpy's
        it = it.item()
    if hasattr(it, "tolist"):
        it = it.tolist()
    if isinstance(it, bool):
        return "true" if it else "false"
    if isinstance(it, int):
        return str(it)
    if isinstance(it, float):
        return repr(it) if math.isfinite(it) else str(it)  # nan, inf and -inf are TOML's, too
    if isinstance(it, str):
        return json.dumps(it, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(it, Mapping):
        return "{ " + ", ".join(f"{key(k)} = {value(v, f'{place}.{k}')}" for k, v in it.items()) + " }"
    if isinstance(it, (list, tuple)):
        return "[" + ", ".join(value(each, f"{place}[{i}]") for i, each in enumerate(it)) + "]"
    more = ": leave the key out" if it is None else ""
    raise TypeError(f"`{place}` is {it!r:.40}, of the type {type(it).__name__}; a model holds numbers, text, true and "
                    f"false, lists and dicts{more}")


def key(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the keys of a model are text, not {type(name).__name__}")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else value(name, name)


def is_tables(it: object) -> bool:
    return isinstance(it, (list, tuple)) and len(it) > 0 and all(isinstance(each, Mapping) for each in it)


def settings(given: Mapping) -> dict[str, object]:
    """Keys of a model file by their dotted paths. A dict for a table says its keys, not the whole of it; those of
    `inputs` and `layers` have tables by name."""
    out: dict[str, object] = {}
    for name, it in given.items():
        depth = (2 if str(name).partition(".")[0] in ("inputs", "layers") else 1) - str(name).count(".")
        if isinstance(it, Mapping) and depth > 0 and it:
            out |= settings({f"{name}.{key(k)}": v for k, v in it.items()})
        else:
            out[name] = it
    return out


def document(model: Mapping) -> str:
    """A table or a list of tables gets headers, so that the line of an error says something."""
    plain = {k: v for k, v in model.items() if not isinstance(v, Mapping) and not is_tables(v)}
    lines = [f"{key(k)} = {value(v, k)}" for k, v in plain.items()]
    for name, it in model.items():
        if name in plain:
            continue
        head = f"[{key(name)}]" if isinstance(it, Mapping) else f"[[{key(name)}]]"
        for i, table in enumerate([it] if isinstance(it, Mapping) else it):
            at = name if isinstance(it, Mapping) else f"{name}[{i}]"
            lines += ["", head] + [f"{key(k)} = {value(v, f'{at}.{k}')}" for k, v in table.items()]
    return "\n".join(lines) + "\n"
