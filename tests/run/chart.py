"""python -m gacc.chart: a picture of logs, or an error."""
import json
import os
import re
import subprocess

import harness
from harness import expect

UPDATES = [{"event": "update", "epoch": 1, "update": n, "loss": 3 / n, "lr": 1e-3 * n, "loss_scale": 2.0**(10 + n // 4),
            "grad_norm": None if n == 2 else 1.0 + n}
           for n in range(1, 9)]
EVALS = [{"event": "eval", "epoch": 1, "loss": 1.5, "samples": 9, "accuracy": 0.5, "updates": 4, "seconds": 0.1},
         {"event": "eval", "epoch": 2, "loss": 1.0, "samples": 9, "accuracy": 0.75, "updates": 8, "seconds": 0.1}]


def chart(python, *words, code=0):
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT / "python"),
                       GACC_LIBRARY=str(harness.BIN / "libgacc.so.0"))
    done = subprocess.run([python, "-m", "gacc.chart", *map(str, words)], text=True, capture_output=True,
                          env=environment)
    expect(done.returncode == code, done.stderr)
    return done.stderr


def log(path, *events, end=""):
    path.write_text("".join(json.dumps(event) + "\n" for event in ({"event": "start", "model": "m"}, *events)) + end)
    return path


def test_a_log_becomes_a_picture_of_what_is_in_it(folder):
    python = harness.peer("numpy", "matplotlib")
    one = log(folder / "one.jsonl", *UPDATES, *EVALS, end='{"event": "upd')  # of a run under way
    two = log(folder / "two.jsonl", *({"event": "update", "update": n, "loss": 2 / n, "lr": 1e-3, "loss_scale": 1}
                                      for n in range(1, 5)))
    titles = []
    for logs, out in ([one], "one.svg"), ([two], "two.svg"), ([one, two],
                                                              "both.svg"), (
                                                                  [log(folder / "evals.jsonl", *EVALS)], "evals.svg"):
        chart(python, *logs, "-o", folder / out)
        titles.append(set(re.findall(r"<!-- ([a-z ]+[a-z_ ]*) -->", (folder / out).read_text())))
    expect(titles[0] >= {"loss", "accuracy", "rate", "gradient norm", "loss scale", "training", "evaluation"},
           titles[0])
    expect(titles[1] >= {"loss", "rate"} and not titles[1] & {"loss scale", "gradient norm", "evaluation"}, titles[1])
    expect(titles[2] >= {"one", "two", "loss scale"} and titles[3] >= {"loss", "accuracy", "evaluation"}, titles[2:])
    for name, begin in ("p.png", b"\x89PNG"), ("p.pdf", b"%PDF"):
        chart(python, one, two, "-o", folder / name)
        expect((folder / name).read_bytes().startswith(begin), name)
    again = folder / "again.svg"
    chart(python, one, "-o", again)
    expect(again.read_bytes() == (folder / "one.svg").read_bytes(), "the same picture is the same bytes")


def test_without_anything_to_draw_it_is_an_error(folder):
    python = harness.peer("numpy", "matplotlib")
    good = log(folder / "good.jsonl", *UPDATES)
    (folder / "text").write_text("hello\n")
    (folder / "empty").write_text("")
    out = folder / "o.svg"
    for words, code, *told in (([], 2, "LOG"), ([good], 2, "--out"),
                               ([folder / "none", "-o", out], 1, "none: No such file"),
                               ([log(folder / "start.jsonl"), "-o", out], 1, "start.jsonl: has nothing to draw"),
                               ([folder / "empty", "-o", out], 1, "empty: has nothing to draw"),
                               ([folder / "text", "-o", out], 1, "text:1: is no event of a log"),
                               ([good, folder / "empty", "-o", out], 1, "empty"),
                               ([good, "-o", folder / "o.gif"], 1, ".svg, .png, .pdf"),
                               ([good, "-o", folder / "no/o.svg"], 1, "o.svg: cannot be written")):
        said = chart(python, *words, code=code)
        expect(all(word in said for word in told) and "Traceback" not in said, said)
        expect(not out.exists(), words)


harness.main(globals())
