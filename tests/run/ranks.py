"""Several ranks, started by mpirun: the same bits for any number of them, whatever breaks in between, and one clear
error where they cannot begin. GACC_RANKS=all tries every number of ranks; GACC_KILLS is the number of kill -9 rounds,
GACC_MODELS that of random models."""
import array
import hashlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

import harness
from harness import BIN, expect

ALL = os.environ.get("GACC_RANKS") == "all"
KILLS = int(os.environ.get("GACC_KILLS", "2"))
MODELS = int(os.environ.get("GACC_MODELS", "12"))
# As root Open MPI wants to be asked twice; ranks find each other in this machine's memory; and mpirun waits for no one
# after an error.
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_btl": "self,vader", "OMPI_MCA_odls_base_sigkill_timeout": "0"}
MPIRUN = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
# Above these seconds a command hangs: no rank may do so, whatever happens.
LIMIT = 120


def need_mpi():
    if not MPIRUN:
        harness.skip("no mpirun here")
    if not (BIN / "libgacc-mpi.so").exists():
        harness.skip("built without MPI")
    if harness.sanitized():
        harness.skip("Open MPI leaks by the sanitizers' measure")


def words(ranks, *commands):
    """mpirun's command line; commands are one for all ranks, or one each."""
    parts = []
    for i, command in enumerate(commands):
        parts += [":"] * (i > 0) + ["-n", str(ranks if len(commands) == 1 else 1), *map(str, command)]
    return [MPIRUN, "--oversubscribe", "--bind-to", "none", *parts]


def mpirun(ranks, *commands, code=0, limit=LIMIT, **variables):
    done = subprocess.run(words(ranks, *commands), capture_output=True, text=True, timeout=limit,
                          stdin=subprocess.DEVNULL,
                          env={**ENVIRONMENT, **variables})
    expect(code is None or done.returncode == code,
           f"exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
    return done


def one_error(done, *parts):
    """Exit 1 and one line of gacc-exec's that says what is wrong; the launcher says more."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("gacc-exec: ")]
    expect(done.returncode == 1, f"exit {done.returncode}, expected 1\n{done.stderr}")
    expect(len(lines) == 1 and "error:" in lines[0], f"expected one error, got {len(lines)} lines:\n{done.stderr}")
    for part in parts:
        expect(str(part) in lines[0], f"the error does not say {part!r}:\n{lines[0]}")


def buffers(checkpoint):
    """Name and checksum of every buffer of a checkpoint."""
    raw = (checkpoint / "checkpoint").read_bytes()
    table = json.loads(raw[-24 - struct.unpack("<Q", raw[-24:-16])[0]:-24])
    return [(t["name"], t["shape"], t["crc32"]) for t in table["tensors"]]


def events(log):
    changing = ("seconds", "ranks", "arena_bytes", "peak_bytes")
    return [{k: v for k, v in e.items() if k not in changing} for e in harness.read_log(log)]


class Case:
    count = 0  # of runs, of all cases

    def __init__(self, folder, example="mnist_mlp", samples=109, device="cpu", limits=("--epochs", 2), model=None,
                 spec=None,
                 **settings):
        self.folder, self.limits = folder, limits
        model = model or harness.example(example)
        self.spec = spec or harness.make_data(model, samples, folder)
        name = "-".join(str(v) for v in settings.values())
        self.artifact = harness.compile_model(model, folder / f"{model.stem}{name}.ptx", **settings)
        self.device = device

    def command(self, weights, *options):
        out = [] if weights is None else ["--save", f"{weights}.safetensors", "--log", f"{weights}.jsonl",
                                          "--checkpoint", weights]
        return [BIN / "gacc-exec", self.artifact, "--data", self.spec, "--eval", self.spec, "--device", self.device,
                "--threads", 1, *out, *options]

    def result(self, name):
        digest = hashlib.sha256(pathlib.Path(f"{name}.safetensors").read_bytes()).hexdigest()
        return digest, buffers(name), events(f"{name}.jsonl")

    def train(self, ranks, *options, **variables):
        Case.count += 1
        name = self.folder / f"run{Case.count}"
        done = mpirun(ranks, self.command(name, *self.limits, *options), **variables)
        self.said = done.stdout + done.stderr
        return self.result(name)


def same(got, one, what):
    for a, b, part in zip(got, one, ("the weights", "the checkpoint's buffers", "the log")):
        if isinstance(a, list):
            for x, y in zip(a, b):
                expect(x == y, f"{what}: {part} differ:\n{x}\n{y}")
        expect(a == b, f"{what}: {part} differ")


def same_for(case, some):
    one = case.train(1)
    for ranks in range(2, 9) if ALL else some:
        same(case.train(ranks), one, f"{ranks} ranks")


def lanes(**settings):
    return dict(train__lanes=8, train__accumulate=8, train__micro_batch=4, **settings)


def shared(ranks, **settings):
    return lanes(memory__shard="optimizer", train__ranks=ranks, **settings)


# 109 samples: 28 micro-batches, the last of one sample, the last window of 4.
def test_same_bits_on_a_cpu(folder):
    same_for(Case(folder, **lanes()), (2, 3, 8))


def test_the_first_rank_alone_speaks(folder):
    """Epochs, evaluations and warnings are told once, --quiet or not."""
    case = Case(folder, train__lanes=4, train__accumulate=4)
    for more in ((), ("--quiet",)):
        case.train(3, *more)
        lines = [line for line in case.said.splitlines() if line.strip()]
        expect(sum(line.startswith("epoch 1:") for line in lines) == 1, case.said)
        expect(sum(line.startswith("eval, epoch 2") for line in lines) == 1, case.said)
        expect(len(lines) == len(set(lines)), f"a line stands twice:\n{case.said}")


def test_same_bits_in_f16(folder):
    same_for(Case(folder, "mnist_mlp_f16", **lanes()), (3, 4))


def test_same_bits_in_the_emulator(folder):
    for precision in ("f32", "f16"):
        same_for(Case(folder, "regression", device="emulate", samples=61, limits=("--epochs", 1),
                      precision__compute=precision,
                      **lanes()), (3,))


def test_running_statistics(folder):
    """Those of batch_norm move as on one rank, and as without lanes."""
    case = Case(folder, "mnist_cnn", samples=61, **lanes())
    one = case.train(1)
    for ranks in (2, 3):
        same(case.train(ranks), one, f"{ranks} ranks")
    found = [harness.read_safetensors(folder / f"run{Case.count}.safetensors")]
    Case(folder, "mnist_cnn", samples=61, train__accumulate=8, train__micro_batch=4).train(1)
    found.append(harness.read_safetensors(folder / f"run{Case.count}.safetensors"))
    worst, who = harness.far_apart(*found)
    expect(worst <= 1e-4, f"{who} is {worst:.2e} from the run without lanes")
    expect(any("running" in name for name in found[0]), "there are running statistics")


def test_same_bits_where_windows_cross_epochs(folder):
    same_for(Case(folder, limits=("--epochs", 3), **lanes(train__tail="carry")), (3,))


RANDOM_MODEL = """
[model]
name = "random"
seed = {seed}
metrics = ["accuracy", "perplexity"]
[inputs.x]
shape = {shape}
[inputs.y]
dtype = "i32"
range = 5
{layers}
[[layers]]
type = "linear"
name = "out"
features = 5
[loss]
type = "cross_entropy"
target = "y"
[train]
micro_batch = {micro}
accumulate = {accumulate}
lanes = {lanes}
tail = "{tail}"
{clip}
[optimizer]
lr = 0.01
{optimizer}
[schedule]
{schedule}
[precision]
compute = "{precision}"
[recompute]
policy = "{recompute}"
[launch]
mode = "{launch}"
"""
OPTIMIZERS = (('type = "sgd"',), ('type = "sgd"', "momentum = 0.9"), ('type = "adam"',),
              ('type = "adam"', 'second_moment = "micro"'),
              ('type = "adamw"', 'second_moment = "micro"'), ('type = "lion"',),
              ('type = "lamb"', "weight_decay = 0.1"))
SCHEDULES = (('type = "plateau"', "patience = 0", "factor = 0.5"), ('type = "cosine"', "total = 20", "warmup = 3"))


def random_model(number, features=(3, 8, 17)):
    """Draws what goes into RANDOM_MODEL. Every precision, tail and optimizer comes among any seven in a row."""
    chance = random.Random(number)
    pick = chance.choice
    V, image = pick((2, 4, 4, 8)), number % 5 == 2

    def layer(kind, **keys):
        return "\n".join(["[[layers]]", f'type = "{kind}"', *(f"{k} = {json.dumps(v)}" for k, v in keys.items())])
    layers = [layer("conv2d", name="conv", channels=pick((2, 3)), kernel=2), layer("batch_norm", name="norm"),
              layer("flatten")] if image else [layer("linear", name="hidden", features=pick(features))]
    layers.append(layer("activation", fn=pick(("relu", "tanh", "gelu"))))
    layers += [layer("layer_norm", name="rows")] * pick((0, 0, 1)) + [layer("dropout", p=0.3)] * pick((0, 1))
    return dict(seed=number, shape=[2, 3, 4] if image else [6], layers="\n".join(layers), micro=pick((1, 2, 3, 4)),
                lanes=V,
                accumulate=V + pick((0, 1, 3)), tail=("flush", "drop", "carry")[number % 3],
                clip=pick(("", "clip_norm = 0.3")),
                optimizer="\n".join(OPTIMIZERS[number % 7]), schedule="\n".join(pick(SCHEDULES)),
                precision=("f32", "f16", "f32", "bf16")[number % 4], recompute=pick(("none", "all")),
                launch=pick(("graph", "persistent")))


def random_data(values, folder, chance):
    """The first half window has no target that counts; one sample is too large for f16: its window overflows on one
    rank alone."""
    samples, size = chance.randrange(60, 110), math.prod(values["shape"])
    x = [chance.gauss(0, 1) for _ in range(size * samples)]
    x[size * chance.randrange(samples)] = 1e6 if values["precision"] == "f16" else 1e3
    quiet = values["micro"] * values["lanes"] // 2
    y = [-100 if i < quiet else chance.randrange(5) for i in range(samples)]
    return harness.write_arrays(folder, {"x": (array.array("f", x), [samples, *values["shape"]]),
                                         "y": (array.array("i", y), [samples])})


def train_random_models(folder, numbers, share=False, **widths):
    """Some of GACC_MODELS, each with a random number of lanes and of ranks: precision, layers, dropout, tails,
    clipping, optimizers, rates, metrics, recompute, launches; one in ten in the emulator."""
    for number in numbers:
        values, chance = random_model(number, **widths), random.Random(number)
        model = folder / f"random{number}.toml"
        model.write_text(RANDOM_MODEL.format(**values))
        spec = random_data(values, folder, chance)

        def case(**settings):
            return Case(folder, spec=spec, model=model, limits=("--epochs", 2, "--no-shuffle"),
                        device="emulate" if number % 10 == 3 else "cpu", **settings)
        alone = case()
        one = alone.train(1)
        ranks = range(2, values["lanes"] + 1) if ALL else (chance.randrange(2, values["lanes"] + 1),)
        for n in ranks:
            some = case(memory__shard="optimizer", train__ranks=n) if share else alone
            same(some.train(n), one, f"model {number} on {n} ranks: {values}")


def test_random_models_0_4_8(folder):
    train_random_models(folder, range(0, MODELS, 4))


def test_random_models_1_5_9(folder):
    train_random_models(folder, range(1, MODELS, 4))


def test_random_models_2_6_10(folder):
    train_random_models(folder, range(2, MODELS, 4))


def test_random_models_3_7_11(folder):
    train_random_models(folder, range(3, MODELS, 4))


def test_random_models_that_share_the_optimizer(folder):
    """Layers so wide that there is something to cut, rows and columns of uneven numbers among them."""
    train_random_models(folder, range(2, MODELS, 3), share=True, features=(2050, 2731, 4099))


def with_nccl(messages):
    """Variables of a process that finds the NCCL for the emulator; its messages are files in that folder."""
    library = BIN.parent / "tests/fake-nccl/libnccl.so.2"
    if not library.exists():
        harness.skip(f"no {library}")
    return {"LD_LIBRARY_PATH": f"{library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}", "TMPDIR": str(messages)}


def test_same_bits_over_nccl(folder):
    """From device to device by a NCCL that is made for the emulator, in many pieces; f32, and f16 with running
    statistics and windows that overflow."""
    messages, small = folder / "messages", folder / "small"
    messages.mkdir()
    small.mkdir()
    linked = with_nccl(messages)
    values, image = random_model(17), folder / "image.toml"
    image.write_text(RANDOM_MODEL.format(**values))
    data = random_data(values, folder, random.Random(17))
    for case, some in ((Case(small, "regression", device="emulate", samples=61, limits=("--epochs", 1), **lanes()),
                        (3, 8)),
                       (Case(folder, model=image, spec=data, device="emulate", limits=("--epochs", 1, "--no-shuffle")),
                        (2,))):
        one = case.train(1)
        for ranks in some:
            same(case.train(ranks, **linked), one, f"{case.artifact.name} on {ranks} ranks")
            expect("by NCCL 2.28.9" in case.said, f"the sums went by NCCL:\n{case.said}")
    expect(not list(messages.glob("gacc-nccl-*")), "messages are left")
    same(case.train(2), one, "through the hosts")
    expect("NCCL" not in case.said, case.said)


def test_gradients_of_the_big_batch(folder):
    """3 ranks, 8 launches in 4 lanes, the last one of one sample, beside one launch of all."""
    sums = []
    for ranks, settings in ((3, dict(train__lanes=4, train__accumulate=8, train__micro_batch=4)),
                            (1, dict(train__micro_batch=32))):
        case = Case(folder, samples=29, **settings)
        dump = folder / f"gradients{ranks}.safetensors"
        mpirun(ranks, case.command(None, "--updates", 1, "--no-shuffle", "--dump-grads", dump))
        sums.append(harness.read_safetensors(dump))
    worst, who = harness.far_apart(*sums)
    print(f"{who}: {worst:.2e}")
    expect(worst <= 1e-6, f"{who} is {worst:.2e} from the big batch's")


def test_resume_on_another_number_of_ranks(folder):
    """kill -9 of a random rank at a random moment ends the job; --resume goes on with any number of them, that share
    the optimizer's state or not."""
    chance = random.Random(7)
    case = Case(folder, limits=("--epochs", 3), **lanes())
    ways = [(ranks, case) for ranks in (1, 2, 3, 5, 8)] + [(ranks, Case(folder, **shared(ranks))) for ranks in (2, 4)]
    begin = time.monotonic()
    whole = case.train(2)
    seconds = time.monotonic() - begin
    killed = 0
    while killed < KILLS:
        Case.count += 1
        name = folder / f"run{Case.count}"
        while True:
            ranks, way = chance.choice(ways)
            command = words(ranks, way.command(name, *case.limits, "--resume", "--checkpoint-every", 3))
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE,
                                       text=True, env=ENVIRONMENT)
            if killed < KILLS:
                time.sleep(chance.uniform(0.4, 0.4 + seconds))
                if children := children_of(process.pid):
                    os.kill(chance.choice(children), signal.SIGKILL)
                    killed += 1
            error = process.communicate(timeout=LIMIT)[1]
            if process.returncode == 0:
                break
            expect("signal 9" in error, f"the job ended with {process.returncode}:\n{error}")
        same(case.result(name), whole, f"after kill -9 {killed}")


HALF = dict(precision__compute="f16", precision__loss_scale="dynamic", precision__scale_interval=3)


def same_shared(folder, some, device="cpu", samples=109, limits=("--epochs", 2), **settings):
    """Ranks that share the optimizer's state have the bits of one rank that has all of it."""
    one = Case(folder, samples=samples, device=device, limits=limits, **lanes(**settings)).train(1)
    for ranks in some:
        case = Case(folder, samples=samples, device=device, limits=limits, **shared(ranks, **settings))
        same(case.train(ranks), one, f"{settings}: {ranks} ranks that share the optimizer's state")
    return one[2]


def test_same_bits_of_a_shared_optimizer(folder):
    """The loss scale of f16 begins so high that the first windows overflow, and are skipped."""
    for some, settings in (((8,), dict(train__clip_norm=0.5)),
                           ((2,), dict(optimizer__type="sgd", optimizer__momentum=0.9, precision__compute="bf16")),
                           ((5,), dict(optimizer__type="adamw", optimizer__second_moment="micro", train__tail="carry")),
                           ((3,), dict(optimizer__type="lamb", train__clip_norm=0.5)),
                           ((7,), dict(samples=333, optimizer__type="lamb", train__clip_norm=0.5, **HALF))):
        log = same_shared(folder, range(1, 9) if ALL else some, **settings)
    expect(any(event.get("skipped") is True for event in log), "no window was skipped")


def test_same_bits_of_a_shared_optimizer_emulated(folder):
    same_shared(folder, (2,), "emulate", 40, ("--updates", 1), launch__mode="graph", optimizer__type="lamb",
                train__clip_norm=0.5, **HALF)


def test_a_checkpoint_tells_not_who_had_the_optimizer(folder):
    """One rank with all of it, then three and eight that share it, then two that do not: the bits of one run."""
    settings = dict(optimizer__type="adamw", train__clip_norm=0.5, **HALF)
    for model in (harness.example("mnist_mlp"), harness.ROOT / "tests/parity/models/attention.toml"):
        alone = Case(folder, model=model, **lanes(**settings))
        whole = alone.train(1)
        name = folder / f"resumed-{model.stem}"
        for ranks, case, limits in (
                (1, alone, ("--updates", 3)), (3, Case(folder, model=model, **shared(3, **settings)),
                                               ("--launches", 26)),
                (8, Case(folder, model=model, **shared(8, **settings)), ("--epochs", 1)), (2, alone, ("--epochs", 2))):
            mpirun(ranks, case.command(name, *limits, "--resume"))
        same(case.result(name), whole, f"{model.stem}, resumed")


def test_what_ranks_write(folder):
    """--dump-grads of a window that --launches leaves open or closes, --save-best and --load, whether they share the
    optimizer or not; and a window that is not finite names its parameter."""
    made, alone = [], Case(folder, **lanes())
    files = [folder / f"{what}.safetensors" for what in ("open", "closed", "best", "loaded")]
    for ranks, case in ((1, alone), (3, alone), (3, Case(folder, **shared(3)))):
        mpirun(ranks, case.command(None, "--launches", 13, "--dump-grads", files[0]))
        mpirun(ranks, case.command(None, "--launches", 16, "--dump-grads", files[1], "--save-best", files[2],
                                   "--eval-every", 1))
        mpirun(ranks, case.command(None, "--updates", 2, "--load", files[2], "--save", files[3]))
        made.append([file.read_bytes() for file in files])
    expect(made[0] == made[1] == made[2], "what they write differs")
    errors = []
    for ranks, settings in ((1, lanes(optimizer__lr=1e38)), (3, shared(3, optimizer__lr=1e38))):
        done = mpirun(ranks, Case(folder, **settings).command(None, "--epochs", 1), code=None)
        errors.append([line for line in done.stderr.splitlines() if "error:" in line])
    expect(len(errors[0]) == 1 and "not finite" in errors[0][0] and errors[0] == errors[1],
           f"the errors differ: {errors}")


def test_a_shared_optimizer_wants_its_ranks(folder):
    case = Case(folder, **shared(3))
    for ranks in (1, 2, 4):
        one_error(mpirun(ranks, case.command(None, "--epochs", 1), code=None), "exactly 3 ranks", f"has {ranks}",
                  f"train.ranks={ranks}")
    model, sets = harness.example("mnist_mlp"), ["--set", "memory.shard=optimizer"]
    done = harness.run("gaccc", model, *sets, code=1)
    expect("memory.shard" in done.stderr and "train.ranks" in done.stderr, done.stderr)
    done = harness.run("gaccc", model, *sets, "--ranks", 2, code=1)
    expect("each rank needs one" in done.stderr, done.stderr)


def test_the_plan_of_a_shared_optimizer(folder):
    """peak is what each rank allocates; what is shared falls with the number of ranks; bytes are those that are
    sent."""
    for ranks in (2, 4):
        case = Case(folder, **shared(ranks, **HALF))
        model, settings = harness.example("mnist_mlp"), shared(ranks, **HALF)
        plan = harness.plan_of(model, **settings)
        least = harness.plan_of(model, "--ranks", "auto", **settings, memory__budget=f"{plan['bytes']['peak']}B")
        expect(least["bytes"] == plan["bytes"], f"a budget of the peak gives {least['bytes']}")
        case.train(ranks)
        sent = int(re.search(r"(\d+) bytes sent by each", case.said)[1])
        expect(0 <= sent - plan["ranks"]["reduce_bytes"] <= 400, f"{sent} bytes, and the plan says {plan['ranks']}")
        start = harness.read_log(folder / f"run{Case.count}.jsonl")[0]
        expect(start["arena_bytes"] == plan["bytes"]["peak"], f"{start}, and the plan says {plan['bytes']}")


def children_of(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text() if pathlib.Path(f"/proc/{pid}").exists() else ""
    return [int(word) for word in text.split()]


def wait_for(condition, what):
    end = time.monotonic() + LIMIT
    while not condition():
        expect(time.monotonic() < end, f"no {what} in {LIMIT} s")
        time.sleep(0.02)


def start_long_run(case, name, ranks, *options, **variables):
    """A run that goes on until it is ended, with its first update made."""
    process = subprocess.Popen(words(ranks, case.command(name, "--epochs", 100000, *options)), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env={**ENVIRONMENT, **variables})
    log = pathlib.Path(f"{name}.jsonl")
    wait_for(lambda: process.poll() is not None or (log.exists() and log.read_text().count("\n") > 2), "update")
    return process


def test_sigterm_ends_all_ranks_in_order(folder):
    """One rank gets it, all write what they have and exit 130; what was done is resumed with the same bits."""
    case = Case(folder, **lanes())
    for what, way in (("run", case), ("shared", Case(folder, **shared(3)))):
        name, whole = folder / what, folder / f"{what}.whole"
        process = start_long_run(way, name, 3)
        os.kill(children_of(process.pid)[1], signal.SIGTERM)
        error = process.communicate(timeout=LIMIT)[1]
        expect(process.returncode == 130 and "interrupted" in error, f"exit {process.returncode}\n{error}")
        done = buffers(name)
        epochs = [e for e in events(f"{name}.jsonl") if e["event"] == "end"][-1]["epochs"] + 1
        mpirun(2, case.command(name, "--epochs", epochs, "--resume"))
        mpirun(1, case.command(whole, "--epochs", epochs))
        same(case.result(name), case.result(whole), "after SIGTERM")
        expect(done != buffers(name), "it went on")


def stop_a_rank(case, folder, **variables):
    process = start_long_run(case, folder / "run", 3, "--rank-timeout", 2, **variables)
    os.kill(children_of(process.pid)[1], signal.SIGSTOP)
    error = process.communicate(timeout=LIMIT)[1]
    expect(process.returncode == 1 and "rank 1 (" in error and "no sign of life for 2 s" in error,
           f"exit {process.returncode}\n{error}")


def test_a_silent_rank_is_named(folder):
    stop_a_rank(Case(folder, **lanes()), folder)


def test_a_silent_rank_is_named_over_nccl(folder):
    """A library whose functions wait for ever."""
    stop_a_rank(Case(folder, "regression", device="emulate", **lanes()), folder, **with_nccl(folder))


HOST_A, HOST_B = "10.77.0.1", "10.77.0.2"
# Namespaces of network and name, joined by a cable. The other host's process comes into being in this one's namespace
# of users, which may make networks without being root.
TWO_HOSTS = f"""
set -e
hostname gacc-a
ip link set lo up
unshare --net --uts sh -c 'hostname gacc-b; ip link set lo up; echo $$ >b.pid; exec sleep 1000' &
while ! [ -s b.pid ]; do sleep 0.05; done
b=$(cat b.pid)
ip link add cable type veth peer name cable netns $b
ip addr add {HOST_A}/24 dev cable
ip link set cable up
nsenter --target $b --net --uts sh -c 'ip addr add {HOST_B}/24 dev cable; ip link set cable up'
echo $$ >a.pid
exec sleep 1000
"""


class TwoHosts:
    """Two network namespaces as hosts for mpirun, whose ssh is nsenter."""

    def __init__(self, folder):
        for tool in ("unshare", "nsenter", "ip"):
            if not shutil.which(tool):
                harness.skip(f"no {tool} here (Debian packages util-linux, iproute2)")
        self.a, self.folder = folder / "a.pid", folder
        self.process = subprocess.Popen(["unshare", "--user", "--map-root-user", "--net", "--uts", "sh", "-c",
                                         TWO_HOSTS], cwd=folder,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                        text=True)
        wait_for(lambda: self.process.poll() is not None or self.a.exists() and self.a.read_text(), "network")
        if self.process.poll() is not None:
            harness.skip(f"no network namespaces may be made here: {self.process.stderr.read().strip()}")
        self.b = int((folder / "b.pid").read_text())
        self.ssh = folder / "ssh"
        self.ssh.write_text(f'#!/bin/sh\nwhile [ "$1" != {HOST_B} ]; do shift; done\nshift\n'
                            f'exec nsenter --target {self.b} --net --uts sh -c "$*"\n')
        self.ssh.chmod(0o755)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def processes(self, name=""):
        """Those in the two namespaces, which nobody else knows; a name: its alone."""
        def net(pid):
            return os.readlink(f"/proc/{pid}/ns/net")
        hosts, found = (net(self.process.pid), net(self.b)), []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if net(path.name) in hosts and name in ("", (path / "comm").read_text().strip()):
                    found.append(int(path.name))
            except OSError:
                continue  # it has ended, or is not ours
        return found

    def words(self, *command):
        """In the first host."""
        return ["nsenter", "--target", str(self.process.pid), "--user", "--net", "--uts", *map(str, command)]

    def start(self, ranks, command, error):
        """mpirun with that many ranks on each host; what they say goes into a file, for a launcher may not let go of
        a pipe."""
        net = f"{HOST_A}/24"
        options = ["--mca", "plm_rsh_agent", self.ssh, "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", net,
                   "--mca", "oob_tcp_if_include", net, "--host", f"{HOST_A}:{ranks},{HOST_B}:{ranks}"]
        line = words(2 * ranks, command)
        return subprocess.Popen(self.words(line[0], *options, *line[1:]), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL,
                                stderr=error, env=ENVIRONMENT)


def test_two_hosts(folder):
    """Over a network the bits of one rank. With the cable cut every rank ends."""
    case = Case(folder, **lanes())
    with TwoHosts(folder) as hosts:
        error = folder / "error"
        process = hosts.start(2, case.command(folder / "hosts", *case.limits), error.open("w"))
        expect(process.wait(LIMIT) == 0, f"exit {process.returncode}\n{error.read_text()}")
        same(case.result(folder / "hosts"), case.train(1), "two hosts")
        expect(harness.read_log(folder / "hosts.jsonl")[0]["ranks"] == 4, "there were four ranks")

        process = hosts.start(1, case.command(folder / "cut", "--epochs", 100000, "--rank-timeout", 2), error.open("w"))
        log = folder / "cut.jsonl"
        wait_for(lambda: process.poll() is not None or (log.exists() and log.read_text().count("\n") > 2), "update")
        both = hosts.processes("gacc-exec")
        expect(len(both) == 2, f"there are two ranks: {both}\n{error.read_text()}")
        begin = time.monotonic()
        subprocess.run(hosts.words("ip", "link", "set", "cable", "down"), check=True)
        wait_for(lambda: not hosts.processes("gacc-exec"), "end of all ranks")
        print(f"all ranks ended {time.monotonic() - begin:.1f} s after the cut; the launcher: {process.poll()}")
        expect("no sign of life for 2 s" in error.read_text(), error.read_text())


def test_a_second_job_is_refused(folder):
    case = Case(folder, **lanes())
    process = start_long_run(case, folder / "run", 2)
    one_error(mpirun(2, case.command(None, "--checkpoint", folder / "run"), code=None), "rank 0", folder / "run")
    process.terminate()
    process.communicate(timeout=LIMIT)


def test_mistakes(folder):
    """One error, from the first rank, with exit status 1, and no hang."""
    case = Case(folder, **lanes())
    plain = case.command(None, "--epochs", 1)
    other_seed, other_data, no_file, no_gpu = list(plain), list(plain), list(plain), list(plain)
    other_seed += ["--seed", 5]
    other_data[other_data.index("--data") + 1] += ",limit=100"
    no_file[1] = folder / "nothing.ptx"
    no_gpu[no_gpu.index("--device") + 1] = "cuda:77"
    one_error(mpirun(2, plain, other_seed, code=None), "rank 1 differs", "the seed is 5 there")
    one_error(mpirun(2, plain, other_data, code=None), "rank 1 differs", "100")
    one_error(mpirun(2, plain, no_file, code=None), "rank 1: ", "nothing.ptx")
    one_error(mpirun(9, plain, code=None), "train.lanes = 8", "train.accumulate", "train.micro_batch", "at most 8",
              "train.lanes=16")
    one_error(mpirun(2, no_gpu, code=None))
    one_error(mpirun(2, plain[:4] + ["--verify"], code=None), "--verify")
    artifact = harness.compile_model(harness.example("mnist_mlp"), folder / "other.ptx", **lanes(optimizer__lr=0.5))
    one_error(mpirun(2, plain, [plain[0], artifact, *plain[2:]], code=None), "rank 1 differs",
              "the artifact's checksum")


def test_ranks_starts_mpirun(folder):
    case = Case(folder, **lanes())
    done = harness.run("gacc-exec", *case.command(folder / "ranks", "--epochs", 1)[1:], "--ranks", 2, env=ENVIRONMENT)
    sent = [int(n) for n in re.findall(r"(\d+) bytes sent by each", done.stdout + done.stderr)]
    parameters = 567434
    expect(len(sent) == 1 and 4 * parameters <= sent[0] <= 4 * parameters + 100,
           f"the first rank says what a sum has cost: {sent}")
    plan = harness.plan_of(harness.example("mnist_mlp"), "--ranks", 2, **lanes())
    expect(0 <= sent[0] - plan["ranks"]["reduce_bytes"] <= 100, f"{sent} bytes, and the plan says {plan['ranks']}")
    expect(harness.read_log(folder / "ranks.jsonl")[0]["ranks"] == 2, "the log says how many ranks there were")
    mpirun(1, case.command(folder / "one", "--epochs", 1))
    same(case.result(folder / "ranks"), case.result(folder / "one"), "--ranks 2")


def test_without_the_plug_in(folder):
    """gacc-exec alone in a folder says what several ranks lack; a launcher of one process, or Slurm's, is nothing to
    it."""
    shutil.copy2(BIN / "gacc-exec", folder / "gacc-exec")
    model = harness.example("regression")
    command = [folder / "gacc-exec", harness.compile_model(model, folder / "step.ptx", train__lanes=2), "--data",
               harness.make_data(model, 50, folder), "--init-only", "--device", "emulate"]
    for name in ("gacc-emu", "libgacc-emu.so"):
        (folder / name).symlink_to(BIN / name)

    def start(options=(), **variables):
        return subprocess.run([*command, *options], capture_output=True, text=True, timeout=LIMIT,
                              env={**os.environ, **variables})
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"):
        harness.one_error(start(**{variable: "2"}), variable, "libgacc-mpi.so is missing", "gacc-mpi")
    harness.one_error(start(["--ranks", "2"]), "libgacc-mpi.so is missing")
    for variables in ({"OMPI_COMM_WORLD_SIZE": "1", "PMIX_RANK": "0"}, {"SLURM_NTASKS": "4", "SLURM_PROCID": "1"}):
        done = start(**variables)
        expect(done.returncode == 0, done.stderr)


if __name__ == "__main__":
    if "test_without_the_plug_in" not in sys.argv:
        need_mpi()
    harness.main(globals())
