"""Is your training loop right? The loop runs as it is, and the exact step beside it (docs/tutorials/verify.md).

    report = gacc.verify(module, loop, batches, loss="cross_entropy", target="y", optimizer={"type": "adamw"},
                         train={"accumulate": 4, "clip_norm": 1.0})
    print(report)                      # report.ok, report.faults

    python -m gacc.verify script.py:loop --batches N [--json]
"""
from __future__ import annotations

import json
import os
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _arguments


@dataclass
class Report:
    """What verify() found. `reason` says why it cannot judge, where it cannot."""

    title: str
    faults: list[Any] = field(default_factory=list)  # judge.Fault: name, where, update, measured, exact, remedy
    updates: list[dict[str, Any]] = field(default_factory=list)  # of the loop, each beside the exact one
    beside: str = ""  # how far gacc's step and PyTorch's in double are apart
    reason: str = ""

    @property
    def ok(self) -> bool | None:
        """True: the loop is right, False: it has a fault, None: it cannot be judged."""
        return None if self.reason else not self.faults

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 2 if self.reason else int(bool(self.faults))

    def json(self) -> str:
        return json.dumps({"ok": self.ok, "reason": self.reason, "beside": self.beside,
                           "faults": [fault._asdict() for fault in self.faults], "updates": self.updates})

    def __str__(self) -> str:
        out = [f"gacc.verify: {self.title}"] + [f"  exact     {self.beside}"] * bool(self.beside)
        if self.reason:
            return "\n".join([*out, f"  cannot judge: {self.reason}"])
        for fault in self.faults:
            out += [f"  wrong     {fault.name}, from update {fault.update} on", f"    at        {fault.where}",
                    f"    measured  {fault.measured:.4g}", f"    exact     {fault.exact:.4g}",
                    textwrap.fill(f"    remedy    {fault.remedy}", 110, subsequent_indent=" " * 14)]
        return "\n".join(out if self.faults else [*out, f"  right     {len(self.updates)} updates"])


def said_exit(end: SystemExit, file: str, remedy: str) -> str:
    """What is said of code that ends the process before it is judged, at its last line in the file."""
    frames = traceback.extract_tb(end.__traceback__)
    last = next((each for each in reversed(frames) if os.path.abspath(each.filename) == os.path.abspath(file)),
                frames[-1])
    return f"{last.filename}:{last.lineno} ends the process with sys.exit({end.code!r}); {remedy}"


def verify(module: Any, loop: Callable, batches: Iterable, *, loss: str | Mapping, target: str | None = None,
           optimizer: str | Mapping, train: Mapping | None = None, schedule: str | Mapping | None = None,
           precision: str | Mapping | None = None, output: int | str | None = None) -> Report:
    """Runs loop(module, optimizer, batches) on a copy of the module, and compares each of its updates with the exact.

    batches    micro-batches in order, each (input, ..., target) or a dict by name. A window is `train.accumulate` of
               them, the last one what is left
    loss       the loss that the loop ought to have, of the module's output and the target: as of gacc.from_torch
    optimizer  the table of which the loop gets PyTorch's own optimizer, over the module's parameters
    train      accumulate, clip_norm, tail, epochs: what the loop ought to do
    schedule   what its rates ought to be
    precision  what it ought to compute in: half precision has wider bounds
    output     which one of the module's outputs the loss takes
    """
    _arguments.check(verify, locals())
    from .run import judged  # PyTorch is loaded with the first call, as by gacc.from_torch
    tables = {name: {key: given} if isinstance(given, str) else dict(given or {}) for name, key, given in (
        ("loss", "type", loss), ("optimizer", "type", optimizer), ("schedule", "type", schedule),
        ("precision", "compute", precision), ("train", "", train))}
    return judged(module, loop, list(batches), target or tables["loss"].get("target", "target"), tables, output)
