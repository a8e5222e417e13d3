"""Tensors as the export sees them: their axes are PyTorch's, and their memory has the batch first.

A value of the IR has the batch B in front, and PyTorch may have it anywhere, as in [T, B, C] or [B * heads, T]. So a
Tensor has its axes as PyTorch sees them, each a product of extents, and lies in memory with B first and the other
extents in the same order. Views and axes of 1 cost nothing then. What `expand` repeats is not there in memory until
somebody needs it.
"""
from __future__ import annotations

import math
from typing import Any

import torch

B = "B"  # the batch, among extents
SAMPLES = "samples"  # the operand of arange(batch): each sample's own number


class Unsupported(Exception):
    """An operation that cannot be said; where it stands is added."""


class Tensor:
    """A value of the graph.

    axes      for each axis of PyTorch's its extents, as pairs (extent, whether it is there in memory)
    shape     of the operand in the IR: the extents that are there, B first; any reshape of them will do
    operand   its text in the IR: "%x", "@w"
    constant  its numbers, where they are known: of PyTorch's shape, but for what is repeated
    bounds    the least and the largest that its whole numbers can be, where they are known
    sources   inputs: each number is an element of one of them, or lies between the ends that follow, if any do
    """

    def __init__(self, axes: list, dtype: str, operand: str = "", shape: list | None = None, constant=None):
        self.axes, self.dtype, self.operand, self.constant = axes, dtype, operand, constant
        self.shape = in_memory(axes) if shape is None else shape
        self.permuted: tuple[Tensor, list[int]] | None = None  # of what it is a permutation
        self.bounds: tuple[int, int] | None = None
        self.sources: tuple[frozenset[str], tuple[int, int] | None] | None = None
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


def can_index(has: list[bool], shape: list) -> bool:
    """Returns whether a kernel can index an operand that has these extents of a domain (docs/ir.md, R9)."""
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
    value = torch.view_as_real(value) if value.is_complex() else value
    return Tensor(axes_of(list(value.shape)), "f32" if value.dtype.is_floating_point else "i32", constant=value)


def whole_constant(x: Tensor, samples: int = 0) -> torch.Tensor:
    """The numbers of a constant with what is repeated, also by a batch of that many samples."""
    there = [math.prod(n for n, real in axis if real) for axis in x.axes]
    if x.batched() and not samples or any(0 < sum(real for _, real in axis) < len(axis) for axis in x.axes):
        raise Unsupported("a constant is repeated")
    return x.constant.reshape(there).expand(
        [math.prod(samples if n == B else n for n, _ in axis) for axis in x.axes])
