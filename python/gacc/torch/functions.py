"""A torch.autograd.Function whose gradient is known: its `backward` multiplies each number that comes in by one of its
own, so what it gives of ones is the slope."""
from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .composed import sloped


SIZES = 1e-8, 1e-4, 1.0, 1e4, 1e8  # of the gradients that are tried: one that is clipped is no product


class Context:
    """What `forward` keeps for `backward`."""

    def __init__(self, count: int):
        self.needs_input_grad, self.saved_tensors = (True, *[False] * (count - 1)), ()

    def save_for_backward(self, *given: Any) -> None:
        self.saved_tensors = given

    def set_materialize_grads(self, _: bool) -> None:
        pass


def gradient(kind: type, context: Context, of: torch.Tensor) -> torch.Tensor:
    """The gradient of x where that of the result is `of`."""
    given = kind.backward(context, of)
    return given[0] if isinstance(given, (tuple, list)) else given


def by_elements(kind: type, args: tuple) -> bool:
    """Whether it is such a function, of one tensor: tried on numbers of the argument's shape."""
    x, *rest = args
    if kind.setup_context is not torch.autograd.Function.setup_context or not isinstance(x, torch.Tensor) or any(
            isinstance(each, torch.Tensor) for each in rest) or not x.is_floating_point():
        return False
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        drawn = torch.Generator().manual_seed(0)
        given, of = (torch.randn([n if isinstance(n, int) else 2 for n in x.shape], generator=drawn) for _ in range(2))
        context = Context(len(args))
        try:
            value = kind.forward(context, x := given.clone(), *rest)
            slope = gradient(kind, context, torch.ones_like(value))
            return value.shape == slope.shape == given.shape and torch.equal(x, given) and all(torch.allclose(
                gradient(kind, context, of * size) / size, slope * of, 1e-5, 1e-6, equal_nan=True) for size in SIZES)
        except Exception:
            return False


def with_slope(kind: type, args: tuple) -> torch.Tensor:
    context = Context(len(args))
    value = kind.forward(context, *args)
    return sloped(value, (args[0], gradient(kind, context, torch.ones_like(value))))
