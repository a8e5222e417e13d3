"""gacc: training steps that a compiler has planned to the byte, from Python.

    import gacc
    step = gacc.compile("model.toml", set={"train.micro_batch": 64}, memory="2GiB")
    run = gacc.train(step, loader, epochs=2, on_update=lambda run, window: print(window.loss))
    run.predict(image=x)

Arrays are raw data, samples first: u8 becomes f32 divided by 255, and what the model says under `normalize` is applied.
numpy arrays, torch tensors on the CPU, and all that has DLPack, __array_interface__ or __array__ will do; nothing is
copied on the way where the type (f32 or i32) and the row-major layout are the step's. The interpreter's lock is free
while the step runs; Ctrl-C ends the call under way first. A Session is for one rank.
"""
from __future__ import annotations

import builtins
import copy
import ctypes
import functools
import html
import importlib
import inspect
import itertools
import json
import math
import os
import pathlib
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _arguments, _arrays, _gguf, _paths, _toml
from ._library import (TREE, CArray, CEvaluation, CompileOptions, CTensor, CWindow, DeviceOptions, Error, SaveOptions,
                       StepInfo, byref, call, library, path_bytes)
from ._watch import Watch

__version__: str = library.gacc_version().decode()
__all__ = ["Error", "Evaluation", "Input", "Plan", "Session", "Step", "Window", "compile", "from_torch", "open",
           "train", "verify"]
LARGE = 1e4  # a feature beyond it makes a step of a usual size far too large, as of gacc-exec
FEW, ALL = 32, 0.99  # targets that say nothing, and the share that is as good as all, as of gacc-exec
PREDICTED = 4096  # samples of a call of the library, which Ctrl-C waits for


class Input(NamedTuple):
    """An input of the model: its dtype on the device ("f32" or "i32") and the shape of a sample."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Window(NamedTuple):
    """The result of an update over its window of micro-batches."""

    launches: int  # micro-batches
    samples: int
    applied: bool  # False: nothing was counted, or a gradient was not finite; the parameters stay
    skipped: bool  # a gradient was not finite, and the model says that such windows are left out
    loss: float  # mean over the counted elements
    grad_norm: float  # of the mean gradient, before clipping
    lr: float  # that was used


class Evaluation(NamedTuple):
    """The loss over samples, and the model's metrics by name."""

    samples: int
    counted: int  # elements of the loss
    loss: float  # mean over them; NaN where there is none
    metrics: dict[str, float]


class Plan(dict):
    """The plan, as `gaccc --plan --json` gives it: bytes (["bytes"]["peak"], ...), launches, FLOPs, equivalence.

    In a notebook it shows itself as the report's picture of the memory over time."""

    _source: tuple[str | None, list[str]] | None = None  # the model's text, if it is one, and the words for gaccc

    def picture(self) -> str | None:
        """That picture, as SVG; None for an artifact without its model, or where there is no gaccc."""
        if self._source is None:
            return None
        text, words = self._source
        gaccc, environment = program("gaccc")
        try:
            return subprocess.run([gaccc, *words, "--emit", "svg", "-o", "-"], env=environment, input=text,
                                  stdout=subprocess.PIPE, check=True, encoding="utf-8").stdout
        except (OSError, subprocess.CalledProcessError):
            return None

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{count:,}</td></tr>"
                       for name, count in self["bytes"].items())
        out = (f"<p>{html.escape(self['model'])}: {self['bytes']['peak']:,} bytes, {self['micro_batch']} × "
               f"{self['accumulate']} samples an update</p>")
        picture = self.picture()
        if picture is None:
            return out + f"<table><tr><th>kind</th><th>bytes</th></tr>{rows}</table>"
        return out + (f'<iframe srcdoc="{html.escape(picture)}" style="width:100%;height:420px;border:0" '
                      'title="memory over time"></iframe>')


class _Fixed:
    """An object whose attributes are set as it is made: another one would change nothing that is computed."""

    _made = False
    _elsewhere: Mapping[str, str] = {}  # what others call an attribute, and what does it here

    def __getattr__(self, name: str) -> Any:
        here = f": {self._elsewhere[name]}" if name in self._elsewhere else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{here}", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._made and not name.startswith("_"):
            raise AttributeError(f"{type(self).__name__}.{name} cannot be set: {self._instead_of(name, value)}")
        super().__setattr__(name, value)

    def _instead_of(self, name: str, value: Any) -> str:
        """What changes that which an attribute by this name seems to be."""
        step = getattr(self, "compiled", self)
        if name in {*inspect.signature(Session.__init__).parameters} - {"self", "step"}:
            return f"it is given to a new session, Session(step, {name}={value!r:.60})"
        keys = [key for key in step._settings if key.rpartition(".")[2] == name]
        example = f'"{keys[0]}": {value!r:.60}' if keys else '"optimizer.lr": 1e-3'
        return f"a step never changes; compile another one, with set={{{example}}}"


class Step(_Fixed):
    """A compiled training step: what `gaccc` writes, as `compile` and `open` give it. It never changes."""

    def __init__(self, handle: ctypes.c_void_p, source: tuple[str | None, list[str]] | None = None):
        self._handle = handle
        weakref.finalize(self, library.gacc_step_free, handle)
        info, tensor = StepInfo(), CTensor()
        call("step_info_of", handle, byref(info))
        self.model: str = info.model.decode()
        self.micro_batch: int = info.micro_batch  # most samples of Session.step
        self.accumulate: int = info.accumulate  # launches of a window
        self.epochs: int = info.epochs
        self.seed: int = info.seed
        self.tail: str = info.tail.decode()  # "flush", "drop" or "carry"
        self.output_shape: tuple[int, ...] | None = _shape(info.output) if info.output.bytes else None  # of a sample
        self.inputs: dict[str, Input] = {}
        for i in range(info.inputs):
            call("step_input", handle, i, byref(tensor))
            it = Input(tensor.name.decode(), tensor.dtype.decode(), _shape(tensor))
            self.inputs[it.name] = it
        self._names = {name: name.encode() for name in self.inputs}
        self.plan = Plan(json.loads(library.gacc_step_plan(handle)))
        # Targets that are 0 to 1.
        self.shares = {it["name"] for it in self.plan["inputs"] if it.get("target") == "bce_with_logits"}
        self.plan._source = source
        self.source: str | None = None if source is None else source[0]  # the model's text, without a module's values
        self._module_state: Any = None
        self._batch_of_example = False  # nobody has said how large a micro-batch is
        self._run: Callable[[], Session | None] = lambda: None  # the last that `train` has begun, while it is there
        self._made = True

    @property
    def module_state(self) -> Any:
        """Of a PyTorch module: its values, and its names (torch.ModuleState)."""
        return self._module_state

    def save(self, path: str | os.PathLike) -> None:
        """Writes the artifact, for `gacc-exec` and `gacc.open`. A name that ends as a file of another format does, such
        as step.onnx, is refused.

        Of a PyTorch module it does not hold the values, and a run of it would begin with other ones: they are written
        beside it as NAME.safetensors, for `gacc-exec --load` and `Session.load`."""
        written = path_bytes(path)
        _paths.expect_artifact(path)
        call("step_save", self._handle, written)
        if self._module_state is not None and self._module_state.values:
            _arrays.write_safetensors(pathlib.Path(os.fsdecode(path)).with_suffix(".safetensors"),
                                      self._module_state.values)

    @functools.cached_property
    def _settings(self) -> dict[str, str]:
        """The settings of the step, as its artifact says them: TOML of each value."""
        begin, found = b"//ir   set ", {}
        with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
            path = os.path.join(folder, "step.ptx")
            call("step_save", self._handle, path_bytes(path))
            with builtins.open(path, "rb") as lines:
                next(lines), next(lines)  # the artifact's head, and the module's
                for line in itertools.takewhile(lambda line: line.startswith(begin), lines):
                    key, _, value = line.removeprefix(begin).decode().rstrip("\n").partition(" = ")
                    found[key] = value
        return found

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained beside the weights, as `lora` has them."""
        return "adapters.0.name" in self._settings

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError("a Step is neither copied nor pickled: save(path) writes it, and gacc.open(path) reads it")

    def __repr__(self) -> str:
        size = f"{self.micro_batch} x {self.accumulate} samples, {self.plan['bytes']['peak']:,} bytes"
        return f"<gacc.Step {self.model}: {size}>"

    def _repr_html_(self) -> str:
        return self.plan._repr_html_()


@_arguments.public
def compile(model: str | os.PathLike | Mapping, *, set: Mapping[str, Any] | None = None,
            memory: str | int | None = None, target: str | None = None, lora: int | None = None,
            context: int | None = None, families: str | os.PathLike | None = None, pack: bool = False) -> Step:
    """Compiles a model: a path, text with a line break in it, or a dict that says what a model file says. A path may be
    the folder of a published model, as Hugging Face writes it, its config.json, or a GGUF.

    set       keys of the model file and their values, as gaccc's --set: {"train.micro_batch": 64}. A dict of a table
              sets the keys that it has, and no other: {"train": {"micro_batch": 64}}
    memory    the most that a step may take: "2GiB", or bytes
    target    of the GPU's code: "sm_80" where none is given
    lora      the rank of adapters at all products of the blocks; the rest is frozen then
    context   of a published model: the tokens of a window
    families  a folder with more families of published models
    pack      of a published model: windows have several documents, whose numbers are the input "documents"

    Takes as long as gaccc does. A wrong model raises Error with the lines gaccc prints, and the place of the first.
    What the compiler warns of is a Python warning.
    """
    _arguments.check(compile, locals())
    _expect_from_one(lora=lora, context=context)
    size = f"{memory}B" if isinstance(memory, int) else memory
    given = _toml.settings(set or {}) | ({} if size is None else {"memory.budget": size})
    settings = [f"{key}={_toml.value(value, key)}" for key, value in given.items()]
    sets = (ctypes.c_char_p * max(len(settings), 1))(*(s.encode() for s in settings))
    options = CompileOptions(sets, len(settings), target.encode() if target else None, lora or 0, context or 0,
                             None if families is None else path_bytes(families), pack)
    words = [word for setting in settings for word in ("--set", setting)]
    for option, value in (("--lora", lora), ("--context", context), ("--families", families)):
        words += [] if value is None else [option, os.fspath(value) if option == "--families" else str(value)]
    words += ["--pack"] * pack
    handle = ctypes.c_void_p()
    if isinstance(model, Mapping) or (isinstance(model, str) and "\n" in model):
        text = _toml.document(model) if isinstance(model, Mapping) else model
        if "\0" in text:
            raise Error("a model is text, and this has a byte 0", "failed")
        _warn(call("compile_text", text.encode(), b"model", byref(options), byref(handle), file="model"))
        return Step(handle, (text, ["-", *words]))
    path = pathlib.Path(os.fsdecode(model))
    if _paths.is_artifact(path):
        raise Error(f"{path}: is an artifact already; gacc.open(path) reads it", "wrong call")
    _warn(call("compile_file", path_bytes(model), byref(options), byref(handle), file=str(path)))
    if path.suffix == ".json" or path.is_dir():
        return Step(handle, (None, [str(path.absolute()), *words]))
    return Step(handle, (path.read_text(encoding="utf-8"), ["-", *words]))


def _expect_from_one(**given: int | None) -> None:
    for name, number in given.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} is a whole number from 1 on, not {number!r}")


def _warn(said: str) -> None:
    """Passes on what the compiler warns of, at the line that called gacc."""
    if said:
        _arrays.warn(said.rstrip("\n"))


@_arguments.public
def from_torch(module: Any, inputs: Mapping[str, Any], *, loss: str | Mapping, target: str | None = None,
               train: Mapping | None = None, optimizer: str | Mapping | None = None, schedule: Mapping | None = None,
               precision: str | Mapping | None = None, recompute: str | Mapping | None = None,
               memory: str | Mapping | None = None, metrics: list[str] | None = None, seed: int | None = None,
               name: str | None = None, output: int | str | None = None, set: Mapping[str, Any] | None = None,
               gpu: str | None = None) -> Step:
    """Compiles a PyTorch module, whose forward torch.export can follow (docs/from-pytorch.md).

    inputs     an example of each argument of the forward, samples first: {"x": torch.zeros(32, 3, 224, 224)}
    loss       the table [loss] of a model file, or its type alone: "cross_entropy" (classes on the output's last axis)
    target     the input that the loss compares the output with. It is one of `inputs`, or gets the output's shape
    optimizer  the table [optimizer] of a model file, or its type alone: "adamw", at the rate of 1e-3. Without one it is
               SGD at that rate, with a warning
    train ...  the other tables of a model file as dicts; precision="bf16", recompute="sqrt" and memory="2GiB" are short
               for one key. The micro-batch is the example's where `train` says none
    output     which one of several outputs the loss takes: its number, or its key
    set        more keys of a model file, as in `compile`
    gpu        the target of the GPU's code

    The step trains what the module is as it stands: in training mode with the statistics of the micro-batch and with
    dropout, frozen what requires no gradient. A Session of it starts from the module's values, and its `parameters()`
    load back with load_state_dict(strict=True). `save` writes those values beside the artifact. The values are those of
    this call: of a module that has others when a session begins, `Session.load(module.state_dict())` takes them.
    """
    _arguments.check(from_torch, locals() | {"inputs": {}})  # of which the lowering says more
    from . import torch as lowering  # the dependency is optional
    tables = _tables(locals())
    given = _keys(tables) | _toml.settings(set or {})
    _warn_of_no_optimizer(given)
    target = tables["loss"]["target"]
    text, state = lowering.text_of(module, inputs, target=target, name=name, output=output,
                                   classes=tables["loss"].get("type") == "cross_entropy")
    if precision is None and (own := lowering.precision_of(module)) is not None:
        tables["precision"] = {"compute": own}
    if not {"micro_batch", "effective_batch"} & tables["train"].keys():
        tables["train"]["micro_batch"] = max(len(x) for x in inputs.values())
    step = compile(text, set=_keys(tables) | _toml.settings(set or {}), target=gpu)
    step._module_state = state
    step._batch_of_example = not {"train.micro_batch", "train.effective_batch"} & given.keys()
    return step


def _tables(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of a model file that the arguments of from_torch say."""
    tables: dict[str, dict[str, Any]] = {"train": dict(given["train"] or {}), "model": {}}
    short = {"loss": "type", "optimizer": "type", "schedule": "type", "precision": "compute", "recompute": "policy",
             "memory": "budget"}
    for table, key in short.items():
        if (said := given[table]) is not None:
            tables[table] = dict(said) if isinstance(said, Mapping) else {key: said}
    target, loss = given["target"], tables["loss"]
    if target is not None and loss.setdefault("target", target) != target:
        raise ValueError(f"loss says the target {loss['target']!r}, and target is {target!r}: say it once")
    loss.setdefault("target", "target")
    tables["model"] = {key: given[key] for key in ("metrics", "seed") if given[key] is not None}
    return tables


def _warn_of_no_optimizer(keys: Mapping[str, Any]) -> None:
    """Says what a step is trained by where nothing was said."""
    if "optimizer.type" not in keys:
        rate = keys.get("optimizer.lr", 1e-3)
        _arrays.warn(f"no type of optimizer was given: it is SGD, at a rate of {rate:g}; "
                     'optimizer="adamw", or {"type": "adamw", "lr": 3e-4}, says another')


def _keys(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}


@_arguments.public
def from_pretrained(folder: str | os.PathLike, *, context: int | None = None,
                    lora: int | Mapping[str, Any] | None = None, output: int | str | None = "logits",
                    pack: bool = False, loss: str | Mapping = "cross_entropy", target: str = "next",
                    train: Mapping | None = None, optimizer: str | Mapping | None = None,
                    schedule: str | Mapping | None = None, precision: str | Mapping | None = None,
                    frozen: str | None = None, recompute: str | Mapping | None = None,
                    memory: str | Mapping | None = None, host: str | None = None, metrics: list[str] | None = None,
                    seed: int | None = None, name: str | None = None, set: Mapping[str, Any] | None = None,
                    gpu: str | None = None) -> Step:
    """Compiles a published model of any architecture that transformers has, by its config.json alone
    (docs/from-pytorch.md). Its inputs are `tokens` and `next`, [context].

    context    tokens of a window; the smaller of 1024 and the model's positions where none are given
    lora       the rank of adapters at all linear layers but the head; or {"rank": 8, "alpha": 16, "dropout": 0.1,
               "match": ["q_proj", "v_proj"]}, whose patterns name modules by their path or its end. The rest is frozen
    pack       windows have several documents, whose numbers are the input `documents`
    precision  the folder's type of numbers where nothing is said; `frozen` is short for precision.frozen, as "q8_0"
    host       short for memory.host
    the others are those of from_torch. Where neither `train`, `optimizer` nor `schedule` is given, these tables are
    the same as of `compile(folder)`

    No weights are read: `Session.load(folder)` or `gacc-exec --load FOLDER` does that, and a session begins with drawn
    ones. The parameters have the names of the module of transformers.
    """
    _arguments.check(from_pretrained, locals())
    _expect_from_one(context=context)
    from . import pretrained  # the dependencies are optional
    tables = _tables(locals())
    if train or optimizer or schedule:
        _warn_of_no_optimizer(_keys(tables) | _toml.settings(set or {}))
    text, state, settings, _ = pretrained.text_of(
        folder, context=context, lora=lora, pack=pack, output=output, target=tables["loss"]["target"], name=name,
        classes=tables["loss"].get("type") == "cross_entropy", gpu=gpu)
    if train or optimizer or schedule:  # as from_torch
        settings = {key: value for key, value in settings.items() if key.startswith(("precision.", "model."))}
        tables["train"].setdefault("micro_batch", 1)
    own = ("loss.",) if precision is None else ("loss.", "precision.")
    settings = {key: value for key, value in settings.items() if not key.startswith(own)}
    short = {"precision.frozen": frozen, "memory.host": host}
    given = {key: value for key, value in short.items() if value is not None}
    step = compile(text, set=settings | _keys(tables) | given | _toml.settings(set or {}), target=gpu)
    step._module_state = state
    return step


@_arguments.public
def open(path: str | os.PathLike) -> Step:
    """Reads and checks the artifact that gaccc or Step.save wrote."""
    handle, place = ctypes.c_void_p(), path_bytes(path)
    if os.path.isdir(place):
        raise Error(f"{os.fsdecode(place)} is a folder, and no artifact: gacc.compile(folder) compiles that of a "
                    "published model")
    call("open", place, byref(handle))
    return Step(handle)


class Session(_Fixed):
    """A step on a device, with its parameters and all other state. Usable with `with`, and by one thread at a time.

    device         "auto", "cpu", "cuda", "cuda:N" or "emulate"
    seed           of the first parameters and of dropout; the model's where none is given
    threads        of a CPU; 0: all cores
    epoch_samples  samples of an epoch, for a model whose schedule counts epochs
    updates        those of the whole run, for schedule.total = "run"; a schedule of another length is a warning
    recheck        makes every `recheck`-th launch and update twice; a difference of a bit is an error, and the state is
                   that before it (docs/running.md)
    """

    @_arguments.public
    def __init__(self, step: Step, device: str = "auto", seed: int | None = None, *, threads: int = 0,
                 epoch_samples: int = 0, updates: int | None = None, recheck: int = 0):
        _arguments.check(Session.__init__, locals())
        self.compiled = step
        self._updates = updates
        self._module_state = copy.copy(step._module_state)  # whose `rest` is the session's own
        self._based = step._module_state is not None and step._module_state.complete  # no longer as they started
        self._warned: set[str] = set()  # of what
        self._columns: dict[str, list[Any]] = {}  # of the first table that an input was given, or trained on
        self._scales = _arrays.Scales()
        state = step._module_state
        self._outdated = state is not None and state.changed()  # until something is loaded, or was said of it
        self._published = False  # the folder of a published model was loaded
        self._adapted = False  # adapters that were neither loaded nor trained change nothing
        self._trained: tuple[int | None, ...] | None = None  # the loader, the seed, epochs and updates
        self._next_tokens = self._tokens_and_targets()  # until they have been looked at
        self._handle = ctypes.c_void_p()
        call("session_open", step._handle, device.encode(), byref(DeviceOptions(threads, recheck)),
             byref(self._handle))
        self._last = weakref.finalize(self, library.gacc_session_close, self._handle)  # whose errors nobody hears
        call("session_init", self._handle, step.seed if seed is None else seed, epoch_samples)
        if step._module_state is not None and (values := step._module_state.values):
            # What a module on `meta` has no values of keeps its start.
            self._write(values if step._module_state.complete else {**self._arrays(), **values})
        self._expect(updates)
        self._made = True

    def close(self) -> None:
        """Gives the device's memory back. What the emulator found in all is an error here."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle and self._last.detach():
            call("session_close", handle)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError("a Session is neither copied nor pickled: checkpoint(folder) writes its state, and "
                        "resume(folder) of another one reads it")

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _arrays.warn(text)

    def _warn_of_random_base(self, does: str) -> None:
        """Warns where adapters stand beside weights that nothing was loaded into."""
        if not self._based and self.compiled.has_adapters:
            self._warn_once("base", f"the model has adapters, and without `load` they {does} weights drawn at random")

    def _warn_of_changed_module(self) -> None:
        """Warns where the module had other values than the step when the session began, and nothing was loaded."""
        if self._outdated:
            self._outdated = False
            _arrays.warn("the module has changed since from_torch, and the session starts from what it was then: "
                         "run = gacc.Session(step); run.load(module.state_dict()) takes its values of now, and "
                         "gacc.train(loader=loader, session=run) goes on from them")

    def _warn_of_few(self, sizes: Sequence[int]) -> None:
        """Warns of batches that are smaller than a micro-batch, by the samples of the first two."""
        step = self.compiled
        if len(sizes) == 2 and max(sizes) < step.micro_batch:
            self._warn_once("few", f"batches have {sizes[0]} samples, and micro_batch is {step.micro_batch}: an update "
                            f"sees {sizes[0] * step.accumulate}, and not {step.micro_batch * step.accumulate}; give "
                            f'batches of {step.micro_batch}, or compile with train.micro_batch = {sizes[0]}')

    def _warn_of_many(self, updates: Sequence[int]) -> None:
        """Warns of batches that make several updates each, by the updates of the first two, where nobody has said how
        large a micro-batch is."""
        step = self.compiled
        if len(updates) == 2 and min(updates) > 1 and step._batch_of_example:
            self._warn_once("many", f"a batch makes {updates[0]} updates: the micro-batch is the example's, of "
                            f"{step.micro_batch} samples; an example as large as a batch, or from_torch(train="
                            f'{{"micro_batch": {step.micro_batch * updates[0]}}}), makes one')

    def _warn_of_large(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Warns of features as large as gacc-exec warns of, by the first arrays that are trained on."""
        if "large" in self._warned:
            return
        self._warned.add("large")
        targets = {it["name"] for it in self.compiled.plan["inputs"] if "target" in it}
        for name, array in arrays.items():
            if name in targets or self.compiled.inputs[name].dtype != "f32" or not array.size:
                continue
            most = max(abs(float(array.max())), abs(float(array.min())))
            key = f"inputs.{_toml.key(name)}.normalize"
            if LARGE < most < math.inf and not any(each.startswith(key) for each in self.compiled._settings):
                _arrays.warn(f"the input {name!r} reaches {most:.3g}, and is not normalised: give (x - mean) / std, or "
                             f"let `{key}` of the model have a mean and a std")

    def _tokens_and_targets(self) -> tuple[str, str, int | None] | None:
        """The inputs that are tokens and their targets, and the target that counts nothing; None where the library
        itself refuses targets that are the tokens, since it sees that the model is causal."""
        if self.compiled._settings.get("predict.positions") == '"causal"':
            return None
        named = {"tokens": "", "target": ""}
        for it in self.compiled.plan["inputs"]:
            if it["dtype"] == "i32" and len(it["shape"]) == 1:
                which = "target" if "target" in it else "tokens"
                named[which] = named[which] or it["name"]
        tokens, target = named.values()
        if not tokens or not target or self.compiled.inputs[tokens].shape != self.compiled.inputs[target].shape:
            return None
        ignored = self.compiled._settings.get(f"inputs.{_toml.key(target)}.ignore_index")
        return tokens, target, None if ignored is None else int(ignored)

    def _warn_of_copied_tokens(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Warns of targets that are the tokens themselves, by the first arrays with enough of them."""
        if self._next_tokens is None:
            return
        first, second, ignored = self._next_tokens
        tokens, targets = (arrays[name].reshape(len(arrays[name]), -1) for name in (first, second))
        counts = np.ones(targets.shape, bool) if ignored is None else targets != ignored
        counted, same = int(counts.sum()), int((counts & (tokens == targets)).sum())
        if counted < FEW:
            return
        self._next_tokens = None
        follow = counts[:, :-1]
        one_later = int((follow & (targets[:, :-1] == tokens[:, 1:])).sum())
        if same <= ALL * counted or one_later > ALL * int(follow.sum()) > 0:
            return
        _arrays.warn(f'the inputs "{first}" and "{second}" are the same in {same} of {counted} places: the model sees '
                     "each target, and would learn to copy it. The targets of a language model are its tokens, one "
                     f"later: {first} = tokens[:, :-1], {second} = tokens[:, 1:]")

    def _take(self, inputs: Mapping[str, Any] | None, named: Mapping[str, Any],
              more: tuple = ()) -> tuple[dict[str, np.ndarray], int]:
        """The arrays by name, checked, and how many samples they have."""
        if more or not isinstance(inputs, (Mapping, type(None))):
            names = ", ".join(f"{name}=..." for name in self.compiled.inputs)
            loader = not hasattr(inputs, "shape") and hasattr(inputs, "__iter__")
            raise TypeError(f"arrays are given by the names of the model's inputs: {names}"
                            + "; evaluate_over(loader) goes through a loader, and others take a batch of it" * loader)
        self._warn_of_changed_module()
        arrays: dict[str, np.ndarray] = {}
        samples = None
        for name, value in {**(inputs or {}), **named}.items():
            of = self.compiled.inputs.get(name)
            if of is None:
                raise ValueError(f"the model has no input {name!r} (it has {', '.join(self.compiled.inputs)})")
            try:
                columns = _arrays.columns_of(value)
                if columns is not None:
                    value = _arrays.in_order(value, self._columns.setdefault(name, columns))
                array = _arrays.to_numpy(value) if columns is None else _arrays.table_to_numpy(value)
                if of.dtype == "f32" and array.size:
                    array = self._scales.of(name, array, name in self.compiled.shares)
            except (TypeError, ValueError, RuntimeError) as error:
                raise type(error)(f"the input {name!r}: {error}") from error
            if not array.ndim or not _arrays.fits(array.shape[1:], of.shape):
                alone = f": one sample alone is {name}[None]" if np.shape(value) == of.shape else ""
                raise ValueError(f"the input {name!r} is {list(of.shape)} a sample, samples first; "
                                 f"{list(np.shape(value))} was given{alone}")
            if samples not in (None, len(array)):
                raise ValueError(f"the input {name!r} has {len(array)} samples, and another one {samples}")
            arrays[name], samples = array, len(array)
        return arrays, samples or 0

    def _c_arrays(self, arrays: Mapping[str, np.ndarray]) -> ctypes.Array:
        """As gacc.h takes them; they must outlive the call."""
        return (CArray * len(arrays))(*(
            CArray(self.compiled._names[name], _arrays.TYPES[array.dtype], array.__array_interface__["data"][0],
                   array.nbytes)
            for name, array in arrays.items()))

    def step(self, inputs: Mapping[str, Any] | None = None, /, *more: Any, **named: Any) -> None:
        """Forward and backward of 1 to micro_batch samples, added to the window: step({"image": x}, label=y).

        Each array is [samples, shape of the input]. A window is at most `accumulate` steps; `update` ends it.
        """
        arrays, samples = self._take(inputs, named, more)
        if len(arrays) == len(self.compiled.inputs):
            self._warn_of_copied_tokens(arrays)
        call("session_step", self._handle, self._c_arrays(arrays), len(arrays), samples)

    @property
    def launches(self) -> int:
        """Steps in the window so far."""
        return library.gacc_session_launches(self._handle)

    def _expect(self, updates: int | None) -> None:
        """Tells the schedule how many updates the run makes in all."""
        if updates is None:
            return
        remark = ctypes.create_string_buffer(1000)
        call("session_expect", self._handle, updates, remark, len(remark))
        if remark.value:
            _arrays.warn(remark.value.decode())

    def update(self) -> Window:
        """Ends the window with one update of the optimizer. Waits for the device.

        A gradient that is not finite raises Error, unless the model skips such windows."""
        return self._window("session_update")

    def _window(self, function: str, *arguments: Any, first: int = 0) -> Window:
        """The window that the call has closed; of no launches where it has closed none."""
        w = CWindow()
        self._adapted = True
        call(function, self._handle, *arguments, byref(w), first=first)
        return Window(w.launches, w.samples, bool(w.applied), bool(w.skipped), w.loss, w.grad_norm, w.lr)

    def predict(self, inputs: Mapping[str, Any] | None = None, /, *more: Any, **named: Any) -> np.ndarray:
        """The model's output of any number of samples: f32 [samples, output shape]. Takes the inputs it depends on."""
        shape = self.compiled.output_shape
        arrays, samples = self._take(inputs, named, more)
        outputs = np.empty((samples, *(shape or ())), np.float32)
        for first in range(0, max(samples, 1), PREDICTED):
            part = {name: array[first:first + PREDICTED] for name, array in arrays.items()}
            to = outputs[first:first + PREDICTED]
            call("session_predict", self._handle, self._c_arrays(part), len(part), len(to), to.ctypes.data, to.nbytes,
                 first=first)
        return outputs

    def evaluate(self, inputs: Mapping[str, Any] | None = None, /, *more: Any, **named: Any) -> Evaluation:
        """The loss and the model's metrics over any number of samples. Parameters and window stay."""
        return self.evaluate_over([self._take(inputs, named, more)[0]])

    @_arguments.public
    def evaluate_over(self, loader: Iterable[Any] | Mapping[str, Any]) -> Evaluation:
        """The same over batches: mappings by name, or tuples in the order of the model's inputs. A mapping of arrays
        is one batch."""
        _arguments.check(Session.evaluate_over, locals())
        return self._evaluation(self._evaluate_over([loader] if isinstance(loader, Mapping) else loader))

    def _evaluate_over(self, loader: Iterable[Any]) -> CEvaluation:
        e = CEvaluation()
        batches = 0
        try:
            for batches, batch in enumerate(loader, 1):
                for arrays, samples, _ in self._micro_batches(batch, loader):  # an error counts all samples
                    call("session_eval", self._handle, self._c_arrays(arrays), len(arrays), samples)
        except BaseException:
            library.gacc_session_eval_end(self._handle, byref(e))  # the next evaluation begins anew
            raise
        if not batches:
            raise ValueError("there is no batch to evaluate; a generator can be gone through once: give a list, or "
                             "something that begins anew")
        call("session_eval_end", self._handle, byref(e))
        return e

    @staticmethod
    def _evaluation(e: CEvaluation) -> Evaluation:
        return Evaluation(e.samples, e.counted, e.loss, {m.name.decode(): m.value for m in e.metric[:e.metrics]})

    def _micro_batches(self, batch: Any, loader: Any = None) -> Iterator[tuple[dict[str, np.ndarray], int, int]]:
        """The arrays of each, its samples, and which of the batch's the first one is."""
        inputs = self.compiled.inputs
        _arrays.expect_batch(batch, inputs)
        if not isinstance(batch, Mapping) and len(batch) != len(inputs):
            raise ValueError(f"a batch has {len(batch)} arrays, and the model {len(inputs)} inputs "
                             f"({', '.join(inputs)})")
        named = batch if isinstance(batch, Mapping) else dict(zip(inputs, batch))
        if _arrays.is_data_set(loader) and all(np.shape(it) == inputs[name].shape
                                               for name, it in named.items() if name in inputs):
            raise _arrays.no_batches(loader)
        arrays, samples = self._take(named, {})
        lacks = [name for name in inputs if name not in arrays]
        if lacks or not samples:
            raise ValueError(f"a batch has no {', '.join(lacks) or 'samples'}; it has an array for each input "
                             f"({', '.join(inputs)})")
        most = self.compiled.micro_batch
        for first in range(0, samples, most):
            yield {name: array[first:first + most] for name, array in arrays.items()}, min(most, samples - first), first

    def parameters(self) -> dict[str, Any]:
        """Copies of all parameters, and of running statistics, by name: f32, as a safetensors file has them. Of a
        PyTorch module: tensors, as its load_state_dict takes them."""
        self._warn_of_changed_module()
        arrays = self._arrays()
        return arrays if self._module_state is None else self._module_state.of_step(arrays)

    def _arrays(self) -> dict[str, np.ndarray]:
        with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
            path = os.path.join(folder, "parameters")
            call("session_save_as", self._handle, path_bytes(path), None)
            return _arrays.read_safetensors(path)

    @_arguments.public
    def load(self, parameters: Mapping[str, Any] | str | os.PathLike) -> None:
        """Replaces all parameters: by those of a safetensors file or a published model's folder, or by arrays with the
        names of `parameters()`, such as a PyTorch module's state_dict(). A folder with adapter_config.json replaces the
        adapters alone: their base is loaded before them."""
        if hasattr(parameters, "state_dict"):
            raise TypeError("a module is loaded by its state_dict()")
        if not isinstance(parameters, Mapping):
            call("session_load", self._handle, path_bytes(parameters))
            path = pathlib.Path(os.fsdecode(parameters))
            self._outdated = False
            self._published |= path.is_dir() and not _is_adapter(path)
            if not self._based and _is_adapter(path):
                self._warn_once("base", f"{path} has adapters alone, and the session's other weights were drawn at "
                                "random: load their base first")
            else:
                self._based = True
            self._adapted |= _is_adapter(path) or path.is_file() and path.suffix != ".gguf"
            if path.is_file() and path.suffix not in (".gguf", ".json"):
                self._columns.update(_arrays.read_columns(path, self.compiled.inputs))
            return
        self._adapted, state = True, self._module_state
        if state is None:
            return self._write(parameters)
        values, rest = state.to_step(parameters)
        self._write(values)
        self._outdated = False
        state.rest = rest

    def _write(self, parameters: Mapping[str, Any]) -> None:
        have = self._arrays()
        self._based = True
        arrays = {name: array.reshape(have[name].shape)
                  for name, array in _arrays.check_parameters(parameters, have).items()}
        with tempfile.TemporaryDirectory(prefix="gacc-") as folder:  # loading rounds what a step keeps in half
            path = os.path.join(folder, "parameters")
            _arrays.write_safetensors(path, arrays)
            call("session_load", self._handle, path_bytes(path))

    @_arguments.public
    def save(self, path: str | os.PathLike, *, published: bool = False, merge: bool = False, type: str = "f32") -> None:
        """Writes the parameters as a safetensors file. A path that ends in "/", or is a folder, becomes the whole
        folder of a published model, with config.json and the tokenizer's files of the one that `load` has read. One
        that ends as a file of another format does, such as w.pt, is refused.

        published  under the names of the model's [load], as in every folder
        merge      with the adapters added to the weights
        type       of the numbers: "f32", "bf16" or "f16"
        """
        _arguments.check(Session.save, locals())
        self._save_as(path, SaveOptions(0, merge, published, type.encode()))
        name = os.fsdecode(path)
        if self._published and os.path.isfile(name) and not os.path.splitext(name)[1]:
            _arrays.warn(f"{name} is a file with the weights alone; {name + '/'!r} makes the whole folder of a "
                         "published model")
        if self._columns and os.path.isfile(path):
            _arrays.write_columns(path, self._columns)

    @_arguments.public
    def generate(self, prompt: str | Sequence[str] | None = None, tokens: int = 100, *,
                 messages: Sequence[Mapping[str, Any]] | None = None, tokenizer: Any = None,
                 temperature: float | None = None, top_k: int | None = None, top_p: float | None = None,
                 stop: str | None = None, seed: int | None = None) -> str | list[str]:
        """Generates the text after the prompt: at most so many tokens, up to `stop` or a token that ends a text. Of a
        list of prompts it gives a list of texts, each as its prompt alone gives it.

        messages   in place of a prompt: a chat, which the assistant goes on, by the tokenizer's chat template:
                   [{"role": "user", "content": "What is 2 + 2?"}]
        tokenizer  a folder with tokenizer.json, a GGUF, or a tokenizer of transformers; none: the tokens are bytes, of
                   a vocabulary of at most 256
        the others are gacc-exec's options

        Keys and values of a text stay until anything else is done with the session: what begins as the text before it
        is not computed again. The parameters and an open window stay.
        """
        _arguments.check(Session.generate, locals())
        from .generate import check_messages, draw_options, of_session
        if (prompt is None) == (messages is None):
            raise TypeError("generate() takes a prompt, or messages=")
        if isinstance(messages, (str, bytes)):
            check_messages(messages)
        several = messages is None and not isinstance(prompt, str)
        prompts = list(prompt) if several else [prompt if messages is None else messages]
        if several and not all(isinstance(each, str) for each in prompts):
            raise TypeError("generate() takes a prompt, a list of prompts, or messages=")
        options = draw_options(self.compiled.seed if seed is None else seed, temperature, top_k, top_p)
        self._warn_of_random_base("stand beside")
        if self._based and not self._adapted and self.compiled.has_adapters:
            self._warn_once("adapters",
                            "the step has adapters, and none was loaded or trained: this is the base's text")
        self._warn_of_changed_module()
        texts = of_session(self, prompts, tokens, tokenizer, stop, options)
        return texts if several else texts[0]

    @_arguments.public
    def save_adapter(self, path: str | os.PathLike) -> None:
        """Writes the adapters alone, into a folder as PEFT has it. They name the folder that `load` has read."""
        self._save_as(path, SaveOptions(1, 0, 0, None))

    @_arguments.public
    def merge(self, path: str | os.PathLike, *, published: bool = False, type: str = "f32") -> None:
        """Writes the weights with the adapters added to them, as `save` does; the session keeps them apart."""
        self.save(path, published=published, merge=True, type=type)

    def _save_as(self, path: str | os.PathLike, options: SaveOptions) -> None:
        self._warn_of_changed_module()
        call("session_save_as", self._handle, path_bytes(path), byref(options))

    @_arguments.public
    def checkpoint(self, folder: str | os.PathLike) -> None:
        """Writes the whole state, an open window too. It has no position in a data set, and gacc-exec says so."""
        call("session_checkpoint", self._handle, path_bytes(folder))

    @_arguments.public
    def resume(self, folder: str | os.PathLike) -> None:
        """Goes on from a checkpoint, with the same bits; it may be gacc-exec's."""
        call("session_resume", self._handle, path_bytes(folder))
        self._based = self._adapted, self._outdated = True, False
        self._expect(self._updates)


def train(step: Step | None = None, loader: Iterable[Any] | Mapping[str, Any] = (), *, module: Any = None,
          epochs: int | None = None,
          updates: int | None = None, on_update: Callable[[Session, Window], object] | None = None,
          on_epoch: Callable[[Session, int], object] | None = None, device: str = "auto", seed: int | None = None,
          threads: int = 0, session: Session | None = None, evaluate: Iterable[Any] | Mapping[str, Any] | None = None,
          eval_every: int | None = None, on_eval: Callable[[Session, Evaluation], object] | None = None,
          patience: int | None = None, best: str = "loss",
          save_best: str | os.PathLike | Callable[[Session], object] | None = None,
          checkpoint: str | os.PathLike | None = None, progress: bool = False, recheck: int = 0,
          **model: Any) -> Session:
    """Trains, and gives the session.

    module     a PyTorch module: its parameters are written back at the end. Without a step it is compiled first, as
               from_torch does with the first batch as the example and the other arguments: gacc.train(module=net,
               loader=loader, loss="cross_entropy", target="y", optimizer="adamw")
    loader     anything that can be gone through once an epoch, such as a torch DataLoader: its batches are mappings by
               the inputs' names, or tuples in the order of the model's inputs. One of more than micro_batch samples
               makes several launches. The loader says in which order; `train.shuffle` of the model is not looked at.
               A mapping of arrays with a whole set in them, as gacc.tokens makes it, is one batch.
    epochs     the model's where none are given
    updates    ends the run after so many, if that comes first
    on_update  called with the session and the Window after each update
    on_epoch   called with the session and the epoch's number, from 1, after each epoch
    session    goes on with this one, from where it ended. Without it every call begins anew, with a new session on
               `device` with `seed`, `threads` and `recheck`; the step is the session's own
    evaluate   a loader of other samples, gone through after every epoch, at the end, and after every `eval_every`
               updates; a list, say, and no generator; schedule.type = "plateau" follows it
    on_eval    called with the session and the Evaluation
    patience   ends the run after so many evaluations in a row without a better one
    best       which is better: by "loss" or a metric of the model (of accuracy and r2 the larger, else the smaller)
    save_best  where `Session.save` writes the parameters of every better evaluation, or a function that is called with
               the session then, as lambda run: run.save_adapter("best")
    checkpoint a folder for `Session.checkpoint`, written after every epoch, at the end and on Ctrl-C
    progress   prints a line for each epoch and evaluation, and on a terminal one that moves

    The window at the end of an epoch is treated as the model's `train.tail` says. A schedule of another length than the
    run is a warning, where the loader has a length; a session with `updates` of its own has said it already.
    """
    _check_keywords(model, step is None and module is not None)
    _arguments.check(train, locals())
    if model and (step is not None or module is None):
        raise TypeError(f"train() takes no {', '.join(model)} but with a module and without a step: of a step it is "
                        "said where it is compiled")
    if module is not None and not hasattr(module, "load_state_dict"):
        raise TypeError(f"train(): module is {module!r:.60}, and takes a torch.nn.Module")
    for name, value in ("epochs", epochs), ("updates", updates):
        if value is not None and value < 0:
            raise ValueError(f"{name} is {value}; it is a number from 0")
    if step is None and session is not None:
        step = session.compiled
    if step is None and module is not None:
        from . import torch as lowering
        step = from_torch(module, lowering.examples_of(module, loader, model), **model)
    if session is not None and step is not session.compiled:
        raise ValueError(f"the session has a step of its own, {session.compiled!r}, and trains no other one, "
                         f"{step!r}")
    if module is not None and step._module_state is None:
        raise ValueError(f"module gets the parameters of a step that from_torch made of it, and {step!r} is another")
    if module is not None:
        _arrays.expect_names(step._module_state.names, module.state_dict(), "module")
    if session is None:
        samples = _samples_of([loader] if isinstance(loader, Mapping) else loader)
        session = Session(step, device, seed, threads=threads, epoch_samples=samples, recheck=recheck)
        session._trained = id(loader), seed, epochs, updates
        if (last := step._run()) is not None and last._handle and last._trained == session._trained:
            _arrays.warn("the step was trained on this loader before, and now begins anew as then: session=run goes "
                         "on from where that run ended")
        step._run = weakref.ref(session)
    if isinstance(loader, Mapping):  # a set that is one batch
        loader = [loader]
    epochs = step.epochs if epochs is None else epochs
    for limit, value in ("epochs", epochs), ("updates", updates):
        if value == 0:
            _arrays.warn(f"{limit} is 0: nothing is trained")
    if 0 not in (epochs, updates):
        session._warn_of_random_base("are trained on")
        if float(step._settings.get("optimizer.lr", 1)) == 0:
            _arrays.warn("the learning rate is 0: the parameters stay as they are")
    watch = Watch(session, evaluate, eval_every, on_eval, patience, best, save_best, checkpoint, progress, epochs)
    if session._updates is None and epochs > 0:
        coming = [count for count in (updates, _updates_of(step, loader, epochs)) if count is not None]
        before = ctypes.c_int32()
        call("session_read", session._handle, b"updates", byref(before), 4)
        session._expect(before.value + min(coming) if coming and min(coming) > 0 else None)

    def tell(window: Window) -> bool:
        """Says what the window did; True where the run is to end."""
        if window.launches and on_update is not None:
            on_update(session, window)
        return watch.updated(window)

    def run() -> None:
        for epoch in range(1, epochs + 1):
            watch.begin(epoch)
            sizes: list[int] = []  # of batches, up to their first micro-batch
            made: list[int] = []   # updates, by batch
            for batch in loader:
                before = watch.updates
                for arrays, samples, first in session._micro_batches(batch, loader):
                    if watch.updates == updates:
                        return
                    if first == 0 and len(sizes) < 2:
                        sizes.append(samples)
                        session._warn_of_few(sizes)
                    session._warn_of_large(arrays)
                    session._warn_of_copied_tokens(arrays)
                    window = session._window("session_train", session._c_arrays(arrays), len(arrays), samples,
                                             first=first)
                    watch.launched(samples)
                    if tell(window):
                        return
                if len(made) < 2:
                    made.append(watch.updates - before)
                    session._warn_of_many(made)
            if not watch.samples:
                raise ValueError(f"the loader has no batch in epoch {epoch}; a generator can be gone through once: "
                                 "give a list, or something that begins anew")
            stops = tell(session._window("session_end_epoch"))
            if on_epoch is not None:
                on_epoch(session, epoch)
            if watch.epoch_done() or stops:
                return

    with watch:
        run()
    if module is not None:
        module.load_state_dict(session.parameters(), strict=True)
        step._module_state.written(module)
    return session


_arguments.PUBLIC.insert(0, train)


def _check_keywords(given: Mapping[str, Any], has_module: bool) -> None:
    """Refuses a keyword that neither train nor from_torch has, with the one that it may stand for."""
    own, model = (inspect.signature(function).parameters for function in (train, from_torch))
    for name, value in given.items():
        if name not in model:
            raise _arguments.unknown(train, [each for each in own if each != "model"] + [*model] * has_module, name,
                                     value)


def _is_adapter(path: pathlib.Path) -> bool:
    """Returns whether a path has adapters alone, as PEFT or llama.cpp writes them."""
    if path.suffix == ".gguf":
        return _gguf.read_metadata(path).get("general.type") == "adapter"
    folder = path.parent if path.name == "adapter_model.safetensors" else path
    return (folder / "adapter_config.json").exists()


def _shape(tensor: CTensor) -> tuple[int, ...]:
    return tuple(tensor.shape[:tensor.axes])


def _batches_of(loader: Any) -> list[tuple[int, int]] | None:
    """The batches of an epoch, as how many there are of how many samples; None where the loader does not say."""
    try:
        if isinstance(loader, (list, tuple)):
            arrays = [[*(batch.values() if isinstance(batch, Mapping) else batch)] for batch in loader]
            return [(1, len(batch[0])) for batch in arrays if batch]
        # torch's; without a batch size where a sampler makes the batches
        samples, size = len(loader.sampler), loader.batch_size
        return [(samples // size, size), (0 if loader.drop_last else 1, samples % size)]
    except (AttributeError, TypeError):
        return None


def _samples_of(loader: Any) -> int:
    """Returns the samples of an epoch; 0 where the loader does not say."""
    batches = _batches_of(loader)
    if batches is not None:
        return sum(count * samples for count, samples in batches)
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError):
        return 0


def _updates_of(step: Step, loader: Any, epochs: int) -> int | None:
    """Returns the updates of so many epochs; None where the loader does not say."""
    batches = _batches_of(loader)
    if batches is None:
        return None
    most, drops = step.micro_batch, step.tail == "drop"
    launches = sum(count * (samples // most if drops else -(-samples // most)) for count, samples in batches)
    if step.tail == "carry":
        return epochs * launches // step.accumulate
    return epochs * (launches // step.accumulate if drops else -(-launches // step.accumulate))


INSTEAD = {  # what others have in a package, and what does it here
    "load": "gacc.open(path) reads an artifact, and Session.load(path) parameters",
    "save": "Step.save(path) writes an artifact, and Session.save(path) parameters",
    "fit": "gacc.train(step, loader) trains", "Trainer": "gacc.train(step, loader) trains",
    "predict": "gacc.Session(step).predict(x=...) does it, or the session that gacc.train gives",
    "evaluate": "gacc.Session(step).evaluate(x=..., y=...) does it, or the session that gacc.train gives"}


_VALUES = "parameters() gives copies of all, by name"
Session._elsewhere = {
    "state_dict": f"{_VALUES}, of a PyTorch module as its load_state_dict takes them", "weights": _VALUES,
    "named_parameters": _VALUES,
    "load_state_dict": "load(parameters) takes them", "from_pretrained": "load(folder) reads it",
    "load_adapter": "load(folder) reads adapters, too", "load_weights": "load(path) reads them",
    "save_pretrained": 'save("folder/"), with a / at the end, writes the whole folder',
    "save_weights": "save(path) writes them", "merge_and_unload": "merge(path) writes the weights with the adapters",
    "save_checkpoint": "checkpoint(folder) writes the whole state",
    "load_checkpoint": "resume(folder) reads one that checkpoint(folder) wrote",
    "forward": "predict(x=...) does it", "predict_proba": "predict(x=...) gives the model's output",
    "score": "evaluate(x=..., y=...) gives the loss and the metrics", "eval": "evaluate(x=..., y=...) does it",
    "test": "evaluate(x=..., y=...) does it", "validate": "evaluate_over(loader) does it",
    "backward": "step(x=..., y=...) does forward and backward", "zero_grad": "update() begins a new window by itself",
    "train_step": "step(x=..., y=...) does it, and update() ends the window",
    "train_on_batch": "step(x=..., y=...) does it, and update() ends the window",
    "train": "gacc.train(loader=loader, session=run) does it", "fit": "gacc.train(loader=loader, session=run) does it",
    "loss": "update() gives a Window, which has it; evaluate(x=..., y=...) that of other samples",
    "lr": "update() gives a Window, which has it", "to": 'the device is said at the start: Session(step, "cuda")',
    "cuda": 'the device is said at the start: Session(step, "cuda")',
    "cpu": 'the device is said at the start: Session(step, "cpu")',
    "chat": "generate(messages=[...]) does it", "plan": "compiled.plan is that of its step"}
Step._elsewhere = {
    **{name: f"a session has it: gacc.Session(step).{name}(...)" for name, it in vars(Session).items()
       if callable(it) and not name.startswith("_")},
    **{name: f"it is a session's, gacc.Session(step): {said}" for name, said in Session._elsewhere.items()},
    **dict.fromkeys(("train", "fit"), "gacc.train(step, loader) trains"),
    **dict.fromkeys(("batch_size", "batch"), "micro_batch is that of a launch, and accumulate launches are an update"),
    **dict.fromkeys(("memory", "peak", "bytes"), 'plan["bytes"]["peak"] is the memory in bytes'),
    "outputs": "output_shape is that of a sample's output", "name": "model is its name",
    "export": "save(path) writes the artifact"}


def __getattr__(name: str) -> Any:
    """Imports `gacc.tokens` and its like when they are asked for."""
    if name in ("chart", "chat", "check", "generate", "tokens", "tune"):
        return importlib.import_module(f".{name}", __name__)
    here = f": {INSTEAD[name]}" if name in INSTEAD else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{here}")


def program(name: str) -> tuple[str, dict[str, str]]:
    """Returns the path of a program of the wheel, and the environment in which it finds the libraries of the wheel."""
    path = TREE / "bin" / name
    if not path.exists():
        return name, dict(os.environ)
    folders = [str(TREE / "needed"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return str(path), dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(folders))


from .verify import verify  # noqa: E402  it takes from this module
