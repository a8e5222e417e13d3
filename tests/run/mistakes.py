"""Mistakes at the command line, and the words that users get: what is wrong, where, and what would be right."""
import array
import os
import re
import shutil
import subprocess

import harness
from harness import expect, run

LIST = "\ngacc-exec --help lists the options\n"


def test_options(folder):
    model = "the model file says it; compile with gaccc MODEL --set"
    for words, error in ((["--epoch", 3], 'there is no option --epoch; did you mean "--epochs"?'),
                         (["--nonesuch"], "there is no option --nonesuch"),
                         (["--batch-size", 3], f"there is no --batch-size: {model} train.micro_batch=N"),
                         (["--batch-size=3"], f"there is no --batch-size: {model} train.micro_batch=N"),
                         (["--memory", "1GiB"],
                          "there is no --memory: it is an option of gaccc, which makes the artifact"),
                         (["--data", "a", "--data", "b"], "--data is given 2 times"),
                         (["--data"], "--data lacks its value"),
                         (["--data", "synthetic:digits", "--predict", ""], "--predict is empty"),
                         (["--save", ""], "--save is empty"),
                         (["--precision", "f16"], f"there is no --precision: {model} precision.compute=f32|f16|bf16"),
                         (["--weight-decay", 1], f"there is no --weight-decay: {model} optimizer.weight_decay=X"),
                         (["--clip_norm=1"], f"there is no --clip_norm: {model} train.clip_norm=X"),
                         (["--data", "a", "b"], 'nothing takes the argument "b"')):
        done = run("gacc-exec", "step.ptx", *words, code=2, cwd=folder)
        expect(done.stderr == f"gacc-exec: error: {error}{LIST}", f"{words}: {done.stderr}")
    expect(run("gacc-exec", code=2).stderr == f"gacc-exec: error: ARTIFACT is required{LIST}", "no artifact")
    for words, error in ((["--emit", "plan"], 'there is no --emit plan; it is ptx, ir, llvm, graph, svg or toml'),
                         (["--emit", "lvm"],
                          'there is no --emit lvm; it is ptx, ir, llvm, graph, svg or toml; did you mean "llvm"?'),
                         (["--memory", ""], "--memory is empty"), (["--ranks", ""], "--ranks is empty"),
                         (["--set", "a=1", "--set"], "--set lacks its value")):
        done = run("gaccc", "m.toml", *words, code=2, cwd=folder)
        expect(done.stderr == f"gaccc: error: {error}\ngaccc --help lists the options\n", f"{words}: {done.stderr}")
    run("gaccc", "--schema", "-o", "schema.txt", code=2, cwd=folder)


# What people type as an option, and the key of the model file.
KEYS = {
    "--micro-batch": "train.micro_batch=N",
    "--batch_size": "train.micro_batch=N",
    "--gradient-accumulation-steps": "train.accumulate=N",
    "--learning-rate": "optimizer.lr=X",
    "--optimizer": "optimizer.type=sgd|adam|adamw|lion|lamb",
    "--optimizer-type": "optimizer.type=sgd|adam|adamw|lion|lamb",
    "--weight-decay": "optimizer.weight_decay=X",
    "--optimizer.weight_decay": "optimizer.weight_decay=X",
    "--schedule": "schedule.type=VALUE",
    "--warmup-steps": "schedule.warmup=VALUE",
    "--precision": "precision.compute=f32|f16|bf16",
    "--dtype": "precision.compute=f32|f16|bf16",
    "--budget": "memory.budget=VALUE",
    "--recompute": "recompute.policy=none|all|sqrt|marked|budget|auto",
    "--shuffle": "train.shuffle=true|false",
}


def test_keys_that_are_typed_as_options(folder):
    """Both programs name the key, and it is one that gaccc takes: what the compiler alone knows is none."""
    keys = run("gaccc", "--schema", "--json").stdout
    for option, key in KEYS.items():
        said = run("gaccc", "m.toml", f"{option}=1", code=2, cwd=folder).stderr.splitlines()[0]
        expect(said == f"gaccc: error: there is no {option}: write --set {key}", said)
        said = run("gacc-exec", "step.ptx", f"{option}=1", code=2, cwd=folder).stderr.splitlines()[0]
        expect(said == f"gacc-exec: error: there is no {option}: the model file says it; compile with gaccc MODEL "
                       f"--set {key}", said)
        name = key.partition("=")[0].rpartition(".")[2]
        expect(name == "type" or f'"key": "{name}"' in keys, f"{key} is no key of the schema")
    for option in ("--choose-micro-batch", "--warmup-share", "--nonesuch"):
        for program, file in (("gaccc", "m.toml"), ("gacc-exec", "step.ptx")):
            said = run(program, file, f"{option}=1", code=2, cwd=folder).stderr
            expect("--set" not in said, f"{program} {option}: {said}")


def test_options_that_do_not_go_together(folder):
    """The tables' columns `needs` and `excludes`."""
    model = harness.example("regression")
    for words, said in (
            (["--json"], "--json needs --plan or --fits or --schema"),
            (["--kernels"], "--kernels needs --plan"),
            (["--link", "25GB/s"], "--link needs --plan"),
            (["--link", "25", "--plan"], "--link: 25: expected a size a second, as in 25GB/s"),
            (["--stop-after", "dce"], "--stop-after needs --emit ir"),
            (["--emit", "ir", "--stop-after", "dce", "--plan"], "--plan excludes --stop-after: it needs all passes"),
            (["--emit", "graph", "--report", "r.html"], "--report excludes --emit graph: it needs all passes"),
            (["--plan", "-o", "-"], "--plan excludes -o -: both would share standard output"),
            (["--summary", "--json", "--plan"], "--summary excludes --json: it is a table"),
            (["--fits", "8", "--memory", "1GiB"],
             "--fits excludes --memory: it is a table of cards and writes nothing else"),
            (["--fits", "8", "--ranks", "auto"], "--fits excludes --ranks auto: it needs a number of ranks"),
            (["--schema"], "--schema excludes MODEL: it needs no MODEL, and prints one text"),
            (["--example", "mnist_cnn"], "--example excludes MODEL: it needs no MODEL, and prints one text")):
        done = run("gaccc", model, *words, code=2, cwd=folder)
        expect(done.stderr.splitlines()[0] == f"gaccc: error: {said}", f"{words}: {done.stderr}")
    done = run("gaccc", "--schema", "--markdown", "--json", code=2)
    expect("--markdown excludes --json: each is a form of its own" in done.stderr, done.stderr)
    expect(not list(folder.iterdir()), "a refused command wrote a file")


def test_files_that_end_as_other_formats_do(folder):
    first = ["step.ptx", "--data", "synthetic:digits"]
    torch = " (PyTorch reads it by safetensors.torch.load_file)"
    for words, error in ((["--save", "w.pt"],
                          f"--save w.pt: no pt files are written, but .safetensors, .gguf: w.safetensors{torch}"),
                         (["--save", "out/w.BIN"],
                          f"--save out/w.BIN: no bin files are written, but .safetensors, .gguf: "
                          f"out/w.safetensors{torch}"),
                         (["--save", "w.npz"],
                          "--save w.npz: no npz files are written, but .safetensors, .gguf: w.safetensors"),
                         (["--save-best", "w.ckpt", "--eval", "synthetic:digits"],
                          f"--save-best w.ckpt: no ckpt files are written, but .safetensors: w.safetensors{torch}"),
                         (["--dump-grads", "g.npy"],
                          "--dump-grads g.npy: no npy files are written, but .safetensors: g.safetensors"),
                         (["--save-best", "w.gguf", "--eval", "synthetic:digits"],
                          "--save-best w.gguf: no gguf files are written, but .safetensors: w.safetensors"),
                         (["--load", "w", "--predict", "p.json"],
                          "--predict p.json: no json files are written, but .npy, .csv: p.npy")):
        done = run("gacc-exec", *first, *words, code=2, cwd=folder)
        expect(done.stderr == f"gacc-exec: error: {error}\n", f"{words}: {done.stderr}")
    expect(not list(folder.iterdir()), "a refused command wrote a file")


def test_weights_that_nobody_trained(folder):
    """Are not evaluated, and adapters on them are warned of."""
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    data = harness.make_data(harness.example("regression"), 40, folder)
    done = run("gacc-exec", artifact, "--eval", data, code=2)
    expect(done.stderr == "gacc-exec: error: --eval without --data evaluates once: --load FILE, or --checkpoint "
                          "FOLDER --resume, "
           "gives it the trained parameters\n", done.stderr)
    adapted = harness.compile_model(harness.example("regression"), folder / "lora.ptx", lora__match='["*"]',
                                    lora__rank=2, lora__alpha=2)
    warning = "warning: the model has adapters, and without --load they are trained on weights drawn at random\n"
    expect(warning in run("gacc-exec", adapted, "--data", data, "--updates", 1).stderr, "no warning")
    run("gacc-exec", artifact, "--data", data, "--updates", 1, "--save", folder / "w")
    expect("warning" not in run("gacc-exec", adapted, "--data", data, "--updates", 1, "--load", folder / "w").stderr,
           "a warning with --load")
    note = "note: the model has adapters, and none are loaded (--load-adapter FOLDER)"
    harness.says(run("gacc-exec", adapted, "--eval", data, "--load", folder / "w"), note)
    run("gacc-exec", adapted, "--data", data, "--updates", 1, "--load", folder / "w", "--save", folder / "both")
    expect(note not in run("gacc-exec", adapted, "--eval", data, "--load", folder / "both").stderr, "a file with them")


def test_too_many_ranks_start_none(folder):
    """The artifact says how many it can have, before there is any process."""
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    for ranks in (48, 99999999999):
        done = run("gacc-exec", artifact, "--data", "synthetic:digits", "--ranks", ranks, code=1,
                   env={"PATH": str(folder)})
        harness.one_error(done, f"{ranks} ranks, and every rank needs a lane: the artifact has train.lanes = 1")
    done = run("gacc-exec", artifact, "--data", "synthetic:digits", "--ranks", 2, "--verify", code=1)
    harness.one_error(done, "--verify works in one process")
    run("gacc-exec", "-", "--data", "synthetic:digits", "--ranks", 2, code=2)


def test_a_wheel_without_a_plug_in(folder):
    """Names no package of a distribution."""
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    programs = folder / "site-packages/gacc/tree/bin"
    programs.mkdir(parents=True)
    shutil.copy(harness.BIN / "gacc-exec", programs)
    data = harness.make_data(harness.example("regression"), 40, folder)
    done = subprocess.run([programs / "gacc-exec", artifact, "--data", data, "--device", "cpu"], capture_output=True,
                          text=True)
    expect(done.returncode == 1
           and "libgacc-host.so is missing: this wheel was made of a build without it\n" in done.stderr, done.stderr)


def test_files_of_other_kinds(folder):
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    data = ["--data", harness.make_data(harness.example("regression"), 40, folder)]
    run("gacc-exec", artifact, *data, "--checkpoint", folder / "run", "--epochs", 1)
    torch = "a torch.save file; write it as safetensors: safetensors.torch.save_file(model.state_dict(), FILE)"
    (folder / "model.pt").write_bytes(b"PK\x03\x04\0\0\x08\x08" + bytes(200))
    (folder / "old.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(50))
    (folder / "w.npy").write_bytes(b"\x93NUMPY\x01\x00" + bytes(50))
    for name, what in (("model.pt", torch), ("old.pt", torch), ("w.npy", "a NumPy array; parameters are safetensors"),
                       ("run/checkpoint",
                        "a checkpoint, not parameters alone; go on from it with --checkpoint FOLDER --resume"),
                       ("step.ptx", "an artifact; it is gacc-exec's first argument")):
        done = run("gacc-exec", artifact, *data, "--load", folder / name, code=1)
        expect(done.stderr == f"gacc-exec: error: {folder / name}: is {what}\n", done.stderr)
    # A folder: its error names the files in it that will do, and how.
    run("gacc-exec", artifact, *data, "--epochs", 1, "--save", folder / "run/b.safetensors")
    done = run("gacc-exec", artifact, *data, "--load", "run", cwd=folder, code=1)
    expect(done.stderr == "gacc-exec: error: run: has neither model.safetensors nor model.safetensors.index.json; "
                          "give the file "
           "run/b.safetensors; go on from the checkpoint run/checkpoint with --checkpoint run --resume\n", done.stderr)
    (folder / "run/b.safetensors").unlink()
    (folder / "run/checkpoint").write_text("another program's")
    done = run("gacc-exec", artifact, *data, "--load", folder / "run", code=1)
    expect(done.stderr.endswith("nor model.safetensors.index.json\n"), done.stderr)
    done = run("gaccc", "step.ptx", cwd=folder, code=1)
    expect(done.stderr == "gaccc: error: step.ptx is an artifact already: gacc-exec step.ptx --data SPEC trains with "
                          "it\n", done.stderr)


def test_words_that_lead_on(folder):
    """What is typed as other programs want it is answered with how it is done here."""
    regression = harness.example("regression")
    artifact = harness.compile_model(regression, folder / "step.ptx")
    adapted = folder / "adapted.ptx"
    run("gaccc", regression, "--lora", 2, "-o", adapted)
    (folder / "m.yaml").write_text("model:\n  name: m\nlayers:\n")
    (folder / "j.toml").write_text('{"model": {"name": "m"}}')
    (folder / "w.npz").write_bytes(b"PK\x03\x04" + bytes(200))
    (folder / "m.json").write_text('{"model": {"name": "m"}}')
    (folder / "w.safetensors").write_bytes(bytes(200))
    (folder / "d.csv").write_text("x,y\n1,2\n")
    (folder / "some").mkdir()
    (folder / "hub" / "snapshots").mkdir(parents=True)
    (folder / "list.toml").write_text("kernel = (3, 3)\n")
    (folder / "inputs.toml").write_text('[[inputs]]\nname = "x"\nshape = [4]\n[[inputs]]\nname = "y"\n')
    (folder / "braces.toml").write_text('optimizer = {\n  type = "sgd"\n}\n')
    (folder / "g3").mkdir()
    (folder / "g3" / "config.json").write_text('{"model_type": "gemma3"}')
    (folder / "ad").mkdir()
    (folder / "ad" / "adapter_config.json").write_text("{}")
    for name, file, content in (("lfs", "model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha:0"),
                                ("torch", "pytorch_model.bin", "")):
        (folder / name).mkdir()
        (folder / name / file).write_text(content)
    data = ["--data", harness.make_data(regression, 40, folder)]
    for code, words, answer in (
            (1, ["gaccc", "HuggingFaceTB/SmolLM2-135M"],
             "`hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M`"),
            (1, ["gaccc", "m.yaml"], "a model file is TOML, and this looks like YAML"),
            (1, ["gaccc", "j.toml"], "a model file is TOML, and this looks like JSON"),
            (1, ["gaccc", "m.json"], "a model file is TOML"),
            (1, ["gaccc", "w.safetensors"], "w.safetensors holds weights: give the folder of a published model"),
            (1, ["gaccc", "d.csv"], "d.csv holds data, which gacc-exec --data takes"),
            (2, ["gaccc", regression, "-o", "q.onnx"], "-o q.onnx: no onnx files are written, but .ptx: q.ptx"),
            (2, ["gaccc", regression, "--emit", "svg", "-o", "q.png"], "-o q.png: no png files are written, but .svg"),
            (2, ["gaccc", regression, "--report", "r.pdf"], "--report r.pdf: no pdf files are written, but .html"),
            (1, ["gacc-exec", artifact, *data, "--load", "lfs"], "is a pointer of git-lfs, which stands for"),
            (1, ["gacc-exec", artifact, *data, "--load", "torch"], "its weights are of torch.save: transformers."),
            (1, ["gacc-exec", artifact, *data, "--load", "ad"], "it is an adapter: --load-adapter ad, and --load"),
            (1, ["gacc-exec", "some", *data], "some is a folder; gaccc some compiles a published model"),
            (1, ["gaccc", regression, "--lora", 2, "--set", 'lora.match=["q_proj"]'],
             "no linear or attention layer is named `q_proj`; there are `"),
            (1, ["gaccc", regression, "--lora", 2, "--set", 'lora.on=["q_proj"]'], 'it is called "q" here'),
            (2, ["gaccc", regression, "--target", "A100"], 'unknown target "A100"; it is called sm_80 here'),
            (2, ["gaccc", regression, "--target", "8.0"], 'unknown target "8.0"; it is called sm_80 here'),
            (2, ["gaccc", regression, "--target", "H100"], 'unknown target "H100"; it is called sm_90a here'),
            (1, ["gaccc", regression, "--set", "precision.compute=float16"], 'it is called "f16" here'),
            (1, ["gacc-exec", artifact, *data, "--load", "me/model"], "`hf download me/model --local-dir model`"),
            (1, ["gacc-exec", artifact, *data, "--load", "w.npz"], "w.npz: is a .npz file; parameters are safetensors"),
            (1, ["gacc-exec", adapted, *data, "--load-adapter", "nowhere"],
             "cannot read the adapter nowhere: it is not there"),
            (1, ["gacc-exec", adapted, *data, "--load-adapter", "w.npz"],
             "w.npz: is no folder; an adapter is one"),
            (2, ["gacc-exec", artifact, *data, "--log", "l.csv"], "--log l.csv: no csv files are written"),
            (1, ["gacc-exec", artifact, "--data", "people.csv"], "did you mean csv:people.csv,label=COLUMN?"),
            (1, ["gacc-exec", artifact, "--data", "x.npy"], "did you mean npy:INPUT=x.npy,...?"),
            (1, ["gacc-exec", artifact, "--data", "x.npz"], "did you mean npz:x.npz?"),
            (1, ["gacc-exec", artifact, "--data", "chats.jsonl"],
             "python3 -m gacc.tokens FOLDER chats.jsonl -o tokens.bin"),
            (1, ["gacc-exec", artifact, "--data", "some"],
             "some is a folder: mnist:some reads MNIST's four files"),
            (1, ["gacc-exec", artifact, "--data", "npy:x=a.npy,split=val"],
             'split is train or test, not "val"; what is held out is called "test" here'),
            (1, ["gacc-opt", regression, "--emit", "ptx"],
             "gacc-opt reads IR: "),
            (1, ["gacc-opt", artifact], "step.ptx is an artifact, which gacc-exec runs"),
            (1, ["gaccc", "inputs.toml"], "an input is a table of its own: [inputs.NAME], without `name`"),
            (1, ["gaccc", "braces.toml"], "a table in braces ends on its line"),
            (1, ["gaccc", regression, "--lora", 2, "--set", "lora.on=q,v"],
             """a list is written 'lora.on=["q", "v"]'"""),
            (1, ["gaccc", regression, "--lora", 2, "--set", "lora.on=q"], 'must be an array, not a string: ["q"]'),
            (2, ["gaccc", regression, "--report", "--plan"], "--report lacks its value: --plan is an option"),
            (2, ["gacc-exec", artifact, *data, "--tensorboard", "--epochs", 2],
             "--tensorboard lacks its value: --epochs is an option"),
            (2, ["gacc-plan", "offset", "b.csv"],
             'there is no command offset; it is offsets or recompute; did you mean "offsets"?'),
            (2, ["gacc-plan"], "the first word is a command: offsets or recompute"),
            (1, ["gaccc", regression, "--set", "optimizer.lr=2e-4,train.epochs=3"],
             "--set optimizer.lr=2e-4 --set train.epochs=3"),
            (1, ["gaccc", "list.toml"], "a list is written in brackets: [3, 3]"),
            (2, ["gaccc", regression, "--set", "train.epochs=3", "train.micro_batch=4"],
             ": each has its own --set: --set train.micro_batch=4"),
            (2, ["gaccc", regression, "--memory", "6", "GiB"], ": a size is one word, as 6GiB"),
            (1, ["gaccc", regression, "--set", "recompute=all"], "that is `recompute.policy` = \"all\""),
            (1, ["gaccc", "hub", "--plan"], "it is a folder of Hugging Face's cache"),
            (1, ["gacc-exec", artifact, "--data", "csv:d.csv,drop=x,y"], "have a bar between them, as drop=a|b"),
            (1, ["gacc-exec", artifact, *data, "--eval", "0.1"], "by split=train of --data and split=test of --eval"),
            (1, ["gaccc", "g3"], 'no family has the `model_type` "gemma3"; did you mean "gemma3_text"?'),
            (1, ["gacc-exec", artifact, "--data", "csv:a.csv,delimiter=tab"],
             'unknown option "delimiter"; it is called "sep" here')):
        done = run(*words, code=code, cwd=folder)
        expect(answer in done.stderr, f"{words}: {done.stderr}")


def test_settings_that_change_nothing(folder):
    """Are told: notes of limits, warnings of what hardly was meant, and one line of what the data are."""
    regression = harness.example("regression")
    artifact = harness.compile_model(regression, folder / "step.ptx")
    data = ["--data", harness.make_data(regression, 40, folder), "--device", "cpu"]
    done = run("gacc-exec", artifact, *data)
    expect(re.search(r"^data: 40 samples; \w+.*: .* to .*", done.stdout, re.M), done.stdout)
    expect("data:" not in run("gacc-exec", artifact, *data, "--quiet").stdout, "--quiet says what the data are")
    plain = done.stderr
    for words, answer in ((["--pause-at", 99999], "note: --pause-at 99999 changes nothing: the run has"),
                          (["--rank-timeout", 5], "note: --rank-timeout changes nothing: this run has one rank"),
                          (["--gemm", "builtin"], "note: --gemm builtin changes nothing: it is for a GPU"),
                          (["--epochs", 0], "note: --epochs 0: nothing is trained"),
                          (["--lr", 0], "warning: the learning rate is 0")):
        done = run("gacc-exec", artifact, *data, *words)
        expect(answer in done.stderr, f"{words}: {done.stderr}")
        expect(answer not in plain, f"without {words}: {plain}")
    vanishing = harness.compile_model(regression, folder / "vanishing.ptx", schedule__type="step",
                                      schedule__step_size=2, schedule__gamma=0.1)
    told = "warning: the schedule multiplies the rate by 0.1 every 2 updates: after 12 of "
    harness.says(run("gacc-exec", vanishing, *data, "--updates", 40), told, "counts epochs instead of updates")
    expect(told not in run("gacc-exec", vanishing, *data, "--updates", 14).stderr, "it ends soon after")
    single = harness.compile_model(regression, folder / "single.ptx", train__micro_batch=1, train__accumulate=1)
    harness.says(run("gacc-exec", single, *data), "warning: each sample makes an update of its own")
    large = harness.compile_model(regression, folder / "large.ptx", train__micro_batch=64, train__accumulate=1)
    harness.says(run("gacc-exec", large, *data),
                 "warning: the data have 40 samples, fewer than the 64 of a micro-batch")


def test_what_is_held_out_and_trained_on(folder):
    """Is told where both SPECs name one file and only --eval says which rows."""
    artifact = harness.compile_text(folder, harness.classifier("m", [1], 2, harness.layer("linear", features=2)))
    (folder / "a.csv").write_text("a,y\n" + "".join(f"{n},{n % 2}\n" for n in range(40)))
    file, told = f"csv:{folder / 'a.csv'}", "warning: what --eval holds out is trained on, too"
    done = run("gacc-exec", artifact, "--data", file, "--eval", f"{file},split=test", "--epochs", 1)
    expect(told in done.stderr, done.stderr)
    done = run("gacc-exec", artifact, "--data", f"{file},split=train", "--eval", f"{file},split=test", "--epochs", 1)
    expect(told not in done.stderr, done.stderr)
    done = run("gacc-exec", artifact, "--data", file, "--eval", file, "--epochs", 1)
    expect("; --eval has the same samples, and says nothing of new ones\n" in done.stdout, done.stdout)


def test_data_that_hardly_were_meant(folder):
    """One class, a column that never changes, numbers of 1e8: each is a warning, by the column's name."""
    artifact = harness.compile_text(folder, harness.classifier("m", [3], 2, harness.layer("linear", features=2)))
    rows = [f"{n},7,{n}e8,1" for n in range(1, 13)]
    (folder / "a.csv").write_text("\n".join(["a,same,large,y", *rows]) + "\n")
    done = run("gacc-exec", artifact, "--data", f"csv:{folder / 'a.csv'}")
    expect("data: 12 samples; x [3]: 1 to 1.2e+09, 1 of 3 constant; y: 1 of 2 classes (0 0 %, 1 100 %)\n"
           in done.stdout, done.stdout)
    harness.says(done, 'warning: all targets of the input "y" are 1: there is nothing to learn',
                 'warning: the input "x": "same" is the same in all samples',
                 'warning: the input "x" reaches 1.2e+09, and is not normalised')


def test_bytes_that_are_scaled_twice(folder):
    """Bytes are scaled by 1/255: a mean of bytes is warned of."""
    text = harness.classifier("m", [3], 2, harness.layer("linear", features=2))
    data = harness.write_arrays(folder / "data", {"x": (bytes([0, 128, 255, 255, 3, 9]), [2, 3]),
                                                  "y": (array.array("i", [0, 1]), [2])})
    for normalize, told in (("{ mean = 127.5, std = 127.5 }", True), ("{ mean = 0.5, std = 0.5 }", False)):
        artifact = harness.compile_text(folder, text.replace("shape = [3]", f"shape = [3]\nnormalize = {normalize}"))
        done = run("gacc-exec", artifact, "--data", data)
        warning = 'the input "x" has -1 to -0.9922; of bytes between 0 and 1 they are 0.5 and 0.5'
        expect((warning in done.stderr) == told, done.stderr)


def test_a_full_standard_output(folder):
    """Is exit 1 where results were to stand there; a training whose files are whole goes on."""
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    data = harness.make_data(harness.example("regression"), 40, folder)
    for code, words in ((0, ["--data", data, "--save", folder / "w"]), (0, ["--init-only"]),
                        (1, ["--eval", data, "--load", folder / "w"])):
        with open("/dev/full", "w") as full:
            done = subprocess.run([harness.BIN / "gacc-exec", artifact, *words], stdout=full, stderr=subprocess.PIPE,
                                  text=True)
        expect(done.returncode == code, f"{words}: {done.returncode} {done.stderr}")
        told = "cannot write standard output" if code else "note: standard output has not taken all that was printed"
        expect(told in done.stderr, f"{words}: {done.stderr}")
    expect((folder / "w").exists(), "no weights")


def test_widths(folder):
    """Help, plan and --fits fit the width that COLUMNS says; -h is a line an option."""
    model = harness.example("shakespeare_gpt")
    for columns in (60, 80, 120):
        for command in (["gacc-exec", "--help"], ["gaccc", "--help"], ["gacc-exec", "-h"], ["gaccc", "-h"],
                        ["gacc-plan", "offsets", "--help"], ["gaccc", model, "--plan"]):
            text = run(*command, env={**os.environ, "COLUMNS": str(columns)}).stdout
            head = text.partition("\nExamples:\n")[0]  # a command is not broken
            wide = [line for line in (head if columns < 80 else text).splitlines()
                    if len(line) > columns and " " in line.strip()]
            expect(not wide, f"{command} at {columns}: {wide}")
    brief = run("gacc-exec", "-h").stdout
    options = re.findall(r"^  -", run("gacc-exec", "--help").stdout, re.M)
    expect(len(re.findall(r"^  -", brief, re.M)) == len(options) > 40, brief)
    expect(len(brief.splitlines()) < len(options) + 30, brief)
    for program in ("gaccc", "gacc-exec"):
        text = run(program, "--help").stdout
        leftovers = r"TEXT:|NAME:|REQUIRED|Positionals|\]=|\.\.\.$"
        expect(not re.search(leftovers, text), f"leftovers of the parser:\n{text}")


def test_help(folder):
    """In groups, at most 80 columns wide where nothing says more, with examples and exit codes."""
    text = run("gacc-exec", "--help").stdout
    wide = [line for line in text.splitlines() if len(line) > 80]
    expect(not wide, f"too wide: {wide}")
    for part in ("Data", "Run", "Parameters", "Checkpoints", "Output", "Device", "Examples", "SPEC", "Exit status"):
        expect(f"\n{part}:\n" in text, f"no {part}")
    expect("130 interrupted" in text, text)
    text = run("gaccc", "--help").stdout
    wide = [line for line in text.splitlines() if len(line) > 80]
    expect(not wide and "\nExamples:\n" in text and "\nExit status:\n" in text, f"too wide: {wide}")


harness.main(globals())
