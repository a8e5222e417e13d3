"""Data that cannot be silently wrong: what a model has learnt of its training data stays with its weights, its
checkpoints and its log, and other data are refused, put in order or warned of, word for word."""
import json
import math
import random
import struct
import subprocess
import time

import harness
from harness import expect, layer, model_text, run

COLUMNS = ["rooms", "area", "age"]


def compiled(folder, normalize="data", **settings):
    (folder / "m.toml").write_text(model_text(
        layer("linear", features=1), layer("reshape", shape=[]), model={"name": "table", "seed": 1},
        inputs={"x": {"shape": [3], "normalize": normalize}, "price": {}}, loss={"type": "mse", "target": "price"},
        train={"micro_batch": 8, "accumulate": 2}, optimizer={"type": "sgd", "lr": 0.01}))
    return harness.compile_model(folder / "m.toml", folder / "m.ptx", **settings)


def write_csv(path, columns=(*COLUMNS, "price"), rows=40):
    """The same rows whatever the order of the columns."""
    chance = random.Random(3)
    lines = [",".join(columns)]
    for _ in range(rows):
        row = {name: chance.randrange(100) for name in COLUMNS}
        row["price"] = row["rooms"] + 2 * row["area"] - row["age"]
        lines.append(",".join(str(row.get(name, 1)) for name in columns))
    path.write_text("\n".join(lines) + "\n")
    return f"csv:{path},label=price"


def metadata(path):
    raw = path.read_bytes()
    return json.loads(raw[8:8 + struct.unpack("<Q", raw[:8])[0]])["__metadata__"]


def eval_loss(log):
    return [e["loss"] for e in harness.read_log(log) if e["event"] == "eval"]


def test_columns_go_by_name(folder):
    step = compiled(folder)
    first = write_csv(folder / "first.csv")
    turned = write_csv(folder / "turned.csv", ("age", "price", "rooms", "area"))
    renamed = write_csv(folder / "renamed.csv", ("room", "area", "age", "price"))
    extra = write_csv(folder / "extra.csv", (*COLUMNS, "price", "id"))
    twice = write_csv(folder / "twice.csv", ("rooms", "area", "area", "price"))
    weights, log = folder / "w.safetensors", folder / "log.jsonl"
    run("gacc-exec", step, "--data", first, "--eval", first, "--epochs", 2, "--save", weights, "--log", log)
    straight = eval_loss(log)
    expect(json.loads(metadata(weights)["gacc.inputs.x.columns"]) == COLUMNS, metadata(weights))
    expect(metadata(weights)["format"] == "pt", "transformers asks for it")
    start = harness.read_log(log)[0]
    expect(start["columns"] == {"x": COLUMNS} and start["data"] == first and start["eval"] == first, start)
    expect(start["optimizer"] == "sgd" and start["lr"] == 0.01 and start["seed"] == 1 and "version" in start, start)

    note = f"gacc-exec: note: {folder}/turned.csv: its columns stand in another order than in training, and are taken by name\n"
    were = "its columns are not those that the model was trained on: "
    done = run("gacc-exec", step, "--data", first, "--eval", turned, "--epochs", 2, "--log", log)
    expect(note in done.stderr and eval_loss(log) == straight, done.stderr)
    later = ("--load", weights, "--eval", first, "--epochs", 1, "--lr", 0)
    done = run("gacc-exec", step, "--data", turned, *later, "--log", log)
    expect(note in done.stderr and eval_loss(log)[-1] == straight[-1], "a later run has other columns")
    refused = {renamed: f'{folder}/renamed.csv: {were}it has no "rooms"; "room" was not there',
               extra: f'{folder}/extra.csv: {were}"id" was not there',
               twice: f'{folder}/twice.csv:1: columns 2 and 3 are both called "area"; rename one'}
    for spec, words in refused.items():
        done = run("gacc-exec", step, "--data", first, "--eval", spec, code=1)
        expect(done.stderr.endswith(f"gacc-exec: error: --eval: {words}\n"), done.stderr)
        done = run("gacc-exec", step, "--data", spec, *later, code=1)
        expect(done.stderr.endswith(f"gacc-exec: error: {words}\n"), done.stderr)

    run("gacc-exec", step, "--data", first, "--checkpoint", folder / "run", "--epochs", 1)
    resume = ("--checkpoint", folder / "run", "--resume", "--save", folder / "resumed.safetensors", "--epochs", 2)
    harness.one_error(run("gacc-exec", step, "--data", renamed, *resume, code=1), refused[renamed])
    expect(note in run("gacc-exec", step, "--data", turned, *resume).stderr, "a resumed run takes columns by name")
    expect((folder / "resumed.safetensors").read_bytes() == weights.read_bytes(), "with other bits")


def test_statistics_are_kept(folder):
    """normalize = "data": those of the training set, whatever is evaluated or resumed later."""
    step = compiled(folder)
    spec = write_csv(folder / "first.csv")
    rows = [list(map(float, line.split(",")))[:3] for line in (folder / "first.csv").read_text().split()[1:]]
    means = [math.fsum(c) / len(rows) for c in zip(*rows)]
    deviations = [math.sqrt(math.fsum((v - m) ** 2 for v in c) / len(rows)) for c, m in zip(zip(*rows), means)]
    weights, log = folder / "w.safetensors", folder / "log.jsonl"
    run("gacc-exec", step, "--data", spec, "--eval", f"{spec},limit=10", "--epochs", 3, "--save", weights, "--log", log,
        "--checkpoint", folder / "run", "--threads", 2)
    for name, wanted in (("mean", means), ("std", deviations)):
        got = json.loads(metadata(weights)[f"gacc.inputs.x.{name}"])
        expect(all(abs(g - w) <= 1e-14 * abs(w) for g, w in zip(got, wanted)), f"{name}: {got} for {wanted}")
        expect(harness.read_log(log)[0]["normalize"]["x"][name] == got, "the log says others")
    straight = eval_loss(log)[-1]

    by_hand = compiled(folder, {"mean": means, "std": deviations})
    run("gacc-exec", by_hand, "--data", spec, "--epochs", 3, "--save", folder / "hand.safetensors")
    expect(harness.read_safetensors(folder / "hand.safetensors") == harness.read_safetensors(weights), "as by hand")

    step = compiled(folder)
    for threads in (1, 2):  # other data, and the statistics of the first
        run("gacc-exec", step, "--data", f"{spec},limit=10", "--eval", f"{spec},limit=10", "--load", weights, "--lr", 0,
            "--epochs", 1,
            "--log", log, "--threads", threads)
        expect(eval_loss(log)[-1] == straight, f"{eval_loss(log)} for {straight}")
    for source in (("--load", weights), ("--checkpoint", folder / "run", "--resume")):
        run("gacc-exec", step, "--eval", f"{spec},limit=10", *source, "--log", log)
        expect(eval_loss(log) == [straight], f"evaluated alone: {eval_loss(log)} for {straight}")
    run("gacc-exec", step, "--init-only", "--save", folder / "initial.safetensors")
    harness.one_error(run("gacc-exec", step, "--eval", spec, "--load", folder / "initial.safetensors", code=1),
                      f'{folder}/first.csv: the input "x" is normalised by its training data, and nothing says how: '
                      "give --data, --load a file that gacc-exec has saved after training, or state normalize = "
                      "{ mean = [...], std = [...] } of the input in the model file")
    run("gacc-exec", step, "--data", spec, "--epochs", 1, "--checkpoint", folder / "cut")
    run("gacc-exec", step, "--data", spec, "--epochs", 3, "--checkpoint", folder / "cut", "--resume", "--save",
        folder / "cut.safetensors")
    expect((folder / "cut.safetensors").read_bytes() == weights.read_bytes(), "resumed: other weights or statistics")

    changed = metadata(weights) | {"gacc.inputs.x.std": "[1, 0, 1]"}
    raw = weights.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.dumps(json.loads(raw[8:8 + size]) | {"__metadata__": changed}).encode()
    weights.write_bytes(struct.pack("<Q", len(header)) + header + raw[8 + size:])
    harness.one_error(run("gacc-exec", step, "--data", spec, "--load", weights, code=1),
                      f'{weights}: its metadata "gacc.inputs.x.std" does not fit the input "x" [3]')


def test_a_large_file_that_shrinks(folder):
    """It is mapped; that it is shorter all at once is an error, and no signal."""
    tokens = {"shape": [16], "dtype": "i32"}
    (folder / "m.toml").write_text(model_text(
        layer("embedding", vocab=256, features=4), layer("linear", features=256), model={"name": "tokens"},
        inputs={"x": tokens, "y": tokens}, loss={"type": "cross_entropy", "target": "y"}, optimizer={"type": "sgd"}))
    step = harness.compile_model(folder / "m.toml", folder / "step.ptx", train__micro_batch=4)
    data, log = folder / "t.bin", folder / "log.jsonl"
    with open(data, "wb") as file:
        file.truncate(32 << 20)
    training = subprocess.Popen([str(harness.BIN / "gacc-exec"), step, "--device", "cpu", "--data", f"tokens:{data}",
                                 "--log", log, "--quiet"],
                                stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (log.exists() and '"update"' in log.read_text()):
            time.sleep(0.01)
        with open(data, "r+b") as file:
            file.truncate(1000)
        _, errors = training.communicate(timeout=60)
    finally:
        training.kill()
    words = f"{data}: has 1000 bytes now, and had {32 << 20} when the run began; its data must stay as they are"
    expect(training.returncode == 1 and words in errors, f"{training.returncode}: {errors}")


def test_verify_normalises(folder):
    step = compiled(folder)
    done = run("gacc-exec", step, "--data", write_csv(folder / "f.csv"), "--verify")
    expect(" 0 failed" in done.stdout, done.stdout)


def test_csv_options(folder):
    step = compiled(folder)
    spec = write_csv(folder / "f.csv")
    text = (folder / "f.csv").read_text()
    (folder / "f.csv").write_text(text.replace(",", ";"))
    log = folder / "log.jsonl"
    run("gacc-exec", step, "--data", f"{spec},sep=;,split=train", "--eval", f"{spec},sep=;,split=test", "--epochs", 1,
        "--log", log)
    samples = {e["event"]: e["samples"] for e in harness.read_log(log) if "samples" in e}
    expect(samples["epoch"] == 36 and samples["eval"] == 4, samples)
    for option, words in (("missing=men", 'missing is error, mean or drop, not "men"; did you mean "mean"?'),
                          ("sep=ab", 'sep is one character such as ; or |, or tab (a comma needs no sep), not "ab"')):
        done = run("gacc-exec", step, "--data", f"{spec},{option}", code=1)
        expect(done.stderr == f'gacc-exec: error: data "{spec},{option}": {words}\n', done.stderr)
    (folder / "f.csv").write_text(text.replace("\n", "\n,1,2,3\n", 1))
    done = run("gacc-exec", step, "--data", spec, code=1)
    expect(done.stderr == f'gacc-exec: error: {folder}/f.csv:2: column 1 ("rooms"): the field is empty; missing=mean '
                          f'fills it in, '
           "missing=drop leaves the line out\n", done.stderr)
    done = run("gacc-exec", step, "--data", f"{spec},missing=drop", "--epochs", 1)
    expect(f"gacc-exec: note: {folder}/f.csv: 1 of 41 lines have a missing field and are left out\n" in done.stderr,
           done.stderr)
    done = run("gacc-exec", step, "--data", f"{spec},missing=mean", "--epochs", 1)
    expect(f"gacc-exec: note: {folder}/f.csv: 1 missing field has its column's mean of training\n" in done.stderr,
           done.stderr)


harness.main(globals())
