"""A region of the IR in the making: its ops as text, and the ops that all rows of the table are made of."""
from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from .._library import Error
from .tensor import B, SAMPLES, Tensor, Unsupported, can_index, in_memory, known, merged, refined, split, whole_extents

EMPTY = "it takes no element of an axis, and no tensor of gacc's is empty"
MOST_TABLE = 1024  # numbers that the text makes one by one
VALUE = r'%(?:[A-Za-z0-9_.$/-]+|"(?:[^"\\]|\\.)*")'  # a value's name
RESULTS = re.compile(rf"{VALUE}(?:, {VALUE})* = ")
KEEP_TRUTH = {"reshape", "permute", "slice", "broadcast", "concat", "mul", "maximum", "select"}  # give 0, 1 of such


def literal(number: float | int | bool, dtype: str) -> str:
    if dtype == "i32":
        if not -2**31 <= number < 2**31:
            raise Unsupported(f"it uses {int(number)}, and gacc's whole numbers have 32 bits")
        return str(int(number))
    text = repr(float(number))
    return text if any(c in text for c in ".einf") else text + ".0"


def attribute(value: Any) -> str:
    if value == B:
        return "-1"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(attribute, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) else literal(value, "i32" if isinstance(value, int) else "f32")


def quoted(sigil: str, name: str) -> str:
    return sigil + (name if re.fullmatch(r"[A-Za-z0-9_.$/-]+", name) else json.dumps(name))


def type_text(dtype: str, shape: list) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def alive(lines: list[str], output: str) -> list[str]:
    """The ops that the output is made of, and those that write buffers. Where an op takes what lies behind another one,
    that one may be read by nothing."""
    wanted, kept = {output}, []
    for line in reversed(lines):
        results = RESULTS.match(line)
        if results is None or not wanted.isdisjoint(re.findall(VALUE, results[0])):
            wanted.update(re.findall(VALUE, line))
            kept.append(line)
    return kept[::-1]


class Buffers:
    """The common part of both regions: parameters, running statistics, and constants that a kernel reads."""

    def __init__(self, taken: Collection[str] = (), written: bool = False) -> None:
        self.taken = taken  # names of the module's state_dict()
        self.written = written  # constants stand in the text; else they are frozen parameters, which a session writes
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
        value = value.detach().to(torch.float32).contiguous()
        key = (tuple(value.shape), value.numpy().tobytes())
        if key not in self.constants:
            free = (f"constants.{i}" for i in itertools.count(len(self.constants)))
            self.constants[key] = name = next(n for n in free if n not in self.lines and n not in self.taken)
            return self.parameter(name, value, frozen=True)
        return quoted("@", self.constants[key])

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
        # The operation in the making: its result's sizes and type.
        self.sizes: list[tuple[int, bool]] = []
        self.dtype = "f32"
        self.boolean = False  # whether PyTorch's is torch.bool
        self.truths: set[str] = set()  # values of whole numbers that are known to be 0 or 1
        self.streams = 0
        self.moves: dict[str, tuple[str, float, list[str]]] = {}  # how batch norms have moved a running statistic
        self.documents: tuple[str, str, int] | None = None  # their numbers and spans, and the positions of a window
        self.positions: set[str] = set()  # values that `documents` makes
        self.permutes: dict[str, tuple[str, list[int]]] = {}  # what a value is a permutation of, and its axes
        self.turned: dict[str, Any] = {}  # what a value is the turn of: rotary.Turned
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
        if op == "permute" and operands[0] in self.permutes:
            before, axes = self.permutes[operands[0]]
            operands, attributes = [before], {"axes": [axes[i] for i in attributes["axes"]]}
            if attributes["axes"] == sorted(axes):
                return before
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
        if op == "permute":
            self.permutes[names[0]] = operands[0], attributes["axes"]
        if op in ("reshape", "permute", "slice") and operands[0] in self.numbers:
            self.numbers[names[0]] = self.numbers[operands[0]]
        if op in ("equal", "not_equal", "greater") or names and types[0][0] == "i32" and (
                op in KEEP_TRUTH and all(x in self.truths or x in ("0", "1") for x in operands[op == "select":])):
            self.truths.add(names[0])
        return out

    def read(self, x: Tensor) -> str:
        """The operand; a constant becomes a number or a frozen parameter."""
        if x.operand == SAMPLES:
            raise Unsupported("it computes with the numbers of the samples in a batch; gacc's samples are independent")
        if x.constant is None:
            return x.operand
        value = x.constant
        if value.numel() == 0:
            raise Unsupported(EMPTY)
        if value.numel() == 1:
            x.shape = []
            return literal(value.reshape(-1)[0].item(), x.dtype)
        if x.dtype == "i32" and value.long().abs().max() > 2**24:
            raise Unsupported("it uses several whole numbers beyond 2^24, which gacc keeps in f32")
        shape = in_memory(x.axes)
        if self.buffers.written:
            made = self.cast(self.table(value.reshape(shape).float()), x.dtype)
            x.operand, x.shape, x.constant = made.operand, made.shape, None
            return x.operand
        operand = self.numbers_of(value.reshape(shape))
        if x.dtype == "i32":
            operand = self.emit("cast", [operand], ("i32", shape), to="i32")
        x.operand, x.shape, x.constant = operand, shape, None
        return operand

    def numbers_of(self, value: torch.Tensor) -> str:
        """A constant as a frozen parameter. What is not finite, which no file of parameters has, is chosen there."""
        finite = value.isfinite() if value.is_floating_point() else torch.ones_like(value, dtype=torch.bool)
        if finite.all():
            return self.buffers.constant(value)
        rest = torch.where(finite, value, 0.0)
        out, kind = "0.0" if not rest.any() else self.buffers.constant(rest), list(value.shape)
        for number in (math.inf, -math.inf, math.nan):
            if (there := value.isnan() if math.isnan(number) else value == number).any():
                chosen = self.emit("not_equal", [self.buffers.constant(there), "0.0"], ("i32", kind))
                out = self.emit("select", [chosen, literal(number, "f32"), out], ("f32", kind))
        return out

    def table(self, value: torch.Tensor) -> Tensor:
        """The numbers by ops, which need no parameter: counted, in a band, products of two vectors, or one by one."""
        shape = list(value.shape)
        if len(shape) == 1 and shape[0] > 2 and torch.equal(value, torch.arange(shape[0], dtype=torch.float32)):
            count, whole = 1, Tensor([], "f32", self.repeated("0.0", "f32", [1]), [1])
            while count < shape[0]:
                more = self.emit("add", [whole.operand, literal(count, "f32")], ("f32", [count]))
                wide = self.emit("concat", [whole.operand, more], ("f32", [2 * count]), axis=0)
                count, whole = 2 * count, Tensor([], "f32", wide, [2 * count])
            operand = whole.operand if count == shape[0] else self.emit(
                "slice", [whole.operand], ("f32", shape), axis=0, size=shape[0], **{"from": 0})
            return Tensor([[(shape[0], True)]], "f32", operand, shape)
        if (made := self.band(value)) is not None:
            return made
        if len(shape) == 2 and shape[0] > 2 and value.numel() > 64:
            counted = torch.arange(shape[0], dtype=torch.float32)[:, None]
            if torch.equal(value, counted * value[1]):
                return self.each("mul", self.with_axes(known(counted[:, 0]), [[(shape[0], True)], []]), known(value[1]))
        if value.numel() > MOST_TABLE:
            for axis, count in enumerate(shape):
                one = value.select(axis, 0)
                if torch.equal(value, one.unsqueeze(axis).expand_as(value)):  # the same all along this axis
                    made = self.table(one)
                    axes = [*made.axes[:axis], [(count, False)] * (count > 1), *made.axes[axis:]]
                    return self.real(self.with_axes(made, axes))
            raise Unsupported(f"it computes with a table of {value.numel()} numbers, which the text would have to hold")
        numbers = [self.repeated(literal(number, "f32"), "f32", [1]) for number in value.reshape(-1).tolist()]
        count = len(numbers)
        operand = numbers[0] if count == 1 else self.emit("concat", numbers, ("f32", [count]), axis=0)
        return self.with_shape(operand, [count], shape)

    def with_shape(self, operand: str, flat: list, shape: list) -> Tensor:
        out = Tensor([[(n, True)] for n in shape], "f32", operand, flat)
        self.shaped(out, shape)
        return out

    def band(self, value: torch.Tensor) -> Tensor | None:
        """A matrix of two numbers, one of them in a band beside the diagonal, as masks are, by comparisons."""
        if value.dim() != 2 or value.numel() < 64:
            return None
        rows, columns = value.shape
        off = torch.arange(rows)[:, None] - torch.arange(columns)
        outside = value[0, -1]
        inside = off[value != outside]
        if not len(inside):
            return None
        low, high, number = int(inside.min()), int(inside.max()), value[value != outside][0]
        if not torch.equal(value, torch.where((off >= low) & (off <= high), number, outside)):
            return None
        places = [known(torch.arange(n)) for n in (rows, columns)]  # whole numbers, which no half type rounds
        off = self.each("sub", self.with_axes(places[0], [places[0].axes[0], []]), places[1], dtype="i32")
        beyond = self.each("greater", low, off, dtype="i32")
        if high < rows - 1:
            beyond = self.each("maximum", beyond, self.each("greater", off, high, dtype="i32"), dtype="i32")
        return self.select(beyond, float(outside), float(number), "f32")

    def shaped(self, x: Tensor, shape: list) -> str:
        operand = self.read(x)
        if operand[0] not in "%@" and shape:
            return self.repeated(operand, x.dtype, shape)
        if x.shape == shape:
            return operand
        before, its_shape = self.reshaped.get(operand, (operand, x.shape))
        if its_shape == shape:
            return before
        out = self.emit("reshape", [before], (x.dtype, shape), shape=shape)
        self.reshaped[out] = (before, its_shape)
        return out

    def repeated(self, operand: str, dtype: str, shape: list) -> str:
        """A value, or a number, broadcast; numbers are floats there."""
        if operand[0] in "%@" or dtype == "f32":
            return self.emit("broadcast", [operand], (dtype, shape), shape=shape)
        return self.emit("cast", [self.repeated(operand + ".0", "f32", shape)], (dtype, shape), to=dtype)

    def stream(self) -> int:
        """The number of the next stream of random numbers."""
        self.streams += 1
        return self.streams

    def detached(self, x: Tensor) -> Tensor:
        """The same numbers, through which no gradient flows."""
        if x.constant is not None or x.dtype != "f32":
            return x
        operand = self.emit("reshape", [x.operand], (x.dtype, x.shape), shape=x.shape, detached=True)
        return Tensor(x.axes, x.dtype, operand, x.shape)

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
            operand = self.repeated(row, dtype, shape)
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
            operand = self.repeated(operand, dtype, shape)
        return Tensor(axes, dtype, operand, shape)

    def aligned(self, tensors: list[Tensor]) -> list[Tensor]:
        """The same with as many axes, all of the same extents, repeated where one has 1."""
        rank = max(x.rank for x in tensors)
        padded = [[[]] * (rank - x.rank) + x.axes for x in tensors]
        columns = [refined([axes[i] for axes in padded]) for i in range(rank)]
        return [self.with_axes(x, [column[k] for column in columns]) for k, x in enumerate(tensors)]

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

    @staticmethod
    def moved(x: Tensor, order: list[int]) -> list[int]:
        """The order in which the extents in memory, but for the batch, are those of the permuted axes."""
        there = [[(i, j) for j, (n, real) in enumerate(axis) if real and n != B] for i, axis in enumerate(x.axes)]
        flat = [each for axis in there for each in axis]
        return [flat.index(each) for i in order for each in there[i]]

    def permute(self, x: Tensor, order: list[int]) -> Tensor:
        axes = [x.axes[i] for i in order]
        moved = self.moved(x, order)
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
        if all(all(who) for _, who in domain):  # any shape will do, and one that is there already costs no reshape
            shape = max((t.shape for t in tensors if t.constant is None), key=len, default=shape)
            domain = [(n, [True] * len(tensors)) for n in shape]
        texts = [[who[k] for _, who in domain] for k in range(len(tensors))]
        if shape and not any(all(has) for has in texts):
            tensors[0] = self.expanded(tensors[0], axes)
            texts[0] = [True] * len(shape)
        out, placed = [], iter(zip(tensors, texts))
        for x in operands:
            if not isinstance(x, Tensor):
                out.append(literal(x, takes))
                continue
            t, has = next(placed)
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
        return Tensor(x.axes, dtype, self.emit("cast", [self.read(x)], (dtype, x.shape), to=dtype), x.shape)

    def select(self, condition: Tensor, yes: Any, no: Any, dtype: str) -> Tensor:
        if dtype == "i32" and all(not isinstance(x, Tensor) or x.constant is not None and x.constant.numel() == 1
                                  for x in (yes, no)):  # a select of two numbers gives f32
            return self.cast(self.select(condition, yes, no, "f32"), dtype)
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
        out = Tensor(kept, dtype, self.emit(op, [self.shaped(y, lead + [count])], (dtype, lead + [1])), lead + [1])
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
        one, other = (any(there for axis in x.axes[:-2] for _, there in axis)
                      or self.with_axes(x, x.axes[-2:]).batched() for x in (a, b))  # whether a factor differs
        if not other:
            y = self.matrix(a, self.with_axes(b, b.axes[-2:]), False)
            return self.with_axes(y, a.axes[:-1] + y.axes[-1:]) if not a.repeated() else y
        if not one:
            y = self.matrix(self.permute(b, swap), self.with_axes(a, a.axes[-2:]), True)
            return self.permute(y, swap)
        if not a.batched() and (B, True) in b.axes[-1]:
            return self.permute(self.product(self.permute(b, swap), self.permute(a, swap)), swap)
        rows = a.axes[-2]
        if not b.batched() and (B, True) in (rows[:1] + rows[-1:]):  # each sample gets the other factor
            own = [pair for pair in rows if pair[0] != B]
            y = self.product(self.with_axes(a, [*a.axes[:-2], [(B, True)], own, a.axes[-1]]),
                             self.with_axes(b, [*b.axes[:-2], [(B, False)], *b.axes[-2:]]))
            joined = y.axes[-3] + y.axes[-2] if rows[0][0] == B else y.axes[-2] + y.axes[-3]
            return self.with_axes(y, [*y.axes[:-3], joined, y.axes[-1]])
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
        """Returns whether the transposed one is there already, or nearer to what x was made of."""
        before, by = x.permuted
        if in_memory(x.axes) != x.shape:
            return False
        back = self.moved(x, swap)
        return len(back) == len(by) and [by[i] for i in back] == sorted(by)

    def concat(self, tensors: list[Tensor], dim: int) -> Tensor:
        tensors = [x for x in tensors if [(0, True)] not in x.axes]
        if len(tensors) == 1:
            return tensors[0]
        dim %= tensors[0].rank
        dtype = "f32" if any(x.dtype == "f32" for x in tensors) else tensors[0].dtype
        batched = any(x.batched() for x in tensors)
        shapes, operands = [], []
        for x in tensors:
            x = self.real(self.cast(x, dtype))
            if batched and not x.batched():
                raise Unsupported("it joins what has the batch and what has not")
            lead, tail = whole_extents(x.axes[:dim]), whole_extents(x.axes[dim + 1:])
            shape = [B] * batched + lead + [x.extent(dim)] + tail
            shapes.append(shape)
            operands.append(self.shaped(x, shape))
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
        if size < 1:  # which may only be joined to others
            axes = [[(0, True)] if i == dim else [(n, False) for n, _ in axis] for i, axis in enumerate(x.axes)]
            return Tensor(axes, x.dtype, constant=torch.empty(0))
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
        axes = [*x.axes[:dim], axes[dim], *x.axes[dim + 1:]]
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
            return self.slice(x, dim, 0, 0)
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


def truth(r: Region, x: Tensor) -> Tensor:
    """0 where x is 0, else 1."""
    if x.constant is not None:
        return Tensor(x.axes, "i32", constant=(x.constant != 0).to(torch.int32))
    return x if x.operand in r.truths else r.each("not_equal", x, 0, dtype="i32", takes=x.dtype)


def dropped(x: Tensor, dim: int) -> Tensor:
    axes = [axis for i, axis in enumerate(x.axes) if i != dim % x.rank]
    return Region.with_axes(x, axes)


def plain_sizes(r: Region) -> list[int]:
    return [n for n, _ in r.sizes]


OPERATIONS: dict[Any, Callable] = {}  # from an overload to what makes the ops of it: (region, *arguments) -> Tensor


def row(*overloads: Any) -> Callable:
    def enter(build: Callable) -> Callable:
        for overload in overloads:
            OPERATIONS[overload] = build
        return build
    return enter
