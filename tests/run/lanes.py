"""train.lanes: the launches of a window in V lanes, whose sums a binary tree adds. Bits that follow from V, the model
and the data alone; a checkpoint inside a window is that of the window's start."""
import array
import json
import math
import random
import re
import struct

import harness
from harness import expect, layer, model_text, run

MODEL = model_text(
    layer("linear", name="hidden", features=5), layer("activation", fn="tanh"), layer("linear", name="out", features=1),
    model={"name": "lanes", "seed": 3}, inputs={"x": {"shape": [6]}, "z": {"shape": [], "dtype": "f32"}},
    loss={"type": "mse", "target": "z"}, train={"micro_batch": 4}, optimizer={"type": "sgd", "lr": 0.05})


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def add(a, b):
    return b if a is None else a if b is None else f32(a + b)


def tree(lanes, low, high):
    """The definition: lanes are added by the tree, nothing for a lane without a launch (None)."""
    if high - low == 1:
        return lanes[low]
    middle = (low + high) // 2
    return add(tree(lanes, low, middle), tree(lanes, middle, high))


class Data:
    def __init__(self, folder, samples):
        rng = random.Random(7)
        self.folder = folder
        self.x = [[rng.gauss(0, 1) for _ in range(6)] for _ in range(samples)]
        self.z = [rng.gauss(0, 1) for _ in range(samples)]
        self.model = folder / "model.toml"
        self.model.write_text(MODEL)

    def part(self, first, end):
        """A spec of these samples alone."""
        x, z = self.folder / f"x{first}-{end}.npy", self.folder / f"z{first}-{end}.npy"
        harness.write_npy(x, array.array("f", [v for row in self.x[first:end] for v in row]), [end - first, 6])
        harness.write_npy(z, array.array("f", self.z[first:end]), [end - first])
        return f"npy:x={x},z={z}"


def gradient(artifact, spec, folder, *options):
    dump = folder / "dump.safetensors"
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--updates", 1, "--dump-grads", dump, *options)
    return harness.read_safetensors(dump)


def values(tensor):
    return list(tensor[1]) if isinstance(tensor, tuple) else list(tensor)


def test_the_gradient_is_the_tree_of_the_lanes(folder):
    """Bit for bit, from the gradients of the lanes' samples alone, where these are means of 1, 2, 4, ... samples."""
    data, checked = Data(folder, 32), 0
    whole = {samples: gradient(harness.compile_model(data.model, folder / "whole.ptx", train__micro_batch=32),
                               data.part(0, samples), folder) for samples in (32, 26, 13)}
    for K, V in ((8, 1), (8, 2), (8, 4), (8, 8), (11, 4)):
        alone = harness.compile_model(data.model, folder / f"{K}.ptx", train__accumulate=K)
        artifact = harness.compile_model(data.model, folder / f"{K}-{V}.ptx", train__accumulate=K, train__lanes=V)
        for samples in (32, 26, 13):
            got = gradient(artifact, data.part(0, samples), folder)
            worst, who = harness.far_apart(got, whole[samples])
            expect(worst <= 1e-6, f"K {K}, {V} lanes, {samples} samples: {who} is {worst:.2e} from the big batch's")
            of_lane = [[s for s in range(samples) if s // 4 * V // K == lane] for lane in range(V)]
            if any(len(lane) & (len(lane) - 1) for lane in of_lane):
                continue  # a mean times its count is not the sum
            checked += 1
            means = [gradient(alone, data.part(lane[0], lane[-1] + 1), folder) if lane else None for lane in of_lane]
            for name, tensor in got.items():
                for i, value in enumerate(values(tensor)):
                    sums = [None if mean is None else f32(values(mean[name])[i] * len(lane))
                            for mean, lane in zip(means, of_lane)]
                    wanted = f32(tree(sums, 0, V) / samples)
                    expect(struct.pack("<f", value) == struct.pack("<f", wanted),
                           f"K {K}, {V} lanes, {samples} samples: {name}[{i}] is {value!r}, the tree gives {wanted!r}")
    expect(checked >= 7, f"{checked} gradients were compared bit for bit")


def without_seconds(log):
    other = ("seconds", "arena_bytes", "peak_bytes")
    return [{k: v for k, v in e.items() if k not in other} for e in harness.read_log(log)]


def trained(artifact, spec, name, *options):
    weights, log = name.with_suffix(".safetensors"), name.with_suffix(".jsonl")
    run("gacc-exec", artifact, "--data", spec, "--save", weights, "--log", log, *options)
    return weights.read_bytes(), without_seconds(log)


def test_threads_and_devices(folder):
    """Over threads the same bits; in the emulator a graph and one kernel give the same."""
    model = harness.example("mnist_mlp")
    spec = harness.make_data(model, 150, folder)
    artifact = harness.compile_model(model, folder / "a.ptx", train__micro_batch=8, train__accumulate=6, train__lanes=4)
    got = [trained(artifact, spec, folder / f"t{n}", "--eval", spec, "--epochs", 2, "--threads", n) for n in (1, 2)]
    expect(got[0][0] == got[1][0], "another number of threads gives other weights")
    small = Data(folder, 27)
    runs = []
    for mode in ("graph", "persistent"):
        artifact = harness.compile_model(small.model, folder / f"{mode}.ptx", train__accumulate=5, train__lanes=4,
                                         launch__mode=mode)
        runs.append(trained(artifact, small.part(0, 27), folder / mode, "--device", "emulate", "--epochs", 2)[0])
    expect(runs[0] == runs[1], "a graph and one kernel give other weights")


def test_a_checkpoint_in_a_window_is_that_of_its_start(folder):
    """Stopped after any launch and resumed: the bytes of the run without a break, over tails, dropout, moments, a
    plateau."""
    model = harness.example("mnist_mlp")
    spec = harness.make_data(model, 75, folder)
    for number, settings in enumerate((dict(train__tail="carry"),
                                       dict(train__tail="drop", optimizer__second_moment="micro"),
                                       dict(train__tail="flush", train__clip_norm=0.5, precision__compute="f16"))):
        artifact = harness.compile_model(model, folder / f"{number}.ptx", train__micro_batch=8, train__accumulate=6,
                                         train__lanes=4, **settings)
        options = ["--eval", spec, "--epochs", 3]
        whole = trained(artifact, spec, folder / f"whole{number}", *options)
        for stop in (1, 4, 9, 11, 16, 23):
            name = folder / f"broken{number}-{stop}"
            checkpoint = ["--checkpoint", name]
            trained(artifact, spec, name, "--eval", spec, *checkpoint, "--launches", stop)
            got = trained(artifact, spec, name, *options, *checkpoint, "--resume")
            expect(got[0] == whole[0], f"{settings}, stopped after {stop} launches: other weights")
            expect([e for e in got[1] if e["event"] != "end"] == [e for e in whole[1] if e["event"] != "end"],
                   f"{settings}, stopped after {stop} launches: another log")


def test_mistakes(folder):
    data = Data(folder, 8)
    for settings, words in ((dict(lanes=3), ("train.lanes", "2 or 4")),
                            (dict(lanes=8, accumulate=5), ("train.lanes", "lanes = 4")),
                            (dict(lanes=2, accumulate=4, ranks=3), ("train.ranks", "lanes = 4"))):
        sets = [w for k, v in settings.items() for w in ("--set", f"train.{k}={v}")]
        harness.one_error(run("gaccc", data.model, *sets, "-o", folder / "a.ptx", code=1), *words)
    artifact = harness.compile_model(data.model, folder / "few.ptx", train__accumulate=4, train__lanes=4,
                                     train__ranks=4)
    harness.one_error(run("gacc-exec", artifact, "--data", data.part(0, 8), code=1), "4 ranks", "train.ranks=1")


def test_the_plan_counts_the_nodes(folder):
    data = Data(folder, 8)
    bytes_of = {}
    for lanes in (1, 2, 4, 8):
        sets = ("--set", "train.accumulate=8", "--set", f"train.lanes={lanes}")
        plan = json.loads(run("gaccc", data.model, *sets, "--plan", "--json").stdout)
        bytes_of[lanes] = plan["bytes"]["gradients"]
    for lanes, nodes in ((2, 2), (4, 3), (8, 4)):
        expect(bytes_of[lanes] == nodes * bytes_of[1],
               f"{lanes} lanes: {bytes_of[lanes]} bytes of gradients, not {nodes} x {bytes_of[1]}")


def test_the_loss_is_cut_alike_for_any_number_of_ranks(folder):
    """Into how many parts a large vocabulary's loss is cut decides bits: nodes of lanes and slices of moments do
    not."""
    model = folder / "wide.toml"
    tokens = {"shape": [400], "dtype": "i32"}
    model.write_text(model_text(
        layer("embedding", name="wte", vocab=5000, features=1024), layer("linear", name="head", features=5000),
        model={"name": "wide"}, inputs={"tokens": tokens, "next": tokens},
        loss={"type": "cross_entropy", "target": "next"}, train={"micro_batch": 2, "accumulate": 8, "lanes": 8},
        optimizer={"type": "adam"}))
    parts = set()
    for options in ((), ("--ranks", 8), ("--ranks", 8, "--set", "memory.shard=optimizer")):
        parts.add(re.search(r"loss +in (\d+) parts", run("gaccc", model, *options, "--plan").stdout)[1])
    expect(len(parts) == 1, f"the loss is cut into {parts} parts")


def test_the_plan_of_ranks(folder):
    """Returns what a rank sends, by the definition: its nodes of the others' slices, and its own slice's sum to each
    other."""
    data = Data(folder, 8)
    numbers = 6 * 5 + 5 + 5 + 1 + 2  # parameters, the loss and its count
    nodes = {1: 1, 2: 1, 3: 2, 5: 2, 8: 1}  # of the rank with most, of 8 lanes
    sets = ("--set", "train.accumulate=8", "--set", "train.lanes=8")
    for ranks, most in nodes.items():
        plan = json.loads(run("gaccc", data.model, *sets, "--plan", "--json", "--ranks", ranks, "--link",
                              "2KB/s").stdout)["ranks"]
        wanted = 4 * numbers * (most + 1) * (ranks - 1) / ranks
        expect(plan["ranks"] == ranks and plan["lanes"] == 8, str(plan))
        expect(abs(plan["reduce_bytes"] - wanted) <= 4 * ranks, f"{ranks} ranks: {plan}, not {wanted} bytes")
        expect(math.isclose(plan["reduce_seconds"], plan["reduce_bytes"] / 2000), str(plan))
        expect(0 <= plan["share"] < 1 and (plan["share"] > 0.9) == (ranks > 1), str(plan))
    plan = json.loads(run("gaccc", data.model, *sets, "--plan", "--json", "--ranks", 2).stdout)["ranks"]
    expect(plan["reduce_seconds"] is None and plan["share"] is None, "nobody knows the link")
    expect("ranks" not in json.loads(run("gaccc", data.model, *sets, "--plan", "--json").stdout),
           "nobody asked for ranks")
    for options, word in ((["--plan", "--link", "25GB"], "25GB/s"), (["--link", "25GB/s"], "--plan"),
                          (["--plan", "--link", "0B/s"], "25GB/s")):
        expect(word in run("gaccc", data.model, *options, code=2).stderr, f"{options}: the error names {word}")


def test_the_fewest_ranks_that_fit(folder):
    """Each budget's answer fits, and one rank less does not."""
    data = Data(folder, 8)
    sets = ("--set", "train.accumulate=8", "--set", "train.lanes=8")

    def plan(ranks, memory=None, code=0):
        done = run("gaccc", data.model, *sets, "--plan", "--json", "--ranks", ranks,
                   *(("--memory", f"{memory}B") if memory else ()),
                   code=code)
        return json.loads(done.stdout) if code == 0 else done
    peaks = [plan(ranks)["bytes"]["peak"] for ranks in range(1, 9)]
    expect(len(set(peaks)) == 4 and peaks == sorted(peaks, reverse=True), f"peaks {peaks}")
    for peak in set(peaks):
        got = plan("auto", peak)
        expect(got["ranks"]["ranks"] == 1 + peaks.index(peak) and got["bytes"]["peak"] <= peak,
               f"{peak} bytes: {got['ranks']}")
    harness.one_error(plan("auto", 64, code=1), "8 ranks", "needs at least")
    harness.one_error(plan("auto", code=1), "train.ranks", "memory.budget")


harness.main(globals())
