"""The machine that a pack runs on: its driver and cuBLAS, the environment of our programs, and running them."""
import contextlib
import glob
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile

running = set()  # processes
ending = False   # somebody wants us to stop
CUBLAS = ("libcublasLt.so.13", "libcublasLt.so.12")


def listed_libraries():
    text = subprocess.run("ldconfig -p || /sbin/ldconfig -p", shell=True, capture_output=True, text=True).stdout
    return [line.split("=>")[-1].strip() for line in text.splitlines() if "=>" in line and "x86-64" in line]


def find_cublas():
    """The folder that cuBLASLt lies in, or nothing: the loader's, torch's, the toolkit's."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for path in sys.path:
        folders += sorted(glob.glob(path + "/nvidia/*/lib"))
    folders += [os.path.dirname(path) for path in listed_libraries() if os.path.basename(path) in CUBLAS]
    for pattern in ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib"):
        folders += sorted(glob.glob(pattern))
    libraries = (pathlib.Path(folder, name) for name in CUBLAS for folder in folders if folder)
    return next((str(library.parent) for library in libraries if library.exists()), None)


class Machine:
    def __init__(self, folder, driver, scratch):
        self.folder = folder
        self.kept = scratch is not None
        self.work = pathlib.Path(scratch or tempfile.mkdtemp(prefix="gpu-check-")).resolve()
        self.out = self.work / "out"
        self.out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(folder / "work.tar") as archive:
            # Python 3.11.2, which Debian 12 has, knows no filters yet.
            archive.extractall(self.work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        self.compiler = self.work / "bin/gaccc"
        if not (self.work / "lib").exists():  # the compiler's libraries are beside it, as the pack has them
            (self.work / "lib").symlink_to(folder / "lib")
        self.emulated = driver is not None and "libgacc-emu" in str(driver)
        self.driver = str(driver.resolve()) if driver else None  # else what the loader finds; probe.py says where
        self.driver_folder = None
        if driver:
            self.driver_folder = self.work / "driver"
            self.driver_folder.mkdir(exist_ok=True)
            names = ("libcuda.so.1", CUBLAS[0]) if self.emulated else ("libcuda.so.1",)
            for name in names:
                (self.driver_folder / name).unlink(missing_ok=True)
                (self.driver_folder / name).symlink_to(self.driver)
        self.cublas = str(self.driver_folder) if self.emulated else find_cublas()

    def close(self):
        if not self.kept:
            shutil.rmtree(self.work, ignore_errors=True)

    def environment(self, counts=None, idle=False):
        """Returns the environment of our own programs. NVIDIA's libraries must find the real driver, so the counting
        one stands before it only where calls are counted, and the idle one only where the host is timed alone; and
        nothing of this is given to torch or JAX."""
        env = dict(os.environ)
        driver = self.folder / "count" if counts else self.folder / "idle" if idle else self.driver_folder
        folders = [str(driver)] if driver else []
        folders += [self.cublas] if self.cublas else []
        env["LD_LIBRARY_PATH"] = ":".join(folders + [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else folders)
        if counts:
            env |= {"GACC_REAL_CUDA": self.driver, "GACC_COUNTS": str(counts)}
        env.setdefault("CUDA_CACHE_MAXSIZE", str(4 << 30))
        return env

    def program(self, name):
        return self.folder / "bin" / name


def run(command, seconds, env=None):
    """Exit status and what was written to both streams; 124 after that many seconds, with all that it started ended."""
    # A group of its own, so that all of it can be ended; not a session, which would outlive whoever ends us.
    group = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
    try:
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, text=True, errors="backslashreplace", env=env, **group)
    except OSError as error:
        return 127, str(error)
    running.add(process.pid)
    try:
        if ending:
            seconds = 0
        text, _ = process.communicate(timeout=seconds)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return 124, f"{text}\nout of time after {seconds:.0f} s"
    finally:
        running.discard(process.pid)


def end_all(*_):
    """A signal's handler: ends what runs; nothing more is started, and what there is is reported."""
    global ending
    ending = True
    for pid in list(running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


ENGINE = re.compile(r"a micro-batch is one (kernel|graph)(?: with ([^;]*))?;")


def engine(text):
    """('graph', 'cuBLASLt 13.1') as gacc-exec says after loading."""
    found = ENGINE.search(text)
    return (found[1], found[2] or "no matrix products") if found else ("", "")
