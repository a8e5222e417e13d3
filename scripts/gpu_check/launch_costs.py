"""Bytes and FLOPs of each launch of a step, and what gaccc estimates for it: from the plan's `kernels` where gaccc gives
them, else from the IR that the artifact carries. And the table of a profile beside them."""
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
        pairs = types[operands[0]].elements // three * length // (2 if "causal" in attributes else 1)
        return 2 * products * pairs * (three // 3)
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


# ---- a profile

def programs(profile, name):
    """Durations of each run of a program."""
    return [e["dur"] for e in profile["traceEvents"] if e["cat"] == "program" and e["name"] == name]


def table(profile, costs, copy, products):
    """Lines of a table, the most time lost first; time of all launches and above the ceilings, in microseconds; and what is
    wrong. `copy` and `products` are what the machine can do, in bytes and FLOPs a second."""
    launches = [one for one in profile["kernels"] if one["program"] == "step"]
    if not costs or any(one["launch"] >= len(costs) for one in launches):
        return [], 0, 0, "the pack's list of launches is of another step"
    estimated = all("seconds" in cost for cost in costs)
    rows = {}
    for one in launches:
        cost = costs[one["launch"]]
        row = rows.setdefault(one["name"], {"count": 0, "time": 0, "bytes": 0, "flops": 0, "floor": 0, "estimate": 0})
        row["count"] += 1
        row["time"] += one["microseconds"]
        row["bytes"] += cost["bytes"]
        row["flops"] += cost["flops"]
        row["floor"] += 0 if one["microseconds"] == 0 else max(cost["bytes"] / copy, cost["flops"] / products) * 1e6
        row["estimate"] += cost.get("seconds", 0) * 1e6
    total = sum(row["time"] for row in rows.values())
    lost = {name: row["time"] - row["floor"] for name, row in rows.items()}
    head = f"{'launch':<40} {'n':>3} {'us':>9} {'lost us':>9} {'share':>6} {'MB each':>8} {'GB/s':>6} {'TF/s':>6} {'%':>4}"
    lines = [head + (f" {'estimate':>9}" if estimated else "")]
    for name in sorted(rows, key=lambda n: -lost[n]):
        row = rows[name]
        if row["time"] == 0:  # done by its product
            continue
        line = (f"{name[:40]:<40} {row['count']:>3} {row['time']:>9.1f} {lost[name]:>9.1f} {100 * row['time'] / total:>5.1f}% "
                f"{row['bytes'] / row['count'] / 1e6:>8.2f} {row['bytes'] / row['time'] / 1e3:>6.0f} "
                f"{row['flops'] / row['time'] / 1e6:>6.1f} {100 * row['floor'] / row['time']:>4.0f}")
        lines.append(line + (f" {row['estimate']:>9.1f}" if estimated else ""))
    return lines, total, sum(lost.values()), ""
