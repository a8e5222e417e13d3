"""--checkpoint and --resume: a run that is killed, interrupted or stopped anywhere, and resumed, ends with the bytes of
the run without a break: weights, and the log but for its seconds. GACC_KILLS sets the number of kill -9 rounds (12)."""
import array
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

import harness
from harness import BIN, expect, run

KILLS = int(os.environ.get("GACC_KILLS", "12"))


def without_seconds(log):
    return [{k: v for k, v in e.items() if k != "seconds"} for e in harness.read_log(log)]


class Case:
    """A model, its data, the run without a break, and broken runs of the same command."""

    def __init__(self, folder, samples=333, limits=("--epochs", 3), example="mnist_mlp", options=(), **settings):
        folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
        self.folder, self.count, self.limits, self.options = folder, 0, limits, options
        model = harness.example(example)
        self.spec = harness.make_data(model, samples, folder)
        self.artifact = harness.compile_model(model, folder / "step.ptx", **settings)
        self.whole, self.whole_log = folder / "whole.safetensors", folder / "whole.jsonl"
        run("gacc-exec", *self.command(self.whole, self.whole_log), *limits)
        begin = time.monotonic()  # the second time, with the kernels in the cache
        run("gacc-exec", *self.command(self.whole, self.whole_log), *limits, "--checkpoint", folder / "whole")
        self.seconds = time.monotonic() - begin

    def command(self, weights, log):
        return [self.artifact, "--data", self.spec, "--eval", self.spec, "--device", "cpu", "--save", weights, "--log",
                log,
                *self.options]

    def fresh(self):
        """The next broken run: its weights, log and options."""
        self.count += 1
        name = self.folder / f"broken{self.count}"
        self.weights, self.log, self.checkpoint = name.with_suffix(".safetensors"), name.with_suffix(".jsonl"), name
        return self

    def go(self, *options, **how):
        return run("gacc-exec", *self.command(self.weights, self.log), "--checkpoint", self.checkpoint, "--resume",
                   *options,
                   **how)

    def start(self, *options):
        command = [BIN / "gacc-exec", *self.command(self.weights, self.log), "--checkpoint", self.checkpoint,
                   "--resume",
                   *self.limits, *options]
        return subprocess.Popen([str(w) for w in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE)

    def check(self, what):
        expect(self.weights.read_bytes() == self.whole.read_bytes(), f"{what}: the weights differ")
        a, b = without_seconds(self.log), without_seconds(self.whole_log)
        for x, y in zip(a, b):
            expect(x == y, f"{what}: the logs differ:\n{x}\n{y}")
        expect(len(a) == len(b), f"{what}: the logs have {len(a)} and {len(b)} lines")
        expect(sorted(p.name for p in self.checkpoint.iterdir()) == ["checkpoint"], f"{what}: left in the folder")


def kill_rounds(case, rounds, chance, options):
    """kill -9 at random moments, each followed by --resume; a run that comes to its end counts for the next one."""
    killed, runs = 0, 0
    while killed < rounds:
        case.fresh()
        runs += 1
        while True:
            process = case.start(*options)
            try:
                process.wait(timeout=chance.uniform(0.02, 0.9 * case.seconds + 0.05) if killed < rounds else 300)
            except subprocess.TimeoutExpired:
                process.kill()
            error = process.communicate()[1].decode()
            if process.returncode == 0:
                break
            expect(process.returncode == -signal.SIGKILL, f"exit {process.returncode}: {error}")
            killed += 1
        case.check(f"after {killed} kills")
        shutil.rmtree(case.checkpoint)
    return killed, runs


def test_kill_9(folder):
    """Pain 19: every part of the state survives, or the bits would differ. On 1 and on 2 threads."""
    chance = random.Random(os.environ.get("GACC_SEED", "7"))
    case = Case(folder, samples=1003)
    for threads in (1, 2):
        for every in ([], ["--checkpoint-every", 1]):
            killed, runs = kill_rounds(case, -(-KILLS // 4), chance, ["--threads", threads, *every])
            print(f"{threads} threads {every}: {killed} kills in {runs} runs", flush=True)


def read_state(case):
    raw = (case.checkpoint / "checkpoint").read_bytes()
    size = int.from_bytes(raw[-24:-16], "little")
    return json.loads(raw[-24 - size:-24])["train"]


def test_a_finished_run_goes_on(folder):
    """With carry the window that is open at the end is saved, not applied, and a longer run continues it."""
    for tail in ("flush", "carry"):
        case = Case(folder, samples=73, limits=("--epochs", 3), train__micro_batch=8, train__accumulate=4,
                    train__tail=tail)
        case.fresh()
        case.go("--epochs", 1)
        expect(read_state(case)["window.launches"] == (2 if tail == "carry" else 0), f"{tail}: the open window")
        once = case.weights.read_bytes(), without_seconds(case.log)
        case.go("--epochs", 1)
        expect(once == (case.weights.read_bytes(), without_seconds(case.log)), "nothing was left to do")
        gradients = folder / f"{tail}.gradients"  # of the open window under carry; else of one that another process had
        text = case.go("--epochs", 1, "--dump-grads", gradients).stderr
        expect(gradients.exists() == (tail == "carry") == ("nothing was launched" not in text), text)
        case.go(*case.limits)
        case.check(tail)


def test_another_plan_of_the_model_goes_on(folder):
    """The plan of memory, the GPU of the launches and recompute change no bit of a model with attention."""
    folder, model = pathlib.Path(tempfile.mkdtemp(dir=folder)), harness.ROOT / "tests/parity/models/attention.toml"
    spec, lanes = harness.make_data(model, 40, folder), {"train__accumulate": 4, "train__lanes": 4}
    first = harness.compile_model(model, folder / "first.ptx", **lanes)
    plans = [harness.compile_model(model, folder / "target.ptx", target="sm_90", **lanes),
             harness.compile_model(model, folder / "recompute.ptx", recompute__policy='"all"', **lanes),
             harness.compile_model(model, folder / "graph.ptx", launch__mode='"graph"', **lanes)]

    def train(artifact, name, *options):
        weights = folder / f"{name}.safetensors"
        run("gacc-exec", artifact, "--data", spec, "--device", "cpu", "--save", weights, "--quiet", *options)
        return weights.read_bytes()

    whole = train(first, "whole", "--epochs", 4)
    pieces = ("--checkpoint", folder / "pieces", "--resume")
    train(first, "part", "--updates", 2, *pieces)
    for i, plan in enumerate(plans):
        train(plan, "part", "--updates", 3 + i, *pieces)
    expect(train(first, "end", "--epochs", 4, *pieces) == whole, "another plan changed the weights")


def test_signals(folder):
    """SIGTERM, SIGINT and SIGHUP finish the launch, write the checkpoint, say so and give 130."""
    case = Case(folder, samples=2003)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        case.fresh()
        interrupted = 0
        for attempt in range(50):
            process = case.start("--eval-every", 5)
            try:  # longer each time: how long a start takes of a run depends on the machine
                process.wait(timeout=(0.3 + 0.05 * attempt) * case.seconds + 0.1)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
            error = process.communicate(timeout=60)[1].decode()
            if process.returncode == 0:
                break
            expect(process.returncode == 130 or process.returncode == -number, f"exit {process.returncode}: {error}")
            if process.returncode == 130:
                interrupted += 1
                expect("interrupted" in error and f"--resume continues from {case.checkpoint}/checkpoint" in error,
                       error)
        expect(process.returncode == 0, "the run does not come to its end")
        run("gacc-exec", *case.command(case.whole, case.whole_log), *case.limits, "--eval-every", 5)
        case.check(f"{number.name}, {interrupted} times")


def test_nohup_goes_on(folder):
    case = Case(folder, samples=2003)
    case.fresh()
    command = ["nohup", BIN / "gacc-exec", *case.command(case.weights, case.log), *case.limits]
    process = subprocess.Popen([str(w) for w in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    time.sleep(0.3 * case.seconds)
    process.send_signal(signal.SIGHUP)
    expect(process.wait(timeout=60) == 0, process.stderr.read().decode())
    expect(case.weights.read_bytes() == case.whole.read_bytes(), "the weights differ")


def test_weights_that_are_not_finite_are_not_written(folder):
    """The run ends with exit 1, names tensor and element, and leaves every file as it was: the last good checkpoint,
    too."""
    model = """model = { name = "m", seed = 1 }
inputs = { x = { shape = [3] }, y = { shape = [1] } }
loss = { type = "mse", target = "y" }
optimizer = { type = "sgd", lr = 1e-3 }
train = { micro_batch = 2, shuffle = false }
[[layers]]
type = "linear"
name = "o"
features = 1
%s"""
    harness.write_npy(folder / "x.npy", array.array("f", [1.0] * 6), [2, 3])
    harness.write_npy(folder / "y.npy", array.array("f", [-9.0, -9.0]), [2, 1])
    for adapted in ("", 'lora = { rank = 1, alpha = 1 }\n'):
        (folder / "m.toml").write_text(model % adapted)
        run("gaccc", folder / "m.toml", "-o", folder / "m.ptx")
        command = ["gacc-exec", folder / "m.ptx", "--data", f"npy:x={folder}/x.npy,y={folder}/y.npy", "--device", "cpu"]
        outputs = {"--save": folder / "w.safetensors", "--save-best": folder / "best.safetensors"}
        if adapted:
            outputs["--save-adapter"] = folder / "adapter.safetensors"
        for option, file in outputs.items():
            more = ["--eval", command[3]] if option == "--save-best" else []
            run(*command, option, file, *more)
            good = file.read_bytes()
            done = run(*command, option, file, *more, "--lr", "3e38", code=1)
            expect(f'{file} is not written: tensor "o.' in done.stderr and " at " in done.stderr, done.stderr)
            expect(file.read_bytes() == good, f"{option}: the file has changed")
        checkpoint = ["--checkpoint", folder / f"ck{len(adapted)}"]
        run(*command, *checkpoint, "--epochs", 1)
        done = run(*command, *checkpoint, "--resume", "--epochs", 2, "--lr", "3e38", code=1)
        expect('checkpoint is not written: tensor "o.' in done.stderr, done.stderr)
        run(*command, *checkpoint, "--resume", "--epochs", 3, "--lr", "1e-3")


def test_refusals(folder):
    """A damaged, partial or foreign file is refused with what is wrong, and left as it is."""
    case = Case(folder, samples=73, limits=("--epochs", 1))
    case.fresh()
    nothing = case.go("--updates", 1)
    expect(f"no checkpoint in {case.checkpoint}: starting from the beginning" in nothing.stderr, nothing.stderr)
    file = case.checkpoint / "checkpoint"
    good, chance = file.read_bytes(), random.Random(3)
    for size in [0, 1, 23, 24, len(good) - 1, *(chance.randrange(len(good)) for _ in range(8))]:
        file.write_bytes(good[:size])
        harness.one_error(case.go("--epochs", 1, code=1), "checkpoint is damaged")
        expect(file.read_bytes() == good[:size], "the refused file was changed")
    file.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    harness.one_error(case.go("--epochs", 1, code=1), "damaged", "fc1.weight")
    file.write_bytes(b"something else entirely, longer than a head\n")
    harness.one_error(case.go("--epochs", 1, code=1), "is no checkpoint of gacc")
    file.write_bytes(good)

    def refused(words, *options, spec=None, **settings):
        artifact = harness.compile_model(harness.example("mnist_mlp"), folder / "other.ptx", **settings)
        done = run("gacc-exec", artifact, "--data", spec or case.spec, "--device", "cpu", "--checkpoint",
                   case.checkpoint,
                   "--resume", *options, code=1)
        harness.one_error(done, "cannot resume from", *words)

    refused(["train.micro_batch", "16", "32"], train__micro_batch=16)
    refused(["train.accumulate"], train__accumulate=2)
    refused(["train.tail", "carry"], train__tail="carry")
    refused(["optimizer.beta1", "0.5"], optimizer__betas="[0.5,0.999]")
    refused(['optimizer.type was "adam", and is "lion" now'], optimizer__type="lion")
    refused(['precision.compute was "f32", and is "f16" now'], precision__compute="f16")
    refused(["fc1.weight", "f32[512, 784]", "f32[64, 784]"], layers__fc1__features=64)
    refused(["what the model computes"], layers__fc1__activation="tanh")
    refused(["model.name", "other"], model__name="other")
    refused(["the seed"], "--seed", 1)
    refused(["train.shuffle"], "--no-shuffle")
    refused(["optimizer.lr", "--lr"], optimizer__lr=0.5)
    refused(["number of training samples", "73", "60"], spec=case.spec + ",limit=60")
    (folder / "data").mkdir()
    refused(["training data"], spec=harness.make_data(harness.example("mnist_mlp"), 73, folder / "data", seed=2))
    expect(file.read_bytes() == good, "a refusal changed the checkpoint")
    case.go("--epochs", 1, "--lr", 0.5)  # what may differ


def test_command_line(folder):
    case = Case(folder, samples=33, limits=("--epochs", 1))
    base = [case.artifact, "--data", case.spec, "--device", "cpu"]
    for wrong in (["--resume"], ["--checkpoint-every", 1], ["--checkpoint", folder / "c", "--checkpoint-every", 0],
                  ["--checkpoint", folder / "c", "--init-only"]):
        run("gacc-exec", *base, *wrong, code=2)
    harness.one_error(run("gacc-exec", *base, "--checkpoint", case.artifact, code=1), "checkpoint folder")


def listed(case):
    return {p.name: p.read_bytes() for p in case.checkpoint.iterdir()}


def test_the_checkpoint_of_another_run_stays(folder):
    """Without --resume: who reads the warning and presses Ctrl-C loses nothing, however often; nor does who lets it
    run."""
    case = Case(folder, samples=73, limits=("--epochs", 2)).fresh()
    case.go(*case.limits)
    kept = [listed(case)["checkpoint"]]
    old = f"{case.checkpoint}/checkpoint.old"
    for _ in range(3):
        command = [BIN / "gacc-exec", *case.command(case.weights, case.log), "--checkpoint", case.checkpoint,
                   "--epochs", 100000]
        process = subprocess.Popen([str(w) for w in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True)
        lines = [process.stderr.readline()]
        while "without --resume" not in lines[-1]:
            expect(lines[-1], f"no warning: {lines}")
            lines.append(process.stderr.readline())
        process.send_signal(signal.SIGINT)
        text = lines[-1] + process.communicate(timeout=60)[1]
        expect(process.returncode == 130, f"exit {process.returncode}: {text}")
        expect(f"will replace {case.checkpoint}/checkpoint, which stays as {old}" in text, text)
        expect((f"(and the one there as {old}.{len(kept)})" in text) == (len(kept) > 1), text)
        expect(f"the checkpoint that was in {case.checkpoint}/checkpoint is kept as {old}\n" in text, text)
        expect(f"--resume continues from {case.checkpoint}/checkpoint\n" in text, text)
        found = listed(case)
        numbers = ["", *(f".{n}" for n in range(2, len(kept) + 1))]
        order = [kept[-1], *kept[:-1]]  # the last one is .old, the first one .old.2
        expect({f"checkpoint.old{n}": b for n, b in zip(numbers,
                                                        order)} == {n: b for n,
                                                                    b in found.items() if n != "checkpoint"},
               f"not what was there before: {sorted(found)}")
        kept.append(found["checkpoint"])
    done = run("gacc-exec", *case.command(case.weights, case.log), "--checkpoint", case.checkpoint,
               "--checkpoint-every", 1, *case.limits)
    expect(done.stderr.count("is kept as") == 1, "only the first replacement keeps what was there:\n" + done.stderr)
    expect(set(kept) < set(listed(case).values()), "a checkpoint is gone")
    file = case.checkpoint / "checkpoint"
    file.unlink()
    expect(f"{old} is not read unless it is called {file}" in case.go("--updates", 1).stderr,
           "nothing is said of the old ones")
    (case.checkpoint / "checkpoint.old.2").rename(file)
    case.go(*case.limits)
    expect(case.weights.read_bytes() == case.whole.read_bytes(), "the first run does not go on")


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define REAL(name) ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, #name))
static void step(const char* path) {
  static int count;
  if (strstr(path, getenv("DIE_IN")) && ++count == atoi(getenv("DIE_AT"))) kill(getpid(), SIGKILL);
}
int rename(const char* from, const char* to) { return step(to), REAL(rename)(from, to); }
int unlink(const char* path) { return step(path), REAL(unlink)(path, 0); }
int link(const char* from, const char* to) {
  step(to);
  return getenv("NO_LINKS") ? errno = EPERM, -1 : REAL(link)(from, to);
}
int fsync(int fd) {
  char name[64], path[4096] = "";
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  if (readlink(name, path, sizeof path - 1) > 0) step(path);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""


def test_killed_while_another_checkpoint_is_replaced(folder):
    """kill -9 before each of the calls that change the folder, also where a file system knows no hard links: what was
    there is there, and --resume goes on from a whole checkpoint, or says that there is none."""
    (folder / "shim.c").write_text(SHIM)
    if subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"],
                      capture_output=True).returncode != 0:
        harness.skip("no C compiler here")
    case = Case(folder, samples=20, limits=("--updates", 2), example="regression").fresh()
    case.go(*case.limits)
    earlier, where = (case.checkpoint / "checkpoint").read_bytes(), case.checkpoint.resolve()
    for more in ({}, {"NO_LINKS": "1"}):
        environment = {**os.environ, **more, "LD_PRELOAD": str(folder / "shim.so"), "DIE_IN": f"{where}/"}
        if run("gacc-exec", "--version", code=(0, 1), env={**environment, "DIE_AT": "0"}).returncode != 0:
            harness.skip("nothing can be loaded into these binaries (a sanitizer's?)")
        killed, status = 0, -signal.SIGKILL
        while status == -signal.SIGKILL:
            shutil.rmtree(where)
            where.mkdir()
            (where / "checkpoint").write_bytes(earlier)
            (where / "checkpoint.old").write_bytes(b"an older one")
            status = run("gacc-exec", *case.command(case.weights, case.log), "--checkpoint", where, "--updates", 1,
                         code=(0, -signal.SIGKILL), env={**environment, "DIE_AT": str(killed + 1)}).returncode
            killed += status == -signal.SIGKILL
            found, what = listed(case), f"killed before call {killed}, {more}"
            expect(earlier in found.values() and b"an older one" in found.values(), f"{what}: {sorted(found)}")
            expect("checkpoint" in found or more, f"{what}: there is none: {sorted(found)}")
            text = case.go("--updates", 2).stderr
            expect(("resuming from" if "checkpoint" in found else "checkpoint.old is not read") in text,
                   f"{what}: {text}")
            expect(earlier in listed(case).values() and case.weights.read_bytes() == case.whole.read_bytes(), what)
            expect(not [n for n in listed(case) if n.startswith(".")], f"{what}: left behind: {sorted(listed(case))}")
        expect(killed >= 4, f"killed only {killed} times")
        print(f"killed before each of {killed} calls {more}")


def test_logs(folder):
    """Another run's log is not continued but replaced as a whole; a new name begins a new log."""
    case = Case(folder, samples=73, limits=("--epochs", 2), train__micro_batch=8, train__accumulate=4)
    case.fresh()
    case.log.write_text("another run's log, longer than what this one writes until its first checkpoint\n" * 50)
    case.go("--updates", 1)
    case.log.write_text("again another\n")
    expect("a new one begins" in case.go("--updates", 2).stderr, "nothing is said of a log that does not fit")
    expect([e["event"] for e in harness.read_log(case.log)][0] == "start", "a new log begins with its start")
    case.log = folder / "later.jsonl"
    case.go("--epochs", 2)
    numbers = [e["update"] for e in harness.updates_of(case.log)]
    expect(numbers and numbers[0] == 3, f"a new log has what is new: {numbers}")


def test_tensorboard(folder):
    """Event files are written, and a resumed run begins another one in the same folder."""
    case = Case(folder, samples=73, limits=("--epochs", 2))
    case.fresh()
    case.go("--updates", 1, "--tensorboard", folder / "board")
    case.go("--epochs", 2, "--tensorboard", folder / "board")
    files = sorted((folder / "board").iterdir())
    expect(len(files) == 2, f"one file a process: {files}")
    text = b"".join(f.read_bytes() for f in files)
    for tag in ("brain.Event:2", "loss", "lr", "grad_norm", "loss_scale", "epoch/loss", "eval/loss", "eval/accuracy"):
        expect(tag.encode() in text, f"no {tag} in the event files")
    case.check("with --tensorboard")


harness.main(globals())
