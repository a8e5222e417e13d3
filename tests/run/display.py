"""What a user sees while a run goes on: as much as the terminal is wide, the most useful first."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading

import harness
from harness import expect, run


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
    done = subprocess.run(list(map(str, command)), stderr=theirs, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=120)
    os.close(theirs)
    reader.join()
    os.close(ours)
    expect(done.returncode == 0, b"".join(text).decode())
    drawn = b"".join(text).decode().split("\r\x1b[K")
    return [line for line in drawn if "%" in line], done.stdout.decode()


def test_progress_fits_the_terminal(folder):
    model = harness.example("mnist_mlp")
    step = harness.compile_model(model, folder / "step.ptx")
    command = [harness.BIN / "gacc-exec", step, "--data", harness.make_data(model, 1500, folder), "--epochs", 12, "--device", "cpu"]
    for columns, wanted in ((80, "samples/s"), (120, "eff. batch "), (30, " left")):
        lines, out = shown(columns, *command)
        expect(lines and all(len(line) < columns for line in lines), f"{columns} columns: {lines}")
        expect(all(re.match(r"\d+ %  \d+:\d\d left", line) for line in lines), lines)
        expect(columns < 80 or all(" epoch " in line and wanted in line for line in lines), f"{columns} columns: {lines}")
        expect(out.count("\nepoch ") + out.startswith("epoch ") == 12, "a line an epoch stays")
    lines, out = shown(80, *command, "--quiet")
    expect(not lines and out.count("epoch ") == 12 and "memory:" not in out, f"--quiet: results alone: {lines}{out}")


harness.main(globals())
