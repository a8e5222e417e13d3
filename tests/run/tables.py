"""Tables as people have them: texts, holes, columns that are no feature, classes with names; from csv to predictions
in csv."""
import array
import csv
import math
import random

import harness
from harness import expect, layer, run


def passengers(folder, rows=120):
    """Women are saved; the rest is chance."""
    chance = random.Random(5)
    lines = ["name,sex,age,port,alone,fate,born"]
    for i in range(rows):
        sex = chance.choice(["male", "female"])
        age = "?" if i % 7 == 3 else chance.randrange(1, 80)
        port = "" if i % 11 == 5 else chance.choice("SCQ")
        fate = "saved" if sex == "female" else "drowned"
        lines.append(
            f'"Doe, no. {i}",{sex},{age},{port},{chance.choice(["True", "False"])},{fate},19{i % 90 + 10}-01-01')
    (folder / "p.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{folder / 'p.csv'},drop=name|born,na=?|-,missing=mean"


def compiled(folder, form="class"):
    columns = [{"name": "sex", "values": ["male", "female"]}, {"name": "port", "values": ["S", "C", "Q"]}]
    (folder / "p.toml").write_text(harness.model_text(
        layer("linear", features=8, activation="tanh"), layer("linear", features=2),
        model={"name": "passengers", "seed": 3, "metrics": ["accuracy"]},
        inputs={"x": {"shape": [7], "normalize": "data", "columns": columns},
                "fate": {"dtype": "i32", "values": ["drowned", "saved"]}},
        loss={"type": "cross_entropy", "target": "fate"}, predict={"form": form}, train={"micro_batch": 8},
        optimizer={"type": "adam", "lr": 0.02}))
    return harness.compile_model(folder / "p.toml", folder / f"{form}.ptx")


def test_a_table_of_texts_from_csv_to_predictions(folder):
    spec, weights = passengers(folder), folder / "w.safetensors"
    step, log = compiled(folder), folder / "log.jsonl"
    run("gacc-exec", step, "--data", f"{spec},split=train", "--eval", f"{spec},split=test", "--epochs", 20, "--save",
        weights,
        "--log", log)
    start = harness.read_log(log)[0]
    expect(start["columns"]["x"] == ["sex=male", "sex=female", "age", "port=S", "port=C", "port=Q", "alone"],
           start["columns"])
    last = [e for e in harness.read_log(log) if e["event"] == "eval"][-1]
    expect(last["accuracy"] == 1, last)

    def predicted(form):
        run("gacc-exec", compiled(folder, form), "--data", spec, "--load", weights, "--predict", folder / f"{form}.csv")
        return list(csv.reader((folder / f"{form}.csv").read_text().splitlines()))

    rows = list(csv.DictReader((folder / "p.csv").read_text().splitlines()))
    classes = predicted("class")
    expect(classes == [["fate"]] + [[row["fate"]] for row in rows], classes[:5])
    logits, shares = predicted("logits"), predicted("probabilities")
    expect(logits[0] == shares[0] == ["fate_drowned", "fate_saved"], (logits[0], shares[0]))
    for row, share in zip(logits[1:], shares[1:]):
        a, b = map(float, row)
        wanted = 1 / (1 + math.exp(b - a))
        expect(abs(float(share[0]) - wanted) < 1e-6 and abs(float(share[0]) + float(share[1]) - 1) < 1e-6, (row, share))
    for form, shape, wanted in (("class", f"({len(rows)},)", [float(row["fate"] == "saved") for row in rows]),
                                ("probabilities", f"({len(rows)}, 2)", [float(x) for row in shares[1:] for x in row])):
        run("gacc-exec", compiled(folder, form), "--data", spec, "--load", weights, "--predict", folder / "p.npy")
        head, _, values = (folder / "p.npy").read_bytes().partition(b"\n")
        expect(shape.encode() in head, head)
        got = array.array("f", values)
        expect(max(abs(g - w) for g, w in zip(got, wanted, strict=True)) < 1e-6, got)


def test_mistakes_in_a_table_are_told_with_line_and_column(folder):
    spec, step = passengers(folder), compiled(folder)
    text = (folder / "p.csv").read_text()

    def told(old, new, words, to=spec, at=1):
        (folder / "p.csv").write_text(text.replace(old, new, at) if old else text)
        harness.one_error(run("gacc-exec", step, "--data", to, "--epochs", 1, code=1), words)

    lines = text.splitlines()
    first = lines[1]
    place = f"{folder}/p.csv:2: column"
    told(first, first.replace("male", "man").replace("fe", ""), f'{place} 2 ("sex"): "man" is none of its values')
    told(first, first[:first.rindex(",")].rpartition(",")[0] + ",lost,x",
         f'{place} 6 ("fate"): "lost" is none of its values')
    told(",sex,", ",gender,", f'{folder}/p.csv: has no column "sex", which the input "x" takes')
    told("", "", f'{folder}/p.csv: the input "x" states the column "sex", which drop= leaves out',
         spec.replace("drop=", "drop=sex|"))
    told(first, first.replace("19", '"19\n'), "field 7, whose quote opens in line 2, goes on after its closing quote")
    told("", "",
         f'{folder}/p.csv: 6 columns are left for the input "x", which takes 7: "sex=male", "sex=female", "age",',
         spec.replace("drop=", "drop=alone|"))
    told("", "", f'{folder}/p.csv: the input "fate" is the column of its name, and drop= leaves it out',
         spec.replace("drop=", "drop=fate|"))


def test_what_the_weights_know_of_their_data_is_compared(folder):
    spec, weights = passengers(folder), folder / "w.safetensors"
    run("gacc-exec", compiled(folder), "--data", spec, "--epochs", 1, "--save", weights)
    model = folder / "p.toml"
    text = model.read_text()
    for old, new, words in (('["drowned", "saved"]', '["saved", "drowned"]',
                             'the words of the input "fate" were "drowned" and "saved", and are "saved" and '),
                            ('normalize = "data"\n', "",
                             'the input "x" was normalised by its data, and the artifact takes it otherwise: ')):
        model.write_text(text.replace(old, new))
        step = harness.compile_model(model, folder / "other.ptx")
        harness.one_error(run("gacc-exec", step, "--data", spec, "--load", weights, "--predict", folder / "o.csv",
                              code=1), words)


def test_endings_in_capitals(folder):
    spec, weights = passengers(folder), folder / "w.safetensors"
    step = compiled(folder)
    run("gacc-exec", step, "--data", spec, "--epochs", 1, "--save", weights)
    (folder / "P.CSV").write_bytes((folder / "p.csv").read_bytes())
    for data, out in ((spec, "o.csv"), (spec.replace("p.csv", "P.CSV"), "O.CSV")):
        run("gacc-exec", step, "--data", data, "--load", weights, "--predict", folder / out)
    expect((folder / "O.CSV").read_bytes() == (folder / "o.csv").read_bytes(), "another table")


def test_a_label_that_is_wrong_is_told_beside_predictions(folder):
    spec, weights = passengers(folder), folder / "w.safetensors"
    step = compiled(folder)
    run("gacc-exec", step, "--data", spec, "--epochs", 1, "--save", weights)
    table = folder / "p.csv"
    table.write_text(table.read_text().replace(",saved,", ",lost,", 1))
    done = run("gacc-exec", step, "--data", spec, "--load", weights, "--predict", folder / "o.csv")
    expect('note: nothing is measured' in done.stderr and '"lost" is none of its values' in done.stderr, done.stderr)


def test_two_classes_of_one_output_have_names(folder):
    spec, weights, model = passengers(folder), folder / "w.safetensors", folder / "p.toml"
    compiled(folder)
    model.write_text(model.read_text().replace("features = 2",
                                               "features = 1").replace('"cross_entropy"', '"bce_with_logits"'))
    step = harness.compile_model(model, folder / "b.ptx")
    spec += ",label=fate"
    run("gacc-exec", step, "--data", spec, "--epochs", 20, "--save", weights)
    run("gacc-exec", step, "--data", spec, "--load", weights, "--predict", folder / "o.csv")
    rows = list(csv.DictReader((folder / "p.csv").read_text().splitlines()))
    expect((folder / "o.csv").read_text().split() == ["fate"] + [row["fate"] for row in rows],
           (folder / "o.csv").read_text()[:60])


def test_arrays_are_split_by_rows(folder):
    step = harness.compile_text(folder, harness.classifier("m", [2], 3, layer("linear", features=3)))
    data = harness.make_data(folder / "m.toml", 25, folder)
    (folder / "more").mkdir()
    log = folder / "log.jsonl"
    run("gacc-exec", step, "--data", f"{data},split=train", "--eval", f"{data},split=test", "--epochs", 1, "--log", log)
    samples = {e["event"]: e["samples"] for e in harness.read_log(log) if "samples" in e}
    expect(samples["epoch"] == 23 and samples["eval"] == 2, samples)
    harness.make_data(folder / "m.toml", 27, folder / "more")
    done = run("gacc-exec", step, "--data", f"npy:x={folder}/x.npy,y={folder}/more/y.npy,split=test", "--epochs", 1,
               code=1)
    expect("has 27 samples, but" in done.stderr, done.stderr)
    done = run("gacc-exec", step, "--data", f"{data},split=half", "--epochs", 1, code=1)
    expect("split" in done.stderr, done.stderr)


harness.main(globals())
