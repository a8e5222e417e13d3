"""Beside transformers and peft, where a Python has both (GACC_PEERS_PYTHON names one): random weights of their GPT-2
and Llama classes go in, train as they do there, and come out again; the same of LoRA's adapters."""
import json
import re
import subprocess

import harness
from harness import expect, run

UPDATES = 20
TRAIN = ["--set", "train.micro_batch=2", "--set", "train.accumulate=2", "--set", "train.clip_norm=1e9", "--set",
         "optimizer.eps=1e-6",
         "--set", "optimizer.betas=[0.9, 0.95]", "--set", "optimizer.weight_decay=0.01", "--set", "optimizer.lr=1e-4"]


# Changes of an example to another size.
def resized(name, sizes):
    text = (harness.EXAMPLES / f"{name}.toml").read_text()
    for old, new in sizes:
        expect(old in text, f"{name}: no {old}")
        text = text.replace(old, new)
    return re.sub(r"\n\[schedule\][^\[]*", "\n", text)


GPT2 = {"small": dict(n_embd=64, n_head=4, n_layer=3, n_positions=32, vocab_size=101),
        "wide": dict(n_embd=768, n_head=12, n_layer=2, n_positions=48, vocab_size=50257)}
LLAMA = {"small": dict(hidden_size=96, intermediate_size=256, num_attention_heads=6, num_key_value_heads=2,
                       num_hidden_layers=3, max_position_embeddings=32, vocab_size=131),
         "wide": dict(hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3,
                      num_hidden_layers=2, max_position_embeddings=48, vocab_size=49152)}


def model_text(kind, c):
    if kind == "gpt2":
        return resized("gpt2_hf", [("features = 3072", f"features = {4 * c['n_embd']}"),
                                   ("features = 768", f"features = {c['n_embd']}"), ("50257", str(c["vocab_size"])),
                                   ("[1024]", f"[{c['n_positions']}]"),
                                   ("positions = 1024", f"positions = {c['n_positions']}"),
                                   ("repeat = 12", f"repeat = {c['n_layer']}"),
                                   ("heads = 12", f"heads = {c['n_head']}")])
    return resized("llama_hf", [("features = 1536", f"features = {c['intermediate_size']}"),
                                ("features = 576", f"features = {c['hidden_size']}"), ("49152", str(c["vocab_size"])),
                                ("shape = [512]", f"shape = [{c['max_position_embeddings']}]"),
                                ("repeat = 30", f"repeat = {c['num_hidden_layers']}"),
                                ("kv_heads = 3", f"kv_heads = {c['num_key_value_heads']}"),
                                ("\nheads = 9", f"\nheads = {c['num_attention_heads']}"),
                                (" = 64   # hidden_size",
                                 f" = {c['hidden_size'] // c['num_attention_heads']}   # hidden_size")])


# make: random weights, tokens and an adapter; train: losses and the logits before; load: logits of what gacc wrote.
PEER = """
import json, pathlib, sys, warnings
warnings.filterwarnings("ignore")
import numpy, torch, transformers, peft
transformers.logging.set_verbosity_error()
what, kind, sizes, lora, folder, updates = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]), pathlib.Path(sys.argv[5]), int(sys.argv[6])
torch.manual_seed(1)
if kind == "gpt2":
    config, Model = transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **sizes), transformers.GPT2LMHeadModel
else:
    config, Model = transformers.LlamaConfig(rope_theta=1e5, tie_word_embeddings=True, rms_norm_eps=1e-5, **sizes), transformers.LlamaForCausalLM
tokens = folder / "tokens.npy"

def logits(model):
    with torch.no_grad():
        return model.double().eval()(torch.tensor(numpy.load(tokens)[:4]).long()).logits.numpy()

def adapted(model):
    return peft.PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True) if lora else model

if what == "make":
    model = Model(config)
    for p in model.parameters():
        p.data += 0.02 * torch.randn_like(p)
    model.save_pretrained(folder / "weights", safe_serialization=True)
    length = sizes.get("n_positions") or sizes["max_position_embeddings"]
    rng = numpy.random.default_rng(0)
    numpy.save(tokens, rng.integers(0, sizes["vocab_size"], (4 * updates, length)).astype("int32"))
    numpy.save(folder / "next.npy", rng.integers(0, sizes["vocab_size"], (4 * updates, length)).astype("int32"))
    if lora:
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **lora))
        model.save_pretrained(folder / "adapter", safe_serialization=True)
elif what == "train":
    model = adapted(Model.from_pretrained(folder / "weights")).double().train()
    numpy.save(folder / "before.npy", logits(model))
    x, y = (torch.tensor(numpy.load(folder / name)).long() for name in ("tokens.npy", "next.npy"))
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.01), dict(params=others, weight_decay=0.0)], lr=1e-4, betas=(0.9, 0.95), eps=1e-6)
    losses = []
    for t in range(updates):
        loss = torch.nn.functional.cross_entropy(model(x[4 * t:4 * t + 4]).logits.flatten(0, 1), y[4 * t:4 * t + 4].flatten())
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        losses.append(loss.item())
    numpy.save(folder / "after.npy", logits(model))
    print(json.dumps(losses))
else:  # what gacc wrote
    if what == "adapter":
        model, info = peft.PeftModel.from_pretrained(Model.from_pretrained(folder / "weights"), folder / "out_adapter"), {}
    else:
        (folder / "out" / "config.json").write_text((folder / "weights" / "config.json").read_text())
        model, info = Model.from_pretrained(folder / "out", output_loading_info=True)
    numpy.save(folder / f"{what}.npy", logits(model))
    print(json.dumps([list(v) for v in info.values()]))
"""
FAR = "import numpy, sys; a, b = map(numpy.load, sys.argv[1:]); print(abs(a[:len(b)] - b[:len(a)]).max())"


def ask(python, *words):
    done = subprocess.run([python, "-c", PEER, *map(str, words)], capture_output=True, text=True)
    expect(done.returncode == 0, done.stderr)
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None


def far(python, a, b):
    return float(subprocess.run([python, "-c", FAR, a, b], capture_output=True, text=True, check=True).stdout)


def as_there(folder, kind, size, lora=None, table=""):
    python = harness.peer("transformers", "peft", "safetensors")
    sizes = (GPT2 if kind == "gpt2" else LLAMA)[size]
    words = kind, json.dumps(sizes), json.dumps(lora), folder, UPDATES
    ask(python, "make", *words)
    wanted = ask(python, "train", *words)
    model, artifact, log = folder / "m.toml", folder / "m.ptx", folder / "log.jsonl"
    model.write_text(model_text(kind, sizes) + table)
    run("gaccc", model, "-o", artifact, *TRAIN)
    begin = ["--load", folder / "weights", *(["--load-adapter", folder / "adapter"] if lora else [])]
    run("gacc-exec", artifact, "--data", f"npy:tokens={folder}/tokens.npy,limit=4", *begin, "--predict",
        folder / "y.npy", "--device", "cpu")
    (folder / "out").mkdir()
    data = f"npy:tokens={folder}/tokens.npy,next={folder}/next.npy"
    last = ["--save-adapter", folder / "out_adapter", "--merge"] if lora else []
    run("gacc-exec", artifact, "--data", data, *begin, "--no-shuffle", "--updates", UPDATES, "--log", log, "--device",
        "cpu",
        "--save", folder / "out/model.safetensors", "--save-as", "published", *last, timeout=1800)
    losses = [e["loss"] for e in harness.updates_of(log)]
    apart = max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True))
    first = far(python, folder / "y.npy", folder / "before.npy")
    loaded = ask(python, "merged" if lora else "saved", *words)
    after = far(python, folder / ("merged.npy" if lora else "saved.npy"), folder / "after.npy")
    print(f"{kind} {size}{' lora' if lora else ''}: logits {first:.1e}, losses of {UPDATES} updates {apart:.1e} (to "
          f"{losses[-1]:.4f}), logits after them, saved and loaded there {after:.1e}")
    expect(first <= 1e-4, f"logits are {first} apart")
    expect(apart <= 1e-5, f"losses {losses}, there {wanted}")
    expect(after <= 1e-4 and not any(loaded), f"saved: {after} apart, {loaded}")
    if lora:
        ask(python, "adapter", *words)
        after = far(python, folder / "adapter.npy", folder / "after.npy")
        print(f"  the adapter, loaded by peft: logits {after:.1e}")
        expect(after <= 1e-4, f"adapter: {after} apart")


def test_gpt2_small(folder):
    as_there(folder, "gpt2", "small")


def test_gpt2_wide(folder):
    as_there(folder, "gpt2", "wide")


def test_llama_small(folder):
    as_there(folder, "llama", "small")


def test_llama_wide(folder):
    as_there(folder, "llama", "wide")


def test_gpt2_lora(folder):
    as_there(folder, "gpt2", "small", dict(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True),
             '[lora]\nmatch = ["*.attn"]\nrank = 8\nalpha = 16\n')


def test_llama_lora(folder):
    """Returns the weights of all products but the head: q, k, v and the projection apart."""
    table = '[lora]\nmatch = ["layers.*"]\nrank = 8\nalpha = 16\non = ["q", "k", "v", "proj"]\n'
    as_there(folder, "llama", "small", dict(r=8, lora_alpha=16,
                                            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                                            "up_proj", "down_proj"]), table)


def test_llama_lora_of_queries_and_values(folder):
    as_there(folder, "llama", "small", dict(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"]),
             '[lora]\nmatch = ["*.attn"]\nrank = 4\nalpha = 16\non = ["q", "v"]\n')


harness.main(globals())
