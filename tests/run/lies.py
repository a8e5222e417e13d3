"""An artifact whose plan was changed and whose checksum was made right again: what the plan says is compared with the IR
beside it, before anything else is done.

    lies.py [COUNT] [test_NAME]    COUNT: random changes on the CPU, 60 where none is given, and a quarter of it in the
                                   emulator; GACC_SEED: other ones
"""
import copy
import json
import os
import random
import re
import shutil
import sys

import harness
from harness import expect, run

COUNT = int(sys.argv.pop(1)) if sys.argv[1:] and sys.argv[1].isdigit() else 60
SAMPLES = 30

# A bit of everything that a plan can say: tokens and labels, numbers that are normalised, frozen and half weights, a loss
# scale, running statistics, a plateau, and one kernel for all of the step and of the update.
MODEL = """
[model]
name = "rich"
seed = 7
metrics = ["accuracy"]
[inputs.tokens]
shape = [6]
dtype = "i32"
range = 19
[inputs.x]
shape = [4]
normalize = { mean = [0.5, 0.25, 0, 1], std = [2, 0.5, 1, 4] }
[inputs.y]
dtype = "i32"
range = 5
[[layers]]
type = "embedding"
name = "wte"
vocab = 19
features = 8
[[layers]]
type = "flatten"
name = "flat"
[[layers]]
type = "linear"
name = "side"
input = "x"
features = 8
activation = "relu"
[[layers]]
type = "concat"
name = "both"
inputs = ["flat", "side"]
axis = 0
[[layers]]
type = "linear"
name = "fc"
features = 24
[[layers]]
type = "batch_norm"
name = "bn"
[[layers]]
type = "linear"
name = "fixed"
features = 16
trainable = false
activation = "tanh"
[[layers]]
type = "linear"
name = "head"
features = 5
[loss]
type = "cross_entropy"
target = "y"
ignore_index = -3
[train]
micro_batch = 4
accumulate = 2
[optimizer]
type = "adam"
lr = 1e-2
[schedule]
type = "plateau"
metric = "accuracy"
patience = 1
threshold = 1e-3
[precision]
compute = "f16"
loss_scale = "dynamic"
"""


class Artifact:
    """step.ptx, taken apart; `save` writes it with another plan and a right first line."""

    def __init__(self, folder, model=MODEL):
        self.model, self.path = folder / "rich.toml", folder / "step.ptx"
        self.model.write_text(model)
        harness.compile_model(self.model, self.path)
        self.plan = json.loads(self.path.read_bytes().split(b"\n", 2)[1].removeprefix(b"//plan "))
        self.data = harness.make_data(self.model, SAMPLES, folder)

    def save(self, path, plan):
        shutil.copyfile(self.path, path)
        harness.sealed(path, lambda body: b"//plan " + json.dumps(plan).encode() + b"\n" + body.partition(b"\n")[2])

    def train(self, path, device, code=0):
        """Two epochs with an evaluation each; all that the run leaves behind, but for times."""
        outputs = [path.with_suffix(s) for s in (".safetensors", ".jsonl")]
        for output in outputs:
            output.unlink(missing_ok=True)
        done = run("gacc-exec", path, "--data", self.data, "--eval", self.data, "--epochs", 2, "--threads", 1, "--device", device,
                   "--quiet", "--save", outputs[0], "--log", outputs[1], code=code)
        if done.returncode:
            expect(not any(o.exists() for o in outputs), f"a refused run left a file\n{done.stderr}")
            return done, None
        events = [{k: v for k, v in e.items() if k not in ("seconds", "peak_bytes")} for e in harness.read_log(outputs[1])]
        return done, (outputs[0].read_bytes(), events, re.sub(r" in [\d.]+ s .*", "", done.stdout))


# ---------------------------------------------------------------- changes with a place
def targeted(plan):
    """Changes: a path into the plan, and what is there instead (None: nothing). The error must name the path; or the third
    element, where another check comes first."""
    index = lambda kind: {e["name"]: f"{kind}[{i}]" for i, e in enumerate(plan[kind])}
    inputs, buffers, programs = index("inputs"), index("buffers"), index("programs")
    offset = {b["name"]: b["offset"] for b in plan["buffers"]}
    tokens, x, y = (inputs[n] for n in ("tokens", "x", "y"))
    weight, gradient, half = (buffers["fc.weight" + n] for n in ("", ".grad", ".h"))
    step, update, evaluation = (f"{programs[n]}.launches" for n in ("step", "update", "eval"))
    passed = next(f"programs[1].values[{i}]" for i, v in enumerate(plan["programs"][1]["values"]) if 0 <= v[2] < v[3])
    product = next(f"{step}[{i}]" for i, l in enumerate(plan["programs"][1]["launches"]) if "a" in l)
    return [
        # Numbers that choose: a range that no table has, and what nothing ignores.
        (f"{tokens}.range", 65536), (f"{tokens}.range", 20), (f"{tokens}.range", 18), (f"{tokens}.range", None),
        (f"{tokens}.ignore_index", 60000), (f"{tokens}.ignore_index", -1),
        (f"{y}.range", 6), (f"{y}.ignore_index", -100), (f"{y}.ignore_index", None),
        # Where inputs lie, and what they are.
        (f"{tokens}.eval_offset", 0), (f"{tokens}.eval_offset", plan["arena_bytes"] - 256), (f"{tokens}.step_offset", 0),
        (f"{y}.step_offset", 0), (f"{y}.eval_offset", plan["inputs"][0]["eval_offset"]), (f"{x}.step_offset", 4),
        (f"{x}.mean[0]", 0.25), (f"{x}.std[3]", 8.0), (f"{x}.mean", []), (f"{x}.range", 7), (f"{x}.dtype", "i32"), (f"{x}.stored", "bf16"), (f"{x}.stored", None), (f"{tokens}.stored", "f16"), (f"{x}.normalize", "data"), (f"{tokens}.dtype", "f32"),
        (f"{x}.shape", [2], f"{x}.mean"), (f"{x}.shape", [4, 2]), (f"{tokens}.shape[0]", 5), (f"{x}.name", "z"), (f"{inputs['x']}", None),
        # What predict gives.
        ("predict.batch", 2), ("predict.batch", plan["micro_batch"] + 1), ("predict.offset", 0), ("predict.shape", [1]), ("predict.positions", "causal"),
        ("predict.needs", 8), (f"{x}.predict_offset", 0), (f"{x}.predict_offset", None), ("predict", None),
        # Buffers.
        (f"{weight}.offset", offset["fc.weight"] + 4), (f"{weight}.offset", offset["fc.weight"] - 4),
        (f"{gradient}.offset", offset["fc.weight"]), (f"{half}.dtype", "bf16"), (f"{buffers['updates']}.dtype", "f32"),
        (f"{weight}.shape", [56, 24]), (f"{weight}.shape", [1344]), (f"{buffers['wte.weight']}.bytes", 612), (f"{weight}.bytes", 6000), (f"{weight}.kind", "state"),
        (f"{weight}.trainable", False), (f"{buffers['fixed.weight']}.trainable", True), (f"{gradient}.kind", "state"),
        (f"{weight}.name", "fc.other"), (f"{buffers['bn.running_mean']}.name", "bn.moving_mean"), (f"{buffers['skips']}", None),
        (f"{buffers['bn.running_mean.change']}.kind", "state"),
        # Settings.
        ("micro_batch", 2), ("micro_batch", 3), ("accumulate", 1), ("tail", "carry"), ("epochs", 3), ("shuffle", False), ("seed", 8),
        ("lr", 0.1), ("optimizer", "sgd"), ("precision", "f32"), ("metrics", []), ("arena_bytes", plan["arena_bytes"] + 256), ("bytes.peak", 4),
        ("parameters", 1), ("model", "poor"), ("target", "sm_90"), ("exact", True), ("because", []), ("skip_nonfinite", False), ("max_skips", 1),
        ("flops_per_launch", 1), ("kernels_per_launch", 1), ("plateau.metric", "loss"), ("plateau.patience", 9), ("plateau.threshold", 0.5),
        ("plateau", None), ("seed_rules.elements", 1), ("seed_rules.dynamic", False), ("seed_rules", None),
        # What a GPU launches, and the CPU does not look at.
        (f"{step}[0].kernel", plan["programs"][0]["launches"][0]["kernel"]), (f"{step}[0].arguments[0]", 0), (f"{step}[0].block", 32),
        (f"{step}[0].per_block", 1), (f"{step}[0].grid.extent", 2), (f"{product}.a", 0), (f"{product}.c", 256), (f"{product}.k.extent", 1),
        (f"{product}.transpose_b", False), (f"{product}.builtin.tile_m", 1), (f"{evaluation}[1]", None, "programs[3].launches"), (f"{update}[0].touches", [0]),
        (f"{passed}[1]", 1), (f"{passed}[2]", -1), ("programs[1].values", None), ("programs[2].persistent_values[0][3]", 0),
        (f"{update}[0].grid.extent", 0), ("programs[1].persistent.block", 32), ("programs[2].persistent.cooperative", False),
    ]


def change(plan, path, value):
    """A copy with `value` at the path; without what is there, where it is None."""
    plan = copy.deepcopy(plan)
    keys = [int(k) if k.isdigit() else k for k in re.findall(r"\w+", path)]
    at = plan
    for key in keys[:-1]:
        at = at[key]
    if value is None:
        del at[keys[-1]]
    else:
        expect(not isinstance(at, dict) or at.get(keys[-1]) != value, f"{path} is {value} already")
        at[keys[-1]] = value
    return plan


def test_every_change_is_refused_with_its_place(folder):
    artifact, lie = Artifact(folder), folder / "lie.ptx"
    artifact.save(lie, artifact.plan)
    expect(artifact.train(lie, "cpu")[0].returncode == 0, "the unchanged plan is refused")
    changes = targeted(artifact.plan)
    swapped = copy.deepcopy(artifact.plan)
    weight, gradient = (next(b for b in swapped["buffers"] if b["name"] == n) for n in ("fc.weight", "fc.weight.grad"))
    weight["offset"], gradient["offset"] = gradient["offset"], weight["offset"]
    lies = [(c[-1] if len(c) > 2 else c[0], change(artifact.plan, *c[:2])) for c in changes]
    lies.append((f"buffers[{swapped['buffers'].index(weight)}].offset of fc.weight", swapped))
    for place, plan in lies:
        artifact.save(lie, plan)
        done, _ = artifact.train(lie, "emulate" if place.startswith("programs") else "cpu", code=(0, 1))
        try:  # where an entry of a list is gone, the list is named, or where it goes on
            harness.one_error(done, "lie.ptx: plan: ", place.rpartition("[")[0] if place.endswith("]") else place)
        except harness.Failed as problem:
            raise harness.Failed(f"{place}: {problem}")
    print(f"{len(lies)} changes, each refused with its place")


def test_places_that_overlap_are_refused(folder):
    """Plan and IR agree, and yet a value of the step lies where its labels are."""
    artifact, lie = Artifact(folder), folder / "lie.ptx"
    labels = artifact.plan["inputs"][2]["step_offset"]
    shutil.copyfile(artifact.path, lie)
    harness.sealed(lie, lambda body: re.sub(rb"(//ir +%flat = .* at )\d+", rb"\g<1>%d" % labels, body, count=1))
    done, _ = artifact.train(lie, "cpu", code=(0, 1))
    harness.one_error(done, "lie.ptx: the artifact's IR has a wrong memory plan: step, ")


# A head whose logits have no room: predictions in parts.
PARTS = """
[model]
name = "parts"
[inputs.tokens]
shape = [8]
dtype = "i32"
[inputs.next]
shape = [8]
dtype = "i32"
range = 1009
[[layers]]
type = "embedding"
name = "wte"
vocab = 1009
features = 16
[[layers]]
type = "rms_norm"
name = "norm"
[[layers]]
type = "linear"
name = "head"
features = 1009
[loss]
type = "cross_entropy"
target = "next"
chunks = 4
[train]
micro_batch = 1
[optimizer]
type = "sgd"
lr = 0.1
[recompute]
policy = "all"
"""


def test_parts_of_predictions_are_compared(folder):
    """Of the plan: how many rows a part has, and where things lie. Of the IR: rows that would not stay for the next part."""
    artifact, lie = Artifact(folder, PARTS), folder / "lie.ptx"
    rows, offset = artifact.plan["predict"]["rows"], artifact.plan["predict"]["rows_offset"]
    expect(1 < rows < 8, rows)
    programs = {p["name"]: i for i, p in enumerate(artifact.plan["programs"])}
    answer = f"programs[{programs['answer']}]"
    for path, value in (("predict.rows", rows // 2), ("predict.rows", 3), ("predict.rows", None), ("predict.rows_offset", offset + 4),
                        ("predict.rows_offset", 0), ("predict.rows_offset", None), ("predict.offset", 0), ("predict.batch", 0),
                        ("predict.shape[0]", 16), (f"{answer}.launches[0].arguments[0]", 0), (f"{answer}.values[0][3]", 0), (answer, None)):
        artifact.save(lie, change(artifact.plan, path, value))
        done, _ = artifact.train(lie, "emulate" if path.startswith("programs") else "cpu", code=(0, 1))
        harness.one_error(done, "lie.ptx: plan: ", path.partition(".")[0] if path != answer else "programs")
    table = re.search(rb"//ir   answer\(%\S+ : f32\[8,16\] at (\d+)", artifact.path.read_bytes())[1]
    for change_ir, words in (
            (lambda ir: re.sub(rb"(//ir   answer\(%\S+ : f32\[8,16\] at )\d+", rb"\g<1>%d" % (int(table) + 256), ir), "R26: the table"),
            (lambda ir: re.sub(rb"(//ir     yield output %head), rows %\S+", rb"\1", ir), "R26: answer yields the output of its rows, and the table"),
            (lambda ir: re.sub(rb"(//ir     %norm\S*\.part = .* at )\d+", rb"\g<1>" + table, ir), "the artifact's IR has a wrong memory plan: answer, kernel 0")):
        shutil.copyfile(artifact.path, lie)
        harness.sealed(lie, change_ir)
        done, _ = artifact.train(lie, "cpu", code=1)
        expect(words in done.stderr and "lie.ptx: the artifact's IR" in done.stderr, done.stderr)


# ---------------------------------------------------------------- random changes
def nodes(value):
    """Every (container, key) below `value`."""
    for key in value.keys() if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from nodes(value[key])


def spoil(chance, plan):
    """One random change, in a random section of the plan; returns what it was."""
    section = chance.choice(list(plan))
    places = [(plan, section)]
    if isinstance(plan[section], (dict, list)):
        if section == "programs" and chance.random() < 0.5:  # most of the text, and the least of the harm
            section = chance.choice(("inputs", "buffers"))
        places = list(nodes(plan[section])) or places
    at, key = chance.choice(places)
    old, before = at[key], str(at)
    if isinstance(at, list) and chance.random() < 0.2:
        other = chance.randrange(len(at))
        if chance.random() < 0.5:
            at[key], at[other] = at[other], at[key]
        else:
            at.insert(other, copy.deepcopy(old))
    elif chance.random() < 0.1:
        del at[key]
    elif isinstance(old, bool):
        at[key] = not old
    elif isinstance(old, int):
        at[key] = chance.choice([old + 1, old - 1, old + 4, old * 2, old // 2, 0, -1, old + 256, chance.randrange(65536), 2**31, 2**62, -old,
                                 float(old), str(old)])
    elif isinstance(old, float):
        at[key] = chance.choice([old * 2, -old, 0.0, 1.0, old + 1e-9, 1e300, int(old), None])
    elif isinstance(old, str):
        at[key] = chance.choice([old + "x", old[:-1], "", "f32", "i32", "param", "state", "\n", "\u00e9", "fc.weight", "lr"])
    elif isinstance(old, dict):
        at[key] = copy.deepcopy(chance.choice([c[k] for c, k in nodes(plan) if isinstance(c[k], dict)]))
    elif isinstance(old, list):
        at[key] = chance.choice([[], old[:-1], old + old[:1], None, {}])
    else:  # what an earlier change has made null
        at[key] = chance.choice([0, "", []])
    return f"{section}: {key} of {before[:200]}, now {str(at)[:200]}"


def random_changes(folder, device, count):
    artifact, lie = Artifact(folder), folder / "lie.ptx"
    artifact.save(lie, artifact.plan)
    _, wanted = artifact.train(lie, device)
    chance, refused = random.Random(int(os.environ.get("GACC_SEED", 13))), 0
    for number in range(count):
        plan = copy.deepcopy(artifact.plan)
        changes = [spoil(chance, plan) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
        artifact.save(lie, plan)
        try:
            done, got = artifact.train(lie, device, code=(0, 1))
            expect("runtime error" not in done.stderr and "Sanitizer" not in done.stderr, done.stderr)
            if done.returncode:
                harness.one_error(done)
            else:
                expect(got == wanted, "it runs and gives something else")
        except harness.Failed as problem:
            raise harness.Failed("\n".join([f"change {number}:", *changes, str(problem)]))
        refused += done.returncode
    print(f"{device}: {count} random changes: {refused} refused, {count - refused} without any effect")


def test_random_changes_on_the_cpu(folder):
    random_changes(folder, "cpu", COUNT)


def test_random_changes_in_the_emulator(folder):
    random_changes(folder, "emulate", COUNT // 4)


harness.main(globals())
