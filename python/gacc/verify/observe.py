"""What a training loop does to the module that it is given, seen from outside: which micro-batches it runs, and what
gradients, weights, moments, statistics and rates each update has.

Nothing of the loop is replaced. Hooks of PyTorch see each call of the module and each step of whatever optimizer holds
its parameters, also inside Lightning's closures and accelerate's wrappers.
"""
from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optim
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Tensors = dict[str, torch.Tensor]
HALVES = {torch.float16: "f16", torch.bfloat16: "bf16"}


class CannotJudge(Exception):
    """The loop, or the module, is one of which nothing exact can be said; the text says why."""


@dataclass
class Batch:
    """A micro-batch: the forward's arguments by name, and the target of the loss."""

    inputs: Tensors
    target: torch.Tensor


@dataclass
class Call:
    """A call of the module in training mode, or with gradients."""

    batch: int | None  # which micro-batch; None: other numbers
    training: bool
    half: str  # the type that autocast computes in; "f32" without it
    draws: list[torch.Tensor]  # what its random operations gave, in their order
    used: bool = False  # a gradient came back through its output


@dataclass
class Update:
    """A step of the optimizer, or one that was left out (`skipped`)."""

    calls: list[Call]
    line: str
    skipped: bool = False
    finite: bool = True  # the gradients of a skipped one
    scale: float | None = None  # GradScaler's; None where none took part
    expected_scale: float | None = None  # what its update() left after the window before
    left: Tensors = field(default_factory=dict)  # gradients that were there before the window's first call
    grads: Tensors = field(default_factory=dict)
    weights: Tensors = field(default_factory=dict)  # before it
    after: Tensors = field(default_factory=dict)
    buffers: Tensors = field(default_factory=dict)  # after it
    state: dict[str, Tensors] = field(default_factory=dict)  # the optimizer's, by parameter, before it
    state_after: dict[str, Tensors] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)  # by parameter; those that no optimizer has are missing

    @property
    def draws(self) -> dict[int, list[torch.Tensor]]:
        """The micro-batches of which gradients came, in their order, and what was drawn for each."""
        return {call.batch: call.draws for call in self.calls if call.used and call.batch is not None}

    @property
    def batches(self) -> list[int]:
        return list(self.draws)


class Draws(TorchDispatchMode):
    """Notes what random operations give; or gives what was noted, to the same operations in another type."""

    def __init__(self, noted: list[torch.Tensor], give: bool = False):
        super().__init__()
        self.noted, self.give, self.next = noted, give, 0
        self.given: dict[bytes, torch.Tensor] = {}  # by the generator's state: a checkpoint draws again going backward

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return function(*args, **(kwargs or {}))
        before = torch.get_rng_state()
        result = function(*args, **(kwargs or {}))
        if torch.equal(before, torch.get_rng_state()):
            return result  # as attention without dropout: it draws nothing
        fused = function is torch.ops.aten.native_dropout.default
        drawn = result[1] if fused else result
        if not self.give:
            self.noted.append(drawn.detach().clone())
            return result
        given = self.given.get(before.numpy().tobytes())
        if given is None:
            if self.next == len(self.noted) or self.noted[self.next].shape != drawn.shape:
                raise CannotJudge(f"the draws of `{function}` cannot be given to the exact step: it makes others")
            given = self.given[before.numpy().tobytes()] = self.noted[self.next]
            self.next += 1
        return (args[0] * given * (1 / (1 - args[1])), given) if fused else drawn.copy_(given)


def named(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters by all their names: a tied one has several."""
    return dict(module.named_parameters(remove_duplicate=False))


def copied(tensors: dict[str, Any]) -> Tensors:
    """Copies of those that are there, one of each tensor: tied names share theirs."""
    once = {id(x): x.detach().clone() for x in tensors.values() if x is not None}
    return {name: once[id(x)] for name, x in tensors.items() if x is not None}


def signature(value: Any) -> tuple | None:
    """What the numbers of a tensor are known by, in whatever type and shape."""
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return None
    flat = value.detach().reshape(-1).double().cpu()
    return len(flat), flat.abs().sum().item(), (flat * torch.arange(1, len(flat) + 1)).sum().item()


class Observer:
    """The calls and updates of one run of a loop."""

    def __init__(self, module: torch.nn.Module, batches: list[Batch], windows: list[list[int]], file: str):
        self.module, self.windows, self.file = module, windows, file
        self.known = [{signature(x) for x in batch.inputs.values()} - {None} for batch in batches]
        for i, keys in enumerate(self.known):
            if keys in self.known[:i]:
                raise CannotJudge(f"micro-batches {self.known.index(keys)} and {i} have the same inputs, and cannot be "
                                  "told apart")
        self.updates: list[Update] = []
        self.pending: list[Call] = []
        self.left: Tensors = {}
        self.before: tuple[Tensors, dict[str, Tensors]] = {}, {}  # weights and state before the step under way
        self.drawing: list[tuple[Draws, Any]] = []
        self.scale_after: float | None = None
        self.cleared_finite = True

    def line(self) -> str:
        """The line of the loop's own file that is under way."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        place = "line " if self.file.startswith("<") else f"{self.file.rsplit('/', 1)[-1]}:"
        return f"{place}{frame.f_lineno}" if frame is not None else ""

    def gradients(self) -> dict[str, torch.Tensor | None]:
        return {name: p.grad for name, p in named(self.module).items()}

    def finite(self) -> bool:
        return all(bool(g.isfinite().all()) for g in self.gradients().values() if g is not None)

    @staticmethod
    def dice() -> Any:
        return random.getstate(), np.random.get_state()[2]

    # ------------------------------------------------------------ calls of the module
    def before_call(self, module: torch.nn.Module, _: Any) -> None:
        if module is self.module:
            self.drawing.append((Draws([]), self.dice()))
            self.drawing[-1][0].__enter__()

    def after_call(self, module: torch.nn.Module, args: tuple, kwargs: dict, result: Any) -> None:
        if module is not self.module:
            return
        mode, dice = self.drawing.pop()
        mode.__exit__(None, None, None)
        tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
        training = any(part.training for part in module.modules())
        if not tensors and not training:
            return  # an evaluation
        if tensors and self.dice() != dice:
            raise CannotJudge("the forward draws numbers of Python's `random` or of numpy, which cannot be recorded: "
                              "draw them with torch")
        given = {signature(x) for x in (*args, *kwargs.values())}
        alike = max(range(len(self.known)), key=lambda i: len(self.known[i] & given))
        half = HALVES.get(torch.get_autocast_dtype("cpu"), "f32") if torch.is_autocast_enabled("cpu") else "f32"
        fresh = not any(bool(g.any()) for g in self.gradients().values() if g is not None)
        done = [c.batch for c in self.pending if c.used]
        if fresh and done and len(self.updates) < len(self.windows) and done == self.windows[len(self.updates)]:
            self.note(self.line(), skipped=True, finite=self.cleared_finite)  # cleared without a step
        if not any(c.used for c in self.pending):
            self.left = copied(self.gradients())
        call = Call(alike if self.known[alike] & given else None, training, half, mode.noted)
        self.pending.append(call)
        for x in tensors:
            x.register_hook(lambda _: setattr(call, "used", True))

    def note(self, line: str, **more: Any) -> None:
        """An update of the calls since the last one, as the module is now."""
        now = copied(named(self.module))
        self.updates.append(Update(self.pending, line, left=self.left, weights=now, after=now,
                                   buffers=copied(dict(self.module.named_buffers())), **more))
        self.pending, self.left = [], {}

    # ------------------------------------------------------------ steps of an optimizer
    def owned(self, optimizer: torch.optim.Optimizer) -> dict[str, tuple[torch.nn.Parameter, dict]]:
        """The module's parameters that it has, each with its group."""
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        return {name: (p, groups[id(p)]) for name, p in named(self.module).items() if id(p) in groups}

    def state_of(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensors]:
        return {name: {key: torch.as_tensor(value).detach().clone() for key, value in optimizer.state[p].items()
                       if isinstance(value, (torch.Tensor, int, float))}
                for name, (p, _) in self.owned(optimizer).items() if p in optimizer.state}

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.before = copied(named(self.module)), self.state_of(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates = {name: float(group["lr"]) for name, (_, group) in self.owned(optimizer).items()}
        if not rates:
            return
        weights, state = self.before
        if any(c.used for c in self.pending) or not self.updates or self.updates[-1].rates.keys() & rates.keys():
            self.note(self.line())  # else it is a second optimizer, of other parameters, in the same update
            self.updates[-1].weights = weights
        update = self.updates[-1]
        update.after = copied(named(self.module))
        update.grads |= copied(self.gradients())
        update.state |= state
        update.state_after |= self.state_of(optimizer)
        update.rates |= rates

    # ------------------------------------------------------------ GradScaler, and gradients that are cleared
    def scaled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """GradScaler.step, which leaves out the optimizer's where a gradient is not finite."""
        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            before, scale, finite, line = len(self.updates), scaler.get_scale(), self.finite(), self.line()
            result = original(scaler, *args, **kwargs)
            if scaler.is_enabled():
                if len(self.updates) == before:
                    self.note(line, skipped=True, finite=finite)
                self.updates[-1].scale, self.updates[-1].expected_scale = scale, self.scale_after
            return result
        return step

    def rescaled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            original(scaler, *args, **kwargs)
            self.scale_after = scaler.get_scale() if scaler.is_enabled() else None
        return update

    def cleared(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if any(g is not None and bool(g.any()) for g in self.gradients().values()):
                self.cleared_finite = self.finite()
            return original(owner, *args, **kwargs)
        return zero_grad

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        scaler, optimizer = torch.amp.GradScaler, torch.optim.Optimizer
        wrapped = [(owner, name, getattr(owner, name), wrap) for owner, name, wrap in (
            (scaler, "step", self.scaled), (scaler, "update", self.rescaled),
            (optimizer, "zero_grad", self.cleared), (torch.nn.Module, "zero_grad", self.cleared))]
        handles = [hooks.register_module_forward_pre_hook(self.before_call),
                   hooks.register_module_forward_hook(self.after_call, with_kwargs=True),
                   optim.register_optimizer_step_pre_hook(self.before_step),
                   optim.register_optimizer_step_post_hook(self.after_step)]
        for owner, name, original, wrap in wrapped:
            setattr(owner, name, wrap(original))
        try:
            yield
        finally:
            for owner, name, original, _ in wrapped:
                setattr(owner, name, original)
            for handle in handles:
                handle.remove()
            for mode, _ in reversed(self.drawing):
                mode.__exit__(None, None, None)

