"""gacc.h by ctypes: where the library lies, its structs and functions, and its errors as exceptions."""
from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import os
import pathlib
import re
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p

TREE = pathlib.Path(__file__).parent / "tree"  # a wheel brings an installed tree, and in tree/needed what that needs
if (_FOLDERS := pathlib.Path(__file__).resolve().parents)[0].parts[-4:] == ("share", "gacc", "python", "gacc"):
    TREE = _FOLDERS[4]  # of `cmake --install`
MOST_AXES, MOST_METRICS = 8, 16


class Error(Exception):
    """An error that gacc reports.

    kind    "failed" (a file, the model, the data or the device), "wrong call", or "bug" (of gacc; please report it)
    file    the model file that was compiled ("model": text or a dict), else None
    line    the first place in it that is wrong, from 1, or None; column too
    """

    def __init__(self, text: str, kind: str = "failed", file: str | None = None, line: int | None = None,
                 column: int | None = None):
        super().__init__(text.rstrip("\n"))
        self.kind, self.file, self.line, self.column = kind, file, line, column


class CError(Structure):
    _fields_ = [("kind", c_int), ("line", c_int), ("column", c_int), ("text", ctypes.c_char * 2036)]


class CompileOptions(Structure):
    _fields_ = [("set", POINTER(c_char_p)), ("sets", c_size_t), ("target", c_char_p),
                ("lora", c_int64), ("context", c_int64), ("families", c_char_p), ("pack", c_int)]


class CTensor(Structure):
    _fields_ = [("name", c_char_p), ("kind", c_char_p), ("dtype", c_char_p), ("shape", c_int64 * MOST_AXES),
                ("axes", c_size_t), ("bytes", c_int64)]


class StepInfo(Structure):
    _fields_ = [("model", c_char_p), ("micro_batch", c_int64), ("accumulate", c_int64), ("parameters", c_int64),
                ("arena_bytes", c_int64), ("epochs", c_int64), ("seed", c_int64), ("tail", c_char_p),
                ("inputs", c_size_t), ("buffers", c_size_t), ("output", CTensor)]


class DeviceOptions(Structure):
    _fields_ = [("threads", c_int), ("recheck", c_int64)]


class CArray(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("data", c_void_p), ("bytes", c_size_t)]


class CWindow(Structure):
    _fields_ = [("launches", c_int64), ("samples", c_int64), ("applied", c_int), ("skipped", c_int),
                ("loss", c_double), ("grad_norm", c_double), ("lr", c_double)]


class SaveOptions(Structure):
    _fields_ = [("adapter", c_int), ("merge", c_int), ("published", c_int), ("type", c_char_p)]


class CDrawOptions(Structure):
    _fields_ = [("temperature", c_double), ("top_k", c_int64), ("top_p", c_double), ("seed", c_int64)]


class CMetric(Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class CEvaluation(Structure):
    _fields_ = [("samples", c_int64), ("counted", c_int64), ("loss", c_double), ("metrics", c_size_t),
                ("metric", CMetric * MOST_METRICS)]


# The functions that give an error by value, and what they take.
FUNCTIONS = {
    "open": [c_char_p, c_void_p],
    "compile_file": [c_char_p, c_void_p, c_void_p],
    "compile_text": [c_char_p, c_char_p, c_void_p, c_void_p],
    "step_save": [c_void_p, c_char_p],
    "step_info_of": [c_void_p, c_void_p],
    "step_input": [c_void_p, c_size_t, c_void_p],
    "session_open": [c_void_p, c_char_p, c_void_p, c_void_p],
    "session_init": [c_void_p, c_int64, c_int64],
    "session_expect": [c_void_p, c_int64, c_char_p, c_size_t],
    "session_load": [c_void_p, c_char_p],
    "session_step": [c_void_p, c_void_p, c_size_t, c_int64],
    "session_update": [c_void_p, c_void_p],
    "session_train": [c_void_p, c_void_p, c_size_t, c_int64, c_void_p],
    "session_end_epoch": [c_void_p, c_void_p],
    "session_eval": [c_void_p, c_void_p, c_size_t, c_int64],
    "session_eval_end": [c_void_p, c_void_p],
    "session_evaluated": [c_void_p, c_void_p, c_char_p, c_void_p, c_void_p],
    "session_predict": [c_void_p, c_void_p, c_size_t, c_int64, c_void_p, c_size_t],
    "session_next_token": [c_void_p, c_void_p, c_size_t, c_void_p, c_void_p],
    "session_read": [c_void_p, c_char_p, c_void_p, c_size_t],
    "session_save_as": [c_void_p, c_char_p, c_void_p],
    "session_checkpoint": [c_void_p, c_char_p],
    "session_resume": [c_void_p, c_char_p],
    "session_close": [c_void_p],
}
OTHERS = {"version": ([], c_char_p), "step_plan": ([c_void_p], c_char_p), "step_free": ([c_void_p], None),
          "session_launches": ([c_void_p], c_int64)}


def _show_cuda() -> None:
    """Lets the library find what PyTorch's packages bring along: cuBLAS, NCCL."""
    if "GACC_CUDA_PATH" not in os.environ and (spec := importlib.util.find_spec("nvidia")) is not None:
        folders = [str(folder) for root in spec.submodule_search_locations or ()
                   for folder in sorted(pathlib.Path(root).glob("*/lib"))]
        os.environ["GACC_CUDA_PATH"] = ":".join(folders)


def _load() -> ctypes.CDLL:
    _show_cuda()
    # A wheel's libraries find each other by name once they are loaded: nothing in them knows a folder.
    waiting = sorted((TREE / "needed").glob("*.so*"))
    while waiting:
        left = []
        for path in waiting:
            try:
                ctypes.CDLL(str(path))
            except OSError as error:  # needs one that comes later
                left.append((path, error))
        if len(left) == len(waiting):
            raise ImportError(f"gacc: cannot load {left[0][0]}: {left[0][1]}")
        waiting = [path for path, _ in left]
    here = [*TREE.glob("lib/libgacc.so.0"), *TREE.glob("lib/*/libgacc.so.0")]
    name = os.environ.get("GACC_LIBRARY") or (str(here[0]) if here else "libgacc.so.0")
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(f"gacc: cannot load libgacc.so.0 ({error}): install the package libgacc0, or let "
                          "GACC_LIBRARY name the file") from None
    for short, arguments in FUNCTIONS.items():
        function = getattr(library, "gacc_" + short)
        function.argtypes, function.restype = arguments, CError
    for short, (arguments, result) in OTHERS.items():
        function = getattr(library, "gacc_" + short)
        function.argtypes, function.restype = arguments, result
    return library


library = _load()


def call(name: str, *arguments: object, file: str | None = None, first: int = 0) -> str:
    """Calls gacc_NAME, without the interpreter's lock, and raises what it says is wrong; returns what it warns of.
    `first`: the sample of the caller's arrays that is the call's first; an error counts from it."""
    if arguments[0] is None:
        raise Error("the session is closed", "wrong call")
    error = getattr(library, "gacc_" + name)(*arguments)
    if error.kind == 0:
        return error.text.decode(errors="replace")
    kind = {1: "failed", 2: "wrong call"}.get(error.kind, "bug")
    text = error.text.decode(errors="replace")
    if first:
        text = re.sub(r"(?<=\bsample )\d+", lambda number: str(int(number[0]) + first), text)
    raise Error(text, kind, file, error.line or None, error.column or None)


def path_bytes(path: str | os.PathLike) -> bytes:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"a path is a str or an os.PathLike, not {path!r:.60}")
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("a path has no byte 0")
    return encoded


__all__ = ["Error", "byref", "call", "library", "path_bytes"]
