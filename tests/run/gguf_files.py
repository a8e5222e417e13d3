"""GGUFs for tests: writes them, reads their tensors, and converts small folders of published models, as llama.cpp
does."""
import array
import json
import struct

import harness

F32, F16, Q4_1, Q8_0, BF16 = 0, 1, 3, 8, 30
SIZES = {F32: (1, 4), F16: (1, 2), BF16: (1, 2), Q8_0: (32, 34), Q4_1: (32, 20)}  # numbers and bytes of a block
TEXT, U32, REAL, FLAG, ARRAY = 8, 4, 6, 7, 9


def f16(value):
    return struct.pack("<e", value)


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (bits + 0x7fff + (bits >> 16 & 1)) >> 16)


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def pack_q8_0(numbers):
    scale = single(max(map(abs, numbers)) / 127)
    factor = single(1 / scale) if scale else 0.0
    codes = [single(x * factor) for x in numbers]
    return f16(scale) + bytes(int(abs(x) + 0.5) * (1 if x >= 0 else -1) & 255 for x in codes)


def pack_q4_1(numbers):
    least = min(numbers)
    scale = single(single(max(numbers) - least) / 15)
    factor = single(1 / scale) if scale else 0.0
    codes = [min(15, int(single(single(single(x - least) * factor) + 0.5))) for x in numbers]
    return f16(scale) + f16(least) + bytes(codes[i] | codes[i + 16] << 4 for i in range(16))


def pack(kind, numbers):
    if kind == F32:
        return array.array("f", numbers).tobytes()
    if kind in (F16, BF16):
        return b"".join(map(f16 if kind == F16 else bf16, numbers))
    return b"".join((pack_q8_0 if kind == Q8_0 else pack_q4_1)(numbers[i:i + 32]) for i in range(0, len(numbers), 32))


def unpack(kind, data):
    if kind == F32:
        return list(array.array("f", data))
    if kind == F16:
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    if kind == BF16:
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    numbers = []
    for at in range(0, len(data), SIZES[kind][1]):
        block = data[at:at + SIZES[kind][1]]
        scale, = struct.unpack("<e", block[:2])
        if kind == Q8_0:
            numbers += [single(scale * code) for code in struct.unpack("<32b", block[2:])]
        else:
            least, = struct.unpack("<e", block[2:4])
            codes = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
            numbers += [single(single(scale * code) + least) for code in codes]
    return numbers


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def value(kind, what):
    if kind == TEXT:
        return text(what)
    if kind == ARRAY:
        return struct.pack("<IQ", what[0], len(what[1])) + b"".join(value(what[0], each) for each in what[1])
    return struct.pack({U32: "<I", REAL: "<f", FLAG: "<?"}[kind], what)


def write(path, metadata, tensors, alignment=32):
    """metadata: (key, kind, value)s; tensors: name -> (type, shape, numbers)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + struct.pack("<I", kind) + value(kind, what) for key, kind, what in metadata)
    data = b""
    for name, (kind, shape, numbers) in tensors.items():
        head += text(name) + struct.pack("<I",
                                         len(shape)) + struct.pack(f"<{len(shape)}Q",
                                                                   *reversed(shape)) + struct.pack(
                                                                       "<IQ", kind, len(data))
        data += pack(kind, numbers)
        data += bytes(-len(data) % alignment)
    path.write_bytes(head + bytes(-len(head) % alignment) + data)


def read(path):
    """Returns the bytes before the data, and name -> (type, shape, bytes)."""
    raw, at = path.read_bytes(), 24

    def take(form):
        nonlocal at
        got, = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return got

    def take_text():
        nonlocal at
        size = take("Q")
        at += size
        return raw[at - size:at].decode()

    def take_value(kind):
        if kind == TEXT:
            return take_text()
        if kind == ARRAY:
            kind, count = take("I"), take("Q")
            return [take_value(kind) for _ in range(count)]
        return take("BbHhIif?"[kind] if kind < 8 else {10: "Q", 11: "q", 12: "d"}[kind])

    assert raw[:4] == b"GGUF"
    count, entries = struct.unpack_from("<QQ", raw, 8)
    metadata = {}
    for _ in range(entries):
        key = take_text()
        metadata[key] = take_value(take("I"))
    found = {}
    for _ in range(count):
        name = take_text()
        shape = tuple(reversed([take("Q") for _ in range(take("I"))]))
        found[name] = take("I"), shape, take("Q")
    data = (at + 31) // 32 * 32
    tensors = {}
    for name, (kind, shape, offset) in found.items():
        size = SIZES[kind][1]
        for extent in shape:
            size *= extent
        tensors[name] = kind, shape, raw[data + offset:data + offset + size // SIZES[kind][0]]
    return metadata, raw[:data], tensors


# ---------------------------------------------------------------- small folders, as llama.cpp converts them
def interleaved(rows, head):
    """Row i of a head's second half behind row i of its first."""
    return [row for at in range(0, len(rows), head) for i in range(head // 2)
            for row in (rows[at + i], rows[at + head // 2 + i])]


def rows_of(shape, numbers):
    width = len(numbers) // shape[0]
    return [numbers[i:i + width] for i in range(0, len(numbers), width)]


LLAMA = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.gate_up_proj": "ffn_up",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
GPT2 = {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "transformer.wte": "token_embd",
         "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"}


OLMO2 = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
# Metadata of Granite = keys of its config.json.
GRANITE = {"embedding_scale": "embedding_multiplier", "attention.scale": "attention_multiplier",
           "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}


GEMMA = OLMO2 | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
ARCHITECTURES = {"gemma3_text": "gemma3"}  # general.architecture, where it is not the model_type
NAMES = {"olmo2": OLMO2, "gemma2": GEMMA, "gemma3": GEMMA}  # of an architecture, beside LLAMA and GPT2


def name_of(theirs, of_family=None):
    module, last = theirs.rsplit(".", 1)
    if module in OUTER:
        return f"{OUTER[module]}.{last}"
    _, _, number, inner = module.split(".", 3)
    return f"blk.{number}.{(LLAMA | GPT2 | (of_family or {}))[inner]}.{last}"


def convert(folder, path, kinds=lambda name, shape: F32, extra=()):
    """The GGUF of a folder. `kinds` gives each tensor its type."""
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    of = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
          "n_positions": "max_position_embeddings"}
    config |= {theirs: config[ours] for ours, theirs in of.items() if ours in config}
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head = config.get("head_dim") or width // heads
    architecture = ARCHITECTURES.get(family, family)
    gemma = architecture.startswith("gemma")
    metadata = [("general.architecture", TEXT, architecture), ("general.type", TEXT, "model"),
                ("general.name", TEXT, "small"),
                ("tokenizer.ggml.tokens", ARRAY, (TEXT, ["a", "b", ""]))]
    metadata += [(f"{architecture}.{key}", kind, what) for key, kind, what in [
        ("block_count", U32, config["num_hidden_layers"]), ("context_length", U32, config["max_position_embeddings"]),
        ("embedding_length", U32, width), ("feed_forward_length", U32, config.get("intermediate_size", 4 * width)),
        ("attention.head_count", U32, heads)]]
    if family == "gpt2":
        metadata += [("gpt2.attention.layer_norm_epsilon", REAL, config.get("layer_norm_epsilon", 1e-5))]
    else:
        metadata += [(f"{architecture}.{key}", kind, what) for key, kind, what in [
            ("attention.head_count_kv", U32, config["num_key_value_heads"]), ("attention.key_length", U32, head),
            ("attention.value_length", U32, head), ("attention.layer_norm_rms_epsilon", REAL, config["rms_norm_eps"]),
            ("rope.dimension_count", U32, head), ("rope.freq_base", REAL, config.get("rope_theta", 10000.0))]]
    if gemma:
        caps = [(key, REAL, config[key]) for key in ("attn_logit_softcapping", "final_logit_softcapping")
                if key in config]
        metadata += [(f"{architecture}.{key}", kind, what)
                     for key, kind, what in [("attention.sliding_window", U32, config["sliding_window"]), *caps]]
    if family == "granite":
        metadata += [(f"granite.{theirs}", REAL, config[ours]) for theirs, ours in GRANITE.items()]
    tensors = {}
    for theirs, (shape, numbers) in harness.read_safetensors(folder / "model.safetensors").items():
        shape, rows = tuple(shape), rows_of(shape, list(numbers))
        name = name_of(theirs, NAMES.get(architecture))
        if gemma and theirs.endswith("norm.weight"):  # which add 1 to their weights
            rows = [[number + 1 for number in row] for row in rows]
        if family == "gpt2" and len(shape) == 2 and "_embd" not in name and name != "output.weight":
            shape, rows = shape[::-1], [list(column) for column in zip(*rows)]
        if family in ("llama", "smollm3", "granite") and any(part in name for part in ("attn_q.", "attn_k.")):
            rows = interleaved(rows, head)
        tensors[name] = (kinds(name, shape), shape, [number for row in rows for number in row])
    write(path, metadata + list(extra), tensors)
    return metadata, tensors
