"""A model that is a dict, as the text of a model file."""
from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping


def value(it: object) -> str:
    """TOML of a value, on one line."""
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
        return "{ " + ", ".join(f"{key(k)} = {value(v)}" for k, v in it.items()) + " }"
    if isinstance(it, (list, tuple)):
        return "[" + ", ".join(map(value, it)) + "]"
    raise TypeError(f"a model holds numbers, text, true and false, lists and dicts, not {type(it).__name__}")


def key(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the keys of a model are text, not {type(name).__name__}")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else value(name)


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
    lines = [f"{key(k)} = {value(v)}" for k, v in plain.items()]
    for name, it in model.items():
        if name in plain:
            continue
        head = f"[{key(name)}]" if isinstance(it, Mapping) else f"[[{key(name)}]]"
        for table in [it] if isinstance(it, Mapping) else it:
            lines += ["", head] + [f"{key(k)} = {value(v)}" for k, v in table.items()]
    return "\n".join(lines) + "\n"
