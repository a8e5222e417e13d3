"""The forward of a module in core ATen, by torch.export, and refusals with a module and a line of Python."""
from __future__ import annotations

import contextlib
import functools
import io
import linecache
import logging
import operator
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.backends.opt_einsum
import torch.utils.checkpoint
from torch import fx
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._pytree import tree_map

from .._library import Error
from .composed import COMPOSED, quantile
from .layers import attention, instance_norm, rms_norm
from .region import OPERATIONS, Region
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
LIBRARY.impl("detached", torch.empty_like, "Meta")
OPERATIONS[torch.ops.gacc.detached.default] = Region.detached

DETACH = {torch.detach, torch.Tensor.detach, torch.Tensor.data.__get__}
HOOKS = {  # what would change a gradient unseen, and what torch.export says nothing useful of
    torch.Tensor.data.__set__: "x.data = y gives a tensor other numbers unseen by the export: compute with y itself",
    torch.Tensor.detach_: "detach_() works in place: say x = x.detach()",
    torch.Tensor.register_hook: "a hook of a tensor changes its gradient, and gacc makes gradients itself",
    torch.autograd.grad: "it takes a gradient in the forward, and gacc makes gradients itself",
    torch._VF._pack_padded_sequence: "packed sequences have lengths that are data: give the padded ones, and take each "
                                     "sample's last output by y[torch.arange(len(x)), lengths - 1]"}


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
        return (rows * there + (~there) * -3e38).amax(1) * there.any(1)
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


@contextlib.contextmanager
def followed(module: torch.nn.Module, output: int | str | None, trains: bool) -> Iterator[None]:
    """Runs the module's forward, and nothing else, in the mode; it gives the one output."""
    forward, enabled, apply = module.forward, torch.is_grad_enabled, vars(torch.autograd.Function)["apply"]
    kept = [(part, dict(vars(part))) for part in module.modules()]  # without what the forward leaves in them

    @functools.wraps(forward)
    def in_mode(*args: Any, **kwargs: Any) -> Any:
        blind = any(isinstance(x, FunctionalTensor) and x.requires_grad and not x.clone().requires_grad
                    for x in module.parameters())
        mode = Followed(next(x.shape[0] for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), blind)

        def looked() -> bool:
            Followed.asked = True
            return trains and not mode.ended
        before, torch.is_grad_enabled = set_grad(True), looked  # what is set there is not PyTorch's
        try:
            with mode:
                return chosen(forward(*args, **kwargs), output)
        finally:
            torch.is_grad_enabled = enabled
            set_grad(before)

    def applied(kind: type, *args: Any) -> Any:
        if kind is torch.utils.checkpoint.CheckpointFunction:
            return args[0](*args[2:])  # which is computed again or not as the plan has it
        if kind.__name__ == "_NoopSaveInputs":  # of PyTorch 2.4, the same without reentry
            return args[0]
        raise Unsupported(f"`{kind.__name__}` is a torch.autograd.Function with a gradient of its own, and gacc makes "
                          "gradients itself")
    module.forward, torch.autograd.Function.apply = in_mode, classmethod(applied)
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply
        for part, attributes in kept:
            vars(part).clear()
            vars(part).update(attributes)


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
    return Error(f"{why}\n  in {where}", file=file, line=line)


def exported(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor],
             output: int | str | None, trains: bool = True) -> torch.export.ExportedProgram:
    """The forward in core ATen, with one output and its batch a symbol. `trains`: what torch.is_grad_enabled() says."""
    Followed.asked = False
    batch = torch.export.Dim("batch", min=2)
    several = {name: (x if len(x) > 1 else x.expand(2, *x.shape[1:]).contiguous()) for name, x in inputs.items()}
    try:
        with torch.no_grad(), quiet(), whole_layers():
            with torch.enable_grad(), followed(module, output, trains):
                program = torch.export.export(module, (), kwargs=several,
                                              dynamic_shapes={name: {0: batch} for name in several}, strict=False)
            table = getattr(torch.export, "default_decompositions", torch._decomp.core_aten_decompositions)()
            for name in KEPT:
                table.pop(operator.attrgetter(name if "." in name else name + ".default")(aten), None)
            table.update(COMPOSED)
            refuse_old_bilinear(program.graph)
            return program.run_decompositions(table)
    except Error:
        raise
    except Exception as error:
        raise unfollowed(module, error) from error


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
    fast, layers = torch.backends.mha.get_fastpath_enabled(), torch.nn.modules.transformer
    look = layers._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    try:
        with torch.backends.opt_einsum.flags(enabled=False):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        layers._detect_is_causal_mask = look


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
