"""That the checks of the tree find what is planted: checks.py test_layers (scripts/check_layers.py), test_text
(scripts/check_text.py)."""
import pathlib
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_layers
import check_text

GOOD = {
    "ir/a.cpp": '#include "ir/a.h"\n#include <fmt/format.h>\n',
    "frontend/toml_tree.cpp": '#include <toml++/toml.h>\n#include "ir/a.h"\n',
    "codegen/x.cpp": '#include <llvm/IR/IRBuilder.h>\n#include "runtime/plan.h"\n#include "ir/a.h"\n',
    "codegen/host/products.cpp": "#include <oneapi/dnnl/dnnl.h>\n",
    "runtime/x.cpp": '#include "runtime/plan.h"\n#include "ir/buffers.def"\n',
    "runtime/run/x.cpp": '#include "runtime/plan.h"\n#include "runtime/session/session.h"\n',
    "tools/main.cpp": '#include "frontend/a.h"\n#include "runtime/session/session.h"\n',
}
BAD = [  # file, text, a word of the message
    ("ir/b.cpp", '#include "passes/p.h"', "ir may include only"),
    ("ir/b.cpp", '#include "runtime/plan.h"', "ir may include only"),
    ("frontend/b.cpp", '#include "passes/p.h"', "frontend may include only"),
    ("passes/b.cpp", '#include "codegen/c.h"', "passes may include only"),
    ("passes/planner/b.cpp", '#include "ir/a.h"', "passes may include only"),
    ("codegen/b.cpp", '#include "frontend/a.h"', "codegen may include only"),
    ("codegen/b.cpp", '#include "runtime/session/session.h"', "codegen may include only"),
    ("codegen/nvptx/b.cpp", '#include "codegen/emit/target.h"', "codegen may include only"),
    ("codegen/emit/b.cpp", '#include "codegen/gpu/target.h"', "codegen may include only"),
    ("codegen/emit/b.cpp", '#include "codegen/nvptx/instructions.h"', "codegen may include only"),
    ("codegen/emit/b.cpp", "#include <llvm/IR/IntrinsicsNVPTX.h>", "instructions of one machine may only"),
    ("codegen/emit/b.cpp", "#include <llvm/IR/InlineAsm.h>", "instructions of one machine may only"),
    ("codegen/gpu/b.cpp", '#include "codegen/device_code.h"', "codegen may include only"),
    ("codegen/host/b.cpp", '#include "codegen/gpu/target.h"', "codegen may include only"),
    ("emulator/b.cpp", '#include "runtime/plan.h"', "emulator may include only"),
    ("runtime/b.cpp", '#include "ir/a.h"', "runtime may include only"),
    ("runtime/b.cpp", '#include "runtime/run/train.h"', "runtime may include only"),
    ("runtime/ranks/b.cpp", '#include "runtime/session/session.h"', "runtime/ranks may include only"),
    ("runtime/store/b.cpp", '#include "runtime/run/train.h"', "runtime/store may include only"),
    ("runtime/store/b.cpp", '#include "runtime/tell/log.h"', "runtime/store may include only"),
    ("runtime/tell/b.cpp", '#include "runtime/session/session.h"', "runtime/tell may include only"),
    ("runtime/data/sources/b.cpp", '#include "runtime/weights/weights.h"', "runtime/data/sources may include only"),
    ("runtime/cuda/b.cpp", '#include "runtime/ranks/collective.h"', "runtime/cuda may include only"),
    ("passes/b.cpp", "#include <llvm/IR/IRBuilder.h>", "LLVM may only"),
    ("tools/b.cpp", '#include "llvm/IR/Module.h"', "LLVM may only"),
    ("frontend/b.cpp", "#include <toml++/toml.hpp>", "already has its one file"),
    ("ir/b.cpp", "#include <toml++/toml.hpp>", "toml++ may only"),
    ("codegen/host/other.cpp", "#include <dnnl.h>", "already has its one file"),
    ("codegen/b.cpp", "#include <dnnl.hpp>", "oneDNN may only"),
    ("codegen/b.cpp", "  #  include <cuda.h>", "CUDA may only"),
    ("ir/b.cpp", '#include "a.h"', "from the top of the tree"),
    ("ir/b.cpp", '#include "../passes/p.h"', "from the top of the tree"),
]


def plant(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_layers():
    with tempfile.TemporaryDirectory() as folder:
        plant(pathlib.Path(folder), GOOD)
        wrong = [f"refused a good tree: {v}" for v in check_layers.violations(pathlib.Path(folder))]
    for file, text, word in BAD:
        with tempfile.TemporaryDirectory() as folder:
            plant(pathlib.Path(folder), GOOD | {file: text + "\n"})
            found = check_layers.violations(pathlib.Path(folder))
            if len(found) != 1 or word not in found[0]:
                wrong.append(f"{file} with {text}: expected `{word}`, found {found}")
    print(*wrong, f"{len(BAD)} violations planted, {len(wrong)} not judged right", sep="\n")
    return not wrong


def test_text():
    long = "word " * 30
    planted = {"a.md": long + "\n", "b.md": "\n".join(["one two three"] * 14) + ".\n", "c.cpp": "// " + "x" * 120,
               "d.py": "# see the contract, section 2", "e.cpp": "int a;\n// Whether it is so.\n// Else not.\n"}
    missed = [name for name, text in planted.items() if len(list(check_text.faults(name, text))) != 1]
    twice = check_text.wrap("- " + long + "`a b c`\n  next.\n\n    code " + long + "\n")
    if check_text.wrap(twice) != twice or "`a b c`" not in twice or list(
        check_text.faults("e.md", "Short.\nShort.\n" * 30 + "\n| " + long)):
        missed.append("wrap")
    judge = check_text.judged
    judgements = [  # headers, exceptions, messages
        ({"a.h": "struct Two {\n};\n", "b.h": "class Two : One {\n"}, {}, 1),
        ({"a.h": "struct Two {\n};\n", "b.h": "class Two {\n"}, {"Two": 2}, 0),
        ({"a.h": "struct Two;\n"}, {"Two": 2}, 1)]
    missed += [str(headers) for headers, allowed, count in judgements if len(list(judge(headers, allowed))) != count]
    print("self test:", "missed " + ", ".join(missed) if missed else "every planted fault was found")
    return not missed


sys.exit(0 if globals()[sys.argv[1]]() else 1)
