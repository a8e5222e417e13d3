"""Checks the arguments of a public call by the names and types that its signature states."""
from __future__ import annotations

import argparse
import difflib
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

WORDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "PathLike": "a path",
         "Mapping": "a dict", "Iterable": "an iterable", "Callable": "a function", "NoneType": "None",
         "Step": "a Step, which gacc.compile(model) or gacc.open(artifact) gives"}

# What others call an argument: the words, behind what is said here. That is an argument, or a key of a model file.
CALLED = {
    "updates": "max_steps steps num_steps n_steps max_updates num_updates total_steps num_training_steps max_iters",
    "epochs": "epoch num_epochs n_epochs max_epochs num_train_epochs",
    "loader": "data dataset dataloader data_loader train_data train_dataset train_loader train_dataloader",
    "evaluate": "eval validation eval_data eval_dataset eval_loader eval_dataloader val_data val_dataset val_loader "
                "val_dataloader validation_data valid_loader test_loader",
    "eval_every": "eval_steps eval_interval val_check_interval",
    "on_update": "callback callbacks on_step",
    "on_epoch": "on_epoch_end",
    "progress": "verbose logging_steps log_every",
    "patience": "early_stopping early_stopping_patience",
    "best": "metric_for_best_model monitor",
    "checkpoint": "output_dir save_dir checkpoint_dir",
    "session": "resume resume_from_checkpoint run",
    "device": "accelerator use_cpu no_cuda",
    "seed": "random_state random_seed",
    "threads": "num_threads n_threads",
    "tokens": "max_new_tokens max_tokens num_tokens max_length",
    "stop": "stop_strings stop_sequences eos_token",
    "prompt": "text inputs",
    "tokenizer": "tokeniser processing_class",
    "context": "seq_len seq_length max_seq_len max_seq_length context_length block_size max_length",
    "lora": "peft_config lora_config lora_r lora_rank",
    "target": "labels label_names",
    "inputs": "example examples example_inputs args",
    "optimizer.type": "optimizer optim",
    "optimizer.lr": "learning_rate lr",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.betas": "betas",
    "optimizer.momentum": "momentum",
    "train.micro_batch": "batch_size micro_batch micro_batch_size train_batch_size per_device_train_batch_size",
    "train.accumulate": "accumulate gradient_accumulation_steps accumulation_steps accumulate_grad_batches grad_accum",
    "train.clip_norm": "clip_norm clip clip_grad clip_grad_norm grad_clip max_grad_norm gradient_clip_val",
    "train.shuffle": "shuffle",
    "schedule.type": "schedule scheduler lr_scheduler lr_scheduler_type",
    "schedule.warmup": "warmup warmup_steps warmup_ratio num_warmup_steps",
    "precision.compute": "precision fp16 bf16 half amp dtype torch_dtype mixed_precision",
    "recompute.policy": "recompute gradient_checkpointing activation_checkpointing",
    "memory.budget": "memory max_memory budget",
    "loss.type": "loss loss_fn criterion",
    "model.metrics": "metrics compute_metrics",
}
TYPES = {"bfloat16": "bf16", "float16": "f16", "half": "f16", "float32": "f32", "float": "f32"}  # of PyTorch and numpy
HALF = {"fp16": '"f16"', "bf16": '"bf16"', "half": '"f16"'}

OWN = {"loss": "cross_entropy", "optimizer": "adamw"}  # arguments that name something of gacc's, and such a name


def _kinds(hint: Any) -> list[Any]:
    """The classes that a type is a union of, without what is in their brackets."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [kind for each in typing.get_args(hint) for kind in _kinds(each)]
    return [origin or hint]


def _fits(value: Any, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, numbers.Real)
    name = getattr(kind, "__name__", "")
    if name == "Iterable":  # also by numbers from 0, as PyTorch's data sets
        return not isinstance(value, (str, bytes)) and (hasattr(value, "__iter__") or hasattr(value, "__getitem__"))
    return kind is Any or isinstance(value, kind) or (name, type(value)) in (("bool", int), ("PathLike", bytes))


def check(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises TypeError for the first of the arguments, by name, that is of another type."""
    call = function.__qualname__.removesuffix(".__init__")
    for name, hint in typing.get_type_hints(function).items():
        kinds = _kinds(hint)
        if int in kinds and isinstance(given.get(name), numbers.Integral) and not -2**63 <= given[name] < 2**63:
            raise OverflowError(f"{call}(): {name} is {given[name]}, which has no place in 64 bits")
        if name in given and not any(_fits(given[name], kind) for kind in kinds):
            words = [WORDS.get(kind.__name__, f"a {kind.__name__}") for kind in kinds]
            raise TypeError(f"{call}(): {name} is {given[name]!r:.60}, and takes "
                            f"{', '.join(words[:-1])}{' or ' if words[:-1] else ''}{words[-1]}"
                            + (f'; gacc has its own, by name, such as "{OWN[name]}"' if name in OWN else "")
                            + (f"; {said}" if (said := here_of(name, given[name])) else ""))


def here_of(name: str, value: Any) -> str:
    """What an object of another package is here, where that can be said; else ''."""
    kind, _, word = (getattr(value, "__name__", None) or str(value)).rpartition(".")
    if name in ("precision", "type") and word in TYPES and (kind == "torch" or isinstance(value, type)):
        return f'that is "{TYPES[word]}"'
    if type(value).__name__ == "device" and name == "device":
        return f'that is "{value}"'
    if name == "target" and hasattr(value, "shape"):
        return "it is the name of an input, whose arrays the batches have"
    if name in ("step", "model") and hasattr(value, "named_parameters"):
        return "gacc.from_torch(module, ...) makes a step of a PyTorch module"
    return f"that is {said}" if (said := of_peft(value)) else ""


def of_peft(config: Any) -> str:
    """A LoraConfig of PEFT as gacc has it."""
    if not hasattr(config, "lora_alpha"):
        return ""
    names = config.target_modules
    match = {} if names is None or names == "all-linear" else {"match": names if isinstance(names, str) else [*names]}
    return repr({"rank": config.r, "alpha": config.lora_alpha, "dropout": config.lora_dropout} | match)


PUBLIC: list[Callable[..., Any]] = []  # of gacc, whose arguments a word may be meant for


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Answers a keyword that the function has not with what it may stand for."""
    have = inspect.signature(function).parameters

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        for name, value in named.items():
            if name not in have:
                raise unknown(function, have, name, value)
        return function(*given, **named)
    PUBLIC.append(called)
    return called


def unknown(function: Callable[..., Any], have: Collection[str], name: str, value: Any) -> TypeError:
    """The error of a keyword that is none of those that there are, with what it may stand for."""
    call = function.__qualname__.removesuffix(".__init__")
    meant = [here for here, words in CALLED.items() if name in words.split()]
    if here := next((each for each in meant if each.partition(".")[0] in have), None):
        return TypeError(f"{call}() takes no {name}; did you mean {_said(here, name, value)}?")
    if key := next((each for each in meant if "." in each), None):
        said = f'set={{"{key}": {_example(name, value)}}}'
        return TypeError(f"{call}() takes no {name}; " + (f"did you mean {said}?" if "set" in have else
                                                         f"gacc.compile(model, {said}) has it"))
    for here in [name, *meant]:
        if other := next((each for each in PUBLIC if here in inspect.signature(each).parameters), None):
            owner, _, method = other.__qualname__.removesuffix(".__init__").rpartition(".")
            return TypeError(f"{call}() takes no {name}; {'run' if owner else 'gacc'}.{method}({here}=...) has it")
    near = [each for each in have if each.startswith(name)] or difflib.get_close_matches(name, have, 1)
    return TypeError(f"{call}() takes no {name}" + (f"; did you mean {near[0]}?" if near else ""))


def _example(name: str, value: Any) -> str:
    return HALF.get(name) or (repr(value).replace("'", '"') if isinstance(value, (int, float, str))
                              and not isinstance(value, bool) else "...")


def _said(here: str, name: str, value: Any) -> str:
    """An argument, or a table with the key."""
    table, _, key = here.partition(".")
    if not key:
        return here
    kind = '"type": "adamw", ' if table == "optimizer" and key != "type" else ""
    return f'{table}={{{kind}"{key}": {_example(name, value)}}}'


class Parser(argparse.ArgumentParser):
    """Answers an option that there is none of with the one that it may stand for. `meant`: what is said by words of
    other kinds."""

    def __init__(self, *given: Any, meant: Mapping[str, str] | None = None, **named: Any):
        super().__init__(*given, **named)
        self.meant = meant or {}

    def error(self, message: str) -> NoReturn:
        _, begins, rest = message.partition("unrecognized arguments: ")
        word = next((each for each in rest.split() if each.startswith("--")), "") if begins else ""
        option = word.partition("=")[0]
        name = option.removeprefix("--").replace("-", "_")
        have = {action for each in self._actions for action in each.option_strings if action.startswith("--")}
        meant = [f"--{here}" for here, words in CALLED.items() if name in words.split() and f"--{here}" in have]
        near = meant or difflib.get_close_matches(option, have, 1) if option else []
        if name in self.meant:
            message = f"there is no {option}: {self.meant[name]}"
        elif near:
            message = f"there is no {option}; did you mean {near[0]}?"
        super().error(message)
