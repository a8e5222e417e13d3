"""A PyTorch module as a model: its forward, exported by torch.export, becomes a text of the IR (docs/ir.md).

What an operation becomes is a row of OPERATIONS. The gradients, casts, accumulation, recompute and memory are gacc's.

Shapes. A value of the IR has the batch B in front, and PyTorch may have it anywhere, as in [T, B, C] or [B * heads, T].
So a Tensor here has its axes as PyTorch sees them, each a product of extents, and lies in memory with B first and the
other extents in the same order. Views and axes of 1 cost nothing then. What `expand` repeats is not there in memory
until somebody needs it.
"""
from __future__ import annotations

import contextlib
import copy
import inspect
import io
import itertools
import json
import linecache
import logging
import math
import operator
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from ._library import Error

B = "B"  # the batch, among extents
EMPTY = "it takes no element of an axis, and no tensor of gacc's is empty"
MOST_POWER = 1024  # of an exponent that is a number
LEAST = -3e38  # stands for -inf, which no text of the IR can say
KEEP_TRUTH = {"reshape", "permute", "slice", "broadcast", "concat", "mul", "maximum", "select"}  # give 0, 1 of such
aten = torch.ops.aten


class Unsupported(Exception):
    """An operation that cannot be said; where it stands is added."""


class Tensor:
    """A value of the graph.

    axes      for each axis of PyTorch's its extents, as pairs (extent, whether it is there in memory)
    shape     of the operand in the IR: the extents that are there, B first; any reshape of them will do
    operand   its text in the IR: "%x", "@w"
    constant  its numbers, where they are known: of PyTorch's shape, but for what is repeated
    """

    def __init__(self, axes: list, dtype: str, operand: str = "", shape: list | None = None, constant=None):
        self.axes, self.dtype, self.operand, self.constant = axes, dtype, operand, constant
        self.shape = in_memory(axes) if shape is None else shape
        self.permuted: tuple[Tensor, list[int]] | None = None  # of what it is a permutation
        self.buffer = ""  # the parameter or running statistic that it is

    @property
    def rank(self) -> int:
        return len(self.axes)

    def extent(self, axis: int) -> int:
        """The axis' extent, which must not depend on the batch."""
        if any(n == B for n, _ in self.axes[axis]):
            raise Unsupported("it works along the batch, or on an axis that is one with it; gacc's samples are "
                              "independent, and their number is known only at the launch")
        return math.prod(n for n, _ in self.axes[axis])

    def batched(self) -> bool:
        return any(n == B for axis in self.axes for n, _ in axis)

    def repeated(self) -> bool:
        return any(not there for axis in self.axes for _, there in axis)


def merged(axis: list) -> list:
    """The extents of an axis with neighbours multiplied, as far as both are there or both are not."""
    out: list = []
    for n, there in axis:
        if n == 1:
            continue
        if out and n != B and out[-1][0] != B and out[-1][1] == there:
            out[-1] = (out[-1][0] * n, there)
        else:
            out.append((n, there))
    return out


def in_memory(axes: list) -> list:
    there = [n for axis in axes for n, real in axis if real]
    return [B] * (B in there) + [n for n in there if n != B]


def whole_extents(axes: list) -> list[int]:
    """One extent for each axis, without the batch and axes of 1."""
    all_of = [math.prod(n for n, _ in axis if n != B) for axis in axes]
    return [n for n in all_of if n != 1]


def axes_of(shape: list) -> list:
    return [[] if n == 1 else [(n, True)] for n in shape]


def extents(sizes: Any) -> list[tuple[int, bool]]:
    """Each of PyTorch's sizes as (number, whether it is that many batches)."""
    out = []
    for size in sizes:
        if isinstance(size, int):
            out.append((size, False))
            continue
        expression = size.node.expr
        symbols = list(expression.free_symbols)
        number = expression / symbols[0] if len(symbols) == 1 else None
        if any(str(symbol).startswith("u") for symbol in symbols):
            raise Unsupported("its result is as large as the data make it; in place of a mask that is known, give the "
                              "numbers of its elements, as mask.nonzero() has them")
        if number is None or number.free_symbols or int(number) != number:
            raise Unsupported(f"a size is {expression}, which is no multiple of the batch")
        out.append((int(number), True))
    return out


def literal(number: float | int | bool, dtype: str) -> str:
    if dtype == "i32":
        return str(int(number))
    number = float(number)
    if math.isnan(number):
        raise Unsupported("it uses NaN")
    number = max(min(number, -LEAST), LEAST)
    text = repr(number)
    return text if any(c in text for c in ".e") else text + ".0"


def attribute(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(attribute, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else literal(value, "i32" if isinstance(value, int) else "f32")


def quoted(sigil: str, name: str) -> str:
    return sigil + (name if re.fullmatch(r"[A-Za-z0-9_.$/-]+", name) else json.dumps(name))


def type_text(dtype: str, shape: list) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


class Buffers:
    """What both regions share: parameters, running statistics, and constants that a kernel reads."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.taken = taken  # names of the module's state_dict()
        if seldom := sorted({"seed.low", "seed.high", "samples.low", "samples.high"} & set(taken)):
            raise Error(f"the module has `{seldom[0]}`, and gacc keeps a number of dropout under that name: give the "
                        "submodule another one")
        # By name. The seed is there in every model.
        self.lines = {f"seed.{word}": f"state @seed.{word} : i32[] given" for word in ("low", "high")}
        self.values: dict[str, torch.Tensor] = {}
        self.constants: dict[tuple, str] = {}
        self.ranges: dict[str, int] = {}  # of inputs of numbers: the rows of the table that they choose of

    def parameter(self, name: str, value: torch.Tensor, frozen: bool) -> str:
        if name not in self.lines:
            self.lines[name] = (f"param {quoted('@', name)} : {type_text('f32', list(value.shape))}"
                                + " frozen" * frozen)
            self.values[name] = value
        return quoted("@", name)

    def statistic(self, name: str, value: torch.Tensor) -> str:
        if name not in self.lines:
            at, kind = quoted("@", name), type_text("f32", list(value.shape))
            self.lines[name] = f"state {at} : {kind} statistic"
            self.values[name] = value
        return quoted("@", name)

    def change(self, name: str) -> str:
        """The buffer in which a window moves a running statistic."""
        at, kind = quoted("@", name + ".change"), type_text("f32", list(self.values[name].shape))
        self.lines[name + ".change"] = f"accum {at} : {kind} change({quoted('@', name)}) ordered"
        return at

    def constant(self, value: torch.Tensor) -> str:
        value = value.detach().to(torch.float32).clamp(LEAST, -LEAST).contiguous()
        key = (tuple(value.shape), value.numpy().tobytes())
        if key not in self.constants:
            free = (f"constants.{i}" for i in itertools.count(len(self.constants)))
            self.constants[key] = next(n for n in free if n not in self.lines and n not in self.taken)
        return self.parameter(self.constants[key], value, frozen=True)

    def random(self) -> list[str]:
        """The words that dropout draws by."""
        for name in ("samples.low", "samples.high"):
            self.lines[name] = f"state @{name} : i32[]"
        return ["@seed.low", "@seed.high", "@samples.low", "@samples.high"]


class Region:
    """The ops of one region, and the values of the graph that they are made of."""

    def __init__(self, buffers: Buffers):
        self.buffers = buffers
        self.lines: list[str] = []
        self.used: set[str] = set()
        self.hint = ""  # what values are named after
        self.made: dict[tuple, str] = {}
        self.numbers: dict[str, str] = {}  # values that are elements of an input, and of which one
        self.reshaped: dict[str, tuple[str, list]] = {}  # what a value is a reshape of, and that one's shape
        # Of the operation that is made: its result's sizes and type.
        self.sizes: list[tuple[int, bool]] = []
        self.dtype = "f32"
        self.boolean = False  # whether PyTorch's is torch.bool
        self.truths: set[str] = set()  # values of whole numbers that are known to be 0 or 1
        self.streams = 0
        self.sliced: dict[str, tuple] = {}  # what a value is a slice of: operand, axis, begin, size, all

    # --- text

    def fresh(self, name: str) -> str:
        base, count = name, 1
        while name in self.used:
            count += 1
            name = f"{base}.{count}"
        self.used.add(name)
        return quoted("%", name)

    def emit(self, op: str, operands: list[str], *types: tuple[str, list], **attributes: Any) -> Any:
        """The names of the results: one, or a list of several."""
        given = "".join(f"{', ' * (i > 0)}{key}" + ("" if value is True else f" = {attribute(value)}")
                        for i, (key, value) in enumerate((k, v) for k, v in attributes.items() if v is not False))
        key = (op, tuple(operands), given, str(types))
        if key in self.made:
            return self.made[key]
        names = [self.fresh(self.hint) for _ in types]
        self.lines.append((", ".join(names) + " = " if names else "") + f"{op} {', '.join(operands)}"
                          + (" : " + ", ".join(type_text(*each) for each in types) if types else "")
                          + (f" {{{given}}}" if given else ""))
        out = names[0] if len(names) == 1 else names
        if names:
            self.made[key] = out
        if op in ("reshape", "permute", "slice") and operands[0] in self.numbers:
            self.numbers[names[0]] = self.numbers[operands[0]]
        if op in ("equal", "not_equal", "greater") or names and types[0][0] == "i32" and (
                op in KEEP_TRUTH and all(x in self.truths or x in ("0", "1") for x in operands[op == "select":])):
            self.truths.add(names[0])
        return out

    def read(self, x: Tensor) -> str:
        """The operand; a constant becomes a number or a frozen parameter."""
        if x.constant is None:
            return x.operand
        value = x.constant
        if value.numel() == 1:
            x.shape = []
            return literal(value.reshape(-1)[0].item(), x.dtype)
        shape = in_memory(x.axes)
        operand = self.buffers.constant(value.reshape(shape))
        if x.dtype == "i32":
            operand = self.emit("cast", [operand], ("i32", shape), to="i32")
        x.operand, x.shape, x.constant = operand, shape, None
        return operand

    def shaped(self, x: Tensor, shape: list) -> str:
        operand = self.read(x)
        if operand[0] not in "%@" or x.shape == shape:
            return operand
        before, its_shape = self.reshaped.get(operand, (operand, x.shape))
        if its_shape == shape:
            return before
        sizes = [-1 if n == B else n for n in shape]
        out = self.emit("reshape", [before], (x.dtype, shape), shape=sizes)
        self.reshaped[out] = (before, its_shape)
        return out

    def stream(self) -> int:
        """The number of the next stream of random numbers."""
        self.streams += 1
        return self.streams

    # --- shapes

    def real(self, x: Tensor) -> Tensor:
        """The same with all that is repeated there in memory."""
        return self.expanded(x, [[(n, True) for n, _ in axis] for axis in x.axes]) if x.repeated() else x

    def expanded(self, x: Tensor, axes: list) -> Tensor:
        """Repeats along the extents that are there in `axes` and not in x, whose extents are otherwise the same."""
        flat = [pair for axis in x.axes for pair in axis]
        wanted = [pair for axis in axes for pair in axis]
        dtype = x.dtype
        samples = [(n, there, want) for (n, there), (_, want) in zip(flat, wanted) if n != B and want]
        has = [n for n, there, _ in samples if there]
        lacks = [n for n, there, _ in samples if not there]
        had_batch = (B, True) in flat
        batch = [B] * had_batch
        operand, shape = self.shaped(x, batch + has), batch + has
        if lacks:
            if operand[0] in "%@":
                row = self.shaped(x, batch + has + [1])
                shape = batch + has + [math.prod(lacks)]
            else:
                row, shape = operand, lacks
            operand = self.emit("broadcast", [row], (dtype, shape), shape=[-1 if n == B else n for n in shape])
            y = Tensor([], dtype, operand, shape)
            operand, shape = self.shaped(y, batch + has + lacks), batch + has + lacks
            order = [i for i, (_, there, _) in enumerate(samples) if there]
            order += [i for i, (_, there, _) in enumerate(samples) if not there]
            axes_now = [order.index(i) for i in range(len(samples))]
            if axes_now != sorted(axes_now):
                shape = batch + [n for n, _, _ in samples]
                operand = self.emit("permute", [operand], (dtype, shape), axes=axes_now)
        if (B, True) in wanted and not had_batch:
            shape = [B, *shape]
            operand = self.emit("broadcast", [operand], (dtype, shape), shape=[-1, *shape[1:]])
        return Tensor(axes, dtype, operand, shape)

    def aligned(self, tensors: list[Tensor]) -> list[Tensor]:
        """The same with as many axes, all of the same extents, repeated where one has 1."""
        rank = max(x.rank for x in tensors)
        columns = []
        for i in range(rank):
            columns.append([x.axes[i - rank + x.rank] if i - rank + x.rank >= 0 else [] for x in tensors])
        out: list[list] = [[] for _ in tensors]
        for column in columns:
            for to, axis in zip(out, refined(column)):
                to.append(axis)
        return [self.with_axes(x, axes) for x, axes in zip(tensors, out)]

    @staticmethod
    def with_axes(x: Tensor, axes: list) -> Tensor:
        y = Tensor(axes, x.dtype, x.operand, x.shape, x.constant)
        y.permuted = x.permuted
        return y

    def view(self, x: Tensor, sizes: list[tuple[int, bool]]) -> Tensor:
        axes = split(merged([pair for axis in x.axes for pair in axis]), sizes)
        if axes is None and x.repeated():
            return self.view(self.real(x), sizes)
        if axes is None:
            raise Unsupported("it takes the batch apart, or puts other samples together")
        return self.with_axes(x, axes)

    def permute(self, x: Tensor, order: list[int]) -> Tensor:
        axes = [x.axes[i] for i in order]
        flat = [(i, j) for i, axis in enumerate(x.axes) for j, (n, there) in enumerate(axis) if there and n != B]
        moved = [flat.index((i, j)) for i in order for j, (n, there) in enumerate(x.axes[i]) if there and n != B]
        shape = in_memory(x.axes)
        y = Tensor(axes, x.dtype, constant=x.constant)
        if moved == sorted(moved) or x.constant is not None:
            if x.constant is not None and moved != sorted(moved):
                y.constant = x.constant.reshape(shape).permute(moved)
            y.operand, y.shape = x.operand, x.shape
            return y
        source, by = x, moved
        if x.permuted is not None:
            before, earlier = x.permuted
            if len(earlier) == len(moved) and in_memory(x.axes) == x.shape:
                source, by = before, [earlier[i] for i in moved]
        if by == sorted(by):
            y.operand, y.shape = source.operand, source.shape
            return y
        batch = [B] * (B in shape)
        given = [0] * len(by)  # of the source, in its order
        for i, axis in enumerate(by):
            given[axis] = y.shape[len(batch) + i]
        y.operand = self.emit("permute", [self.shaped(source, batch + given)], (x.dtype, y.shape), axes=by)
        y.permuted = (source, by)
        return y

    def last(self, x: Tensor, axes: list[int]) -> tuple[Tensor, list[int]]:
        """x with these axes behind the others, and the order that undoes it."""
        order = [i for i in range(x.rank) if i not in axes] + axes
        return self.permute(x, order), [order.index(i) for i in range(x.rank)]

    def plain(self, x: Tensor) -> list:
        """The shape with each of PyTorch's axes as one extent: what ops of images take."""
        for i, axis in enumerate(x.axes):
            if any(n == B for n, _ in axis) and (i > 0 or len(axis) > 1):
                raise Unsupported("the batch is not its first axis alone")
        return [B if any(n == B for n, _ in axis) else math.prod(n for n, _ in axis) for axis in x.axes]

    def outermost(self, x: Tensor) -> tuple[list, int]:
        """The shape with the last axis as one extent, also where it is 1."""
        n = x.extent(-1)
        return in_memory(x.axes[:-1]) + [n], n

    # --- ops

    def each(self, op: str, *given: Any, dtype: str = "f32", takes: str | None = None, **attributes: Any) -> Tensor:
        """A pointwise op of tensors and numbers, which are broadcast. Its operands become `takes` (its result)."""
        takes = takes or dtype
        known = [x for x in given if isinstance(x, Tensor)]
        together = iter(self.aligned([self.light(self.cast(x, takes)) for x in known]))
        operands = [next(together) if isinstance(x, Tensor) else x for x in given]
        return self.joint(op, operands, dtype, takes, attributes)

    @staticmethod
    def light(x: Tensor) -> Tensor:
        """A constant of one number as that number, repeated."""
        value = x.constant
        if value is None or value.numel() < 2 or (value != value.reshape(-1)[0]).any():
            return x
        axes = [[(n, False) for n, _ in axis] for axis in x.axes]
        return Tensor(axes, x.dtype, constant=value.reshape(-1)[0])

    def joint(self, op: str, operands: list, dtype: str, takes: str, attributes: dict) -> Tensor:
        tensors = [x for x in operands if isinstance(x, Tensor)]
        axes = [[(n, any(t.axes[i][j][1] for t in tensors)) for j, (n, _) in enumerate(axis)]
                for i, axis in enumerate(tensors[0].axes)]
        flat = sorted(((n != B), i, j) for i, axis in enumerate(axes) for j, (n, there) in enumerate(axis) if there)
        present = [[t.axes[i][j][1] for t in tensors] for _, i, j in flat]
        sizes = [axes[i][j][0] for _, i, j in flat]
        domain: list = []  # extents, with who has them
        for n, who in zip(sizes, present):
            if domain and n != B and domain[-1][0] != B and domain[-1][1] == who:
                domain[-1] = (domain[-1][0] * n, who)
            else:
                domain.append((n, who))
        shape = [n for n, _ in domain]
        texts = [[who[k] for _, who in domain] for k in range(len(tensors))]
        if shape and not any(all(has) for has in texts):
            tensors[0] = self.expanded(tensors[0], axes)
            texts[0] = [True] * len(shape)
        out, k = [], 0
        for x in operands:
            if not isinstance(x, Tensor):
                out.append(literal(x, takes))
                continue
            t, has = tensors[k], texts[k]
            k += 1
            if not any(has):
                out.append(self.shaped(t, []))
            elif all(has):
                out.append(self.shaped(t, shape))
            elif can_index(has, shape):
                small = [n if here else 1 for n, here in zip(shape, has)]
                out.append(self.shaped(t, small[has.index(True):]))
            else:
                out.append(self.shaped(self.expanded(t, axes), shape))
        result = Tensor(axes, dtype, "", shape)
        if shape == [] and all(each[0] not in "%@" for each in out):
            raise Unsupported("it computes with numbers alone")
        result.operand = self.emit(op, out, (dtype, shape), **attributes)
        return result

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        if x.dtype == dtype:
            return x
        if x.constant is not None:
            return Tensor(x.axes, dtype, constant=x.constant.to(torch.float32 if dtype == "f32" else torch.int32))
        return Tensor(x.axes, dtype, self.emit("cast", [x.operand], (dtype, x.shape), to=dtype), x.shape)

    def select(self, condition: Tensor, yes: Any, no: Any, dtype: str) -> Tensor:
        parts = [condition, *(self.light(self.cast(x, dtype)) for x in (yes, no) if isinstance(x, Tensor))]
        together = iter(self.aligned(parts))
        operands = [next(together), *(next(together) if isinstance(x, Tensor) else x for x in (yes, no))]
        return self.joint("select", operands, dtype, dtype, {})

    def rows(self, op: str, x: Tensor, dims: list[int], keep: bool, dtype: str = "f32") -> Tensor:
        """A reduction over axes: of rows, once they are the last."""
        dims = sorted(d % x.rank for d in dims) if dims else list(range(x.rank))
        for d in dims:
            x.extent(d)
        x = self.cast(x, "f32")
        times = math.prod(n for d in dims for n, there in x.axes[d] if not there)
        count = math.prod(n for d in dims for n, there in x.axes[d] if there)
        kept = [[] if i in dims else axis for i, axis in enumerate(x.axes)]
        y, _ = self.last(x, dims)
        lead = in_memory(kept)
        operand = self.shaped(y, lead + [count])
        if operand[0] not in "%@":
            raise Unsupported("it sums a constant")
        out = Tensor(kept, dtype, self.emit(op, [operand], (dtype, lead + [1])), lead + [1])
        if op == "row_sum" and times > 1:
            out = self.each("mul", out, float(times))
        if not keep:
            out = self.with_axes(out, [axis for i, axis in enumerate(kept) if i not in dims])
        return out

    def along(self, op: str, x: Tensor, dim: int) -> Tensor:
        """An op over one axis which keeps the shape."""
        x = self.real(x)
        dim %= x.rank
        y, back = self.last(x, [dim])
        shape, _ = self.outermost(y)
        z = Tensor(y.axes, "f32", self.emit(op, [self.shaped(y, shape)], ("f32", shape)), shape)
        return self.permute(z, back)

    def matrix(self, x: Tensor, w: Tensor, tb: bool) -> Tensor:
        """x @ w, w a matrix [in, out] without the batch; [out, in] where tb."""
        x = self.real(x)
        shape, _ = self.outermost(x)
        if len(shape) == 1:
            shape = [1, *shape]
        out = w.extent(0 if tb else 1)
        operand = self.shaped(self.real(w), [w.extent(0), w.extent(1)])
        y = [*shape[:-1], out]
        return Tensor([*x.axes[:-1], [(out, True)] if out > 1 else []], "f32",
                      self.emit("matmul", [self.shaped(x, shape), operand], ("f32", y), tb=tb), y)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """a [.., M, K] @ b [.., K, N], of as many axes."""
        a, b = self.cast(a, "f32"), self.cast(b, "f32")
        leading = self.aligned([self.with_axes(x, x.axes[:-2]) for x in (a, b)])
        a, b = (self.with_axes(x, lead.axes + x.axes[-2:]) for x, lead in zip((a, b), leading))
        swap = [*range(a.rank - 2), a.rank - 1, a.rank - 2]
        if not any(there for axis in b.axes[:-2] for _, there in axis):
            y = self.matrix(a, self.with_axes(b, b.axes[-2:]), False)
            return self.with_axes(y, a.axes[:-1] + y.axes[-1:]) if not a.repeated() else y
        if not any(there for axis in a.axes[:-2] for _, there in axis):
            y = self.matrix(self.permute(b, swap), self.with_axes(a, a.axes[-2:]), True)
            return self.permute(y, swap)
        a, b = self.real(a), self.real(b)
        lead = in_memory(a.axes[:-2])
        m, k, n = a.extent(-2), a.extent(-1), b.extent(-1)
        # A transposed factor is read as it lies.
        flags, operands = {}, []
        for flag, x, rows, columns in (("ta", a, m, k), ("tb", b, k, n)):
            turned = x.permuted is not None and self.turned_last(x, swap)
            if turned:
                x, flags[flag] = self.permute(x, swap), True
                rows, columns = columns, rows
            operands.append(self.shaped(x, lead + [rows, columns]))
        shape = lead + [m, n]
        axes = a.axes[:-1] + [[(n, True)] if n > 1 else []]
        return Tensor(axes, "f32", self.emit("batch_matmul", operands, ("f32", shape), **flags), shape)

    def turned_last(self, x: Tensor, swap: list[int]) -> bool:
        """Whether the transposed one is there already, or nearer to what x was made of."""
        before, by = x.permuted
        if in_memory(x.axes) != x.shape:
            return False
        flat = [(i, j) for i, axis in enumerate(x.axes) for j, (n, there) in enumerate(axis) if there and n != B]
        back = [flat.index((i, j)) for i in swap for j, (n, there) in enumerate(x.axes[i]) if there and n != B]
        return len(back) == len(by) and [by[i] for i in back] == sorted(by)

    def concat(self, tensors: list[Tensor], dim: int) -> Tensor:
        tensors = [x for x in tensors if not (x.rank == 1 and x.axes[0] == [(0, True)])]
        if len(tensors) == 1:
            return tensors[0]
        dim %= tensors[0].rank
        dtype = "f32" if any(x.dtype == "f32" for x in tensors) else tensors[0].dtype
        batched = any(x.batched() for x in tensors)
        shapes, operands = [], []
        for x in tensors:
            x = self.cast(x, dtype)
            whole = [[(n, True) for n, _ in axis] for axis in x.axes]
            if x.constant is not None and x.constant.numel() == 1 or x.repeated():
                x = self.expanded(x, whole)
            if batched and not x.batched():
                raise Unsupported("it joins what has the batch and what has not")
            lead, tail = whole_extents(x.axes[:dim]), whole_extents(x.axes[dim + 1:])
            shape = [B] * batched + lead + [x.extent(dim)] + tail
            shapes.append(shape)
            operands.append(self.shaped(x, shape))
            if operands[-1][0] not in "%@":
                operands[-1] = self.emit("broadcast", [operands[-1]], (dtype, shape),
                                         shape=[-1 if n == B else n for n in shape])
        at = len(whole_extents(tensors[0].axes[:dim]))
        shape = list(shapes[0])
        place = at + batched
        shape[place] = sum(each[place] for each in shapes)
        axes = [[(n, True) for n, _ in axis] for axis in tensors[0].axes]
        axes[dim] = [(shape[place], True)]
        pieces = [self.sliced.get(operand) for operand in operands]
        if all(pieces) and len({piece[:2] for piece in pieces}) == 1 and pieces[0][1] == at:
            ends = [piece[2] + piece[3] for piece in pieces]
            if [piece[2] for piece in pieces] == [0, *ends[:-1]] and ends[-1] == pieces[0][4] == shape[place]:
                return Tensor(axes, dtype, pieces[0][0], shape)  # the slices of it side by side again
        return Tensor(axes, dtype, self.emit("concat", operands, (dtype, shape), axis=at), shape)

    def slice(self, x: Tensor, dim: int, begin: int, size: int) -> Tensor:
        dim %= x.rank
        all_of = x.extent(dim)
        if size == all_of:
            return x
        if size < 1:
            raise Unsupported(EMPTY)
        axes = list(x.axes)
        axes[dim] = [(size, True)] if size > 1 else []
        if x.constant is not None:
            sizes = [1 if any(not there for _, there in axis) else math.prod(n for n, _ in axis) for axis in x.axes]
            if sizes[dim] == all_of:
                return Tensor(axes, x.dtype, constant=x.constant.reshape(sizes).narrow(dim, begin, size))
        if all(not there for _, there in x.axes[dim]):
            axes[dim] = [(size, False)] if size > 1 else []
            return self.with_axes(x, axes)
        x = self.real(x)
        lead, tail = whole_extents(x.axes[:dim]), whole_extents(x.axes[dim + 1:])
        batch = [B] * x.batched()
        operand = self.shaped(x, batch + lead + [all_of] + tail)
        shape = batch + lead + [size] + tail
        out = self.emit("slice", [operand], (x.dtype, shape), axis=len(lead), **{"from": begin}, size=size)
        self.sliced[out] = (operand, len(lead), begin, size, all_of)
        return Tensor(axes, x.dtype, out, shape)

    def take(self, x: Tensor, dim: int, indices: list[int]) -> Tensor:
        """The elements of these numbers along an axis: slices, or by a matrix of zeros and ones where they are many."""
        dim %= x.rank
        count = x.extent(dim)
        runs: list[list[int]] = []
        for i in indices:
            if runs and runs[-1][0] + runs[-1][1] == i:
                runs[-1][1] += 1
            else:
                runs.append([i, 1])
        if not runs:
            raise Unsupported(EMPTY)
        if len(runs) == 1:
            return self.slice(x, dim, *runs[0])
        if len(runs) <= 8 or x.dtype != "f32":
            return self.concat([self.slice(x, dim, *run) for run in runs], dim)
        chosen = torch.zeros(len(indices), count)
        chosen[torch.arange(len(indices)), torch.tensor(indices)] = 1
        return self.by_matrix(x, dim, chosen)

    def by_matrix(self, x: Tensor, dim: int, matrix: torch.Tensor) -> Tensor:
        """x with its axis replaced by matrix [out, in] @ it."""
        y, back = self.last(x, [dim % x.rank])
        return self.permute(self.matrix(y, known(matrix), True), back)


def can_index(has: list[bool], shape: list) -> bool:
    """Whether a kernel can index an operand that has these extents of a domain (docs/ir.md, R9)."""
    first, last = has.index(True), len(has) - 1 - has[::-1].index(True)
    if not all(has[first:last + 1]):
        return False
    trailing = len(has) - 1 - last
    return trailing <= 1 or B not in shape[first:last + 1]


def refined(axes: list) -> list:
    """The extents of one axis of several tensors, cut so that all have the same; what has 1 there repeats."""
    axes = [merged(axis) for axis in axes]
    out: list[list] = [[] for _ in axes]
    rest = [list(axis) for axis in axes]
    while any(rest):
        n = B
        numbers = [axis[0][0] for axis in rest if axis]
        if any(k != B for k in numbers):
            if B in numbers:
                raise Unsupported("it mixes the batch with another axis")
            n = math.gcd(*numbers)
            if n == 1:
                raise Unsupported("its shapes do not fit in the order in which they lie in memory")
        for axis, to in zip(rest, out):
            if not axis:
                to.append((n, False))
                continue
            k, there = axis.pop(0)
            to.append((n, there))
            if k != n:
                axis.insert(0, (k // n, there))
    return out


def split(flat: list, sizes: list[tuple[int, bool]]) -> list | None:
    """The extents of memory dealt to axes of these sizes, or None."""
    flat = list(flat)
    axes = []
    for number, batch in sizes:
        axis, left = [], number
        while left > 1 or batch:
            if not flat:
                return None
            n, there = flat.pop(0)
            if n == B:
                if not batch:
                    return None
                batch = False
                axis.append((n, there))
            elif left % n == 0:
                axis.append((n, there))
                left //= n
            elif n % left == 0 and left > 1:
                axis.append((left, there))
                flat.insert(0, (n // left, there))
                left = 1
            else:
                return None
        axes.append(axis)
    return axes if not flat else None


def known(value: torch.Tensor) -> Tensor:
    value = value.detach().cpu()
    return Tensor(axes_of(list(value.shape)), "f32" if value.dtype.is_floating_point else "i32", constant=value)


# --- what an operation of ATen becomes

OPERATIONS: dict[Any, Callable] = {}  # from an overload to what makes the ops of it: (region, *arguments) -> Tensor


def row(*overloads: Any) -> Callable:
    def enter(build: Callable) -> Callable:
        for overload in overloads:
            OPERATIONS[overload] = build
        return build
    return enter


def pointwise(op: str, **attributes: Any) -> Callable:
    return lambda r, *given, **_: r.each(op, *given, **attributes)


def arithmetic(op: str) -> Callable:
    """Of floats, or of whole numbers where the result is one."""
    def build(r: Region, x: Any, y: Any, alpha: float = 1, **_: Any) -> Tensor:
        if alpha != 1:
            y = r.each("mul", y, alpha, dtype=r.dtype) if isinstance(y, Tensor) else y * alpha
        return r.each(op, x, y, dtype=r.dtype)
    return build


def comparison(op: str, turn: bool = False, negate: bool = False) -> Callable:
    def build(r: Region, x: Any, y: Any) -> Tensor:
        whole = all(not isinstance(v, Tensor) or v.dtype == "i32" for v in (x, y)) and not isinstance(y, float)
        out = r.each(op, *((y, x) if turn else (x, y)), dtype="i32", takes="i32" if whole else "f32")
        return r.each("equal", out, 0, dtype="i32") if negate else out
    return build


def chain(*steps: Callable) -> Callable:
    """One after the other: each of the region and the value so far."""
    def build(r: Region, x: Tensor, *_: Any, **__: Any) -> Tensor:
        for step in steps:
            x = step(r, x)
        return x
    return build


for name, op in {"exp": "exp", "log": "log", "sqrt": "sqrt", "reciprocal": "reciprocal", "sigmoid": "sigmoid",
                 "tanh": "tanh", "relu": "relu", "silu": "silu", "erf": "erf"}.items():
    OPERATIONS[getattr(aten, name).default] = pointwise(op)
for name, op in {"add": "add", "sub": "sub", "mul": "mul"}.items():
    for overload in ("Tensor", "Scalar"):
        OPERATIONS[getattr(getattr(aten, name), overload)] = arithmetic(op)
for name, (op, turn, negate) in {"eq": ("equal", False, False), "ne": ("not_equal", False, False),
                                 "gt": ("greater", False, False), "lt": ("greater", True, False),
                                 "ge": ("greater", True, True), "le": ("greater", False, True)}.items():
    for overload in ("Tensor", "Scalar"):
        OPERATIONS[getattr(getattr(aten, name), overload)] = comparison(op, turn, negate)

OPERATIONS.update({
    aten.abs.default: lambda r, x: r.each("abs", x, dtype=r.dtype),
    aten.neg.default: lambda r, x: negative(r, x),
    aten.rsqrt.default: chain(pointwise("sqrt"), pointwise("reciprocal")),
    aten.log1p.default: chain(lambda r, x: r.each("add", x, 1.0), pointwise("log")),
    aten.expm1.default: chain(pointwise("exp"), lambda r, x: r.each("sub", x, 1.0)),
    aten.sum.default: lambda r, x, **_: r.rows("row_sum", x, [], False),
    aten.mean.default: lambda r, x, **_: mean(r, x, []),
    aten.max.default: lambda r, x: r.rows("row_max", x, [], False),
    aten.min.default: lambda r, x: r.rows("row_min", x, [], False),
    aten.maximum.default: lambda r, x, y: r.each("maximum", x, y, dtype=r.dtype),
    aten.minimum.default: lambda r, x, y: r.each(
        "neg", r.each("maximum", negative(r, x), negative(r, y), dtype=r.dtype), dtype=r.dtype),
    aten.gelu.default: lambda r, x, approximate="none": r.each("gelu" if approximate == "none" else "gelu_tanh", x),
    aten.leaky_relu.default: lambda r, x, slope=0.01: r.each("leaky_relu", x, slope=float(slope)),
    aten.softplus.default: lambda r, x, beta=1.0, threshold=20.0: softplus(r, x, beta, threshold),
    aten.mish.default: lambda r, x: r.each("mul", x, r.each("tanh", softplus(r, x))),
    aten.logical_not.default: lambda r, x: r.each("equal", x, 0, dtype="i32", takes=x.dtype),
    aten.bitwise_not.default: lambda r, x: r.each("equal", x, 0, dtype="i32"),
    aten.logical_and.default: lambda r, x, y: r.each("mul", truth(r, x), truth(r, y), dtype="i32"),
    aten.bitwise_and.Tensor: lambda r, x, y: r.each("mul", truth(r, x), truth(r, y), dtype="i32"),
    aten.logical_or.default: lambda r, x, y: r.each("maximum", truth(r, x), truth(r, y), dtype="i32"),
    aten.bitwise_or.Tensor: lambda r, x, y: r.each("maximum", truth(r, x), truth(r, y), dtype="i32"),
    aten.where.self: lambda r, c, x, y: r.select(truth(r, c), x, y, r.dtype),
    aten._to_copy.default: lambda r, x, **_: truth(r, x) if r.boolean else r.cast(x, r.dtype),
    aten.clone.default: lambda r, x, **_: x,
    aten.alias.default: lambda r, x: x,
    aten.detach.default: lambda r, x: x,
    aten.lift_fresh_copy.default: lambda r, x: x,
    aten.full_like.default: lambda r, x, value, **_: filled(r, value),
    aten.full.default: lambda r, size, value, **_: filled(r, value),
    aten.scalar_tensor.default: lambda r, value, **_: filled(r, value),
    # shapes
    aten.view.default: lambda r, x, size: r.view(x, r.sizes),
    aten._unsafe_view.default: lambda r, x, size: r.view(x, r.sizes),
    aten.reshape.default: lambda r, x, size: r.view(x, r.sizes),
    aten.permute.default: lambda r, x, order: r.permute(x, [i % x.rank for i in order]),
    aten.unsqueeze.default: lambda r, x, dim: r.view(x, r.sizes),
    aten.squeeze.dims: lambda r, x, dims: r.view(x, r.sizes),
    aten.squeeze.dim: lambda r, x, dim: r.view(x, r.sizes),
    aten.cat.default: lambda r, tensors, dim=0: r.concat(tensors, dim),
    aten.select.int: lambda r, x, dim, i: dropped(r.slice(x, dim, i % x.extent(dim), 1), dim),
    aten.split_with_sizes.default: lambda r, x, sizes, dim=0: [
        r.slice(x, dim, sum(sizes[:i]), n) for i, n in enumerate(sizes)],
    aten.flip.default: lambda r, x, dims: turned(r, x, dims),
    aten.index_select.default: lambda r, x, dim, i: r.take(x, dim, numbers(i)),
    # sums and the like
    aten.sum.dim_IntList: lambda r, x, dims, keep=False, **_: r.rows("row_sum", r.cast(x, "f32"), dims, keep),
    aten.amax.default: lambda r, x, dims=(), keep=False: r.rows("row_max", x, dims, keep),
    aten.amin.default: lambda r, x, dims=(), keep=False: r.rows("row_min", x, dims, keep),
    aten.max.dim: lambda r, x, dim, keep=False: [r.rows("row_max", x, [dim], keep), None],
    aten.min.dim: lambda r, x, dim, keep=False: [r.rows("row_min", x, [dim], keep), None],
    aten.argmax.default: lambda r, x, dim=None, keep=False: largest(r, x, dim, keep),
    aten._softmax.default: lambda r, x, dim, half=False: r.along("softmax", x, dim),
    aten._log_softmax.default: lambda r, x, dim, half=False: r.along("log_softmax", x, dim),
    # products
    aten.mm.default: lambda r, x, w: r.product(x, w),
    aten.bmm.default: lambda r, x, y: r.product(x, y),
    aten.addmm.default: lambda r, bias, x, w, **_: r.each("add", r.product(x, w), bias),
    # images
    aten.max_pool2d_with_indices.default: lambda r, x, kernel, stride=(), padding=0, dilation=1, ceil=False: [
        pool(r, "max_pool2d", x, kernel, stride, padding, dilation, ceil), None],
    aten.avg_pool2d.default: lambda r, x, kernel, stride=(), padding=0, ceil=False, counted=True, divisor=None: (
        mean_pool(r, x, kernel, stride, padding, ceil, counted, divisor)),
    **{op: lambda r, x, size: resized(r, x, [torch.nn.functional.adaptive_avg_pool1d] * 2, plain_sizes(r)[2:])
       for op in (aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)},
    aten.upsample_nearest2d.vec: lambda r, x, size, scales: nearest(r, x, scales),
    aten.upsample_nearest1d.vec: lambda r, x, size, scales: nearest(r, x, scales),
    aten.upsample_bilinear2d.vec: lambda r, x, size, corners, scales: resized(
        r, x, [lambda y, n, s=s: torch.nn.functional.interpolate(
            y, **({"size": n} if s is None else {"scale_factor": s}), mode="linear", align_corners=corners)
            for s in (scales or [None, None])], plain_sizes(r)[2:]),
})


def truth(r: Region, x: Tensor) -> Tensor:
    """0 where x is 0, else 1."""
    if x.constant is not None:
        return Tensor(x.axes, "i32", constant=(x.constant != 0).to(torch.int32))
    return x if x.operand in r.truths else r.each("not_equal", x, 0, dtype="i32", takes=x.dtype)


def negative(r: Region, x: Tensor) -> Tensor:
    if x.constant is not None:
        return Tensor(x.axes, x.dtype, constant=-x.constant)
    return r.each("neg", x, dtype=x.dtype)


def softplus(r: Region, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    if beta == 0:
        raise Unsupported("its beta is 0, by which it divides")
    scaled = x if beta == 1 else r.each("mul", x, float(beta))
    y = r.each("bce_with_logits", scaled, 0.0)
    y = y if beta == 1 else r.each("mul", y, 1 / beta)
    if threshold >= 20:  # from there on f32 has no difference
        return y
    return r.select(r.each("greater", scaled, float(threshold), dtype="i32", takes="f32"), x, y, "f32")


def filled(r: Region, value: float) -> Tensor:
    axes = [[(B, False)] * batch + ([(n, False)] if n > 1 else []) for n, batch in r.sizes]
    number = float(value) if r.dtype == "f32" else int(bool(value) if r.boolean else value)
    return Tensor(axes, r.dtype, constant=torch.tensor(number))


def dropped(x: Tensor, dim: int) -> Tensor:
    axes = [axis for i, axis in enumerate(x.axes) if i != dim % x.rank]
    return Region.with_axes(x, axes)


def turned(r: Region, x: Tensor, dims: list[int]) -> Tensor:
    for dim in dims:
        x = r.take(x, dim, list(range(x.extent(dim)))[::-1])
    return x


def numbers(x: Tensor) -> list[int]:
    if x.constant is None:
        raise Unsupported("it takes elements by numbers that are data; gacc knows `embedding`")
    return whole_constant(x).reshape(-1).tolist()


def whole_constant(x: Tensor) -> torch.Tensor:
    """The numbers of a constant without the batch, with what is repeated."""
    there = [math.prod(n for n, real in axis if real) for axis in x.axes]
    if x.batched() or any(0 < sum(real for _, real in axis) < len(axis) for axis in x.axes):
        raise Unsupported("a constant is repeated")
    return x.constant.reshape(there).expand([math.prod(n for n, _ in axis) for axis in x.axes])


def plain_sizes(r: Region) -> list[int]:
    return [n for n, _ in r.sizes]


@row(aten.div.Tensor, aten.div.Scalar)
def divide(r: Region, x: Any, y: Any) -> Tensor:
    if isinstance(y, Tensor):
        return r.each("div", x, y)
    return r.each("mul", x, 1 / y) if y and math.frexp(y)[0] in (0.5, -0.5) else r.each("div", x, float(y))


@row(aten.pow.Tensor_Scalar)
def power(r: Region, x: Tensor, p: float) -> Tensor:
    if not abs(p) <= MOST_POWER:
        raise Unsupported(f"its exponent is {p}; gacc takes numbers from -{MOST_POWER} to {MOST_POWER}")
    if p == 0:
        return filled(r, 1)
    if p == 0.5:
        return r.each("sqrt", x)
    if p == int(p):
        y, left, out = x, abs(int(p)), None
        while left:
            if left & 1:
                out = y if out is None else r.each("mul", out, y)
            left >>= 1
            y = r.each("square", y) if left else y
        return out if p > 0 else r.each("reciprocal", out)
    if 2 * p == int(2 * p) and p < 0:
        return r.each("reciprocal", power(r, x, -p))
    if 2 * p == int(2 * p):
        return r.each("mul", power(r, x, p - 0.5), r.each("sqrt", x))
    return r.each("exp", r.each("mul", r.each("log", x), float(p)))


@row(aten.pow.Tensor_Tensor)
def power_of(r: Region, x: Tensor, p: Tensor) -> Tensor:
    exponents = [] if p.constant is None else sorted(set(p.constant.reshape(-1).tolist()))
    if len(exponents) == 1:
        return expand(r, power(r, x, exponents[0]), None)
    positive = x.constant is not None and bool((x.constant > 0).all())
    if not positive and (p.dtype == "i32" or any(n == int(n) for n in exponents if math.isfinite(n))):
        raise Unsupported("its exponents are whole numbers, several or data, and by exp and log a base below 0 would "
                          "give NaN: raise it to each as a number of Python, as in x ** 2, and join them")
    return r.each("exp", r.each("mul", r.each("log", x), p))


@row(aten.clamp.default, aten.clamp.Tensor)
def clamp(r: Region, x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """The gradient of an element on a limit is the element's, as PyTorch has it."""
    takes = x.dtype
    if low is not None:
        x = r.select(r.each("greater", low, x, dtype="i32", takes=takes), low, x, takes)
    if high is not None:
        x = r.select(r.each("greater", x, high, dtype="i32", takes=takes), high, x, takes)
    return x


@row(aten.hardtanh.default)
def hardtanh(r: Region, x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    """The gradient of an element on a limit is 0, as PyTorch has it."""
    inside = r.select(r.each("greater", x, low, dtype="i32", takes="f32"), x, low, "f32")
    return r.select(r.each("greater", high, inside, dtype="i32", takes="f32"), inside, high, "f32")


@row(aten.elu.default)
def elu(r: Region, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    below = r.each("neg", r.each("relu", r.each("neg", x)))  # exp of it cannot overflow
    y = r.each("sub", r.each("exp", r.each("mul", below, float(input_scale))), 1.0)
    positive = r.each("greater", x, 0.0, dtype="i32", takes="f32")
    return r.select(positive, r.each("mul", x, float(scale)), r.each("mul", y, float(alpha * scale)), "f32")


@row(aten.expand.default)
def expand(r: Region, x: Tensor, size: Any, **_: Any) -> Tensor:
    sizes, axes = r.sizes, []
    for i, (n, batch) in enumerate(sizes):
        before = i - len(sizes) + x.rank
        axis = x.axes[before] if before >= 0 else []
        axes.append(axis if axis else [(B, False)] * batch + ([(n, False)] if n > 1 else []))
    y = r.with_axes(x, axes)
    y.permuted = None
    return y


@row(aten.repeat.default)
def repeat(r: Region, x: Tensor, times: Any) -> Tensor:
    counts = extents(times)
    axes = [[]] * (len(counts) - x.rank) + x.axes
    out = [[(B, False)] * batch + ([(n, False)] if n > 1 else []) + list(axis)
           for (n, batch), axis in zip(counts, axes)]
    y = r.with_axes(x, out)
    y.permuted = None
    return y


@row(aten.as_strided.default)
def as_strided(r: Region, x: Tensor, size: Any, stride: Any, offset: int | None = None) -> Tensor:
    """The same numbers, where only one axis beside the batch is longer than 1: so PyTorch 2.4 ends its means."""
    given = [(n, batch, step) for (n, batch), step in zip(r.sizes, stride) if batch or n > 1]
    if offset or len(given) != 2 or given[0] != (1, True, given[1][0]) or given[1][1:] != (False, 1):
        raise Unsupported("it reads memory in steps of its own: say it by views and slices")
    return r.view(x, r.sizes)


@row(aten.slice.Tensor)
def slice_of(r: Region, x: Tensor, dim: int = 0, begin: Any = None, end: Any = None, step: int = 1) -> Tensor:
    if isinstance(end, torch.SymInt) or (dim % x.rank == 0 and x.axes[0] == [(B, True)] and begin in (None, 0)
                                         and end in (None, 2**63 - 1) and step == 1):
        return x
    chosen = range(x.extent(dim))[begin:end:step]
    if not chosen:
        raise Unsupported(EMPTY)
    if step == 1:
        return r.slice(x, dim, chosen[0], len(chosen))
    # Every `step`-th: one column of rows of `step`.
    dim %= x.rank
    if x.extent(dim) % step == 0 and len(chosen) == x.extent(dim) // step:
        sizes = [(math.prod(n for n, _ in axis if n != B), any(n == B for n, _ in axis)) for axis in x.axes]
        sizes[dim:dim + 1] = [(len(chosen), False), (step, False)]
        return dropped(r.slice(r.view(x, sizes), dim + 1, chosen[0], 1), dim + 1)
    return r.take(x, dim, list(chosen))


@row(aten.constant_pad_nd.default)
def pad(r: Region, x: Tensor, amounts: list[int], value: float = 0) -> Tensor:
    for i in range(len(amounts) // 2):
        dim = x.rank - 1 - i
        before, after = amounts[2 * i:2 * i + 2]
        size = x.extent(dim)
        begin, stop = max(0, -before), size - max(0, -after)
        x = r.slice(x, dim, begin, stop - begin)
        zeros = []
        for count in (before, after):
            axes = [[(n, False) for n, _ in axis] for axis in x.axes]
            axes[dim] = [(count, False)] if count > 1 else []
            zeros.append(Tensor(axes, x.dtype, constant=torch.tensor(value)))
        x = r.concat([zeros[0]] * (before > 0) + [r.real(x)] + [zeros[1]] * (after > 0), dim)
    return x


@row(aten.index.Tensor)
def index(r: Region, x: Tensor, indices: list) -> Tensor:
    given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    for _, i in given:
        numbers(i)  # which refuses what is no constant
    first, count = given[0][0], len(given)
    if [d for d, _ in given] != list(range(first, first + count)):
        raise Unsupported("the axes it takes elements of do not lie side by side: permute them so, or take of one "
                          "after the other")
    # Several axes as one.
    places = torch.zeros((), dtype=torch.int64)
    for d, i in given:
        at, n = whole_constant(i).to(torch.int64), x.extent(d)
        places = places * n + torch.where(at < 0, at + n, at)
    flat = Region.with_axes(x, [*x.axes[:first], [p for a in x.axes[first:first + count] for p in a],
                                *x.axes[first + count:]])
    return r.view(r.take(flat, first, places.reshape(-1).tolist()), r.sizes)


def largest(r: Region, x: Tensor, dim: int | None, keep: bool) -> Tensor:
    if dim is None:
        raise Unsupported("it counts through the batch, too: say an axis, as in argmax(-1)")
    return r.rows("row_argmax", r.real(x), [dim], keep, "i32")


@row(aten.cumsum.default)
def cumulative(r: Region, x: Tensor, dim: int, **_: Any) -> Tensor:
    return r.by_matrix(r.cast(x, "f32"), dim, torch.ones(x.extent(dim), x.extent(dim)).tril())


@row(aten.mean.dim)
def mean(r: Region, x: Tensor, dims: Any, keep: bool = False, **_: Any) -> Tensor:
    dims = list(dims) if dims else list(range(x.rank))
    count = math.prod(x.extent(d) for d in dims)
    return r.each("mul", r.rows("row_sum", x, dims, keep), 1 / count)


@row(aten.var.correction)
def variance(r: Region, x: Tensor, dims: Any = None, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    dims = list(dims) if dims else list(range(x.rank))
    count = math.prod(x.extent(d) for d in dims)
    correction = 1 if correction is None else correction
    if count <= correction:
        raise Unsupported(f"it divides by {count} elements less {correction}; the correction is below their number")
    off = r.each("sub", x, mean(r, x, dims, True))
    return r.each("mul", r.rows("row_sum", r.each("square", off), dims, keepdim), 1 / (count - correction))


@row(aten.linear.default)
def linear(r: Region, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    y = r.matrix(x, w, True)
    return y if bias is None else r.each("add", y, bias)


@row(aten.embedding.default)
def embedding(r: Region, table: Tensor, which: Tensor, padding: int = -1, *_: Any) -> Tensor:
    if padding != -1:
        raise Unsupported("an embedding with padding_idx has a row without a gradient, which gacc has not")
    count = table.extent(0)
    if which.constant is not None:
        y = r.take(table, 0, [int(n) for n in which.constant.reshape(-1)])
        return r.view(r.with_axes(y, [*which.axes, *y.axes[1:]]) if which.repeated() else y, r.sizes)
    operand = r.shaped(which, in_memory(which.axes))
    source = r.numbers.get(operand)
    if source is None:
        raise Unsupported("it takes rows by numbers that are computed; gacc takes the elements of an input")
    if (other := r.buffers.ranges.setdefault(source, count)) != count:
        raise Unsupported(f"the input `{source}` chooses rows of tables of {other} and of {count} rows, and gacc "
                          "checks the elements of an input against one number: give the columns as separate inputs")
    shape = [*in_memory(which.axes), table.extent(1)]
    features = [(shape[-1], True)] if shape[-1] > 1 else []
    return Tensor([*which.axes, features], "f32",
                  r.emit("embedding", [operand, r.shaped(table, [count, shape[-1]])], ("f32", shape)), shape)


@row(aten.native_dropout.default)
def dropout(r: Region, x: Tensor, p: float, train: bool | None = True) -> list:
    if not p or not train:
        return [x, None]
    if p >= 1:
        return [r.each("mul", x, 0.0), None]
    x = r.real(x)
    operand = r.shaped(x, in_memory(x.axes))
    y = r.emit("dropout", [operand, *r.buffers.random()], ("f32", in_memory(x.axes)), p=float(p), stream=r.stream())
    return [Tensor(x.axes, "f32", y), None]


# --- norms

def affine(r: Region, w: Tensor | None, fill: float, count: int) -> str:
    """A vector of weights; of none, as many of the number."""
    if w is None:
        w = known(torch.full([count], fill))
        w.operand, w.shape, w.constant = r.buffers.constant(w.constant), [count], None
    return r.shaped(r.real(w), [count])


def normalized(r: Region, x: Tensor, axes: int) -> tuple[list, int]:
    """The shape with the last `axes` axes as one."""
    count = math.prod(x.extent(i) for i in range(x.rank - axes, x.rank))
    return in_memory(x.axes[:x.rank - axes]) + [count], count


@row(aten.native_layer_norm.default)
def layer_norm(r: Region, x: Tensor, over: list[int], w: Tensor | None, bias: Tensor | None, eps: float) -> list:
    x = r.real(x)
    shape, count = normalized(r, x, len(over))
    weight = affine(r, w, 1.0, count)
    some = [*shape[:-1], 1]
    y = r.emit("layer_norm", [r.shaped(x, shape), weight, "0.0" if bias is None else affine(r, bias, 0.0, count)],
               ("f32", shape), ("f32", some), ("f32", some), eps=float(eps))[0]
    return [Tensor(x.axes, "f32", y, shape), None, None]


@row(aten.rms_norm.default)
def rms_norm(r: Region, x: Tensor, over: list[int], w: Tensor | None = None, eps: float | None = None) -> Tensor:
    x = r.real(x)
    shape, count = normalized(r, x, len(over))
    y = r.emit("rms_norm", [r.shaped(x, shape), affine(r, w, 1.0, count)], ("f32", shape),
               ("f32", [*shape[:-1], 1]), eps=float(torch.finfo(torch.float32).eps if eps is None else eps))[0]
    return Tensor(x.axes, "f32", y, shape)


@row(aten.native_group_norm.default)
def group_norm(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, samples: Any, channels: int, size: Any,
               groups: int, eps: float) -> list:
    x = r.real(x)
    shape = r.plain(x)
    y = r.emit("group_norm", [r.shaped(x, shape), affine(r, w, 1.0, shape[1]), affine(r, bias, 0.0, shape[1])],
               ("f32", shape), ("f32", [B, groups, 1]), ("f32", [B, groups, 1]), eps=float(eps), groups=groups)[0]
    return [Tensor(x.axes, "f32", y, shape), None, None]


@row(aten.instance_norm.default)
def instance_norm(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, mean: Any, variance: Any, by_input: bool,
                  momentum: float, eps: float, *_: Any) -> Tensor:
    if not by_input or mean is not None:
        raise Unsupported("an instance norm with running statistics")
    return group_norm(r, x, w, bias, None, 0, None, x.extent(1), eps)[0]


@row(aten._native_batch_norm_legit_functional.default)
def batch_norm(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, running_mean: Tensor,
               running_variance: Tensor, training: bool, momentum: float, eps: float) -> list:
    if not training:
        return by_statistics(r, x, w, bias, running_mean, running_variance, momentum, eps)
    out = by_batch(r, x, w, bias, eps)
    for op, of, given in (("moving_mean.acc", running_mean, out[1:2]), ("moving_variance.acc", running_variance,
                                                                       out[3:5])):
        r.emit(op, [r.buffers.change(of.buffer), of.operand, *given], momentum=float(momentum))
    return [out[0], None, None, None, None]


@row(aten._native_batch_norm_legit.no_stats)
def batch_norm_alone(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
                     eps: float) -> list:
    return [by_batch(r, x, w, bias, eps)[0], None, None]


def by_batch(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, eps: float) -> list:
    x = r.real(x)
    shape = r.plain(x)
    channels = shape[1]
    each = ("f32", [channels])
    names = r.emit("batch_norm", [r.shaped(x, shape), affine(r, w, 1.0, channels), affine(r, bias, 0.0, channels)],
                   ("f32", shape), each, each, each, each, eps=float(eps))
    return [Tensor(x.axes, "f32", names[0], shape), *names[1:]]


@row(aten._native_batch_norm_legit_no_training.default)
def by_statistics(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, running_mean: Tensor,
                  running_variance: Tensor, momentum: float, eps: float) -> list:
    wide = [[]] * (x.rank - 2)
    mean, variance, w, bias = (None if v is None else r.with_axes(v, [*v.axes, *wide])
                               for v in (running_mean, running_variance, w, bias))
    y = r.each("sub", x, mean)
    y = r.each("mul", y, r.each("reciprocal", r.each("sqrt", r.each("add", variance, float(eps)))))
    y = y if w is None else r.each("mul", y, w)
    return [y if bias is None else r.each("add", y, bias), None, None, None, None]


# --- images: [B, C, H, W]; one of a line [B, C, L] has height 1

def pair(value: Any, axes: int) -> list[int]:
    value = [value] if isinstance(value, int) else list(value)
    return value * axes if len(value) == 1 else value


def as_image(r: Region, x: Tensor) -> tuple[list, int]:
    """The shape with four axes, and how many of them are the image's."""
    shape = r.plain(r.real(x))
    if len(shape) == 3:
        return [*shape[:2], 1, shape[2]], 1
    if len(shape) != 4:
        raise Unsupported(f"its images have {len(shape) - 2} axes; gacc's have 1 or 2")
    return shape, 2


@row(aten.convolution.default)
def convolution(r: Region, x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
                transposed: bool, output_padding: Any, groups: int) -> Tensor:
    x = r.real(x)
    images, axes = as_image(r, x)
    weight = [w.extent(i) for i in range(w.rank)]
    weight = weight if axes == 2 else [*weight[:2], 1, weight[2]]
    stride, dilation = ([1] * (2 - axes) + pair(v, axes) for v in (stride, dilation))
    zeros = [0] * (2 - axes) + pair(padding, axes)
    attributes: dict[str, Any] = dict(kernel=weight[2:], stride=stride, padding=[*zeros, *zeros], dilation=dilation,
                                      groups=groups)
    if not transposed:
        size = [(images[2 + i] + 2 * zeros[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
                for i in range(2)]
        shape, op = [B, weight[0], *size], "conv2d"
    else:
        more = [0] * (2 - axes) + pair(output_padding, axes)
        size = [(images[2 + i] - 1) * stride[i] - 2 * zeros[i] + dilation[i] * (weight[2 + i] - 1) + more[i] + 1
                for i in range(2)]
        shape, op = [B, weight[1] * groups, *size], "conv2d.grad"
        attributes["size"] = size
    y = r.emit(op, [r.shaped(x, images), r.shaped(r.real(w), weight)], ("f32", shape), **attributes)
    out = Tensor([[(B, True)], *axes_of([shape[1], *size[2 - axes:]])], "f32", y, shape)
    return out if bias is None else r.each("add", out, r.with_axes(bias, [*bias.axes, *[[]] * axes]))


def pool(r: Region, op: str, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Tensor:
    x = r.real(x)
    images, axes = as_image(r, x)
    kernel = [1] * (2 - axes) + pair(kernel, axes)
    stride = [1] * (2 - axes) + pair(stride, axes) if stride else kernel
    zeros = [0] * (2 - axes) + pair(padding, axes)
    if any(d != 1 for d in pair(dilation, 1)):
        raise Unsupported("a pool with a dilation; gacc's windows have none")
    size = [(n - (k - 1) - 1 + 2 * p + (s - 1) * bool(ceil)) // s + 1
            for n, k, s, p in zip(images[2:], kernel, stride, zeros)]
    after = []
    for i in range(2):
        if ceil and (size[i] - 1) * stride[i] >= images[2 + i] + zeros[i]:
            size[i] -= 1
        after.append(max(zeros[i], (size[i] - 1) * stride[i] + kernel[i] - images[2 + i] - zeros[i]) if ceil
                     else zeros[i])
    if ceil and op == "avg_pool2d" and after != zeros:
        raise Unsupported("an average with ceil_mode whose last windows are cut short")
    shape = [*images[:2], *size]
    y = r.emit(op, [r.shaped(x, images)], ("f32", shape), kernel=kernel, stride=stride, padding=[*zeros, *after])
    return Tensor([[(B, True)], *axes_of([shape[1], *size[2 - axes:]])], "f32", y, shape)


def mean_pool(r: Region, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, counted: bool,
              divisor: int | None) -> Tensor:
    y = pool(r, "avg_pool2d", x, kernel, stride, padding, 1, ceil)
    if divisor is not None:
        y = r.each("mul", y, math.prod(pair(kernel, 2)) / divisor)
    if counted or not any(pair(padding, 2)):
        return y
    ones = torch.ones(1, 1, *(x.extent(i) for i in (-2, -1)))
    share = torch.nn.functional.avg_pool2d(ones, kernel, stride or kernel, padding, bool(ceil), True)
    return r.each("div", y, known(share[0, 0]))


def resized(r: Region, x: Tensor, how: list[Callable], size: Any) -> Tensor:
    """Each axis of the images by a matrix: what PyTorch makes of the identity. A mean of equal parts is a pool."""
    size = list(size)
    given = [x.extent(i) for i in range(x.rank - len(size), x.rank)]
    means = how[0] is torch.nn.functional.adaptive_avg_pool1d
    if means and all(n % m == 0 for n, m in zip(given, size)):
        if all(m == 1 for m in size):
            return mean(r, x, list(range(x.rank - len(size), x.rank)), True)
        return pool(r, "avg_pool2d", x, [n // m for n, m in zip(given, size)], (), 0, 1, False)
    for i, (n, m, made) in enumerate(zip(given, size, how)):
        matrix = made(torch.eye(n)[None], m)[0].T
        if not torch.equal(matrix, torch.eye(n)):  # as many by a scale are not the same
            x = r.by_matrix(x, x.rank - len(size) + i, matrix)
    return x


def nearest(r: Region, x: Tensor, scales: Any) -> Tensor:
    """Takes the elements that PyTorch takes of 0, 1, ...: with a scale other ones than for the size it gives."""
    sizes = list(enumerate(plain_sizes(r)))[2:]
    for (i, n), scale in zip(sizes, scales or [None] * len(sizes)):
        before = x.extent(i)
        places = torch.arange(before, dtype=torch.float32)[None, None]
        chosen = torch.nn.functional.interpolate(
            places, **({"size": n} if scale is None else {"scale_factor": scale}), mode="nearest")[0, 0].int().tolist()
        if chosen == [k * before // n for k in range(n)] and n % before == 0:
            axes = list(x.axes)
            axes[i] = axes[i] + ([(n // before, False)] if n > before else [])
            x = r.with_axes(x, axes)
            x.permuted = None
        else:
            x = r.take(x, i, chosen)
    return x


# --- attention

@row(aten.scaled_dot_product_attention.default)
def attention(r: Region, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """gacc's op where it can say it: positions of one sequence, all of them or those before. It never makes the
    matrix of probabilities. Else by two products and a softmax."""
    width, queries, keys = q.extent(-1), q.extent(-2), k.extent(-2)
    scale = 1 / math.sqrt(width) if scale is None else scale
    heads = [x.extent(1) if x.rank == 4 else 1 for x in (q, k, v)]
    shared = heads[0] // heads[1] if heads[1] and heads[0] % heads[1] == 0 else 0
    together = (mask is None and queries == keys and v.extent(-1) == width and q.rank in (3, 4) and shared
                and heads[1] == heads[2] and all(x.axes[0] in ([(B, True)], [(B, False)]) for x in (q, k, v)))
    if together and (shared == 1 or enable_gqa):
        factor = scale * math.sqrt(width)
        if abs(factor - 1) > 1e-6:
            q = r.each("mul", q, factor)
        parts = []
        for x in (q, k, v):
            x = r.real(x)
            x = r.permute(x, [0, 2, 1, 3]) if x.rank == 4 else x
            count = math.prod(x.extent(i) for i in range(2, x.rank))
            parts.append(r.view(x, [(1, True), (queries, False), (count, False)]))
        qkv = r.concat(parts, 2)
        shape = [B, queries, heads[0] * width]
        types = ("f32", shape), ("f32", [B, heads[0], 2, queries])
        attributes: dict[str, Any] = dict(causal=bool(is_causal), heads=heads[0])
        if shared > 1:
            attributes["kv_heads"] = heads[1]
        operands = [r.shaped(qkv, [B, queries, (heads[0] + 2 * heads[1]) * width])]
        if dropout_p:
            operands += r.buffers.random()
            attributes.update(p=float(dropout_p), stream=r.stream())
        y = r.emit("attention.dropout" if dropout_p else "attention", operands, *types, **attributes)[0]
        out = Tensor([[(B, True)], *axes_of(shape[1:])], "f32", y, shape)
        if q.rank == 3:
            return out
        return r.permute(r.view(out, [(1, True), (queries, False), (heads[0], False), (width, False)]), [0, 2, 1, 3])
    if enable_gqa and shared > 1:
        k, v = (grouped(r, x, shared) for x in (k, v))
    turn = [*range(k.rank - 2), k.rank - 1, k.rank - 2]
    scores = r.product(r.each("mul", q, scale), r.permute(k, turn))
    if is_causal:
        mask = known(torch.ones(queries, keys, dtype=torch.bool).tril())
        mask.dtype = "i32"
    if mask is not None and mask.dtype == "i32":
        scores = r.select(truth(r, mask), scores, LEAST, "f32")
    elif mask is not None:
        scores = r.each("add", scores, mask)
    weights = r.along("softmax", scores, -1)
    if dropout_p:
        weights = dropout(r, weights, dropout_p)[0]
    return r.product(weights, v)


def grouped(r: Region, x: Tensor, times: int) -> Tensor:
    """Each head as many times, for neighbouring heads of queries."""
    axes = list(x.axes)
    axes[1] = axes[1] + [(times, False)]
    return r.with_axes(x, axes)


# --- from the exported graph to text

F = torch.nn.functional
WHOLE = {  # what the export of PyTorch 2.4 would take apart: the signature as there, and what makes it
    F.scaled_dot_product_attention: ("Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
                                     "float dropout_p=0.0, bool is_causal=False, float? scale=None", attention),
    F.instance_norm: ("Tensor input, Tensor? running_mean=None, Tensor? running_var=None, Tensor? weight=None, "
                      "Tensor? bias=None, bool use_input_stats=True, float momentum=0.1, float eps=1e-05",
                      lambda r, x, mean=None, variance=None, w=None, bias=None, by_input=True, momentum=0.1, eps=1e-5:
                      instance_norm(r, x, w, bias, mean, variance, by_input, momentum, eps)),
    F.rms_norm: ("Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None", rms_norm),
} if not hasattr(torch.export, "default_decompositions") else {}
LIBRARY = torch.library.Library("gacc", "FRAGMENT")  # which keeps the operations defined
for function, (signature, build) in WHOLE.items():
    LIBRARY.define(f"{function.__name__}({signature}) -> Tensor")
    LIBRARY.impl(function.__name__, lambda x, *more, attention=function is F.scaled_dot_product_attention, **_: (
        x.new_empty([*x.shape[:-1], more[1].shape[-1] if attention else x.shape[-1]])), "Meta")
    OPERATIONS[getattr(torch.ops.gacc, function.__name__).default] = build


class KeptWhole(torch.overrides.TorchFunctionMode):
    """Calls the operations of WHOLE in place of PyTorch's own."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function in WHOLE:
            function = getattr(torch.ops.gacc, function.__name__)
        return function(*args, **(kwargs or {}))


# Which default_decompositions would take apart.
KEPT = ("linear", "silu", "mish", "softplus", "rms_norm", "scaled_dot_product_attention", "adaptive_avg_pool2d",
        "instance_norm")
RUNNING = {aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit_no_training.default}
RANDOM = {aten.rand.default, aten.randn.default, aten.rand_like.default, aten.randn_like.default,
          aten.bernoulli.p, aten.native_dropout.default, aten.randint.low, aten.randperm.default}
BITWISE = {aten.bitwise_not.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor}
TYPES = {torch.float32: "f32", torch.int64: "i32", torch.int32: "i32", torch.bool: "i32"}


def place_of(node: fx.Node) -> tuple[str, str | None, int | None]:
    """Which module, and which line of Python, as text; the file and the line."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path]
    module = f"module `{paths[-1]}`" if paths else "the module itself"
    if stack:
        kind = list(stack.values())[-1][1]
        module += f" ({kind if isinstance(kind, str) else kind.__name__})".replace("torch.nn.modules.", "")
    frames = re.findall(r'File "(.*?)", line (\d+), in .*\n\s*(.*)', node.meta.get("stack_trace") or "")
    own = [f for f in frames if "/torch/nn/" not in f[0] and "/torch/_" not in f[0]] or frames
    if not own:
        return module, None, None
    file, line, code = own[-1]
    return f"{module}\n  {file}:{line}: {code}", file, int(line)


def refusal(node: fx.Node, why: str) -> Error:
    where, file, line = place_of(node)
    return Error(f"{why}\n  in {where}", file=file, line=line)


def exported(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.export.ExportedProgram:
    """The forward in core ATen, its batch a symbol."""
    batch = torch.export.Dim("batch", min=2)
    several = {name: (x if len(x) > 1 else x.expand(2, *x.shape[1:]).contiguous()) for name, x in inputs.items()}
    try:
        with torch.no_grad(), quiet(), KeptWhole(), whole_layers():
            program = torch.export.export(module, (), kwargs=several,
                                          dynamic_shapes={name: {0: batch} for name in several}, strict=False)
            table = getattr(torch.export, "default_decompositions", torch._decomp.core_aten_decompositions)()
            for name in KEPT:
                table.pop(getattr(aten, name).default, None)
            refuse_old_bilinear(program.graph)
            return program.run_decompositions(table)
    except Error:
        raise
    except Exception as error:
        raise unfollowed(module, error) from error


def refuse_old_bilinear(graph: fx.Graph) -> None:
    """PyTorch 2.4 takes an interpolation by a factor like 1.2 apart into operations that compute something else."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5):
        return
    for node in graph.nodes:
        if node.target == aten.upsample_bilinear2d.vec and any(scale % 1 for scale in node.args[3] or ()):
            raise refusal(node, f"PyTorch {torch.__version__} exports bilinear interpolation by {node.args[3]} wrongly;"
                                " 2.5 and later are right, and so are whole factors")


@contextlib.contextmanager
def whole_layers() -> Iterator[None]:
    """Turns off PyTorch's own kernels of a whole layer, which it takes in eval()."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps back what PyTorch logs and prints of an error that it raises, and 2.11's warning of its own LeafSpec."""
    logs = [log for name, log in logging.root.manager.loggerDict.items() if name.partition(".")[0] == "torch"
            and isinstance(log, logging.Logger) and not log.disabled and not os.environ.get("TORCH_LOGS")]
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(said):
        warnings.filterwarnings("ignore", ".*treespec, LeafSpec", FutureWarning)
        for log in logs:
            log.disabled = True
        try:
            yield
        finally:
            for log in logs:
                log.disabled = False
    sys.stderr.write(said.getvalue())


def unfollowed(module: torch.nn.Module, error: Exception) -> Error:
    """The refusal of what torch.export does not follow, at the innermost line that is not PyTorch's."""
    why = str(error).strip().split("\n\n")[0]
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        why = ("which lines run, or a number of Python, depends on data here; gacc takes straight-line code: "
               f"torch.where(condition, a, b) chooses by elements ({why.splitlines()[0]})")
    names = {part: name for name, part in module.named_modules()}
    own, where, file, number = os.path.dirname(torch.__file__), "", None, None
    for frame, line in traceback.walk_tb(error.__traceback__):
        path, part = frame.f_code.co_filename, frame.f_locals.get("self")
        if isinstance(part, torch.nn.Module) and part in names:
            path_of = f"module `{names[part]}`" if names[part] else "the module itself"
            where = f"\n  in {path_of} ({type(part).__name__})"
            file = None
        if where and not path.startswith((own, __file__, "<")):
            file, number = path, line
            code = f"\n  {path}:{line}: {linecache.getline(path, line).strip()}"
    if file is None:
        why += "\nIt takes straight-line code whose shapes depend on the batch in their first axis alone"
    return Error(f"torch.export cannot follow the module: {why}{where}{code if file else ''}", file=file, line=number)


class Lowering:
    """One exported program as a region."""

    def __init__(self, program: torch.export.ExportedProgram, buffers: Buffers, frozen: set[str], owners: dict,
                 output: int | str | None, names: list[str]):
        """`names`: what the step calls the inputs, in their order."""
        self.names = iter(names)
        self.program, self.buffers, self.frozen, self.owners = program, buffers, frozen, owners
        self.region = Region(buffers)
        self.inputs: dict[str, Tensor] = {}
        graph = program.graph
        results = next(n for n in graph.nodes if n.op == "output").args[0]
        specs = program.graph_signature.output_specs
        outputs = [n for n, spec in zip(results, specs) if spec.kind.name == "USER_OUTPUT"]
        self.check_mutations(zip(results, specs))
        chosen = self.chosen(outputs, output)
        self.running = {n.args[i] for n in graph.nodes if n.target in RUNNING for i in (3, 4)}
        wanted, waiting = set(), [chosen, *(n for n in graph.nodes if n.target in RUNNING)]
        while waiting:
            node = waiting.pop()
            if node not in wanted:
                wanted.add(node)
                waiting += node.all_input_nodes
        self.values: dict[fx.Node, Any] = {}
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        for node in graph.nodes:
            if node.op == "placeholder" and (node in wanted or specs[node.name].kind.name == "USER_INPUT"):
                self.values[node] = self.placeholder(node, specs[node.name])
            elif node.op == "call_function" and node in wanted:
                self.values[node] = self.result(node)
            elif node.op == "get_attr" and node in wanted:
                raise refusal(node, f"`{node.target}` is part of the program, and gacc's are straight-line code")
        self.output, self.shape = self.yielded(chosen)

    def check_mutations(self, results: Any) -> None:
        for node, spec in results:
            if spec.kind.name == "USER_OUTPUT" or not isinstance(node, fx.Node):
                continue
            source = node.args[0] if node.target is operator.getitem else node
            if source.target in RUNNING or str(spec.target).endswith("num_batches_tracked"):
                continue
            raise refusal(node, f"the forward changes `{spec.target}`; gacc knows running statistics of batch norms")

    def chosen(self, outputs: list, output: int | str | None) -> fx.Node:
        if len(outputs) == 1 and output is None:
            return outputs[0]
        tree = torch.utils._pytree.tree_unflatten(list(range(len(outputs))), self.program.call_spec.out_spec)
        try:
            return outputs[tree[output]]
        except (KeyError, IndexError, TypeError):
            names = list(tree) if isinstance(tree, Mapping) else list(range(len(outputs)))
            raise Error(f"the forward gives {len(outputs)} tensors, and the loss takes one: say output= one of "
                        f"{', '.join(map(repr, names))}") from None

    def placeholder(self, node: fx.Node, spec: Any) -> Tensor | None:
        kind, name = spec.kind.name, spec.target
        if kind == "PARAMETER":
            owner = self.owners[name]
            value = self.program.state_dict[name]
            check_parameter(name, value)
            shape = list(value.shape)
            x = Tensor(axes_of(shape), "f32", self.buffers.parameter(owner, value, owner in self.frozen), shape)
            x.buffer = owner
            return x
        if kind in ("BUFFER", "CONSTANT_TENSOR"):
            value = self.program.constants[name] if name in self.program.constants else self.program.state_dict[name]
            if node in self.running:
                x = Tensor(axes_of(list(value.shape)), "f32", self.buffers.statistic(name, value), list(value.shape))
                x.buffer = name
                return x
            return known(value)
        if kind != "USER_INPUT":
            return None
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        axes = [[(B, True)], *axes_of(list(value.shape[1:]))]
        name = next(self.names)
        x = Tensor(axes, TYPES[value.dtype], quoted("%", name), [B, *value.shape[1:]])
        self.inputs[name] = x
        self.region.used.add(name)
        if x.dtype == "i32":
            self.region.numbers[x.operand] = name
        if value.dtype is torch.bool and node.users:
            self.region.hint = f"{name}.truth"
            return truth(self.region, x)
        return x

    def resolved(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda n: self.values[n])

    def result(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            return value
        if node.target is operator.getitem:
            source, which = node.args
            part = self.values[source][which]
            if part is None:
                more = "; `argmax` gives the places of the largest" if source.target is aten.max.dim else ""
                raise refusal(node, f"gacc has no result {which} of `{source.target}`{more}")
            return part
        if lost := next((n for n in node.all_input_nodes if self.values[n] is None), None):
            raise refusal(node, f"`{node.target}` takes `{lost.name}`, which is no tensor of gacc's")
        arguments, named = self.resolved(node.args), self.resolved(node.kwargs)
        first = value[0] if isinstance(value, (tuple, list)) else value
        if not isinstance(first, torch.Tensor):
            raise refusal(node, f"gacc has no `{node.target}`")
        if first.dtype not in TYPES:
            raise refusal(node, f"`{node.target}` makes {str(first.dtype).removeprefix('torch.')}, and gacc computes "
                                "in f32 (precision= casts), its numbers in i32")
        if (folded := fold(node, arguments, named)) is not None:
            return folded
        build = OPERATIONS.get(node.target)
        if build is None:
            raise refusal(node, f"gacc has no `{node.target}`")
        region = self.region
        region.hint, region.dtype, region.boolean = node.name, TYPES[first.dtype], first.dtype is torch.bool
        try:
            if node.target in BITWISE and not region.boolean:
                raise Unsupported("it takes bits of whole numbers; gacc knows it of torch.bool: compare first, as in "
                                  "x != 0, or use torch.logical_and and its like")
            region.sizes = extents(first.shape)
            out = build(region, *arguments, **named)
            return truth(region, out) if region.boolean and isinstance(out, Tensor) else out
        except Unsupported as why:
            raise refusal(node, f"gacc cannot say this `{node.target}`: {why}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as why:
            raise refusal(node, f"gacc cannot say this `{node.target}` of these arguments "
                                f"({type(why).__name__}: {why})") from why

    def yielded(self, node: fx.Node) -> tuple[str, list]:
        x = self.values[node]
        region = self.region
        region.hint = "output"
        if not isinstance(x, Tensor) or x.dtype != "f32" or not x.axes or x.axes[0] not in ([(B, True)], [(B, False)]):
            raise refusal(node, "the output must be floats, [batch, ...]")
        x = region.real(x)
        shape = region.plain(x)
        operand = region.shaped(x, shape)
        if operand in (given.operand for given in self.inputs.values()):
            operand = region.emit("mul", [operand, "1.0"], ("f32", shape))
        return operand, shape


def fold(node: fx.Node, arguments: Any, named: Any) -> Any:
    """The result where it is known without parameters and data, else None."""
    given: list = []
    fx.node.map_aggregate((arguments, named), lambda a: given.append(a))
    if node.target in RANDOM or any(isinstance(a, torch.SymInt) for a in given):
        return None
    tensors = [a for a in given if isinstance(a, Tensor)]
    if any(a.constant is None or a.batched() for a in tensors):
        return None

    def numbers(a: Any) -> Any:
        return whole_constant(a) if isinstance(a, Tensor) else a

    try:
        out = node.target(*fx.node.map_aggregate(arguments, numbers), **fx.node.map_aggregate(named, numbers))
    except Unsupported:
        return None
    return known(out) if isinstance(out, torch.Tensor) else [known(o) for o in out]


def check_parameter(name: str, value: torch.Tensor) -> None:
    if value.device.type == "meta":
        raise Error(f"`{name}` is on the device `meta` and has no values; give the module some first")
    if value.dtype != torch.float32:
        raise Error(f"`{name}` is {str(value.dtype).removeprefix('torch.')}; gacc keeps parameters in f32: give "
                    "module.float(), and say precision=\"bf16\" or \"f16\" for what they compute in")


def check_input(name: str, x: Any) -> torch.Tensor:
    try:
        x = torch.as_tensor(x).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the input `{name}` is {x!r:.60}, which is no array: {error}") from None
    if x.dtype not in TYPES:
        more = "; bytes are given as floats, as the module takes them" if x.dtype == torch.uint8 else ""
        raise Error(f"the input `{name}` is {str(x.dtype).removeprefix('torch.')}; it may be float32, int64, int32 "
                    f"or bool{more}")
    if x.ndim < 1 or len(x) < 1:
        raise Error(f"the input `{name}` is {list(x.shape)}; an example has samples in its first axis")
    return x


class ModuleState:
    """Between the names of a module's state_dict() and those of the step.

    A tied parameter is there once, a buffer that is read as a constant not at all, and constants are there besides.
    """

    def __init__(self, module: torch.nn.Module, buffers: Buffers, owners: dict[str, str]):
        self.owners = owners
        self.values = {name: value.detach().cpu().clone() for name, value in buffers.values.items()}
        self.rest = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()
                     if owners.get(name, name) not in self.values}
        self.names = list(module.state_dict())

    def of_step(self, arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """What load_state_dict(strict=True) takes."""
        return {name: self.rest[name] if name in self.rest else torch.as_tensor(arrays[self.owners.get(name, name)])
                for name in self.names}

    def to_step(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that a session has, of a state_dict()."""
        if sorted(given) == sorted(self.values):
            return dict(given)
        lacks, more = sorted(set(self.names) - set(given)), sorted(set(given) - set(self.names))
        if lacks or more:
            raise ValueError("the parameters do not fit the module:" + (f" {', '.join(lacks)} missing" if lacks else "")
                             + (f" the module has no {', '.join(more)}" if more else ""))
        return {name: given.get(name, value) for name, value in self.values.items()}


def region_text(kind: str, lowering: Lowering, inputs: list[str]) -> str:
    lines = [*lowering.region.lines, f"yield output {lowering.output}"]
    return f"  {kind}({', '.join(inputs)}) {{\n    " + "\n    ".join(lines) + "\n  }\n"


def text_of(module: torch.nn.Module, inputs: Mapping[str, Any], *, target: str | None = None, classes: bool = False,
            name: str | None = None, output: int | str | None = None) -> tuple[str, ModuleState]:
    """The text of the IR, without a loss: its regions yield the output. And what the module's parameters are in it.

    target    the input that a loss compares with; where it is no example, it gets the output's shape
    classes   the target is the number of a class, on the output's last axis
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"the module is {module!r:.60}, which is no torch.nn.Module")
    if not isinstance(inputs, Mapping) or not inputs:
        raise TypeError("the inputs are examples by the names of the forward's arguments, as in "
                        f"{{{', '.join(f'{n!r}: {n}' for n in taken_by(module)) or '...'}}}")
    known_as = torch.nn.Module.state_dict(module, keep_vars=True)
    first: dict[int, str] = {}
    owners = {n: first.setdefault(id(p), n) for n, p in known_as.items() if isinstance(p, torch.nn.Parameter)}
    frozen = {n for n, p in known_as.items() if not p.requires_grad}
    for n, p in module.named_parameters(remove_duplicate=False):
        owners.setdefault(n, n)
        check_parameter(n, p)
    if any(p.device.type != "cpu" for p in known_as.values()):
        module = copy.deepcopy(module).cpu()
    examples = {n: check_input(n, x) for n, x in inputs.items()}
    taken = taken_by(module)
    names = [n for n in examples if n != target or n in taken]
    if all(n in taken for n in names):
        names.sort(key=taken.index)
        arguments = names
    else:  # other names: in the order of the forward's
        arguments = taken[:len(names)]
    try:
        inspect.signature(module.forward).bind(**dict.fromkeys(arguments))
        together = len(arguments) == len(names)
    except TypeError:
        together = False
    if not together:
        raise Error(f"the forward takes {', '.join(taken) or 'nothing'}, and there are {', '.join(names)}")
    forward = {argument: examples[n] for argument, n in zip(arguments, names)}
    modes = {m: m.training for m in module.modules()}
    buffers = Buffers(known_as)
    try:
        step = Lowering(exported(module, forward), buffers, frozen, owners, output, names)
        module.eval()
        evaluated = Lowering(exported(module, forward), buffers, frozen, owners, output, names)
    finally:
        for m, training in modes.items():
            m.training = training
    given = [f"{quoted('%', n)} : {type_text(x.dtype, [B, *examples[n].shape[1:]])}" for n, x in step.inputs.items()]
    if target is not None and target not in step.inputs:
        if target in examples:
            dtype, shape = TYPES[examples[target].dtype], list(examples[target].shape[1:])
        else:
            dtype, shape = ("i32", step.shape[1:-1]) if classes else ("f32", step.shape[1:])
        given.append(f"{quoted('%', target)} : {type_text(dtype, [B, *shape])}")
    title = name or re.sub(r"[^A-Za-z0-9_.-]", "-", type(module).__name__)
    settings = "".join(f"  set inputs.{n}.range = {count}\n" for n, count in buffers.ranges.items())
    order = [line for kind in ("state", "param", "accum") for n, line in buffers.lines.items() if line.startswith(kind)]
    start = "".join(f"    fill {quoted('@', n)} {{value = {literal(first_of(value), 'f32')}}}\n"
                    for n, value in buffers.values.items())
    text = (f"module {quoted('@', title)} phase(model) {{\n{settings}  " + "\n  ".join(order) + "\n\n"
            + f"  init {{\n{start}  }}\n\n" + region_text("step", step, given) + "\n"
            + region_text("eval", evaluated, given) + "}\n")
    return text, ModuleState(module, buffers, owners)


def first_of(value: torch.Tensor) -> float:
    """The number that all elements are; 0 where they differ: the session writes them."""
    flat = value.detach().reshape(-1)
    return flat[0].item() if len(flat) and bool((flat == flat[0]).all()) else 0.0


def taken_by(module: torch.nn.Module) -> list[str]:
    """The arguments of the forward."""
    return list(inspect.signature(module.forward).parameters)


def examples_of(module: torch.nn.Module, loader: Any, model: Mapping[str, Any]) -> dict[str, Any]:
    """The first batch by names: of a tuple those of the forward's arguments, then the target's."""
    batch = next(iter(loader), None)
    if batch is None:
        raise ValueError("the loader has no batch, and a module is exported with one")
    if isinstance(batch, Mapping):
        return dict(batch)
    loss = model.get("loss")
    target = model.get("target") or (loss.get("target") if isinstance(loss, Mapping) else None) or "target"
    names = [name for name in taken_by(module) if name != target][:len(batch) - 1]
    return dict(zip([*names, target], batch))
