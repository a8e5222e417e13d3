"""Compares what an export computes in the program that will run it with what the step computes.

    python -m gacc.check FOLDER/ step.ptx tokens:data.bin                   # transformers; an adapter's folder: PEFT
    python -m gacc.check tuned.gguf step.ptx tokens:data.bin                # llama.cpp (llama-cpp-python)
    python -m gacc.check adapter.gguf step.ptx tokens:data.bin --base base.gguf
    python -m gacc.check EXPORT step.ptx tokens:data.bin --of w.safetensors # beside the weights that were trained

The step computes with the export itself, or with the weights of --of, by gacc-exec. The number is the largest
difference of outputs relative to the largest output, as of --check; the exit status is 1 where it is beyond --bound.
The bound is 2^-7 where the step computes in half precision, and where the export or the weights of --of lie in it.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from . import Error, program
from . import open as open_step
from ._arguments import Parser
from ._arrays import read_header
from ._gguf import Unreadable, read_metadata
from .tokens import Refused

# The differences that the arithmetic of each explains. llama.cpp keeps keys and values in half precision, and rounds
# what it multiplies with blocks to blocks (docs/fine-tuning.md has measured both).
BOUNDS = {"transformers": 1e-4, "peft": 1e-4, "llama.cpp": 2**-8, "gacc": 2**-7}
OF_BLOCKS = 2**-3
OF_HALVES = 2**-7  # numbers that were rounded to bf16 or f16, as of gacc-exec --check
HALVES = ("BF16", "F16")
WHOLE_FILES = (0, 1, 32)  # general.file_type of F32, F16, BF16
MODULES = {"llama.cpp": "llama_cpp"}


def in_halves(path: pathlib.Path) -> bool:
    """Returns whether weights lie in bf16 or f16: a file's, or those of a folder or of an index of shards."""
    if path.suffix == ".gguf":
        return read_metadata(path).get("general.file_type") in WHOLE_FILES[1:]
    files = [path]
    if path.is_dir() or path.name.endswith(".index.json"):
        files = sorted((path if path.is_dir() else path.parent).glob("*.safetensors"))
    return any(tensor["dtype"] in HALVES for file in files for name, tensor in read_header(file).items()
               if name != "__metadata__")


def form_of(artifact: str) -> str:
    """What the step's predictions are: logits, or what predict.form of the model file says."""
    found = re.search(rb'^//ir   set predict\.form = "(\w+)"', pathlib.Path(artifact).read_bytes(), re.MULTILINE)
    return found[1].decode() if found else "logits"


class Export:
    """A file or folder that was written, and what runs it."""

    def __init__(self, path: str, base: str | None):
        self.path, self.base = pathlib.Path(path), base
        self.adapter, self.runs = False, "gacc"
        if not self.path.exists():
            raise Refused(f"{path}: there is no such file")
        if self.path.suffix == ".gguf":
            self.adapter = read_metadata(self.path).get("general.type") == "adapter"
            self.runs = "llama.cpp"
        elif (self.path / "adapter_config.json").exists():
            self.adapter, self.runs = True, "peft"
            said = json.loads((self.path / "adapter_config.json").read_text())
            self.base = base or said.get("base_model_name_or_path")
        elif (self.path / "config.json").exists():
            self.runs = "transformers"
        if self.adapter and not self.base:
            raise Refused(f"{path} is an adapter: --base says of which model")

    def bound(self, by: str, artifact: str, of: str | None) -> float:
        """Returns the largest difference that is rounding."""
        # Without --of both compute with the same numbers, however they lie.
        rounded = open_step(artifact).plan["precision"] != "f32" or (
            of is not None and any(map(in_halves, (self.path, pathlib.Path(of)))))
        return max(self._arithmetic(by), OF_HALVES if rounded else 0)

    def _arithmetic(self, by: str) -> float:
        if by != "llama.cpp":
            return BOUNDS[by]
        model = self.base if self.adapter and self.base else self.path
        in_blocks = read_metadata(pathlib.Path(model)).get("general.file_type") not in WHOLE_FILES
        return OF_BLOCKS if in_blocks else BOUNDS[by]

    def options(self) -> list[str]:
        """Returns the options with which gacc-exec loads it."""
        return ["--load", self.base, "--load-adapter", str(self.path)] if self.adapter else ["--load", str(self.path)]


def limited(data: str) -> tuple[str, int | None]:
    """The data without their limit, and the limit."""
    kind, colon, rest = data.partition(":")
    words = rest.split(",")
    said = [word.removeprefix("limit=") for word in words if word.startswith("limit=")]
    if any(not number.isdecimal() or int(number) < 1 for number in said) or len(said) > 1:
        raise Refused(f"{data}: limit is a whole number from 1, given once")
    rest = ",".join(word for word in words if not word.startswith("limit="))
    return kind + colon + rest, int(said[0]) if said else None


def windows(data: str, length: int, most: int) -> np.ndarray:
    """The tokens of the first samples, [samples, length]."""
    kind, _, rest = data.partition(":")
    file, *_ = rest.split(",")
    options = dict(each.partition("=")[::2] for each in rest.split(","))
    if kind in ("tokens", "text"):
        stored = "u8" if kind == "text" else options.get("dtype", "u16")
        all_tokens = np.fromfile(file, {"u8": "u1", "u16": "<u2", "u32": "<u4"}[stored])
        if options.get("split") == "test":
            all_tokens = all_tokens[len(all_tokens) * 9 // 10:]
        count = min(most, (len(all_tokens) - 1) // length)
        found = all_tokens[:count * length].reshape(count, length)
    elif kind == "npz":
        with np.load(file) as arrays:
            found = arrays["tokens"][:most]
    elif kind == "npy":
        found = np.load(options["tokens"])[:most]
    else:
        raise Refused(f"{data}: only tokens:, text:, npz: and npy: are windows of tokens")
    return found.astype(np.int64)


def by_gacc(artifact: str, data: str, options: list[str], most: int) -> np.ndarray:
    path, environment = program("gacc-exec")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.npy"
        command = [path, artifact, "--data", f"{data},limit={most}", *options, "--predict", str(out), "--quiet"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        except FileNotFoundError:
            raise Refused("gacc-exec is not on the PATH") from None
        if done.returncode:
            raise Refused(done.stderr.strip().removeprefix("gacc-exec: ").removeprefix("error: "))
        return np.load(out)


def by_transformers(export: Export, tokens: np.ndarray) -> np.ndarray:
    import torch
    import transformers
    folder = export.base if export.adapter else str(export.path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if export.adapter:
        import peft
        model = peft.PeftModel.from_pretrained(model, str(export.path))
    model.eval()
    with torch.no_grad():
        return np.stack([model(torch.from_numpy(row[None])).logits[0].float().numpy() for row in tokens])


def by_llama_cpp(export: Export, tokens: np.ndarray) -> np.ndarray:
    import llama_cpp
    more: dict[str, Any] = {"lora_path": str(export.path)} if export.adapter else {}
    length = tokens.shape[1]
    model = llama_cpp.Llama(model_path=export.base if export.adapter else str(export.path), n_ctx=length,
                            n_batch=length, n_gpu_layers=0, logits_all=True, verbose=False, **more)
    outputs = []
    for row in tokens:
        model.reset()
        model.eval(row.tolist())
        outputs.append(np.array(model.scores[:len(row)], np.float32))
    return np.stack(outputs)


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    if ours.shape != theirs.shape:
        raise Refused(f"the step's outputs are {list(ours.shape)}, and theirs {list(theirs.shape)}")
    apart = np.abs(ours.astype(np.float64) - theirs)
    if not np.isfinite(apart).all():
        return float("inf")
    return float(apart.max() / np.abs(ours).max()) if apart.any() else 0.0


def check(export: Export, artifact: str, data: str, *, of: str | None, samples: int, by: str) -> tuple[int, float]:
    """The samples that were compared, and the largest difference relative to the largest output."""
    ours = by_gacc(artifact, data, ["--load", of] if of else export.options(), samples)
    if by == "gacc":
        theirs = by_gacc(artifact, data, export.options(), samples)
    else:
        if ours.ndim != 3:
            raise Refused(f"the step's outputs are {list(ours.shape)}, and logits are [samples, tokens, vocabulary]")
        tokens = windows(data, ours.shape[1], len(ours))
        theirs = by_llama_cpp(export, tokens) if by == "llama.cpp" else by_transformers(export, tokens)
    return len(ours), difference(ours, theirs)


def main(words: list[str] | None = None) -> int:
    parser = Parser(prog="python -m gacc.check", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", metavar="EXPORT", help="what --save or --save-adapter wrote")
    parser.add_argument("step", metavar="step.ptx")
    parser.add_argument("data", metavar="DATA", help="as of gacc-exec: tokens:F.bin, text:F, npz:F")
    parser.add_argument("--base", help="the model of an adapter: its folder, or its GGUF")
    parser.add_argument("--of", metavar="WEIGHTS",
                        help="the weights that the run has trained (--save); default: the export itself")
    parser.add_argument("--samples", type=int, metavar="N", help="default: the limit of DATA, else 4")
    parser.add_argument("--by", choices=list(BOUNDS), help="who computes with the export; default: by its form")
    parser.add_argument("--bound", type=float, metavar="X",
                        help="default: 1e-4; by llama.cpp 2^-8, of blocks 2^-3; by gacc, and of bf16 or f16, 2^-7")
    given = parser.parse_args(words)
    try:
        export = Export(given.export, given.base)
        by = given.by or export.runs
        if export.path.is_dir() and export.runs == "gacc" and (by in ("transformers", "peft") or not given.of):
            raise Refused(f"{given.export}: has no config.json, with which transformers reads a model, and no "
                          "adapter_config.json; --save FOLDER/ writes one")
        if by != "gacc" and (form := form_of(given.step)) != "logits":
            raise Refused(f"{given.step}: its predictions are of the form `{form}`, and {by} gives logits: compile it "
                          'with --set predict.form=logits')
        if by == "gacc" and not given.of:
            raise Refused("gacc itself would be compared with itself: --of WEIGHTS names the weights that were trained")
        if by != "gacc" and importlib.util.find_spec(MODULES.get(by, by)) is None:
            raise Refused(f"{by} is not installed here (--by gacc --of WEIGHTS compares what gacc reads)")
        data, limit = limited(given.data)
        most = min(filter(None, (given.samples, limit)), default=4)
        samples, apart = check(export, os.fspath(given.step), data, of=given.of, samples=most, by=by)
        bound = export.bound(by, given.step, given.of) if given.bound is None else given.bound
    except (Refused, Unreadable, Error, OSError, ImportError) as error:
        print(f"gacc.check: error: {error}", file=sys.stderr)
        return 1
    print(f"check: {given.export}: {samples} sample{'s' * (samples != 1)} in {by}: "
          f"largest difference {apart:.3g} of the largest output")
    if apart <= bound:
        return 0
    print(f"gacc.check: error: {given.export}: what it computes is off by {apart:.3g} of the largest output; "
          f"{bound:.3g} is rounding (--bound)", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
