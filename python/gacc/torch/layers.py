"""Translations of ATen's operations: embeddings, dropout, norms, convolutions, pools and attention."""
from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch

from .operations import by_repeating, mean, pad
from .region import OPERATIONS, Region, literal, plain_sizes, row, truth
from .tensor import B, Tensor, Unsupported, axes_of, in_memory, known, merged, whole_constant

aten = torch.ops.aten
LIBRARY = torch.library.Library("gacc", "FRAGMENT")
LIBRARY.define("offset_rms_norm(Tensor x, Tensor weight, float eps, float offset) -> Tensor")  # * (offset + weight)

HIDDEN = -3e38  # of a mask that is added: what lies below leaves no share of a softmax to what it is added to


@row(aten.embedding.default)
def embedding(r: Region, table: Tensor, which: Tensor, padding: int = -1, by_frequency: bool = False,
              *_: Any) -> Tensor:
    if by_frequency:
        raise Unsupported("scale_grad_by_freq divides gradients by counts over the batch, and gacc's samples are "
                          "independent")
    count = table.extent(0)
    if which.constant is not None:
        if padding in which.constant:
            raise Unsupported("rows by constant numbers, one of which is padding_idx")
        y = r.take(table, 0, [int(n) for n in which.constant.reshape(-1)])
        return r.view(r.with_axes(y, [*which.axes, *y.axes[1:]]) if which.repeated() else y, r.sizes)
    operand = r.shaped(which, in_memory(which.axes))
    source = r.numbers.get(operand)
    is_position = operand in r.positions and which.bounds is not None and which.bounds[1] < count
    sources, ends = (frozenset([source]), None) if source else which.sources or (frozenset(), which.bounds)
    if not sources and ends is None or ends is not None and (ends[0] < 0 or ends[1] >= count):
        raise Unsupported("it takes rows by numbers that are computed, and may lie beyond the table; gacc takes the "
                          "elements of an input, which it checks, positions such as a mask's cumsum(1), and what "
                          f"clamp(0, {count - 1}) gives")
    for each in sources:
        if (other := r.buffers.ranges.setdefault(each, count)) != count:
            raise Unsupported(f"the input `{each}` chooses rows of tables of {other} and of {count} rows, and gacc "
                              "checks the elements of an input against one number: give the columns as separate inputs")
    if source is None and not is_position:  # R17 wants elements of an input, so these choose by a product
        each = r.with_axes(which, [*which.axes, []])
        chosen = r.cast(r.each("equal", each, known(torch.arange(count)), dtype="i32"), "f32")
        y = r.matrix(chosen, table, False)
        return y if padding == -1 else r.select(r.each("equal", each, padding, dtype="i32"), r.detached(y), y, "f32")
    shape = [*in_memory(which.axes), table.extent(1)]
    features = [(shape[-1], True)] if shape[-1] > 1 else []
    y = r.emit("embedding", [operand, r.shaped(table, [count, shape[-1]])], ("f32", shape),
               padding=padding if padding != -1 else False)
    return Tensor([*which.axes, features], "f32", y, shape)


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


@row(aten.bernoulli.p)
def bernoulli(r: Region, x: Tensor, p: float, **_: Any) -> Tensor:
    """Dropout of ones, without its factor: so inplace=True and torchvision's StochasticDepth say it."""
    if not x.batched():
        raise Unsupported("it draws once for all samples; gacc draws for each")
    ones = Tensor([[(n, False) for n, _ in axis] for axis in x.axes], "f32", constant=torch.tensor(1.0))
    return r.each("mul", dropout(r, ones, 1 - p)[0], float(p))


# --- frames: several images of a sample, whose number is one axis with the batch, as in x.flatten(0, 1)

def unframed(r: Region, x: Tensor) -> tuple[Tensor, list]:
    """x with the frames of a sample as channels of it, [B, frames C, ...], and what its first axis was."""
    x = r.real(x)
    first = x.axes[0]
    frames = first_frames(first)
    if len(frames) == len(first) or x.rank < 2:
        return x, first
    return r.with_axes(x, [[(B, True)], [*frames, *x.axes[1]], *x.axes[2:]]), first


def first_frames(first: list) -> list:
    return [pair for pair in first if pair[0] != B]


def frames_of(first: list) -> int:
    return math.prod(n for n, _ in first_frames(first))


def reframed(y: Tensor, first: list) -> Tensor:
    channels = y.extent(1) // frames_of(first)
    return Region.with_axes(y, [first, *axes_of([channels]), *y.axes[2:]])


def joined(x: Tensor) -> Tensor:
    """[B, C, frames, H, W] as [B, C, frames H, W]."""
    return x if x.rank < 5 else Region.with_axes(x, [*x.axes[:2], [*x.axes[2], *x.axes[3]], *x.axes[4:]])


def for_each_frame(r: Region, w: Tensor | None, first: list) -> Tensor | None:
    """Weights of channels, or of a convolution, once for each frame."""
    count = frames_of(first)
    return w if w is None or count == 1 else r.real(by_repeating(w, [[(count, False), *w.axes[0]], *w.axes[1:]]))


# --- norms

def affine(r: Region, w: Tensor | None, fill: float, count: int) -> str:
    """A vector of weights; of none, as many of the number."""
    if w is None:
        if r.buffers.written:
            return r.repeated(literal(fill, "f32"), "f32", [count])
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
def rms_norm(r: Region, x: Tensor, over: list[int], w: Tensor | None = None, eps: float | None = None,
             offset: float = 0.0) -> Tensor:
    x = r.real(x)
    shape, count = normalized(r, x, len(over))
    y = r.emit("rms_norm", [r.shaped(x, shape), affine(r, w, 1.0, count)], ("f32", shape), ("f32", [*shape[:-1], 1]),
               eps=float(torch.finfo(torch.float32).eps if eps is None else eps), offset=offset or False)[0]
    return Tensor(x.axes, "f32", y, shape)


@row(torch.ops.gacc.offset_rms_norm.default)
def offset_rms_norm(r: Region, x: Tensor, w: Tensor, eps: float, offset: float) -> Tensor:
    return rms_norm(r, x, [x.extent(-1)], w, eps, offset)


@row(aten.native_group_norm.default)
def group_norm(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, samples: Any, channels: int, size: Any,
               groups: int, eps: float) -> list:
    x, first = unframed(r, x)
    shape, groups = r.plain(x), groups * frames_of(first)
    w, bias = (for_each_frame(r, v, first) for v in (w, bias))
    y = r.emit("group_norm", [r.shaped(x, shape), affine(r, w, 1.0, shape[1]), affine(r, bias, 0.0, shape[1])],
               ("f32", shape), ("f32", [B, groups, 1]), ("f32", [B, groups, 1]), eps=float(eps), groups=groups)[0]
    return [reframed(Tensor(x.axes, "f32", y, shape), first), None, None]


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
        return [*by_statistics(r, x, w, bias, running_mean, running_variance, momentum, eps)[:3], running_mean,
                running_variance]
    out = by_batch(r, x, w, bias, eps)
    move(r, running_mean, out[1:2], momentum)
    move(r, running_variance, out[3:5], momentum)
    return [out[0], None, None, running_mean, running_variance]


def move(r: Region, statistic: Tensor, given: list[str], momentum: float) -> None:
    """Moves a running statistic by that of a batch: `given` is a mean, or a variance and the number of elements. After
    another call in the forward, one op moves it as both do: s (1 - a) (1 - b) + x a (1 - b) + y b."""
    each = ("f32", [statistic.extent(0)])
    if statistic.buffer in r.moves:
        line, before, earlier = r.moves[statistic.buffer]
        r.lines.remove(line)
        both = 1 - (1 - before) * (1 - momentum)
        parts = [r.emit("mul", [unbiased(r, x, each), literal(part / (both or 1), "f32")], each)
                 for x, part in ((earlier, before * (1 - momentum)), (given, momentum))]
        given, momentum = [r.emit("add", parts, each)], both
    r.emit("moving_mean.acc" if len(given) == 1 else "moving_variance.acc",
           [r.buffers.change(statistic.buffer), statistic.operand, *given], momentum=float(momentum))
    r.moves[statistic.buffer] = r.lines[-1], momentum, given


def unbiased(r: Region, given: list[str], each: tuple[str, list]) -> str:
    if len(given) == 1:
        return given[0]
    less = r.emit("maximum", [r.emit("add", [given[1], "-1.0"], each), "1.0"], each)
    return r.emit("mul", [given[0], r.emit("div", [given[1], less], each)], each)


@row(aten._native_batch_norm_legit.no_stats)
def batch_norm_alone(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
                     eps: float) -> list:
    return [by_batch(r, x, w, bias, eps)[0], None, None]


def by_batch(r: Region, x: Tensor, w: Tensor | None, bias: Tensor | None, eps: float) -> list:
    x, first = unframed(r, x)
    if frames_of(first) > 1:  # one more axis of what is normalised together
        frames = r.with_axes(x, [x.axes[0], first_frames(first), reframed(x, first).axes[1], *x.axes[2:]])
        turn = [0, 2, 1, *range(3, frames.rank)]
        turned = r.permute(frames, turn)
        y, *statistics = by_batch(r, joined(turned), w, bias, eps)
        y = r.permute(r.with_axes(y, turned.axes), turn)
        return [r.with_axes(y, [first, *y.axes[2:]]), *statistics]
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

def pair(value: Any, axes: int, height: int = 1) -> list[int]:
    """A number for each axis of an image, `height` for that of a line."""
    value = [value] if isinstance(value, int) else list(value)
    return [height] * (2 - axes) + (value * axes if len(value) == 1 else value)


def as_image(r: Region, x: Tensor) -> tuple[list, int]:
    """The shape with four axes, and how many of them are the image's."""
    shape = r.plain(r.real(x))
    if len(shape) == 3:
        return [*shape[:2], 1, shape[2]], 1
    if len(shape) != 4:
        raise Unsupported(f"its images have {len(shape) - 2} axes, and gacc's 1 or 2: take slices along one of them, "
                          "or conv2d with that axis among the channels")
    return shape, 2


@row(aten.convolution.default)
def convolution(r: Region, x: Tensor, w: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
                transposed: bool, output_padding: Any, groups: int) -> Tensor:
    x, first = unframed(r, x)
    images, axes = as_image(r, x)
    w, groups = for_each_frame(r, w, first), groups * frames_of(first)
    weight = [w.extent(i) for i in range(w.rank)]
    weight = weight if axes == 2 else [*weight[:2], 1, weight[2]]
    stride, dilation, zeros = pair(stride, axes), pair(dilation, axes), pair(padding, axes, 0)
    attributes: dict[str, Any] = dict(kernel=weight[2:], stride=stride, padding=[*zeros, *zeros], dilation=dilation,
                                      groups=groups)
    if not transposed:
        size = [(images[2 + i] + 2 * zeros[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
                for i in range(2)]
        shape, op = [B, weight[0], *size], "conv2d"
    else:
        more = pair(output_padding, axes, 0)
        size = [(images[2 + i] - 1) * stride[i] - 2 * zeros[i] + dilation[i] * (weight[2 + i] - 1) + more[i] + 1
                for i in range(2)]
        shape, op = [B, weight[1] * groups, *size], "conv2d.grad"
        attributes["size"] = size
    y = r.emit(op, [r.shaped(x, images), r.shaped(r.real(w), weight)], ("f32", shape), **attributes)
    out = reframed(Tensor([[(B, True)], *axes_of([shape[1], *size[2 - axes:]])], "f32", y, shape), first)
    return out if bias is None else r.each("add", out, r.with_axes(bias, [*bias.axes, *[[]] * axes]))


def pool(r: Region, op: str, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Tensor:
    x, first = unframed(r, x)
    images, axes = as_image(r, x)
    kernel, zeros = pair(kernel, axes), pair(padding, axes, 0)
    stride = pair(stride, axes) if stride else kernel
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
    if ceil and any(n > k // 2 for n, k in zip(after, kernel)):  # more than the op takes
        x = pad(r, x, [n for i in (1, 0)[:axes] for n in (0, after[i] - zeros[i])], -math.inf)
        (images, _), after = as_image(r, x), zeros
    shape = [*images[:2], *size]
    y = r.emit(op, [r.shaped(x, images)], ("f32", shape), kernel=kernel, stride=stride, padding=[*zeros, *after])
    return reframed(Tensor([[(B, True)], *axes_of([shape[1], *size[2 - axes:]])], "f32", y, shape), first)


def mean_pool(r: Region, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, counted: bool,
              divisor: int | None) -> Tensor:
    given = zip((x.extent(-2), x.extent(-1)), *(pair(each, 2) for each in (kernel, stride or kernel, padding)))
    if ceil and any((n + 2 * zeros - k) % step for n, k, step, zeros in given):  # whose last windows are cut short
        return mean_by_axes(r, x, kernel, stride, padding, ceil, counted, divisor)
    y = pool(r, "avg_pool2d", x, kernel, stride, padding, 1, False)
    if divisor is not None:
        y = r.each("mul", y, math.prod(pair(kernel, 2)) / divisor)
    if counted or not any(pair(padding, 2)):
        return y
    ones = torch.ones(1, 1, *(x.extent(i) for i in (-2, -1)))
    share = torch.nn.functional.avg_pool2d(ones, kernel, stride or kernel, padding, False, True)
    return r.each("div", y, known(share[0, 0]))


@row(aten.avg_pool3d.default)
def mean_by_axes(r: Region, x: Tensor, kernel: list[int], stride: Any = (), padding: Any = 0, ceil: bool = False,
                 counted: bool = True, divisor: int | None = None) -> Tensor:
    """Each axis by the matrix that PyTorch makes of the identity: so a LocalResponseNorm is exported."""
    axes = x.rank - 2
    sizes = [each * axes if len(each) == 1 else each for each in map(list, (kernel, stride or kernel, padding or [0]))]
    if divisor is not None:
        raise Unsupported("a mean of cut windows, or of volumes, with a divisor of its own")
    for i, (n, step, zeros) in enumerate(zip(*sizes), -axes):
        identity = torch.eye(x.extent(i))
        matrix = torch.nn.functional.avg_pool1d(identity[None], n, step, zeros, ceil, counted)[0].T
        x = x if n == step == 1 else r.by_matrix(x, i, matrix)
    return x


@row(aten.col2im.default)
def fold(r: Region, x: Tensor, size: list[int], kernel: list[int], dilation: list[int], padding: list[int],
         stride: list[int]) -> Tensor:
    """A transposed convolution: each element of a window to its place."""
    count = math.prod(kernel)
    channels = x.extent(1) // count
    spans = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(dilation, kernel, padding)]
    windows = [(n - span) // s + 1 for n, span, s in zip(size, spans, stride)]
    x = r.view(x, [(1, True), (channels * count, False), *((n, False) for n in windows)])
    rest = [n - (m - 1) * s - span for n, m, s, span in zip(size, windows, stride, spans)]
    w = known(torch.eye(count).view(count, 1, *kernel).repeat(channels, 1, 1, 1))
    return convolution(r, x, w, None, stride, padding, dilation, True, rest, channels)


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


def largest_of_parts(r: Region, x: Tensor) -> Tensor:
    size = plain_sizes(r)[2:]
    given = [x.extent(i) for i in range(x.rank - len(size), x.rank)]
    if any(n % m for n, m in zip(given, size)):
        raise Unsupported(f"its parts are not equal: {given} into {size}")
    return pool(r, "max_pool2d", x, [n // m for n, m in zip(given, size)], (), 0, 1, False)


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
            x = by_repeating(x, axes)
        else:
            x = r.take(x, i, chosen)
    return x


OPERATIONS.update({
    aten.max_pool2d_with_indices.default: lambda r, x, kernel, stride=(), padding=0, dilation=1, ceil=False: [
        pool(r, "max_pool2d", x, kernel, stride, padding, dilation, ceil), None],
    aten.avg_pool2d.default: lambda r, x, kernel, stride=(), padding=0, ceil=False, counted=True, divisor=None: (
        mean_pool(r, x, kernel, stride, padding, ceil, counted, divisor)),
    **{op: lambda r, x, size: resized(r, x, [torch.nn.functional.adaptive_avg_pool1d] * 2, plain_sizes(r)[2:])
       for op in (aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)},
    **{op: lambda r, x, size: [largest_of_parts(r, x), None]
       for op in (aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default)},
    **dict.fromkeys((aten.upsample_nearest2d.vec, aten.upsample_nearest1d.vec),
                    lambda r, x, size, scales: nearest(r, x, scales)),
    aten.upsample_bilinear2d.vec: lambda r, x, size, corners, scales: resized(
        r, x, [lambda y, n, s=s: torch.nn.functional.interpolate(
            y, **({"size": n} if s is None else {"scale_factor": s}), mode="linear", align_corners=corners)
            for s in (scales or [None, None])], plain_sizes(r)[2:]),
})


# --- attention

LIBRARY.define("scored_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float dropout_p, bool is_causal, "
               "float scale, float softcap, Tensor? sinks) -> Tensor")
LIBRARY.impl("scored_attention", lambda q, k, v, *_: q.new_empty([*q.shape[:-1], v.shape[-1]]), "Meta")


@row(torch.ops.gacc.scored_attention.default)
def scored_attention(r: Region, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float,
                     is_causal: bool, scale: float, softcap: float, sinks: Tensor | None) -> Tensor:
    return attention(r, q, k, v, mask, dropout_p, is_causal, scale, True, softcap, sinks)


@row(aten.scaled_dot_product_attention.default)
def attention(r: Region, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
              softcap: float = 0.0, sinks: Tensor | None = None) -> Tensor:
    """gacc's op where it can say it: positions of one sequence, all of them or those before. It never makes the
    matrix of probabilities. Else by two products and a softmax. `sinks` [heads] are scores of no key."""
    width, queries, keys = q.extent(-1), q.extent(-2), k.extent(-2)
    scale = 1 / math.sqrt(width) if scale is None else scale
    mask, is_causal, window = said_shorter(mask, is_causal, queries, keys)
    few = [without_repeats(x) for x in (k, v)]
    if few[0].rank == few[1].rank == 4 and few[0].extent(1) == few[1].extent(1) < k.extent(1):
        (k, v), enable_gqa = few, True
    heads = [x.extent(1) if x.rank == 4 else 1 for x in (q, k, v)]
    shared = heads[0] // heads[1] if heads[1] and heads[0] % heads[1] == 0 else 0
    together = (mask is None and queries == keys and q.rank in (3, 4) and shared and heads[1] == heads[2]
                and all(x.axes[0] in ([(B, True)], [(B, False)]) for x in (q, k, v)))
    if together and (shared == 1 or enable_gqa) and not (dropout_p and sinks is not None):
        q, k, turn = before_turn(r, q, k)
        channels, width = v.extent(-1), max(width, v.extent(-1))
        q, k, v = (pad(r, x, [0, width - x.extent(-1)], 0.0) for x in (q, k, v))  # zeros add nothing to a score
        factor = scale * math.sqrt(width)
        by_op = 1e-30 < scale < 1e30  # a scale that the op takes; 0 stands for its own
        if not by_op:
            q = r.each("mul", q, factor)
        parts = []
        for x in (q, k, v):
            x = r.real(x)
            x = r.permute(x, [0, 2, 1, 3]) if x.rank == 4 else x
            count = math.prod(x.extent(i) for i in range(2, x.rank))
            parts.append(r.view(x, [(1, True), (queries, False), (count, False)]))
        qkv = r.concat(parts, 2)
        shape, all_of = [B, queries, heads[0] * width], [B, queries, (heads[0] + 2 * heads[1]) * width]
        types = ("f32", shape), ("f32", [B, heads[0], 2, queries])
        attributes: dict[str, Any] = dict(heads=heads[0])
        if shared > 1:
            attributes["kv_heads"] = heads[1]
        operands = [r.shaped(qkv, all_of)]
        if turn is not None:
            given = operands + [turn.positions] * (turn.positions is not None)
            operands = [r.emit("rope", given, ("f32", all_of), **attributes, **turn.attributes)]
        attributes["causal"] = bool(is_causal)
        if by_op and abs(factor - 1) > 1e-6:
            attributes["scale"] = float(scale)
        if softcap:
            attributes["softcap"] = float(abs(softcap))
        if window:
            attributes["window"] = window
        if dropout_p:
            operands += r.buffers.random()
        if r.documents is not None:
            operands += r.documents[:2]
        if sinks is not None:
            operands.insert(1, r.shaped(sinks, [heads[0]]))
        if dropout_p:
            attributes.update(p=float(dropout_p), stream=r.stream())
        kind = "attention.sinks" if sinks is not None else "attention.dropout" if dropout_p else "attention"
        y = r.emit(kind, operands, *types, **attributes)[0]
        out = Tensor([[(B, True)], *axes_of(shape[1:])], "f32", y, shape)
        if q.rank == 4:
            out = r.view(out, [(1, True), (queries, False), (heads[0], False), (width, False)])
        out = r.slice(out, -1, 0, channels)
        return out if q.rank == 3 else r.permute(out, [0, 2, 1, 3])
    if enable_gqa and shared > 1:
        k, v = (grouped(r, x, shared) for x in (k, v))
    swapped = [*range(k.rank - 2), k.rank - 1, k.rank - 2]
    scores = r.product(r.each("mul", q, scale), r.permute(k, swapped))
    if softcap:
        scores = r.each("mul", r.each("tanh", r.each("mul", scores, 1 / softcap)), softcap)
    if is_causal:
        seen = torch.ones(queries, keys, dtype=torch.bool).tril()
        mask = known(seen.triu(1 - window) if window else seen)
    blind = None if mask is None else blind_rows(r, mask)
    if mask is not None and mask.dtype == "i32":
        scores = r.select(truth(r, mask), scores, -math.inf, "f32")
    elif mask is not None:
        scores = r.each("add", scores, mask)
    if blind is not None:  # the softmax of a row of -inf is NaN, also where it is chosen away: in the gradient
        scores = r.select(blind, 0.0, scores, "f32")
    if sinks is not None:  # as one more key, whose share is for nothing
        column = [[(n, False) for n, _ in axis] for axis in scores.axes]
        scores = r.concat([scores, r.with_axes(sinks, [*column[:-3], sinks.axes[0], column[-2], []])], -1)
    weights = r.slice(OPERATIONS[aten._softmax.default](r, scores, -1), -1, 0, keys)
    if blind is not None:
        weights = r.select(blind, 0.0, weights, "f32")
    if dropout_p:
        weights = dropout(r, weights, dropout_p)[0]
    return r.product(weights, v)


def before_turn(r: Region, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Queries and keys as they were before rotary positions, where both are turned alike, and how."""
    turned = [r.turned.get(x.operand) for x in (q, k)]
    if None in turned or turned[0].turn != turned[1].turn or q.rank != 4 or any(
            list(map(merged, x.axes)) != list(map(merged, each.axes)) for x, each in zip((q, k), turned)):
        return q, k, None
    return turned[0].before, turned[1].before, turned[0].turn


def blind_rows(r: Region, mask: Tensor) -> Tensor | None:
    """Which queries see no key, whose outputs are 0; None where each is known to see one."""
    numbers = mask.dtype == "f32"
    if mask.constant is not None:
        with contextlib.suppress(Unsupported):  # of an axis that is repeated in part
            given = whole_constant(mask, 1)
            if (given > -math.inf if numbers else given != 0).any(-1).all():
                return None
    best = r.rows("row_max", mask if numbers else truth(r, mask), [-1], True)
    return r.each("equal", best, -math.inf if numbers else 0.0, dtype="i32", takes="f32")


def without_repeats(x: Tensor) -> Tensor:
    """Each head once, where neighbouring ones are the same."""
    if x.rank != 4 or x.axes[1] != sorted(x.axes[1], key=lambda extent: not extent[1]):
        return x
    return Region.with_axes(x, [x.axes[0], [extent for extent in x.axes[1] if extent[1]], *x.axes[2:]])


def said_shorter(mask: Tensor | None, is_causal: bool, queries: int, keys: int) -> tuple[Tensor | None, bool, int]:
    """The mask, whether the attention is causal, and its window (0: none). The mask is left out where it is a constant
    that hides nothing, or all behind each position, or that and all but a window before it."""
    if mask is None or mask.constant is None or mask.constant.numel() not in (1, queries * keys):
        return mask, is_causal, 0
    seen = mask.constant != 0 if mask.dtype == "i32" else mask.constant == 0
    if mask.dtype == "f32" and (mask.constant[~seen] > HIDDEN).any():
        return mask, is_causal, 0
    seen = seen.reshape(()).expand(queries, keys) if seen.numel() == 1 else seen.reshape(queries, keys)
    if seen.all():
        return None, is_causal, 0
    window = int(seen[-1].sum())
    causal = torch.ones_like(seen).tril()
    if queries != keys or not window or not torch.equal(seen, causal.triu(1 - window)):
        return mask, is_causal, 0
    return None, True, window if window < keys else 0


def grouped(r: Region, x: Tensor, times: int) -> Tensor:
    """Each head as many times, for neighbouring heads of queries."""
    return r.with_axes(x, [x.axes[0], [*x.axes[1], (times, False)], *x.axes[2:]])
