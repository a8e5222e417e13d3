"""Weights in the host's memory (memory.host), frozen ones under adapters and half copies of trained ones: the bits, the
checkpoints and the log are those without.
GACC_WEIGHTS is the number of random models on the CPU (2), GACC_WEIGHTS_EMULATED that in the emulator (1);
GACC_WEIGHTS_SEED is where they begin (1)."""
import json
import os
import random
import re
import signal
import subprocess

import harness
from harness import expect, run, sets_of

SEED = int(os.environ.get("GACC_WEIGHTS_SEED", "1"))


def model_of(chance, adapted):
    """A random model of blocks and its settings: transformer blocks, or layers of an MLP, with adapters or all of it
    trained in half precision."""
    width = chance.choice([64, 96, 160])
    hidden, blocks, tokens = width * chance.choice([2, 3]), chance.randint(2, 5), chance.choice([8, 16])
    vocab = chance.choice([67, 128])
    tied = 'tied = "embed"' if chance.random() < 0.5 else ""
    attention = chance.random() < 0.7
    inside = f"""
[[layers.layers]]
type = "residual"
name = "mix"
[[layers.layers.layers]]
type = "rms_norm"
name = "ln"
[[layers.layers.layers]]
type = "attention"
name = "attn"
heads = 4
kv_heads = {chance.choice([1, 2, 4])}
causal = true
rope = {{ theta = 10000 }}
""" if attention else ""
    text = f"""[model]
name = "random"
[inputs.tokens]
shape = [{tokens}]
dtype = "i32"
[inputs.next]
shape = [{tokens}]
dtype = "i32"
[[layers]]
type = "embedding"
name = "embed"
vocab = {vocab}
features = {width}
[[layers]]
type = "sequential"
name = "layers"
repeat = {blocks}
{inside}
[[layers.layers]]
type = "residual"
name = "mlp"
[[layers.layers.layers]]
type = "rms_norm"
name = "ln"
[[layers.layers.layers]]
type = "linear"
name = "up"
features = {hidden}
activation = "{chance.choice(['silu', 'gelu', 'relu'])}"
[[layers.layers.layers]]
type = "linear"
name = "down"
features = {width}
[[layers]]
type = "rms_norm"
name = "norm"
[[layers]]
type = "linear"
name = "head"
features = {vocab}
bias = false
{tied}
[loss]
type = "cross_entropy"
target = "next"
[train]
micro_batch = 2
accumulate = 2
[optimizer]
type = "{chance.choice(['adamw', 'lion', 'sgd'])}"
lr = 1e-3
"""
    settings = {"precision__compute": chance.choice(["f16", "bf16"]), "train__micro_batch": chance.choice([1, 2, 4]),
                "train__accumulate": chance.choice([1, 2]), "train__clip_norm": 0.5}
    if not adapted:
        return text, settings
    text += f"""[lora]
match = ["layers.*"]
rank = {chance.choice([2, 4])}
alpha = 8
"""
    settings["precision__compute"] = chance.choice(["f32", "f16", "bf16"])
    settings["precision__frozen"] = chance.choice(["compute", "q8_0", "q4_0"])
    return text, settings


def compiled(model, artifact, **settings):
    """The artifact's plan, or the error."""
    done = run("gaccc", model, "-o", artifact, "--plan", "--json", *sets_of(settings), code=(0, 1))
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def least_arena(model, artifact, **settings):
    """The least that a plan of the settings needs, proven."""
    error = compiled(model, artifact, **settings, memory__budget="1KiB")
    number, unit = re.search(r"needs at least ([\d.]+) ([KM])iB", error).groups()
    return int(float(number) * {"K": 1 << 10, "M": 1 << 20}[unit])


class Case:
    def __init__(self, folder, chance, device, adapted):
        self.folder, self.model, self.device = folder, folder / "model.toml", device
        text, self.settings = model_of(chance, adapted)
        self.model.write_text(text)
        micro = self.settings["train__micro_batch"]
        self.data = harness.make_data(self.model, (4 if device == "cpu" else 1) * micro + 1, folder)
        plan = compiled(self.model, folder / "none.ptx", **self.settings)
        expect(not isinstance(plan, str), plan)
        self.peak, self.parts, self.plans = plan["bytes"]["peak"], ["none"], {}
        # All that may lie there in as little as a plan is found for; and less of it.
        least = least_arena(self.model, folder / "all.ptx", **self.settings, memory__host="1GiB")
        for part, share, host in (("all", 0.02, "1GiB"), ("some", chance.uniform(0.1, 0.6), "1GiB"),
                                  ("limited", chance.uniform(0.2, 0.6), f"{chance.randrange(8, 200)}KiB")):
            budget = least + int((self.peak - least) * share)
            for _ in range(12):
                plan = compiled(self.model, folder / f"{part}.ptx", **self.settings, memory__host=host,
                                memory__budget=f"{budget}B")
                if not isinstance(plan, str) or budget >= self.peak:
                    break
                budget += max(256, (self.peak - budget) // 8)
            if not isinstance(plan, str) and plan["bytes"]["host"] > 0:
                expect(plan["bytes"]["peak"] <= budget, f"{plan['bytes']} in {budget}")
                self.parts.append(part)
                self.plans[part] = plan

    def command(self, part, name, *words):
        return [harness.BIN / "gacc-exec", self.folder / f"{part}.ptx", "--data", self.data, "--save",
                f"{name}.safetensors", "--log", f"{name}.jsonl", "--eval", self.data, "--checkpoint", name,
                "--checkpoint-every", 1, "--no-shuffle", "--threads", 1, "--device", self.device, "--epochs",
                2 if self.device == "cpu" else 1, *words]

    def result(self, name):
        """The weights, and all that the log says but times and bytes."""
        events = [{k: v for k, v in event.items() if not re.search("second|bytes|arena|host|time", k)}
                  for event in harness.read_log(f"{name}.jsonl")[1:]]
        return (self.folder / f"{name.name}.safetensors").read_bytes(), events

    def train(self, part):
        name = self.folder / part
        run(*self.command(part, name))
        arena = harness.read_log(f"{name}.jsonl")[0]["arena_bytes"]
        if part in self.plans:
            expect(arena == self.plans[part]["bytes"]["peak"], f"{arena} and {self.plans[part]['bytes']}")
        return self.result(name)

    def train_killed(self, chance):
        """kill -9 twice, and each time another part of the weights on the host."""
        name, log = self.folder / "killed", self.folder / "killed.jsonl"
        for kill in (True, True, False):
            process = subprocess.Popen([*map(str, self.command(chance.choice(self.parts), name, "--resume"))],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
            lines = 2 + (log.read_text().count("\n") if log.exists() else 0)
            while kill and process.poll() is None and (not log.exists() or log.read_text().count("\n") < lines):
                pass
            if kill:
                process.send_signal(signal.SIGKILL)
            error = process.communicate()[1].decode()
            expect(process.returncode in ((0, -signal.SIGKILL) if kill else (0,)), error)
        return self.result(name)[0]


def check(folder, variable, few, device, adapted):
    hosted = 0
    for seed in range(SEED, SEED + int(os.environ.get(variable, few))):
        chance = random.Random(seed)
        inside = folder / str(seed)
        inside.mkdir()
        case = Case(inside, chance, device, adapted)
        one = case.train("none")
        for part in case.parts[1:]:
            other = case.train(part)
            expect(other[0] == one[0], f"{seed}: {case.settings}: the weights with {part} on the host are others")
            expect(other[1] == one[1], f"{seed}: {case.settings}: the log with {part} on the host is another")
        if device == "cpu":
            expect(case.train_killed(chance) == one[0], f"{seed}: {case.settings}: other weights after kills")
        said = [f"{part} {case.plans[part]['host']['weights']}/{case.plans[part]['host']['fetches']}"
                for part in case.parts[1:]]
        hosted += sum(plan["host"]["weights"] for plan in case.plans.values())
        print(seed, case.settings, *said, flush=True)
    expect(hosted > 0, "no weight lay on the host")


def test_the_bits_are_those_without(folder):
    check(folder, "GACC_WEIGHTS", 2, "cpu", adapted=True)


def test_half_copies_there_leave_the_bits_as_they_are(folder):
    check(folder, "GACC_WEIGHTS", 2, "cpu", adapted=False)


def test_the_emulator_has_the_same_bits_as_without(folder):
    check(folder, "GACC_WEIGHTS_EMULATED", 1, "emulate", adapted=True)


def test_the_emulator_has_the_same_bits_with_half_copies_there(folder):
    check(folder, "GACC_WEIGHTS_EMULATED", 1, "emulate", adapted=False)


harness.main(globals())
