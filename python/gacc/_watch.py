"""The work of gacc.train beside the training: evaluations, the best of them, checkpoints, and lines on how it goes."""
from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import _arrays
from ._library import Error, byref, call

AN_ITERATOR = ("an iterator, which can be gone through once: give a list, as list(it), or something that begins anew, "
               "as a DataLoader")
REDRAWN = 0.1  # seconds between two pictures of the line that moves


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rehearse(session: Any, path: str) -> None:
    """Saves into a folder beside, so that a path which cannot be written is refused before the training."""
    if not path:
        raise ValueError("save_best is '', which names no file")
    folder, name = os.path.split(os.path.abspath(path))
    try:
        with tempfile.TemporaryDirectory(prefix=".gacc-", dir=folder) as beside:
            try:
                session.save(os.path.join(beside, name) + "/" * (path.endswith("/") or os.path.isdir(path)))
            except Error as error:
                raise Error(f"save_best: {error}".replace(beside, folder), error.kind) from None
    except OSError as error:
        raise ValueError(f"save_best is {path!r}: {folder}: {error.strerror}") from None


class Watch:
    """Used with `with`: its end evaluates and writes a checkpoint once more, if there is anything new."""

    def __init__(self, session: Any, evaluate: Iterable[Any] | Mapping[str, Any] | None, eval_every: int | None,
                 on_eval: Any, patience: int | None, best: str, save_best: Any, checkpoint: Any, progress: bool,
                 epochs: int):
        for name, value in (("patience", patience), ("eval_every", eval_every)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it is a number from 1")
        given = (("patience", patience), ("eval_every", eval_every), ("save_best", save_best), ("on_eval", on_eval))
        for name, value in given:
            if value is not None and evaluate is None:
                raise ValueError(f"{name} needs evaluate, a loader of samples")
        if checkpoint is not None:
            os.makedirs(checkpoint, exist_ok=True)
        if save_best is not None and not callable(save_best):
            rehearse(session, os.fsdecode(save_best))
        if evaluate is None:
            with contextlib.suppress(Error):  # another schedule has no such state
                call("session_read", session._handle, b"plateau.cuts", byref(ctypes.c_int32()), 4)
                _arrays.warn('without evaluate the schedule "plateau" never cuts the rate')
        if isinstance(evaluate, Iterator):
            raise ValueError(f"evaluate is {AN_ITERATOR}")
        self._session, self._every, self._on_eval = session, eval_every, on_eval
        self._loader = [evaluate] if isinstance(evaluate, Mapping) else evaluate
        if evaluate is not None:  # what is wrong with its first batch is said before the training
            columns = dict(session._columns)
            try:
                next(session._micro_batches(next(iter(self._loader), ()), self._loader))
            except (TypeError, ValueError) as error:
                raise type(error)(f"evaluate: {error}") from error
            session._columns = columns  # whose order the first table of the training fixes
        self._patience, self._metric, self._save_best = patience, best, save_best
        self._best, self._best_at, self._worse = ctypes.c_double(math.nan), 0, 0
        self._checkpoint, self._progress, self._epochs = checkpoint, progress, epochs
        self.updates = self.samples = self.epoch = 0  # updates of the run, samples of the epoch
        self._before = self._drawn = 0.0  # when the epoch began, and when the line was drawn last
        self._epoch_updates, self._loss = 0, math.nan
        self._evaluated = self._written = -1  # the updates then
        self._launches = 0  # of the run
        call("session_evaluated", session._handle, None, best.encode(), byref(self._best), byref(ctypes.c_int()))

    # ---- what the loop says

    def begin(self, epoch: int) -> None:
        self.epoch, self.samples, self._epoch_updates, self._before = epoch, 0, self.updates, time.monotonic()

    def launched(self, samples: int) -> None:
        self.samples += samples
        self._launches += 1
        self._draw()

    def updated(self, window: Any) -> bool:
        """Returns whether the run is to end."""
        self.updates += window.applied
        if window.applied:
            self._loss = window.loss
        due = window.applied and self._every and self.updates % self._every == 0
        return bool(due) and self._evaluate()

    def epoch_done(self) -> bool:
        """Returns whether the run is to end."""
        seconds = time.monotonic() - self._before
        made = self.updates - self._epoch_updates
        loss = f"; loss {self._loss:.6g} in the last update" if self.updates else ""
        self._say(f"epoch {self.epoch}: {counted(made, 'update')}, {counted(self.samples, 'sample')} in {seconds:.2f} s"
                  f" ({self.samples / max(seconds, 1e-9):.0f} samples/s){loss}")
        stops = self._evaluate()
        self._write()
        return stops

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._evaluate()
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self._write()
        self._clear()

    # ---- what comes of it

    def _evaluate(self) -> bool:
        """Evaluates, unless these parameters have been. Returns whether the run is to end."""
        if self._loader is None or self._evaluated == self.updates:
            return False
        session, better = self._session, ctypes.c_int()
        found = session._evaluate_over(self._loader)
        call("session_evaluated", session._handle, byref(found), self._metric.encode(), byref(self._best),
             byref(better))
        self._evaluated = self.updates
        evaluation = session._evaluation(found)
        metrics = "".join(f", accuracy {100 * value:.2f} %" if name == "accuracy" else f", {name} {value:.6g}"
                          for name, value in evaluation.metrics.items())
        keeps = bool(self._patience or self._save_best)
        self._say(f"eval, epoch {self.epoch}, update {self.updates}: loss {evaluation.loss:.6g}, "
                  f"{counted(evaluation.samples, 'sample')}{metrics}{' (the best)' if better and keeps else ''}")
        if better:
            self._best_at, self._worse = self.updates, 0
            if callable(self._save_best):
                self._save_best(session)
            elif self._save_best is not None:
                session.save(self._save_best)
        else:
            self._worse += 1
        if self._on_eval is not None:
            self._on_eval(session, evaluation)
        if self._patience is None or self._worse < self._patience:
            return False
        self._say(f"no better {self._metric} in {counted(self._worse, 'evaluation')}: stopped; the best was "
                  f"{self._best.value:.6g}, at update {self._best_at}")
        return True

    def _write(self) -> None:
        if self._checkpoint is not None and self._written != self._launches:
            self._session.checkpoint(os.fspath(self._checkpoint))
            self._written = self._launches

    # ---- lines

    def _draw(self) -> None:
        if not self._progress or not sys.stderr.isatty() or time.monotonic() - self._drawn < REDRAWN:
            return
        self._drawn = time.monotonic()
        rate = self.samples / max(self._drawn - self._before, 1e-9)
        loss = f"  loss {self._loss:.4g}" if self.updates else ""
        line = f"epoch {self.epoch}/{self._epochs}  update {self.updates}{loss}  {rate:.0f} samples/s"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = 0.0

    def _say(self, line: str) -> None:
        if self._progress:
            self._clear()
            print(line, flush=True)
