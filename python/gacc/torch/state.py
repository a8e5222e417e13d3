"""What PyTorch keeps, changes or calls beside the numbers of a forward: what gacc does not carry is refused by name."""
from __future__ import annotations

import collections
import contextlib
import enum
import inspect
import linecache
import os
import random
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.fx

from .._library import Error

LOCK = threading.RLock()  # for as long as something of PyTorch is replaced
MOST_KEPT = 100_000  # values of a module's attributes that are looked at
CONTAINERS = (list, dict, set, collections.deque)
# Files whose lines are not the user's.
FOREIGN = (*(os.path.dirname(it.__file__) for it in (torch, np)), os.path.dirname(__file__), random.__file__, "<")
OWN = {"_parameters", "_buffers", "_modules", "_call_impl"}  # of a module: what the export follows, and replaces
HOOKS = {"_backward_hooks": "register_full_backward_hook", "_backward_pre_hooks": "register_full_backward_pre_hook"}


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Sets attributes, each given as (of what, its name, the value), and puts back what was there."""
    with contextlib.ExitStack() as back:
        for of, name, value in changes:
            back.callback(setattr, of, name, vars(of)[name])  # as it lies there: a classmethod stays one
            setattr(of, name, value)
        yield


def for_this_thread(instead: Any, otherwise: Any) -> Any:
    """Returns a function that is `instead` in this thread, and `otherwise` in all others."""
    this = threading.get_ident()
    return lambda *args, **named: (instead if threading.get_ident() == this else otherwise)(*args, **named)


@contextlib.contextmanager
def renamed(module: torch.nn.Module) -> Iterator[dict[str, str]]:
    """Gives other names to submodules that are called as an attribute of a program of torch.fx is, which exports take
    for it. Yields the names of tensors by those that an export finds; `Kept` puts them back."""
    reserved, before = set(dir(torch.fx.GraphModule)), tensor_names(module)
    for part in list(module.modules()):
        for name in [name for name in part._modules if name in reserved]:
            other = next(each for i in range(2, 99) if not hasattr(part, each := f"{name}_{i}"))
            vars(part)[name] = part._modules[name]
            part._modules = {other if each == name else each: child for each, child in part._modules.items()}
    yield {now: name for now, name in zip(tensor_names(module), before) if now != name}


def tensor_names(module: torch.nn.Module) -> list[str]:
    return [f"{path}.{name}" if path else name for path, part in module.named_modules(remove_duplicate=False)
            for name in (*part._parameters, *part._buffers)]


# --- hooks

def check_hooks(module: torch.nn.Module) -> None:
    """Refuses hooks that change gradients, which gacc makes itself."""
    def refuse(of: str, hook: str) -> None:
        raise Error(f"{of} has a hook of its gradient ({hook}), and gacc makes gradients itself: remove it, and say "
                    "what it does by the tables of the step, such as train.clip_norm, or in the forward")
    for name, p in module.named_parameters(remove_duplicate=False):
        for attribute, hook in (("_backward_hooks", "register_hook"),
                                ("_post_accumulate_grad_hooks", "register_post_accumulate_grad_hook")):
            if getattr(p, attribute, None):
                refuse(f"the parameter `{name}`", hook)
    for name, part in module.named_modules():
        for attribute, hook in HOOKS.items():
            if getattr(part, attribute, None):
                refuse(f"the module `{name}` ({type(part).__name__})" if name else
                       f"the module itself ({type(part).__name__})", hook)
    for attribute, hook in HOOKS.items():
        if getattr(torch.nn.modules.module, "_global" + attribute, None):
            refuse("each module", "register_module_" + hook.removeprefix("register_"))


# --- memory

def first_byte(x: torch.Tensor) -> int:
    """Where its elements begin: an address, or a place in a storage that has none."""
    if x.device.type == "meta":
        return (x.untyped_storage()._cdata << 64) + x.storage_offset() * x.element_size()
    return x.data_ptr()


def past_byte(x: torch.Tensor) -> int:
    last = sum((n - 1) * step for n, step in zip(x.shape, x.stride()))
    return first_byte(x) + (last + 1) * x.element_size()


def elements_of(x: torch.Tensor, begin: int) -> np.ndarray:
    """The bytes at which its elements begin, counted from `begin`."""
    places = np.zeros([1] * x.dim(), np.int64) + (first_byte(x) - begin)
    for axis, (n, step) in enumerate(zip(x.shape, x.stride())):
        places = places + np.arange(n).reshape([-1 if i == axis else 1 for i in range(x.dim())]) * (
            step * x.element_size())
    return places.reshape(-1)


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Returns whether two tensors share an element of memory."""
    if x.numel() == 0 or y.numel() == 0 or first_byte(x) >= past_byte(y) or first_byte(y) >= past_byte(x):
        return False
    if x.is_contiguous() and y.is_contiguous():
        return True
    begin = min(first_byte(x), first_byte(y))
    return bool(np.intersect1d(elements_of(x, begin), elements_of(y, begin)).size)


def check_memory(tensors: Mapping[str, torch.Tensor], owners: Mapping[str, str], moving: set[str]) -> None:
    """Refuses two names of one memory, of which one is in `moving`: what the training changes. One parameter of two
    names is tied, and has one owner."""
    for name, owner in owners.items():
        if name != owner and owner in moving and not isinstance(tensors[owner], torch.nn.Parameter):
            raise Error(f"`{owner}` and `{name}` are one running statistic, which two norms move: give each its own, "
                        "or call one norm twice")
    laid = sorted((first_byte(x), name, x) for name, x in tensors.items()
                  if owners.get(name, name) == name and x.numel() and x.layout is torch.strided)
    for i, (_, name, x) in enumerate(laid):
        if name in moving and any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride())):
            raise Error(f"`{name}` is {list(x.shape)}, and several of its elements are one number in memory, as "
                        "expand() makes them: give it numbers of its own by clone(), or expand it in the forward")
        for begin, other, y in laid[i + 1:]:
            if begin >= past_byte(x):
                break
            if {name, other} & moving and overlap(x, y):
                raise Error(f"`{name}` and `{other}` are two tensors on one memory, so that what is learnt of one "
                            "changes the other: make them one parameter, as in b.weight = a.weight, take the slice or "
                            "the transpose in the forward, or give one of them numbers of its own by clone()")


# --- attributes

class Kept:
    """What the modules keep in Python beside their parameters, as it is now, to be put back by `restore`."""

    def __init__(self, module: torch.nn.Module):
        self.parts = dict(module.named_modules())
        self.objects: dict[int, tuple[Any, Any]] = {}  # by id: a container or the attributes of an object, and a copy
        self.tensors: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}  # and their versions and numbers
        self.contents: dict[tuple[str, str], list[str]] = {}  # by the names of a module and of its attribute: leaves()
        for name, part in self.parts.items():
            self.keep(vars(part))
            self.objects[id(vars(part))][1].pop("_call_impl", None)
            self.contents |= {(name, attribute): leaves(value) for attribute, value in vars(part).items()
                              if attribute not in OWN}

    def keep(self, value: Any) -> None:
        waiting = [value]
        while waiting and len(self.objects) < MOST_KEPT:
            each = waiting.pop()
            if isinstance(each, torch.Tensor):
                plain = type(each) is torch.Tensor and each.device.type == "cpu" and not each.requires_grad
                if plain and id(each) not in self.tensors:
                    self.tensors[id(each)] = each, each._version, each.clone()
            elif id(each) in self.objects or isinstance(each, (torch.nn.Module, type, types.ModuleType)):
                continue
            elif isinstance(each, CONTAINERS):
                plain = next(kind for kind in CONTAINERS if isinstance(each, kind))
                self.objects[id(each)] = each, plain(each)
                waiting += inner(each)
            elif isinstance(each, tuple):
                waiting += each
            elif isinstance(getattr(each, "__dict__", None), dict) and not callable(each):
                waiting.append(vars(each))

    def restore(self) -> None:
        for each, before in self.objects.values():
            if isinstance(each, (list, collections.deque)):
                if len(each) != len(before) or any(a is not b for a, b in zip(each, before)):
                    each.clear()
                    each.extend(before)
            elif isinstance(each, set):
                if each != before:
                    each.clear()
                    each.update(before)
            elif list(each) != list(before) or any(each[key] is not value for key, value in before.items()):
                dict.clear(each)
                dict.update(each, before)
        for x, version, numbers in self.tensors.values():
            if x._version != version:
                x.copy_(numbers)


def inner(container: Any) -> list:
    return [*container.keys(), *container.values()] if isinstance(container, dict) else list(container)


def leaves(value: Any) -> list:
    """The value as texts that are the same exactly where it is: of tensors only that they are there."""
    out: list[str] = []
    waiting, seen = [value], set()
    while waiting and len(out) < MOST_KEPT:
        each = waiting.pop()
        if each is None or isinstance(each, (bool, int, float, complex, str, bytes, enum.Enum)):
            out.append(repr(each))
        elif isinstance(each, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            out.append("a number that depends on the batch")
        elif isinstance(each, (torch.Tensor, torch.nn.Module, type, types.ModuleType)):
            out.append(type(each).__name__ if not isinstance(each, torch.Tensor) else "a tensor")
        elif isinstance(each, np.ndarray):
            out.append(f"{each.dtype} {each.shape} {hash(each.tobytes()) if each.dtype != object else ''}")
        elif isinstance(each, np.generic):
            out.append(repr(each))
        elif isinstance(each, random.Random):
            out.append(f"{hash(each.getstate())}")
        elif isinstance(each, (np.random.Generator, np.random.RandomState)):
            out.append(repr((each.bit_generator if isinstance(each, np.random.Generator) else each._bit_generator)
                            .state))
        elif isinstance(each, (*CONTAINERS, tuple)):
            if id(each) not in seen:
                seen.add(id(each))
                out.append(f"{type(each).__name__} of {len(each)}")
                waiting += sorted(map(repr, each)) if isinstance(each, set) else reversed(inner(each))
        elif isinstance(getattr(each, "__dict__", None), dict) and not callable(each):
            if id(each) not in seen:
                seen.add(id(each))
                out.append(type(each).__name__)
                waiting.append(vars(each))
        else:
            out.append(type(each).__name__)
    return out


class Line(NamedTuple):
    """A line of the user's as an error shows it, its file and its number; "" where none is known."""

    text: str
    file: str | None
    number: int | None


def line_of(part: torch.nn.Module, attribute: str) -> Line:
    """The first line of the class that writes or calls the attribute, outside of its __init__."""
    for kind in type(part).__mro__:
        if kind.__module__.startswith("torch.nn.modules"):
            break
        for method in vars(kind).values():
            if not inspect.isfunction(method) or method.__name__ == "__init__":
                continue
            file, lines = method.__code__.co_filename, [n for _, _, n in method.__code__.co_lines() if n]
            for n in range(min(lines), max(lines) + 1):
                line = linecache.getline(file, n).strip()
                if re.search(rf"\.{re.escape(attribute)}\b\s*(\[.*\]\s*)?([-+*/%@&|^]?=[^=]|\.\w+\()", line):
                    return Line(f"\n  {file}:{n}: {line}", file, n)
    return Line("", None, None)


class Draws:
    """The global random numbers of Python and numpy, of which a program would have the same in each step."""

    def __init__(self) -> None:
        self.random, self.numpy = random.getstate(), np.random.get_state()

    def drawn(self) -> str | None:
        """Returns what has been drawn from, by whatever thread."""
        now = np.random.get_state()
        return "random" if random.getstate() != self.random else "numpy.random" if any(
            not np.array_equal(a, b) for a, b in zip(now, self.numpy)) else None

    def line(self, run: Callable[[], object]) -> Line | None:
        """Runs it again, and returns the line that draws, where it is this thread's; then puts back what it drew."""
        found, count = self.traced(run)
        if not any(count):
            return None  # another thread has drawn, the first time
        for _ in range(2 if threading.active_count() > 1 else 0):
            if (found, count) != self.traced(run):
                return None  # other threads draw on any line, and as much as they come to
        random.setstate(self.random)
        np.random.set_state(self.numpy)
        return found

    @staticmethod
    def traced(run: Callable[[], object]) -> tuple[Line, list[int]]:
        """Returns the line behind which the random numbers are others than before, and how many were drawn, modulo the
        624 words of a state."""
        def position() -> tuple:
            return random.getstate()[1][-1], np.random.get_state()[2]
        start = begin = position()
        last, found = ("", 0), []

        def traced(frame: types.FrameType, event: str, _: Any) -> Any:
            nonlocal begin, last
            if frame.f_code.co_filename.startswith(FOREIGN):
                return None
            if not found and (now := position()) != begin:
                begin = now
                if last[1]:  # else another thread's, before the first line
                    found.append(last)
            last = frame.f_code.co_filename, frame.f_lineno
            return traced
        before = sys.gettrace()
        sys.settrace(traced)
        try:
            run()
        finally:
            sys.settrace(before)
        count = [(now - then) % 624 for now, then in zip(position(), start)]
        if not found:
            return Line("", None, None), count
        file, line = found[0]
        return Line(f"\n  {file}:{line}: {linecache.getline(file, line).strip()}", file, line), count
