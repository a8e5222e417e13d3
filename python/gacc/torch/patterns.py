"""What modules write in several operations, and gacc has as one, whose sums are f32 in every precision."""
from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
PASSED = {aten._to_copy.default, aten.clone.default, aten.alias.default}
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}


def made_by(node: Any, *targets: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def passes(node: Any) -> bool:
    """Whether the numbers are those of the first operand: floats stay as they are, for all is f32 here."""
    return made_by(node, *PASSED) and node.meta["val"].is_floating_point() == (
        node.args[0].meta["val"].is_floating_point())


def source(node: Any) -> Any:
    while passes(node):
        node = node.args[0]
    return node


def is_square(node: Any, x: Any) -> bool:
    if made_by(node, aten.pow.Tensor_Scalar):
        return node.args[1] == 2 and source(node.args[0]) is x
    return made_by(node, aten.mul.Tensor) and source(node.args[0]) is x and source(node.args[1]) is x


def root_mean_square(node: Any, x: Any) -> float | None:
    """The eps, where the node is 1 / sqrt(mean of x squared + eps) over the last axis."""
    root = source(node)
    if made_by(root, aten.reciprocal.default):
        root = source(root.args[0])
        root = source(root.args[0]) if made_by(root, aten.sqrt.default) else None
    elif made_by(root, aten.pow.Tensor_Scalar) and root.args[1] == -0.5:
        root = source(root.args[0])
    else:
        return None
    if not made_by(root, aten.add.Tensor, aten.add.Scalar) or root.kwargs or (
            not isinstance(root.args[1], (int, float))):
        return None
    mean = source(root.args[0])
    if not made_by(mean, aten.mean.dim) or mean.args[2:3] != (True,):
        return None
    last = list(mean.args[1]) in ([-1], [x.meta["val"].dim() - 1])
    return float(root.args[1]) if last and is_square(source(mean.args[0]), x) else None


def weight_of(product: fx.Node, count: int) -> tuple[fx.Node | None, float]:
    """The factor that is a parameter of so many numbers, or such a parameter and a number."""
    for each in product.args:
        factor, offset = source(each), 0.0
        if made_by(factor, aten.add.Tensor, aten.add.Scalar) and not factor.kwargs and (
                isinstance(factor.args[1], (int, float))):
            factor, offset = source(factor.args[0]), float(factor.args[1])
        if isinstance(factor, fx.Node) and factor.op == "placeholder" and (
                factor.meta["val"].is_floating_point() and list(factor.meta["val"].shape) == [count]):
            return factor, offset
    return None, 0.0


def norms(graph: fx.Graph) -> None:
    """x / sqrt(mean(x^2) + eps), also times a vector that is a parameter or 1 + a parameter, as one operation."""
    for node in list(graph.nodes):
        if not made_by(node, aten.mul.Tensor) or len(node.args) < 2:
            continue
        for x, other in (node.args, node.args[::-1]):
            x = source(x)
            if not isinstance(x, fx.Node) or not x.meta["val"].is_floating_point() or (
                    not isinstance(other, fx.Node) or (eps := root_mean_square(other, x)) is None):
                continue
            end, weight, offset = node, None, 0.0
            users = list(node.users)
            while len(users) == 1 and passes(users[0]):
                users = list(users[0].users)
            if len(users) == 1 and made_by(users[0], aten.mul.Tensor):
                weight, offset = weight_of(users[0], x.meta["val"].shape[-1])
                end = node if weight is None else users[0]
            count = x.meta["val"].shape[-1]
            with graph.inserting_before(end):
                norm = graph.call_function(torch.ops.gacc.offset_rms_norm.default, (x, weight, eps, offset)) if (
                    offset) else graph.call_function(aten.rms_norm.default, (x, [count], weight, eps))
            norm.meta = dict(end.meta)
            end.replace_all_uses_with(norm)
            break
