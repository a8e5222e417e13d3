"""examples/embed.c as a stranger builds it: against the installed tree, by CMake and by pkg-config."""
import os
import re
import shutil
import subprocess

import harness
from harness import expect

SOURCE = harness.EXAMPLES / "embed.c"
PROJECT = """cmake_minimum_required(VERSION 3.16)
project(embed C)
find_package(gacc REQUIRED)
add_executable(embed embed.c)
target_link_libraries(embed PRIVATE gacc::gacc)
"""


def installed(folder):
    command = ["cmake", "--install", harness.BIN.parent, "--prefix", folder / "first"]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "first").rename(folder / "tree")
    return folder / "tree"


def execute(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    expect(done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def trains(*command, **options):
    out = execute(*command, **options).stdout
    found = re.search(r"y = (\S+) a (\S+) b (\S+), in", out)
    expect(found and all(abs(float(a) - b) < 0.15 for a, b in zip(found.groups(), (2, -1, 0.5))), out)


def test_by_pkg_config(folder):
    if not shutil.which("pkg-config"):
        harness.skip("no pkg-config here")
    if harness.sanitized():
        harness.skip("a sanitized library needs its runtime in the program")
    tree = installed(folder)
    found = {"PKG_CONFIG_PATH": ":".join(str(path.parent) for path in tree.rglob("gacc.pc")),
             "PATH": os.environ["PATH"]}
    words = execute("pkg-config", "--cflags", "--libs", "gacc", env=found).stdout.split()
    library = next(path.parent for path in tree.rglob("libgacc.so"))
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    execute("cc", *strict, SOURCE, *words, f"-Wl,-rpath,{library}", "-o", folder / "embed")
    trains(folder / "embed", "cpu", env={"HOME": str(folder)})
    expect(len(SOURCE.read_text().splitlines()) <= 60, "embed.c has more than 60 lines")
    for standard in ("c89", "c99", "c11"):
        execute("cc", f"-std={standard}", *strict[1:], "-fsyntax-only", "-x", "c", "-", *words,
                input="#include <gacc.h>\nint x;\n")
    execute("c++", "-std=c++11", *strict[1:], "-fsyntax-only", "-x", "c++", "-", *words, input="#include <gacc.h>\n")


def test_by_cmake(folder):
    if harness.sanitized():
        harness.skip("a sanitized library needs its runtime in the program")
    tree = installed(folder)
    (folder / "embed").mkdir()
    (folder / "embed/CMakeLists.txt").write_text(PROJECT)
    shutil.copy(SOURCE, folder / "embed/embed.c")
    execute("cmake", "-S", folder / "embed", "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={tree}")
    execute("cmake", "--build", folder / "build")
    trains(folder / "build/embed", "cpu", env={"HOME": str(folder)})


def test_under_valgrind(folder):
    """No wrong access, and nothing lost, while it compiles, trains and ends."""
    if not shutil.which("valgrind"):
        harness.skip("no valgrind here")
    if harness.sanitized():
        harness.skip("a sanitized library does not run under valgrind")
    execute("cc", "-g", SOURCE, f"-I{harness.ROOT / 'library'}", f"-L{harness.BIN}", "-lgacc",
            f"-Wl,-rpath,{harness.BIN}", "-o", folder / "embed")
    (folder / "known").write_text(
        "{\n  glibc keeps what it notes of a dlopen\n  Memcheck:Leak\n  fun:malloc\n  ...\n  fun:_dl_map_object_deps\n"
        "}\n")
    trains("valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite",
           f"--suppressions={folder / 'known'}", folder / "embed", "cpu")


def test_under_address_sanitizer(folder):
    """Its allocator is the whole process's, the library's too: nothing is freed twice or lost, with either device."""
    if harness.sanitized():
        harness.skip("a sanitized library needs its runtime in the program")
    command = ["cc", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover", SOURCE,
               f"-I{harness.ROOT / 'library'}", f"-L{harness.BIN}",
               "-lgacc", f"-Wl,-rpath,{harness.BIN}", "-o", folder / "embed"]
    (folder / "none.c").write_text("int main(void) { return 0; }\n")
    if subprocess.run([*command[:4], folder / "none.c", "-o", folder / "none"], capture_output=True).returncode != 0:
        harness.skip("the C compiler has no sanitizer here")
    execute(*command)
    for device in ("cpu", "emulate"):
        environment = {"HOME": str(folder), "ASAN_OPTIONS": "detect_leaks=1"}
        try:
            trains(folder / "embed", device, env=environment)
        except harness.Failed as failed:
            if "LeakSanitizer has encountered a fatal error" not in str(failed):  # its own, about once in 500 runs
                raise
            trains(folder / "embed", device, env=environment)


def test_the_library_is_lean(folder):
    """C functions alone, with a version; neither LLVM nor oneDNN."""
    library = harness.BIN / "libgacc.so"
    names = execute("nm", "-D", "--defined-only", "--with-symbol-versions", library).stdout.split("\n")
    functions = [line.split()[2] for line in names if " T " in line]
    declared = re.findall(r"^(?:gacc_error|const char\*|int64_t|void) (gacc_\w+)\(",
                          (harness.ROOT / "library/gacc.h").read_text(), re.M)
    expect(sorted(functions) == sorted(f"{name}@@GACC_0" for name in declared), f"{functions} are not {declared}")
    expect(len(functions) <= 30, f"{len(functions)} functions")
    expect(not [line for line in names if line and " T " not in line and " A GACC_0" not in line], "\n".join(names))
    needs = execute("ldd", library).stdout
    expect(not any(word in needs for word in ("LLVM", "dnnl", "zstd", "cuda")), needs)


harness.main(globals())
