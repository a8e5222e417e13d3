"""Operations of core ATen as others of PyTorch, which have rows. They keep PyTorch's gradients, and the digits that a
plain formula would lose."""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from .tensor import Unsupported

aten = torch.ops.aten
F = torch.nn.functional
Tensor = torch.Tensor

COMPOSED: dict[Any, Callable] = {}  # NotImplemented leaves the operation as it is


def composed(*overloads: Any) -> Callable:
    def enter(build: Callable) -> Callable:
        COMPOSED.update(dict.fromkeys(overloads, build))
        return build
    return enter


def sloped(value: Tensor, *slopes: tuple[Tensor, Tensor]) -> Tensor:
    """The value, whose gradient is by these slopes: (of what, slope), which are finite."""
    ended = torch.ops.gacc.detached
    return sum((ended(slope) * (x - ended(x)) for x, slope in slopes), ended(value))


def steep(value: Tensor, x: Tensor, slope: Tensor) -> Tensor:
    """The same by one slope, which may be infinite: there by that of a square root at 0."""
    ended, pole = torch.ops.gacc.detached, slope.abs() == math.inf
    zero = torch.where(pole, x - ended(x), 1.0).sqrt() * ended(torch.where(slope > 0, 1.0, -1.0))
    return sloped(value, (x, torch.where(pole, 0.0, slope))) + torch.where(pole, zero, 0.0)


# --- functions of numbers

@composed(aten.log1p.default)
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), and what the sum has lost of a small x."""
    total = x + 1.0
    return total.log() + torch.ops.gacc.detached(torch.where(x.abs() < 0.5, (x - (total - 1.0)) / total, 0.0))


@composed(aten.expm1.default)
def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, near 0 by the tanh of x / 2."""
    near = x.abs() < 1.0
    half = (torch.where(near, x, 0.0) * 0.5).tanh()
    return torch.where(near, 2.0 * half / (1.0 - half), x.exp() - 1.0)


@composed(aten.elu.default)
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    below = torch.where(x > 0, 0.0, x)  # exp of it cannot overflow
    return torch.where(x > 0, x * scale, torch.expm1(below * input_scale) * (alpha * scale))


@composed(aten.celu.default)
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(x, alpha, 1, 1 / alpha)


@composed(aten.hardtanh.default)
def hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    """The gradient of an element on a limit is 0, as PyTorch has it."""
    inside = torch.where(x > low, x, low)
    return torch.where(inside < high, inside, high)


def arctangent(x: Tensor) -> Tensor:
    """The value, by Cephes' polynomial of an argument within tan(pi / 8)."""
    size = x.abs()
    far, middle = size > 2.414213562373095, size > 0.4142135623730951
    y = torch.where(far, -1.0 / size, torch.where(middle, (size - 1.0) / (size + 1.0), size))
    square, series = y * y, 0.0805374449538
    for factor in (-0.138776856032, 0.199777106478, -0.333329491539):
        series = series * square + factor
    start = torch.where(far, math.pi / 2, torch.where(middle, math.pi / 4, 0.0))
    return (series * square * y + y + start) * x.sign()


@composed(aten.atan2.default)
def atan2(y: Tensor, x: Tensor) -> Tensor:
    square = x * x + y * y
    square = torch.where(square == 0, 1.0, square)
    turn = torch.where(x < 0, torch.where(y < 0, -math.pi, math.pi), 0.0)
    value = arctangent(y / torch.where((x == 0) & (y == 0), 1.0, x)) + turn
    return sloped(value, (y, x / square), (x, -y / square))


@composed(aten.asin.default)
def asin(x: Tensor) -> Tensor:
    slope = torch.rsqrt((1 - x) * (1 + x))
    return steep(arctangent(x * slope), x, slope)


@composed(aten.asinh.default)
def asinh(x: Tensor) -> Tensor:
    size, far = x.abs(), x.abs() > 1e9  # whose square may be infinite
    near = torch.where(far, 1.0, size)
    root = (near * near + 1).sqrt()
    value = torch.where(far, size.log() + math.log(2), torch.log1p(near + near * near / (1 + root)))
    return sloped(value * x.sign(), (x, torch.where(far, 1 / torch.where(far, size, 1.0), 1 / root)))


@composed(aten.atanh.default)
def atanh(x: Tensor) -> Tensor:
    return steep(torch.log1p(2 * x / (1 - x)) * 0.5, x, 1 / ((1 - x) * (1 + x)))


@composed(aten.acosh.default)
def acosh(x: Tensor) -> Tensor:
    far = x > 1e9  # whose square may be infinite
    above = torch.where(far, 1.0, x - 1)
    value = torch.where(far, torch.where(far, x, 1.0).log() + math.log(2),
                        torch.log1p(above + (above * (above + 2)).sqrt()))
    return steep(value, x, torch.rsqrt(x - 1) * torch.rsqrt(x + 1))


def hyperbolic(x: Tensor) -> tuple[Tensor, Tensor]:
    """The values of sinh and cosh."""
    size = x.abs()
    half = (size * 0.5).exp()  # the square of which is infinite where the result is
    grows, falls, near = 0.5 * half * half, 0.5 / half / half, size < 1
    tangent = (torch.where(near, x, 0.0) * 0.5).tanh()
    return torch.where(near, 2 * tangent / (1 - tangent * tangent), (grows - falls) * x.sign()), grows + falls


@composed(aten.cosh.default)
def cosh(x: Tensor) -> Tensor:
    slope, value = hyperbolic(x)
    return steep(value, x, slope)


@composed(aten.sinh.default)
def sinh(x: Tensor) -> Tensor:
    value, slope = hyperbolic(x)
    return steep(value, x, slope)


@composed(aten.logit.default)
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    x = x if eps is None else x.clamp(eps, 1 - eps)
    return x.log() - (1 - x).log()


@composed(aten.sinc.default)
def sinc(x: Tensor) -> Tensor:
    t = x * math.pi
    near, apart = t.abs() < 0.5, torch.where(x == 0, 1.0, x)
    value = torch.where(x == 0, 1.0, t.sin() / (apart * math.pi))
    square = torch.where(near, t * t, 0.0)
    series = x * (-math.pi * math.pi / 3) * (1 - square / 10 * (1 - square / 28))
    return sloped(value, (x, torch.where(near, series, (t.cos() - value) / apart)))


@composed(aten.special_entr.default)
def entropy(x: Tensor) -> Tensor:
    there = torch.where(x > 0, x, 1.0)
    value = torch.where(x > 0, -there * there.log(), torch.where(x == 0, 0.0, -math.inf))
    return steep(value, x, torch.where(x > 0, -there.log() - 1, math.inf))


@composed(aten.pow.Tensor_Scalar)
def power(x: Tensor, p: float) -> Tensor:
    """Of an exponent that is no whole number, with the slope p x^(p - 1) also at 0."""
    if not abs(p) <= 1e3 or p == int(p) or abs(p) == 0.5 or not x.is_floating_point():
        return NotImplemented
    return steep(plain_power(x, p), x, p * plain_power(x, p - 1))


def plain_power(x: Tensor, p: float) -> Tensor:
    if 2 * p != int(2 * p):
        return (x.log() * p).exp()
    return x.sqrt() if p == 0.5 else x.rsqrt() if p == -0.5 else x ** int(p - 0.5) * x.sqrt() if p > 0 else (
        plain_power(x, -p).reciprocal())


COMPOSED.update({
    aten.atan.default: lambda x: sloped(arctangent(x), (x, 1 / (x * x + 1))),
    aten.acos.default: lambda x: math.pi / 2 - torch.asin(x),
    aten.sign.default: lambda x: (x > 0).to(x.dtype) - (x < 0).to(x.dtype),
    aten.copysign.Tensor: lambda x, y: torch.where(torch.signbit(y), -x.abs(), x.abs()),
    aten.minimum.default: lambda x, y: -torch.maximum(-x, -y),
    aten.rsqrt.default: lambda x: x.sqrt().reciprocal(),
    aten.log2.default: lambda x: x.log() * (1 / math.log(2)),
    aten.log10.default: lambda x: x.log() * (1 / math.log(10)),
    aten.tan.default: lambda x: x.sin() / x.cos(),
    aten.signbit.default: lambda x: (x < 0) | (x.reciprocal() == -math.inf) if x.is_floating_point() else x < 0,
    **{op: lambda x, y: remainder(x, y, "trunc") for op in (aten.fmod.Scalar, aten.fmod.Tensor)},
    aten.exp2.default: lambda x: (x * math.log(2)).exp(),
    aten.isinf.default: lambda x: x.abs() == math.inf,
    aten.xlogy.Tensor: lambda x, y: torch.where(x == 0, 0.0, x * y.log()),
    aten.ceil.default: lambda x: -(-x).floor(),
    aten.round.decimals: lambda x, decimals: (x * 10.0**decimals).round() / 10.0**decimals,
})


@composed(aten.round.default)
def rounded(x: Tensor) -> Tensor:
    """A half goes to the even number."""
    whole = x.floor()
    rest, odd = x - whole, whole - (whole * 0.5).floor() * 2.0
    return whole + ((rest > 0.5) | (rest * odd == 0.5)).to(x.dtype)


@composed(aten.div.Tensor_mode)
def quotient(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    """Of whole numbers by two quotients in f32: what the first, rounded, leaves is small."""
    if rounding_mode is None or torch.result_type(x, y).is_floating_point:
        return {None: lambda z: z, "floor": torch.floor, "trunc": torch.trunc}[rounding_mode](x / y)
    out = (x / y).floor().to(x.dtype)
    out = out + ((x - out * y) / y).floor().to(x.dtype)
    return out if rounding_mode == "floor" else out + ((out < 0) & (out * y != x))


@composed(aten.remainder.Scalar, aten.remainder.Tensor)
def remainder(x: Tensor, y: Any, mode: str = "floor") -> Tensor:
    out = x - torch.div(x, y, rounding_mode=mode) * y
    if torch.result_type(x, y).is_floating_point:  # a quotient that was rounded to the next number
        up = (x if mode == "trunc" else y if isinstance(y, Tensor) else torch.full_like(x, y)) > 0
        size = torch.where(up, abs(y), -abs(y))
        out = out + torch.where((out != 0) & ((out > 0) != up), size, 0.0)
        return torch.where(out.abs() < size.abs(), out, out - size)
    table = mode == "floor" and isinstance(y, int) and y > 0
    return out.clamp(0, y - 1) if table else out  # by which it chooses rows of a table


# --- sums

def root(x: Tensor) -> Tensor:
    """The square root of what is 0 or more, with the gradient 0 at 0, as PyTorch's norms and deviations have it."""
    return beside_zero(x, torch.sqrt)


def beside_zero(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """The function of what is above 0, and x itself elsewhere: so no slope of the function at 0 is met."""
    return torch.where(x > 0, function(torch.where(x > 0, x, 1.0)), x)


@composed(aten.linalg_vector_norm.default)
def vector_norm(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    dim = list(range(x.dim())) if dim is None else dim
    if math.isinf(order):
        return x.abs().amax(dim, keepdim) if order > 0 else x.abs().amin(dim, keepdim)
    if order in (0, 1):
        return ((x != 0).to(x.dtype) if order == 0 else x.abs()).sum(dim, keepdim)
    total = (x.square() if order == 2 else beside_zero(x.abs(), lambda y: y ** order)).sum(dim, keepdim)
    return root(total) if order == 2 else beside_zero(total, lambda y: y ** (1 / order))


COMPOSED.update({
    aten.std.correction: lambda x, dim=None, **how: root(torch.var(x, dim, **how)),
    aten._cdist_forward.default: lambda x, y, p, _: torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1),
    aten._trilinear.default: lambda x, w, z, *_: torch.einsum("...i,oij,...j->...o", x, w, z),  # of nn.Bilinear
})


# --- elements in their order

COMPOSED.update({
    aten.index_select.default: lambda x, dim, i: aten.index(x, [*[None] * (dim % x.dim()), i]),
    aten.flip.default: lambda x, dims: functools.reduce(
        lambda y, dim: y.index_select(dim, torch.arange(y.shape[dim] - 1, -1, -1)), dims, x),
    aten.select_scatter.default: lambda x, part, dim, i: torch.slice_scatter(
        x, part.unsqueeze(dim), dim, i % x.shape[dim], i % x.shape[dim] + 1),
})


@composed(aten.unfold.default)
def windows(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    places = torch.arange(0, x.shape[dim] - size + 1, step)[:, None] + torch.arange(size)
    return x.index_select(dim, places.flatten()).unflatten(dim, places.shape).movedim(dim % x.dim() + 1, -1)


@composed(aten.kthvalue.default)
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return tuple(y.narrow(dim, k - 1, 1) if keepdim else y.select(dim, k - 1) for y in x.sort(dim))


@composed(aten.median.dim)
def median(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return x.kthvalue((x.shape[dim] + 1) // 2, dim, keepdim)


def quantile(x: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    """torch.quantile, which takes numbers of 64 bits: shares of the two elements beside each place."""
    if dim is None or interpolation != "linear":
        raise Unsupported("a quantile of all elements, or by another interpolation: say dim=")
    count = x.shape[dim]
    places = torch.as_tensor(q, dtype=x.dtype) * (count - 1)
    shares = (1 - (places[..., None] - torch.arange(count)).abs()).clamp(min=0)
    ordered = x.sort(dim)[0].movedim(dim, -1)
    parts = shares if places.dim() == 0 else shares.view(-1, *[1] * (x.dim() - 1), count)
    out = (ordered * parts).sum(-1)
    return out.unsqueeze(dim if dim < 0 else dim + places.dim()) if keepdim else out


@composed(aten.index_put.default)
def by_mask(x: Tensor, indices: list, value: Tensor, adds: bool = False) -> Tensor:
    """x[mask] = value, of as many axes as follow the mask's, is where(mask, value, x)."""
    *before, mask = indices
    more = x.dim() - len(before) - mask.dim()
    if adds or mask.dtype is not torch.bool or any(i is not None for i in before) or value.dim() > more:
        return NotImplemented
    return torch.where(mask[(..., *[None] * more)], value, x)


@composed(aten.bucketize.Tensor)
def bucketize(x: Tensor, edges: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    at = x.unsqueeze(-1)
    count = (at >= edges if right else at > edges).sum(-1).clamp(0, edges.numel())
    return count.int() if out_int32 else count


# --- images and volumes

@composed(aten.grid_sampler_2d.default)
def grid_sample(image: Tensor, grid: Tensor, mode: int, padding: int, corners: bool) -> Tensor:
    """Bilinear: each place's shares of the rows times those of the columns."""
    if mode != 0 or padding > 1:
        return NotImplemented
    shares = []
    for axis, count in enumerate((image.shape[3], image.shape[2])):
        at = grid[..., axis].flatten(1) + 1
        at = at * ((count - 1) / 2) if corners else at * (count / 2) - 0.5
        at = hardtanh(at, 0.0, count - 1.0) if padding else at
        first = at.floor()
        share, first, each = (at - first)[:, None], first[:, None], torch.arange(count, dtype=at.dtype)[:, None]
        shares.append(torch.where(each == first, 1 - share, torch.where(each == first + 1, share, 0.0)))
    columns, rows = shares
    return ((image @ columns[:, None]) * rows[:, None]).sum(2).unflatten(-1, grid.shape[1:3])


@composed(aten.convolution.default)
def convolution(x: Tensor, w: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
                transposed: bool, output_padding: list[int], groups: int) -> Tensor:
    """Of volumes: the sum over the kernel's layers, each a convolution of frames."""
    if w.dim() != 5 or transposed:
        return NotImplemented
    (layers, *more), (step, *steps), (apart, *spread) = (
        each * 3 if len(each) == 1 else each for each in map(list, (padding, stride, dilation)))
    x = F.pad(x, (0, 0, 0, 0, layers, layers))
    count = (x.shape[2] - apart * (w.shape[2] - 1) - 1) // step + 1
    y = sum(F.conv2d(x[:, :, begin:begin + (count - 1) * step + 1:step].transpose(1, 2).flatten(0, 1), w[:, :, i], None,
                     steps, more, spread, groups) for i, begin in enumerate(range(0, apart * w.shape[2], apart)))
    y = y.unflatten(0, (-1, count)).transpose(1, 2)
    return y if bias is None else y + bias.view(-1, 1, 1, 1)
