"""Checks the arguments of a public call by the types that its signature states."""
from __future__ import annotations

import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

WORDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "PathLike": "a path",
         "Mapping": "a dict", "Iterable": "an iterable", "Callable": "a function", "NoneType": "None",
         "Step": "a Step, which gacc.compile(model) or gacc.open(artifact) gives"}

OWN = {"loss": "cross_entropy", "optimizer": "adamw"}  # arguments that name something of gacc's, and such a name


def _kinds(hint: Any) -> list[Any]:
    """The classes that a type is a union of, without what is in their brackets."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [kind for each in typing.get_args(hint) for kind in _kinds(each)]
    return [origin or hint]


def _fits(value: Any, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, numbers.Real)
    name = getattr(kind, "__name__", "")
    if name == "Iterable":  # also by numbers from 0, as PyTorch's data sets
        return not isinstance(value, (str, bytes)) and (hasattr(value, "__iter__") or hasattr(value, "__getitem__"))
    return kind is Any or isinstance(value, kind) or (name, type(value)) in (("bool", int), ("PathLike", bytes))


def check(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises TypeError for the first of the arguments, by name, that is of another type."""
    call = function.__qualname__.removesuffix(".__init__")
    for name, hint in typing.get_type_hints(function).items():
        kinds = _kinds(hint)
        if int in kinds and isinstance(given.get(name), numbers.Integral) and not -2**63 <= given[name] < 2**63:
            raise OverflowError(f"{call}(): {name} is {given[name]}, which has no place in 64 bits")
        if name in given and not any(_fits(given[name], kind) for kind in kinds):
            words = [WORDS.get(kind.__name__, f"a {kind.__name__}") for kind in kinds]
            raise TypeError(f"{call}(): {name} is {given[name]!r:.60}, and takes "
                            f"{', '.join(words[:-1])}{' or ' if words[:-1] else ''}{words[-1]}"
                            + (f'; gacc has its own, by name, such as "{OWN[name]}"' if name in OWN else ""))
