"""Compares what a loop did with the exact step, update by update, and names the variant that its numbers equal.

Each update is judged from the loop's own state before it: its weights give the exact gradient, its gradient and its
moments the exact weights after it. That the state before an update is the one after the last is judged as well, so
right updates make a right run, and a fault does not hide those behind it.
"""
from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch

from .exact import Case, Part, Reference, norm_of, stepped
from .observe import CannotJudge, Tensors, Update
from .table import EXACT, GRADIENT, OTHER, RATES, STEPS, WINDOWS, At, Cut, Row, Step, Window, times

# The largest difference of a tensor of the gradient, by its norm, that is rounding; and the part of the whole
# gradient's norm that a small tensor's counts as at least. In half precision a variant is also the answer where it is
# nearer than the exact step by the factor NEARER.
BOUNDS = {"f32": 3e-4, "f16": 3e-2, "bf16": 1.5e-1}
STATISTICS = {"f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
LEAST, NEARER = 1e-2, 0.4
WEIGHTS, MOVED = 3e-7, 2e-4  # of a weight, which f32 rounds twice, and of its step
RATE = 1e-5


class Fault(NamedTuple):
    """One thing that a loop computes otherwise than the exact step."""

    name: str
    where: str  # the line of the loop, and the tensor or number that it shows in most
    update: int  # the first one that has it, from 1 on
    measured: float
    exact: float
    remedy: str


def apart(ours: Tensors, exact: Tensors) -> tuple[float, str]:
    """The largest difference of a tensor relative to its norm, and the tensor."""
    floor, worst, where = LEAST * norm_of(exact) + 1e-300, 0.0, ""
    for name, wanted in exact.items():
        mine = ours.get(name)
        off = float((wanted if mine is None else mine.double() - wanted).norm() / (wanted.norm() + floor))
        if not off <= worst:  # also what is not a number
            worst, where = off, name
    return worst, where


def spot(name: str, ours: torch.Tensor, exact: torch.Tensor) -> tuple[str, float, float]:
    """The element of a tensor that is most apart, and its two values."""
    mine, wanted = ours.detach().double(), exact.detach().double()
    at = torch.unravel_index((mine - wanted).abs().nan_to_num(nan=torch.inf).argmax(), wanted.shape)
    return f"{name}{[int(i) for i in at]}", float(mine[at]), float(wanted[at])


class Judge:
    """The faults of one run of a loop."""

    def __init__(self, case: Case, updates: list[Update], buffers: Tensors, reference: Reference):
        self.case, self.updates, self.reference = case, updates, reference
        self.good = [update for update in updates if not update.skipped and update.batches]
        self.buffers = {id(u): b for u, b in zip(updates, [buffers, *(u.buffers for u in updates)])}
        self.faults: dict[str, Fault] = {}
        self.parts = functools.cache(self._parts)
        self.bound = BOUNDS[case.half]

    def found(self, row: str | Row, update: Update, where: str, measured: float, exact: float, number: int = 0) -> None:
        row = OTHER[row] if isinstance(row, str) else row
        number = number or next(i for i, u in enumerate(self.updates, 1) if u is update)
        place = ", ".join(filter(None, [update.line, where]))
        fault = Fault(row.name, place, number, measured, exact, f"{row.remedy} (usual: {row.cause})")
        self.faults.setdefault(row.name, fault)

    def all_faults(self) -> list[Fault]:
        if any(call.used and call.batch is None for u in self.updates for call in u.calls):
            raise CannotJudge("the loop gives the module inputs that are no micro-batch of `batches`: it mixes, cuts "
                              "or changes them")
        for judge in (self.windows, self.scales, self.gradients, self.statistics, self.steps, self.rates):
            judge()
        if "an update each micro-batch" in self.faults:  # of which a division by K is a part
            self.faults.pop("short windows divided by K", None)
        return sorted(self.faults.values(), key=lambda fault: fault.update)

    # ------------------------------------------------------------ which micro-batches
    def windows(self) -> None:
        wanted, got = self.case.windows(), [update.batches for update in self.updates]
        for update in self.updates:
            if update.skipped and update.finite:
                short = len(update.batches) < self.case.window
                self.found(WINDOWS[0] if short else "an update is left out", update, "", 0, 1)
        if got != wanted:
            first = next(i for i, (a, b) in enumerate(itertools.zip_longest(got, wanted)) if a != b)
            row = next(row for row in WINDOWS if row.of(Cut(got, wanted, self.case.window, first)))
            at = self.updates[min(first, len(got) - 1)] if got else Update([], "")
            number = "number of updates", len(got), len(wanted)
            if row.name in ("no gradient came back", "windows of another size"):
                row = row._replace(remedy=row.remedy.format(size=len(got[0])))
                number = "micro-batches of an update", len(got[first]), len(wanted[first])
            elif first < min(len(got), len(wanted)) and number[1] == number[2]:
                pairs = itertools.zip_longest(got[first], wanted[first], fillvalue=-1)
                number = "micro-batch", *next(pair for pair in pairs if pair[0] != pair[1])
            self.found(row, at, *number, first + 1)

    def scales(self) -> None:
        for update in self.updates:
            if update.scale is not None and update.expected_scale not in (None, update.scale):
                scales = update.scale, update.expected_scale
                self.found("resume without the scaler", update, "scale of the loss", *scales)

    # ------------------------------------------------------------ gradients
    def _parts(self, index: int, row: Row) -> tuple[list[Part], Tensors]:
        update = self.good[index]
        return self.reference.window(update.draws, update.weights, self.buffers[id(update)], row.of)

    def gradient(self, index: int, *rows: Row) -> Tensors:
        """The gradient of an update by a step that has these faults."""
        update, by = self.good[index], {**EXACT, **{row.kind: row for row in rows}}
        parts, scale = self.parts(index, by["pass"])[0], update.scale or 1.0
        sums = [sum(getattr(part, key) for part in parts) for key in ("counted", "elements", "samples")]
        window = Window(parts, self.case.window, self.case.clip, scale, *sums)
        left = times({name: g.double() for name, g in update.left.items()}, 1.0 / scale) if by["kept"].of else {}
        terms = [times(part.grads, factor) for part, factor in zip(parts, by["weight"].of(window))]
        grads = by["clip"].of(terms, left, window)
        return {name: g for name, g in grads.items() if name in self.case.trained or name in update.rates}

    def applies(self, row: Row) -> bool:
        """Returns whether a row can make a difference in this case: the others take time and explain nothing."""
        if row.kind == "kept":
            return any(bool(g.any()) for update in self.good for g in update.left.values())
        if row.name == "computed in half precision":
            return self.case.half == "f32" and any(c.half != "f32" for u in self.good for c in u.calls)
        return row.kind != "clip" or self.case.clip is not None

    def gradients(self) -> None:
        exact = [self.gradient(i) for i in range(len(self.good))]
        self.idle(exact)

        @functools.cache
        def off(index: int, *rows: Row) -> float:
            return apart(self.good[index].grads, self.gradient(index, *rows) if rows else exact[index])[0]
        rows, numbers, halves = [*filter(self.applies, GRADIENT)], range(len(self.good)), self.case.half != "f32"
        limits = [min(self.bound, NEARER * off(i)) if halves else self.bound for i in numbers]
        near = [row for row in rows if row.kind != "pass"] if halves else []
        wrong = [i for i in numbers if not off(i) <= self.bound or any(off(i, row) <= limits[i] for row in near)]
        pairs = [pair for pair in itertools.combinations(rows, 2) if pair[0].kind != pair[1].kind]
        while wrong:
            first, best = wrong[0], ()
            for tried in ([(row,) for row in rows], pairs):
                fits = [each for each in tried if off(first, *each) <= limits[first]]
                if fits:  # the one that explains most updates, and is right in those that are
                    def merit(each: tuple[Row, ...]) -> tuple[int, int, float]:
                        right = sum(off(i, *each) <= self.bound for i in numbers if i not in wrong)
                        return sum(off(i, *each) <= limits[i] for i in wrong), right, -off(first, *each) * halves
                    best = max(fits, key=merit)
                    break
            mine, wanted = self.good[first].grads, exact[first]
            if not best:
                along = sum(float((mine[name].double() * g).sum()) for name, g in wanted.items() if name in mine)
                scaled = apart(mine, times(wanted, along / max(norm_of(wanted) ** 2, 1e-300)))[0] <= self.bound
                best = (OTHER["the gradient is scaled by a number" if scaled else "another gradient"],)
            name = apart(mine, wanted)[1]
            at = spot(f"gradient of {name}", mine.get(name, torch.zeros_like(wanted[name])), wanted[name])
            for row in best:
                self.found(row, self.good[first], *at)
            wrong = [i for i in wrong if row.kind != "gradient" and off(i, *best) > limits[i]]

    def idle(self, exact: list[Tensors]) -> None:
        """Finds parameters that ought to move, and that no optimizer has."""
        for update, grads in zip(self.good, exact):
            for name in sorted(self.case.trained.keys() - update.rates.keys()):
                if bool(grads[name].any()):
                    self.found("a parameter that no optimizer has", update, name, 0.0, float(grads[name].norm()))
                    update.grads[name] = grads[name]

    # ------------------------------------------------------------ weights and moments
    def steps(self) -> None:
        case, known = self.case, dict[str, Tensors]()
        last: Tensors = dict(case.trained)
        for update in self.updates:
            for name in last.keys() & update.weights.keys():
                if not torch.equal(update.weights[name], last[name]):
                    at = spot(name, update.weights[name], last[name])
                    self.found("weights change between updates", update, *at)
            last = update.after
            if update.skipped or not update.batches:
                continue
            exact = Step(case.optimizer["type"], case.decays)
            worst, at = self.step_off(update, known, exact)
            if worst > 1:
                tried = [(row,) for row in STEPS] + [(STEPS[-1], row) for row in STEPS[:-1]]
                changed = [functools.reduce(lambda step, row: row.of(case, step), rows, exact) for rows in tried]
                fits = [rows for rows, step in zip(tried, changed) if self.step_off(update, known, step)[0] <= 1]
                for row in fits[0] if fits else (OTHER["another update than the optimizer's"],):
                    self.found(row, update, *at)
            known.update(update.state_after)

    def step_off(self, update: Update, known: dict[str, Tensors], step: Step) -> tuple[float, tuple[str, float, float]]:
        """How far weights and moments are off at most, in units of what is rounding, and where."""
        grads = {n: g for n, g in update.grads.items() if n in self.case.trained and n in update.rates}
        state = update.state if step.lost else known
        weights, after = stepped(self.case, update.weights, grads, state, update.rates, step.kind, step.decays)
        worst, at = 0.0, ("", 0.0, 0.0)
        for name, wanted in weights.items():
            before = update.weights[name].double()
            most = WEIGHTS * float(before.norm()) + MOVED * float((wanted - before).norm())
            pairs = [(name, update.after[name], wanted, most)]
            for key in after[name].keys() & update.state_after.get(name, {}).keys():
                exact = after[name][key].double()
                pairs.append((f"{key} of {name}", update.state_after[name][key], exact, MOVED * float(exact.norm())))
            for what, mine, exact, most in pairs:
                off = float((mine.double() - exact).norm()) / (most + 1e-30)
                if not off <= worst:
                    worst, at = off, spot(what, mine, exact)
        return worst, at

    # ------------------------------------------------------------ rates
    def rates(self) -> None:
        case, t, launches, skips, seen = self.case, 0, 0, 0, []
        for update in self.updates:
            of = {n: lr / case.factors[n] for n, lr in update.rates.items() if case.factors.get(n)}
            if not update.skipped and of:
                rate = max(of.values(), key=lambda x: abs(x - case.rate(t)))
                seen.append(At(case, update, rate, t, launches, skips, 0))
                t += 1
            skips += update.skipped
            launches += len(update.batches)

        def equal(a: float, b: float) -> bool:
            return abs(a - b) <= RATE * max(abs(b), 0.1 * case.peak)
        wrong = [at for at in seen if not equal(at.rate, case.rate(at.t))]
        if wrong:
            seen = [at._replace(first=wrong[0].t) for at in seen]
            row = next(row for row in RATES if all(equal(at.rate, row.of(at)) for at in seen))
            self.found(row, wrong[0].update, "rate", wrong[0].rate, case.rate(wrong[0].t))

    # ------------------------------------------------------------ running statistics
    def statistics(self) -> None:
        for index, update in enumerate(self.good):
            before, exact = self.buffers[id(update)], self.parts(index, EXACT["pass"])[1]
            moving = [n for n, x in exact.items() if x.is_floating_point() and n in update.buffers
                      and not torch.equal(x.to(before[n].dtype), before[n])]

            def moved(after: Tensors) -> Tensors:
                return {name: after[name].double() - before[name].double() for name in moving}
            off, where = apart(moved(update.buffers), moved(exact))
            if off <= STATISTICS[self.case.half]:
                continue
            others = [c.batch for c in update.calls if not c.used and c.training]
            twice = self.parts(index, OTHER["statistics moved twice"])[1]
            if not any(bool(x.any()) for x in moved(update.buffers).values()):
                name = "statistics do not move"
            elif any(batch not in update.batches for batch in others):
                name = "evaluation in training mode"
            elif others or apart(moved(update.buffers), moved(twice))[0] <= STATISTICS[self.case.half]:
                name = "statistics moved twice"
            else:
                name = "other running statistics"
            if name != "statistics do not move" or "evaluation mode left on" not in self.faults:
                self.found(name, update, *spot(where, update.buffers[where], exact[where]))

    def lines(self) -> list[dict[str, Any]]:
        """What each update of the loop was, beside the exact one."""
        out, t = [], 0
        for number, update in enumerate(self.updates, 1):
            out.append({"update": number, "micro_batches": update.batches, "skipped": update.skipped})
            index = next((i for i, good in enumerate(self.good) if good is update), None)
            if index is not None:
                parts = self.parts(index, EXACT["pass"])[0]
                out[-1] |= {"loss": sum(p.loss for p in parts) / max(sum(p.counted for p in parts), 1e-300),
                            "grad_norm": norm_of(update.grads), "exact_grad_norm": norm_of(self.gradient(index)),
                            "lr": max(update.rates.values(), default=0.0), "exact_lr": self.case.rate(t)}
                t += 1
        return out
