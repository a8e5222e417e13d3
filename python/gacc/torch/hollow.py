"""Modules whose parameters have no values, or are of a half type: the export needs names and shapes, and computes in
f32."""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HALVES = {torch.bfloat16: "bf16", torch.float16: "f16"}


def has_values(value: torch.Tensor) -> bool:
    return value.device.type != "meta"


def precision_of(module: torch.nn.Module) -> str | None:
    """What the module computes in, where most of its numbers are of a half type."""
    counts: dict[torch.dtype, int] = {}
    for p in module.parameters():
        counts[p.dtype] = counts.get(p.dtype, 0) + (0 if torch.nn.parameter.is_lazy(p) else p.numel())
    return HALVES.get(max(counts, key=lambda dtype: counts[dtype])) if counts else None


@contextlib.contextmanager
def in_f32(module: torch.nn.Module) -> Iterator[set[str]]:
    """Puts f32 tensors of the same shapes, which take no memory, in the place of parameters that have no values or are
    of a half type; in that of such buffers the same, or their numbers in f32. Gives the names of the buffers that have
    no numbers then."""
    stand_ins: dict[int, Any] = {}

    def stand_in(value: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if value.dtype in HALVES else value.dtype
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(torch.zeros((), dtype=dtype).expand(value.shape), value.requires_grad)
        return value.to(dtype) if has_values(value) else torch.zeros(value.shape, dtype=dtype)
    kept = [(table, name, value) for part in module.modules() for table in (part._parameters, part._buffers)
            for name, value in table.items()
            if value is not None and (value.dtype in HALVES or not has_values(value))]
    empty = {name for name, value in module.named_buffers() if not has_values(value)}
    try:
        for table, name, value in kept:
            if id(value) not in stand_ins:  # a tied one is one
                stand_ins[id(value)] = stand_in(value)
            table[name] = stand_ins[id(value)]
        yield empty - (computed(module, empty) if empty else set())
    finally:
        for table, name, value in kept:
            table[name] = value


class Spared(TorchDispatchMode):
    """Leaves out what would write into these tensors, or into views of them: nothing of them changes, and one whose
    elements share their memory cannot be written."""

    def __init__(self, spared: Iterable[torch.Tensor]):
        super().__init__()
        self.memory = {value.untyped_storage()._cdata for value in spared}

    def __torch_dispatch__(self, op: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        for value, said in zip(args, op._schema.arguments):
            if said.alias_info is not None and said.alias_info.is_write and isinstance(value, torch.Tensor) \
                    and value.untyped_storage()._cdata in self.memory:
                return value
        return op(*args, **kwargs or {})


def computed(module: torch.nn.Module, empty: set[str]) -> set[str]:
    """Gives buffers of a model of transformers the numbers that its own loading gives them, as it makes no others where
    a folder has none. All else of the module stays as it is. Returns which have got some."""
    done: set[str] = set()
    owners = {name.rpartition(".")[0] for name in empty}
    parameters = list(module.parameters())
    spared = Spared([*parameters, *(value for name, value in module.named_buffers() if name not in empty)])
    flagged = [value for value in parameters if not hasattr(value, "_is_hf_initialized")]
    for value in flagged:  # draws no numbers for what is spared anyway
        value._is_hf_initialized = True
    model = None  # the innermost around a module: parts come behind what they are in
    for path, part in module.named_modules():
        model = part if hasattr(part, "_init_weights") and hasattr(part, "config") else model
        if path not in owners or model is None:
            continue
        before = {name: value._version for name, value in part._buffers.items() if value is not None}
        with torch.no_grad(), spared:
            model._init_weights(part)
        done |= {f"{path}.{name}".lstrip(".") for name, version in before.items()
                 if part._buffers[name] is not None and part._buffers[name]._version != version}
    for value in flagged:
        del value._is_hf_initialized
    return done
