"""scripts/: what they say when packages are missing, what they install, and that the mutation tool's parser is
sound."""
import os
import subprocess

import harness
from harness import expect

FAKE_DPKG = '#!/bin/sh\nfor a; do last=$a; done\n[ -e "$(dirname "$0")/have/$last" ] && printf installed || printf not-installed\n'
FAKE_APT = ('#!/bin/sh\nfolder=$(dirname "$0")\necho "$*" >>"$folder/calls"\nseen=0\nfor a; do\n'
            '  [ $seen = 1 ] && case $a in -*) ;; *) : >"$folder/have/$a";; esac\n  [ "$a" = install ] && seen=1\n'
            'done\nexit 0\n')


def fakes(folder):
    """A machine on which nothing is installed: dpkg-query, apt-get, apt-cache and sudo that only pretend."""
    (folder / "have").mkdir()
    for name, text in (("dpkg-query", FAKE_DPKG), ("apt-get", FAKE_APT), ("sudo", '#!/bin/sh\nexec "$@"\n'),
                       ("apt-cache",
                        '#!/bin/sh\nfor a; do last=$a; done\n[ "$last" = clang-format-14 ] || echo known\n')):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def install(environment, **more):
    return subprocess.run(["bash", "-euo", "pipefail", "-c", f"source {harness.ROOT}/scripts/lib.sh; install_packages"],
                          env={**environment, **more}, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_missing_packages_are_named(folder):
    environment = fakes(folder)
    for script in ("demo", "test"):
        done = subprocess.run([harness.ROOT / "scripts" / script], env={**environment, "GACC_NO_INSTALL": "1"},
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        harness.one_error(done, "llvm-19-dev", "libtomlplusplus-dev", "libdnnl-dev", "GACC_NO_INSTALL")
    expect(not (folder / "calls").exists(), "GACC_NO_INSTALL=1, yet apt-get was called")


def test_missing_packages_are_installed_once(folder):
    environment = fakes(folder)
    (folder / "have/cmake").touch()
    done = install(environment)
    expect(done.returncode == 0 and "installing:" in done.stderr, done.stderr)
    calls = (folder / "calls").read_text().splitlines()
    expect(len(calls) == 2 and "update" in calls[0].split() and "install" in calls[1].split(),
           f"apt-get was called with {calls}")
    words = calls[1].split()
    expect("llvm-19-dev" in words and "cmake" not in words, f"installed: {words}")
    expect("clang-format" in words and "clang-format-14" not in words,
           "the alternative that the distribution has is taken")
    done = install(environment)
    expect(done.returncode == 0 and not done.stderr and len((folder / "calls").read_text().splitlines()) == 2,
           "a second run finds everything installed")


def test_a_build_without_tests(folder):
    """-DGACC_TESTS=OFF: no test is configured, GoogleTest is not looked for, and `product` is all that is installed."""
    done = subprocess.run(["cmake", "-S", harness.ROOT, "-B", folder / "build", "-G", "Ninja", "-DGACC_TESTS=OFF"],
                          capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    targets = subprocess.run(["ninja", "-C", folder / "build", "-t", "targets", "all"], capture_output=True, text=True,
                             check=True).stdout
    expect("\nproduct: phony" in targets and "_test" not in targets, "targets")
    expect("GTest_DIR" not in (folder / "build/CMakeCache.txt").read_text(), "GoogleTest was looked for")


def test_a_wheel_that_cannot_be_built_says_why(folder):
    (folder / "CMakeCache.txt").write_text("CMAKE_GENERATOR:INTERNAL=Ninja\n")
    done = subprocess.run([harness.ROOT / "scripts/wheel", "--build", folder, "-o", folder / "wheel"],
                          capture_output=True, text=True)
    expect(done.returncode == 1 and "Traceback" not in done.stderr, done.stderr)
    expect("scripts/wheel: cmake --build" in done.stderr and "CMAKE_PROJECT_NAME" in done.stderr,
           done.stderr)  # cmake's words
    done = subprocess.run([harness.ROOT / "scripts/wheel", "--installed", folder, "-o", folder / "wheel"],
                          capture_output=True, text=True)
    expect(done.returncode == 1 and "is no tree that `cmake --install` has made" in done.stderr, done.stderr)


harness.main(globals())
