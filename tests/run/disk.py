"""A disk that fills up, or a folder that cannot be written, leaves the old file as it was and is said in one error."""
import contextlib
import os
import pathlib
import resource
import shutil
import signal
import subprocess

import harness
from harness import expect, run

OLD = "the old content\n"


def setup(folder):
    model = harness.example("mnist_mlp")
    spec = harness.make_data(model, 60, folder)
    run("gacc-exec", harness.compile_model(model, folder / "step.ptx"), "--data", spec, "--updates",
        1)  # fills the cache
    return model, folder / "step.ptx", spec


def outputs(model, artifact, spec, place):
    """(tool, arguments, file) for each file that a user can ask for, in the folder `place`."""
    train = [artifact, "--data", spec, "--epochs", 3]
    return [("gaccc", [model, "-o", place / "new.ptx"], place / "new.ptx"),
            ("gaccc", [model, "--emit", "ir", "-o", place / "new.gir"], place / "new.gir"),
            ("gacc-exec", [*train, "--save", place / "w.safetensors"], place / "w.safetensors"),
            ("gacc-exec", [*train, "--dump-grads", place / "g.safetensors"], place / "g.safetensors"),
            ("gacc-exec", [*train, "--log", place / "log.jsonl"], place / "log.jsonl")]


def refused(tool, arguments, file, **options):
    """The command fails with one error that names the file."""
    done = run(tool, *arguments, code=(0, 1), **options)
    harness.one_error(done, file.name)
    return done


def files_of(size):
    """No file can grow beyond that size: a write fails in the middle, for every user."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a full disk is an error of write(), not a signal
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return dict(preexec_fn=limit, restore_signals=False)


def whole_lines(done, log):
    """A run that could not go on leaves whole lines of its log, and the error says where they are."""
    expect(log.read_bytes().endswith(b"}\n"), f"{log.name} ends within a line")
    lines = harness.read_log(log)
    expect(lines[0]["event"] == "start" and len(lines) > 1, f"{log.name}: {lines}")
    expect(f"the lines until then are in {log}\n" in done.stderr, done.stderr)


def test_file_size_limit(folder):
    """The old file must survive, and nothing be left beside it but the lines of a log."""
    place = folder / "place"
    place.mkdir()
    for tool, arguments, file in outputs(*setup(folder), place):
        for old in (OLD, None):
            file.unlink(missing_ok=True)
            if old:
                file.write_text(old)
            done = refused(tool, arguments, file, **files_of(700))
            if "--log" in arguments:
                log = file.with_name(file.name + ".partial") if old else file
                whole_lines(done, log)
                log.unlink()
            expect(file.exists() == bool(old), f"{file.name} {'is gone' if old else 'was left behind'}")
            expect(not old or file.read_text() == OLD, f"{file.name} was changed")
            file.unlink(missing_ok=True)
            expect(not list(place.iterdir()), f"left behind: {[p.name for p in place.iterdir()]}")


def test_events_are_whole(folder):
    """TensorBoard's file ends with a whole event, and does not stay without a figure."""
    _, artifact, spec = setup(folder)
    board = folder / "board"
    train = [artifact, "--data", spec, "--updates", 40, "--tensorboard", board]
    for size in (0, 20, 60):  # nothing, a part of the head, a part of the first figures
        harness.one_error(run("gacc-exec", *train, code=1, **files_of(size)), "events.out.tfevents")
        expect(not list(board.iterdir()), f"{size} bytes: left behind: {list(board.iterdir())}")
    harness.one_error(run("gacc-exec", *train, code=1, **files_of(1500)), "events.out.tfevents")
    events, = board.iterdir()
    raw, records = events.read_bytes(), 0
    while raw:
        size = int.from_bytes(raw[:8], "little") + 16
        expect(len(raw) >= size, "an event is cut off")
        raw, records = raw[size:], records + 1
    expect(records > 2, f"{records} events")
    harness.one_error(run("gacc-exec", *train, "--tune-gemm", folder, code=1), "it is a folder")
    expect(list(board.iterdir()) == [events], "a run that never began left an event file")


def test_full_disk(folder):
    """The real thing, on a small tmpfs; needs the right to mount."""
    place = folder / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], capture_output=True).returncode != 0:
        harness.skip("mounting a small tmpfs is not permitted here (test_file_size_limit covers the rest)")
    try:
        for tool, arguments, file in outputs(*setup(folder), place):
            file.write_text(OLD)
            with contextlib.suppress(OSError), open(place / "filler", "wb", buffering=0) as filler:
                while filler.write(bytes(4096)):
                    pass
            refused(tool, arguments, file)
            expect(file.read_text() == OLD, f"{file.name} was changed")
            file.unlink()
            (place / "filler").unlink()
            expect(not list(place.iterdir()), f"left behind: {[p.name for p in place.iterdir()]}")
    finally:
        subprocess.run(["umount", place], check=True)


def test_unwritable_places(folder):
    """A folder that does not exist, a file where a folder should be, a folder in the file's place."""
    setting = setup(folder)
    (folder / "file").write_text(OLD)
    for place in (folder / "absent", folder / "file"):
        for tool, arguments, file in outputs(*setting, place):
            refused(tool, arguments, file)
    place = folder / "taken"
    for tool, arguments, file in outputs(*setting, place):
        file.mkdir(parents=True)
        refused(tool, arguments, file)
        expect(file.is_dir() and not list(file.iterdir()), f"{file.name} is not the folder it was")
    expect((folder / "file").read_text() == OLD, "the file was changed")


def test_read_only_folder(folder):
    """A folder without write permission; as root, the tools run as nobody."""
    place, setting = folder / "readonly", setup(folder)
    place.mkdir()
    options = {}
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        options = dict(user=65534, group=65534, env={**os.environ, "XDG_CACHE_HOME": "/nonexistent"})
        try:
            run("gaccc", "--version", **options)
        except (PermissionError, OSError, harness.Failed):
            harness.skip("the build folder is closed to other users, and root is stopped by no permission")
    for tool, arguments, file in outputs(*setting, place):
        file.write_text(OLD)
        place.chmod(0o555)
        try:
            refused(tool, arguments, file, **options)
            expect([p.name for p in place.iterdir()] == [file.name] and file.read_text() == OLD,
                   f"{file.name} was changed")
        finally:
            place.chmod(0o755)
        file.unlink()


def test_special_files_stay_special(folder):
    """-o to a pipe or a device writes into it and does not replace it."""
    if not shutil.which("mkfifo"):
        harness.skip("no mkfifo here")
    model, pipe = harness.example("regression"), folder / "pipe"
    os.mkfifo(pipe)
    with open(folder / "read", "wb") as read:  # a file: a second pipe would fill up while nobody reads it
        reader = subprocess.Popen(["cat", str(pipe)], stdout=read)
    try:
        run("gaccc", model, "-o", pipe, timeout=30)
        expect(pathlib.Path(pipe).is_fifo(), "-o replaced the pipe by a file")
        reader.wait(timeout=10)
    finally:
        reader.kill()
    text = (folder / "read").read_bytes()
    whole = run("gaccc", model, "-o", "-").stdout
    expect(text.decode() == whole, "the artifact through a pipe is another than on standard output")


if __name__ == "__main__":
    harness.main(globals())
