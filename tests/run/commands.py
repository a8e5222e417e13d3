"""The command lines: exit statuses, help, version, --set, standard output, interruption."""
import re
import signal
import subprocess

import harness
from harness import expect, run

TOOLS = ["gaccc", "gacc-opt", "gacc-exec"]


def test_help_and_version(folder):
    for tool in TOOLS:
        expect(tool in run(tool, "--help", cwd=folder).stdout, f"{tool} --help names itself")
        version = run(tool, "--version", cwd=folder).stdout
        expect(re.search(r"\d+\.\d+", version), f"{tool} --version prints a number")
        expect(run(tool, "-V", cwd=folder).stdout == version, f"{tool} -V is --version")


def test_the_compiler_says_what_it_wrote(folder):
    """On standard error."""
    model = harness.example("regression")
    for words, wrote in (([model], ["regression.ptx"]), ([model, "-o", "step.ptx"], ["step.ptx"]),
                         ([model, "-o", "-"], []),
                         ([model, "--plan"], []), ([model, "-o", "step.ptx", "--report", "page.html"],
                                                   ["step.ptx", "page.html"])):
        done = run("gaccc", *words, cwd=folder)
        said = [line.removeprefix("gaccc: wrote ") for line in done.stderr.splitlines()
                if line.startswith("gaccc: wrote ")]
        expect(sorted(said) == sorted(wrote) and "wrote" not in done.stdout, f"{words}: {done.stderr}")


def test_wrong_command_lines_give_2(folder):
    model = harness.example("mnist_mlp")
    artifact = harness.compile_model(model, folder / "step.ptx")
    lines = [("gaccc",), ("gaccc", "--nonesuch", model), ("gaccc", model, "--emit", "nonesuch"),
             ("gaccc", model, "--target"),
             ("gaccc", model, "--stop-after", "nonesuch", "--emit", "ir"), ("gaccc", model, "--target", "sm_1"),
             ("gaccc", model, "--target", "sm_80x"), ("gaccc", model, "--summary", "--json"),
             ("gaccc", model, "--summary", "-o", "-"),
             ("gaccc", model, "--kernels"),
             ("gacc-opt", "--nonesuch"), ("gacc-exec",), ("gacc-exec", artifact, "--nonesuch"),
             ("gacc-exec", artifact, "--data", "synthetic:digits", "--epochs", "many"),
             ("gacc-exec", artifact, "--data", "synthetic:digits", "--threads", "-1"),
             ("gacc-exec", artifact, "--data", "synthetic:digits", "--device", "abacus")]
    for line in lines:
        done = run(*line, cwd=folder, code=2)
        expect(done.stderr.strip(), f"{line}: nothing on standard error")
    expect(sorted(p.name for p in folder.iterdir()) == ["step.ptx"], "a refused command wrote a file")


def test_wrong_models_and_files_give_1(folder):
    model = harness.example("mnist_mlp")
    harness.one_error(run("gaccc", "absent.toml", cwd=folder, code=(1,)), "absent.toml")
    harness.one_error(run("gacc-opt", "absent.gir", "--passes", "dce", cwd=folder, code=(1,)), "absent.gir")
    harness.one_error(run("gacc-exec", "absent.ptx", "--data", "synthetic:digits", cwd=folder, code=(1,)), "absent.ptx")
    for wrong in ("train.acumulate=2", "train.accumulate=0", "layers.nonesuch.features=3",
                  "layers.fc1.activation=rleu"):
        done = run("gaccc", model, "--set", wrong, cwd=folder, code=1)
        expect("error:" in done.stderr and "[" in done.stderr, done.stderr)
    expect(not list(folder.iterdir()), "a failed command wrote a file")


def test_diagnostics_show_the_place(folder):
    """Contract section 2: place, line, caret, hint, kind; all errors of a file in one run."""
    text = harness.example("mnist_mlp").read_text().replace('activation = "relu"', 'activation = "rleu"', 1)
    (folder / "m.toml").write_text(text.replace("accumulate", "acumulate"))
    done = run("gaccc", "m.toml", cwd=folder, code=1)
    expect(re.search(r'^m\.toml:\d+:\d+: error: .*"rleu".*did you mean "relu"\? \[unknown-value\]$', done.stderr, re.M),
           done.stderr)
    expect(re.search(r"^ +\d+ \| activation = \"rleu\"$\n^ +\| +\^~+$", done.stderr, re.M), done.stderr)
    expect("[unknown-key]" in done.stderr, "the second error is missing:\n" + done.stderr)


def test_default_output_and_standard_output(folder):
    model = harness.example("regression")
    run("gaccc", model, cwd=folder)
    default = (folder / "regression.ptx").read_text()
    expect(run("gaccc", model, "-o", "-", cwd=folder).stdout == default, "-o - prints the artifact")
    ir = run("gaccc", model, "--emit", "ir", "-o", "-", cwd=folder).stdout
    expect(run("gacc-opt", "-", "--passes", "", cwd=folder, stdin=None, input=ir.encode()).stdout == ir,
           "the final IR round-trips through gacc-opt -")
    expect("parameters" in run("gaccc", model, "--summary", cwd=folder).stdout, "--summary prints a table")
    expect([p.name for p in folder.iterdir()] == ["regression.ptx"], "only the default artifact is written")


def test_set_is_what_the_file_could_say(folder):
    """--set gives the artifact that the edited file gives."""
    text = harness.example("mnist_mlp").read_text()
    (folder / "mnist_mlp.toml").write_text(text)
    run("gaccc", "mnist_mlp.toml", "--set", "train.accumulate=8", "--set", "optimizer.lr=0.25", "-o", "set.gir",
        "--emit", "ir", cwd=folder)
    text = re.sub(r"(?m)^accumulate *=.*$", "accumulate = 8", text)
    text = re.sub(r"(?m)^lr *=.*$", "lr = 0.25", text)
    (folder / "mnist_mlp.toml").write_text(text)
    run("gaccc", "mnist_mlp.toml", "-o", "edit.gir", "--emit", "ir", cwd=folder)
    expect((folder / "set.gir").read_text() == (folder / "edit.gir").read_text(), "--set and an edited file differ")


def test_ctrl_c_and_sigterm_give_130(folder):
    model, log = harness.example("mnist_mlp"), folder / "log.jsonl"
    command = [harness.BIN / "gacc-exec", harness.compile_model(model, folder / "step.ptx"), "--data",
               harness.make_data(model, 2000, folder)]
    for number in signal.SIGINT, signal.SIGTERM:
        for options in ["--epochs", "100000", "--log", log], ["--verify"]:
            child = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                child.stdout.readline()  # of the first epoch, or check
                child.send_signal(number)
                _, errors = child.communicate(timeout=20)
            finally:
                child.kill()
            expect(child.returncode == 130 and "interrupt" in errors.lower(),
                   f"{number.name}, {options}: exit {child.returncode}, {errors!r}")
        expect(harness.updates_of(log), "the log holds what was done until then")


def test_closed_streams_stay_closed(folder):
    """A file that is opened must not get the number of a stream that the caller has closed: what is meant for the
    reader would be written into it. And what cannot be shown (a full disk, a terminal that is gone) ends no run."""
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    train = f"gacc-exec {artifact} --data {harness.make_data(harness.example('regression'), 40, folder)} --epochs 2"
    wanted = None
    for streams in ("", "<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"):
        command = f"{harness.BIN}/{train} --log log.jsonl --save w.safetensors --checkpoint run {streams}"
        expect(subprocess.run(command, shell=True, cwd=folder, capture_output=True).returncode == 0,
               f"{streams} ends the run")
        events = [{k: v for k, v in e.items() if k != "seconds"} for e in harness.read_log(folder / "log.jsonl")]
        kept = events, (folder / "w.safetensors").read_bytes()
        wanted = wanted or kept
        expect(kept == wanted, f"{streams}: other files")
        run("gacc-exec", artifact, *train.split()[2:], "--checkpoint", "run", "--resume", cwd=folder)
    for command, code in (("gaccc absent.toml", 1), ("gacc-exec absent.ptx --data x", 1), ("gacc-exec", 2),
                          ("gacc-opt absent", 1),
                          ("gacc-plan recompute absent --budget 1", 1)):
        for streams in (">&- 2>&-", "2>/dev/full"):
            done = subprocess.run(f"{harness.BIN}/{command} {streams}", shell=True, cwd=folder)
            expect(done.returncode == code, f"{command} {streams}: exit {done.returncode}")
    for command in (f"gaccc {harness.example('regression')} --plan", "gacc-opt --list-passes", "gaccc --version",
                    "gacc-plan --help", "gacc-exec --list-data",
                    "gacc-opt --dump-options", f"{train} --verify".replace("--epochs 2", ""),
                    f"gacc-exec {artifact} --eval {train.split()[3]} --load {folder}/w.safetensors"):
        for streams in (">&-", ">/dev/full"):
            done = subprocess.run(f"{harness.BIN}/{command} {streams}", shell=True, capture_output=True)
            expect(done.returncode == 1 and b"standard output" in done.stderr, f"{command} {streams}: {done}")


def test_numbers_and_sizes_mean_what_they_say(folder):
    """010 is no 8, a number past the largest is not the largest, and a size is a string without quotes."""
    artifact = harness.compile_model(harness.example("regression"), folder / "step.ptx")
    digests = {}
    for seed in ("7", "007", "+7", "9223372036854775807"):
        run("gacc-exec", artifact, "--init-only", "--seed", seed, "--save", folder / "w")
        digests[seed] = (folder / "w").read_bytes()
    expect(digests["7"] == digests["007"] == digests["+7"] and len(set(digests.values())) == 2,
           "other seeds than were given")
    trains = ["gacc-exec", artifact, "--data", "synthetic:digits"]
    for command, option, number in ((trains, "--seed", "-1"), (trains, "--seed", "9223372036854775808"),
                                    (trains, "--seed", "0x7"), (trains, "--updates", "-1"), (trains, "--epochs", "1e3"),
                                    (trains, "--eval-every", "0"), (trains, "--threads", "18446744073709551617"),
                                    (["gaccc", "x"], "--context", "0x10"),
                                    (["gaccc", "x"], "--lora", "0x10"), (["gaccc", "x"], "--documents", "0x10"),
                                    (["gacc-plan", "offsets", "x"], "--capacity", "0x10")):
        done = run(*command, option, number, code=2)
        expect(f'{option}: "{number}" is not a whole number from ' in done.stderr, done.stderr)
    model = harness.example("regression")
    wrong = run("gaccc", model, "--plan", "--memory", "1", code=1).stderr
    expect('is not a size: "1"; write it like "512MiB"' in wrong, wrong)
    expect(run("gaccc", model, "--plan", "--memory",
               "64 KiB").stdout == run("gaccc", model, "--plan", "--memory", "64KiB").stdout, "64 KiB")


harness.main(globals())
