"""A PyTorch module as a model: its forward, exported by torch.export, becomes a text of the IR (docs/ir.md).

What an operation becomes is a row of OPERATIONS (`operations.py`, `choices.py`, `layers.py`), or others of PyTorch that
are rows (`composed.py`). The gradients, casts, accumulation, recompute and memory are gacc's.
"""
from __future__ import annotations

import collections
import copy
import functools
import inspect
import itertools
import operator
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from . import version  # first, for it says which PyTorch there must be

import numpy as np
import torch
from torch import fx

from .._arrays import expect_batch, expect_names, is_data_set, no_batches, warn
from .._library import Error
from . import choices, documents, layers  # with `operations`, they fill OPERATIONS
from .composed import COMPOSED
from .export import Followed, exported, refusal
from .hollow import HALVES, has_values, in_f32, precision_of
from .operations import COMPLEX, repeated
from .patterns import VIEWS
from .region import OPERATIONS, Buffers, Region, alive, literal, quoted, truth, type_text
from .rotary import Rotations, Turned
from .state import LOCK, check_hooks, check_memory, overlap
from .tensor import B, Tensor, Unsupported, axes_of, extents, known, whole_constant

aten = torch.ops.aten

RUNNING = {aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit_no_training.default}
RANDOM = {aten.rand.default, aten.randn.default, aten.rand_like.default, aten.randn_like.default,
          aten.bernoulli.p, aten.native_dropout.default, aten.empty.memory_format,
          aten.empty_permuted.default, aten.empty_like.default, aten.randint.low, aten.randperm.default}
NOT_FOLDED = {*RANDOM, aten.as_strided.default}  # and those by strides, which a constant here has not
SIZED = {aten.arange.start_step, aten.slice.Tensor, aten.slice_scatter.default,
         aten.native_group_norm.default}  # which take the batch's size
# Operations of whole numbers that are largest, and least, where each operand is all at one of its ends.
BOUNDED = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.cumsum.default, aten._to_copy.default}
# Those that give elements of their operands, in another order.
MOVES = {*VIEWS, aten.unsqueeze.default, aten.squeeze.dims, aten.squeeze.dim, aten.permute.default,
         aten.expand.default, aten.clone.default, aten.alias.default, aten.slice.Tensor, aten.select.int,
         aten.cat.default, aten.repeat.default, aten.gather.default, aten.index.Tensor, aten.split_with_sizes.default,
         aten.where.self}
BITWISE = {aten.bitwise_not.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor}
TYPES = {torch.float32: "f32", torch.int64: "i32", torch.int32: "i32", torch.bool: "i32"}


class Lowering:
    """One exported program as a region."""

    def __init__(self, program: torch.export.ExportedProgram, buffers: Buffers, frozen: set[str], owners: dict,
                 names: list[str], numbers: list[int] | None = None, empty: Collection[str] = (),
                 read: Collection[str] = (), integers: Collection[str] = ()):
        """`names`: what the step calls the inputs, in their order. `numbers`: the shape of a sample's numbers of
        classes, where it is known. `empty`: buffers without values. `read`: buffers whose values a file brings;
        `integers`: those of integers."""
        self.names = iter(names)
        self.program, self.buffers, self.frozen, self.owners, self.numbers = program, buffers, frozen, owners, numbers
        self.empty, self.read, self.integers = empty, read, integers
        self.region = Region(buffers)
        self.inputs: dict[str, Tensor] = {}
        self.baked: set[str] = set()  # buffers of the module that are constants of the program
        graph = program.graph
        draw_by_chance(graph)
        results = next(n for n in graph.nodes if n.op == "output").args[0]
        specs = program.graph_signature.output_specs
        output = next(n for n, spec in zip(results, specs) if spec.kind.name == "USER_OUTPUT")
        self.check_mutations(zip(results, specs))
        self.running = {n.args[i] for n in graph.nodes if n.target in RUNNING for i in (3, 4)}
        wanted, waiting = set(), [output, *(n for n in graph.nodes if n.target in RUNNING)]
        while waiting:
            node = waiting.pop()
            if node not in wanted:
                wanted.add(node)
                waiting += node.all_input_nodes
        self.values: dict[fx.Node, Any] = {}
        self.rotations = Rotations(self.values, torch.ops.gacc.positions.default) if buffers.written else None
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        given = [n for n in graph.nodes if n.op == "placeholder" and specs[n.name].kind.name == "USER_INPUT"]
        self.unread = {name for name, n in zip(names, given) if n not in wanted}  # the output does not depend on them
        for node in graph.nodes:
            if node.op == "placeholder" and (node in wanted or node in given):
                self.values[node] = self.placeholder(node, specs[node.name])
            elif node.op == "call_function" and node in wanted:
                self.values[node] = self.result(node)
            elif node.op == "get_attr" and node in wanted:
                raise refusal(node, f"`{node.target}` is part of the program, and gacc's are straight-line code")
        self.output, self.shape = self.yielded(output)

    def check_mutations(self, results: Any) -> None:
        for node, spec in results:
            if spec.kind.name in ("USER_OUTPUT", "TOKEN") or not isinstance(node, fx.Node):
                continue
            source = node.args[0] if node.target is operator.getitem else node
            if source.target in RUNNING or str(spec.target).endswith("num_batches_tracked"):
                continue
            raise refusal(node, f"the forward changes `{spec.target}`; gacc knows running statistics of batch norms. "
                                "In eval() a part, such as a spectral norm, may change nothing")

    def placeholder(self, node: fx.Node, spec: Any) -> Tensor | None:
        kind, name = spec.kind.name, spec.target
        if kind == "PARAMETER":
            if name not in self.owners:
                raise refusal(next(iter(node.users), node), f"`{name}` is made by the forward, and gacc's step has the "
                              "parameters that the module has before it: call the module once, with a batch")
            owner = self.owners[name]
            value = self.program.state_dict[name]
            check_parameter(name, value)
            if not value.numel():
                raise refusal(next(iter(node.users)), f"`{name}` is {list(value.shape)}: it holds no number")
            shape = list(value.shape)
            x = Tensor(axes_of(shape), "f32", self.buffers.parameter(owner, value, owner in self.frozen), shape)
            x.buffer = owner
            return x
        if kind == "BUFFER" and name in self.read and node not in self.running:
            value = self.program.state_dict[name]
            owner, shape = self.owners.get(name, name), list(value.shape)
            x = Tensor(axes_of(shape), "f32", self.buffers.parameter(owner, value, frozen=True), shape)
            x.buffer = owner
            return x
        if kind == "BUFFER" and name in self.integers:
            raise refusal(next(iter(node.users)), f"it reads the buffer `{name}`, whose integers the folder's weights "
                                                  "have, and gacc's step has floats: gacc.from_torch takes the module "
                                                  "with its values")
        if kind in ("BUFFER", "CONSTANT_TENSOR"):
            if name in self.empty:
                raise refusal(next(iter(node.users)), f"it computes with the buffer `{name}`, which is on the device "
                                                      "`meta` and has no values: register it with some")
            value = self.program.constants[name] if name in self.program.constants else self.program.state_dict[name]
            if node in self.running:
                name = self.owners.get(name, name)
                x = Tensor(axes_of(list(value.shape)), "f32", self.buffers.statistic(name, value), list(value.shape))
                x.buffer = name
                return x
            if kind == "BUFFER":
                self.baked.add(name)
            else:
                self.check_constant(node, name, value)
            return known(value)
        if kind != "USER_INPUT":
            return None
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        axes = [[(B, True)], *axes_of(list(value.shape[1:]))]
        name = next(self.names)
        x = Tensor(axes, TYPES[value.dtype], quoted("%", name), [B, *value.shape[1:]])
        self.inputs[name] = x
        self.region.used.add(name)
        if x.dtype == "i32":
            self.region.numbers[x.operand], x.sources = name, (frozenset([name]), None)
        if value.dtype is torch.bool and node.users:
            self.region.hint = f"{name}.truth"
            x = truth(self.region, x)
            x.bounds = 0, 1
        return x

    def check_constant(self, node: fx.Node, name: str, value: torch.Tensor) -> None:
        """Refuses a tensor outside of the module's state that was made of a trained parameter, or is one's memory."""
        trained = {n: p for n, p in self.program.state_dict.items()
                   if n in self.owners and self.owners[n] not in self.frozen and isinstance(p, torch.nn.Parameter)}
        shared = next((n for n, p in trained.items() if overlap(value, p)), None)
        if shared or value.grad_fn is not None:
            of = f"lies in the memory of `{shared}`" if shared else "was computed with a gradient"
            raise refusal(next(iter(node.users), node), f"`{name}` {of} outside of the forward, and would stay as it "
                          "is while the parameter learns: compute it in the forward")

    def resolved(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda n: self.values[n])

    def result(self, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            return value
        if node.target is operator.getitem:
            source, which = node.args
            part = self.values[source][which]
            moved = source.target in RUNNING and which > 0
            if part is None or (moved and any(user.target not in RUNNING | {"output"} for user in node.users)):
                more = ("; running statistics are for evaluations: in training a forward does not read them"
                        if moved else "")
                raise refusal(node, f"gacc has no result {which} of `{source.target}`{more}")
            return part
        if lost := next((n for n in node.all_input_nodes if self.values[n] is None), None):
            raise refusal(node, f"`{node.target}` takes `{lost.name}`, which is no tensor of gacc's")
        arguments, named = self.resolved(node.args), self.resolved(node.kwargs)
        first = value[0] if isinstance(value, (tuple, list)) else value
        if not isinstance(first, torch.Tensor):
            raise refusal(node, f"gacc has no `{node.target}`")
        numbers = [a for a in (*arguments, *named.values())
                   if isinstance(a, (torch.SymInt, torch.SymFloat, torch.SymBool))]
        if numbers and node.target not in SIZED:
            of_data = any(str(s).startswith(("u", "zu")) for a in numbers for s in a.node.expr.free_symbols)
            raise refusal(node, f"`{node.target}` computes with " + (
                "a number of Python that is read from a tensor, as by .item(): give the tensor itself" if of_data else
                "the number of samples, which is known only at the launch; gacc's samples are independent, and the "
                "loss is their mean by itself"))
        if (folded := self.folded(node)) is not None:
            return folded
        pairs = [isinstance(x := n.meta.get("val"), torch.Tensor) and x.is_complex() for n in node.all_input_nodes]
        of_pairs = first.dtype is torch.complex64 or any(pairs)
        if of_pairs and (node.target not in COMPLEX or node.target is aten.mul.Tensor and not all(pairs)):
            raise refusal(node, f"`{node.target}` computes with complex numbers, of which gacc has those of rotary "
                                "embeddings: view_as_complex, polar, their products, view_as_real")
        if first.dtype not in TYPES and not of_pairs:
            raise refusal(node, f"`{node.target}` makes {str(first.dtype).removeprefix('torch.')}, and gacc computes "
                                "in f32 (precision= casts), its numbers in i32")
        if (number := self.number(node)) is not None:
            return Tensor([repeated(*size) for size in extents(first.shape)], TYPES[first.dtype], constant=number)
        build = (COMPLEX if of_pairs else OPERATIONS).get(node.target)
        if build is None:
            more = ("; what is drawn outside of dropout is an input, as eps in mean + eps * std"
                    if node.target in RANDOM else " with these options" if node.target in COMPOSED else "")
            raise refusal(node, f"gacc has no `{node.target}`{more}")
        region = self.region
        region.hint, region.boolean = node.name, first.dtype is torch.bool
        region.dtype = TYPES.get(first.dtype, "f32")
        try:
            if region.documents is not None:
                documents.check(node, self.values, region.documents[2])
            if node.target in BITWISE and not (region.boolean or self.bits(node)):
                raise Unsupported("it takes bits of whole numbers; gacc knows it of torch.bool: compare first, as in "
                                  "x != 0, or use torch.logical_and and its like")
            region.sizes = extents(first.shape) + [(2, False)] * first.is_complex()
            out = build(region, *arguments, **named)
            if isinstance(out, Tensor):
                out = truth(region, out) if region.boolean else out
                if self.rotations is not None and (turned := self.rotations.of(node)):
                    region.turned[out.operand] = Turned(self.values[turned[0]], out.axes, turned[1])
            for x in out if isinstance(out, list) else [out]:
                if isinstance(x, Tensor):
                    x.bounds, x.sources = x.bounds or self.bounds(node), x.sources or self.sources(node)
            return out
        except Unsupported as why:
            raise refusal(node, f"gacc cannot say this `{node.target}`: {why}") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as why:
            raise refusal(node, f"gacc cannot say this `{node.target}` of these arguments "
                                f"({type(why).__name__}: {why})") from why

    def folded(self, node: fx.Node) -> Any:
        """Returns the result where it is known without parameters and data, else None."""
        given = [self.values[n] for n in node.all_input_nodes]
        if node.target in NOT_FOLDED or any(not isinstance(x, Tensor) or x.constant is None for x in given):
            return None
        if self.buffers.written and node.target in (aten.cos.default, aten.sin.default) and given[0].constant.any():
            return None  # tables of rotary positions are made where they are read
        batched = any(x.batched() for x in given)

        def computed(samples: int) -> Any:
            def whole(n: fx.Node) -> torch.Tensor:
                x, dtype = whole_constant(self.values[n], samples).contiguous(), n.meta["val"].dtype
                return torch.view_as_complex(x) if dtype.is_complex else x.to(dtype)
            return applied(node, whole)
        try:
            if not batched:
                return torch.utils._pytree.tree_map(known, computed(0))
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor) or value.is_complex():
                return None
            return same_for_each(extents(value.shape), computed(2), computed(3))
        except (Unsupported, NotImplementedError, RuntimeError):  # the operation's own row says more
            return None

    def bounds(self, node: fx.Node) -> tuple[int, int] | None:
        """Returns what the whole numbers of a result lie between, where those of its operands are known to."""
        if self.region.boolean or self.bits(node):
            return 0, 1
        if node.target is aten.clamp.default and len(node.args) == 3 and all(isinstance(n, int) for n in node.args[1:]):
            return node.args[1:]
        nodes = node.all_input_nodes
        given = [ends_of(self.values[n]) for n in nodes]
        if moved := self.moved(node):
            return joined([ends_of(x) for x in moved])
        if node.target not in BOUNDED or None in given or self.region.dtype != "i32":
            return None
        if node.target == aten.mul.Tensor and any(low < 0 for low, _ in given):
            return None

        def full(n: fx.Node) -> torch.Tensor:
            value = n.meta["val"]
            return torch.full([2 if batch else size for size, batch in extents(value.shape)], at[n], dtype=value.dtype)
        corners = []
        for at in (dict(zip(nodes, ends)) for ends in itertools.product(*given)):
            corners += applied(node, full).aminmax()
        return int(min(corners)), int(max(corners))

    def bits(self, node: fx.Node) -> bool:
        """Whether the whole numbers that it joins are 0 and 1."""
        ends = [ends_of(self.values[n]) for n in node.all_input_nodes]
        return node.target in BITWISE and len(ends) == 2 and all(each and 0 <= each[0] <= each[1] <= 1 for each in ends)

    def moved(self, node: fx.Node) -> list[Any]:
        """The operands of which each whole number of the result is an element."""
        if self.region.dtype != "i32" or self.region.boolean or node.target not in MOVES:
            return []
        nodes = node.all_input_nodes
        return [self.values[n] for n in (node.args[1:] if node.target is aten.where.self else
                                         nodes if node.target is aten.cat.default else nodes[:1])]

    def sources(self, node: fx.Node) -> tuple[frozenset[str], tuple[int, int] | None] | None:
        moved = self.moved(node)
        given = [(x.sources or (frozenset(), ends_of(x))) if isinstance(x, Tensor) and x.dtype == "i32" else
                 (frozenset(), None) for x in moved]
        of = frozenset().union(*(names for names, _ in given))
        if not of or (frozenset(), None) in given:
            return None
        return of, joined([ends for _, ends in given if ends])

    def number(self, node: fx.Node) -> torch.Tensor | None:
        """Returns the one number that a pointwise operation makes of numbers; None where it makes several."""
        if torch.Tag.pointwise not in node.target.tags:
            return None
        values = [self.values[n] for n in node.all_input_nodes]
        constants = [v.constant if isinstance(v, Tensor) else None for v in values]
        if not constants or any(c is None or c.numel() != 1 for c in constants):
            return None
        return applied(node, self.scalar)

    def scalar(self, node: fx.Node) -> torch.Tensor:
        return self.values[node].constant.reshape(()).to(node.meta["val"].dtype)

    def yielded(self, node: fx.Node) -> tuple[str, list]:
        x = self.values[node]
        region = self.region
        region.hint = "output"
        if not isinstance(x, Tensor) or x.dtype != "f32" or not x.axes or x.axes[0] not in ([(B, True)], [(B, False)]):
            raise refusal(node, "the output must be floats, [batch, ...]")
        try:
            x = region.real(x)
            shape = region.plain(x)
            if self.numbers is not None and shape[1:-1] != self.numbers == shape[2:]:  # classes are on axis 1
                x = region.permute(x, [0, *range(2, x.rank), 1])
                shape = region.plain(x)
            operand = region.shaped(x, shape)
        except Unsupported as why:
            raise refusal(node, f"gacc cannot give this as the output: {why}") from None
        if operand in (given.operand for given in self.inputs.values()):
            operand = region.emit("mul", [operand, "1.0"], ("f32", shape))
        return operand, shape


def ends_of(x: Any) -> tuple[int, int] | None:
    """The bounds of whole numbers, where they are known."""
    known_numbers = isinstance(x, Tensor) and x.dtype == "i32" and x.constant is not None and x.constant.numel()
    return (int(x.constant.min()), int(x.constant.max())) if known_numbers else getattr(x, "bounds", None)


def joined(ends: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    return None if None in ends or not ends else (min(low for low, _ in ends), max(high for _, high in ends))


def draw_by_chance(graph: fx.Graph) -> None:
    """floor(p + rand) is 1 with the chance p: so the drop paths of transformers say it."""
    for node in graph.nodes:
        total = node.args[0] if node.target is aten.floor.default else None
        drawn, chance = total.args[:2] if total is not None and total.target is aten.add.Tensor else (None, None)
        if isinstance(drawn, fx.Node) and drawn.target is aten.rand.default and (
                isinstance(chance, float) and 0 <= chance <= 1):
            with graph.inserting_before(drawn):
                like = graph.call_function(aten.empty.memory_format, drawn.args)
            like.meta = drawn.meta
            node.target, node.args = aten.bernoulli.p, (like, chance)


def applied(node: fx.Node, number: Callable[[fx.Node], torch.Tensor]) -> Any:
    """What PyTorch's operation gives of numbers in the place of its operands."""
    return node.target(*fx.node.map_arg(node.args, number), **fx.node.map_arg(node.kwargs, number))


def same_for_each(sizes: list[tuple[int, bool]], two: torch.Tensor, three: torch.Tensor) -> Tensor | None:
    """A constant repeated by the batch, of its numbers for two samples and for three; None where samples differ."""
    batch = [i for i, (_, batched) in enumerate(sizes) if batched]
    if len(batch) != 1 or sizes[batch[0]][0] != 1:
        return None
    one = two.narrow(batch[0], 0, 1)
    if not all(torch.equal(one.expand_as(x), x) for x in (two, three)):
        return None
    x = known(one)
    x.axes[batch[0]] = repeated(1, True)
    return x


def check_parameter(name: str, value: torch.Tensor) -> None:
    if torch.nn.parameter.is_lazy(value):
        raise Error(f"`{name}` has no shape yet: call the module once, with a batch")
    if value.dtype != torch.float32 and value.dtype not in HALVES:
        raise Error(f"`{name}` is {str(value.dtype).removeprefix('torch.')}; gacc takes parameters in f32, bf16 and "
                    "f16: give module.float(), and say precision=\"bf16\" or \"f16\" for what they compute in")


def check_input(name: str, x: Any) -> torch.Tensor:
    try:
        x = torch.as_tensor(x).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the input `{name}` is {x!r:.60}, which is no array: {error}") from None
    if x.dtype not in TYPES:
        more = "; bytes are given as floats, as the module takes them" if x.dtype == torch.uint8 else ""
        raise Error(f"the input `{name}` is {str(x.dtype).removeprefix('torch.')}; it may be float32, int64, int32 "
                    f"or bool{more}")
    if x.ndim < 1 or len(x) < 1:
        raise Error(f"the input `{name}` is {list(x.shape)}; an example has samples in its first axis")
    return x


class ModuleState:
    """Between the names of a module's state_dict() and those of the step.

    A tied parameter is there once, a buffer that is read as a constant not at all, and constants are there besides.
    `values` has those of the step that the module has numbers of, in f32.
    """

    def __init__(self, module: torch.nn.Module, buffers: Buffers, owners: dict[str, str], baked: set[str],
                 origin: torch.nn.Module):
        """`baked`: buffers that are constants of the step. `origin`: the module itself, of which `module` may be a
        copy."""
        self.owners, self.baked = owners, baked
        state = module.state_dict()
        given = {name: state.get(name, value).detach() for name, value in buffers.values.items()}
        self.values = {name: value.cpu().float().clone() for name, value in given.items() if has_values(value)}
        self.own = list(given)  # of the step
        self.complete = len(self.values) == len(given)  # not of a module on `meta`
        self.rest = {name: copied(value) for name, value in state.items() if owners.get(name, name) not in given}
        self.turned: set[str] = set()  # those of the step that lie transposed in the module
        self.dtypes = {name: value.dtype for name, value in state.items() if isinstance(value, torch.Tensor)}
        self.names = list(state)
        self.versions = state._metadata  # of the modules, by which they load
        self.module = weakref.ref(origin)
        self.stamps: dict[str, tuple[int, int]] = {}  # of the module's parameters, as gacc.train wrote them

    def written(self, module: torch.nn.Module) -> None:
        """Says that the module has what a session has learnt."""
        if module is self.module():
            self.stamps = stamps_of(module)

    def changed(self) -> bool:
        """Returns whether the module is still there, and has parameters of other numbers than the step. Those that
        gacc.train wrote into it are none."""
        module = self.module()
        if module is None or self.stamps == stamps_of(module):
            return False
        return any(has_values(p) and (name not in self.values or not torch.equal(p.detach().cpu().float(),
                                                                                 self.values[name]))
                   for name, p in module.named_parameters() if name in self.own)

    def of_step(self, arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Returns what load_state_dict(strict=True) takes."""
        def own(name: str) -> torch.Tensor:
            value = torch.as_tensor(arrays[self.owners.get(name, name)]).to(self.dtypes[name])
            return value.t().contiguous() if name in self.turned else value
        state = collections.OrderedDict((name, self.rest[name] if name in self.rest else own(name))
                                        for name in self.names)
        state._metadata = self.versions
        return state

    def to_step(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The parameters that a session has, of a state_dict(), and what of it the step does not read, for `rest`."""
        if sorted(given) == sorted(self.own):
            return dict(given), self.rest
        expect_names(given, self.names, "module")
        rest = {name: like_before(name, given[name], value) for name, value in self.rest.items()}
        for name in sorted(self.baked & rest.keys()):
            if not torch.equal(rest[name], self.rest[name]):
                raise Error(f"the buffer `{name}` has other numbers than the module had, and they are constants of the "
                            "step: load them into the module, and compile it again by from_torch")
        for name, owner in self.owners.items():
            if name != owner and name in given and owner in given and not torch.equal(
                    *(torch.as_tensor(given[n]).cpu() for n in (name, owner))):
                raise Error(f"`{owner}` and `{name}` are one parameter of the module, and have different numbers here")
        values = {name: given.get(name, self.values.get(name)) for name in self.own}
        return values | {name: values[name].T for name in self.turned}, rest


def stamps_of(module: torch.nn.Module) -> dict[str, tuple[int, int]]:
    """Where each parameter lies, and how often it was written."""
    return {name: (p.data_ptr(), p._version) for name, p in module.named_parameters()}


def copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    return value.detach().cpu().clone() if has_values(value) else value


def like_before(name: str, given: Any, before: Any) -> Any:
    """A tensor of a state_dict() as a copy of the type and the shape that it had; other state as it was."""
    if not isinstance(before, torch.Tensor):
        if given != before:
            raise Error(f"`{name}` is other state than the module had, which is part of the step: load it into the "
                        "module, and compile it again by from_torch")
        return before
    value = torch.as_tensor(given).detach().cpu().to(before.dtype)
    if value.shape != before.shape:
        raise ValueError(f"{name} is {list(value.shape)}, and {list(before.shape)} in the module")
    return value.clone()


def moving(module: torch.nn.Module) -> set[str]:
    """The names of what training changes: trained parameters and running statistics."""
    statistics = {f"{name}.{kind}" if name else kind for name, part in module.named_modules()
                  if isinstance(part, torch.nn.modules.batchnorm._NormBase) for kind in ("running_mean", "running_var")}
    return statistics | {name for name, p in module.named_parameters() if p.requires_grad}


def region_text(kind: str, lowering: Lowering, inputs: list[str]) -> str:
    lines = [*alive(lowering.region.lines, lowering.output), f"yield output {lowering.output}"]
    return f"  {kind}({', '.join(inputs)}) {{\n    " + "\n    ".join(lines) + "\n  }\n"


def text_of(module: torch.nn.Module, inputs: Mapping[str, Any], *, target: str | None = None, classes: bool = False,
            name: str | None = None, output: int | str | None = None,
            settings: Callable[[Collection[str]], Iterable[str]] | None = None) -> tuple[str, ModuleState]:
    """The text of the IR, without a loss: its regions yield the output. And what the module's parameters are in it.

    target    the input that a loss compares with; where it is no example, it gets the output's shape
    classes   the target is the number of a class, on the output's last axis, or on axis 1 where an example says so
    settings  gives those of the text, as "load.prefix = \"\"", by the names of the parameters that the step reads,
              where it is to hold all that the step needs but the parameters
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"the module is {module!r:.60}, which is no torch.nn.Module")
    if hasattr(module, "_orig_mod"):
        raise TypeError("the module is one of torch.compile; give the module itself, for gacc is the compiler")
    if not isinstance(inputs, Mapping) or not inputs:
        raise TypeError("the inputs are examples by the names of the forward's arguments, as in "
                        f"{{{', '.join(f'{n!r}: {n}' for n in taken_by(module)) or '...'}}}")
    with LOCK:
        return _text_of(module, inputs, target, classes, name, output, settings)


def _text_of(module: torch.nn.Module, inputs: Mapping[str, Any], target: str | None, classes: bool, name: str | None,
             output: int | str | None, settings: Callable[[Collection[str]], Iterable[str]] | None
             ) -> tuple[str, ModuleState]:
    check_hooks(module)
    origin = module
    known_as = {n: x for n, x in torch.nn.Module.state_dict(module, keep_vars=True).items()
                if isinstance(x, torch.Tensor)}
    first: dict[int, str] = {}
    owners = {n: first.setdefault(id(p), n) for n, p in known_as.items()}
    frozen = {n for n, p in known_as.items() if not p.requires_grad}
    for n, p in module.named_parameters(remove_duplicate=False):
        owners.setdefault(n, n)
        check_parameter(n, p)
    check_memory({**known_as, **dict(module.named_parameters()), **dict(module.named_buffers())}, owners,
                 moving(module))
    for n, part in module.named_modules():
        if part.training and getattr(part, "momentum", 0) is None and getattr(part, "running_mean", None) is not None:
            raise Error(f"`{n}` ({type(part).__name__}) has momentum=None, a mean over all batches so far; gacc moves "
                        "running statistics by the same share in each: give it a momentum, such as 0.1")
    if any(p.device.type not in ("cpu", "meta") for p in known_as.values()):
        module = copy.deepcopy(module).cpu()
    examples = {n: check_input(n, x) for n, x in inputs.items()}
    taken = taken_by(module)
    bound = bound_to(module, [n for n in examples if n != target or n in taken])
    bound = bound or bound_to(module, list(examples))  # the target is an input, too, as of an autoencoder
    if bound is None:
        raise Error(f"the forward takes {', '.join(taken) or 'nothing'}, and the inputs are {', '.join(examples)}"
                    + (f", of which `{target}` is the target" if target in examples else ""))
    arguments, names = bound
    forward = {argument: examples[n] for argument, n in zip(arguments, names)}
    places = list(itertools.takewhile(forward.__contains__, by_place(module)))  # as hooks of the module get them
    given, named = {n: forward.pop(n) for n in places}, forward
    modes = {m: m.training for m in module.modules()}
    buffers = Buffers(known_as, settings is not None)
    numbers = list(examples[target].shape[1:]) if classes and target in examples else None
    # Those that a state_dict() has, and that only a file has values of.
    of_file = {n: x for n, x in known_as.items() if settings is not None and not isinstance(x, torch.nn.Parameter)}
    read = {n for n, x in of_file.items() if x.dtype.is_floating_point and not has_values(x)}
    integers = {n for n, x in of_file.items() if not x.dtype.is_floating_point}

    def lowered(trains: bool) -> Lowering:
        with in_f32(module) as empty:
            program = exported(module, given, named, output, trains, settings is not None)
            return Lowering(program, buffers, frozen, owners, names, numbers, empty, read, integers)
    try:
        try:
            step = lowered(True)
        except Error as error:
            axis = next((n for n, m in module.named_modules() if getattr(m, "batch_first", True) is False), None)
            if axis is not None and "along the batch" in str(error):
                error.args = (f"{error}\n`{axis}` has batch_first=False, and takes samples on its second axis; gacc's "
                              "are on the first: make it with batch_first=True",)
            if all(examples[n].ndim == 1 for n in names):
                count = len(examples[names[0]])
                error.args = (f"{error}\nThe input `{names[0]}` is {[count]}: {count} samples of one number each. The "
                              f"first axis of an example is samples; one of {count} numbers is {[1, count]}",)
            raise
        evaluated = step
        if any(modes.values()) or Followed.asked:
            module.eval()
            evaluated = lowered(False)
    finally:
        for m, training in modes.items():
            m.training = training
    if target in step.unread:
        warn(f"the forward takes `{target}`, and its output does not depend on it: the loss compares the two "
             "element by element, where that of a model of transformers takes the next token")
    given = [f"{quoted('%', n)} : {type_text(x.dtype, [B, *examples[n].shape[1:]])}" for n, x in step.inputs.items()]
    if target is not None and target not in step.inputs:
        if target in examples:
            dtype, shape = TYPES[examples[target].dtype], list(examples[target].shape[1:])
        else:
            dtype, shape = ("i32", step.shape[1:-1]) if classes else ("f32", step.shape[1:])
        given.append(f"{quoted('%', target)} : {type_text(dtype, [B, *shape])}")
    title = name or re.sub(r"[^A-Za-z0-9_.-]", "-", type(module).__name__)
    said = "".join(f"  set {each}\n" for each in (
        *(settings(buffers.values) if settings else ()),
        *(f"inputs.{n}.range = {count}" for n, count in buffers.ranges.items())))
    order = [line for kind in ("state", "param", "accum") for n, line in buffers.lines.items() if line.startswith(kind)]
    for n in buffers.values:
        buffers.values[n] = known_as.get(n, buffers.values[n])
    start = "".join(f"    {start_of(n, value)}\n" for n, value in buffers.values.items())
    text = (f"module {quoted('@', title)} phase(model) {{\n{said}  " + "\n  ".join(order) + "\n\n"
            + f"  init {{\n{start}  }}\n\n" + region_text("step", step, given) + "\n"
            + region_text("eval", evaluated, given) + "}\n")
    return text, ModuleState(module, buffers, owners, step.baked | evaluated.baked, origin)


def bound_to(module: torch.nn.Module, names: list[str]) -> tuple[list[str], list[str]] | None:
    """The forward's arguments that inputs of these names are, and the names in their order; None where they do not
    fit."""
    taken = taken_by(module)
    if all(n in taken for n in names):
        arguments = names = sorted(names, key=taken.index)
    else:  # other names: in the order of the forward's, or as keywords that it passes on
        arguments = taken[:len(names)] if len(taken) >= len(names) else names
    try:
        inspect.signature(module.forward).bind(**dict.fromkeys(arguments))
    except TypeError:
        return None
    return (arguments, names) if len(arguments) == len(names) else None


def start_of(name: str, value: torch.Tensor) -> str:
    """The op that starts a parameter: by the number that all elements are, or 0 where they differ and the session
    writes them. What has no values starts as layers do: matrices are drawn, weights of norms are 1."""
    at, number = quoted("@", name), 0.0
    if has_values(value):
        flat = value.detach().reshape(-1)
        number = flat[0].item() if len(flat) and bool((flat == flat[0]).all()) else 0.0
    elif name.endswith("lora_A.weight"):
        return drawn(at, "uniform", bound=value.shape[-1] ** -0.5)
    elif value.dim() > 1 and not name.endswith("lora_B.weight"):
        return drawn(at, "normal", std=0.02)
    elif value.dim() == 1 and name.endswith("weight"):
        number = 1.0
    return f"fill {at} {{value = {literal(number, 'f32')}}}"


def drawn(at: str, how: str, **amount: float) -> str:
    """The op that draws a parameter, by a stream that its name gives."""
    stream = functools.reduce(lambda sum, c: (sum ^ c) * 16777619 % 2**32, at.strip('@"').encode(), 2166136261)
    stream -= 2**32 * (stream >= 2**31)
    (key, number), = amount.items()
    return f"random.{how} {at}, @seed.low, @seed.high {{{key} = {literal(number, 'f32')}, stream = {stream}}}"


def taken_by(module: torch.nn.Module) -> list[str]:
    """The arguments of the forward that have names."""
    return [name for name, each in inspect.signature(module.forward).parameters.items()
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def by_place(module: torch.nn.Module) -> list[str]:
    """Those of them that need no name."""
    return [name for name, each in inspect.signature(module.forward).parameters.items()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def examples_of(module: torch.nn.Module, loader: Any, model: Mapping[str, Any]) -> dict[str, Any]:
    """The first batch by names: of a tuple those of the forward's arguments, then the target's."""
    batch = next(iter(loader), empty := object())
    if batch is empty:
        raise ValueError("the loader has no batch, and a module is exported with one")
    loss = model.get("loss")
    target = model.get("target") or (loss.get("target") if isinstance(loss, Mapping) else None) or "target"
    names = [name for name in taken_by(module) if name != target]
    expect_batch(batch, [*names, target])
    firsts = {tuple(np.shape(it)[:1]) for it in (batch.values() if isinstance(batch, Mapping) else batch)}
    if is_data_set(loader) and (len(firsts) > 1 or () in firsts):
        raise no_batches(loader)
    if names and not isinstance(batch, Mapping) and len(batch) == 1:
        raise ValueError(f"a batch has one array; the forward takes {', '.join(names)}, and the loss the target "
                         f"`{target}`: it is ({', '.join([*names, target])})")
    return dict(batch) if isinstance(batch, Mapping) else dict(zip([*names[:len(batch) - 1], target], batch))
