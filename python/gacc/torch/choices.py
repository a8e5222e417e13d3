"""Translations of ATen's operations that choose among elements, order them, or round them."""
from __future__ import annotations

import functools
import math
from typing import Any

import torch

from .layers import embedding
from .operations import filled
from .region import Region, row, truth
from .tensor import B, SAMPLES, Tensor, Unsupported, known, whole_constant

aten = torch.ops.aten

MOST_ORDERED = 256  # elements: each is compared with each


def beside(x: Tensor, axis: int) -> Tensor:
    """x with one more axis, of 1, before that one of the last."""
    at = x.rank + 1 + axis
    return Region.with_axes(x, [*x.axes[:at], [], *x.axes[at:]])


def chosen(r: Region, hot: Tensor, x: Tensor) -> Tensor:
    """The elements of the last axis where `hot` [.., P, K] is not 0: one for each P. The others, which may be infinite,
    add 0."""
    return r.cast(r.rows("row_sum", r.select(hot, beside(x, -2), 0, x.dtype), [-1], False), x.dtype)


@row(aten.gather.default)
def gather(r: Region, x: Tensor, dim: int, places: Tensor, **_: Any) -> Tensor:
    if x.constant is not None and len(same := x.constant.unique()) == 1:
        return filled(r, same.item())
    (x, _), (places, back) = r.last(x, [dim % x.rank]), r.last(places, [dim % x.rank])
    if any(sorted(map(str, a)) != sorted(map(str, b)) for a, b in zip(sizes_of(x)[:-1], sizes_of(places)[:-1])):
        raise Unsupported("its places have other extents than its elements: slice the elements to them first")
    hot = r.each("equal", beside(places, -1), known(torch.arange(x.extent(-1))), dtype="i32")
    return r.permute(chosen(r, hot, x), back)


@row(aten.scatter.src, aten.scatter.value)
def scatter(r: Region, x: Tensor, dim: int, places: Tensor, given: Any, adds: bool = False) -> Tensor:
    """x with numbers at places that are data, which differ, or with the numbers added there."""
    (x, back), (places, _), *numbers = (
        r.last(each, [dim % x.rank]) for each in (x, places, given) if isinstance(each, Tensor))
    given = numbers[0][0] if numbers else given
    if any(sorted(map(str, a)) != sorted(map(str, b)) for each in (x, *(y for y, _ in numbers)) for a, b in zip(
            sizes_of(each)[:-1], sizes_of(places)[:-1])) or numbers and given.extent(-1) != places.extent(-1):
        raise Unsupported("its places have other extents than its numbers, or than what it writes into")
    hot = r.each("equal", beside(places, -2), known(torch.arange(x.extent(-1))[:, None]), dtype="i32")
    given = chosen(r, hot, given) if numbers else given
    if adds:
        return r.permute(r.each("add", x, given, dtype=r.dtype), back)
    return r.permute(r.select(truth(r, r.rows("row_max", hot, [-1], False)), given, x, r.dtype), back)


row(aten.scatter_add.default)(functools.partial(scatter, adds=True))


@row(aten.index.Tensor)
def index(r: Region, x: Tensor, indices: list) -> Tensor:
    given = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if given[0][1].operand == SAMPLES and x.axes[0] in ([(B, True)], [(B, False)]):
        del given[0]  # each sample of its own row
    if not given:
        return r.view(x, r.sizes)
    if any(i.constant is None for _, i in given):
        return by_data(r, x, given, len(given) < len(indices) - indices.count(None))
    if len(given) == 1 and given[0][1].repeated() and not x.batched():  # the same rows for each sample
        dim, i = given[0]
        n = x.extent(dim)
        y = r.take(x, dim, [int(k) % n for k in i.constant.reshape(-1)])
        return r.view(r.with_axes(y, [*y.axes[:dim], *i.axes, *y.axes[dim + 1:]]), r.sizes)
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


def by_data(r: Region, x: Tensor, given: list[tuple[int, Tensor]], own: bool) -> Tensor:
    """Rows of a table; and of each sample those that it names, as in x[torch.arange(len(x)), lengths - 1]."""
    (dim, places), others = given[0], x.rank - 1
    if len(given) > 1 or own != x.batched() or not own and dim:
        raise Unsupported("it takes elements by numbers that are data; gacc knows rows of a table, and those of each "
                          "sample by gather or x[torch.arange(len(x)), i]")
    if not own:
        rows = r.view(r.cast(x, "f32"), [(x.extent(0), False), (math.prod(map(x.extent, range(1, x.rank))), False)])
        return r.view(r.cast(embedding(r, rows, places), r.dtype), r.sizes)
    count, (x, _) = x.extent(dim), r.last(x, [dim])
    behind = r.each("mul", r.each("greater", 0, places, dtype="i32"), count, dtype="i32")
    places = r.each("add", places, behind, dtype="i32")  # from the end where they are below 0
    x = r.with_axes(x, [x.axes[0], *[[]] * (places.rank - 1), *x.axes[1:]])
    places = r.with_axes(places, places.axes + [[]] * (others + 1))
    hot = r.each("equal", places, known(torch.arange(count)), dtype="i32")
    return r.view(chosen(r, hot, x), r.sizes)


def sizes_of(x: Tensor) -> list[list]:
    return [[n for n, _ in axis if n != 1] for axis in x.axes]


@row(aten.topk.default)
def largest_of(r: Region, x: Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> list:
    return in_order(r, x, k, dim, largest)


@row(aten.sort.default, aten.sort.stable)
def sort(r: Region, x: Tensor, dim: int = -1, descending: bool = False, **_: Any) -> list:
    return in_order(r, x, x.extent(dim), dim, descending)


def in_order(r: Region, x: Tensor, k: int, dim: int, descending: bool) -> list:
    """The first k elements in their order and their places, by the number of elements that come before each."""
    (x, back), count = r.last(x, [dim % x.rank]), x.extent(dim)
    if count > MOST_ORDERED:
        raise Unsupported(f"it orders {count} numbers, and gacc at most {MOST_ORDERED}, each compared with each; max, "
                          "min and argmax take any number")
    this, other = beside(x, -1), beside(x, -2)
    ahead = r.each("greater", *((other, this) if descending else (this, other)), dtype="i32", takes=x.dtype)
    equal = r.each("equal", other, this, dtype="i32", takes=x.dtype)
    earlier = r.each("mul", equal, known(torch.ones(count, count, dtype=torch.int64).tril(-1)), dtype="i32")
    rank = r.cast(r.rows("row_sum", r.each("maximum", ahead, earlier, dtype="i32"), [-1], False), "i32")
    hot = r.each("equal", beside(rank, -2), known(torch.arange(k)[:, None]), dtype="i32")
    numbers = r.each("mul", hot, known(torch.arange(count)), dtype="i32")
    places = r.cast(r.rows("row_sum", numbers, [-1], False), "i32")
    places = r.permute(places, back)
    places.bounds = 0, count - 1
    return [r.permute(chosen(r, hot, x), back), places]


@row(aten.trunc.default)
def trunc(r: Region, x: Tensor) -> Tensor:
    """No gradient flows through it, as in PyTorch. From 2^23 on a number has nothing behind its point."""
    small = r.each("greater", 2.0**23, r.each("abs", x), dtype="i32", takes="f32")
    whole = r.cast(r.cast(r.select(small, x, 0.0, "f32"), "i32"), "f32")
    return r.detached(r.select(small, whole, x, "f32"))


@row(aten.floor.default)
def floor(r: Region, x: Tensor) -> Tensor:
    whole = trunc(r, x)
    return r.each("sub", whole, r.cast(r.each("greater", whole, x, dtype="i32", takes="f32"), "f32"))
