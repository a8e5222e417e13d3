"""Whatever holds numbers as a row-major array, without a copy where it is one; and safetensors."""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

TYPES = {np.dtype(name): short for name, short in (
    ("uint8", b"u8"), ("uint16", b"u16"), ("int8", b"i8"), ("int16", b"i16"), ("int32", b"i32"), ("int64", b"i64"),
    ("float32", b"f32"), ("float64", b"f64"))}
WIDER = {"b1": np.int8, "u4": np.int64, "u8": np.int64, "f2": np.float32}  # what others become, as in files of arrays
FEW = 64  # elements of a sample: a table, and no image
COLUMNS = "gacc.inputs.{}.columns"  # the key of an input's, in the metadata of a safetensors file


def to_numpy(it: Any) -> np.ndarray:
    """numpy's view of an array that has DLPack, __array_interface__ or __array__; a list is copied."""
    if np.ma.is_masked(it):
        raise ValueError("a masked array: what lies under its mask is no data; give it with .filled(value)")
    if not isinstance(it, np.ndarray):
        # A tensor of torch may show its memory with another sign, or no memory at all; numpy has no bf16.
        for resolve in ("detach", "resolve_conj", "resolve_neg"):
            it = getattr(it, resolve)() if hasattr(it, resolve) else it
        if str(getattr(it, "dtype", "")) == "torch.bfloat16":
            it = it.float()
        if getattr(it, "_is_zerotensor", bool)():
            it = it.clone()
        try:
            it = np.from_dlpack(it)
        except (AttributeError, TypeError, ValueError, BufferError, RuntimeError):  # none, or not for the CPU as it is
            it = np.asarray(it)
    kind = it.dtype.str[1:]
    if kind == "u8" and it.size and it.max() > np.iinfo(np.int64).max:
        raise ValueError("a whole number above 2^63 - 1")
    if kind in WIDER:
        it = it.astype(WIDER[kind])
    elif it.dtype not in TYPES:
        native = it.dtype.newbyteorder("=")
        if native not in TYPES:
            raise TypeError(f"there is no type {it.dtype} (there are u8 to u64, i8 to i64, bool, f16, f32 and f64)")
        it = it.astype(native)
    return np.ascontiguousarray(it)


def table_to_numpy(table: Any) -> np.ndarray:
    """A table of pandas or polars whose columns hold numbers or truths, whatever keeps them: as it is where all columns
    have one type, else f32, or f64 where one of them is wider. What a column says that is no number is an error."""
    try:
        array = to_numpy(table)
        if array.dtype.kind != "f" or not np.isnan(array).any():
            return array
    except (TypeError, ValueError):
        pass
    arrays = [column_to_numpy(name, table[name]) for name in table.columns]
    kind = np.result_type(*(array.dtype for array in arrays)) if arrays else np.dtype(np.float32)
    return np.stack([array.astype(kind) for array in arrays], axis=1) if arrays else np.empty((len(table), 0), kind)


def column_to_numpy(name: Any, column: Any) -> np.ndarray:
    values = np.asarray(column)
    if values.dtype.kind in "biu" or values.dtype.kind == "f" and not np.isnan(values).any():
        return values.astype(WIDER.get(values.dtype.str[1:], values.dtype))
    listed = values.tolist()
    for i, value in enumerate(listed):
        if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:
            raise ValueError(f"the column {name!r} has no value in row {i}: fill it, or leave the row out; gacc-exec "
                             "reads csv files with missing=mean|drop")
        if isinstance(value, str):
            raise TypeError(f"the column {name!r} is text, as {value!r:.40} in row {i}: here it becomes numbers first, "
                            "as by pandas.get_dummies; of a csv file, inputs.NAME.columns in the model says its values")
        if not isinstance(value, (bool, int, float, np.generic)):
            raise TypeError(f"the column {name!r} holds {type(value).__name__}, as {value!r:.40} in row {i}")
    return np.asarray(listed, np.float64 if any(isinstance(value, float) for value in listed) else np.int64)


def columns_of(it: Any) -> list[Any] | None:
    """The names of a table's columns (pandas, polars); None of what is no table."""
    if isinstance(it, np.ndarray) or not hasattr(it, "columns") or not hasattr(it, "__getitem__"):
        return None
    return list(it.columns)


def in_order(table: Any, columns: list[Any]) -> Any:
    """The table with its columns in that order: they go by name, as those of a csv file."""
    own = list(table.columns)
    if own == columns:
        return table
    by_name = {str(name): name for name in own}
    wanted = list(map(str, columns))
    if sorted(by_name) != sorted(wanted):
        raise ValueError(f"the columns are {', '.join(by_name)}; the first table had {', '.join(wanted)}")
    return table[[by_name[name] for name in wanted]]


class Scales:
    """What the numbers of each input have been so far. uint8 is divided by 255 as the bytes of images are, and no other
    type is: who gives another type later, or a table of bytes, may not have meant it."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}  # "bytes", "small" numbers up to 1, "large" ones, or "truths" of uint8

    def of(self, name: str, array: np.ndarray, share: bool) -> np.ndarray:
        """The array as the step takes it; `share`: it is a target of 0 to 1, which uint8 of 0 and 1 is as it stands."""
        before, most = self.seen.get(name), 0
        if array.dtype != np.uint8:
            if before in (None, "small", "bytes"):
                most = array.max()
            if before == "bytes" and most > 1:
                warn(f"the input {name!r} was uint8, which is divided by 255, and is {array.dtype} up to {most} now, "
                     "which is not")
            if before in (None, "small"):
                self.seen[name] = "large" if most > 1 else "small"
            return array
        most = array.max()
        if share and before != "bytes" and (most <= 1 or before == "truths"):
            if most > 1:
                raise ValueError(f"the input {name!r} is uint8 up to {most}, after ones of 0 and 1 that were taken as "
                                 "they are: give float32 from 0 to 1")
            self.seen[name] = "truths"
            return array.astype(np.float32)
        if before == "large":
            warn(f"the input {name!r} is uint8, which is divided by 255, and what it was given before is not: "
                 "give float32")
        elif before is None and (most < 128 or array[0].size < FEW):
            warn(f"the input {name!r} is uint8, which is divided by 255, as images are: give float32 for other numbers")
        self.seen[name] = "bytes" if before is None else before
        return array


def warn(text: str) -> None:
    """Warns at the line that called gacc."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(os.path.dirname(__file__)):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def fits(given: Sequence[int], wanted: Sequence[int]) -> bool:
    """Returns whether a sample of one shape lies in memory as one of the other: but for axes of 1, or flat."""
    given, wanted = [n for n in given if n != 1], [n for n in wanted if n != 1]
    flat = min(len(given), len(wanted)) <= 1
    return given == wanted or (flat and np.prod(given, dtype=object) == np.prod(wanted, dtype=object))


def _header_of(file: BinaryIO) -> dict[str, Any]:
    return json.loads(file.read(int.from_bytes(file.read(8), "little")))


def read_header(path: str | os.PathLike) -> dict[str, Any]:
    """The header of a safetensors file: its tensors by name, and `__metadata__`."""
    with open(path, "rb") as file:
        return _header_of(file)


def _write_header(file: BinaryIO, header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def read_safetensors(path: str | os.PathLike) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:
        header, data = _header_of(file), file.read()
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data, np.float32, (t["data_offsets"][1] - t["data_offsets"][0]) // 4,
                                t["data_offsets"][0]).reshape(t["shape"]).copy() for name, t in header.items()}


def write_safetensors(path: str | os.PathLike, tensors: Mapping[str, Any]) -> None:
    """Writes them as f32."""
    arrays = {name: np.ascontiguousarray(to_numpy(it), np.dtype("<f4")) for name, it in tensors.items()}
    header, end = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(np.shape(tensors[name])),
                        "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    with whole(path) as file:
        _write_header(file, header)
        for array in arrays.values():
            file.write(array.reshape(-1).data)


def read_columns(path: str | os.PathLike, inputs: Iterable[str]) -> dict[str, list[str]]:
    """The columns of the table that an input was trained on, as the safetensors file of its parameters has them."""
    said = read_header(path).get("__metadata__", {})
    return {name: json.loads(said[COLUMNS.format(name)]) for name in inputs if COLUMNS.format(name) in said}


def write_columns(path: str | os.PathLike, columns: Mapping[str, list[Any]]) -> None:
    """Adds them to such a file."""
    with open(path, "rb") as old, whole(path) as file:
        header = _header_of(old)
        said = {COLUMNS.format(name): json.dumps(list(map(str, each))) for name, each in columns.items()}
        _write_header(file, header | {"__metadata__": header.get("__metadata__", {}) | said})
        shutil.copyfileobj(old, file)


@contextlib.contextmanager
def whole(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A file to write under another name, which is there as a whole at the end or not at all."""
    part = f"{os.fspath(path)}.part"
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def expect_batch(batch: Any, names: Collection[str]) -> None:
    """Refuses what has no array for each of some inputs."""
    if hasattr(batch, "shape") or not hasattr(batch, "__getitem__") or isinstance(batch, (str, bytes)):
        given = "one array; [(x, y)] is a loader of one batch" if hasattr(batch, "shape") else repr(batch)
        raise TypeError(f"a batch is a mapping by name or a tuple, of an array for each input ({', '.join(names)}), "
                        f"not {given}")
    if not batch:
        raise ValueError(f"a batch has no samples; it has an array for each input ({', '.join(names)})")


def is_data_set(loader: Any) -> bool:
    """Returns whether it gives samples by their numbers, as the data sets of PyTorch and of Hugging Face do."""
    return not isinstance(loader, (list, tuple, Mapping)) and all(hasattr(loader, name)
                                                                  for name in ("__getitem__", "__len__"))


def no_batches(loader: Any) -> ValueError:
    """The error of such a one in the place of a loader."""
    return ValueError(f"the loader gives samples, and no batches: it is a {type(loader).__name__}, of which "
                      "torch.utils.data.DataLoader(dataset, batch_size=32) makes batches")


def expect_names(given: Collection[Any], have: Collection[str], of: str) -> None:
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise TypeError(f"parameters are given by their names, and {wrong[0]!r} is none")
    lacks, more = sorted(set(have) - set(given)), sorted(set(given) - set(have))
    if lacks or more:
        raise ValueError(f"the parameters do not fit the {of}:" + (f" {', '.join(lacks)} missing" if lacks else "")
                         + ";" * bool(lacks and more) + (f" the {of} has no {', '.join(more)}" if more else ""))


def check_parameters(given: Mapping[str, Any], have: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The given parameters as f32, if they are exactly those that the model has. As in a file, a count of PyTorch's
    batch norms is left out."""
    given = {name: it for name, it in given.items() if not str(name).endswith(".num_batches_tracked")}
    expect_names(given, have, "model")
    arrays = {}
    for name, it in given.items():
        try:
            arrays[name] = array = np.ascontiguousarray(to_numpy(it), np.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            raise type(error)(f"{name}: {error}") from error
        # np.ascontiguousarray makes a number an array of one.
        if tuple(array.shape) != have[name].shape and not (array.size == 1 and have[name].size == 1):
            raise ValueError(f"{name} is {list(array.shape)}, and {list(have[name].shape)} in the model")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds nan or infinity; a parameter is a finite number")
    return arrays
