"""--save-best, --best, --patience, and --eval alone. GACC_KILLS: how often the run is killed (5)."""
import os
import random
import signal
import subprocess

import harness
from harness import expect, run

MODEL = harness.classifier("best", [4], 3, """
[[layers]]
type = "linear"
features = 3
""", 'micro_batch = 4\naccumulate = 2').replace('name = "best"', 'name = "best"\nmetrics = ["accuracy"]').replace(
    "shape = [4]", 'shape = [4]\nnormalize = "data"')
KILLS = int(os.environ.get("GACC_KILLS", 5))


def prepared(folder, lr=0.5):
    """Noisy enough that evaluations go up and down."""
    harness.compile_text(folder, MODEL + f"lr = {lr}\n")
    chance = random.Random(7)
    row = lambda: ",".join(str(chance.gauss(0, 1)) for _ in range(4)) + f",{chance.randrange(3)}\n"
    for name, rows in (("a.csv", 64), ("b.csv", 30)):
        (folder / name).write_text("a,b,c,d,y\n" + "".join(row() for _ in range(rows)))
    return [folder / "m.ptx", "--data", f"csv:{folder}/a.csv", "--eval", f"csv:{folder}/b.csv"]


def events(log, kind):
    return [{k: v for k, v in e.items() if k != "seconds"} for e in harness.read_log(log) if e["event"] == kind]


def test_the_best_is_kept(folder):
    step = prepared(folder)
    best, log = folder / "best.safetensors", folder / "log.jsonl"
    done = run("gacc-exec", *step, "--epochs", 12, "--eval-every", 3, "--save-best", best, "--log", log)
    evaluations = events(log, "eval")
    wanted = min(evaluations, key=lambda e: e["loss"])
    marked = [e for e in evaluations if e["best"]]
    expect(marked[-1] == wanted and wanted != evaluations[-1], f"the best is {wanted}, not {marked[-1]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("eval, ")]
    expect(lines[0].startswith(f"eval, epoch 1, update 3: loss {evaluations[0]['loss']:.6g}, 30 samples, accuracy "),
           lines[0])
    expect([line.endswith(" (the best)") for line in lines] == [e["best"] for e in evaluations], done.stdout)
    # --eval without --data: the same figures from the file.
    alone = run("gacc-exec", step[0], "--eval", step[4], "--load", best, "--log", log)
    expect(alone.stdout.splitlines()[
        0] == f"eval: loss {wanted['loss']:.6g}, 30 samples, accuracy {100 * wanted['accuracy']:.2f} %", alone.stdout)
    expect([e["event"] for e in harness.read_log(log)] == ["start", "eval", "end"], "nothing is trained")
    expect(events(log, "eval")[0]["loss"] == wanted["loss"], "another loss")
    quiet = run("gacc-exec", step[0], "--eval", step[4], "--load", best, "--quiet", "--device", "cpu")
    expect(quiet.stdout == alone.stdout.splitlines(True)[0] and quiet.stderr == "",
           f"--quiet keeps results: {quiet.stdout}{quiet.stderr}")

    run("gacc-exec", *step, "--epochs", 12, "--eval-every", 3, "--save-best", best, "--best", "accuracy", "--log", log)
    evaluations = events(log, "eval")
    marked = [e for e in evaluations if e["best"]]
    expect(marked[-1]["accuracy"] == max(e["accuracy"] for e in evaluations), "accuracy is to be large")


def test_patience(folder):
    step = prepared(folder)
    log, again = folder / "log.jsonl", folder / "again.jsonl"
    state = ("--checkpoint", folder / "run")
    done = run("gacc-exec", *step, "--epochs", 50, "--patience", 2, "--log", log, *state)
    evaluations = events(log, "eval")
    best = min(evaluations, key=lambda e: e["loss"])
    expect([e["best"] for e in evaluations[-3:]] == [True, False, False] and evaluations[-3] == best, evaluations)
    expect(f"no better loss in 2 evaluations: stopped; the best was {best['loss']:.6g}, at update "
           f"{best['updates']}, whose weights --save-best FILE would have kept\n" in done.stdout, done.stdout)
    done = run("gacc-exec", *step, "--epochs", 50, "--patience", 2, *state, "--resume")
    expect("gacc-exec: nothing to do: 2 evaluations in a row were not better than the best; a larger --patience goes "
           "on\n" in done.stderr, done.stderr)
    run("gacc-exec", *step, "--epochs", 50, "--patience", 3, "--log", log, *state, "--resume")
    run("gacc-exec", *step, "--epochs", 50, "--patience", 3, "--log", again)
    expect(events(log, "eval") == events(again, "eval"), "resumed with more patience, it decides as a straight run")


def test_a_resumed_run_decides_as_a_straight_one(folder):
    """kill -9 anywhere, then the same command with --resume: the same log (with the statistics of normalize =
    "data"), the same best parameters, the same end, with one thread or two."""
    step = prepared(folder, lr=0.001)
    command = [*step, "--epochs", 2000, "--patience", 100, "--eval-every", 3, "--save-best", folder / "best", "--log",
               folder / "log"]
    run("gacc-exec", *command, "--threads", 1)
    straight = [{k: v for k, v in e.items() if k != "seconds"} for e in harness.read_log(folder / "log")]
    best = (folder / "best").read_bytes()
    line = [harness.BIN / "gacc-exec", *command, "--checkpoint", folder / "run", "--checkpoint-every", "2", "--resume"]
    chance = random.Random(5)
    killed = 0
    for _ in range(KILLS):
        child = subprocess.Popen([*map(str, line), "--threads", str(chance.choice((1, 2)))], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        try:
            child.wait(timeout=0.05 + 0.3 * chance.random())
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            killed += 1
        child.wait()
        if chance.random() < 0.3 and (folder / "best").exists():
            (folder / "best").write_bytes(b"something else")
    run("gacc-exec", *line[1:], "--threads", 2)
    resumed = [{k: v for k, v in e.items() if k != "seconds"} for e in harness.read_log(folder / "log")]
    expect(resumed == straight, f"another log after {killed} kills")
    expect((folder / "best").read_bytes() == best, f"other parameters after {killed} kills")


def test_an_evaluation_at_the_end_is_not_the_resumed_runs(folder):
    """A run that stops between two evaluations makes one more. The run that goes on has not made it."""
    step = prepared(folder)
    common = [*step, "--eval-every", 5]
    run("gacc-exec", *common, "--updates", 30, "--save-best", folder / "straight")
    for updates in (7, 13, 22, 30):
        run("gacc-exec", *common, "--updates", updates, "--save-best", folder / "best", "--checkpoint", folder / "run",
            "--resume")
    expect((folder / "best").read_bytes() == (folder / "straight").read_bytes(), "other parameters")


def test_nothing_to_do(folder):
    step = prepared(folder)
    state = ("--checkpoint", folder / "run", "--resume")
    run("gacc-exec", *step, "--epochs", 1, *state)
    for limit, words in ((("--epochs", 1), "1 of 1 epoch is done; a larger --epochs goes on"),
                         ((), "1 of 1 epoch is done; a larger --epochs goes on"),
                         (("--updates", 8), "8 of 8 updates are done; a larger --updates goes on"),
                         (("--launches", 16), "16 of 16 launches are done; a larger --launches goes on")):
        done = run("gacc-exec", *step, *limit, *state)
        expect(f"gacc-exec: nothing to do: {words}\n" in done.stderr, done.stderr)
    expect("nothing to do" not in run("gacc-exec", *step, "--epochs", 2, *state).stderr, "there was an epoch to do")
    # The checkpoint's parameters can be evaluated, on any data.
    (folder / "run/other").write_text("not touched")
    before = (folder / "run/checkpoint").read_bytes()
    done = run("gacc-exec", step[0], "--eval", step[2] + ",limit=9", *state)
    expect(done.stdout.startswith("eval, epoch 2, update 16: loss "), done.stdout)
    expect((folder / "run/checkpoint").read_bytes() == before, "an evaluation leaves the checkpoint alone")
    harness.one_error(run("gacc-exec", step[0], "--eval", step[2], "--checkpoint", folder / "none", "--resume", code=1),
                      f"cannot read {folder}/none/checkpoint")
    expect(not (folder / "none").exists(), "a folder was made")


def test_command_lines(folder):
    step = prepared(folder)
    data, eval = step[:3], [step[0], *step[3:]]
    for line, words in ((step[:1], "--data is required (or --eval alone, --generate, or --init-only, which "
                         "writes what --load reads)"),
                        ([*data, "--patience", 3], "--patience needs --eval"),
                        ([*data, "--save-best", "f"], "--save-best needs --eval"),
                        ([*step, "--best", "accuracy"],
                         "--best needs --save-best or --save-best-adapter or --patience"),
                        ([*eval, "--epochs", 3], "--eval without --data evaluates once: --epochs does not go with it"),
                        ([*eval, "--save", "f"], "--eval without --data evaluates once: --save does not go with it"),
                        ([*eval, "--checkpoint", "f"],
                         "--eval without --data evaluates once: --checkpoint goes with it only to --resume from")):
        done = run("gacc-exec", *line, code=2, cwd=folder)
        expect(done.stderr == f"gacc-exec: error: {words}\n", done.stderr)
    done = run("gacc-exec", *step, "--patience", 2, "--best", "acuracy", code=1)
    expect(done.stderr == 'gacc-exec: error: --best acuracy: the model has no such metric; did you mean "accuracy"? '
                          '(it has "loss" and "accuracy")\n', done.stderr)
    run("gacc-exec", *step, "--epochs", 1, "--patience", 2, "--checkpoint", "run", cwd=folder)
    done = run("gacc-exec", *step, "--epochs", 2, "--patience", 2, "--best", "accuracy", "--checkpoint", "run",
               "--resume", code=1, cwd=folder)
    expect(done.stderr.endswith("gacc-exec: error: cannot resume: --best was loss, and is accuracy now\n"), done.stderr)


def test_a_loss_far_above_the_first_is_said(folder):
    step = prepared(folder, lr=1000)
    done = run("gacc-exec", *step[:3], "--epochs", 2)
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    expect(len(warnings) == 1 and warnings[0].startswith("gacc-exec: warning: epoch 1: the loss ") and
           " is far above the first update's " in warnings[0], done.stderr)
    done = run("gacc-exec", *step[:3], "--updates", 5)
    expect("gacc-exec: warning: epoch 1: the loss " in done.stderr, done.stderr)
    expect("warning" not in run("gacc-exec", *prepared(folder)[:3], "--epochs", 3).stderr, "an ordinary run")


harness.main(globals())
