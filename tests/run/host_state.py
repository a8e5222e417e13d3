"""Optimizer state in the host's memory (memory.host): the bits, the checkpoints and the log are those without."""
import hashlib
import itertools
import json
import re

import harness
import ranks
from harness import expect, one_error, run

# 48 samples of which a launch has 4: windows of three launches, and a tail.
LAYERS = """
[[layers]]
type = "linear"
name = "a"
features = 130
activation = "relu"
[[layers]]
type = "linear"
name = "b"
features = 70
activation = "gelu"
[[layers]]
type = "linear"
name = "c"
features = 10
"""
OPTIMIZERS = ["sgd", "adam", "adamw", "lion", "lamb"]


def model_of(folder):
    path = folder / "host.toml"
    if not path.exists():
        path.write_text(harness.classifier("host", [48], 10, LAYERS, "micro_batch = 4\naccumulate = 3", 'type = "adamw"'))
    return path


def settings_of(optimizer, precision, **more):
    momentum = {"optimizer__momentum": 0.9} if optimizer == "sgd" else {}
    return {"optimizer__type": optimizer, "precision__compute": precision, **momentum, **more}


def plan_of(model, **settings):
    sets = [w for k, v in settings.items() for w in ("--set", f"{k.replace('__', '.')}={v}")]
    return json.loads(run("gaccc", model, "--plan", "--json", *sets).stdout)


class Case:
    """A model without state on the host, and with some and all of it there."""

    def __init__(self, folder, model, name, **settings):
        self.folder, self.name = folder, name
        least = plan_of(model, **settings)["bytes"]["peak"]
        self.artifacts = {"none": harness.compile_model(model, folder / f"{name}-none.ptx", **settings)}
        self.plans = {}
        for part, budget in (("some", least - 4096), ("all", None)):
            hosted = {**settings, "recompute__policy": "none", "memory__host": "1GiB"}
            if budget is None:  # what is below the least, too: the error says what there is
                budget = self.least_of(model, hosted)
            hosted["memory__budget"] = f"{budget}B"
            self.plans[part] = plan_of(model, **hosted)
            expect(self.plans[part]["bytes"]["peak"] <= budget, f"{name}: the plan is over its budget")
            expect(self.plans[part]["bytes"]["host"] > 0, f"{name}: nothing lies on the host")
            self.artifacts[part] = harness.compile_model(model, folder / f"{name}-{part}.ptx", **hosted)

    def least_of(self, model, settings):
        done = run("gaccc", model, "--plan", *[w for k, v in {**settings, "memory__budget": "1KiB"}.items()
                                               for w in ("--set", f"{k.replace('__', '.')}={v}")], code=1)
        expect("all that may lie there" in done.stderr, done.stderr)
        low, high = 1024, plan_of(model, **{k: v for k, v in settings.items() if not k.startswith("memory")})["bytes"]["peak"]
        while high - low > 256:
            middle = (low + high) // 2
            sets = [w for k, v in {**settings, "memory__budget": f"{middle}B"}.items()
                    for w in ("--set", f"{k.replace('__', '.')}={v}")]
            if run("gaccc", model, "--plan", *sets, code=(0, 1)).returncode == 0:
                high = middle
            else:
                low = middle
        return high

    def train(self, part, data, *words, again=False):
        name = self.folder / f"{self.name}-{part}"
        run("gacc-exec", self.artifacts[part], "--data", data, "--save", f"{name}.safetensors", "--log", f"{name}.jsonl",
            "--checkpoint", name, "--threads", 1, *words, *(["--resume"] if again else []))
        return (hashlib.sha256((self.folder / f"{self.name}-{part}.safetensors").read_bytes()).hexdigest(),
                ranks.buffers(name), ranks.events(f"{name}.jsonl"))


def test_the_bits_are_those_without(folder):
    """Each precision with each optimizer, with short windows and a window that is skipped."""
    model = model_of(folder)
    arrays = harness.make_arrays(model, 46, 5)
    for key, (values, shape) in arrays.items():
        if key == "x":
            values[17 * 48] = 1e30  # the second window overflows in half precision, and loses nothing else
        harness.write_npy(folder / f"{key}.npy", values, shape)
    data = f"npy:x={folder}/x.npy,y={folder}/y.npy"
    for precision, optimizer in itertools.product(["f32", "f16", "bf16"], OPTIMIZERS):
        case = Case(folder, model, f"{optimizer}-{precision}",
                    **settings_of(optimizer, precision, precision__on_nonfinite="skip"))
        one = case.train("none", data, "--no-shuffle", "--epochs", 2, "--device", "cpu")
        if precision == "f16":
            expect(any(e.get("skipped") for e in one[2]), "no window was skipped")
        for part in ("some", "all"):
            ranks.same(case.train(part, data, "--no-shuffle", "--epochs", 2, "--device", "cpu"), one,
                       f"{optimizer}, {precision}, {part} on the host")


def test_the_emulator_has_the_same_bits_as_without(folder):
    model = model_of(folder)
    data = harness.make_data(model, 22, folder)
    for precision, optimizer in (("f32", "adamw"), ("f16", "lamb"), ("bf16", "sgd")):
        case = Case(folder, model, f"{optimizer}-{precision}", **settings_of(optimizer, precision))
        one = case.train("none", data, "--device", "emulate")
        for part in ("some", "all"):
            ranks.same(case.train(part, data, "--device", "emulate"), one, f"{optimizer}, {precision}, {part}, emulated")


def test_a_run_that_was_cut_goes_on(folder):
    """Within a window, from a checkpoint of a run with other state on the host."""
    model = model_of(folder)
    data = harness.make_data(model, 46, folder)
    case = Case(folder, model, "adam", **settings_of("adam", "bf16", optimizer__second_moment="micro"))
    straight = case.train("none", data, "--launches", 23)
    for first, then in (("all", "none"), ("none", "all"), ("some", "all")):
        case.train(first, data, "--launches", 10)
        (folder / "adam-cut").mkdir(exist_ok=True)
        (folder / "adam-cut/checkpoint").write_bytes((folder / f"adam-{first}/checkpoint").read_bytes())
        case.artifacts["cut"] = case.artifacts[then]
        weights, state, _ = case.train("cut", data, "--launches", 23, again=True)
        expect((weights, state) == straight[:2], f"from {first} on the host to {then}: the bits differ")


def test_ranks_have_the_same_bits(folder):
    """Lanes on one to four ranks, and shards of state that lie on the host."""
    ranks.need_mpi()
    model = model_of(folder)
    data = harness.make_data(model, 46, folder)
    lanes = settings_of("adamw", "bf16", train__lanes=4, train__accumulate=4)
    one = ranks.Case(folder, samples=46, model=model, spec=data, **lanes)
    straight = one.train(1)
    for count, more in ((1, {}), (3, {}), (4, {}), (2, {"memory__shard": "optimizer"}), (4, {"memory__shard": "optimizer"})):
        settings = {**lanes, "train__ranks": count, **more}
        peak = plan_of(model, **settings)["bytes"]["peak"]
        hosted = {**settings, "recompute__policy": "none", "memory__host": "1MiB", "memory__budget": f"{peak * 9 // 10}B"}
        expect(plan_of(model, **hosted)["bytes"]["host"] > 0, f"{hosted}: nothing lies on the host")
        case = ranks.Case(folder, samples=46, model=model, spec=data, **hosted)
        ranks.same(case.train(count), straight, f"{count} ranks, {more}")


def test_the_plan_says_what_is_locked_and_what_it_costs(folder):
    model = model_of(folder)
    case = Case(folder, model, "plan", **settings_of("adamw", "bf16"))
    plan = case.plans["all"]
    host = plan["host"]
    expect(host["bytes"] == plan["bytes"]["host"] and host["link_seconds"] == host["link_bytes"] / 12e9, f"{host}")
    sets = ["--set", "optimizer.type=adamw", "--set", "precision.compute=bf16", "--set", "memory.host=1GiB", "--set",
            "recompute.policy=none", "--memory", f"{plan['bytes']['peak']}B"]
    said = run("gaccc", model, "--plan", "--link", "24GB/s", *sets).stdout
    expect(f"{1e3 * host['link_bytes'] / 24e9:.2f} ms an update at 24 GB/s" in said, said)
    done = run("gacc-exec", case.artifacts["all"], "--data", harness.make_data(model, 12, folder), "--updates", 1,
               "--recheck", 1, "--log", folder / "plan.jsonl")
    expect(harness.read_log(folder / "plan.jsonl")[0]["arena_bytes"] == plan["bytes"]["peak"], done.stderr)


def test_too_little_is_an_error_that_says_what_would_do(folder):
    model = model_of(folder)
    one_error(run("gaccc", model, "--set", "memory.host=1GiB", code=1), "needs a `memory.budget`")
    sets = ["--memory", "200KB", "--set", "recompute.policy=none", "--set", "precision.compute=bf16"]
    done = run("gaccc", model, *sets, "--set", "memory.host=20KB", code=1)
    expect(re.search(r"needs .* the host has .* in its memory.host of .*, and might have ", done.stderr), done.stderr)
    done = run("gaccc", model, "--memory", "20KB", *sets[2:], "--set", "memory.host=1GiB", code=1)
    expect("which is all that may lie there" in done.stderr, done.stderr)


if __name__ == "__main__":
    harness.main(globals())
