"""Inputs are not outputs: no option that writes a file replaces what another one reads, however the file is spelled,
and no two write the same one. The options come from --help, so that a new one cannot be forgotten."""
import os
import pathlib
import re
import subprocess

import harness
from harness import expect, run

# Every option and argument that names a file, by program. An option that is new stands here or among WORDS.
FILES = {
    ("gaccc",): {"MODEL": "in", "-o": "out", "--report": "out"},
    ("gacc-opt",): {"FILE": "in", "-o": "out"},
    ("gacc-plan", "offsets"): {"file": "in", "-o": "out"},
    ("gacc-plan", "recompute"): {"file": "in", "-o": "out"},
    ("gacc-exec",): {"ARTIFACT": "in", "--data": "in", "--eval": "in", "--load": "in", "--like": "in",
                     "--prompts": "in", "--save": "out", "--save-best": "out", "--save-best-adapter": "folder",
                     "--predict": "out", "--log": "out",
                     "--dump-grads": "out", "--tune-gemm": "both", "--profile": "out", "--checkpoint": "folder",
                     "--tensorboard": "folder", "--load-adapter": "folder", "--save-adapter": "folder"},
}
# Other values that --help may name.
WORDS = (r"N|DIR|[RT]|R\|auto|X|TEXT|NAME|LIST|SIZE(/s)?|\[SIZES\]|published|sm_NN|KEY=VALUE|PASS|PASS\|all|"
         r"(TEXT|NAME):\{.*|BYTES|[a-z0-9]+\|.*")
OTHERS = {("gaccc",): ["--set", "model.name=x"], ("gacc-plan", "offsets"): ["--capacity", 64],
          ("gacc-plan", "recompute"): ["--budget", 64]}
# Data, with the files that it reads or that are the other part of the same set.
SPECS = {"mnist:data": ["data/train-images-idx3-ubyte", "data/train-labels-idx1-ubyte.gz",
                        "data/t10k-images.idx3-ubyte"],
         "mnist:./data,split=test": ["data/t10k-labels-idx1-ubyte"],
         "idx:image=a,label=b": ["a", "b"], "npy:image=a,label=b,limit=3": ["a", "b"], "npz:a": ["a"],
         "csv:a,label=y": ["a"], "tokens:a": ["a"], "text:a,split=train": ["a"]}


def options_of(program):
    """name -> what the value is called, for options with a value and for arguments."""
    found, part = {}, ""
    for line in run(*program, "--help").stdout.splitlines():
        part = line[:-1] if re.fullmatch(r"\w+:", line) else part
        words = line[2:].split("  ")[0].split(" ") if re.match(r"  \S", line) else []
        if words and (part == "Arguments" or len(words) > 1):
            found[words[0].split(",")[-1]] = "" if part == "Arguments" else words[1]
    return found


def test_every_option_is_known(folder):
    tools = re.findall(r"^gacc_tool\((\S+)", (harness.ROOT / "tools/CMakeLists.txt").read_text(), re.M)
    expect(sorted(tools) == sorted({program[0] for program in FILES}), f"the programs are {tools}")
    for program, files in FILES.items():
        named = {name for name, value in options_of(program).items() if not re.fullmatch(WORDS, value)}
        expect(named == set(files), f"{program}: {sorted(named ^ set(files))}: which of them read or write files?")
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    kinds = re.findall(r"(\w+):", run("gacc-exec", artifact, "--data", "other:x",
                                      code=1).stderr.partition("known are ")[2])
    expect(set(kinds) - {"synthetic"} == {spec.partition(":")[0] for spec in SPECS}, f"the kinds of data are {kinds}")


def inputs():
    """(program, name of the option, arguments that make the program read the file `file`, file)."""
    for program, files in FILES.items():
        for name, use in files.items():
            before = [*program[1:], *OTHERS.get(program, [])]
            if name in ("--data", "--eval"):
                for spec, read in SPECS.items():
                    for file in read:
                        yield program, name, [*before, "step", "--data",
                                              *(["synthetic:digits", "--eval"] * (name == "--eval")), spec], file
            elif program[0] == "gacc-exec" and use == "folder":
                if name == "--checkpoint":
                    yield program, name, ["step", "--data", "synthetic:digits", name, "data",
                                          "--resume"], "data/checkpoint"
            elif use in ("in", "both"):
                main = next(iter(files))
                first = ["x" if name == main else "step"] + ([] if program[0] != "gacc-exec"
                                                             else ["--data", "synthetic:digits"])
                yield program, name, [*before, *first, *([] if name == main else [name, "x"])], "x"


def spellings(file):
    """Other names of the file, which lies in the current folder or in data/."""
    path = pathlib.Path(file)
    yield file
    yield f"./{file}"
    yield f"data/../{file}"
    yield path.absolute()
    pathlib.Path("to").symlink_to(path)
    yield "to"
    pathlib.Path("far").symlink_to(pathlib.Path("to").absolute())
    yield "far"
    pathlib.Path("here").symlink_to(".")
    yield f"here/{file}"
    os.link(path, "hard")
    yield "hard"
    for name in ("to", "far", "here", "hard"):
        pathlib.Path(name).unlink()


def make(folder, *files):
    os.chdir(folder)
    for name in ("data", "run"):
        (folder / name).mkdir(exist_ok=True)
    for name in ("step", *files):
        (folder / name).write_text(f"what {name} holds\n")


def listing(folder):
    return {p: (p.lstat().st_ino, p.read_bytes() if p.is_file() else None) for p in sorted(folder.rglob("*"))}


def refused(folder, program, arguments, *words, **options):
    before = listing(folder)
    done = run(program[0], *arguments, code=2, cwd=folder, **options)
    harness.says(done, *words)
    expect(len(done.stderr.splitlines()) == 1, done.stderr)
    expect(listing(folder) == before, f"{program} {arguments}: a refused command changed a file")


def test_no_output_replaces_an_input(folder):
    count = 0
    for program, reads, arguments, file in inputs():
        make(folder, file)
        for name in map(str, spellings(file)):
            for writes, use in FILES[program].items():
                if use not in ("out", "both") or writes == reads or (reads, writes) == ("--load", "--save"):
                    continue
                # When both read and write, either may be named first.
                first = f"{writes}: {name} would replace the input" if (use, reads) != (
                    "both", "--checkpoint") else "would replace the input"
                refused(folder, program, [*arguments, writes, name], first, file,
                        f"({reads})" if first[0] == "-" else f"({writes})")
                count += 1
        (folder / file).unlink()
    print(f"{count} command lines refused")


def test_files_that_are_written_beside(folder):
    """The files of a checkpoint's folder, and the log that grows beside an older one."""
    for link in (lambda file, name: name.symlink_to(pathlib.Path("..") / file), lambda file, name: os.link(file, name)):
        for data in ("csv:a,label=y", "npy:image=b,label=a"):
            make(folder, "a", "b")
            for file in ("checkpoint", "checkpoint.old"):
                link(folder / "a", folder / "run" / file)
                refused(folder, ("gacc-exec",), ["step", "--data", data, "--checkpoint", "run"],
                        f"--checkpoint: run/{file}", "input a")
                (folder / "run" / file).unlink()
    make(folder, "a", "b", "b.partial")
    (folder / "to").symlink_to("b")
    refused(folder, ("gacc-exec",), ["step", "--data", "csv:b.partial,label=y", "--log", "to"], "--log: ",
            "the input b.partial")
    refused(folder, ("gacc-exec",), ["step", "--data", "csv:a,label=y", "--log", "b", "--save", "./b.partial"],
            "--save", "--log")


def test_files_of_an_adapter(folder):
    """A folder stands for two files in it, or a name in .safetensors for itself."""
    make(folder, "run/adapter_model.safetensors", "run/adapter_config.json", "a.safetensors")
    first = ["step", "--data", "synthetic:digits"]
    for file in ("run/adapter_model.safetensors", "run/adapter_config.json"):
        refused(folder, ("gacc-exec",), [*first, "--load-adapter", "run", "--save", file],
                f"--save: {file} would replace the input", "(--load-adapter)")
        refused(folder, ("gacc-exec",), [*first, "--save", file, "--save-adapter", "run"], "--save", "--save-adapter",
                file)
    refused(folder, ("gacc-exec",), [*first, "--load-adapter", "a.safetensors", "--log", "a.safetensors"],
            "would replace the input", "(--load-adapter)")


def test_two_outputs_are_two_files(folder):
    """Paths are compared whether they exist or not; and a file's path is not a folder's, too."""
    make(folder, "x")
    (folder / "here").symlink_to(".")
    (folder / "dangling").symlink_to("data/new")
    os.link(folder / "x", folder / "hard")
    pairs = [("x", "x"), ("x", "./x"), ("x", "hard"), ("new", "new"), ("new", "data/../new"),
             ("new", folder / "here/new"),
             ("data/new", "dangling"), ("here/data/new", "dangling"), ("new", "absent/../new")]
    for program, files in FILES.items():
        writers = [name for name, use in files.items() if use in ("out", "both")]
        first = [*program[1:], *OTHERS.get(program, []), "step",
                 *(["--data", "synthetic:digits"] * (program[0] == "gacc-exec"))]
        for one in writers:
            for other in writers:
                for a, b in pairs if one != other else []:
                    refused(folder, program, [*first, one, a, other, b], one, other, a, b)
    first = ["step", "--data", "synthetic:digits"]
    for one in ("--save", "--log", "--dump-grads", "--profile", "--tune-gemm"):
        for other, place in (("--checkpoint", "new"), ("--checkpoint", "new/run"), ("--tensorboard", "here/new"),
                             ("--tensorboard", "new/deeper")):
            refused(folder, ("gacc-exec",), [*first, one, "new", other, place], f"{one} new", "folder", other)
        refused(folder, ("gacc-exec",), [*first, one, "here/run/checkpoint", "--checkpoint", "run"], one,
                "--checkpoint", " run/checkpoint")
    artifact = harness.compile_model(harness.example("regression"), folder / "step")
    spec = harness.make_data(harness.example("regression"), 40, folder)
    before = listing(folder)
    for name in ("--checkpoint", "--tensorboard"):  # a file is no folder
        harness.one_error(run("gacc-exec", artifact, "--data", spec, name, folder / "x.npy", code=1), folder / "x.npy")
        expect(listing(folder) == before, f"{name} changed a file")


def test_standard_streams_are_files_too(folder):
    make(folder, "x")
    with open("x") as source, open("x", "a") as target:
        refused(folder, ("gaccc",), ["-", "-o", "x"], "-o: x would replace the input", "(MODEL)", stdin=source)
        refused(folder, ("gacc-opt",), ["-", "-o", "x"], "-o: x would replace the input", "(FILE)", stdin=source)
        for command in (["gaccc", "x", "-o", "-"], ["gaccc", "x", "--plan"], ["gacc-opt", "x"],
                        ["gacc-plan", "offsets", "x", "--capacity", "64"]):
            done = subprocess.run([harness.BIN / command[0], *command[1:]], stdout=target, stderr=subprocess.PIPE,
                                  stdin=source)
            expect(done.returncode == 2 and b"would replace the input x" in done.stderr, f"{command}: {done}")
        asked = ["x", "--data", "csv:x,label=y", "--load", "w", "--predict", "-"]
        done = subprocess.run([harness.BIN / "gacc-exec", *asked], stdout=target, stderr=subprocess.PIPE)
        expect(done.returncode == 2 and b"--predict: /dev/stdout would replace the input x" in done.stderr, done)
        for writes in ("--save", "--log", "--dump-grads"):
            refused(folder, ("gacc-exec",), ["-", "--data", "synthetic:digits", writes, "x"],
                    f"{writes}: x would replace the input",
                    "(ARTIFACT)", stdin=source)
    expect((folder / "x").read_text() == "what x holds\n", "the file was changed")


def test_a_pipe_is_read_once(folder):
    """The second reader would find it empty."""
    make(folder, "x")
    named = folder / "pipe"
    os.mkfifo(named)
    for arguments, words in ((["-", "--data", "csv:/dev/stdin,label=y"], "ARTIFACT /dev/stdin and --data /dev/stdin"),
                             (["-", "--data", "csv:x,label=y", "--load", "/dev/stdin"],
                              "ARTIFACT /dev/stdin and --load /dev/stdin"),
                             (["x", "--data", "npy:a=pipe,b=pipe"], "--data pipe and --data pipe"),
                             (["x", "--data", "csv:pipe", "--eval", "csv:./pipe"], "--data pipe and --eval ./pipe")):
        ours, theirs = os.pipe()
        os.close(theirs)
        refused(folder, ("gacc-exec",), arguments, f"{words} would read one pipe, whose bytes come once", stdin=ours)
        os.close(ours)


def test_a_pipe_is_written_once(folder):
    model = harness.example("regression")
    artifact, spec = harness.compile_model(model, folder / "step.ptx"), harness.make_data(model, 40, folder)
    os.mkfifo(folder / "pipe")
    with subprocess.Popen(["cat", folder / "pipe"], stdout=subprocess.PIPE) as reader:
        for name in "pipe", "file":
            run("gacc-exec", artifact, "--data", spec, "--save", folder / name, timeout=60)
        expect(reader.stdout.read() == (folder / "file").read_bytes(), "other bytes")


def test_what_holds_nothing_may_be_named_twice(folder):
    model, spec = harness.example("regression"), harness.make_data(harness.example("regression"), 40, folder)
    run("gaccc", model, "-o", "/dev/null", "--report", "/dev/null")
    artifact = harness.compile_model(model, folder / "step.ptx")
    run("gacc-exec", artifact, "--data", spec, "--updates", 1, "--save", "/dev/null", "--log", "/dev/null")


def test_training_in_place(folder):
    """--save may replace the file of --load, as torch.save does: as a whole, or not at all. Folders may be shared."""
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    spec = harness.make_data(harness.example("regression"), 40, folder)
    os.chdir(folder)
    common = [artifact, "--data", spec, "--updates", 2, "--checkpoint", "run", "--tensorboard", "run", "--log",
              "run/log.jsonl"]
    run("gacc-exec", *common, "--save", "w")
    first = (folder / "w").read_bytes()
    run("gacc-exec", *common, "--load", "w", "--save", "once")
    run("gacc-exec", *common, "--load", "./w", "--save", "w")
    expect((folder / "w").read_bytes() == (folder / "once").read_bytes() != first, "trained in place")


def test_what_never_ends_ends(folder):
    """/dev/zero, or a pipe that somebody goes on filling, is refused at a bound, by every program and every kind of
    data."""
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    done = run("gacc-exec", artifact, "--data", "csv:/dev/zero,label=y", code=1)
    harness.one_error(done,
                      "cannot read /dev/zero: it has more than 1073741824 bytes, the limit for what is no regular file")
    endless = subprocess.Popen(["yes", "1,2"], stdout=subprocess.PIPE)
    try:
        done = run("gaccc", "-", "-o", folder / "x", code=1, stdin=endless.stdout)
        harness.one_error(done, "cannot read standard input: it has more than")
    finally:
        endless.kill()


harness.main(globals())
