#!/usr/bin/env python3
"""Checks the rules of includes (docs/ARCHITECTURE.md, "Layers"): names every #include that breaks it, exit 1.

    check_layers.py [ROOT]        check a tree (default: this one)
"""
import pathlib
import re
import sys

FOLDERS = ["ir", "kernels", "frontend", "passes", "codegen", "compiler", "emulator", "runtime", "library", "tools",
           "tests"]
ARTIFACTS = [f"runtime/{h}.h" for h in ("plan", "dtype", "device", "artifact", "status", "atomic_file", "half")]
# The wings of the runtime, each with those it may include; all may include the files beside them.
WINGS = {
    "cuda": (),
    "ranks": (),
    "mpi": ("ranks",),
    "data": (),
    "session": ("ranks",),
    "weights": ("data", "session"),
    "store": ("data", "session"),
    "tell": ("data",),
    "run": ("cuda", "ranks", "data", "session", "weights", "store", "tell"),
}
# Tables: no code of the IR.
RUNTIME_ROOT = ["runtime/*.h", "ir/buffers.def", "ir/dtypes.def", "ir/regions.def"]
# Allowed includes of each folder, as path prefixes. The first prefix that fits a file is the rule.
MAY_INCLUDE = [
    ("ir/", ["ir/"]),
    ("frontend/", ["frontend/", "ir/"]),
    ("passes/planner/", ["passes/planner/"]),  # works on an abstract graph: knows neither ops nor IR
    ("kernels/", ["kernels/", "ir/"]),
    ("passes/", ["passes/", "kernels/", "ir/"]),
    ("codegen/nvptx/", ["codegen/nvptx/", "codegen/emit/instructions.h", "ir/"]),
    ("codegen/emit/", ["codegen/emit/", "kernels/", "ir/"]),  # over a Target: knows no machine
    ("codegen/gpu/", ["codegen/gpu/", "codegen/emit/", "codegen/nvptx/", "codegen/plan_launches.h", "kernels/", "ir/"]),
    ("codegen/host/", ["codegen/host/", "codegen/emit/", "kernels/", "ir/"] + ARTIFACTS),
    ("codegen/", ["codegen/", "kernels/", "ir/"] + ARTIFACTS),
    ("compiler/", [f + "/" for f in FOLDERS if f not in ("library", "tools", "tests")]),
    ("library/", [f + "/" for f in FOLDERS if f not in ("tools", "tests")]),
    ("emulator/", ["emulator/", "runtime/status.h", "runtime/cuda/cublas_lt_values.h"]),  # a table of numbers
    *[(f"runtime/{wing}/", [f"runtime/{w}/" for w in (wing, *below)] + RUNTIME_ROOT) for wing, below in WINGS.items()],
    ("runtime/", RUNTIME_ROOT),
    ("tools/", [f + "/" for f in FOLDERS]),
    ("tests/", [f + "/" for f in FOLDERS]),
]
# Libraries with one door: name, pattern of the header, the folder that may, whether one file only.
DOORS = [
    ("LLVM", re.compile(r"(llvm|llvm-c|clang)/"), ("codegen/", "tests/codegen/"), False),
    # emit/ takes a machine's own instructions from its Target.
    ("instructions of one machine", re.compile(r"llvm/IR/(Intrinsics[A-Z]\w+|InlineAsm)\.h"),
     ("codegen/nvptx/", "codegen/gpu/", "tests/codegen/"), False),
    ("toml++", re.compile(r"(toml\+\+|tomlplusplus)/|toml\.hpp"), "frontend/", True),
    ("oneDNN", re.compile(r"(oneapi/)?dnnl"), "codegen/host/", True),
    ("MPI", re.compile(r"mpi\.h"), "runtime/mpi/", True),
    # The runtime has its own prototypes; only the test that compares them reads NVIDIA's headers.
    ("CUDA", re.compile(r"cuda\w*\.h|cublas\w*\.h|nvrtc\w*\.h|cuda/"), "tests/cuda/", True),
]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(root):
    """Yields (file, line, quote, header) in the order of the tree."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".def", ".inc", ".hpp"):
                for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
                    if match := INCLUDE.match(text):
                        yield path.relative_to(root).as_posix(), number, match[1], match[2]


def may(header, allowed):
    """True where the path prefix `allowed` fits; FOLDER/*.h stands for the headers of a folder alone."""
    if allowed.endswith("/*.h"):
        return header.startswith(allowed[:-3]) and "/" not in header[len(allowed) - 3:]
    return header.startswith(allowed)


def violations(root):
    found, doors = [], {}
    for file, line, quote, header in includes(root):
        where = f"{file}:{line}: error: "
        for name, pattern, folder, single in DOORS:
            if pattern.match(header):
                if not file.startswith(folder):
                    allowed = folder if isinstance(folder, str) else folder[0]
                    found.append(f"{where}`{header}`: {name} may only be included in {allowed}")
                elif single and doors.setdefault(name, file) != file:
                    found.append(f"{where}`{header}`: {name} already has its one file, {doors[name]}")
        if header.startswith("../") or (quote == '"' and "/" not in header):
            found.append(f"{where}`{header}`: write the path from the top of the tree, folder first")
        elif any(header.startswith(f + "/") for f in FOLDERS):
            allowed = next(rule for prefix, rule in MAY_INCLUDE if file.startswith(prefix))
            if not any(may(header, a) for a in allowed):
                inner = file.rsplit("/", 1)[0] if file.startswith("runtime/") else file.split("/")[0]
                found.append(f"{where}`{header}`: {inner} may include only {', '.join(allowed)}")
    return found


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    found = violations(root)
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
