"""The faults that training loops have, as a table: each is an exact variant of the step.

The variant that a loop's numbers equal is the answer. Rows of different kinds commute, and are tried together:

    pass, weight, clip, kept     GRADIENT: what the forward computes; what each micro-batch's sum of losses is divided
                                 by; what is clipped, and when; what was in the gradients before the window
    windows                      WINDOWS: which micro-batches an update has
    decay, moments               STEPS: what the optimizer does with a gradient
    rate                         RATES: which update's rate it has
    statistics, scale, other     OTHER: what judge.py sees by itself, and says in these words
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from .exact import Case, Part, Pass, norm_of
from .observe import Batch, Tensors, Update


class Row(NamedTuple):
    kind: str
    name: str
    cause: str  # the line of PyTorch that usually does it
    remedy: str
    of: Any = None  # how the step changes


# ---------------------------------------------------------------- what the forward and the loss compute
def modes(training: bool) -> Callable[[torch.nn.Module, Case], Any]:
    return lambda module, _: module.train(training)


def without_padding(module: torch.nn.Module, _: Case) -> None:
    for part in module.modules():
        if getattr(part, "padding_idx", None) is not None:
            part.padding_idx = None


def untied(module: torch.nn.Module, case: Case) -> None:
    for name, owner in case.owners.items():
        if name != owner:
            path, _, last = name.rpartition(".")
            part = module.get_submodule(path)
            setattr(part, last, torch.nn.Parameter(getattr(part, last).detach().clone()))


def shifted(by: int) -> Callable[[Batch, int], torch.Tensor]:
    """Targets of classes along a text, moved by so many positions."""
    def target(batch: Batch, ignored: int) -> torch.Tensor:
        t = batch.target
        if t.is_floating_point() or t.ndim < 2:
            return t
        return F.pad(t[..., 1:], (0, 1), value=ignored) if by > 0 else F.pad(t[..., :-1], (1, 0), value=ignored)
    return target


def tokens(batch: Batch, ignored: int) -> torch.Tensor:
    """The input itself, where the target counts."""
    t = batch.target
    alike = [x for x in batch.inputs.values() if not x.is_floating_point() and x.shape == t.shape and t.ndim > 1]
    return t.where(t == ignored, alike[0]) if alike else t


def trained_pads(batch: Batch, ignored: int) -> torch.Tensor:
    return batch.target.where(batch.target != ignored, torch.tensor(max(ignored, 0), dtype=batch.target.dtype))


# ---------------------------------------------------------------- what is divided, clipped and kept
class Window(NamedTuple):
    """What the rows of a gradient read of a window."""

    parts: list[Part]
    launches: int  # train.accumulate
    clip: float | None  # train.clip_norm
    scale: float  # of the loss
    counted: float
    elements: float
    samples: float


def by(divisor: Callable[[Part, Window], float], last: bool = False) -> Callable[[Window], list[float]]:
    """Each micro-batch's sum of losses divided by a number of its own; `last`: the others are lost."""
    def factors(window: Window) -> list[float]:
        found = [1.0 / max(divisor(part, window), 1e-300) for part in window.parts]
        return [0.0] * (len(found) - 1) + found[-1:] if last else found
    return factors


def total(terms: list[Tensors], start: Tensors) -> Tensors:
    return {name: sum(term[name] for term in terms) + start.get(name, 0.0) for name in terms[0]}


def times(grads: Tensors, factor: float) -> Tensors:
    return {name: g * factor for name, g in grads.items()}


def clipped(grads: Tensors, most: float | None) -> Tensors:
    """The gradient, or as much of it as clipping by the global norm leaves."""
    norm = norm_of(grads)
    return grads if most is None or norm <= most else times(grads, most / (norm + 1e-6))


def clip_each(terms: list[Tensors], start: Tensors, window: Window) -> Tensors:
    grads = start
    for term in terms:
        grads = clipped(total([term], grads), window.clip)
    return grads


def clip_alone(terms: list[Tensors], start: Tensors, window: Window) -> Tensors:
    return total([clipped(term, window.clip) for term in terms], start)


def clip_larger(factor: Callable[[Window], float]) -> Callable[..., Tensors]:
    """Clips a gradient that is so many times as large."""
    def clip(terms: list[Tensors], start: Tensors, window: Window) -> Tensors:
        large = max(factor(window), 1e-300)
        return times(clipped(times(total(terms, start), large), window.clip), 1.0 / large)
    return clip


def clip_tensors(terms: list[Tensors], start: Tensors, window: Window) -> Tensors:
    return {name: clipped({name: g}, window.clip)[name] for name, g in total(terms, start).items()}


def clip_elements(terms: list[Tensors], start: Tensors, window: Window) -> Tensors:
    return {name: g.clamp(-window.clip, window.clip) for name, g in total(terms, start).items()}


EXACT = {
    "pass": Row("pass", "", "", "", Pass()),
    "weight": Row("weight", "", "", "", by(lambda _, window: window.counted)),
    "clip": Row("clip", "", "", "", lambda terms, start, window: clipped(total(terms, start), window.clip)),
    "kept": Row("kept", "", "", "", False),
}

GRADIENT = [
    Row("weight", "K times the gradient", "loss.backward() in each micro-batch, undivided",
        "divide the loss by what the window counts before backward()", by(lambda part, _: part.counted)),
    Row("weight", "mean of means", "(loss / K).backward() where loss is a mean over the micro-batch",
        "sum the loss (reduction='sum') and divide it by what the whole window counts",
        by(lambda part, window: part.counted * len(window.parts))),
    Row("weight", "short windows divided by K", "(loss / K).backward() also in a last window of fewer micro-batches",
        "divide by the micro-batches that this window has, or by what it counts",
        by(lambda part, window: part.counted * window.launches)),
    Row("weight", "short windows divided by K", "a sum of K equal parts, in a last window of fewer micro-batches",
        "divide by what this window counts",
        by(lambda _, window: window.counted * window.launches / len(window.parts))),
    Row("weight", "divided by K twice", "(loss / K).backward() inside of a library that divides as well",
        "leave the division to one of the two",
        by(lambda part, window: part.counted * len(window.parts) * window.launches)),
    Row("weight", "divided by K twice", "a mean over the window, and (loss / K).backward()",
        "divide by one of the two", by(lambda _, window: window.counted * window.launches)),
    Row("weight", "gradients cleared inside a window", "optimizer.zero_grad() in each micro-batch",
        "clear after optimizer.step() alone", by(lambda part, window: part.counted * window.launches, last=True)),
    Row("weight", "gradients cleared inside a window", "optimizer.zero_grad() in each micro-batch, loss undivided",
        "clear after optimizer.step() alone", by(lambda part, _: part.counted, last=True)),
    Row("weight", "gradients cleared inside a window", "optimizer.zero_grad() in each micro-batch of a window's mean",
        "clear after optimizer.step() alone", by(lambda _, window: window.counted, last=True)),
    Row("weight", "a loss that counts ignored targets", "F.cross_entropy(..., reduction='none').mean()",
        "divide by (target != ignore_index).sum()", by(lambda _, window: window.elements)),
    Row("weight", "a loss that counts ignored targets", "F.cross_entropy(..., reduction='none').mean() / K",
        "divide by (target != ignore_index).sum()", by(lambda part, window: part.elements * len(window.parts))),
    Row("weight", "each micro-batch weighs by its samples", "loss * len(x) / batch_size of a mean over counted targets",
        "weigh by what each micro-batch counts",
        by(lambda part, window: part.counted * window.samples / part.samples)),
    Row("weight", "a sum in the place of the mean", "reduction='sum' without a division",
        "divide by what the window counts", by(lambda *_: 1.0)),
    Row("weight", "a sum in the place of the mean", "reduction='sum', divided by K alone",
        "divide by what the window counts", by(lambda _, window: window.launches)),
    Row("weight", "the gradient is still scaled", "optimizer.step() without scaler.unscale_(optimizer)",
        "step with scaler.step(optimizer)", by(lambda _, window: window.counted / window.scale)),
    Row("pass", "evaluation mode left on", "model.eval() without a model.train() after it",
        "call model.train() before the next micro-batch", Pass(modes(False))),
    Row("pass", "a part in eval() is put in training mode", "model.train() over a part that was kept in eval()",
        "call part.eval() after model.train()", Pass(modes(True))),
    Row("pass", "targets shifted twice", "labels[:, 1:] given to a loss that shifts by itself",
        "shift in one place", Pass(target=shifted(1))),
    Row("pass", "targets not shifted", "F.cross_entropy(logits, input_ids), in which a position sees its own target",
        "compare the logits at t with the token at t + 1", Pass(target=tokens)),
    Row("pass", "targets not shifted", "logits[:, 1:] beside targets[:, :-1]",
        "compare the logits at t with the token at t + 1", Pass(target=shifted(-1))),
    Row("pass", "ignored targets are trained", "F.cross_entropy(...) without ignore_index, or pads that are a class",
        "give ignore_index, and -100 in the place of pads", Pass(target=trained_pads, ignores=False)),
    Row("pass", "a padding row trained", "F.embedding(x, weight) without padding_idx",
        "give padding_idx, also to Embedding.from_pretrained", Pass(without_padding)),
    Row("pass", "a tied weight untied", "head.weight = nn.Parameter(embedding.weight.clone())",
        "head.weight = embedding.weight, also after a load, and before the optimizer is made", Pass(untied)),
    Row("pass", "computed in half precision", "torch.autocast around a forward that ought to be f32",
        "leave it out, or say precision.compute", Pass(half=True)),
    Row("clip", "not clipped", "clip_grad_norm_ is missing, or comes after optimizer.step()",
        "clip between the last backward() and optimizer.step()", lambda terms, start, _: total(terms, start)),
    Row("clip", "clipping before unscaling", "clip_grad_norm_ before scaler.unscale_(optimizer)",
        "call scaler.unscale_(optimizer) first", clip_larger(lambda window: window.scale)),
    Row("clip", "clipping of each micro-batch", "clip_grad_norm_ after each backward()",
        "clip once, before optimizer.step()", clip_each),
    Row("clip", "clipping of each micro-batch", "clip_grad_norm_ of each micro-batch's own gradient",
        "clip once, the mean of the window", clip_alone),
    Row("clip", "clipping before the mean", "clip_grad_norm_, then grad /= K",
        "divide first, then clip", clip_larger(lambda window: len(window.parts))),
    Row("clip", "clipping before the mean", "clip_grad_norm_ of the sum, then a division by what counts",
        "divide first, then clip", clip_larger(lambda window: window.counted)),
    Row("clip", "clipping of each tensor by itself", "for p in parameters: clip_grad_norm_(p, most)",
        "give all parameters to one call", clip_tensors),
    Row("clip", "clipping of each element", "clip_grad_value_ for clip_grad_norm_",
        "clip_grad_norm_(parameters, most)", clip_elements),
    Row("kept", "gradients kept over a window", "no optimizer.zero_grad() between two windows",
        "call optimizer.zero_grad() after each optimizer.step()", True),
]


# ---------------------------------------------------------------- which micro-batches an update has
class Cut(NamedTuple):
    """The windows of a loop, and those that it ought to have; `first`: the first one that differs."""

    got: list[list[int]]
    wanted: list[list[int]]
    size: int  # train.accumulate
    first: int

    @property
    def in_order(self) -> bool:
        flat = sum(self.got, [])
        return flat == sum(self.wanted, [])[:len(flat)]


def seen_again(cut: Cut) -> bool:
    before, rest = set(sum(cut.got[:cut.first], [])), cut.first < min(len(cut.got), len(cut.wanted))
    return rest and bool(before & set(cut.got[cut.first])) and not before & set(cut.wanted[cut.first])


WINDOWS = [
    Row("windows", "no update", "optimizer.step() is missing, or its optimizer has none of the module's parameters",
        "once a window, call step() of the optimizer that the loop is given", lambda cut: not cut.got),
    Row("windows", "no gradient came back", "loss.backward() is missing, or the loss is computed of detached outputs",
        "call backward() of a loss of what the module returns", lambda cut: not any(cut.got)),
    Row("windows", "the last window is dropped", "if (i + 1) % K == 0 without `or i + 1 == len(batches)`",
        "step once more after the loop where gradients are left, or say train.tail = \"drop\"",
        lambda cut: cut.got == [w for w in cut.wanted if len(w) == cut.size]),
    Row("windows", "an update each micro-batch", "optimizer.step() outside of `if (i + 1) % K == 0`",
        "step once a window: so moments, decay and schedule count updates",
        lambda cut: cut.size > 1 and all(len(w) == 1 for w in cut.got) and cut.in_order),
    Row("windows", "a window is cut too early", "if i % K == 0, which steps after the first micro-batch",
        "if (i + 1) % K == 0",
        lambda cut: cut.in_order and len(cut.wanted[0]) > 1 and cut.got[:1] == [cut.wanted[0][:1]]),
    Row("windows", "windows of another size", "a loop that accumulates, and `train` that says another number or none",
        'say train={{"accumulate": {size}}}, if an update is to have so many micro-batches',
        lambda cut: cut.in_order and 1 < len(cut.got[0]) != cut.size and all(
            len(w) <= len(cut.got[0]) for w in cut.got)),
    Row("windows", "the last window is carried on", "an epoch's left-over gradients go into the next epoch's first one",
        "step at the end of each epoch, or say train.tail = \"carry\"",
        lambda cut: cut.in_order and 0 < cut.first < len(cut.got) and len(cut.wanted[cut.first]) < cut.size),
    Row("windows", "micro-batches seen again after a resume", "a loader that begins at 0 after load_state_dict",
        "keep the position of the data, and skip what was seen", seen_again),
    Row("windows", "micro-batches left out, or in another order", "shuffle, drop_last or islice that differs",
        "give verify the loop's own order", lambda _: True),
]


# ---------------------------------------------------------------- what the optimizer does with a gradient
class Step(NamedTuple):
    kind: str  # of the optimizer
    decays: dict[str, float]
    lost: bool = False  # the state is what the loop had, not what the last update left


STEPS = [
    Row("decay", "no decay", "weight_decay = 0, or groups without it", "give weight_decay to the optimizer",
        lambda case, step: step._replace(decays=dict.fromkeys(step.decays, 0.0))),
    Row("decay", "decay on what has none", "AdamW(model.parameters(), weight_decay=...) over biases and norms",
        "give them a group with weight_decay = 0",
        lambda case, step: step._replace(decays=dict.fromkeys(step.decays, case.decay))),
    Row("decay", "coupled decay for decoupled", "Adam(weight_decay=...) for AdamW", "torch.optim.AdamW",
        lambda case, step: step._replace(kind={"adamw": "adam"}.get(step.kind, step.kind))),
    Row("decay", "decoupled decay for coupled", "AdamW for Adam(weight_decay=...)", "torch.optim.Adam",
        lambda case, step: step._replace(kind={"adam": "adamw"}.get(step.kind, step.kind))),
    Row("moments", "resume without moments", "a new optimizer without load_state_dict",
        "save optimizer.state_dict(), and load it", lambda case, step: step._replace(lost=True)),
]


# ---------------------------------------------------------------- which update's rate it has
class At(NamedTuple):
    """Where an update is in a run."""

    case: Case
    update: Update
    rate: float  # the loop's
    t: int  # good updates before it
    launches: int  # micro-batches before it
    skips: int  # skipped updates before it
    first: int  # the first update with another rate


def late_warmup(at: At) -> float:
    warmup = at.case.warmup(at.case.schedule.get("total", 0) if at.case.schedule.get("total") != "run" else 0)
    return at.case.peak * at.t / warmup if at.t < warmup else at.case.rate(at.t)


RATES = [
    Row("rate", "a skipped update that the schedule counts", "scheduler.step() after a scaler.step() that skipped",
        "step the schedule where scaler.get_scale() has not fallen", lambda at: at.case.rate(at.t + at.skips)),
    *(Row("rate", "schedule a micro-batch", "scheduler.step() in each micro-batch",
          "call scheduler.step() after optimizer.step()", of) for of in (
              lambda at: at.case.rate(at.launches), lambda at: at.case.rate(at.launches + len(at.update.batches)),
              lambda at: at.case.rate(at.launches + len(at.update.batches) - 1))),
    Row("rate", "resume without the schedule", "a new scheduler without load_state_dict",
        "save scheduler.state_dict(), and load it",
        lambda at: at.case.rate(at.t - at.first if at.t >= at.first > 0 else at.t)),
    *(Row("rate", "the schedule is an update behind", "a warm-up from 0: lambda t: t / warmup",
          "lambda t: (t + 1) / warmup, or say so in the schedule", of) for of in (
              late_warmup, lambda at: at.case.rate(max(at.t - 1, 0)))),
    Row("rate", "the schedule is an update ahead", "scheduler.step() before optimizer.step()",
        "call it after optimizer.step()", lambda at: at.case.rate(at.t + 1)),
    Row("rate", "the schedule never moves", "scheduler.step() is missing",
        "call scheduler.step() after optimizer.step()", lambda at: at.case.peak),
    Row("rate", "another rate", "an lr or a schedule that differs from the tables", "say the same in both",
        lambda at: at.rate),
]

OTHER = {row.name: row for row in [
    Row("windows", "an update is left out", "a step that is skipped although its gradients are finite",
        "skip only where a gradient is not finite"),
    Row("moments", "another update than the optimizer's", "another optimizer, or other settings, than the table's",
        "say the same in both"),
    Row("moments", "a parameter that no optimizer has", "a module that was changed after its optimizer was made",
        "make the optimizer last"),
    Row("moments", "weights change between updates", "p.data is written outside of optimizer.step()",
        "leave weights to the optimizer"),
    Row("scale", "resume without the scaler", "a new GradScaler without load_state_dict",
        "save scaler.state_dict(), and load it"),
    Row("statistics", "statistics moved twice", "a second forward of the same micro-batch in training mode, or "
        "torch.utils.checkpoint around a batch norm", "call it in eval(), or take the norm out of the checkpoint",
        Pass(times=2)),
    Row("statistics", "evaluation in training mode", "an evaluation without model.eval()",
        "model.eval() before it, model.train() after it"),
    Row("statistics", "statistics do not move", "the norms are in eval() in training", "call model.train()"),
    Row("statistics", "other running statistics", "a momentum that differs, or buffers that are written",
        "leave them to the norm"),
    Row("gradient", "another gradient", "a loss, a module or a mask that differs from what verify was told",
        "compare both, beginning with the tensor that is named"),
    Row("gradient", "the gradient is scaled by a number", "a factor on the loss or on the gradients",
        "divide by what the window counts, once"),
]}
