"""A barrier or a store that an artifact lacks: the emulator reports it, or no bit changes without it.

`missing.py all` tries every barrier and every store of a transient value that is executed and prints what survived;
docs/emulator.md says of each why it changes nothing. The suite tries some.
"""
import math
import pathlib
import re
import sys
import tempfile

import harness
from harness import expect, layer, run, sealed

# More classes than a confusion matrix has: what only the host reads, such as its answers, is not checked.
MODEL = harness.classifier("missing", [24], 21, (
    layer("linear", name="fc1", features=64), layer("layer_norm"), layer("activation", fn="tanh"),
    layer("linear", name="fc2", features=21)), train="micro_batch = 8\naccumulate = 2\nclip_norm = 1.0",
                           optimizer='type = "adam"\nlr = 0.01')
ARTIFACTS = {"graph": {"launch__mode": '"graph"'}, "persistent": {"launch__mode": '"persistent"'},
             "f16": {"launch__mode": '"graph"', "precision__compute": '"f16"'}}


class Case:
    """An artifact, what it computes, and the places in its text where something can be left out."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        model = folder / "model.toml"
        model.write_text(MODEL)
        self.artifact = harness.compile_model(model, folder / f"{name}.ptx", **ARTIFACTS[name])
        self.spec = harness.make_data(model, 40, folder)
        self.lines = self.artifact.read_text().split("\n")
        self.buffers = [(at, at + math.prod(shape) * harness.BYTES[dtype])
                        for _, dtype, shape, at in harness.ArtifactIr(self.artifact).buffers]
        self.whole = self.outcome(None, None)
        expect(self.whole[0] == "", f"{name}: {self.whole[0]}")

    def outcome(self, line, text):
        """With the statement of that line (from 1) put as `text`: the emulator's reports, and all that was computed."""
        changed, weights, log = (self.folder / f"{self.name}.{kind}" for kind in ("changed", "weights", "log"))
        changed.write_bytes(self.artifact.read_bytes())
        if line is not None:
            lines = list(self.lines)
            lines[line - 1] = text
            sealed(changed, lambda body: "\n".join(lines[1:]).encode())
        for path in (weights, log):
            path.unlink(missing_ok=True)
        done = run("gacc-exec", changed, "--data", self.spec, "--eval", self.spec, "--launches", 8, "--device",
                   "emulate",
                   "--save", weights, "--log", log, code=(0, 1))
        reports = [text for text in done.stderr.splitlines() if re.search(r": line \d+: ", text)]
        expect(log.exists(), done.stderr)
        numbers = [{k: v for k, v in e.items() if k in ("loss", "norm", "accuracy")} for e in harness.read_log(log)]
        return "\n".join(reports), (weights.read_bytes() if weights.exists() else b"", str(numbers))

    def barriers(self, every=1):
        """The lines of barriers that are executed: a trap there is reported. Of `every` so many one."""
        found = [i for i, text in enumerate(self.lines, 1) if re.match(r"\s*bar\.", text)]
        return [i for i in found[::every] if f"line {i}: trap" in self.outcome(i, "trap;")[0]]

    def stores(self, every=1):
        """The lines of stores that are executed and first write outside of the buffers: one byte off, they say
        where."""
        found = []
        for i in [i for i, text in enumerate(self.lines, 1) if re.search(r"\bst\.global", text)][::every]:
            off = re.sub(r"\[(%\w+)(\+-?\d+)?\]", lambda m: f"[{m[1]}+{int(m[2] or 0) + 1}]", self.lines[i - 1])
            place = re.search(rf"line {i}: misaligned access: .* at offset (\d+) of `memory`", self.outcome(i, off)[0])
            if place and not any(begin <= int(place[1]) < end for begin, end in self.buffers):
                found.append(i)
        return found

    def without(self, line):
        """Returns what becomes of a run without the statement of a line: "reported", "same bits" or "other bits"."""
        reports, values = self.outcome(line, "")
        return "reported" if reports else "same bits" if values == self.whole[1] else "other bits"

    def where(self, line):
        entry = next(text for text in reversed(self.lines[:line]) if ".entry" in text)
        kernel = re.search(r"entry (\w+)", entry)[1]
        return f"{self.name}: line {line}, {kernel}: {self.lines[line - 1].strip()}"


def test_barriers(folder):
    """Some of them; and the one behind a grid's barrier, where only the thread that waited knows of the other
    blocks."""
    for name in ARTIFACTS:
        case = Case(folder, name)
        verdicts = [case.without(line) for line in case.barriers(every=5)]
        expect("reported" in verdicts and "other bits" not in verdicts, f"{name}: {verdicts}")
        if name == "persistent":
            for waits in [i for i, text in enumerate(case.lines) if text.startswith("WAIT_")]:
                line = next(i for i, text in enumerate(case.lines, 1) if i > waits and "bar.sync" in text)
                expect(case.without(line) == "reported", case.where(line))


def test_stores(folder):
    for name in ARTIFACTS:
        case = Case(folder, name)
        lines = case.stores(every=11)
        expect(lines, f"{name}: no store was tried")
        for line in lines:
            expect(case.without(line) == "reported", case.where(line))


def everything(folder):
    cases = [Case(folder, name) for name in ARTIFACTS]
    for what in ("barriers", "stores"):
        verdicts = [(case.without(line), case.where(line)) for case in cases for line in getattr(case, what)()]
        survived = [f"  {verdict}: {where}" for verdict, where in verdicts if verdict != "reported"]
        print(f"{what}: {len(verdicts)} executed, {len(survived)} not reported", *survived, sep="\n", flush=True)


if __name__ == "__main__" and sys.argv[1:] == ["all"]:
    with tempfile.TemporaryDirectory(prefix="gacc-") as temporary:
        everything(pathlib.Path(temporary))
elif __name__ == "__main__":
    harness.main(globals())
