"""Runs a loop under observation, the exact windows beside it, and gacc's own step beside those."""
from __future__ import annotations

import copy
import functools
import inspect
import math
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .. import Error, Session, _toml, compile, from_torch
from . import Report, said_exit
from .exact import MADE_OF, Case, Pass, Reference, inputs_of, make_optimizer, norm_of, stepped
from .judge import Judge
from .observe import CannotJudge, Draws, Observer, Tensors, Update, copied, named
from .table import clipped, times, total

AGREED = 1e-4  # of the loss and of the gradient's norm, between gacc's step in f32 and PyTorch's in double
MOVED = 1e-2  # of how far the weights of a tensor move at most, where their gradients are not near 0
STEEP = 1e-3  # of a tensor's largest gradient: what is not near 0


def judged(module: Any, loop: Callable, batches: list[Any], target: str, tables: dict, output: Any) -> Report:
    report = Report("nothing was run")
    try:
        if not isinstance(module, torch.nn.Module):
            raise CannotJudge(f"the module is {module!r:.60}, which is no torch.nn.Module")
        if not batches:
            raise CannotJudge("there are no micro-batches")
        if why := fault_of(tables):
            raise CannotJudge(why)
        kept = copy.deepcopy(module)
        case = Case(kept, inputs_of(kept, batches, target), "verify_target", output=output, **tables)
        report.title = (f"{len(batches)} micro-batches, {len(case.windows())} updates of {case.window}; "
                        f"{case.optimizer['type']}, {case.half}")
        updates, buffers = watched(case, loop, batches)
        reference = Reference(case)
        report.beside = beside_gacc(case, reference, updates)
        judge = Judge(case, updates, buffers, reference)
        report.faults, report.updates = judge.all_faults(), judge.lines()
    except CannotJudge as why:
        report.reason, report.faults = str(why), []
    return report


def fault_of(tables: dict[str, dict[str, Any]]) -> str:
    """What gaccc has to say against the tables, which it reads beside a model of one layer; "" where there is nothing.

    A fault of the optimizer's type is left to Case, which knows fewer."""
    if tables["optimizer"].get("type", "sgd") not in MADE_OF:
        return ""
    said = {name: dict(tables[name]) for name in ("schedule", "precision", "train") if tables[name]}
    said["optimizer"] = dict(tables["optimizer"])
    if "effective_batch" in tables["train"]:  # which is held against the batches' size by from_torch
        said["train"].setdefault("micro_batch", "auto")
    try:
        groups = said["optimizer"].get("groups")  # whose patterns name parameters of the module
        if isinstance(groups, (list, tuple)):
            said["optimizer"]["groups"] = [{**each, "match": ["*"]} if isinstance(each, dict) else each
                                           for each in groups]
        return fault_of_text(_toml.document({
            "model": {"name": "verify"}, "inputs": {"x": {"shape": [1]}, "y": {"shape": [1]}},
            "layers": [{"type": "linear", "features": 1}], "loss": {"type": "mse", "target": "y"}, **said}))
    except TypeError as error:
        return str(error)


@functools.cache
def fault_of_text(model: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(model)
    except Error as error:
        return re.sub(r"^.*? error: (.*?)( \[[\w-]+\])?$", r"\1", str(error).splitlines()[0])
    return ""


def watched(case: Case, loop: Callable, batches: list[Any]) -> tuple[list[Update], Tensors]:
    """The updates of the loop on a copy, and the buffers before it."""
    trained = copy.deepcopy(case.module)
    rates = {name: case.peak * factor for name, factor in case.factors.items()}
    own = {name: p for name, p in named(trained).items() if name in case.trained}
    if not own:
        raise CannotJudge("the module has no parameter that is trained")
    optimizer = make_optimizer(case, own, case.optimizer["type"], case.decays, rates)
    code = getattr(inspect.unwrap(getattr(loop, "func", loop)), "__code__", None)
    observer = Observer(trained, case.batches, case.windows(), code.co_filename if code else "")
    buffers = copied(dict(trained.named_buffers()))
    try:
        with observer.watching():
            loop(trained, optimizer, copy.deepcopy(batches))
    except CannotJudge:
        raise
    except SystemExit as end:
        raise CannotJudge(said_exit(end, observer.file, "a loop is judged that returns")) from end
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise CannotJudge(f"the loop ended with {type(error).__name__}: {error} ({at.filename}:{at.lineno})") from error
    if not observer.pending and not any(update.calls for update in observer.updates):
        raise CannotJudge("the loop never calls the module that it is given: it may train a copy of it")
    return observer.updates, buffers


# ---------------------------------------------------------------- gacc's own step
class Given(torch.nn.Module):
    """The module with what its dropouts draw as inputs: gacc's step draws numbers of its own otherwise."""

    def __init__(self, module: torch.nn.Module, names: list[str], inputs: Tensors):
        super().__init__()
        self.module, self.names = module, names
        taken = [p for p in inspect.signature(module.forward).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        taken = [p.replace(default=p.empty) for p in taken if p.name in inputs]
        drawn = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        self.forward = functools.partial(self.given)
        self.forward.__signature__ = inspect.Signature([*taken, *drawn])  # by which torch.export goes

    def given(self, *args: torch.Tensor, **more: torch.Tensor) -> Any:
        given = {**dict(zip(inspect.signature(self.forward).parameters, args)), **more}
        draws = iter([given.pop(name) for name in self.names])

        class Replace(TorchFunctionMode):
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if function is not F.dropout:
                    return function(*args, **(kwargs or {}))
                named = inspect.signature(F.dropout).bind(*args, **(kwargs or {}))
                named.apply_defaults()
                x, p, training = (named.arguments[key] for key in ("input", "p", "training"))
                return x * next(draws) / (1 - p) if training and p else x
        with Replace():
            return self.module(**given)


def draws_of(case: Case, reference: Reference, updates: list[Update]) -> dict[int, list[torch.Tensor]]:
    """The draws of each micro-batch: the loop's, or new ones for those that it leaves out or runs in eval()."""
    out = {}
    for i, batch in enumerate(case.batches):
        with torch.no_grad(), Draws([]) as new:
            module = copy.deepcopy(reference.module(Pass()))
            module(**{name: x.double() if x.is_floating_point() else x for name, x in batch.inputs.items()})
        own = next((update.draws[i] for update in updates if i in update.draws), [])
        out[i] = own if [x.shape for x in own] == [x.shape for x in new.noted] else new.noted
    return out


def beside_gacc(case: Case, reference: Reference, updates: list[Update]) -> str:
    """Runs gacc's step over the windows, from the same weights, beside the exact one; says how far they are apart."""
    draws = draws_of(case, reference, updates)
    names = [f"draw{i}" for i in range(len(draws[0]))]
    inputs = [{**batch.inputs, **dict(zip(names, (x.float() for x in draws[i]))), case.target: batch.target}
              for i, batch in enumerate(case.batches)]
    largest = max(inputs, key=lambda each: len(each[case.target]))
    module = copy.deepcopy(case.module)
    for name, part in module.named_modules():
        part.training = case.modes[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = Given(module, names, largest) if names else module
            step = from_torch(module, largest, loss=case.loss, target=case.target,
                              train={"micro_batch": len(largest[case.target]), **case.train, "tail": "flush"},
                              optimizer=case.optimizer, schedule=case.schedule or None, output=case.output)
            run = Session(step, device="cpu", updates=len(case.windows()))
    except (Error, TypeError, ValueError) as why:
        return f"PyTorch's step in double; gacc does not take this module: {str(why).splitlines()[0]}"
    weights, buffers = copied(dict(case.module.named_parameters())), copied(dict(case.module.named_buffers()))
    start, state, steep, worst = weights, dict[str, Tensors](), dict[str, torch.Tensor](), 0.0
    for t, window in enumerate(case.windows()):
        for i in window:
            run.step(inputs[i])
        ours = run.update()
        parts, buffers = reference.window({i: draws[i] for i in window}, weights, buffers)
        counted = sum(part.counted for part in parts)
        exact = times(total([part.grads for part in parts], {}), 1.0 / counted)
        loss = sum(part.loss for part in parts) / counted
        worst = max(worst, abs(ours.loss / loss - 1), abs(ours.grad_norm / norm_of(exact) - 1))
        largest_g = max(float(g.abs().max()) for g in exact.values())
        for name, g in exact.items():
            steep[name] = steep.get(name, True) & (g.abs() > STEEP * max(float(g.abs().max()), STEEP * largest_g))
        grads = {name: g for name, g in clipped(exact, case.clip).items() if name in case.trained}
        rates = {name: case.rate(t) * case.factors[name] for name in grads}
        moved, state = stepped(case, weights, grads, state, rates, case.optimizer["type"], case.decays)
        weights = {**weights, **moved}
    values = {name.removeprefix("module.") if names else name: x for name, x in run.parameters().items()}
    off = max(difference(values[name], weights[name], start[name], steep[name]) for name in case.trained)
    if not (worst <= AGREED and off <= MOVED):
        raise CannotJudge(f"gacc's step and PyTorch in double disagree, by {worst:.1e} in loss or norm and {off:.1e} "
                          "in weights: one of the two is wrong about this module; please report it")
    return (f"gacc's step; PyTorch's in double is within {power(worst, -6)} in loss and norm, "
            f"{power(off, -4)} in weights")


def power(x: float, least: int) -> str:
    """The power of ten that is above a number."""
    return f"1e{max(least, math.ceil(math.log10(max(x, 1e-300))))}"


def difference(ours: Any, exact: torch.Tensor, start: torch.Tensor, where: torch.Tensor) -> float:
    """The largest difference of a tensor's weights, in the largest way that one has moved."""
    moved = float((exact - start.double()).abs().max())
    return float(((torch.as_tensor(ours).double() - exact).abs() * where).max()) / moved if moved else 0.0
