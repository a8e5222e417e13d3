"""A picture of runs: what the logs of `gacc-exec --log` say of loss, evaluations, rate, gradients and loss scale.

    python -m gacc.chart log.jsonl -o run.svg
    python -m gacc.chart a.jsonl b.jsonl c.jsonl -o runs.png      # .svg, .png or .pdf; a colour for each run

Needs the package `matplotlib`. docs/running.md has the fields of a log.
"""
from __future__ import annotations

import json
import math
import pathlib
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import Error
from ._arguments import Parser
from ._arrays import whole
from ._pictures import bars, lines  # draw the pictures of docs/tutorials

__all__ = ["bars", "lines", "read"]
ENDINGS = (".svg", ".png", ".pdf")
# What an evaluation has beside its metrics.
NO_METRICS = {"event", "epoch", "loss", "samples", "counted", "best", "updates", "seconds"}
PANELS = {"loss": "loss", "lr": "rate", "grad_norm": "gradient norm", "loss_scale": "loss scale"}


class Run(NamedTuple):
    """What a log says: by the name of a figure its points, (updates, value)."""

    name: str
    updates: dict[str, list[tuple[float, float]]]
    evaluations: dict[str, list[tuple[float, float]]]


def point(event: dict[str, Any], at: str, key: str) -> list[tuple[float, float]]:
    """A figure of an event; none where it is null, as what is not finite is."""
    pair = event.get(at), event.get(key)
    right = all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in pair)
    return [pair] if right else []


def read(path: str, name: str) -> Run:
    """Reads a log; an unfinished last line, of a run under way, is left out."""
    run = Run(name, {}, {})
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Error(f"{path}: is no log of --log: it is no text") from None
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise Error(f"{path}:{number}: is no event of a log, which gacc-exec --log writes")
        if event["event"] == "update":
            for key in PANELS:
                run.updates.setdefault(key, []).extend(point(event, "update", key))
        elif event["event"] == "eval":
            for key in ["loss", *sorted(event.keys() - NO_METRICS)]:
                run.evaluations.setdefault(key, []).extend(point(event, "updates", key))
    if not any(map(len, [*run.updates.values(), *run.evaluations.values()])):
        raise Error(f"{path}: has nothing to draw: no update and no evaluation")
    return run


def names_of(paths: Iterable[str]) -> list[str]:
    """What the runs are called: by their files, or, where these are alike, by their paths."""
    stems = [pathlib.Path(path).stem for path in paths]
    return stems if len(set(stems)) == len(stems) else list(paths)


def panels_of(runs: list[Run]) -> dict[str, str]:
    """The figures that are no constant, and their titles: the loss, and what the logs have of others."""
    found = {"loss": PANELS["loss"]}
    for run in runs:
        found |= {key: key.replace("_", " ") for key, values in run.evaluations.items() if values and key != "loss"}
    for key, title in PANELS.items():
        values = {value for run in runs for _, value in run.updates.get(key, [])}
        if len(values) > 1 or (key == "lr" and values):
            found[key] = title
    return found


def draw(runs: list[Run], out: pathlib.Path) -> None:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise Error("needs the package matplotlib: pip install matplotlib") from None
    panels = panels_of(runs)
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.5 * columns, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for empty in axes[len(panels):]:
        empty.set_axis_off()
    for panel, (key, title) in zip(axes, panels.items()):
        panel.set_title(title, loc="left")
        panel.set_xlabel("update")
        panel.grid(alpha=0.3)
        for number, run in enumerate(runs):
            colour, label = f"C{number % 10}", run.name if len(runs) > 1 else "training"
            if points := run.updates.get(key):
                panel.plot(*zip(*points), color=colour, linewidth=1.2, label=label)
            if points := run.evaluations.get(key):
                label = f"{run.name}, evaluation" if len(runs) > 1 else "evaluation"
                panel.plot(*zip(*points), color=colour if len(runs) > 1 else "C1", linewidth=1.2, linestyle="--",
                           marker="o", markersize=4, label=label)
        if key == "loss_scale":
            panel.set_yscale("log", base=2)
    axes[0].legend(frameon=False)
    with matplotlib.rc_context({"svg.hashsalt": "gacc"}):  # the same picture is the same bytes
        with whole(out) as file:
            figure.savefig(file, format=out.suffix[1:], dpi=150,
                           metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    parser = Parser(prog="python -m gacc.chart", description=__doc__.split("\n\n")[0])
    parser.add_argument("logs", metavar="LOG", nargs="+", help="what gacc-exec --log has written")
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="FILE.svg, FILE.png or FILE.pdf")
    given = parser.parse_args()
    out = pathlib.Path(given.out)
    try:
        if out.suffix not in ENDINGS:
            raise Error(f"{out}: ends in none of {', '.join(ENDINGS)}")
        draw([read(path, name) for path, name in zip(given.logs, names_of(given.logs))], out)
    except OSError as error:
        sys.exit(f"error: {out}: cannot be written: {error.strerror}")
    except Error as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
