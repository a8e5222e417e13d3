"""gacc.verify: the faults of tests/run/loop_zoo.py are found and named, the right loops of loop_right.py are right, and
what cannot be judged says why. The loops of transformers, Lightning and accelerate run where the packages are found."""
import functools
import json
import logging
import os
import subprocess
import sys
import warnings

import harness
from harness import expect

if "GACC_PEERS_PYTHON" in os.environ:
    os.environ.setdefault("GACC_PYTHON", os.environ["GACC_PEERS_PYTHON"])
harness.begin_package("torch", "numpy")
import gacc  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.optim import optimizer as optim  # noqa: E402

import loop_right  # noqa: E402
import loop_zoo as zoo  # noqa: E402
from gacc.verify import run  # noqa: E402

torch.set_num_threads(1)
warnings.simplefilter("ignore")
EXAMPLES = harness.ROOT / "python/examples"


def verified(model, loop, tables, optimizer="adamw", sizes=zoo.SIZES):
    module, batches = zoo.make(model, sizes=sizes)
    tables = {**tables, "train": {"accumulate": zoo.K, **tables.get("train", {})}}
    return gacc.verify(module, loop, batches, loss="cross_entropy", target="y", optimizer=zoo.OPTIMIZERS[optimizer],
                       **tables)


@functools.cache
def once():
    """Lets gacc's own step run once for each model and its tables: it takes seconds, and no loop changes it."""
    known, beside = {}, run.beside_gacc

    def kept(case, reference, updates):
        key = repr((type(case.module), case.optimizer, case.train, case.schedule, case.loss, len(case.batches)))
        known[key] = known.get(key) or beside(case, reference, updates)
        return known[key]
    run.beside_gacc = kept


def names(report):
    return [fault.name for fault in report.faults]


# ---------------------------------------------------------------- the zoo
def found(part):
    """Each fault of a sixth of the zoo, in two models and two optimizers, is the only one that is named."""
    once()
    for row in zoo.ZOO[part::6]:
        for model in row.models:
            for optimizer in row.optimizers:
                report = verified(model, row.loop, row.tables, optimizer, row.sizes)
                expect(names(report) == [row.name], f"{row.loop.__name__}, {model.__name__}, {optimizer}: {report}")
                expect(report.beside.startswith("gacc's step"), report)
        print(f"{row.name}: {row.source}", flush=True)


def test_zoo_one(_):
    found(0)


def test_zoo_two(_):
    found(1)


def test_zoo_three(_):
    found(2)


def test_zoo_four(_):
    found(3)


def test_zoo_five(_):
    found(4)


def test_zoo_six(_):
    found(5)


def test_zoo_is_large_and_from_public_reports(_):
    rows = [row for row in zoo.ZOO if len(row.models) == 2 and len(row.optimizers) == 2]
    expect(len({row.name for row in rows}) >= 24, [row.name for row in rows])
    expect(len({row.source for row in zoo.ZOO}) == len(zoo.ZOO), "two faults of one source")


# ---------------------------------------------------------------- right loops
def right(part):
    once()
    for row in loop_right.RIGHT[part::4]:
        arguments, tables = loop_right.case_of(row, zoo.make)
        report = gacc.verify(*arguments, **tables)
        expect(report.ok, f"{row[0].__name__}, {row[1].__name__}: {report}")
        expect(report.beside.startswith("gacc's step"), report)


def test_right_loops_one(_):
    expect(len(loop_right.RIGHT) >= 40, len(loop_right.RIGHT))
    right(0)


def test_right_loops_two(_):
    right(1)


def test_right_loops_three(_):
    right(2)


def test_right_loops_four(_):
    right(3)


# ---------------------------------------------------------------- more than one, none, and neither
def test_two_faults_at_once(_):
    def cleared_each_and_means(module, optimizer, batches):
        for window in zoo.windows(batches):
            for x, y in window:
                (zoo.loss_of(module(x), y) / len(window)).backward()
                zoo.clip(module)
            optimizer.step()
            optimizer.zero_grad()

    def eval_and_undivided(module, optimizer, batches):
        module.eval()
        zoo.undivided(module, optimizer, batches)

    def schedule_and_decay(module, optimizer, batches):
        zoo.schedule_each(module, zoo.same_kind(optimizer, module, everywhere=True), batches)
    for loop, model, tables, wanted in (
            (cleared_each_and_means, zoo.Attends, zoo.CLIPPED, {"mean of means", "clipping of each micro-batch"}),
            (eval_and_undivided, zoo.Rows, {}, {"evaluation mode left on", "K times the gradient"}),
            (schedule_and_decay, zoo.Attends, zoo.SCHEDULED, {"schedule a micro-batch", "decay on what has none"})):
        report = verified(model, loop, tables)
        expect(set(names(report)) == wanted, f"{loop.__name__}: {report}")


def test_a_fault_says_where_when_and_how_much(_):
    report = verified(zoo.Rows, zoo.schedule_each, zoo.SCHEDULED)
    fault, = report.faults
    expect(fault.where == f"loop_zoo.py:{line_of(zoo.schedule_each, 'optimizer.step()')}, rate", fault)
    expect(fault.update == 2 and np.allclose(fault[3:5], (2e-3 * 0.7 ** 3, 2e-3 * 0.7), rtol=1e-9), fault)
    expect("scheduler.step()" in fault.remedy and fault.name in str(report), report)
    said = json.loads(report.json())
    expect(said["ok"] is False and said["faults"][0]["update"] == 2 and len(said["updates"]) == 3, said)


def test_windows_that_are_none_or_of_another_size(_):
    def never(module, optimizer, batches):
        for x, y in batches:
            zoo.loss_of(module(x), y).backward()

    def forward_alone(module, optimizer, batches):
        for x, y in batches:
            zoo.loss_of(module(x), y)
            optimizer.step()

    def by_two(module, optimizer, batches):
        for i, (x, y) in enumerate(batches, 1):
            (zoo.loss_of(module(x), y) / 2).backward()
            if i % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    module, batches = zoo.make(zoo.Rows, sizes=(4,) * 6)
    for loop, train, name, measured, exact, words in (
            (never, None, "no update", 0, 6, "call step()"),
            (forward_alone, None, "no gradient came back", 0, 1, "backward()"),
            (by_two, None, "windows of another size", 2, 1, 'train={"accumulate": 2}'),
            (by_two, {"accumulate": 3}, "windows of another size", 2, 3, 'train={"accumulate": 2}')):
        report = gacc.verify(module, loop, batches, loss="cross_entropy", optimizer="sgd", train=train)
        fault = report.faults[0]
        expect(names(report) == [name] and fault[3:5] == (measured, exact) and words in fault.remedy, report)
    expect(gacc.verify(module, by_two, batches, loss="cross_entropy", optimizer="sgd", train={"accumulate": 2}).ok,
           "what the remedy says")


def line_of(function, text):
    code = function.__code__
    lines = open(code.co_filename).read().split("\n")
    return next(i for i in range(code.co_firstlineno, len(lines)) if text in lines[i - 1])


def test_what_cannot_be_judged_says_why(_):
    class Dice(zoo.Rows):
        def forward(self, x):
            return super().forward(x) * np.random.uniform(0.9, 1.1)

    def mixed(module, optimizer, batches):
        (x, y), (other, _) = batches[:2]
        zoo.loss_of(module((x + other) / 2), y).backward()
        optimizer.step()

    def of_a_copy(module, optimizer, batches):
        zoo.mean_of_means(zoo.Rows(), optimizer, batches)

    def ends(module, optimizer, batches):
        raise RuntimeError("out of paper")
    right = loop_right.divided_by_what_counts
    for model, loop, tables, why in (
            (Dice, right, {}, "numpy"), (zoo.Rows, mixed, {}, "no micro-batch"), (zoo.Rows, of_a_copy, {}, "a copy"),
            (zoo.Rows, ends, {}, "out of paper"),
            (zoo.Rows, right, {"schedule": {"type": "plateau"}}, "plateau")):
        report = verified(model, loop, tables)
        expect(report.ok is None and report.status == 2 and why in report.reason, f"{why}: {report}")
    report = verified(zoo.Rows, lambda *_: sys.exit(0), {})
    line = line_of(test_what_cannot_be_judged_says_why, "sys.exit(0)")
    expect(report.status == 2 and f"loops.py:{line} ends the process with sys.exit(0)" in report.reason, report)
    module, batches = zoo.make(zoo.Rows)
    for tables, why in (({"optimizer": {"type": "sgd", "lr": "1e-3"}}, "`optimizer.lr` must be a number, not a string"),
                        ({"optimizer": {"type": "sgd", "lr": None}}, "`optimizer.lr` is None"),
                        ({"optimizer": {"lr": 0.1}}, "[optimizer] needs `type`"),
                        ({"optimizer": {}}, "[optimizer] needs `type`"),
                        ({"optimizer": {"type": "sgd", "groups": 3}}, "`optimizer.groups`"),
                        ({"optimizer": {"type": "sgd", "groups": [{"match": ["*bias"], "lr": "0"}]}},
                         "`optimizer.groups.lr` must be a number"),
                        ({"schedule": {"type": "step"}}, "needs `step_size`"),
                        ({"train": {"acumulate": 2}}, "did you mean \"accumulate\"?"),
                        ({"train": {"accumulate": "auto", "effective_batch": 4}}, "`train.accumulate` is \"auto\""),
                        ({"train": {"clip_norm": "1"}}, "`train.clip_norm` must be a number, not a string")):
        report = gacc.verify(module, right, batches, loss="cross_entropy", **{"optimizer": "sgd"} | tables)
        expect(report.status == 2 and why in report.reason and "\n" not in report.reason, f"{why}: {report}")
    report = gacc.verify(module, right, batches, loss="mse", optimizer="sgd")
    expect(report.ok is None and "the loss `mse` compares them element by element" in report.reason, report)
    report = gacc.verify(zoo.Rows(), right, [], loss="mse", optimizer="lion")
    expect(report.ok is None and "no micro-batches" in report.reason, report)


def test_a_module_that_gacc_does_not_take_is_judged_by_pytorch_alone(_):
    class Odd(zoo.Rows):
        def forward(self, x):
            return super().forward(x) + torch.special.i0(x.flatten(1)[:, :1]) * 0
    report = verified(Odd, loop_right.divided_by_what_counts, {})
    expect(report.ok and "does not take" in report.beside and "i0" in report.beside, report)


def test_the_module_and_the_batches_stay_as_they_are(_):
    module, batches = zoo.make(zoo.Rows)
    before, inputs = [p.clone() for p in module.parameters()], [x.clone() for x, _ in batches]

    def writes(module, optimizer, batches):
        for x, y in batches:
            zoo.loss_of(module(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            x.zero_()
    report = gacc.verify(module, writes, batches, loss="cross_entropy", optimizer=zoo.OPTIMIZERS["adamw"])
    expect(report.ok, report)
    expect(all(map(torch.equal, before, module.parameters())), "the module has changed")
    expect(all(torch.equal(x, kept) for (x, _), kept in zip(batches, inputs)), "the batches have changed")
    hooks = torch.nn.modules.module._global_forward_hooks, optim._global_optimizer_post_hooks
    expect(not any(hooks), "hooks are left")


# ---------------------------------------------------------------- the command
SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
loss, target, train = "mse", "y", {"accumulate": 2}
optimizer = {"type": "sgd", "lr": 0.1}
batches = [(torch.randn(4, 3), torch.randn(4, 1)) for _ in range(6)]
def module():
    return nn.Linear(3, 1)
def right(module, optimizer, batches):
    for i, (x, y) in enumerate(batches):
        (nn.functional.mse_loss(module(x), y) / 2).backward()
        if i % 2:
            optimizer.step(), optimizer.zero_grad()
def wrong(module, optimizer, batches):
    for i, (x, y) in enumerate(batches):
        nn.functional.mse_loss(module(x), y).backward()
        if i % 2:
            optimizer.step(), optimizer.zero_grad()
def ends(module, optimizer, batches):
    raise ValueError("no")
"""


def command(*words):
    return subprocess.run([sys.executable, "-m", "gacc.verify", *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(harness.ROOT / "python")})


def test_the_command_and_its_exit_status(folder):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    for loop, status, words in (("right", 0, "right     2 updates"), ("wrong", 1, "K times the gradient"),
                                ("ends", 2, "ValueError: no"), ("none", 2, "has no `none`")):
        done = command(f"{script}:{loop}", "--batches", 4)
        expect(done.returncode == status and words in done.stdout, f"{loop}: {done}")
        said = json.loads(command(f"{script}:{loop}", "--batches", 4, "--json").stdout)
        expect(said["ok"] is {0: True, 1: False, 2: None}[status], said)
    expect(command(script, "--batches", 4).returncode == 2, "without a loop")
    for more in "sys.exit(0)\n", "def loss():\n    sys.exit()\n":
        script.write_text(f"{SCRIPT}import sys\n{more}")
        line = script.read_text().count("\n")
        done = command(f"{script}:wrong", "--batches", 4)
        expect(done.returncode == 2 and f"script.py:{line} ends the process" in done.stdout, done)
    script.write_text(SCRIPT.replace("loss, target", "looss, target"))
    done = command(f"{script}:right", "--batches", 4)
    expect(done.returncode == 2 and "has no `loss`" in done.stdout, done)


# ---------------------------------------------------------------- packages
def loop_of_a_package(package, wanted):
    """What a package's own loop computes: K = 1, K = 4, a window of two at the end, and micro-batches of all sizes."""
    try:
        __import__(package)
    except ImportError:
        harness.skip(f"{package} is not here (GACC_PEERS_PYTHON)")
    logging.disable(logging.WARNING)
    sys.path.insert(0, str(EXAMPLES))
    name = {"transformers": "trainer"}.get(package, package)
    example = __import__(f"verify_{name}")
    text = package == "transformers"
    for (k, sizes, prompt), fault in zip(((1, (2,) * 6, 0), (4, (2,) * 8, 0), (4, (2,) * 6, 0),
                                          (4, (2, 3, 2, 1) * 2, 2)), wanted):
        batches = example.batches(sizes, prompt) if text else example.batches(sizes)
        report = gacc.verify(example.module(), functools.partial(example.loop, accumulate=k), batches,
                             loss=example.loss,
                             target=example.target, optimizer=example.optimizer,
                             train={**example.train, "accumulate": k})
        expect(names(report) == fault, f"{package}, {k} of {sizes}: {report}")
        expect(report.beside.startswith("gacc's step"), report)
    lines = (EXAMPLES / f"verify_{name}.py").read_text().count("\n")
    expect(lines <= 30, f"verify_{name}.py has {lines} lines")
    done = command(f"{EXAMPLES}/verify_{name}.py:loop", "--batches", 8)
    expect(done.returncode == 0, done)


# Both divide each micro-batch's mean by K, whatever its size and the window's.
DIVIDED = [[], [], ["short windows divided by K"], ["mean of means"]]


def test_accelerate(_):
    loop_of_a_package("accelerate", DIVIDED)


def test_lightning(_):
    loop_of_a_package("lightning", DIVIDED)


def test_transformers(_):
    loop_of_a_package("transformers", [[], [], [], []])


harness.main(globals())
