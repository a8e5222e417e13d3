"""Rotary positions, which modules write as x * cos + turned(x) * sin, as gacc's one op `rope` before an attention."""
from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from .patterns import VIEWS, made_by, passes
from .tensor import Tensor, Unsupported, extents, whole_constant

aten = torch.ops.aten
# What tables of angles are made by. Whether positions stay apart is seen by the tables' numbers.
OF_ONE_POSITION = {*VIEWS, aten.mul.Tensor, aten._to_copy.default, aten.clone.default, aten.alias.default,
                   aten.copy.default, aten.unsqueeze.default, aten.expand.default, aten.permute.default,
                   aten.cat.default, aten.stack.default, aten.slice.Tensor, aten.slice_scatter.default,
                   aten.select.int, aten.select_scatter.default, aten.bmm.default, aten.cos.default, aten.sin.default}

NO_TURN = (Unsupported, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Turn:
    """How the first `rotated` channels of each head are turned: by position * frequency, of each pair."""
    frequencies: tuple[float, ...]
    magnitude: float
    interleaved: bool
    positions: str | None  # their operand; None: they count from the window's begin

    @property
    def rotated(self) -> int:
        return 2 * len(self.frequencies)

    def spread(self, of_pairs: torch.Tensor) -> torch.Tensor:
        """[.., pairs] to [.., rotated]."""
        return of_pairs.repeat_interleave(2, -1) if self.interleaved else torch.cat([of_pairs] * 2, -1)

    @property
    def attributes(self) -> dict[str, Any]:
        return {"theta": 1.0, "rotated": self.rotated, "interleaved": self.interleaved,
                "scales": list(self.frequencies), "magnitude": self.magnitude if self.magnitude != 1 else False}


class Turned(NamedTuple):
    """A value that is the turn of another."""
    before: Tensor
    axes: list
    turn: Turn


class Rotations:
    """The turned values of a graph: what each is the turn of, by its node."""

    def __init__(self, values: Mapping[fx.Node, Any], positions: Any):
        """`positions`: the operation that makes those of documents."""
        self.values, self.operation = values, positions
        self.found: dict[fx.Node, tuple[fx.Node, Turn]] = {}
        self.numbers: dict[fx.Node, Any] = {}  # of one sample, whose documents' positions are `scattered`
        self.turns: dict[tuple, Turn | None] = {}

    def of(self, node: fx.Node) -> tuple[fx.Node, Turn] | None:
        """What is turned, and how, where the node is such a sum, or one with the channels behind it."""
        with contextlib.suppress(*NO_TURN):
            self.find(node)
        return self.found.get(node)

    def find(self, node: fx.Node) -> None:
        if made_by(node, aten.add.Tensor) and not node.kwargs:
            for plain, crossed in (node.args, node.args[::-1]):
                if made_by(plain, aten.mul.Tensor) and made_by(crossed, aten.mul.Tensor) and (
                        each := self.sum_of(plain.args, crossed.args)) and shape(each[0]) == shape(node):
                    self.found[node] = each
        elif made_by(node, aten.cat.default) and len(node.args[0]) == 2 and on_last(node, node.args[1:]):
            head, rest = (whole(n) for n in node.args[0])
            x, turn = self.found.get(head, (None, None))
            first, second = part(x), part(rest)
            if turn and first and second and first[0] is second[0] and first[1:] == (0, turn.rotated, 1) and (
                    second[1:] == (turn.rotated, shape(second[0])[-1], 1)):
                self.found[node] = first[0], turn

    def sum_of(self, plain: tuple, crossed: tuple) -> tuple[fx.Node, Turn] | None:
        for x, cosine in (plain, plain[::-1]):
            for turned, sine in (crossed, crossed[::-1]):
                interleaved = half_turned(turned, whole(x))
                if interleaved is not None and (turn := self.turn(cosine, sine, interleaved, shape(whole(x))[-1])):
                    return whole(x), turn
        return None

    def turn(self, cosine: Any, sine: Any, interleaved: bool, rotated: int) -> Turn | None:
        """The turn that the tables of cos and sin are of; None where they are of another function."""
        key = cosine, sine, interleaved, rotated
        if key not in self.turns:
            self.turns[key] = None  # where what follows fails
            self.turns[key] = self.by_numbers(cosine, sine, interleaved, rotated)
        return self.turns[key]

    def by_numbers(self, cosine: fx.Node, sine: fx.Node, interleaved: bool, rotated: int) -> Turn | None:
        made = first_of(cosine)
        if not made_by(made, aten.cos.default) or not isinstance(sine, fx.Node) or len(shape(cosine)) < 2:
            return None
        count = shape(cosine)[-2]
        if not isinstance(count, int) or count < 2:
            return None
        positions = self.documents(made)
        places = scattered(count)[0] if positions else torch.arange(count)
        angles = self.of_one_sample(made.args[0])
        angles, *tables = (x.reshape(-1, x.shape[-1]) for x in (angles, *map(self.of_one_sample, (cosine, sine))))
        if any(list(table.shape) != [count, rotated] for table in tables) or len(angles) % count:
            return None
        angles = angles[:count]  # of the first of several grids, as images have; tables are compared whole
        magnitude = float(tables[0][places == 0][0, 0])
        for frequencies in (angles[places == 1][0, :rotated // 2], angles[places == 1][0, ::2]):
            turn = Turn(tuple(frequencies.tolist()), magnitude, interleaved, positions)
            if turn.rotated != rotated or not 0 < magnitude < math.inf or not all(
                    0 < f <= 1 for f in turn.frequencies):
                continue
            expected = turn.spread(places[:, None].float() * frequencies)
            if all(torch.allclose(table, magnitude * function(expected), rtol=0, atol=1e-6 * magnitude)
                   for table, function in zip(tables, (torch.cos, torch.sin))):
                return turn
        return None

    def documents(self, node: fx.Node) -> str | None:
        """The operand of the documents' positions that a node is made of."""
        if node.target == self.operation:
            return self.values[node].operand
        return next(filter(None, map(self.documents, node.all_input_nodes)), None) if self.open(node) else None

    def open(self, node: fx.Node) -> bool:
        """Whether a node's numbers are those of its operands."""
        return node.target in OF_ONE_POSITION and getattr(self.values.get(node), "constant", None) is None

    def of_one_sample(self, node: fx.Node) -> Any:
        if node not in self.numbers:
            value, x = node.meta.get("val"), self.values.get(node)
            if isinstance(value, torch.SymInt):
                self.numbers[node] = extents([value])[0][0]
            elif node.target == self.operation:
                self.numbers[node] = scattered(shape(node)[1])
            elif isinstance(x, Tensor) and x.constant is not None:
                self.numbers[node] = whole_constant(x, 1).to(value.dtype)
            elif self.open(node):
                self.numbers[node] = node.target(*fx.node.map_arg(node.args, self.of_one_sample),
                                                 **fx.node.map_arg(node.kwargs, self.of_one_sample))
            else:
                raise Unsupported("its numbers are not known")
        return self.numbers[node]


def scattered(count: int) -> torch.Tensor:
    """Positions of one sample in an order that no table has by itself, so that tables of these are no tables of a
    window's own."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return (order if (order.diff() != 1).any() else order.flip(0))[None]


def first_of(node: Any) -> Any:
    """The cos, or sin, that a table is made of."""
    while isinstance(node, fx.Node) and node.target in OF_ONE_POSITION - {aten.cos.default, aten.sin.default}:
        node = node.args[node.target is aten.copy.default]
        node = node[0] if isinstance(node, (list, tuple)) else node
    return node


def shape(node: fx.Node) -> torch.Size:
    return node.meta["val"].shape


def on_last(node: fx.Node, said: tuple) -> bool:
    return (said[0] if said else 0) in (-1, len(shape(node)) - 1)


def whole(node: Any) -> Any:
    """What a node has all elements of, in the same shape."""
    while passes(node) or made_by(node, aten.slice.Tensor) and shape(node) == shape(node.args[0]):
        node = node.args[0]
    return node


def part(node: Any) -> tuple[fx.Node, int, int, int] | None:
    """What a node is a slice of along the last axis: begin, end, step."""
    node = whole(node)
    if made_by(node, operator.getitem) and made_by(node.args[0], aten.split_with_sizes.default):
        x, sizes, *dim = node.args[0].args
        begin, end, step = sum(sizes[:node.args[1]]), sum(sizes[:node.args[1] + 1]), 1
    elif made_by(node, aten.slice.Tensor):
        x, *dim = node.args[:2]
        begin, end, _ = slice(*node.args[2:4]).indices(shape(x)[-1])
        step = node.args[4] if len(node.args) > 4 else 1
    else:
        return None
    return (whole(x), begin, end, step) if on_last(x, tuple(dim)) else None


def half_turned(node: Any, x: Any) -> bool | None:
    """Whether pairs lie side by side, where the node has (-b, a) of each pair (a, b) of x."""
    node = whole(node)
    interleaved = made_by(node, *VIEWS)
    node = whole(node.args[0]) if interleaved else node
    if not isinstance(x, fx.Node) or not made_by(node, aten.stack.default if interleaved else aten.cat.default) or (
            len(node.args[0]) != 2 or not on_last(node, node.args[1:])):
        return None
    b, a = map(whole, node.args[0])
    if not made_by(b, aten.neg.default):
        return None
    count = shape(x)[-1]
    of = ((x, 0, count, 2), (x, 1, count, 2)) if interleaved else (
        (x, 0, count // 2, 1), (x, count // 2, count, 1))
    return interleaved if count % 2 == 0 and (part(a), part(b.args[0])) == of else None
