"""The display of a run: as much as the terminal is wide, the most useful first."""
import array
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading

import harness
from harness import expect, layer, model_text, run


def shown(columns, *command):
    """Standard error of the command on a terminal of so many columns, as the lines it draws."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    text = []

    def read():
        try:
            while block := os.read(ours, 1 << 16):
                text.append(block)
        except OSError:  # the other side is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(list(map(str, command)), stderr=theirs, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          timeout=120)
    os.close(theirs)
    reader.join()
    os.close(ours)
    expect(done.returncode == 0, b"".join(text).decode())
    drawn = b"".join(text).decode().split("\r\x1b[K")
    return [line for line in drawn if "%" in line], done.stdout.decode()


def test_progress_fits_the_terminal(folder):
    model = harness.example("mnist_mlp")
    step = harness.compile_model(model, folder / "step.ptx")
    command = [harness.BIN / "gacc-exec", step, "--data", harness.make_data(model, 1500, folder), "--epochs", 12,
               "--device", "cpu"]
    for columns, wanted in ((80, "samples/s"), (120, "eff. batch "), (30, " left")):
        lines, out = shown(columns, *command)
        expect(lines and all(len(line) < columns for line in lines), f"{columns} columns: {lines}")
        expect(all(re.match(r"\d+ %  \d+:\d\d left", line) for line in lines), lines)
        expect(columns < 80 or all(" epoch " in line and wanted in line for line in lines),
               f"{columns} columns: {lines}")
        expect(out.count("\nepoch ") + out.startswith("epoch ") == 12, "a line an epoch stays")
    lines, out = shown(80, *command, "--quiet")
    expect(not lines and out.count("epoch ") == 12 and "memory:" not in out, f"--quiet: results alone: {lines}{out}")


def last_line(*command, **options):
    done = run("gacc-exec", *command, **options)
    return done.stdout.splitlines()[-1], done.stderr


def test_the_last_line_says_what_was_done(folder):
    """With what loss, and where the weights are, whatever ends the run."""
    model = harness.example("regression")
    step = harness.compile_model(model, folder / "step.ptx", train__micro_batch=8, train__accumulate=4)
    data = harness.make_data(model, 200, folder)
    for limit, most, count in (("--updates", 3, "3 updates, 0 epochs, "), ("--launches", 4, "1 update, 0 epochs, "),
                               ("--epochs", 2, "14 updates, 2 epochs, ")):
        for quiet in ([], ["--quiet"]):
            line, _ = last_line(step, "--data", data, limit, most, *quiet)
            expect(re.match(
                rf"done: {count}.*; loss [\d.e-]+ in the last update; the weights are not kept \(--save FILE", line),
                line)
    line, _ = last_line(step, "--data", data, "--updates", 1, "--save", folder / "w.safetensors")
    expect(line.endswith(f"; wrote {folder}/w.safetensors") and "not kept" not in line, line)
    line, _ = last_line(step, "--data", data, "--updates", 1, "--checkpoint", folder / "run")
    expect(line.endswith(f"; the run's state is in {folder}/run/checkpoint"), line)
    line, _ = last_line(step, "--init-only")
    expect(line.startswith("done: initialised, nothing was launched; the weights are not kept"), line)
    line, _ = last_line(step, "--data", data, "--updates", 1, "--device", "emulate")
    expect(line.endswith("; every access kept to the plan"), line)


def test_weights_that_nothing_trained_are_called_that(folder):
    model = harness.example("regression")
    step, data = harness.compile_model(model, folder / "step.ptx"), harness.make_data(model, 200, folder)
    weights = folder / "w.safetensors"
    _, errors = last_line(step, "--data", data, "--epochs", 0, "--save", weights)
    expect(f"gacc-exec: warning: no update was made: {weights} has the initial weights\n" in errors, errors)
    _, errors = last_line(step, "--data", data, "--epochs", 0, "--load", weights, "--save", weights)
    expect("has the loaded weights" in errors, errors)
    _, errors = last_line(step, "--data", data, "--updates", 1, "--save", weights)
    expect("warning" not in errors, errors)
    _, errors = last_line(step, "--init-only", "--save", weights)
    expect("warning" not in errors, errors)


def test_an_epoch_that_counts_nothing_has_no_loss(folder):
    step = harness.compile_text(folder, harness.classifier("m", [2], 3, layer("linear", features=3)))
    harness.write_npy(folder / "x.npy", array.array("f", [1, 2, 3, 4]), [2, 2])
    harness.write_npy(folder / "y.npy", array.array("i", [-100, -100]), [2])
    done = run("gacc-exec", step, "--data", f"npy:x={folder}/x.npy,y={folder}/y.npy", code=(0, 1))
    expect("nan" not in done.stdout and "epoch 1: nothing was counted, 0 updates, 2 samples" in done.stdout,
           done.stdout)


def test_units_of_a_normalised_target(folder):
    """mae and rmse are in the target's own units, and the losses are said not to be."""
    text = model_text(
        layer("linear", features=1), layer("reshape", shape=[]),
        model={"name": "m", "seed": 1, "metrics": ["mae", "rmse", "r2"]},
        inputs={"x": {"shape": [1]}, "y": {"normalize": "data"}}, loss={"type": "mse", "target": "y"},
        optimizer={"type": "sgd", "lr": 0.1})
    step = harness.compile_text(folder, text)
    (folder / "a.csv").write_text("x,y\n" + "".join(f"{i},{1000 + 100 * i}\n" for i in range(8)))
    data, weights, log = f"csv:{folder}/a.csv,label=y", folder / "w.safetensors", folder / "log"
    done = run("gacc-exec", step, "--data", data, "--eval", data, "--epochs", 2, "--lr", 0.01, "--save", weights,
               "--log", log)
    note = "note: the target \"y\" is normalised by its data: losses are in units of its deviation (229.129), mae and rmse in its own"
    expect(note in done.stderr, done.stderr)
    shown = [e for e in harness.read_log(log) if e["event"] == "eval"][-1]
    expect(abs(shown["rmse"] - 229.12878 * shown["loss"] ** 0.5) < 1e-3 * shown["rmse"], shown)
    expect(f"mae {shown['mae']:.6g}, rmse {shown['rmse']:.6g}" in done.stdout, done.stdout)
    done = run("gacc-exec", step, "--data", data, "--load", weights, "--predict", folder / "p.csv")
    expect(done.stderr.endswith(f'gacc-exec: wrote the outputs of 8 samples to {folder}/p.csv, in the units of "y"\n'),
           done.stderr)
    expect(f"eval: loss {shown['loss']:.6g}, 8 samples, mae {shown['mae']:.6g}, rmse {shown['rmse']:.6g}" in done.stderr, done.stderr)
    rows = (folder / "p.csv").read_text().splitlines()
    errors = [float(text) - (1000 + 100 * i) for i, text in enumerate(rows[1:])]
    expect(rows[0] == "y" and len(errors) == 8, rows)
    expect(abs(sum(map(abs, errors)) / 8 - shown["mae"]) < 1e-3 * shown["mae"], f"{errors} for {shown}")
    done = run("gacc-exec", step, "--data", data, "--load", weights, "--predict", folder / "p.npy")
    expect('in units of the normalised target "y"; a file that ends in .csv has its own' in done.stderr, done.stderr)
    # Another layer has no units, and its own name.
    text = text.replace("type = \"linear\"", "type = \"linear\"\nname = \"inner\"") + '[predict]\nlayer = "inner"\n'
    step = harness.compile_text(folder, text, "other")
    run("gacc-exec", step, "--data", data, "--epochs", 1, "--save", weights)
    done = run("gacc-exec", step, "--data", data, "--load", weights, "--predict", folder / "p.csv")
    expect("units" not in done.stderr and (folder / "p.csv").read_text().startswith("inner\n"), done.stderr)


harness.main(globals())
