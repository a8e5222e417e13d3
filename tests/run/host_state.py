"""Optimizer state in the host's memory (memory.host): the bits, the checkpoints and the log are those without.
GACC_HOST is the number of random cells, of examples, precisions and optimizers, on the CPU (4), GACC_HOST_EMULATED
that in the emulator (1), GACC_HOST_RANKS that on ranks (1); 288 are all of them. GACC_HOST_SEED is where they begin
(1)."""
import hashlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import time

import harness
import ranks
from harness import expect, one_error, run, sets_of

SEED = os.environ.get("GACC_HOST_SEED", "1")
# Narrower, where an example takes longer than a second a step: what stands in it, and what instead.
GPT = [("50257", "97"), ("1024", "24"), ("3072", "96"), ("768", "48"), ("heads = 12", "heads = 4"),
       ("repeat = 12", "repeat = 2")]
LLAMA = [("49152", "97"), ("[512]", "[24]"), ("1536", "96"), ("576", "48"), ("heads = 9", "heads = 3"),
         ("kv_heads = 3", "kv_heads = 1"),
         ("repeat = 30", "repeat = 2"), ("= 64 ", "= 16 ")]
NARROWER = {"gpt2_124m": GPT, "gpt2_hf": GPT, "llama_hf": LLAMA, "llama_lora": LLAMA,
            "shakespeare_gpt": [("repeat = 4", "repeat = 2"), ("[64]", "[16]")],
            "mnist_resnet": [('require = "exact"', "")]}  # which refuses second_moment = "micro"
SMALL = ["regression", "small_gradients_f16", "gpt2_124m", "llama_lora"]  # for the emulator
MODELS = sorted(path.stem for path in harness.EXAMPLES.glob("*.toml"))
OPTIMIZERS = {"sgd": "lr = 0.05\nmomentum = 0.9", "adam": 'lr = 1e-3\nsecond_moment = "micro"',
              "adam_window": 'type = "adam"\nlr = 1e-3',
              "adamw": 'lr = 1e-3\ndecay = "matrices"', "lion": "lr = 1e-3\nweight_decay = 0.1", "lamb": "lr = 1e-2"}


def cells(variable, few, models=MODELS):
    """Some of the matrix, each with a generator of its own for what the matrix has not."""
    matrix = list(itertools.product(models, ["f32", "f16", "bf16"], OPTIMIZERS))
    for cell in random.Random(f"{SEED} {variable}").sample(matrix,
                                                           min(len(matrix), int(os.environ.get(variable, few)))):
        yield *cell, random.Random(f"{SEED} {variable} {cell}")


def compiled(model, artifact, **settings):
    """The artifact's plan, or the error."""
    done = run("gaccc", model, "-o", artifact, "--plan", "--json", *sets_of(settings), code=(0, 1))
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def compiled_with_all(model, artifact, **settings):
    """All on the host that may lie there, in the least memory that does without recompute."""
    settings |= {"recompute__policy": "none", "memory__host": "1GiB", "memory__budget": "1KiB"}
    error = compiled(model, artifact, **settings)
    least = re.search(r"needs at least ([\d.]+) ([KM])iB.* all that may lie there", error)
    expect(least, error)
    budget = int(float(least[1]) * {"K": 1 << 10, "M": 1 << 20}[least[2]])
    while isinstance(plan := compiled(model, artifact, **settings | {"memory__budget": f"{budget}B"}), str):
        budget += budget // 64
    return budget, plan["bytes"]["host"]


class Case:
    """A cell's model, without state on the host and with some and all of it there."""

    def __init__(self, folder, example, precision, optimizer, chance, lanes, device):
        self.folder, self.device = folder, device
        text = harness.example(example).read_text()
        for old, new in NARROWER.get(example, []):
            text = text.replace(old, new)
        keys = OPTIMIZERS[optimizer]
        text = re.sub(r"\[optimizer\]\n(.+\n)*", "[optimizer]\n"
                      + (keys if "type" in keys else f'type = "{optimizer}"\n{keys}') + "\n", text)
        self.model = folder / f"{example}.toml"
        self.model.write_text(text)
        micro = chance.choice([1, 3])
        self.settings = {"precision__compute": precision, "train__micro_batch": micro,
                         "train__lanes": 4 if lanes else chance.choice([1, 4]),
                         "train__accumulate": 4, "train__tail": chance.choice(["flush", "drop", "carry"]),
                         "train__epochs": 2 if device == "cpu" else 1,
                         "precision__on_nonfinite": "skip", "precision__loss_scale": "none"}
        if precision == "f16":  # so high a scale that something overflows
            self.settings.update(precision__loss_scale="dynamic", precision__scale_initial=1 << 24)
        if chance.random() < 0.5:
            self.settings["train__clip_norm"] = 0.5
        arrays = harness.make_arrays(self.model, samples := (10 if device == "cpu" else 5) * micro + 1, chance.random())
        for name, (values, shape) in arrays.items():
            if isinstance(values, bytes):
                values = harness.array.array("f", (v / 255 for v in values))
            if values.typecode == "f":
                values[len(values) // samples * 4 * micro] = 3e38  # in the second window
            arrays[name] = (values, shape)
        self.data = harness.write_arrays(folder, arrays)
        self.parts = ["none", "all"]
        plan = compiled(self.model, folder / "none.ptx", **self.settings)
        expect(not isinstance(plan, str), plan)
        peak = plan["bytes"]["peak"]
        least, possible = compiled_with_all(self.model, folder / "all.ptx", **self.settings)
        for _ in range(8 if possible else 0):  # as the dice say, until something lies there but not all
            plan = compiled(self.model, folder / "some.ptx", **self.settings,
                            memory__host=f"{chance.randrange(possible // 8, possible)}B",
                            memory__budget=f"{chance.randrange(least, max(peak, least + 1))}B")
            if not isinstance(plan, str) and 0 < plan["bytes"]["host"] < possible:
                self.parts.append("some")
                break

    def command(self, part, name, *words):
        return [harness.BIN / "gacc-exec", self.folder / f"{part}.ptx", "--data", self.data, "--save",
                f"{name}.safetensors", "--log", f"{name}.jsonl",
                "--checkpoint", name, "--checkpoint-every", 1, "--no-shuffle", "--threads", 1, "--device", self.device,
                *words]

    def result(self, name):
        """SHA-256 of the weights; of the checkpoint's tensors, and the rest of it without seconds; the log without
        them."""
        raw = (name / "checkpoint").read_bytes()
        size = 24 + struct.unpack("<Q", raw[-24:-16])[0]
        train = {k: v for k, v in json.loads(raw[-size:-24])["train"].items() if not k.startswith("seconds")}
        return (hashlib.sha256(pathlib.Path(f"{name}.safetensors").read_bytes()).hexdigest(),
                [hashlib.sha256(raw[:-size]).hexdigest(), train], ranks.events(f"{name}.jsonl"))

    def train(self, part, count=1):
        name = self.folder / f"{part}{count}"
        if count == 1:
            run(*self.command(part, name))
        else:
            ranks.mpirun(count, self.command(part, name))
        return self.result(name)

    def train_killed(self, one, chance):
        """kill -9 behind some lines of the log, and each time another part of the state on the host."""
        name, log, kills = self.folder / "killed", self.folder / "killed.jsonl", 0
        while True:
            process = subprocess.Popen([*map(str, self.command(chance.choice(self.parts), name, "--resume"))],
                                       stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
            lines = chance.randint(1, 3) + (log.read_text().count("\n") if log.exists() else 0)
            while kills < 4 and process.poll() is None and (not log.exists() or log.read_text().count("\n") < lines):
                time.sleep(0.001)
            if kills < 4:
                process.kill()
            error = process.communicate()[1].decode()
            if process.returncode == 0:
                ranks.same(self.result(name), one, f"after {kills} kills")
                return kills
            expect(process.returncode == -signal.SIGKILL, f"exit {process.returncode}: {error}")
            kills += 1


def check(folder, cells, with_it):
    """The bits of each cell without state on the host, and with: some, all, and what `with_it` does further."""
    wrong = []
    for number, (example, precision, optimizer, chance) in enumerate(cells):
        inside = folder / str(number)
        inside.mkdir()
        name = f"{number}: {example}, {precision}, {optimizer}"
        try:
            case = Case(inside, example, precision, optimizer, chance, with_it is on_ranks,
                        "cpu" if with_it else "emulate")
            name += f", {case.settings}"
            one = case.train("none")
            for part in case.parts[1:]:
                ranks.same(case.train(part), one, f"{part} on the host")
            said = with_it(case, one, chance) if with_it else ""
            skipped = sum(e.get("skipped") is True for e in one[2])
            print(f"{name}, {'/'.join(case.parts)}, {skipped} of {len(one[2])} skipped{said}", flush=True)
        except harness.Failed as error:
            wrong.append(f"{name}: {error}")
            print("WRONG", wrong[-1], flush=True)
        shutil.rmtree(inside)
    expect(not wrong, f"{len(wrong)} cells:\n" + "\n".join(wrong))


def killed(case, one, chance):
    kills = case.train_killed(one, chance)
    return f", {kills} kills"


def on_ranks(case, one, chance):
    """On some ranks that each have all of the optimizer's state, and on some that share it."""
    said = ""
    for shard in ("none", "optimizer"):
        count = chance.choice([1, 2, 3, 4])
        shared = {"train__ranks": count, "memory__shard": shard}
        host = compiled_with_all(case.model, case.folder / "ranks.ptx", **case.settings, **shared)[1]
        ranks.same(case.train("ranks", count), one, f"{count} ranks, shard {shard}")
        said += f", {count} ranks ({shard}): {host} bytes"
    return said


def test_the_bits_are_those_without(folder):
    check(folder, cells("GACC_HOST", 4), killed)


def test_the_emulator_has_the_same_bits_as_without(folder):
    check(folder, cells("GACC_HOST_EMULATED", 1, SMALL), None)


def test_ranks_have_the_same_bits(folder):
    ranks.need_mpi()
    check(folder, cells("GACC_HOST_RANKS", 1), on_ranks)


def test_the_plan_says_what_is_locked_and_what_it_costs(folder):
    model, artifact = harness.example("mnist_mlp"), folder / "all.ptx"
    settings = {"optimizer__type": "adamw", "precision__compute": "bf16", "recompute__policy": "none",
                "memory__host": "1GiB"}
    settings["memory__budget"] = f"{compiled_with_all(model, artifact, **settings)[0]}B"
    plan = compiled(model, artifact, **settings)
    host = plan["host"]
    expect(host["bytes"] == plan["bytes"]["host"] and host["link_seconds"] == host["link_bytes"] / 12e9, f"{host}")
    expect(0 < host["uncovered_seconds"] < 4 * host["link_seconds"], f"{host}")
    said = run("gaccc", model, "--plan", "--link", "24GB/s", *sets_of(settings)).stdout
    expect(f"{1e3 * host['link_bytes'] / 24e9:.2f} ms an update at 24 GB/s" in said, said)
    done = run("gacc-exec", artifact, "--data", harness.make_data(model, 64, folder), "--updates", 1, "--recheck", 1,
               "--log", folder / "log")
    expect(harness.read_log(folder / "log")[0]["arena_bytes"] == plan["bytes"]["peak"], done.stderr)
    settings |= {"optimizer__type": "lamb", "train__lanes": 4, "train__ranks": 4, "memory__shard": "optimizer"}
    said = run("gaccc", model, "--plan", *sets_of(settings | {"memory__budget": "16MiB"})).stdout
    expect("of state must stay there" in said, said)


def test_too_little_is_an_error_that_says_what_would_do(folder):
    model, words = harness.example("mnist_mlp"), ["--set", "recompute.policy=none", "--set", "precision.compute=bf16"]
    one_error(run("gaccc", model, "--set", "memory.host=1GiB", code=1), "needs a `memory.budget`")
    done = run("gaccc", model, *words, "--memory", "4MiB", "--set", "memory.host=3MiB", code=1)
    expect(re.search(r"needs .* the host has .* in its memory.host of .*, and might have ", done.stderr), done.stderr)
    done = run("gaccc", model, *words, "--memory", "1MiB", "--set", "memory.host=1GiB", code=1)
    expect("which is all that may lie there" in done.stderr, done.stderr)
    done = run("gaccc", model, *words, "--memory", "6MiB", "--host", "1MiB", code=1)
    host = re.search(r'; with memory.host = "(\d+B)" nothing is missing', done.stderr)
    expect(host, done.stderr)
    run("gaccc", model, *words, "--memory", "6MiB", "--host", host[1], "--plan")
    done = run("gaccc", model, *words, "--memory", "1MiB", "--host", "1MiB", code=1)
    expect(re.search(r"might have .*, with which it needs at least .* \(proven\)", done.stderr), done.stderr)


def test_five_points_say_what_the_host_saves(folder):
    """Each is a plan: what gaccc gives for just these bytes."""
    model, words = harness.example("mnist_mlp"), ["--set", "precision.compute=bf16"]
    done = run("gaccc", model, *words, "--memory", "9MiB", "--host", "1GiB", "--plan", "--json")
    curve = json.loads(done.stdout)["host"]["curve"]
    expect(len(curve) == 5 and curve[0]["host"] == 0, f"{curve}")
    for less, more in itertools.pairwise(curve):
        expect(less["host"] < more["host"] and less["arena"] >= more["arena"], f"{curve}")
    for point in curve:
        there = {"memory__host": f"{point['host']}B"} if point["host"] else {}
        plan = compiled(model, folder / "point.ptx", precision__compute="bf16", **there,
                        memory__budget=f"{point['arena']}B")
        expect(not isinstance(plan, str) and plan["bytes"]["peak"] <= point["arena"]
               and plan["bytes"]["host"] <= point["host"], f"{point}: {plan}")
    said = run("gaccc", model, *words, "--memory", "9MiB", "--host", "1GiB", "--plan").stdout
    expect(len(re.findall(r" on the host( \(proven\))?$", said, re.M)) == 5, said)
    expect("host" not in json.loads(run("gaccc", model, "--plan", "--json").stdout), "nobody asked for a host")


def test_fits_says_what_lies_on_the_host(folder):
    model, words = harness.example("mnist_mlp"), ["--set", "precision.compute=bf16", "--host", "1GiB"]
    said = run("gaccc", model, *words, "--fits", "6MiB,1GiB").stdout
    expect(re.search(r"^card +batch +peak +host +link +recompute", said, re.M), said)
    expect(re.search(r"^6.00 MiB +\S+ x \S+ +\S+ MiB +\S+ MiB +\d+.\d\d s ", said, re.M), said)
    expect(re.search(r"^1.00 GiB +\S+ x \S+ +\S+ MiB +none +none ", said, re.M), said)


harness.main(globals())
