"""The vocabulary that a GGUF holds, as a tokenizer of the package tokenizers."""
from __future__ import annotations

import pathlib
import struct
from typing import Any, BinaryIO

NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, ARRAY = 8, 9
MOST = 1 << 24  # entries of an array, bytes of a text: more is no vocabulary
# Kinds of tokens.
CONTROL, BY_USERS = 3, 4
SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS, REST = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# tokenizer.ggml.pre: how a text is cut before its parts are encoded. None is the cut of byte-level tokenizers itself.
CUTS = {
    "gpt-2": None, "default": None, "smollm": r"\p{N}",
    "llama-bpe": rf"{SHORT_FORMS}|{LETTERS}|\p{{N}}{{1,3}}|{REST}",
    "qwen2": SHORT_FORMS + "|" + LETTERS + r"|\p{N}|" + REST,
}
CUTS["llama3"] = CUTS["llama-v3"] = CUTS["llama-bpe"]
# A word of the vocabulary is that token, whatever the merges; and a text begins with a mark.
OF_LLAMA = {"llama-bpe", "llama3", "llama-v3"}


class Unreadable(Exception):
    pass


def read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise Unreadable("ends within its metadata")
    return data


def take(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, read(file, struct.calcsize(form)))[0]


def read_value(file: BinaryIO, kind: int) -> Any:
    if kind in NUMBERS:
        return take(file, NUMBERS[kind])
    if kind not in (TEXT, ARRAY):
        raise Unreadable(f"has metadata of the unknown type {kind}")
    of = take(file, "<I") if kind == ARRAY else TEXT
    if of == ARRAY:
        raise Unreadable("has metadata that are arrays of arrays, which no vocabulary is")
    count = take(file, "<Q")
    if count > MOST:
        raise Unreadable(f"has metadata of {count:,} entries")
    if kind == TEXT:
        return read(file, count).decode("utf-8", errors="replace")
    if of in NUMBERS:
        data = read(file, count * struct.calcsize(NUMBERS[of]))
        return [value for value, in struct.iter_unpack(NUMBERS[of], data)]
    return [read_value(file, of) for _ in range(count)]


def read_metadata(path: pathlib.Path) -> dict[str, Any]:
    """The key-values of a GGUF; its tensors are not looked at."""
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise Unreadable("is no GGUF")
        version = take(file, "<I")
        if version not in (2, 3):
            raise Unreadable(f"is a GGUF of version {version}; there are 2 and 3 here")
        _, count = take(file, "<Q"), take(file, "<Q")
        found = {}
        for _ in range(min(count, MOST)):
            key = read_value(file, TEXT)
            found[key] = read_value(file, take(file, "<I"))
        return found


def merges_by_score(ids: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """The pairs that make a token of the vocabulary, those of the best tokens first, as SentencePiece prefers them."""
    merges = []
    for text, number in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                merges.append((-scores[number], ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def byte_level(facts: dict[str, Any], ids: dict[str, int], tokenizers: Any) -> Any:
    name = facts.get("tokenizer.ggml.pre", "default")
    if name not in CUTS:
        raise Unreadable(f"cuts texts as `{name}` (tokenizer.ggml.pre); known are {', '.join(CUTS)}")
    merges = [tuple(merge.split(" ", 1)) for merge in facts.get("tokenizer.ggml.merges", [])]
    for merge in merges:  # the package panics at some of what are none
        if len(merge) != 2 or not {*merge, "".join(merge)} <= ids.keys():
            raise Unreadable(f"merges what are no tokens, `{' '.join(merge)}` (tokenizer.ggml.merges)")
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges, ignore_merges=name in OF_LLAMA))
    cut, own = CUTS[name], name in ("gpt-2", "default", "smollm")
    steps = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(cut), "isolated")] if cut else []
    steps.append(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


def by_scores(facts: dict[str, Any], ids: dict[str, int], tokenizers: Any) -> Any:
    unknown = facts["tokenizer.ggml.tokens"][facts.get("tokenizer.ggml.unknown_token_id", 0)]
    merges = merges_by_score(ids, facts["tokenizer.ggml.scores"])
    model = tokenizers.models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    space = facts.get("tokenizer.ggml.add_space_prefix", True)
    normal, decoders = tokenizers.normalizers, tokenizers.decoders
    made.normalizer = normal.Sequence(([normal.Prepend("▁")] if space else []) + [normal.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
                                     + ([decoders.Strip(" ", 1, 0)] if space else []))
    return made


KINDS = {"gpt2": byte_level, "llama": by_scores}  # tokenizer.ggml.model


def usual_ids(facts: dict[str, Any]) -> dict[str, int]:
    """The special tokens of a vocabulary that does not name them, as llama.cpp takes them."""
    known = len(facts.get("tokenizer.ggml.tokens") or ())
    return {"bos": 1, "eos": 2} if facts.get("tokenizer.ggml.model") == "llama" and known > 2 else {}


def tokenizer_of(facts: dict[str, Any], tokenizers: Any) -> Any:
    kind, tokens = facts.get("tokenizer.ggml.model"), facts.get("tokenizer.ggml.tokens")
    if tokens is None or kind is None:
        raise Unreadable("holds no vocabulary (tokenizer.ggml.tokens)")
    if kind not in KINDS:
        raise Unreadable(f"has a tokenizer of the kind `{kind}`; known are {', '.join(KINDS)}")
    if kind == "llama" and len(facts.get("tokenizer.ggml.scores", [])) != len(tokens):
        raise Unreadable("has no score for each of its tokens (tokenizer.ggml.scores)")
    made = KINDS[kind](facts, {text: number for number, text in enumerate(tokens)}, tokenizers)
    for number, of in enumerate(facts.get("tokenizer.ggml.token_type", [])):
        if of == CONTROL:
            made.add_special_tokens([tokenizers.AddedToken(tokens[number], special=True, normalized=False)])
        elif of == BY_USERS:
            made.add_tokens([tokenizers.AddedToken(tokens[number], normalized=False)])
    begin = facts.get("tokenizer.ggml.bos_token_id", usual_ids(facts).get("bos"))
    marked = kind == "llama" or facts.get("tokenizer.ggml.pre") in OF_LLAMA
    if begin is not None and facts.get("tokenizer.ggml.add_bos_token", marked):
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{tokens[begin]} $A", special_tokens=[(tokens[begin], begin)])
    return made
