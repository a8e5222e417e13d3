"""Bytes and FLOPs of each launch of a step, and what gaccc estimates for it: from the plan's `kernels` where gaccc gives
them, else from the IR that the artifact carries."""
import math
import re

from . import files

SIZES = {"f32": 4, "i32": 4, "f16": 2, "bf16": 2}
TYPE = re.compile(r"(f32|f16|bf16|i32)\[([^\]]*)\]")
LINE = re.compile(r"^    (?:(?P<results>%.*?) = )?(?P<op>[a-z_0-9.]+) (?P<rest>.*?) ?k\((?P<kernel>\d+)\)(?P<attributes>.*)$")
NAME = re.compile(r"[%@][^\s,:()]+")


class Type:
    def __init__(self, kind, extents, batch):
        self.shape = [batch if e == "B" else int(e) for e in extents.split(",") if e]
        self.elements = math.prod(self.shape)
        self.bytes = self.elements * SIZES[kind]


def step_kernels(lines, batch):
    """The kernels of a planned step, in order: ops as (name, operands, results, attributes), all as text, and types."""
    types, kernels, inside = {}, {}, False
    for line in lines:
        if line.startswith("  ") and not line.startswith("   "):
            inside = line.startswith("  step(")
            declared = re.match(r"  (?:param|accum|state) (@\S+) : ", line)
            if declared or inside:
                for name, kind, extents in re.findall(r"([%@]\S+) : (f32|f16|bf16|i32)\[([^\]]*)\]", line):
                    types[name] = Type(kind, extents, batch)
        found = LINE.match(line) if inside else None
        if not found:
            continue
        results = NAME.findall(found["results"] or "")
        operands, _, of = found["rest"].partition(" : ")
        for name, (kind, extents) in zip(results, TYPE.findall(of)):
            types[name] = Type(kind, extents, batch)
        stored = " at " in of  # one without an offset stays in registers
        kernels.setdefault(int(found["kernel"]), []).append(
            (found["op"], NAME.findall(operands.split(" when(")[0]), results, stored, found["attributes"]))
    return [ops for _, ops in sorted(kernels.items()) if [op[0] for op in ops] != ["reshape"]], types


def op_flops(op, operands, results, attributes, types):
    """Two operations for a multiply-add; one for an element of anything else. Products are the caller's."""
    wide = max((types[name].elements for name in operands + results if name in types), default=0)
    if op.startswith("attention"):
        _, length, three = types[operands[0]].shape
        products = 2 if op == "attention" else 5  # the fewest that do: gacc's own gradient computes two of them twice
        return 2 * products * (types[operands[0]].elements // three) * length * (three // 3) // (2 if "causal" in attributes else 1)
    if op.startswith("conv2d"):
        weight = types[results[0] if op == "conv2d.weight_grad" else operands[1]].shape[-3:]
        places = types[results[0] if op == "conv2d" else operands[0]]
        return 2 * places.elements * math.prod(weight)
    return wide


def kernel_costs(ops, types):
    """(bytes, FLOPs): what is read once, and what is written."""
    made = {name for _, _, results, _, _ in ops for name in results}
    moved, flops, seen = 0, 0, set()
    for op, operands, results, stored, attributes in ops:
        flops += op_flops(op, operands, results, attributes, types)
        for at, name in enumerate(operands):
            if name not in types or name in made:
                continue
            written = not results and at == 0  # `op @buffer, ...`
            size = types[name].bytes
            if op == "slice" or op == "embedding" and at == 1:  # what is taken of it
                size = min(size, types[results[0]].bytes)
            elif op == "embedding.grad.acc" and at == 0:
                size = min(size, 2 * types[operands[2]].bytes)
            if written:
                moved += size * (1 if op in ("store", "fill") else 2)
            elif name not in seen:
                moved += size
            seen.add(name)
        moved += sum(types[name].bytes for name in results) if stored else 0
    return moved, flops


def of_artifact(path, plan_json):
    """For each launch of the step: {"bytes", "flops", and where gaccc has it "seconds"}; None where the two do not fit."""
    plan = files.artifact_plan(path)
    launches = next(program["launches"] for program in plan["programs"] if program["name"] == "step")
    planned = [kernel for kernel in plan_json.get("kernels", ()) if kernel["program"] == "step"]
    if len(planned) == len(launches):
        return [{key: one[key] for key in ("bytes", "flops", "seconds")} for one in planned]
    kernels, types = step_kernels(files.artifact_ir(path), plan["micro_batch"])
    if len(kernels) != len(launches):
        return None
    costs = []
    for launch, ops in zip(launches, kernels):
        moved, flops = kernel_costs(ops, types)
        if "kernel" not in launch:
            extents = [launch[x]["extent"] * (plan["micro_batch"] if launch[x]["times_batch"] else 1) for x in "mnk"]
            flops = 2 * math.prod(extents)
        costs.append({"bytes": moved, "flops": flops})
    return costs
