"""Blocks of a module that are alike, as the layers of a language model: the export follows the first of them. The
others are one operation each in its graph, and then copies of what the first has become, with their own parameters."""
from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_flatten, tree_unflatten

LIBRARY = torch.library.Library("gacc", "FRAGMENT")
LIBRARY.define("mark(Tensor x, int region, int place) -> Tensor")  # an operand of the first block, or ~place: a result
LIBRARY.impl("mark", lambda x, *_: torch.empty_like(x), "Meta")
LIBRARY.define("block(Tensor[] given, int region, str path, int[] like) -> Tensor[]")  # results are like operands
LIBRARY.impl("block", lambda given, region, path, like: [torch.empty_like(given[i]) for i in like], "Meta")
mark, block = torch.ops.gacc.mark.default, torch.ops.gacc.block.default

NUMBERS = re.compile(r"(layer|block)_?(idx|id|index|number|num|i)|idx|index")  # attributes that count the blocks
OF_MODULES = set(vars(torch.nn.Module()))
PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device)
MOST = 1 << 20  # elements of a buffer that is compared


class Number:
    """The number of a block, which notes that somebody looks at it."""

    def __init__(self, value: int):
        self.value, self.used = value, False

    def looked(self, name: str, *args: Any) -> Any:
        self.used = True
        return getattr(self.value, name)(*args)


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "mod", "floordiv", "truediv", "eq", "ne", "lt", "le", "gt",
              "ge", "hash", "index", "int", "float", "bool", "str", "repr", "format", "neg", "pow", "and"):
    setattr(Number, f"__{_name}__", functools.partialmethod(Number.looked, f"__{_name}__"))


def frozen(value: Any) -> Any:
    """What two blocks must have alike, as something that can be compared."""
    if isinstance(value, PLAIN):
        return type(value).__name__, value
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return tuple((key, frozen(each)) for key, each in value.items())
    if isinstance(value, functools.partial):
        return frozen((value.func, value.args, value.keywords))
    return id(value)  # the same object, as a configuration


class Repeats:
    """The blocks of a module, while it is exported."""

    def __init__(self, module: torch.nn.Module):
        self.regions: dict[Any, tuple[int, Any, list[int]] | None] = {}  # by what is alike: number, results, and what
        # operand each is like; None where no other block is like the first
        self.paths: list[str] = []  # of the first block of each region
        self.shares = Counter(id(p) for part in module.modules() for p in part.parameters(recurse=False))
        self.parts: dict[str, torch.nn.Module] = {}
        for path, each in module.named_modules():
            inside = any(path.startswith(other + ".") for other in self.parts)
            if isinstance(each, torch.nn.ModuleList) and len(each) > 2 and not inside:
                self.parts |= {f"{path}.{name}": part for name, part in each.named_children()}
        self.signatures = {path: self.signature(part) for path, part in self.parts.items()}

    def signature(self, part: torch.nn.Module) -> Any:
        """None where a block is like no other one."""
        out: list[Any] = []
        for name, each in part.named_modules():
            own = list(each.named_parameters(recurse=False))
            buffers = list(each.named_buffers(recurse=False))
            if each._forward_hooks or each._forward_pre_hooks or any(self.shares[id(p)] > 1 for _, p in own) or any(
                    b.numel() > MOST for _, b in buffers):
                return None
            attributes = {key: "number" if is_number(key, value) else frozen(value)
                          for key, value in vars(each).items() if key not in OF_MODULES}
            out.append((name, type(each), each.training, *((n, p.shape, p.dtype, p.requires_grad) for n, p in own),
                        *((n, b.shape, b.dtype, b.numpy().tobytes()) for n, b in buffers), *attributes.items()))
        return tuple(out)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        self.regions, self.paths = {}, []
        kept = [(part, vars(part).get("forward")) for part in self.parts.values()]
        for path, part in self.parts.items():
            part.forward = functools.partial(self.call, path, part.forward)
        try:
            yield
        finally:
            for part, forward in kept:
                del part.forward
                if forward is not None:
                    part.forward = forward

    def call(self, path: str, forward: Any, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        given = [leaves[i] for i in places]
        key = (self.signatures[path], str(spec), tuple(places), tuple((str(x.shape), x.dtype) for x in given),
               frozen([x for x in leaves if not isinstance(x, torch.Tensor)]))
        if self.signatures[path] is None or not given or self.regions.get(key, ()) is None:
            return forward(*args, **kwargs)  # it is followed by itself
        if key not in self.regions:
            return self.first(path, key, forward, leaves, spec, places)
        number, results, like = self.regions[key]
        trained = [p for p in self.parts[path].parameters() if p.requires_grad][:1]  # then the results have gradients
        made = iter(block([*given, *trained], number, path, like))
        out, spec = results
        return tree_unflatten([next(made) if x is torch.Tensor else x for x in out], spec)

    def first(self, path: str, key: Any, forward: Any, leaves: list, spec: Any, places: list[int]) -> Any:
        self.regions[key] = None
        number, part = len(self.paths), self.parts[path]
        self.paths.append(path)
        for place, i in enumerate(places):
            leaves[i] = mark(leaves[i], number, place)
        versions = [leaves[i]._version for i in places]
        args, kwargs = tree_unflatten(leaves, spec)
        before = [(each, dict(vars(each))) for each in part.modules()]
        numbers = [(each, name, value) for each, all_of in before for name, value in all_of.items()
                   if is_number(name, value)]
        watched = [Number(value) for *_, value in numbers]
        for (each, name, _), number_of in zip(numbers, watched):
            setattr(each, name, number_of)
        try:
            out = forward(*args, **kwargs)
        finally:
            for each, name, value in numbers:
                setattr(each, name, value)
        results, its_spec = tree_flatten(out)
        like = [next((at for at, i in enumerate(places) if x.shape == leaves[i].shape and x.dtype == leaves[i].dtype),
                     None) for x in results if isinstance(x, torch.Tensor)]
        if versions != [leaves[i]._version for i in places]:
            raise Changed
        same = (not any(n.used for n in watched)
                and all(vars(each).keys() == all_of.keys() and all(vars(each)[k] is v for k, v in all_of.items())
                        for each, all_of in before)
                and None not in like and all(isinstance(x, (torch.Tensor, *PLAIN)) for x in results))
        if not same:
            return out
        self.regions[key] = (number, ([torch.Tensor if isinstance(x, torch.Tensor) else x for x in results], its_spec),
                             like)
        made = 0
        for i, x in enumerate(results):
            if isinstance(x, torch.Tensor):
                results[i], made = mark(x, number, ~made), made + 1
        return tree_unflatten(results, its_spec)


class Changed(Exception):
    """A block writes into what it is given."""


def is_number(name: str, value: Any) -> bool:
    return type(value) is int and NUMBERS.fullmatch(name) is not None


def written_out(program: torch.export.ExportedProgram, repeats: Repeats) -> None:
    """Puts the copies in the place of the operations."""
    graph = program.graph
    inputs = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target is not None}
    named = {inputs[n.name]: n for n in graph.nodes if n.op == "placeholder" and n.name in inputs}
    marks = {n.args[1:]: n for n in graph.nodes if n.target == mark}
    for node in list(graph.nodes):
        if node.target != block:
            continue
        given, number, path, like = node.args
        results, owner = [marks[number, ~k].args[0] for k in range(len(like))], repeats.paths[number] + "."
        copies = {marks[number, i]: x for i, x in enumerate(given) if (number, i) in marks}
        copies |= {named[name]: named[f"{path}.{name.removeprefix(owner)}"] for name in named if name.startswith(owner)}
        with graph.inserting_before(node):
            for each in between(graph, set(copies), results):
                copies[each] = graph.node_copy(each, lambda x: copies.get(x, x))
        for user in list(node.users):
            result = results[user.args[1]]
            user.replace_all_uses_with(copies.get(result, result))
            graph.erase_node(user)
        graph.erase_node(node)
    for node in marks.values():
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)


def between(graph: fx.Graph, first: set[fx.Node], last: list[fx.Node]) -> list[fx.Node]:
    """The nodes, in their order, that depend on the first ones and that the last ones depend on, with these."""
    wanted, waiting = set(first), list(last)
    while waiting:
        node = waiting.pop()
        if node not in wanted:
            wanted.add(node)
            waiting += node.all_input_nodes
    depends, nodes = set(first), []
    for node in graph.nodes:
        if node in wanted and node not in first and any(x in depends for x in node.all_input_nodes):
            depends.add(node)
            nodes.append(node)
    return nodes
