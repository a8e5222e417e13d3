"""Published models of any architecture that transformers has, as training steps.

    python -m gacc.pretrained FOLDER --lora 8 --context 512 --memory 6GiB -o step.ptx
    gacc-exec step.ptx --data tokens:tokens.bin --load FOLDER --save-adapter adapter

FOLDER needs a config.json alone: the code of transformers makes the module, without weights, and torch.export follows
its forward. The parameters have the module's own names. Other options are gaccc's: --plan, --json, --set KEY=VALUE,
--target, --report, ... In Python it is gacc.from_pretrained(FOLDER, context=512, lora=8).
"""
from __future__ import annotations

import argparse
import bisect
import fnmatch
import functools
import inspect
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import _arrays, _toml, program
from . import torch as lowering
from ._arguments import Parser
from ._library import Error
from ._paths import expect_there, is_adapter
from ._tokenizer import POSITIONS as LIMITS, expect_positions
from .torch.documents import unpacked_masks

# What the folder's door says of a model of texts (frontend/families/causal.toml).
TABLES: dict[str, dict[str, Any]] = {
    "model": {"metrics": ["perplexity"]},
    "train": {"micro_batch": 1, "accumulate": 32, "clip_norm": 1.0},
    "optimizer": {"type": "adamw", "lr": 3e-5, "betas": [0.9, 0.95], "weight_decay": 0.1, "decay": "matrices"},
    "schedule": {"type": "cosine", "warmup": "3%", "total": "run"}}
ADAPTED_LR = 2e-4
HALF_TYPES = {"bfloat16": "bf16", "float16": "f16"}
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx", "seq_length")
MOST_CONTEXT = 1024  # of a window, where nothing is said


# --- the module

def configuration(folder: str | os.PathLike) -> Any:
    transformers = library()
    folder = os.fsdecode(folder)
    expect_there(folder)
    if is_adapter(folder):
        raise Error(f"{folder}: is an adapter, and FOLDER is that of its base", file=folder)
    if not os.path.exists(os.path.join(folder, "config.json")):
        raise Error(f"{folder}: there is no config.json; the folder of a published model has it beside its weights",
                    file=folder)
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if "trust_remote_code" in str(error):
            raise Error(f"{folder}: its config.json has `auto_map`: the model is code of its own, and gacc runs no "
                        "code of a folder. Make the module yourself, and give it to gacc.from_torch "
                        "(docs/from-pytorch.md)", file=folder) from None
        raise Error(f"{folder}: transformers {transformers.__version__} does not read its config.json: {error}",
                    file=folder) from error


def library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise Error(f"the code of a published model is that of the package transformers: {error}") from None
    return transformers


def module_of(config: Any) -> nn.Module:
    """The language model of a configuration, on the device `meta`, in evaluation mode and without a cache of keys."""
    transformers = library()
    config.use_cache = False
    try:
        with torch.device("meta"):
            module = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).eval()
    except ValueError as error:
        raise Error(f"transformers {transformers.__version__} makes no causal language model of the model_type "
                    f"\"{config.model_type}\": {str(error).splitlines()[0]}") from None
    may = hasattr(transformers, "AttentionMaskInterface") and getattr(module, "_supports_attention_backend", False)
    if may and (hasattr(config, "attn_logit_softcapping") and not module._supports_sdpa
                or config.model_type in WITH_SINKS):
        transformers.AttentionInterface.register("gacc", scored_attention)
        transformers.AttentionMaskInterface.register("gacc", transformers.masking_utils.sdpa_mask)
        module.set_attn_implementation("gacc")
    return module


# Architectures whose heads have sinks, and give them to the attention that is set, with the usual mask. PyTorch's own
# attention has neither sinks nor caps, and so transformers makes the matrix of probabilities. Other architectures with
# sinks choose keys, or add some, only where the attention is transformers' own (hy_v4, deepseek_v4).
WITH_SINKS = {"flint", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash"}


def scored_attention(module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                     attention_mask: torch.Tensor | None, dropout: float = 0.0, scaling: float | None = None,
                     softcap: float | None = None, s_aux: torch.Tensor | None = None, **_: Any
                     ) -> tuple[torch.Tensor, None]:
    """An attention of transformers, [batch, heads, T, channels], whose scores may be capped by a tanh, and whose heads
    may each have a sink, a score of no key."""
    causal = attention_mask is None and query.shape[2] > 1 and getattr(module, "is_causal", True)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    y = torch.ops.gacc.scored_attention(query, key, value, attention_mask, dropout, causal, scale, softcap or 0.0,
                                        s_aux)
    return y.transpose(1, 2).contiguous(), None


def later_positions(module: nn.Module, folder: object, target: str) -> str:
    """What is said of an encoder, whose parts know that they are of no decoder; "" of any other model."""
    known = [vars(part)[key] for part in module.modules() for key in ("is_causal", "is_decoder")
             if isinstance(vars(part).get(key), bool)]
    if not known or any(known):
        return ""
    return (f"{folder}: the attention of {type(module).__name__} sees later positions, and with them the tokens that "
            f"`{target}` asks for, if they are the next ones; set \"is_decoder\": true in its config.json")


def drops(module: nn.Module) -> bool:
    """Returns whether something is dropped in training."""
    return any(isinstance(value, float) and value > 0 and "drop" in name or isinstance(part, nn.Dropout) and part.p > 0
               for part in module.modules() for name, value in vars(part).items())


def context_of(config: Any, context: int | None, folder: object) -> int:
    text = config.get_text_config()
    if context is not None:
        limits = [n for name in LIMITS if isinstance(n := getattr(text, name, None), int) and n > 0]
        expect_positions(context, next(iter(limits), None), folder)
    known = [n for name in POSITIONS if isinstance(n := getattr(text, name, None), int) and n > 0]
    return context or min([MOST_CONTEXT, *known[:1]])


def precision_of(folder: str | os.PathLike, gpu: str | None) -> tuple[str | None, str]:
    """The type of the folder's own numbers, None where it does not say one, and what says so: as gaccc FOLDER."""
    said = json.loads(pathlib.Path(os.fsdecode(folder), "config.json").read_text(encoding="utf-8"))
    for key in ("dtype", "torch_dtype"):
        if isinstance(word := said.get(key), str):
            compute, because = HALF_TYPES.get(word.removeprefix("torch."), "f32"), f'{key} is "{word}"'
            if compute == "bf16" and gpu == "sm_75":
                return "f16", because + ", which sm_75 does not multiply"
            return compute, because
    return None, "there is no torch_dtype"


# --- adapters

class Adapted:
    """A linear layer with an adapter, as PEFT computes it; the class of such layers begins with this one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.lora_A(x if self.lora_dropout is None else self.lora_dropout(x))
        return super().forward(x) + self.lora_B(small if self.lora_scale == 1 else small * self.lora_scale)


class Linear(nn.Module):
    """A Conv1D of transformers, whose weight lies transposed, as the linear layer that it is."""

    def __init__(self, part: nn.Module):
        super().__init__()
        self.in_features, self.out_features = part.weight.shape
        self.weight = nn.Parameter(part.weight.t(), part.weight.requires_grad)
        self.bias = part.bias
        self.train(part.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


@functools.cache
def adapted_class(kind: type) -> type:
    return type("Adapted" + kind.__name__, (Adapted, kind), {})


def adapter_settings(lora: int | Mapping[str, Any]) -> dict[str, Any]:
    given = dict(lora) if isinstance(lora, Mapping) else {"rank": lora}
    known = {"rank", "alpha", "dropout", "match"}
    if wrong := sorted(set(given) - known):
        raise ValueError(f"lora has {', '.join(sorted(known))}, and no {wrong[0]}")
    rank = given.get("rank")
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"the rank of lora is a whole number from 1 on, not {rank!r}")
    return {"alpha": 2 * rank, "dropout": 0.0, "match": None} | given


def adapt(module: nn.Module, lora: Mapping[str, Any]) -> list[str]:
    """Freezes the module and gives its linear layers adapters, but for the head: those that a pattern of `match` names,
    by their whole path or its end. Returns their paths."""
    from transformers.pytorch_utils import Conv1D
    for p in module.parameters():
        p.requires_grad_(False)
    head = module.get_output_embeddings()
    linear = {path: part for path, part in module.named_modules() if isinstance(part, (nn.Linear, Conv1D))}
    patterns = lora["match"]
    names = [patterns] if isinstance(patterns, str) else patterns
    if names is None:
        chosen = [path for path, part in linear.items() if part is not head]
    else:
        chosen = [path for path in linear if any(
            fnmatch.fnmatchcase(path, name) or fnmatch.fnmatchcase(path, f"*.{name}") for name in names)]
        for name in names:
            if not any(fnmatch.fnmatchcase(path, name) or fnmatch.fnmatchcase(path, f"*.{name}") for path in chosen):
                ends = sorted({path.rpartition(".")[2] for path in linear})
                raise Error(f"no linear layer is named `{name}`; their names end in {', '.join(ends)}")
    if not chosen:
        raise Error("the module has no linear layers that adapters could be of")
    for path in chosen:
        part = linear[path]
        if isinstance(part, Conv1D):
            part = Linear(part)
            module.set_submodule(path, part)
        out, inside = part.weight.shape
        with torch.device("meta"):
            part.lora_A = nn.Linear(inside, lora["rank"], bias=False)
            part.lora_B = nn.Linear(lora["rank"], out, bias=False)
        part.lora_dropout = nn.Dropout(lora["dropout"]) if lora["dropout"] else None
        part.lora_scale = lora["alpha"] / lora["rank"]
        part.__class__ = adapted_class(type(part))
    return chosen


def pack_documents(module: nn.Module) -> None:
    """Gives the forward the numbers of documents as its second argument, which say the positions."""
    forward = module.forward
    if "position_ids" not in inspect.signature(forward).parameters:
        raise Error(f"the forward of {type(module).__name__} takes no position_ids, so that positions cannot begin "
                    "anew in each document; it is trained without --pack")

    def packed(tokens: torch.Tensor, documents: torch.Tensor) -> Any:
        return forward(input_ids=tokens, position_ids=torch.ops.gacc.positions(documents))
    module.forward = packed


# --- names in files

def tied_names(module: nn.Module) -> dict[str, str]:
    """Parameters that are another's, and whose each is."""
    first: dict[int, str] = {}
    return {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)
            if first.setdefault(id(p), name) != name}


def in_files(module: nn.Module, own: Mapping[str, torch.Tensor]) -> dict[str, list[tuple[int, int, str, bool]]]:
    """Which tensors of a file make each parameter, as transformers writes them: the first of its rows that a tensor
    has, how many, the tensor's name, and whether it lies transposed there. Every row is followed by a number."""
    from transformers.core_model_loading import revert_weight_conversion
    rows = {name: math.prod(p.shape[:-1]) if p.dim() > 1 else p.numel() for name, p in own.items()}
    first = dict(zip(own, itertools.accumulate(rows.values(), initial=0)))
    marked = {name: torch.arange(first[name], first[name] + rows[name]).view(*p.shape[:-1], 1) if p.dim() > 1 else
              torch.arange(first[name], first[name] + rows[name]).view(p.shape) for name, p in own.items()}
    starts = list(first.values())
    out: dict[str, list[tuple[int, int, str, bool]]] = {name: [] for name in own}
    for tensor, given in revert_weight_conversion(module, marked).items():
        turned = given.dim() == 2 and given.shape[0] == 1 < given.shape[1]
        flat = given.reshape(-1)
        name = list(own)[bisect.bisect_right(starts, int(flat[0])) - 1]
        begin = int(flat[0]) - first[name]
        if not torch.equal(flat, torch.arange(len(flat)) + flat[0]) or begin + len(flat) > rows[name]:
            raise Error(f"transformers writes rows of `{name}` in another order, as `{tensor}`, and gacc has no name "
                        "for that")
        out[name].append((begin, len(flat), tensor, turned))
    return {name: sorted(parts) for name, parts in out.items()}


def published_names(module: nn.Module, turned: set[str], read: Collection[str]) -> Iterator[str]:
    """The settings that say what the parameters that the step reads are called in published files, and what the files
    have besides."""
    tied = {name: owner for name, owner in tied_names(module).items() if owner in read}
    own = {name: p for name, p in module.state_dict(keep_vars=True).items()
           if (isinstance(p, nn.Parameter) or name in read) and not is_of_adapter(name) and name not in tied}
    prefix = getattr(module, "base_model_prefix", "")
    prefix = f"{prefix}." if prefix and any(name.startswith(f"{prefix}.") for name in own) else ""
    files = in_files(module, own)
    unread = apart([tensor for name, parts in files.items() if name not in read for *_, tensor, _ in parts],
                   [tensor for name, parts in files.items() if name in read for *_, tensor, _ in parts])
    ignored = [*ignored_names(module), *(f"*{each.removeprefix(prefix)}{end}" for each, end in unread.items())]
    yield f'load.prefix = {quoted(prefix)}'
    yield f"load.ignore = [{', '.join(map(quoted, ignored))}]"
    for number, (name, parts) in enumerate((name, parts) for name, parts in files.items() if name in read):
        yield f"load.parameters.{number}.name = {quoted(name)}"
        yield f"load.parameters.{number}.tensors = [{', '.join(quoted(tensor) for *_, tensor, _ in parts)}]"
        if name in turned or any(transposed for *_, transposed in parts):
            yield f"load.parameters.{number}.transpose = true"
        if len(parts) > 1:
            yield f"load.parameters.{number}.parts = [{', '.join(str(count) for _, count, *_ in parts)}]"
    if tied:
        yield f"load.tied = [{', '.join(map(quoted, tied))}]"
        yield f"load.owners = [{', '.join(map(quoted, tied.values()))}]"


def apart(names: Iterable[str], others: Collection[str]) -> dict[str, str]:
    """The shortest beginnings of names, as far as a dot, that none of the others has, and what ends each: ".*" where it
    is the path of a module, else nothing."""
    inner = {name[:at] for name in others for at, letter in enumerate(name) if letter == "."}
    found: dict[str, str] = {}
    for name in names:
        cuts = (at for at, letter in enumerate(name) if letter == ".")
        begin = next((name[:at] for at in cuts if name[:at] not in inner), name)
        found[begin] = ".*" if begin != name else ""
    return found


def ignored_names(module: nn.Module) -> list[str]:
    """Patterns of what transformers leaves out of a file, as [load] has them."""
    patterns = [*(getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()), r"rotary_emb\.inv_freq"]
    plain = [re.sub(r"\\d\+|\[0-9\]\+", "{i}", pattern).replace(".*", "*").replace("\\.", ".") for pattern in patterns]
    return [f"*{each.strip('^$')}*" for each in plain if not re.search(r"[\\()\[\]|?+]", each)]


def is_of_adapter(name: str) -> bool:
    return name.endswith((".lora_A.weight", ".lora_B.weight"))


def quoted(text: str) -> str:
    return _toml.value(text, "name")


# --- the step

def text_of(folder: str | os.PathLike, *, context: int | None = None, lora: int | Mapping[str, Any] | None = None,
            pack: bool = False, output: int | str | None = "logits", target: str = "next", name: str | None = None,
            classes: bool = True, gpu: str | None = None, warn: Callable[[str], object] = _arrays.warn
            ) -> tuple[str, Any, dict[str, Any], str]:
    """The text of the IR, the module's names, what the folder says of training, as keys of a model file, and why it
    computes in what it does."""
    folder = os.path.dirname(os.path.abspath(folder)) if os.fsdecode(folder).endswith(".json") else folder
    config = configuration(folder)
    context = context_of(config, context, folder)
    settings = {f"{table}.{key}": value for table, keys in TABLES.items() for key, value in keys.items()}
    settings |= {"loss.type": "cross_entropy", "loss.target": target}
    precision, because = precision_of(folder, gpu)
    if precision is not None:
        settings["precision.compute"] = precision
    module = module_of(config)
    if classes and (said := later_positions(module, folder, target)):
        warn(said)
    adapters: list[str] = []
    if lora is not None:
        lora = adapter_settings(lora)
        adapters = adapt(module, lora)
        settings["optimizer.lr"] = ADAPTED_LR
    turned = {f"{path}.weight" for path, part in module.named_modules() if isinstance(part, Linear)}
    module.train(drops(module))
    inputs = {"tokens": torch.zeros(2, context, dtype=torch.int64)}
    if pack:
        inputs["documents"] = inputs["tokens"]
        pack_documents(module)

    def more(read: Collection[str]) -> Iterator[str]:
        yield from published_names(module, turned, read)
        paths = [path for path in adapters if f"{path}.lora_A.weight" in read]
        if adapters and not paths:
            raise Error(f"{folder}: the forward of tokens alone reads none of the layers that `match` names")
        for number, path in enumerate(paths):
            adapter = {"name": quoted(path), "weight": quoted(f"{path}.weight"), "begin": 0,
                       "alpha": float(lora["alpha"])}
            yield from (f"adapters.{number}.{key} = {value}" for key, value in adapter.items())
        whole = [name for name, _ in module.named_parameters() if not is_of_adapter(name)]
        if unread := apart([name for name in whole if name not in read], [name for name in whole if name in read]):
            warn(f"{folder}: the forward of tokens alone does not read {', '.join(f'`{each}`' for each in unread)}: "
                 "the step has no such parameters, and what it saves neither")
    title = name or pathlib.Path(os.path.abspath(os.fsdecode(folder))).name
    with unpacked_masks():
        text, state = lowering.text_of(module, inputs, target=target, classes=classes, name=title, output=output,
                                       settings=more)
    if pack and not re.search(r"= documents %documents", text):
        raise Error(f"{folder}: the forward does not read position_ids, so that its positions cannot begin anew in "
                    "each document; it is trained without --pack")
    state.turned = turned
    return text, state, settings, because


def main(words: list[str] | None = None) -> int:
    parser = Parser(prog="python -m gacc.pretrained", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("folder", metavar="FOLDER", help="of a published model, with a config.json")
    parser.add_argument("-o", metavar="FILE", help="the artifact; default: FOLDER with .ptx in the current folder")
    parser.add_argument("--context", metavar="T", type=int, help="tokens of a window")
    parser.add_argument("--lora", metavar="R", type=int, help="adapters of rank R at all linear layers of the blocks")
    parser.add_argument("--pack", action="store_true", help="windows have several documents, a further input")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a key of the model file")
    given, rest = parser.parse_known_args(words)
    for option, number in (("--context", given.context), ("--lora", given.lora)):
        if number is not None and number < 1:
            parser.error(f"{option} is a whole number from 1 on")
    shows = any(word in rest for word in ("--plan", "--fits", "--summary"))
    try:
        gpu = rest[rest.index("--target") + 1] if "--target" in rest[:-1] else None
        text, _, settings, because = text_of(given.folder, context=given.context, lora=given.lora, pack=given.pack,
                                             gpu=gpu, warn=lambda said: print(f"warning: {said}", file=sys.stderr))
    except Error as error:
        print(f"gacc.pretrained: {error}", file=sys.stderr)
        return 1
    title = pathlib.Path(os.path.abspath(given.folder)).name
    out = given.o or (None if shows else f"{title}.ptx")
    said = {each.partition("=")[0].strip() for each in given.set}
    defaults = [f"{key}={_toml.value(value, key)}" for key, value in settings.items() if key not in said]
    gaccc, environment = program("gaccc")
    words = [gaccc, "-", *(["-o", out] if out else []), *rest]
    for each in [*defaults, *given.set]:
        words += ["--set", each]
    done = subprocess.run(words, env=environment, input=text, encoding="utf-8",
                          stdout=subprocess.PIPE if "--plan" in rest else None)
    if "--plan" in rest:
        because = "as set; " * ("precision.compute" in said) + because
        print(with_reason(done.stdout, because, "--json" in rest), end="")
    return done.returncode


def with_reason(plan: str, because: str, is_json: bool) -> str:
    """The plan, whose first line says why it computes in what it does."""
    if is_json and plan:
        return json.dumps(json.loads(plan) | {"precision_because": because}, indent=2) + "\n"
    return re.sub(r"\A(plan of .* \((?:f32|f16|bf16)),", lambda found: f"{found[1]}: {because};", plan)


if __name__ == "__main__":
    sys.exit(main())
