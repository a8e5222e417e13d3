"""A text of the IR in phase `model` as a model file: the same artifact as the TOML file, the same options, and errors
with places in the text."""
import pathlib
import random
import subprocess

import harness
from harness import expect, run, says

FORWARD = """module @line phase(model) {
  set loss.type = "mse"
  set loss.target = "y"
  set optimizer.type = "sgd"
  set optimizer.lr = 0.1
  set train.micro_batch = 4
  param @w : f32[3,2]
  param @b : f32[3]

  init {
    fill @w {value = 0.5}
    fill @b
  }

  step(%x : f32[B,2], %y : f32[B,3]) {
    %mm = matmul %x, @w : f32[B,3] {tb}
    %out = add %mm, @b : f32[B,3]
    yield output %out
  }
}
"""


def code(artifact):
    """All of an artifact but the record of its model: the IR and the PTX."""
    lines = pathlib.Path(artifact).read_text().splitlines()
    return [line for line in lines if not line.startswith(("// gacc artifact", "//m", "//o", "//@"))]


def test_the_text_of_a_model_is_the_model(folder):
    for name in ("mnist_mlp", "mnist_cnn", "adam_micro", "mnist_mlp_f16", "shakespeare_gpt", "mixer", "regression",
                 "schedules"):
        toml = harness.example(name)
        run("gaccc", toml, "--emit", "ir", "--stop-after", "model", "-o", folder / "m.gir")
        plans = [run("gaccc", model, "--plan", "--json").stdout for model in (toml, folder / "m.gir")]
        expect(plans[0] == plans[1], f"{name}: another plan")
        texts = []
        for model in (toml, folder / "m.gir"):
            run("gaccc", model, "--emit", "ir", "-o", folder / "out.gir")
            texts.append((folder / "out.gir").read_text().replace(str(model), "MODEL"))
        expect(texts[0] == texts[1], f"{name}: another program")


def test_options_override_settings(folder):
    toml = harness.example("mnist_mlp")
    run("gaccc", toml, "--emit", "ir", "--stop-after", "model", "-o", folder / "m.gir")
    sets = [["train.micro_batch=16", "train.accumulate=2"], ["optimizer.type=lion", "optimizer.lr=0.01"],
            ["precision.compute=bf16"], ["train.require=bits"],
            ["train.effective_batch=128", "train.micro_batch=auto", "train.accumulate=auto"]]
    for some in sets:
        words = [word for each in some for word in ("--set", each)]
        if "precision" not in some[0] and "lion" not in some[0]:
            words += ["--memory", "9MiB"]
        plans = [run("gaccc", model, *words, "--plan", "--json").stdout for model in (toml, folder / "m.gir")]
        expect(plans[0] == plans[1], f"{some}: another plan\n{plans[0]}\n{plans[1]}")


def test_a_forward_gets_its_loss(folder):
    (folder / "m.gir").write_text(FORWARD)
    toml = """
model = { name = "line" }
inputs.x = { shape = [2], dtype = "f32" }
inputs.y = { shape = [3], dtype = "f32" }
layers = [{ type = "linear", name = "out", features = 3 }]
loss = { type = "mse", target = "y" }
optimizer = { type = "sgd", lr = 0.1 }
train = { micro_batch = 4 }
"""
    (folder / "m.toml").write_text(toml)
    losses = []
    harness.write_npy(folder / "x.npy", harness.array.array("f", range(16)), [8, 2])
    harness.write_npy(folder / "y.npy", harness.array.array("f", range(24)), [8, 3])
    harness.write_safetensors(folder / "w.toml.safetensors",
                              {"out.weight": ([3, 2], [0.5] * 6), "out.bias": ([3], [0.0] * 3)})
    harness.write_safetensors(folder / "w.gir.safetensors", {"w": ([3, 2], [0.5] * 6), "b": ([3], [0.0] * 3)})
    for kind in ("toml", "gir"):
        run("gaccc", folder / f"m.{kind}", "-o", folder / "step.ptx")
        run("gacc-exec", folder / "step.ptx", "--device", "cpu", "--threads", 1, "--data",
            f"npy:x={folder}/x.npy,y={folder}/y.npy",
            "--load", folder / f"w.{kind}.safetensors", "--no-shuffle", "--log", folder / "log", "--save",
            folder / f"saved.{kind}.safetensors")
        run("gacc-exec", folder / "step.ptx", "--device", "cpu", "--threads", 1, "--data",
            f"npy:x={folder}/x.npy,y={folder}/y.npy",
            "--load", folder / f"saved.{kind}.safetensors", "--predict", folder / f"p.{kind}.npy")
        losses.append([event["loss"] for event in harness.updates_of(folder / "log")])
    expect(losses[0] == losses[1] and len(losses[0]) == 2, f"the losses are {losses}")
    expect((folder / "p.toml.npy").read_bytes() == (folder / "p.gir.npy").read_bytes(), "the predictions differ")


def wrong(folder, text, *words, arguments=()):
    path = folder / "wrong.gir"
    path.write_text(text)
    done = run("gaccc", path, "-o", folder / "wrong.ptx", *arguments, code=1)
    says(done, "error:", *words)
    expect(not (folder / "wrong.ptx").exists(), "an artifact is left behind")


def test_errors_have_places_in_the_text(folder):
    def changed(*pairs):
        text = FORWARD
        for old, new in pairs:
            expect(old in text, old)
            text = text.replace(old, new)
        return text
    wrong(folder, changed(("matmul %x", "matmull %x")), ":16:11:", "matmul")
    wrong(folder, changed(("f32[B,3] {tb}", "f32[B,4] {tb}")), ":16:11:", "R4")
    wrong(folder, changed(("phase(model)", "phase(gradient)")), "phase `gradient`")
    wrong(folder, changed(("    fill @b\n", "")), ":8:", "init")
    wrong(folder, changed(("set optimizer.lr = 0.1", "set optimizer.lr = -1")), ":5:7:", "optimizer.lr")
    wrong(folder, changed(('"sgd"', '"sdg"')), ":4:7:", "sgd")
    wrong(folder, changed(("micro_batch = 4", "micro_batch = 0")), "micro_batch")
    wrong(folder, changed(('target = "y"', 'target = "z"')), ":3:7:", "there is no input `z`")
    wrong(folder, changed(("param @b : f32[3]", "param @b : f16[3]")), "f32")
    wrong(folder, changed(("init {", "update {\n    fill @b\n  }\n\n  init {")), "update")
    wrong(folder, FORWARD, "train.accumulate=0", arguments=["--set", "train.accumulate=0"])
    wrong(folder, FORWARD, "layers", arguments=["--set", "layers.fc.features=3"])
    wrong(folder, FORWARD, "inputs", arguments=["--set", "inputs.x.shape=[3]"])
    wrong(folder, FORWARD, "segments", arguments=["--set", "recompute.policy=all"])
    wrong(folder, changed(("matmul %x, @w : f32[B,3] {tb}", "embedding %y, @w : f32[B,3,2]")), "")
    closed = changed(("    yield output %out\n",
                      "    %e = squared_error %out, %y : f32[B,3]\n    %loss = total_sum %e : f32[]\n"
                      "    %ones = ones_like %e : i32[B,3]\n    %count = total_sum %ones : i32[]\n    yield loss "
                      "%loss, count %count\n"))
    wrong(folder, closed, "the loss is in the text's ops", arguments=["--set", "loss.type=l1"])
    (folder / "closed.gir").write_text(closed)
    run("gaccc", folder / "closed.gir", "--plan")


def test_the_artifact_carries_the_text(folder):
    (folder / "m.gir").write_text(FORWARD)
    run("gaccc", folder / "m.gir", "-o", folder / "step.ptx")
    expect("yield output %out" in (folder / "step.ptx").read_text(), "the artifact has no model")
    run("gaccc", folder / "m.gir", "--summary")
    run("gaccc", "-", "--plan", stdin=open(folder / "m.gir"))
    run("gaccc", folder / "m.gir", "--plan", "--report", folder / "report.html")


def test_broken_texts_are_errors(folder):
    """Words of other lines in the place of one's own: exit 0 or 1, and never a bug."""
    toml = harness.example("mnist_cnn")
    run("gaccc", toml, "--emit", "ir", "--stop-after", "model", "-o", folder / "m.gir")
    texts = [FORWARD, (folder / "m.gir").read_text()]
    draw = random.Random(1)
    for _ in range(60):
        lines = draw.choice(texts).splitlines()
        for _ in range(draw.randint(1, 3)):
            words = lines[(at := draw.randrange(len(lines)))].split(" ")
            other = draw.choice(lines).split(" ")
            words[draw.randrange(len(words))] = draw.choice(other)
            lines[at] = " ".join(words)
            if draw.random() < 0.3:
                del lines[draw.randrange(len(lines))]
        (folder / "broken.gir").write_text("\n".join(lines))
        done = subprocess.run([str(harness.BIN / "gaccc"), str(folder / "broken.gir"), "--plan"], capture_output=True,
                              text=True, timeout=120)
        if done.returncode not in (0, 1):
            kept = pathlib.Path("/tmp") / "gacc-broken.gir"
            kept.write_text("\n".join(lines))
            raise harness.Failed(f"exit {done.returncode}, the text is {kept}\n{done.stderr}")


harness.main(globals())
