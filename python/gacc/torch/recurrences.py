"""The gated delta rule of transformers' models, which computes it chunk by chunk, in hundreds of operations a layer, as
the one operation of gacc's."""
from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .region import OPERATIONS, Region
from .state import for_this_thread, replaced
from .tensor import B, Tensor, Unsupported, axes_of

NAME = "torch_chunk_gated_delta_rule"  # of the function in transformers, a copy in each architecture's file
TENSORS = "query", "key", "value", "g", "beta"
IGNORED = {"chunk_size", "kwargs"}  # arguments that change no result; `kwargs` are those of other implementations
NORM_EPS = 1e-6  # added to the squared lengths of queries and keys that are divided by them


def by_positions(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor,
                 beta: torch.Tensor) -> torch.Tensor:
    """The rule as it is defined. q and k [batch, T, key heads, K], v [batch, T, heads, V], decay and beta [batch, T,
    heads]; gives v's shape."""
    times = v.shape[2] // k.shape[2]
    q, k = (x.repeat_interleave(times, 2) for x in (q, k))
    state, out = v.new_zeros(*k[:, 0].shape, v.shape[-1]), []
    for t in range(v.shape[1]):
        state = state * decay[:, t, :, None, None].exp()
        lacking = v[:, t] - (state * k[:, t, ..., None]).sum(-2)
        state = state + k[:, t, ..., None] * (beta[:, t, :, None] * lacking)[..., None, :]
        out.append((state * q[:, t, ..., None]).sum(-2))
    return torch.stack(out, 1)


LIBRARY = torch.library.Library("gacc", "FRAGMENT")
LIBRARY.define("delta_rule(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta) -> Tensor")
LIBRARY.impl("delta_rule", lambda q, k, v, decay, beta: v.new_empty(v.shape), "Meta")
LIBRARY.impl("delta_rule", by_positions, "CPU")


def delta_rule(r: Region, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    if any(x.axes[0] not in ([(B, True)], [(B, False)]) for x in (q, k, v, decay, beta)):
        raise Unsupported("a delta rule along another axis than the second")
    length, heads, key_heads = v.extent(1), v.extent(2), k.extent(2)
    operands = []
    for x in (q, k, v, decay, beta):
        count = x.extent(2) * (x.extent(3) if x.rank == 4 else 1)
        operands.append(r.shaped(r.view(r.real(x), [(1, True), (length, False), (count, False)]), [B, length, count]))
    shape = [B, length, heads * v.extent(3)]
    shared = {"key_heads": key_heads} if key_heads < heads else {}
    y = r.emit("delta_rule", operands, ("f32", shape), ("f32", shape), heads=heads, **shared)[0]
    out = Tensor([[(B, True)], *axes_of(shape[1:])], "f32", y, shape)
    return r.view(out, [(1, True), (length, False), (heads, False), (v.extent(3), False)])


OPERATIONS[torch.ops.gacc.delta_rule.default] = delta_rule


def in_place_of(function: Callable, rule: Callable) -> Callable:
    """What computes what the function of transformers does, by `rule` where it is called as for a training step: no
    state comes in or goes out, and nothing is asked for that is not known here."""
    signature = inspect.signature(function)

    def chunked(*args: Any, **named: Any) -> tuple[torch.Tensor, Any]:
        given = {name: value for name, value in signature.bind(*args, **named).arguments.items()
                 if value is not None and name not in IGNORED}
        norm = given.pop("use_qk_l2norm_in_kernel", False)
        if given.pop("output_final_state", False) or given.keys() != set(TENSORS):
            return function(*args, **named)
        q, k, v, decay, beta = (given[name].float() for name in TENSORS)
        if norm:
            q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPS) for x in (q, k))
        return rule(q * q.shape[-1] ** -0.5, k, v, decay, beta).to(given["query"].dtype), None
    return chunked


@functools.cache
def is_delta_rule(function: Callable) -> bool:
    """Tries the function on numbers of two samples, over several chunks: with queries and keys as they are, and divided
    by their lengths, also where these are near the number that transformers adds to them."""
    drawn = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(2, 7, *shape, generator=drawn, dtype=torch.float32, device="cpu")
    q, k, v = numbers(2, 3), numbers(2, 3), numbers(4, 5)
    q[:, 3:], k[:, 3:] = 1e-3 * q[:, 3:], 1e-3 * k[:, 3:]
    decay, beta = -numbers(4).abs(), numbers(4).sigmoid()
    try:
        with torch.no_grad():
            return all(torch.allclose(*(each(q, k, v, g=decay, beta=beta, chunk_size=4, use_qk_l2norm_in_kernel=norm)[0]
                                        for each in (function, in_place_of(function, by_positions))), 1e-4, 1e-6)
                       for norm in (False, True))
    except Exception:
        return False


@contextlib.contextmanager
def delta_rules(module: torch.nn.Module) -> Iterator[None]:
    """Lets the module's parts compute the rule so, where the function that they call is that."""
    files = {kind.__module__ for part in module.modules() for kind in type(part).__mro__} & sys.modules.keys()
    functions = [(file, vars(file)[NAME]) for file in map(sys.modules.get, files) if NAME in vars(file)]
    with replaced(*((file, NAME, for_this_thread(in_place_of(function, torch.ops.gacc.delta_rule), function))
                    for file, function in functions if is_delta_rule(inspect.unwrap(function)))):
        yield
