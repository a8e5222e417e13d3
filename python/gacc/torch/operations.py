"""Translations of ATen's operations: arithmetic, comparisons, shapes, sums and products."""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import torch

from .patterns import VIEWS
from .region import OPERATIONS, Region, dropped, row, truth
from .tensor import B, SAMPLES, Tensor, Unsupported, extents, known

aten = torch.ops.aten

MOST_POWER = 1024  # of an exponent that is a number


def pointwise(op: str, **attributes: Any) -> Callable:
    return lambda r, *given, **_: r.each(op, *given, **attributes)


def arithmetic(op: str) -> Callable:
    """Translates an op of floats, or of whole numbers where the result is one."""
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


for name in ("exp", "log", "sqrt", "reciprocal", "sigmoid", "tanh", "relu", "silu", "erf", "sin", "cos"):
    OPERATIONS[getattr(aten, name).default] = pointwise(name)
for name in ("add", "sub", "mul"):
    for overload in ("Tensor", "Scalar"):
        OPERATIONS[getattr(getattr(aten, name), overload)] = arithmetic(name)
for name, (op, turn, negate) in {"eq": ("equal", False, False), "ne": ("not_equal", False, False),
                                 "gt": ("greater", False, False), "lt": ("greater", True, False),
                                 "ge": ("greater", True, True), "le": ("greater", False, True)}.items():
    for overload in ("Tensor", "Scalar"):
        OPERATIONS[getattr(getattr(aten, name), overload)] = comparison(op, turn, negate)
OPERATIONS.update({
    aten.abs.default: lambda r, x: (r.each("abs", x) if x.dtype == "f32" else
                                    r.each("maximum", x, negative(r, x), dtype="i32")),
    aten.isnan.default: lambda r, x: r.each("not_equal", x, x, dtype="i32", takes=x.dtype),
    aten.neg.default: lambda r, x: negative(r, x),
    aten.sum.default: lambda r, x, **_: r.rows("row_sum", x, [], False),
    aten.mean.default: lambda r, x, **_: mean(r, x, []),
    aten.max.default: lambda r, x: r.rows("row_max", x, [], False),
    aten.min.default: lambda r, x: r.rows("row_min", x, [], False),
    aten.maximum.default: lambda r, x, y: r.each("maximum", x, y, dtype=r.dtype),
    aten.gelu.default: lambda r, x, approximate="none": r.each("gelu" if approximate == "none" else "gelu_tanh", x),
    aten.leaky_relu.default: lambda r, x, slope=0.01: r.each("leaky_relu", x, slope=float(slope)),
    aten.softplus.default: lambda r, x, beta=1.0, threshold=20.0: softplus(r, x, beta, threshold),
    aten.mish.default: lambda r, x: r.each("mul", x, r.each("tanh", softplus(r, x))),
    aten.logical_not.default: lambda r, x: r.each("equal", x, 0, dtype="i32", takes=x.dtype),
    aten.bitwise_not.default: lambda r, x: r.each("equal", x, 0, dtype="i32"),
    **dict.fromkeys((aten.logical_and.default, aten.bitwise_and.Tensor),
                    lambda r, x, y: r.each("mul", truth(r, x), truth(r, y), dtype="i32")),
    **dict.fromkeys((aten.logical_or.default, aten.bitwise_or.Tensor),
                    lambda r, x, y: r.each("maximum", truth(r, x), truth(r, y), dtype="i32")),
    **dict.fromkeys((aten.logical_xor.default, aten.bitwise_xor.Tensor),
                    lambda r, x, y: r.each("not_equal", truth(r, x), truth(r, y), dtype="i32")),
    aten.where.self: lambda r, c, x, y: r.select(truth(r, c), x, y, r.dtype),
    aten._to_copy.default: lambda r, x, **_: truth(r, x) if r.boolean else r.cast(x, r.dtype),
    **dict.fromkeys((aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default),
                    lambda r, x, **_: x),  # where a gradient ends is gacc.detached
    aten.copy.default: lambda r, x, y, *_: expand(r, r.cast(y, r.dtype), None),
    **dict.fromkeys((aten.empty.memory_format, aten.empty_permuted.default, aten.empty_like.default),
                    lambda r, *_, **__: filled(r, 0)),
    aten.full_like.default: lambda r, x, value, **_: filled(r, value),
    aten.full.default: lambda r, size, value, **_: filled(r, value),
    aten.scalar_tensor.default: lambda r, value, **_: filled(r, value),
    # shapes
    **dict.fromkeys((*VIEWS, aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim),
                    lambda r, x, how: r.view(x, r.sizes)),
    aten.permute.default: lambda r, x, order: r.permute(x, [i % x.rank for i in order]),
    aten.stack.default: lambda r, tensors, dim=0: stacked(r, tensors, dim % (tensors[0].rank + 1)),
    aten.cat.default: lambda r, tensors, dim=0: r.concat(tensors, dim),
    aten.select.int: lambda r, x, dim, i: dropped(r.slice(x, dim, i % x.extent(dim), 1), dim),
    aten.split_with_sizes.default: lambda r, x, sizes, dim=0: [
        r.slice(x, dim, sum(sizes[:i]), n) for i, n in enumerate(sizes)],
    # sums and the like
    aten.sum.dim_IntList: lambda r, x, dims, keep=False, **_: r.rows("row_sum", r.cast(x, "f32"), dims, keep),
    aten.amax.default: lambda r, x, dims=(), keep=False: r.rows("row_max", x, dims, keep),
    aten.amin.default: lambda r, x, dims=(), keep=False: r.rows("row_min", x, dims, keep),
    aten.max.dim: lambda r, x, dim, keep=False: [r.rows("row_max", x, [dim], keep), largest(r, x, dim, keep)],
    aten.min.dim: lambda r, x, dim, keep=False: [r.rows("row_min", x, [dim], keep),
                                                 largest(r, negative(r, x), dim, keep)],
    aten.argmax.default: lambda r, x, dim=None, keep=False: largest(r, x, dim, keep),
    aten.argmin.default: lambda r, x, dim=None, keep=False: largest(r, negative(r, x), dim, keep),
    **{op: lambda r, x, dims=None, keep=False, how=how: r.cast(r.rows(
        how, truth(r, x), dims if isinstance(dims, list) else [] if dims is None else [dims], keep), "i32")
       for every, how in (("any", "row_max"), ("all", "row_min")) for op in map(
           getattr(aten, every).__getattr__, ("default", "dim", "dims"))},
    aten.var_mean.correction: lambda r, x, dims=None, correction=1, keepdim=False: [
        variance(r, x, dims, correction, keepdim), mean(r, x, dims, keepdim)],
    aten._softmax.default: lambda r, x, dim, half=False: r.along("softmax", x, dim),
    aten._log_softmax.default: lambda r, x, dim, half=False: r.along("log_softmax", x, dim),
    # products
    **dict.fromkeys((aten.mm.default, aten.bmm.default), lambda r, x, y: r.product(x, y)),
    aten.addmm.default: lambda r, bias, x, w, beta=1, alpha=1: r.each("add", *(
        y if factor == 1 else r.each("mul", y, factor) for y, factor in ((r.product(x, w), alpha), (bias, beta)))),
})


def stacked(r: Region, tensors: list[Tensor], dim: int) -> Tensor:
    return r.concat([r.with_axes(x, [*x.axes[:dim], [], *x.axes[dim:]]) for x in tensors], dim)


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
    axes = [repeated(*size) for size in r.sizes]
    number = float(value) if r.dtype == "f32" else int(bool(value) if r.boolean else value)
    empty = [(0, True)] in axes
    return Tensor(axes, r.dtype, constant=torch.empty(0) if empty else torch.tensor(number))


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
    if p < 0:
        return r.each("reciprocal", power(r, x, -p))
    if p == int(p):
        y, left, out = x, int(p), None
        while left:
            if left & 1:
                out = y if out is None else r.each("mul", out, y)
            left >>= 1
            y = r.each("square", y) if left else y
        return out
    if 2 * p == int(2 * p):
        return r.each("mul", power(r, x, p - 0.5), r.each("sqrt", x))
    return r.each("exp", r.each("mul", r.each("log", x), float(p)))


@row(aten.pow.Scalar)
def power_of_number(r: Region, base: float, p: Tensor) -> Tensor:
    if not base > 0:
        raise Unsupported(f"its base is {base}; gacc takes numbers above 0")
    return r.each("exp", r.each("mul", p, math.log(base)))


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
    """The gradient of an element on a limit is the element's or 0, as the PyTorch at hand has it."""
    takes, x = r.dtype, r.cast(x, r.dtype)  # a fraction makes fractions of whole numbers

    def limited(x: Tensor, limit: Any, *order: Any) -> Tensor:
        beyond = r.each("greater", *order, dtype="i32", takes=takes)
        if takes == "f32" and not limits_have_gradients():
            beyond = r.each("maximum", beyond, r.each("equal", x, limit, dtype="i32", takes=takes), dtype="i32")
        return r.select(beyond, limit, x, takes)
    x = x if low is None else limited(x, low, low, x)
    return x if high is None else limited(x, high, x, high)


@functools.cache
def limits_have_gradients() -> bool:
    x = torch.ones(1, requires_grad=True)
    with torch.enable_grad():
        x.clamp(min=1.0).sum().backward()
    return bool(x.grad)


@row(aten.expand.default)
def expand(r: Region, x: Tensor, size: Any, **_: Any) -> Tensor:
    sizes = r.sizes
    return by_repeating(x, [axis if axis else repeated(*times)
                            for axis, times in zip([[]] * (len(sizes) - x.rank) + x.axes, sizes)])


@row(aten.repeat.default)
def repeat(r: Region, x: Tensor, times: Any) -> Tensor:
    counts = extents(times)
    return by_repeating(x, [[*repeated(*count), *axis]
                            for axis, count in zip([[]] * (len(counts) - x.rank) + x.axes, counts)])


def repeated(number: int, batch: bool) -> list:
    """An axis on which everything is the same; one of 0 elements may only be joined to others."""
    return [(0, True)] if number == 0 else [(B, False)] * batch + ([(number, False)] if number > 1 else [])


def by_repeating(x: Tensor, axes: list) -> Tensor:
    y = Region.with_axes(x, axes)
    y.permuted = None
    return y


@row(aten.as_strided.default)
def as_strided(r: Region, x: Tensor, size: Any, stride: Any, offset: int | None = None) -> Tensor:
    """The same numbers, where only one axis beside the batch is longer than 1: so PyTorch 2.4 ends its means."""
    given = [(n, batch, step) for (n, batch), step in zip(r.sizes, stride) if batch or n > 1]
    if offset or len(given) != 2 or given[0] != (1, True, given[1][0]) or given[1][1:] != (False, 1):
        raise Unsupported("it reads memory in steps of its own: say it by views and slices")
    return r.view(x, r.sizes)


def all_of(x: Tensor, dim: int, begin: Any, end: Any, step: int) -> bool:
    """Returns whether a slice is the whole axis, which may be one of the batch."""
    if isinstance(end, torch.SymInt):
        end = None if extents([end]) == [(math.prod(n for n, _ in x.axes[dim] if n != B), True)] else end
    return begin in (None, 0) and end in (None, 2**63 - 1) and step == 1


@row(aten.slice.Tensor)
def slice_of(r: Region, x: Tensor, dim: int = 0, begin: Any = None, end: Any = None, step: int = 1) -> Tensor:
    if all_of(x, dim, begin, end, step):
        return x
    chosen = range(x.extent(dim))[begin:end:step]
    if step == 1 or not chosen:
        return r.slice(x, dim, chosen.start, len(chosen))
    # Every `step`-th: one column of rows of `step`.
    dim %= x.rank
    if x.extent(dim) % step == 0 and len(chosen) == x.extent(dim) // step:
        sizes = [(math.prod(n for n, _ in axis if n != B), any(n == B for n, _ in axis)) for axis in x.axes]
        sizes[dim:dim + 1] = [(len(chosen), False), (step, False)]
        return dropped(r.slice(r.view(x, sizes), dim + 1, chosen[0], 1), dim + 1)
    return r.take(x, dim, list(chosen))


@row(aten.slice_scatter.default)
def slice_scatter(r: Region, x: Tensor, part: Tensor, dim: int = 0, begin: int | None = None, end: int | None = None,
                  step: int = 1) -> Tensor:
    if all_of(x, dim, begin, end, step):
        return part
    places = range(x.extent(dim))[begin:end:step]
    if not places:
        return x
    dim, end = dim % x.rank, min(places.start + step * len(places), x.extent(dim))
    if step > 1:  # repeats each element `step` times, and keeps the first of these among x's own
        count = end - places.start
        wide = by_repeating(part, [axis + [(step, False)] * (i == dim) for i, axis in enumerate(part.axes)])
        chosen = known(torch.arange(count).remainder(step).eq(0).view(count, *[1] * (x.rank - 1 - dim)))
        part = r.select(truth(r, chosen), r.slice(wide, dim, 0, count), r.slice(x, dim, places.start, count), x.dtype)
    pieces = [[r.slice(x, dim, at, n)] if n else [] for at, n in ((0, places.start), (end, x.extent(dim) - end))]
    return r.concat([*pieces[0], part, *pieces[1]], dim)


def written(r: Region, x: Tensor, part: Tensor, dim: int, places: Collection[int]) -> Tensor:
    """x with the part's elements at these places of an axis."""
    taken = list(range(x.extent(dim)))
    for i, place in enumerate(places, len(taken)):
        taken[place] = i
    return r.take(r.concat([x, part], dim), dim, taken)


@row(aten.index_put.default)
def index_put(r: Region, x: Tensor, indices: list, value: Tensor, adds: bool = False) -> Tensor:
    given = [(dim, i.constant) for dim, i in enumerate(indices) if i is not None]
    if len(given) > 1 or given[0][1] is None or given[0][1].dim() > 1:
        raise Unsupported("it writes at places that are data, or of several axes; torch.where(mask, a, b) and gather "
                          "say what is chosen")
    dim, places = given[0]
    places = (places.nonzero() if places.dtype is torch.bool else places.long()).reshape(-1)
    axes = [[(n, False) for n, _ in axis] for axis in x.axes]
    axes[dim] = repeated(len(places), False)
    part = by_repeating(value, [axis or wide for axis, wide in zip([[]] * (x.rank - value.rank) + value.axes, axes)])
    if not adds:
        return written(r, x, r.real(part), dim, places.tolist())
    chosen = torch.nn.functional.one_hot(places % x.extent(dim), x.extent(dim))
    return r.each("add", x, r.by_matrix(part, dim, chosen.T.float()), dtype=r.dtype)


@row(aten.constant_pad_nd.default)
def pad(r: Region, x: Tensor, amounts: list[int], value: float = 0) -> Tensor:
    for i in range(len(amounts) // 2):
        dim = x.rank - 1 - i
        before, after = amounts[2 * i:2 * i + 2]
        if not before and not after:  # also of the batch
            continue
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


@row(aten.arange.start_step)
def sample_numbers(r: Region, begin: Any, end: Any, step: Any = 1, **_: Any) -> Tensor:
    """By these each sample finds its own row, as in the masks of `transformers`."""
    if r.sizes != [(1, True)] or (begin, step) != (0, 1):
        raise Unsupported("it counts more or fewer than the samples of a batch")
    return Tensor([[(B, True)]], "i32", SAMPLES)


def largest(r: Region, x: Tensor, dim: int | None, keep: bool) -> Tensor:
    if dim is None:
        raise Unsupported("it counts through the batch, too: say an axis, as in argmax(-1)")
    places = r.rows("row_argmax", r.real(x), [dim], keep, "i32")
    places.bounds = 0, x.extent(dim) - 1
    return places


@row(aten.cumsum.default)
def cumulative(r: Region, x: Tensor, dim: int, **_: Any) -> Tensor:
    x = r.cast(x, "f32")
    lower = torch.ones(x.extent(dim), x.extent(dim)).tril()
    if r.dtype == "f32":
        return r.by_matrix(x, dim, lower)
    y, back = r.last(x, [dim % x.rank])  # whole numbers by sums in f32, as products may be of halves
    parts = r.each("mul", r.with_axes(y, [*y.axes[:-1], [], y.axes[-1]]), known(lower))
    return r.permute(r.rows("row_sum", parts, [-1], False), back)


def scanned(r: Region, x: Tensor, dim: int, join: Callable) -> Tensor:
    """Each element joined with all before it, those of twice as many at each step."""
    step = 1
    while (rest := x.extent(dim) - step) > 0:
        later = join(r.slice(x, dim, step, rest), r.slice(x, dim, 0, rest))
        x, step = r.concat([r.slice(x, dim, 0, step), later], dim), 2 * step
    return x


@row(aten.cumprod.default)
def cumulative_product(r: Region, x: Tensor, dim: int, **_: Any) -> Tensor:
    return scanned(r, x, dim, lambda a, b: r.each("mul", a, b))


@row(aten.prod.dim_int)
def product_along(r: Region, x: Tensor, dim: int, keep: bool = False, **_: Any) -> Tensor:
    """By halves, since a quotient of the product has no gradient at 0."""
    while (count := x.extent(dim)) > 1:
        half = count // 2
        y = r.each("mul", r.slice(x, dim, 0, half), r.slice(x, dim, half, half))
        x = r.concat([y, r.slice(x, dim, count - 1, 1)], dim) if count % 2 else y
    return x if keep else dropped(x, dim)


@row(aten.logcumsumexp.default)
def cumulative_log(r: Region, x: Tensor, dim: int) -> Tensor:
    def join(a: Tensor, b: Tensor) -> Tensor:
        near = [clamp(r, each, -1e38, 1e38) for each in (a, b)]  # infinities have no difference
        apart = r.each("neg", r.each("abs", r.each("sub", *near)))
        return r.each("add", r.each("maximum", a, b), softplus(r, apart))
    return scanned(r, x, dim, join)


@row(aten.diagonal.default)
def diagonal(r: Region, x: Tensor, offset: int = 0, first: int = 0, second: int = 1) -> Tensor:
    x, _ = r.last(x, [first % x.rank, second % x.rank])
    rows, columns = x.extent(-2), x.extent(-1)
    places = torch.arange(rows * columns).reshape(rows, columns).diagonal(offset).tolist()
    return r.take(r.with_axes(x, [*x.axes[:-2], x.axes[-2] + x.axes[-1]]), -1, places)


def elements(x: Tensor, dims: Any) -> int:
    """The number of elements over these axes; all where there are none."""
    return math.prod(x.extent(d) for d in dims or range(x.rank))


@row(aten.mean.dim)
def mean(r: Region, x: Tensor, dims: Any, keep: bool = False, **_: Any) -> Tensor:
    return r.each("mul", r.rows("row_sum", x, dims, keep), 1 / elements(x, dims))


@row(aten.var.correction)
def variance(r: Region, x: Tensor, dims: Any = None, correction: float | None = 1, keepdim: bool = False) -> Tensor:
    count = elements(x, dims)
    correction = 1 if correction is None else correction
    if count <= correction:
        raise Unsupported(f"it divides by {count} elements less {correction}; the correction is below their number")
    off = r.each("sub", x, mean(r, x, dims, True))
    return r.each("mul", r.rows("row_sum", r.each("square", off), dims, keepdim), 1 / (count - correction))


@row(aten.linear.default)
def linear(r: Region, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    y = r.matrix(x, w, True)
    return y if bias is None else r.each("add", y, bias)


def product_of_pairs(r: Region, x: Tensor, y: Tensor) -> Tensor:
    (a, b), (c, d) = ([r.slice(each, -1, i, 1) for i in (0, 1)] for each in (x, y))
    parts = [r.each(op, *(r.each("mul", *factors) for factors in pairs))
             for op, pairs in (("sub", ((a, c), (b, d))), ("add", ((a, d), (b, c))))]
    return r.concat(parts, -1)


# Complex numbers, whose real and imaginary parts are one more axis, behind the others.
COMPLEX = {
    **{op: OPERATIONS[op] for op in (aten.view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.dims,
                                     aten.expand.default, aten.clone.default, aten.alias.default)},
    **dict.fromkeys((aten.view_as_complex.default, aten.view_as_real.default), lambda r, x: x),
    aten.slice.Tensor: lambda r, x, dim=0, *more: slice_of(r, x, dim - (dim < 0), *more),
    aten.complex.default: lambda r, *parts: stacked(r, parts, parts[0].rank),
    aten.polar.default: lambda r, size, angle: stacked(
        r, [r.each("mul", size, r.each(part, angle)) for part in ("cos", "sin")], size.rank),
    aten.mul.Tensor: product_of_pairs,
}
