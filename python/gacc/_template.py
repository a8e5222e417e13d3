"""Chat templates: the text that a model was trained on, of messages. Templates are programs in Jinja; they run in
jinja2's sandbox, or in minijinja, as the packages are there."""
from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from typing import Any

# Marks what a model writes, for programs that look for it; the text is that of a condition that holds.
GENERATION = re.compile(r"(\{%[-+]?)\s*(end)?generation\s*([-+]?%\})")


class Unwritten(Exception):
    """A template's own refusal, or what is wrong with it."""


class NoTemplates(Exception):
    """There is no package that runs templates."""


def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
            sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> None:
    raise Unwritten(message)


def now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


FUNCTIONS = {"raise_exception": refuse, "strftime_now": now}


def by_jinja2(source: str) -> Callable[..., str]:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=["jinja2.ext.loopcontrols"])
    sandbox.filters["tojson"] = to_json
    sandbox.globals.update(FUNCTIONS)
    return sandbox.from_string(source).render


def by_minijinja(source: str) -> Callable[..., str]:
    import minijinja

    sandbox = minijinja.Environment(trim_blocks=True, lstrip_blocks=True)
    sandbox.add_filter("tojson", to_json)
    for name, function in FUNCTIONS.items():
        sandbox.add_global(name, function)
    return lambda **values: sandbox.render_str(source, **values)


def compiled(source: str) -> Callable[..., str]:
    """The template as a function of its variables, which gives the text. Raises Unwritten."""
    source = GENERATION.sub(lambda found: f"{found[1]} {'endif' if found[2] else 'if true'} {found[3]}", source)
    for engine in by_jinja2, by_minijinja:
        try:
            render = engine(source)
        except ImportError:
            continue
        except Exception as error:  # each engine has its own
            raise Unwritten(f"is no template: {error}") from None
        break
    else:
        raise NoTemplates("chats need the package jinja2 or minijinja: pip install jinja2")

    def text(**values: Any) -> str:
        try:
            return render(**values)
        except Exception as error:  # of the template's own, too
            raise Unwritten(str(error).splitlines()[0] if str(error) else repr(error)) from None

    return text
