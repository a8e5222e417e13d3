"""python -m gacc.verify script.py:loop --batches N [--json]

The script is run, and says by names of its own what gacc.verify takes: `module`, `batches`, `loss`, `target`,
`optimizer`, and where there are any `train`, `schedule`, `precision`, `output`. Each is the thing, or a function
without arguments that makes it. Exit status: 0 the loop is right, 1 it has a fault, 2 it cannot be judged.
"""
from __future__ import annotations

import argparse
import itertools
import os
import runpy
import sys
from typing import Any

from .. import verify
from . import Report, said_exit

NEEDED = ("module", "batches", "loss", "optimizer")
MORE = ("target", "train", "schedule", "precision", "output")


def report_of(script: str, name: str, count: int) -> Report:
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        names = runpy.run_path(script, run_name="gacc.verify")
    except SystemExit as end:
        why = said_exit(end, script, 'leave that to `if __name__ == "__main__"`, which verify does not run')
        return Report(script, [], [], "", why)
    missing = [each for each in (name, *NEEDED) if each not in names]
    if missing:
        return Report(script, [], [], "", f"{script} has no {', '.join(f'`{each}`' for each in missing)}")

    def made(each: str) -> Any:
        value = names.get(each)
        if each == "module":
            import torch
            return value if isinstance(value, torch.nn.Module) else value()
        return value() if callable(value) and not hasattr(value, "__iter__") else value
    given: dict[str, Any] = {each: made(each) for each in (*NEEDED, *MORE)}
    module, batches = given.pop("module"), given.pop("batches")
    return verify(module, names[name], itertools.islice(batches, count), **given)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gacc.verify", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", metavar="script.py:loop", help="the loop: a function of (module, optimizer, batches)")
    parser.add_argument("--batches", type=int, required=True, metavar="N", help="how many micro-batches it runs")
    parser.add_argument("--json", action="store_true", help="one JSON object in the place of the text")
    given = parser.parse_args(words)
    script, colon, name = given.loop.rpartition(":")
    if not colon or not name.isidentifier():
        parser.error("the loop is script.py:loop")
    if given.batches < 1:
        parser.error("--batches is 1 or more")
    try:
        report = report_of(script, name, given.batches)
    except SystemExit as end:
        report = Report(given.loop, [], [], "", said_exit(end, script, "leave it out of what the loop is made of"))
    except Exception as error:  # the script's own
        report = Report(given.loop, [], [], "", f"{script} ended with {type(error).__name__}: {error}")
    print(report.json() if given.json else report)
    return report.status


if __name__ == "__main__":
    sys.exit(main())
