"""The forward of a module in core ATen, by torch.export, and refusals with a module and a line of Python."""
from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import linecache
import logging
import math
import operator
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.backends.opt_einsum
import torch.utils.checkpoint
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._pytree import tree_map

from .._library import Error
from .composed import COMPOSED, quantile
from .experts import by_products
from .functions import by_elements, with_slope
from .layers import attention, instance_norm, rms_norm
from .patterns import norms
from .recurrences import delta_rules
from .region import OPERATIONS, Region
from .repeats import Repeats, written_out
from .state import Draws, Kept, for_this_thread, line_of, renamed, replaced
from .tensor import Unsupported

aten = torch.ops.aten
HERE = os.path.dirname(__file__)

F = torch.nn.functional
WHOLE = {  # what the export of PyTorch 2.4 would take apart: the signature as there, and what makes it
    F.scaled_dot_product_attention: ("Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, "
                                     "float dropout_p=0.0, bool is_causal=False, float? scale=None", attention),
    F.instance_norm: ("Tensor input, Tensor? running_mean=None, Tensor? running_var=None, Tensor? weight=None, "
                      "Tensor? bias=None, bool use_input_stats=True, float momentum=0.1, float eps=1e-05",
                      lambda r, x, mean=None, variance=None, w=None, bias=None, by_input=True, momentum=0.1, eps=1e-5:
                      instance_norm(r, x, w, bias, mean, variance, by_input, momentum, eps)),
    F.rms_norm: ("Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None", rms_norm),
} if not hasattr(torch.export, "default_decompositions") else {}
LIBRARY = torch.library.Library("gacc", "FRAGMENT")  # which keeps the operations defined


for function, (signature, build) in WHOLE.items():
    LIBRARY.define(f"{function.__name__}({signature}) -> Tensor")
    LIBRARY.impl(function.__name__, lambda x, *more, attention=function is F.scaled_dot_product_attention, **_: (
        x.new_empty([*x.shape[:-1], more[1].shape[-1] if attention else x.shape[-1]])), "Meta")
    OPERATIONS[getattr(torch.ops.gacc, function.__name__).default] = build
LIBRARY.define("detached(Tensor x) -> Tensor")
LIBRARY.impl("detached", torch.clone, "CompositeExplicitAutograd")
OPERATIONS[torch.ops.gacc.detached.default] = Region.detached

GRADIENTS_ARE_ON = torch.is_grad_enabled  # PyTorch's own, also where another one stands in its place
DETACH = {torch.detach, torch.Tensor.detach, torch.Tensor.data.__get__}
NO_GRADIENT = "it takes a gradient in the forward, and gacc makes gradients itself"
HOOKS = {  # what would change a gradient unseen, and what torch.export says nothing useful of
    torch.Tensor.data.__set__: "x.data = y gives a tensor other numbers unseen by the export: compute with y itself",
    torch.Tensor.detach_: "detach_() works in place: say x = x.detach()",
    torch.Tensor.register_hook: "a hook of a tensor changes its gradient, and gacc makes gradients itself",
    torch.autograd.grad: NO_GRADIENT,
    torch.Tensor.backward: NO_GRADIENT,
    torch.Tensor.grad.__get__: "it reads the gradient of an earlier step, which gacc does not keep",
    torch._VF._pack_padded_sequence: "packed sequences have lengths that are data: give the padded ones, and take each "
                                     "sample's last output by y[torch.arange(len(x)), lengths - 1]"}
LOSSES = {"cross_entropy": "cross_entropy", "nll_loss": "cross_entropy", "mse_loss": "mse", "l1_loss": "l1",
          "smooth_l1_loss": "huber", "huber_loss": "huber", "binary_cross_entropy": "bce_with_logits",
          "binary_cross_entropy_with_logits": "bce_with_logits"}  # functions of PyTorch, and gacc's of their kind


class Followed(torch.overrides.TorchFunctionMode):
    """Calls the operations of WHOLE in place of PyTorch's own, and keeps what export forgets: where a gradient ends, by
    detach() and in torch.no_grad()."""

    ended = asked = False  # asked: the forward has looked whether gradients are made

    def __init__(self, samples: Any, blind: bool):
        super().__init__()
        self.samples = samples  # a symbol, until a line of the forward needs a number
        self.blind = blind  # PyTorch 2.4 exports once more, and tells no tensor's gradient then
        self.free: dict[int, torch.Tensor] = {}  # what was made in no_grad, by its memory, which this keeps
        self.copies: dict[int, torch.Tensor] = {}  # whose memory is that of another tensor in PyTorch

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function is torch._C._set_grad_enabled:
            self.ended = not args[0]
            return None
        if function in HOOKS:
            raise Unsupported(HOOKS[function])
        if not GRADIENTS_ARE_ON() and not torch.is_inference_mode_enabled():  # no line of the forward's own has done it
            raise Unsupported("it runs in a torch.autograd.Function, whose gradient is unseen where `apply` was taken "
                              "before: call Name.apply(x) in the forward, with the Function's name")
        if function is torch.Tensor.retain_grad:
            return None
        if function is torch.Tensor.requires_grad_ and (len(args) > 1 and not args[1] or isinstance(
                args[0], torch.nn.Parameter) or not (kwargs or {}).get("requires_grad", True)):
            raise Unsupported("it changes what is trained: say requires_grad_() before from_torch")
        if function in DETACH:
            return self.freed(args[0])
        function = INSTEAD.get(function, function)
        if function in WHOLE:
            function = getattr(torch.ops.gacc, function.__name__)
        ended = self.ended or torch.is_inference_mode_enabled()
        args, kwargs = tree_map(self.freed, (args, kwargs or {})) if ended else (args, dict(kwargs or {}))
        to = kwargs.pop("out", None)  # with which nothing has a gradient
        counted = [x for x in args[:1] if isinstance(x, torch.Tensor) and not x.is_inference()]
        versions = [x._version for x in counted]
        out = function(*args, **kwargs)
        changed = versions != [x._version for x in counted] or (self.blind and is_in_place(function.__name__))
        written = memory(counted[0]) if changed and counted else None
        if written in self.copies:
            raise Unsupported("it writes, behind detach() or .data or in torch.no_grad(), into a tensor that has a "
                              "gradient: write into its clone()")
        if not ended:
            self.free.pop(written, None)
        if isinstance(to, torch.Tensor):
            out = to.copy_(out)
        if self.samples.node.maybe_as_int() is not None:
            raise Unsupported(f"`{function.__name__}` takes the number of samples as a number of Python, and gacc's is "
                              "known only at the launch")
        for x in torch.utils._pytree.tree_leaves(out) if ended else ():
            if isinstance(x, torch.Tensor) and memory(x) not in self.copies:
                self.free[memory(x)] = x
        return out

    def freed(self, x: Any) -> Any:
        """x, without its gradient where it has one."""
        if not isinstance(x, torch.Tensor) or memory(x) in self.free:
            return x
        if not (x.is_floating_point() if self.blind else x.requires_grad):
            return x
        copy = torch.ops.gacc.detached(x)
        self.copies[memory(copy)] = copy
        return copy


def is_in_place(name: str) -> bool:
    special = name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
    return special or (name.endswith("_") and not name.endswith("__"))


def memory(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata


def bags(which: torch.Tensor, table: torch.Tensor, offsets: Any = None, max_norm: Any = None, norm_type: float = 2.0,
         scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
         include_last_offset: bool = False, padding_idx: int | None = None) -> torch.Tensor:
    """F.embedding_bag of bags of one length, whose own export counts through the batch."""
    if which.dim() != 2:
        raise Unsupported("bags of several lengths, by offsets: give [samples, numbers], filled up with padding_idx")
    rows = F.embedding(which, table, None, max_norm, norm_type, scale_grad_by_freq)
    there = (which != (-1 if padding_idx is None else padding_idx % len(table)))[..., None]
    if mode == "max":
        return torch.where(there.any(1), torch.where(there, rows, -math.inf).amax(1), 0.0)
    total = (rows * there * (1 if per_sample_weights is None else per_sample_weights[..., None])).sum(1)
    return total if mode == "sum" else total / there.sum(1).clamp(min=1)


INSTEAD = {F.embedding_bag: bags, torch.quantile: quantile, torch.Tensor.quantile: quantile,
           torch.take_along_dim: lambda x, places, dim: x.gather(dim, places)}


def set_grad(on: bool) -> bool:
    """Turns gradients on or off, unseen by the export: PyTorch 2.4 mixes up the buffers of a program that does it.
    Returns what was before."""
    before = torch.is_grad_enabled()
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(on)
    return before


def length(x: Any) -> Any:
    """len(), which may be the number of samples: a symbol, where PyTorch's makes it a number."""
    return x.shape[0] if isinstance(x, torch.Tensor) and x.dim() else count(x)


count = len


def no_generator(seed: Any = None) -> Any:
    if seed is None:
        raise Unsupported("it draws random numbers of numpy.random, which would be the same in each step: what is "
                          "drawn outside of dropout is an input")
    return np.random.Generator(np.random.PCG64(seed))


def no_seed(*_: Any) -> None:
    raise Unsupported("it sets the seed of PyTorch's random numbers, and gacc draws its own by `seed` of the model")


@contextlib.contextmanager
def followed(module: torch.nn.Module, output: int | str | None, trains: bool, left: list[Kept],
             alike: Repeats | None = None) -> Iterator[None]:
    """Runs the module's forward and its hooks, and nothing else, in the mode; it gives the one output. What the call
    leaves in the module's attributes comes into `left`."""
    parts = dict(module.named_modules())
    call, apply = module._call_impl, vars(torch.autograd.Function)["apply"]

    def in_mode(*args: Any, **kwargs: Any) -> Any:
        blind = any(isinstance(x, FunctionalTensor) and x.requires_grad and not x.clone().requires_grad
                    for x in module.parameters())
        mode = Followed(next(x.shape[0] for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), blind)

        def looked() -> bool:
            Followed.asked = True
            return trains and not mode.ended
        before = set_grad(True)  # what is set there is not PyTorch's
        try:
            with mode, replaced(*((of, name, for_this_thread(instead, vars(of)[name])) for of, name, instead in (
                    (torch, "is_grad_enabled", looked), (builtins, "len", length), (torch, "manual_seed", no_seed),
                    (np.random, "default_rng", no_generator)))):
                with alike.followed() if alike else contextlib.nullcontext():
                    out = chosen(call(*args, **kwargs), output)
            if new := [name for name, _ in module.named_modules() if name not in parts]:
                raise Unsupported(f"the forward makes the module `{new[0]}`, and gacc's step has the parameters that "
                                  "there are before it: call the module once, with a batch")
            left.append(Kept(module))
            return out
        finally:
            set_grad(before)

    def applied(kind: type, *args: Any) -> Any:
        if kind is torch.utils.checkpoint.CheckpointFunction:
            return args[0](*args[2:])  # which is computed again or not as the plan has it
        if kind.__name__ == "_NoopSaveInputs":  # of PyTorch 2.4, the same without reentry
            return args[0]
        if args and by_elements(kind, args):
            return with_slope(kind, args)
        raise Unsupported(f"`{kind.__name__}` is a torch.autograd.Function with a gradient of its own, which gacc "
                          "takes of one tensor, number by number; it makes all other gradients itself")
    of_all = for_this_thread(applied, lambda kind, *args, **named: apply.__get__(None, kind)(*args, **named))
    with replaced((torch.autograd.Function, "apply", classmethod(of_all))):
        for part in module.modules():  # net.compile() has left another call in it
            vars(part).pop("_compiled_call_impl", None)
        module._call_impl = in_mode
        try:
            yield
        finally:
            vars(module).pop("_call_impl", None)


def chosen(given: Any, output: int | str | None) -> torch.Tensor:
    """Returns the tensor that the loss takes, of what a forward gives: one, also where it gives several in training
    alone, or a tuple or mapping of several."""
    if isinstance(given, torch.Tensor):
        return given
    names = list(given) if isinstance(given, Mapping) else range(len(given)) if isinstance(given, (tuple, list)) else []
    tensors = {name: given[name] for name in names if isinstance(given[name], torch.Tensor)}
    if output is None and len(tensors) == 1:
        return next(iter(tensors.values()))
    try:
        if isinstance(one := given[output], torch.Tensor):
            return one
    except (KeyError, IndexError, TypeError):
        pass
    if not tensors:
        raise Error(f"the forward gives {type(given).__name__}, and the loss takes a tensor of it")
    raise Error(f"the forward gives {len(tensors)} tensors, and the loss takes one: say output= one of "
                f"{', '.join(map(repr, tensors))}")


# Operations that default_decompositions would take apart.
KEPT = ("linear", "silu", "mish", "softplus", "rms_norm", "scaled_dot_product_attention", "adaptive_avg_pool2d",
        "instance_norm", "stack", "col2im", "adaptive_max_pool1d", "adaptive_max_pool2d")


def place_of(node: fx.Node) -> tuple[str, str | None, int | None]:
    """Returns the module and the line of Python, as text; the file and the line."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if path]
    module = f"module `{paths[-1]}`" if paths else "the module itself"
    if stack:
        kind = list(stack.values())[-1][1]
        module += f" ({kind if isinstance(kind, str) else kind.__name__})".replace("torch.nn.modules.", "")
    frames = re.findall(r'File "([^<].*?)", line (\d+), in .*\n\s*(.*)', node.meta.get("stack_trace") or "")
    frames = [f for f in frames if not f[0].startswith(HERE)]
    own = [f for f in frames if "/torch/nn/" not in f[0] and "/torch/_" not in f[0]] or frames
    if not own:
        return module, None, None
    file, line, code = own[-1]
    return f"{module}\n  {file}:{line}: {code}", file, int(line)


def refusal(node: fx.Node, why: str) -> Error:
    where, file, line = place_of(node)
    called = str(node.meta.get("torch_fn", ("", ""))[1]).rpartition(".")[2]  # the function that the operation is of
    if loss := LOSSES.get(called):
        why = (f"the loss is gacc's, outside of the forward: give what the forward compares as its output, and say "
               f'loss="{loss}" and target= ({why})')
    return Error(f"{why}\n  in {where}", file=file, line=line)


def exported(module: torch.nn.Module, given: Mapping[str, torch.Tensor], named: Mapping[str, torch.Tensor],
             output: int | str | None, trains: bool = True, once: bool = False) -> torch.export.ExportedProgram:
    """The forward in core ATen, with one output and its batch a symbol. `given`: its arguments by their places,
    `named`: those by their names. `trains`: what torch.is_grad_enabled() says. `once`: blocks that are alike are
    followed once. The caller holds LOCK."""
    if once:
        try:
            return captured(module, given, named, output, trains, Repeats(module))
        except Exception:  # without them it is followed, or the reason is said where it is
            pass
    return captured(module, given, named, output, trains)


def captured(module: torch.nn.Module, given: Mapping[str, torch.Tensor], named: Mapping[str, torch.Tensor],
             output: int | str | None, trains: bool, alike: Repeats | None = None) -> torch.export.ExportedProgram:
    given, named = ({name: x if len(x) > 1 else x.expand(2, *x.shape[1:]).contiguous() for name, x in each.items()}
                    for each in (given, named))
    kept = Kept(module)

    def trace() -> tuple[torch.export.ExportedProgram, Kept]:
        return traced(module, given, named, output, trains, alike)
    try:
        with torch.no_grad(), quiet(), whole_layers(), by_products(), delta_rules(module), renamed(module) as names:
            draws = Draws()
            program, after = trace()
            if of := draws.drawn():
                kept.restore()
                if line := draws.line(trace):
                    raise Error(f"the forward draws from `{of}`, which would be the same numbers in each step: what is "
                                f"drawn outside of dropout is an input{line.text}", file=line.file, line=line.number)
                kept.restore()
                program, after = trace()
            check_next_call(kept, after, program, trace, lambda: unchanged_by_calls(
                kept, lambda x: chosen(module(*x[:len(given)], **dict(zip(named, x[len(given):]))), output),
                [*given.values(), *named.values()], [*module.parameters(), *module.buffers()]))
            table = getattr(torch.export, "default_decompositions", torch._decomp.core_aten_decompositions)()
            for name in KEPT:
                table.pop(operator.attrgetter(name if "." in name else name + ".default")(aten), None)
            table.update(COMPOSED)
            refuse_old_bilinear(program.graph)
            program = with_names(program.run_decompositions(table), names)
            if alike is not None:
                written_out(program, alike)
                norms(program.graph)
            return program
    except Error:
        raise
    except Exception as error:
        raise unfollowed(module, error) from error
    finally:
        kept.restore()


def traced(module: torch.nn.Module, given: Mapping[str, torch.Tensor], named: Mapping[str, torch.Tensor],
           output: int | str | None, trains: bool,
           alike: Repeats | None = None) -> tuple[torch.export.ExportedProgram, Kept]:
    """The program, and what the forward has left in the module."""
    Followed.asked = False
    batch, left = torch.export.Dim("batch", min=2), []
    with torch.enable_grad(), followed(module, output, trains, left, alike):
        program = torch.export.export(module, tuple(given.values()), kwargs=dict(named), strict=False,
                                      dynamic_shapes={name: {0: batch} for name in (*given, *named)})
    refuse_writes(program)
    return program, left[-1]


def with_names(program: torch.export.ExportedProgram, names: Mapping[str, str]) -> torch.export.ExportedProgram:
    """The program with the module's own names, given by those that the export has seen."""
    def own(name: Any) -> Any:
        return names.get(name, name)
    signature = program.graph_signature
    for spec in (*signature.input_specs, *signature.output_specs) if names else ():
        spec.target = own(spec.target)
    for table in (program.state_dict, program.constants) if names else ():
        for name in list(table):
            table[own(name)] = table.pop(name)
    return program


def is_part(node: fx.Node) -> bool:
    """Whether the node's first argument owns its memory: a view of it, or one of several that split() gave."""
    return node.op == "call_function" and bool(node.args) and (
        node.target is operator.getitem or getattr(node.target, "is_view", False))


def refuse_writes(program: torch.export.ExportedProgram) -> None:
    """Refuses what writes into a tensor that the module keeps, and that is no buffer."""
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        for argument, x in zip(node.target._schema.arguments, node.args):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            while isinstance(x, fx.Node) and is_part(x):
                x = x.args[0]
            spec = specs.get(x.name) if isinstance(x, fx.Node) else None
            if spec is not None and spec.kind.name in ("CONSTANT_TENSOR", "PARAMETER"):
                raise refusal(node, f"the forward changes `{spec.target}`; what gacc's step changes are parameters, "
                                    "by their gradients, and running statistics of batch norms")


def check_next_call(kept: Kept, after: Kept, program: torch.export.ExportedProgram, trace: Callable,
                    cached: Callable[[], bool]) -> None:
    """Refuses a forward whose next call is another one, and one that leaves something else behind each call."""
    def difference(one: Kept, other: Kept) -> list[tuple[str, str]]:
        return [key for key, value in other.contents.items() if one.contents.get(key) != value]
    changed = difference(kept, after)
    after.restore()

    def refuse(keys: list[tuple[str, str]], why: str, node: fx.Node | None = None) -> None:
        if not keys:
            raise refusal(node, "the forward computes something else in its next call: a number that is drawn or "
                                "counted outside of the module is the same in each step of gacc's")
        name, attribute = keys[0]
        where, file, line = line_of(part := kept.parts[name], attribute)
        of = f"module `{name}` ({type(part).__name__})" if name else f"the module itself ({type(part).__name__})"
        raise Error(f"the forward changes `self.{attribute}`, {why}; gacc's step is one program, the same in each "
                    f"call: give what changes as an input\n  in {of}{where}", file=file, line=line)
    try:
        again, later = trace()
    except Exception:
        if not changed:
            raise
        if not cached():
            refuse(changed, "which its next call finds")
        return
    if (node := first_difference(program, again)) is not None and not (changed and cached()):
        refuse(changed, "by which its next call computes something else", node)
    if counted := difference(after, later):
        refuse(counted, "to something else in each call")


def first_difference(one: torch.export.ExportedProgram, other: torch.export.ExportedProgram) -> fx.Node | None:
    """Returns the first node by which two programs differ, None where they are the same."""
    def said(node: fx.Node) -> tuple:
        return node.op, str(node.target), repr(node.args), repr(node.kwargs)
    for a, b in itertools.zip_longest(one.graph.nodes, other.graph.nodes):
        if a is None or b is None or said(a) != said(b):
            return a or b
        value, its = (each.constants.get(str(spec.target)) for each, node in ((one, a), (other, b))
                      for spec in each.graph_signature.input_specs if spec.arg.name == node.name) if (
                          a.op == "placeholder") else (None, None)
        if isinstance(value, torch.Tensor) and value is not its and not same_numbers(value, its):
            return next(iter(a.users), a)
    return None


def same_numbers(x: torch.Tensor, y: Any) -> bool:
    return isinstance(y, torch.Tensor) and x.shape == y.shape and x.dtype == y.dtype and (
        x.device.type == "meta" or any(isinstance(each, FakeTensor) for each in (x, y))
        or torch.equal(x.nan_to_num(1.5), y.nan_to_num(1.5)))


def unchanged_by_calls(kept: Kept, call: Callable, inputs: list[torch.Tensor], state: list[torch.Tensor]) -> bool:
    """Returns whether what calls leave in attributes is no more than a cache: the module itself gives the same outputs
    whatever it was called with before."""
    if any(x.device.type == "meta" or x.numel() > 1 and not any(x.stride()) for x in state):
        return False  # which have no values
    numbers = [x.detach().clone() for x in state]

    def begin() -> None:
        kept.restore()
        for x, value in zip(state, numbers):
            x.data.copy_(value)

    def output(x: list[torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(0)
        return call(x)
    others = [x.flip(0) * 0.7 if x.is_floating_point() else x.flip(0) for x in inputs]
    try:
        with torch.random.fork_rng([]):
            begin()
            first, _, last = output(inputs), output(others), output(inputs)
            begin()
            alone = output(others)
            begin()
            output(inputs)
            return torch.equal(first, last) and torch.equal(alone, output(others))
    except Exception:
        return False
    finally:
        begin()


def refuse_old_bilinear(graph: fx.Graph) -> None:
    """PyTorch 2.4 takes an interpolation by a factor like 1.2 apart into operations that compute something else."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 5):
        return
    for node in graph.nodes:
        if node.target == aten.upsample_bilinear2d.vec and any(scale % 1 for scale in node.args[3] or ()):
            raise refusal(node, f"PyTorch {torch.__version__} exports bilinear interpolation by {node.args[3]} wrongly;"
                                " 2.5 and later are right, and so are whole factors")


@contextlib.contextmanager
def whole_layers() -> Iterator[None]:
    """Turns off PyTorch's own kernels of a whole layer, which it takes in eval(), its look at the numbers of a mask
    (one that is not said to be causal is taken as it is), and an einsum's order by the sizes of all axes, also the
    batch's."""
    layers = torch.nn.modules.transformer
    look = for_this_thread(lambda mask, is_causal=None, size=None: bool(is_causal), layers._detect_is_causal_mask)
    with contextlib.ExitStack() as back:
        back.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        back.enter_context(replaced((layers, "_detect_is_causal_mask", look)))
        back.enter_context(torch.backends.opt_einsum.flags(enabled=False))
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps back what PyTorch logs and prints of an error that it raises, and 2.11's warning of its own LeafSpec."""
    logs = [log for name, log in logging.root.manager.loggerDict.items() if name.partition(".")[0] == "torch"
            and isinstance(log, logging.Logger) and not log.disabled and not os.environ.get("TORCH_LOGS")]
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stderr(said):
        warnings.filterwarnings("ignore", ".*treespec, LeafSpec", FutureWarning)
        warnings.filterwarnings("ignore", ".*assigned during export", UserWarning)
        for log in logs:
            log.disabled = True
        try:
            yield
        finally:
            for log in logs:
                log.disabled = False
    sys.stderr.write(said.getvalue())


def unfollowed(module: torch.nn.Module, error: Exception) -> Error:
    """The refusal of what torch.export does not follow, at the innermost line that is not PyTorch's."""
    why = str(error).strip().split("\n\n")[0]
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        why = ("which lines run, or a number of Python, depends on data here; gacc takes straight-line code: "
               f"torch.where(condition, a, b) chooses by elements ({why.splitlines()[0]})")
    names = {part: name for name, part in module.named_modules()}
    own, where, file, number = os.path.dirname(torch.__file__), "", None, None
    for frame, line in traceback.walk_tb(error.__traceback__):
        path, part = frame.f_code.co_filename, frame.f_locals.get("self")
        if isinstance(part, torch.nn.Module) and part in names:
            path_of = f"module `{names[part]}`" if names[part] else "the module itself"
            where = f"\n  in {path_of} ({type(part).__name__})"
            file = None
        if where and not path.startswith((own, HERE, "<")):
            file, number = path, line
            code = f"\n  {path}:{line}: {linecache.getline(path, line).strip()}"
    if file is None:
        why += "\nIt takes straight-line code whose shapes depend on the batch in their first axis alone"
    return Error(f"torch.export cannot follow the module: {why}{where}{code if file else ''}", file=file, line=number)
