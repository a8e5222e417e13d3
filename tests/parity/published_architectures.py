#!/usr/bin/env python3
"""Architectures through gacc.from_pretrained beside transformers, PyTorch and PEFT: random small shapes of each.

    venv/bin/python tests/parity/published_architectures.py [--shapes 4] [--first 0] [KIND ...]

For each shape: logits, ten updates of all weights and of adapters, packed documents against each alone, bf16, a run
that is stopped and goes on, merged weights in transformers, `--check`, and a greedy text of transformers by the saved
adapter. Needs torch, transformers, peft, and gaccc and gacc-exec in GACC_BIN.
"""
import argparse
import copy
import pathlib
import random
import sys
import tempfile
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import harness  # noqa: E402

harness.begin_package("torch", "transformers", "peft")
import gacc  # noqa: E402
import numpy as np  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

VOCABULARY, UPDATES, WINDOW, BATCH, RANK = 97, 10, 3, 2, 4
RATE = 0.01  # at 0.05 ten updates of Gemma 2 in f32 are 2e-3 from those in double, in PyTorch alone
BOUNDS = {"logits": 1e-5, "all weights": 1e-3, "adapters": 1e-3, "packed": 1e-5, "bf16": 3, "merged": 1e-5}
KINDS = {  # what the configuration of a class has besides, of a number of layers
    "Llama": lambda chance, layers: dict(rope_scaling=chance.choice((None, dict(rope_type="linear", factor=2.0)))),
    "Qwen3": lambda chance, layers: dict(),
    "Gemma2": lambda chance, layers: dict(sliding_window=chance.choice((4, 64)), attn_logit_softcapping=5.0),
    "Gemma3": lambda chance, layers: dict(sliding_window=4, layer_types=[
        chance.choice(("sliding_attention", "full_attention")) for _ in range(layers)]),
    "Olmo2": lambda chance, layers: dict(),
    # A model without any positions reads none of documents, either.
    "SmolLM3": lambda chance, layers: dict(no_rope_layers=[1, *(chance.randrange(2) for _ in range(layers - 1))]),
    "Granite": lambda chance, layers: dict(attention_multiplier=0.25, residual_multiplier=0.5, logits_scaling=2.0,
                                           embedding_multiplier=3.0),
    "Cohere2": lambda chance, layers: dict(sliding_window=8),
    "Glm4": lambda chance, layers: dict(partial_rotary_factor=0.5),
    "StableLm": lambda chance, layers: dict(partial_rotary_factor=0.5, use_qkv_bias=True),
    "Phi": lambda chance, layers: dict(partial_rotary_factor=0.5),
    "Starcoder2": lambda chance, layers: dict(sliding_window=None),
    # Heads with sinks, in mixtures of experts and without.
    "GptOss": lambda chance, layers: dict(sliding_window=4, num_local_experts=4, num_experts_per_tok=2, layer_types=[
        chance.choice(("sliding_attention", "full_attention")) for _ in range(layers)]),
    "GraniteSWA": lambda chance, layers: dict(sliding_window=4)}


def configuration(kind, chance):
    """A random small shape."""
    layers, kv_heads, channels = chance.choice((2, 3)), chance.choice((1, 2)), chance.choice((8, 16))
    heads = kv_heads * chance.choice((1, 2))
    sizes = dict(vocab_size=VOCABULARY, hidden_size=heads * channels, num_hidden_layers=layers,
                 num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=channels,
                 intermediate_size=chance.choice((48, 64)), max_position_embeddings=64, initializer_range=0.1,
                 tie_word_embeddings=chance.random() < 0.5, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                 attention_dropout=0.0, use_cache=False)
    name = "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config"
    return getattr(transformers, name)(**sizes | KINDS[kind](chance, layers))


def off(a, b):
    a, b = torch.as_tensor(np.asarray(a)).double(), torch.as_tensor(np.asarray(b)).double()
    return ((a - b).abs().max() / b.abs().max()).item()


def windows(chance, length):
    """Micro-batches of tokens and their next ones."""
    text = torch.tensor([chance.randrange(3, VOCABULARY) for _ in range(UPDATES * WINDOW * BATCH * (length + 1))])
    rows = text.view(UPDATES, WINDOW, BATCH, length + 1)
    return rows[..., :-1], rows[..., 1:]


def by_pytorch(net, tokens, following):
    """Ten updates of SGD with momentum, each over a window."""
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=RATE, momentum=0.9)
    for x, y in zip(tokens, following):
        optimizer.zero_grad()
        logits = net(x.flatten(0, 1)).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
        optimizer.step()


def trained(step, base, tokens, following):
    run = gacc.Session(step, device="cpu", threads=1)
    run.load(base)
    for x, y in zip(tokens, following):
        for one, other in zip(x, y):
            run.step(tokens=one, next=other)
        run.update()
    return run


def worst_move(after, before, wanted):
    """How far the weights are off at most, of how far the parameter that moves most has moved."""
    most = max(float((wanted[name] - before[name]).abs().max()) for name in wanted)
    return max(float((after[name] - wanted[name]).abs().max()) for name in wanted) / most


def check(kind, seed, folder):
    """Returns how far each part is off, by its name."""
    chance = random.Random(f"{kind} {seed}")
    torch.manual_seed(seed)
    config, length = configuration(kind, chance), chance.choice((8, 12, 17))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    base = folder / "base"
    model.save_pretrained(base)
    tokens, following = windows(chance, length)
    x = tokens[0, 0]
    how = dict(context=length, optimizer={"type": "sgd", "lr": RATE, "momentum": 0.9},
               train={"micro_batch": BATCH, "accumulate": WINDOW})
    said = {}

    step = gacc.from_pretrained(base, **how)
    run = gacc.Session(step, device="cpu", threads=1)
    run.load(base)
    with torch.no_grad():
        said["logits"] = off(run.predict(tokens=x), model(x).logits)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    net = copy.deepcopy(model)
    by_pytorch(net, tokens, following)
    after = trained(step, base, tokens, following).parameters()
    said["all weights"] = worst_move(after, before, {name: p.detach() for name, p in net.named_parameters()})

    packed = gacc.Session(gacc.from_pretrained(base, pack=True, **how), device="cpu", threads=1)
    packed.load(base)
    ends = [*sorted(chance.sample(range(1, length), 2)), length]
    parts = list(zip([0, *ends], ends))
    numbers = torch.zeros(BATCH, length, dtype=torch.int32)
    for number, (begin, end) in enumerate(parts):
        numbers[:, begin:end] = number
    with torch.no_grad():
        alone = torch.cat([model(x[:, begin:end]).logits for begin, end in parts], 1)
    said["packed"] = off(packed.predict(tokens=x, documents=numbers), alone)

    half = gacc.Session(gacc.from_pretrained(base, precision="bf16", **how), device="cpu", threads=1)
    half.load(base)
    logits, by_torch = model(x).logits.detach(), copy.deepcopy(model).bfloat16()(x).logits.detach().float()
    said["bf16"] = off(half.predict(tokens=x), logits) / off(by_torch, logits)  # of PyTorch's own distance from f32

    lora = gacc.from_pretrained(base, lora=RANK, **how)
    first = gacc.Session(lora, device="cpu", threads=1)
    first.load(base)
    first.save_adapter(folder / "first")
    tuned = peft.PeftModel.from_pretrained(copy.deepcopy(model), folder / "first", is_trainable=True)
    start = {name: p.detach().clone() for name, p in tuned.named_parameters() if p.requires_grad}
    by_pytorch(tuned, tokens, following)
    run = trained(lora, base, tokens, following)
    run.save_adapter(folder / "adapter")
    ours = peft.PeftModel.from_pretrained(copy.deepcopy(model), folder / "adapter").eval()
    wanted = {name: p.detach() for name, p in tuned.named_parameters() if p.requires_grad}
    said["adapters"] = worst_move({name: p.detach() for name, p in ours.named_parameters()}, start, wanted)
    run.merge(f"{folder}/merged/")
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32).eval()
    with torch.no_grad():
        said["merged"] = off(merged(x).logits, ours(x).logits)
        text = x[:1, :1]
        for _ in range(length - 1):  # the greedy text, token by token
            text = torch.cat([text, ours(text).logits[:, -1:].argmax(-1)], 1)
        logits = torch.as_tensor(run.predict(tokens=text.expand(BATCH, -1).contiguous()))[0]
    chosen = logits[:-1].gather(-1, text[0, 1:, None])[:, 0]
    said["greedy"] = float((logits[:-1].amax(-1) - chosen).max() > 1e-5 * logits.abs().max())
    said["resumed"] = resumed(lora, base, tokens, following, folder)
    return said


def resumed(step, base, tokens, following, folder):
    """1 where a run in two parts has other weights than one in one part, or --check finds something."""
    step.save(folder / "step.ptx")
    np.savez(folder / "data.npz", tokens=tokens.flatten(0, 2).int().numpy(), next=following.flatten(0, 2).int().numpy())

    def run(*words):
        harness.run("gacc-exec", folder / "step.ptx", "--data", f"npz:{folder / 'data.npz'}", "--device", "cpu",
                    "--quiet", *words)
    run("--load", base, "--updates", 6, "--check", 2, "--save", folder / "whole.safetensors")
    run("--load", base, "--updates", 3, "--checkpoint", folder / "half")
    run("--checkpoint", folder / "half", "--resume", "--updates", 6, "--save", folder / "parts.safetensors")
    return float((folder / "whole.safetensors").read_bytes() != (folder / "parts.safetensors").read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND")
    parser.add_argument("--shapes", type=int, default=4)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    wrong = []
    for kind in given.kinds:
        for seed in range(given.first, given.first + given.shapes):
            with tempfile.TemporaryDirectory(prefix="gacc-") as folder:
                said = check(kind, seed, pathlib.Path(folder))
            bad = [part for part, how in said.items() if not how <= BOUNDS.get(part, 0)]
            print(f"{kind} {seed}: " + ", ".join(f"{part} {how:.0e}" for part, how in said.items()), flush=True)
            wrong += [f"{kind} {seed}: {', '.join(bad)}"] * bool(bad)
    if wrong:
        sys.exit("wrong: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
