"""The exact step: the gradients of a window in double by PyTorch's autograd, PyTorch's optimizers in double, the rates.

Each takes a change (table.py), which makes it the step of a loop that has one fault. gacc's own step stands beside the
one without changes (run.py): both must agree, or nothing is judged.
"""
from __future__ import annotations

import copy
import fnmatch
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import torch
from torch.nn import functional as F

from .observe import Batch, CannotJudge, Draws, Tensors, named

MADE_OF = {"sgd": (torch.optim.SGD, ("momentum", "dampening", "nesterov")),
           "adam": (torch.optim.Adam, ("betas", "eps")), "adamw": (torch.optim.AdamW, ("betas", "eps"))}
LOSSES = {"mse": lambda x, t, _: F.mse_loss(x, t, reduction="sum"),
          "l1": lambda x, t, _: F.l1_loss(x, t, reduction="sum"),
          "huber": lambda x, t, of: F.huber_loss(x, t, reduction="sum", delta=of.get("delta", 1.0)),
          "bce_with_logits": lambda x, t, of: F.binary_cross_entropy_with_logits(
              x, t, reduction="sum", pos_weight=torch.as_tensor(of.get("pos_weight", 1.0), dtype=x.dtype))}


class Pass(NamedTuple):
    """How a forward and its loss are computed."""

    change: Callable[[torch.nn.Module, Case], Any] | None = None  # of the module
    target: Callable[[Batch, int], torch.Tensor] | None = None  # of the micro-batch and the ignored number
    ignores: bool = True
    half: bool = False
    times: int = 1  # how often each forward runs


class Part(NamedTuple):
    """A micro-batch of a window: the gradient of the sum of its losses, and by what a mean of them divides."""

    grads: Tensors
    loss: float  # the sum
    counted: float  # elements that count, or the weights of their classes
    elements: float  # with those that are ignored
    samples: int


@dataclass
class Case:
    """What verify() was asked: the module, its micro-batches, and the tables that say what the loop ought to do."""

    module: torch.nn.Module
    batches: list[Batch]
    target: str
    loss: dict[str, Any]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    precision: dict[str, Any]
    train: dict[str, Any]
    output: int | str | None

    def __post_init__(self) -> None:
        table = self.optimizer
        if auto := [key for key in ("accumulate", "micro_batch") if self.train.get(key) == "auto"]:
            raise CannotJudge(f'`train.{auto[0]}` is "auto", and verify needs the number')
        self.window, self.clip = int(self.train.get("accumulate", 1)), self.train.get("clip_norm")
        self.half = self.precision.get("compute", "f32")
        if table["type"] not in MADE_OF:
            raise CannotJudge(f"verify knows no optimizer `{table['type']}`; it can be {', '.join(MADE_OF)}")
        if table.get("second_moment", "window") != "window":
            raise CannotJudge('second_moment = "micro" is gacc\'s own: no optimizer of PyTorch has it')
        if self.schedule.get("type") == "plateau":
            raise CannotJudge("the rates of a plateau follow evaluations, of which verify knows nothing")
        names, first = named(self.module), dict[int, str]()
        self.owners = {name: first.setdefault(id(p), name) for name, p in names.items()}
        self.trained = {name: names[name] for name in first.values() if names[name].requires_grad}
        modes = {name: part.training for name, part in self.module.named_modules()}
        self.modes = modes if modes[""] else dict.fromkeys(modes, True)  # one in eval() is put into train()
        self.decay = table.get("weight_decay", 0.01 if table["type"] == "adamw" else 0.0)
        self.decays, self.factors = {}, {}
        for name, p in self.trained.items():
            own = next((g for g in table.get("groups", ()) if any(fnmatch.fnmatch(name, m) for m in g["match"])), {})
            general = 0.0 if table.get("decay") == "matrices" and p.ndim < 2 else self.decay
            self.decays[name] = own.get("weight_decay", general)
            self.factors[name] = own.get("lr_factor", own["lr"] / table.get("lr", 1e-3) if "lr" in own else 1.0)
        grown = self.train.get("micro_batch") or max(len(batch.target) for batch in self.batches)
        grown = grown * self.window / table.get("reference_batch", 1)
        self.scaling = {"none": 1.0, "linear": grown, "sqrt": math.sqrt(grown)}[table.get("lr_scaling", "none")]
        self.peak = table.get("lr", 1e-3) * self.scaling

    def windows(self) -> list[list[int]]:
        """The micro-batches of each update, as train.accumulate, train.tail and train.epochs say."""
        epochs, tail = int(self.train.get("epochs", 1)), self.train.get("tail", "flush")
        order = list(range(len(self.batches))) * (epochs if tail == "carry" else 1)
        cut = [order[i:i + self.window] for i in range(0, len(order), self.window)]
        cut = [w for w in cut if tail == "flush" or len(w) == self.window]
        return cut if tail == "carry" else cut * epochs

    def rate(self, t: int) -> float:
        """The rate after t updates, before any parameter's own factor (docs/model.md, [schedule])."""
        table, peak, updates = self.schedule, self.peak, len(self.windows())
        if table.get("unit") == "epochs":
            t = t // max(updates // int(self.train.get("epochs", 1)), 1)
        total = updates if table.get("total") == "run" else table.get("total", 0)
        warmup = self.warmup(total)
        if t < warmup:
            return peak * (t + 1) / warmup
        u, gamma, low = t - warmup, table.get("gamma", 1.0), min(table.get("min_lr", 0.0) * self.scaling, peak)
        done = min(1.0, u / max(total - warmup, 1))
        return {"constant": lambda: peak, "step": lambda: peak * gamma ** (u // table["step_size"]),
                "multistep": lambda: peak * gamma ** sum(m <= u for m in table["milestones"]),
                "exponential": lambda: peak * gamma ** u, "linear": lambda: peak + (low - peak) * done,
                "cosine": lambda: low + (peak - low) * (1 + math.cos(math.pi * done)) / 2,
                }[table.get("type", "constant")]()

    def warmup(self, total: int) -> int:
        given = self.schedule.get("warmup", 0)
        return math.ceil(float(given.rstrip("%")) / 100 * total) if isinstance(given, str) else given


def make_optimizer(case: Case, parameters: Mapping[str, torch.nn.Parameter], kind: str, decays: Mapping[str, float],
                   rates: Mapping[str, float]) -> torch.optim.Optimizer:
    """PyTorch's own optimizer of the table, over the parameters, in groups of one decay and one rate."""
    groups: dict[tuple, list] = {}
    for name, p in parameters.items():
        groups.setdefault((decays[name], rates[name]), []).append(p)
    made, keys = MADE_OF[kind]
    given = {key: tuple(x) if isinstance(x, list) else x for key, x in case.optimizer.items() if key in keys}
    return made([{"params": p, "weight_decay": d, "lr": lr} for (d, lr), p in groups.items()], lr=case.peak, **given)


def stepped(case: Case, weights: Tensors, grads: Tensors, state: Mapping[str, Tensors], rates: Mapping[str, float],
            kind: str, decays: Mapping[str, float]) -> tuple[Tensors, dict[str, Tensors]]:
    """The weights and the state after a step of PyTorch's optimizer in double, where there are gradients."""
    parameters = {name: torch.nn.Parameter(weights[name].double()) for name in grads}
    optimizer = make_optimizer(case, parameters, kind, decays, rates)
    for name, p in parameters.items():
        p.grad = grads[name].double()
        if state.get(name):
            optimizer.state[p] = {key: value.clone() if key == "step" else value.double().clone()
                                  for key, value in state[name].items()}
    optimizer.step()
    return {name: p.detach() for name, p in parameters.items()}, {
        name: {key: x for key, x in optimizer.state[p].items() if x is not None} for name, p in parameters.items()}


def norm_of(grads: Tensors) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in grads.values()))


class Reference:
    """The module in double, and the gradients of micro-batches by it."""

    def __init__(self, case: Case):
        self.case, self.made = case, dict[Pass, torch.nn.Module]()

    def module(self, by: Pass) -> torch.nn.Module:
        if by not in self.made:
            module = copy.deepcopy(self.case.module).to(torch.float32 if by.half else torch.float64)
            for name, part in module.named_modules():
                part.training = self.case.modes[name]
            if by.change is not None:
                by.change(module, self.case)
            self.made[by] = module
        return self.made[by]

    def output_of(self, result: Any) -> torch.Tensor:
        if isinstance(result, torch.Tensor):
            return result
        key = self.case.output if self.case.output is not None else "logits" if hasattr(result, "logits") else 0
        return result[key]

    def cannot_compare(self, output: torch.Tensor, target: torch.Tensor, how: str) -> NoReturn:
        kind = str(target.dtype).removeprefix("torch.")
        raise CannotJudge(f"the output is {list(output.shape)}, and the target "
                          f"{list(target.shape)} of {kind}: the loss `{self.case.loss['type']}` {how}")

    def loss_of(self, output: torch.Tensor, target: torch.Tensor, ignores: bool) -> tuple[torch.Tensor, float, float]:
        """The sum of the losses, what counts, and all elements."""
        table = self.case.loss
        if table["type"] != "cross_entropy":
            if table["type"] not in LOSSES:
                raise CannotJudge(f"verify does not know the loss `{table['type']}`")
            if target.numel() != output.numel():
                self.cannot_compare(output, target, "compares them element by element")
            target = target.to(output.dtype).reshape(output.shape)
            return LOSSES[table["type"]](output, target, table), float(target.numel()), float(target.numel())
        if output.shape[:-1] != target.shape and output.ndim > 2:
            output = output.movedim(1, -1)
        if output.ndim < 2 or target.numel() != output[..., 0].numel():
            self.cannot_compare(output, target, "takes the number of a class for each row of the output")
        x, t = output.reshape(-1, output.shape[-1]), target.reshape(-1).long()
        counts = t != table.get("ignore_index", -100) if ignores else t == t
        weight = torch.as_tensor(table.get("class_weights", [1.0] * x.shape[-1]), dtype=x.dtype)
        total = F.cross_entropy(x, t.where(counts, torch.tensor(-1)), weight, ignore_index=-1, reduction="sum",
                                label_smoothing=table.get("label_smoothing", 0.0))
        return total, float(weight[t[counts]].sum()), float(len(t))

    def window(self, draws: Mapping[int, list[torch.Tensor]], weights: Tensors, buffers: Tensors, by: Pass = Pass()
               ) -> tuple[list[Part], Tensors]:
        """The parts of the micro-batches from these weights, and the buffers after them."""
        module, case = self.module(by), self.case
        names, parts = named(module), []
        with torch.no_grad():
            for name, p in names.items():
                p.copy_(weights[name if name in weights else case.owners[name]])
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers.get(name, buffer))
        single = {id(p): name for name, p in reversed(names.items())}.values()
        for i, noted in draws.items():
            batch, kind = case.batches[i], torch.float32 if by.half else torch.float64
            inputs = {name: x.to(kind) if x.is_floating_point() else x for name, x in batch.inputs.items()}
            target = batch.target if by.target is None else by.target(batch, case.loss.get("ignore_index", -100))
            module.zero_grad()
            generator, given = torch.get_rng_state(), Draws(noted, bool(noted))
            for _ in range(by.times):
                given.next = 0
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=by.half), given:
                    output = self.output_of(module(**inputs))
            total, counted, elements = self.loss_of(output.double(), target, by.ignores)
            with given:
                total.backward()
            torch.set_rng_state(generator)
            grads = {name: torch.zeros_like(p, dtype=torch.float64) if (p := names[name]).grad is None else
                     p.grad.double().clone() for name in single}
            parts.append(Part(grads, float(total.detach()), counted, elements, len(batch.target)))
        return parts, {name: x.detach().clone() for name, x in module.named_buffers()}


def inputs_of(module: torch.nn.Module, batches: list[Any], target: str) -> list[Batch]:
    """The micro-batches by name: of a tuple the forward's arguments in their order, then the target.

    Targets stand beside the outputs that they are compared with; the `labels` of transformers are moved there."""
    taken = [name for name, each in inspect.signature(module.forward).parameters.items()
             if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and name != target]
    out = []
    for i, batch in enumerate(batches):
        if isinstance(batch, (tuple, list)):
            batch = dict(zip([*taken[:len(batch) - 1], target], batch))
        if not isinstance(batch, Mapping) or target not in batch or not batch.keys() & set(taken):
            raise CannotJudge(f"micro-batch {i} is {type(batch).__name__}: it may be (input, ..., target), or a dict "
                              f"with `{target}` and the forward's {', '.join(taken)}")
        wanted = torch.as_tensor(batch[target])
        if target == "labels" and getattr(module, "loss_type", None) == "ForCausalLM":
            wanted = F.pad(wanted[..., 1:], (0, 1), value=-100)  # which transformers shifts by itself
        out.append(Batch({name: torch.as_tensor(batch[name]) for name in taken if name in batch}, wanted))
    return out
