"""The length of a schedule beside the run's: what is said where they differ, and schedule.total = "run"."""
import math
import re
import subprocess

import harness
from harness import expect, run

MODEL = harness.ROOT / "tests/parity/models/update.toml"
BASE = dict(train__micro_batch=4, optimizer__lr=0.5, schedule__type="cosine")


def data(folder, samples=48):
    return harness.make_data(MODEL, samples, folder)


def train(folder, artifact, spec, *words, code=0):
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    device = [] if "--device" in words else ["--device", "cpu"]
    done = run("gacc-exec", artifact, "--data", spec, "--log", log, *device, *words, code=code)
    return [e["lr"] for e in harness.updates_of(log)] if log.exists() else [], done.stderr


def cosine(total, warmup, lr=0.5):
    rest = [(total - t) / (total - warmup) for t in range(warmup, total)]
    return [lr * (t + 1) / warmup for t in range(warmup)] + [lr * math.sin(math.pi / 2 * g)**2 for g in rest]


def expect_rates(got, wanted, what):
    expect(len(got) == len(wanted) and all(abs(a - b) <= 1e-6 * max(b, 1e-3) for a, b in zip(got, wanted)),
           f"{what}: {got}, expected {wanted}")


def test_a_schedule_of_another_length_is_said_before_the_first_launch(folder):
    """With both numbers, where the rate stays down or does not come down; nothing is said where they agree."""
    spec = data(folder)
    for settings, words, said in (
            (dict(schedule__total=5, train__accumulate=2), ["--epochs", 3], ("5 updates", "18 updates", "the last 13")),
            (dict(schedule__total=19, train__accumulate=2), ["--epochs", 3],
             ("19 updates", "18 updates", "will not have come down")),
            (dict(schedule__total=18, train__accumulate=2), ["--epochs", 3], ()),
            (dict(schedule__total=18, train__accumulate=2), ["--updates", 17], ("18 updates", "17 updates")),
            (dict(schedule__total=18, train__accumulate=2, train__epochs=3), [], ()),
            (dict(schedule__total=5, train__accumulate=5, train__tail="carry"), ["--epochs", 2],
             ("5 updates", "4 updates")),
            (dict(schedule__total=4, train__accumulate=5, train__tail="drop"), ["--epochs", 2], ()),
            (dict(schedule__total=6, train__accumulate=5), ["--epochs", 2], ()),
            (dict(schedule__total=4, train__accumulate=5), ["--launches", 17], ()),
            (dict(schedule__total=3, schedule__unit="epochs", train__accumulate=2), ["--epochs", 3], ()),
            (dict(schedule__total=3, schedule__unit="epochs", train__accumulate=2), ["--epochs", 7],
             ("3 epochs", "7 epochs", "the last 4")),
            (dict(schedule__type="constant", schedule__warmup=12), ["--epochs", 1],
             ("end of the warm-up", "after 12 updates, and", "ends after 12 updates")),
            (dict(schedule__type="constant", schedule__warmup=11), ["--epochs", 1], ()),
            (dict(schedule__type="exponential", schedule__gamma=0.9, schedule__warmup=2, schedule__unit="epochs"),
             ["--epochs", 2], ("warm-up", "2 epochs")),
            (dict(schedule__type="plateau", schedule__warmup=13), ["--epochs", 1, "--eval", spec],
             ("warm-up", "13 updates", "12 updates")),
            (dict(schedule__type="step", schedule__step_size=10, schedule__gamma=0.5, schedule__warmup=2),
             ["--epochs", 1], ("first step", "12 updates")),
            (dict(schedule__type="step", schedule__step_size=10, schedule__gamma=0.5, schedule__warmup=1),
             ["--epochs", 1], ()),
            (dict(schedule__type="multistep", schedule__milestones="[2, 12]", schedule__gamma=0.5), ["--epochs", 1],
             ("last milestone", "12 updates")),
            (dict(schedule__type="multistep", schedule__milestones="[2, 11]", schedule__gamma=0.5), ["--epochs", 1],
             ()),
            (dict(schedule__type="linear", schedule__total=3), ["--epochs", 1, "--quiet"],
             ("3 updates", "12 updates"))):
        artifact = harness.compile_model(MODEL, folder / "m.ptx", **{**BASE, **settings})
        _, text = train(folder, artifact, spec, *words)
        lines = [line for line in text.splitlines() if "schedule" in line]
        expect(len(lines) == (1 if said else 0), f"{settings} {words}:\n{text}")
        for word in said:
            expect(word in lines[0] and lines[0].startswith("gacc-exec: warning: "), f"{word!r} is not in {lines[0]}")
    text = subprocess.run([harness.BIN / "gacc-exec", artifact, "--data", spec], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True).stdout
    expect(0 < text.index("schedule.total is 3 updates") < text.index("epoch 1"), text)


def test_it_is_said_once_and_of_a_resumed_run(folder):
    spec, words = data(folder), ["--checkpoint", folder / "run", "--checkpoint-every", 1]
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **BASE, schedule__total=12)
    _, text = train(folder, artifact, spec, "--updates", 12, *words)
    expect("schedule.total" not in text, text)
    _, text = train(folder, artifact, spec, "--updates", 20, *words, "--resume")
    expect(text.count("schedule.total is 12 updates") == 1 and "20 updates: the last 8" in text, text)
    _, text = train(folder, artifact, spec, "--updates", 20, *words, "--resume")
    expect("nothing to do" in text and "schedule.total" not in text, text)


def test_total_run_is_the_length_of_the_run(folder):
    """Whatever says it: epochs, updates, launches, the model file; tails; windows; and in the emulator."""
    spec = data(folder, 50)
    for settings, words, total in (
            (dict(train__accumulate=2), ["--epochs", 3], 21),
            (dict(train__accumulate=2, train__epochs=2), [], 14),
            (dict(train__accumulate=2), ["--epochs", 3, "--updates", 5], 5),
            (dict(train__accumulate=2), ["--updates", 9], 9),
            (dict(train__accumulate=4, train__tail="carry"), ["--epochs", 3], 9),
            (dict(train__accumulate=4, train__tail="drop"), ["--epochs", 3], 9),
            (dict(train__accumulate=4), ["--launches", 15], 4),
            (dict(train__accumulate=2), ["--updates", 3, "--device", "emulate"], 3)):
        warmups = [("0", 0), ("2", 2), ("50%", math.ceil(total / 2)), ("7%", math.ceil(0.07 * total - 1e-9))]
        for warmup, updates in warmups if total == 21 else warmups[2:3]:
            artifact = harness.compile_model(MODEL, folder / "m.ptx", **BASE, **settings, schedule__total="run",
                                             schedule__warmup=warmup)
            rates, text = train(folder, artifact, spec, *words)
            expect("schedule.total" not in text, text)
            expect_rates(rates, cosine(total, min(updates, total - 1)), f"{settings} {words} warmup = {warmup}")


def test_epochs_and_shares_of_a_number(folder):
    spec = data(folder)
    settings = dict(BASE, train__accumulate=2, schedule__type="linear", schedule__unit="epochs", schedule__min_lr=0.1)
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **settings, schedule__total="run", schedule__warmup="40%")
    rates, _ = train(folder, artifact, spec, "--epochs", 5)
    expect_rates(rates, [rate for rate in (0.25, 0.5, 0.5, 0.1 + 0.4 * 2 / 3, 0.1 + 0.4 / 3) for _ in range(6)],
                 "epochs")
    for share, total, warmup in (("7%", 100, 7), ("3%", 1000, 30), ("3%", 90, 3), ("99.9%", 4, 3), ("0.1%", 3, 1)):
        texts = [run("gaccc", MODEL, "--set", "schedule.type=cosine", "--set", f"schedule.total={total}", "--set",
                     f"schedule.warmup={each}",
                     "--emit", "ir", "-o", "-").stdout for each in (share, warmup)]
        expect(texts[0] == texts[1], f"{share} of {total} is not {warmup}")


def test_the_same_length_gives_the_same_bits(folder):
    """total = "run" is total = N in a run of N updates, killed or not, on any number of ranks."""
    spec, weights = data(folder), []
    settings = dict(BASE, train__accumulate=2, train__lanes=2, optimizer__type="adam")
    limits = ["--updates", 15]
    for total in (15, "run"):
        artifact = harness.compile_model(MODEL, folder / f"{total}.ptx", **settings, schedule__total=total,
                                         schedule__warmup="20%")
        train(folder, artifact, spec, *limits, "--save", folder / f"{total}.safetensors")
        weights.append((folder / f"{total}.safetensors").read_bytes())
    expect(weights[0] == weights[1], "total = \"run\" has other bits")
    # Ended from outside after some updates, it goes on to the same end.
    command = [str(harness.BIN / "gacc-exec"), artifact, "--data", spec, *limits, "--checkpoint", folder / "run",
               "--checkpoint-every", 1,
               "--device", "cpu", "--save", folder / "resumed.safetensors", "--log", folder / "killed.jsonl"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    while not (folder / "run/checkpoint").exists() and process.poll() is None:
        pass
    process.terminate()
    process.communicate()
    text = subprocess.run([*map(str, command), "--resume"], capture_output=True, text=True).stderr
    expect((folder / "resumed.safetensors").read_bytes() == weights[0] and "schedule.total" not in text, text)


def test_a_run_that_goes_on_for_longer_says_what_the_rates_do(folder):
    spec, words = data(folder), ["--checkpoint", folder / "run"]
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **BASE, schedule__total="run")
    short, _ = train(folder, artifact, spec, "--updates", 6, *words)
    long, text = train(folder, artifact, spec, "--updates", 12, *words, "--resume")
    expect_rates(short, cosine(6, 0), "6 updates")
    expect_rates(long[-6:], cosine(12, 0)[6:], "12 updates")
    said = 'schedule.total is "run", which was 6 updates before the checkpoint: after 6 updates the rates go on as those of a run of 12 updates'
    expect(said in text, text)


def test_lengths_that_cannot_be(folder):
    spec = data(folder)
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **BASE, schedule__total="run", schedule__warmup=12)
    done = run("gacc-exec", artifact, "--data", spec, "--save", folder / "w", code=1)
    harness.one_error(done, "the run has 12 updates", "the warmup of 12", 'warmup = "3%"')
    train(folder, artifact, spec, "--updates", 13)
    for settings, words in ((("schedule.type=exponential", "schedule.gamma=0.5", "schedule.warmup=3%"),
                             ("a share of `total`", '"exponential" does not have')),
                            (("schedule.type=cosine", "schedule.total=9", "schedule.warmup=0%"),
                             ("no share", 'like "3%"')),
                            (("schedule.type=cosine", "schedule.total=9", "schedule.warmup=100%"), ("no share",)),
                            (("schedule.type=cosine", "schedule.total=9", "schedule.warmup=3"), ()),
                            (("schedule.type=cosine", "schedule.total=9", "schedule.warmup=0.03"),
                             ("an integer or a share",)),
                            (("schedule.type=cosine", "schedule.total=runs"), ('did you mean "run"',)),
                            (("schedule.type=cosine", "schedule.total=9", "schedule.warmup_ratio=0.1"),
                             ('warmup = "3%"',))):
        done = run("gaccc", MODEL, *(word for each in settings for word in ("--set", each)), "-o", folder / "x.ptx",
                   code=1 if words else 0)
        if words:
            harness.one_error(done, *words)


def test_a_check_of_the_step_keeps_to_the_run(folder):
    """--verify resumes a shorter run: its rates are those of the whole."""
    artifact = harness.compile_model(MODEL, folder / "m.ptx", **BASE, train__accumulate=2, schedule__total="run",
                                     schedule__warmup="30%")
    done = run("gacc-exec", artifact, "--data", data(folder), "--verify")
    expect(re.search(r"3 checks passed, 0 failed", done.stdout), done.stdout)


harness.main(globals())
