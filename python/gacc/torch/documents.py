"""Several documents in a window (docs/fine-tuning.md): their positions, and what attention sees of each other's."""
from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from .layers import HIDDEN
from .operations import OPERATIONS
from .patterns import PASSED, VIEWS
from .region import Region, row
from .tensor import B, Tensor, Unsupported, axes_of

aten = torch.ops.aten
LIBRARY = torch.library.Library("gacc", "FRAGMENT")
LIBRARY.define("positions(Tensor documents) -> Tensor")
LIBRARY.impl("positions", torch.empty_like, "Meta")

# What takes a position's neighbours, or all before it, along an axis.
ALONG = {aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default, aten.constant_pad_nd.default,
         aten.flip.default, aten.roll.default, aten.unfold.default, aten.index_select.default, aten.select.int,
         aten.slice.Tensor, aten.slice_scatter.default, aten.select_scatter.default, aten.sum.dim_IntList,
         aten.mean.dim, aten.amax.default, aten.index.Tensor, aten.sort.default, aten.topk.default}
PRODUCTS = {aten.bmm.default, aten.mm.default, aten.linear.default}
MAKES_FEATURES = {aten.linear.default, aten.embedding.default}
# The argument that has an operation's axes, and the one that has its last axis.
TAKES_AXES = {aten.linear.default: (0, 0), aten.embedding.default: (1, 1), torch.ops.gacc.positions.default: (0, 0),
              aten.mm.default: (0, 1), aten.bmm.default: (0, 1),
              aten.scaled_dot_product_attention.default: (0, 2), torch.ops.gacc.scored_attention.default: (0, 2)}
KEEPS_AXES = {*PASSED, aten.native_dropout.default, aten.expand.default, aten.slice.Tensor, aten.cat.default,
              aten.split_with_sizes.default, aten.native_layer_norm.default, aten.rms_norm.default,
              torch.ops.gacc.offset_rms_norm.default}


@row(torch.ops.gacc.positions.default)
def positions(r: Region, given: Tensor) -> Tensor:
    """Begins anew in each document."""
    count = given.extent(1)
    shape = [B, count]
    numbers, places, reach = r.emit("documents", [r.shaped(given, shape)], ("i32", shape), ("i32", shape),
                                    ("i32", [B, 4, count]))
    spans = r.emit("documents.spans", [reach], ("i32", [B, 4, -(-count // 64)]))
    r.documents = numbers, spans, count
    r.positions.add(places)
    out = Tensor([[(B, True)], *axes_of([count])], "i32", places, shape)
    out.bounds = 0, count - 1
    return out


def seen(r: Region, scores: Tensor) -> Tensor:
    """Scores [B, .., T, T] of queries with keys, where these are of the same document; keys behind them are of all."""
    numbers, _, count = r.documents
    keys = scores.extent(-1)
    if scores.rank < 3 or scores.extent(-2) != count or keys < count:
        return scores
    each = Tensor([[(B, True)], *axes_of([count])], "i32", numbers, [B, count])
    middle = [[]] * (scores.rank - 3)
    same = r.each("equal", r.with_axes(each, [each.axes[0], *middle, each.axes[1], []]),
                  r.with_axes(each, [each.axes[0], *middle, [], each.axes[1]]), dtype="i32")
    if keys == count:
        return r.select(same, scores, HIDDEN, "f32")
    own = r.select(same, r.slice(scores, -1, 0, count), HIDDEN, "f32")
    return r.concat([own, r.slice(scores, -1, count, keys - count)], -1)


def softmax(r: Region, x: Tensor, dim: int, half: bool = False) -> Tensor:
    last = r.documents is not None and dim % x.rank == x.rank - 1
    return r.along("softmax", seen(r, x) if last else x, dim)


OPERATIONS[aten._softmax.default] = softmax


def check(node: fx.Node, values: dict[fx.Node, Any], count: int) -> None:
    """Refuses what carries something from one position of a sample to another otherwise than attention does."""
    if node.target is torch.ops.gacc.delta_rule.default:
        raise Unsupported("a delta rule carries its state into the next document: such a model is trained without "
                          "--pack")
    if node.target is aten.convolution.default:
        raise Unsupported("a convolution over the positions reaches into the document before: such a model is trained "
                          "without --pack")
    given = [n for n in node.all_input_nodes if isinstance(x := values[n], Tensor) and x.constant is None
             and x.operand[:1] == "%"]
    if node.target in ALONG and given and isinstance(node.args[0], fx.Node):
        shape = node.args[0].meta["val"].shape
        if node.target in (aten.index.Tensor, aten.constant_pad_nd.default):
            dims = list(range(1, len(shape)))
        else:
            behind_part = node.target in (aten.slice_scatter.default, aten.select_scatter.default)
            said, = node.args[1 + behind_part:2 + behind_part] or (-1,)
            dims = [d % len(shape) for d in (said if isinstance(said, (list, tuple)) else [said])]
        if len(shape) > 1 and any(
                shape[d] == count and changes(node, d) and axis_of(node.args[0], d) != "features" for d in dims):
            raise Unsupported("it works along the positions, across the borders of documents: such a model is trained "
                              "without --pack")
    if node.target in PRODUCTS and given and mixes(node, given, count):
        raise Unsupported("a product over the positions, which is no attention by a softmax, mixes documents: such a "
                          "model is trained without --pack")


def mixes(node: fx.Node, given: list[fx.Node], count: int) -> bool:
    """Returns whether a product sums over the positions: of two values, as attention does, or of one and a matrix."""
    left, right = node.args[:2]
    if len(given) == 2:
        by_softmax = any(isinstance(n.target, torch._ops.OpOverload) and "softmax" in n.target.name()
                         for n in behind(left))
        return left.meta["val"].shape[-1] == count and axis_of(left, -1) != "features" and not by_softmax
    x, dim = (left, -1) if left is given[0] else (right, -2)
    return 1 < count == x.meta["val"].shape[dim] and axis_of(x, dim) == "positions"


def axis_of(node: Any, dim: int) -> str | None:
    """What an axis is of: of the "features" that a layer makes, also where the positions happen to be as many, or of
    the "positions" of an input. None: it is not known."""
    while isinstance(node, fx.Node):
        shape = node.meta["val"].shape
        dim %= len(shape)
        if node.op == "placeholder":
            return "positions" if dim == 1 and isinstance(shape[0], torch.SymInt) else None
        if node.target is operator.getitem:
            node = node.args[0]
        last = dim == len(shape) - 1
        if node.target in MAKES_FEATURES and last:
            return "features"
        if node.target in TAKES_AXES:
            node = node.args[TAKES_AXES[node.target][last]]
        elif node.target is aten.permute.default:
            dim, node = node.args[1][dim], node.args[0]
        elif node.target is aten.unsqueeze.default:
            dim, node = dim - (dim > node.args[1] % len(shape)), node.args[0]
        elif node.target in VIEWS:
            node = node.args[0]
            before = node.meta["val"].shape
            same = [j for j in range(1, len(before)) if before[j] == shape[dim]
                    and math.prod(before[j:]) == math.prod(shape[dim:])]
            if not same and not any(math.prod(shape[k:]) == before[-1] for k in range(1, dim + 1)):
                return None
            dim = same[0] if same else len(before) - 1
        elif node.op == "call_function" and (
                torch.Tag.pointwise in node.target.tags or node.target in KEEPS_AXES):
            node = next((n for n in node.all_input_nodes if isinstance(x := n.meta["val"], torch.Tensor)
                         and x.dim() == len(shape)), None)
        else:
            return None
    return None


def changes(node: fx.Node, dim: int) -> bool:
    """Returns whether a slice, an index or padding is not all of an axis."""
    before, after = node.args[0].meta["val"].shape, node.meta["val"].shape if isinstance(
        node.meta["val"], torch.Tensor) else ()
    if node.target in (aten.slice.Tensor, aten.constant_pad_nd.default):
        return before[dim] != after[dim]
    if node.target is aten.index.Tensor:
        return dim < len(node.args[1]) and node.args[1][dim] is not None
    return True


def behind(node: fx.Node, steps: int = 12) -> Iterator[fx.Node]:
    """The nodes that a product's factor was made by, one after the other."""
    while steps and node.op == "call_function":
        yield node
        node, steps = node.all_input_nodes[0] if node.all_input_nodes else node, steps - 1
        if node.op != "call_function":
            return


@contextlib.contextmanager
def unpacked_masks() -> Iterator[None]:
    """Lets transformers make the masks of one sequence: which documents see each other is added here."""
    masks = sys.modules.get("transformers.masking_utils")
    kept = getattr(masks, "find_packed_sequence_indices", None)
    if kept is not None:
        masks.find_packed_sequence_indices = lambda _: None
    try:
        yield
    finally:
        if kept is not None:
            masks.find_packed_sequence_indices = kept
