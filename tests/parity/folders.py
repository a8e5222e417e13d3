"""Folders of published models beside transformers: random small models of every family, as transformers writes them,
become model files, predict the same logits, train with the same losses, and go back as published weights.

    GACC_PEERS_PYTHON=venv/bin/python tests/parity/folders.py [--family llama] [--all] [--keep DIR]

Without --all as many cases of each family as have each value once. Where there is PEFT, its model with an adapter
that was trained here is compared, too. Needs a Python with transformers, and gaccc and gacc-exec in GACC_BIN. """
import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

BIN = pathlib.Path(os.environ.get("GACC_BIN", pathlib.Path(__file__).resolve().parents[2] / "build/bin"))
UPDATES, WINDOW, BATCH = 10, 24, 2
SMALL = dict(vocab_size=97, max_position_embeddings=64, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
             num_attention_heads=6, bos_token_id=0, eos_token_id=1, pad_token_id=2)
# Windows are longer than what scaled positions were first trained on.
ROPES = {"default": None, "linear": dict(factor=4.0),
         "llama3": dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
         "yarn": dict(factor=4.0, original_max_position_embeddings=16),
         "yarn mscale": dict(factor=4.0, original_max_position_embeddings=16, beta_fast=8.0, beta_slow=2.0, mscale=1.5,
                             mscale_all_dim=0.5, truncate=False),
         "longrope": dict(factor=4.0, original_max_position_embeddings=16),
         "longrope short": dict(factor=2.0, original_max_position_embeddings=32, attention_factor=1.25)}


def with_rope(kind, pairs):
    if ROPES[kind] is None:
        return {}
    rope = dict(rope_type=kind.split()[0], **ROPES[kind])
    if rope["rope_type"] == "longrope":
        rope |= dict(short_factor=[1.0 + 0.1 * i for i in range(pairs)],
                     long_factor=[2.0 + 0.5 * i for i in range(pairs)])
    return {"rope": rope}


def llama_like(extra=({},), ropes=ROPES):
    """Tied and untied, all counts of heads of keys, all scalings of positions, and what else the family may have."""
    for tied, heads, rope, more in itertools.product((False, True), (1, 3, 6), ropes, extra):
        yield SMALL | dict(tie_word_embeddings=tied,
                           num_key_value_heads=heads) | with_rope(rope, more.get("head_dim", 8) // 2) | more


def gpt2():
    for tied in (True, False):
        yield dict(vocab_size=97, n_positions=64, n_embd=48, n_layer=2, n_head=6, tie_word_embeddings=tied,
                   bos_token_id=0, eos_token_id=1,
                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def gpt_neox():
    for parallel, tied, part, bias, rope in itertools.product((True, False), (False, True), (0.25, 1.0), (True, False),
                                                              ("default", "linear", "llama3", "yarn")):
        heads = 3 if part < 1 else 6
        yield SMALL | dict(use_parallel_residual=parallel, tie_word_embeddings=tied, rotary_pct=part, hidden_act="gelu",
                           num_attention_heads=heads, **{} if bias
                           else {"attention_bias": False}) | with_rope(rope, round(48 // heads * part) // 2)


def phi3():
    for case in llama_like(({}, dict(sliding_window=9)), ("default", "longrope", "longrope short")):
        if "rope" in case:  # its class keeps them beside the others
            case["original_max_position_embeddings"] = case["rope"]["original_max_position_embeddings"]
        yield case


def drawn(make, count=12):
    """Random cases, the same ones each time."""
    def cases():
        for seed in range(count):
            yield SMALL | make(random.Random(seed).choice)
    return cases


def common(pick):
    layers, heads = pick((2, 3, 5)), pick((2, 6))
    return dict(vocab_size=301, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=pick((1, heads)),
                tie_word_embeddings=pick((False, True)), rms_norm_eps=pick((1e-6, 1e-2)),
                attention_bias=pick((False, True)))


def types(pick, layers):
    return [pick(("full_attention", "sliding_attention")) for _ in range(layers)]


def smollm3(pick):
    case = common(pick) | with_rope(pick(("default", "linear", "yarn")), 0) | dict(mlp_bias=pick((False, True)))
    if "rope" in case or pick((False, True)):
        case |= dict(no_rope_layer_interval=pick((2, 4)))
    else:
        case |= dict(no_rope_layers=[pick((0, 1)) for _ in range(case["num_hidden_layers"])])
    slides = pick((None, dict(sliding_window=7),
                   dict(sliding_window=5, layer_types=types(pick, case["num_hidden_layers"]))))
    return case if slides is None else case | dict(use_sliding_window=True) | slides


def olmo2(pick):
    return common(pick) | with_rope(pick(("default", "yarn", "llama3")), 0)


def granite(pick):
    return common(pick) | with_rope(pick(("default", "linear")), 0) | dict(
        mlp_bias=pick((False, True)), embedding_multiplier=pick((1.0, 6.0)), attention_multiplier=pick((0.1, 0.5)),
        residual_multiplier=pick((1.0, 0.22)), logits_scaling=pick((1.0, 4.0)))


def gemma(pick):
    case = common(pick) | dict(head_dim=pick((8, 16)), query_pre_attn_scalar=pick((8, 20)),
                               sliding_window=pick((5, 40)))
    return case | (dict(layer_types=types(pick, case["num_hidden_layers"])) if pick((False, True)) else {})


def gemma2(pick):
    return gemma(pick) | dict(attn_logit_softcapping=pick((None, 0.5, 50.0)),
                              final_logit_softcapping=pick((None, 2.0, 30.0)))


def gemma3(pick):
    case = gemma(pick) | dict(final_logit_softcapping=pick((None, 2.0)))
    full = {"rope_type": "default"} if pick((False, True)) else {"rope_type": "linear", "factor": 4.0}
    return case | dict(rope_parameters={
        "full_attention": full | {"rope_theta": pick((1e6, 1e3))},
        "sliding_attention": {"rope_type": "default", "rope_theta": pick((1e4, 50.0))}})


FAMILIES = {
    "gpt2": ("GPT2", gpt2),
    "gpt_neox": ("GPTNeoX", gpt_neox),
    "llama": ("Llama", lambda: llama_like(({}, dict(attention_bias=True, mlp_bias=True), dict(head_dim=12)))),
    "mistral": ("Mistral", lambda: llama_like((dict(sliding_window=None), dict(sliding_window=None, head_dim=16),
                                               dict(sliding_window=7)))),
    "qwen2": ("Qwen2", lambda: llama_like(({}, dict(use_sliding_window=True, sliding_window=5, max_window_layers=0)))),
    "qwen3": ("Qwen3", lambda: llama_like((dict(head_dim=8), dict(head_dim=16, attention_bias=True),
                                            dict(head_dim=8, use_sliding_window=True, sliding_window=11,
                                                 max_window_layers=0)))),
    "phi3": ("Phi3", phi3),
    "smollm3": ("SmolLM3", drawn(smollm3)),
    "olmo2": ("Olmo2", drawn(olmo2)),
    "granite": ("Granite", drawn(granite)),
    "gemma2": ("Gemma2", drawn(gemma2)),
    "gemma3_text": ("Gemma3", drawn(gemma3)),
}


def covering(cases):
    """Cases until each value of each key was there once; the last one first, which has most that is not usual."""
    seen = set()
    for case in [*cases[-1:], *cases]:
        values = {(key, json.dumps(value)) for key, value in case.items()}
        if not values <= seen:
            seen |= values
            yield case


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def classes_of(transformers, name):
    """The family's configuration and model; None where this transformers has none."""
    head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    config = "TextConfig" if name == "Gemma3" else "Config"
    return getattr(transformers, name + config, None), getattr(transformers, name + head, None)


def config_of(transformers, config_class, sizes):
    """The case's configuration as this transformers spells it; None where it does not know all of it, as it would
    skip that in silence."""
    sizes, usual = dict(sizes), config_class()
    rope = sizes.pop("rope", None)
    if usual.model_type == "gemma3_text":
        pass  # it has positions of both types of layers
    elif hasattr(usual, "rope_parameters"):  # since 5
        if "rotary_pct" in sizes:
            rope = dict(rope or {"rope_type": "default"}, partial_rotary_factor=sizes.pop("rotary_pct"))
        if rope is not None:
            sizes["rope_parameters"] = dict(rope, rope_theta=10000.0)
    elif rope is not None:
        sizes["rope_scaling"] = rope
        if usual.model_type == "phi3":  # its class takes no other keys
            sizes["rope_scaling"] = dict(type=rope["rope_type"], short_factor=rope["short_factor"],
                                         long_factor=rope["long_factor"])
        elif not importlib.util.find_spec(
            "transformers.modeling_rope_utils"):  # these know one scaling, and name it otherwise
            if rope["rope_type"] != "linear" or not hasattr(usual, "rope_scaling"):
                return None
            sizes["rope_scaling"] = dict(type="linear", factor=rope["factor"])
    if not all(hasattr(usual, key) for key in sizes if key != "rope_scaling"):
        return None
    return config_class(**sizes, attn_implementation="eager")


def losses_of(torch, model, tokens, following):
    """AdamW on the mean over each window of two micro-batches, as the model file says."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.01)
    found = []
    for update in range(UPDATES):
        rows = slice(update * 2 * BATCH, (update + 1) * 2 * BATCH)
        logits = model(torch.from_numpy(tokens[rows]).long()).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1),
                                                 torch.from_numpy(following[rows]).long().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def plain(path):
    """The lines of a model file without their comments."""
    return [line.split("   # ")[0] for line in path.read_text().splitlines()]


def check_spelling(folder, family):
    """transformers 4 writes rope_theta and rope_scaling where 5 has rope_parameters: the model is the same."""
    config = json.loads((folder / "base/config.json").read_text())
    rope = config.pop("rope_parameters", None)
    if rope is None:
        return
    if family == "gemma3_text":
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    theta, part = rope.pop("rope_theta", None), rope.pop("partial_rotary_factor", None)
    config["rotary_emb_base" if family == "gpt_neox" else "rope_theta"] = theta
    if part is not None:
        config["rotary_pct" if family == "gpt_neox" else "partial_rotary_factor"] = part
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype", "float32")
    (folder / "old").mkdir()
    (folder / "old/config.json").write_text(json.dumps(config))
    run(BIN / "gaccc", folder / "old", "--context", WINDOW, "--emit", "toml", "--set", "model.name=base", "-o",
        folder / "old.toml")
    if plain(folder / "old.toml") != plain(folder / "model.toml"):
        raise RuntimeError("rope_theta and rope_scaling are read as another model")


def check_words(peer, tuned, folder, step, prompt):
    """Going on with a text token by token is transformers' greedy one."""
    numpy, torch, _ = peer
    count = WINDOW - len(prompt)
    said = run(BIN / "gacc-exec", step, "--device", "cpu", "--load", folder / "tuned", "--generate", count, "--prompt",
               " ".join(map(str, prompt)), "--temperature", 0).split()
    row = list(map(int, prompt))
    with torch.no_grad():
        for _ in range(count):
            row.append(int(tuned(torch.tensor([row])).logits[0, -1].argmax()))
    if [int(word) for word in said][-count:] != row[len(prompt):]:
        raise RuntimeError(f"it goes on with {said}, transformers with {row}")


def check_adapter(peer, model, folder, data, tokens):
    """Adapters of all products of the blocks, trained here: PEFT's model has the same logits. Returns the deviation."""
    numpy, torch, _ = peer
    import peft
    step = folder / "lora.ptx"
    run(BIN / "gaccc", folder / "base", "--context", WINDOW, "--lora", 3, "-o", step, "--set",
        f"train.micro_batch={BATCH}", "--set", "train.accumulate=2",
        "--set", "optimizer.lr=1e-2", "--set", "schedule.warmup=0")
    run(BIN / "gacc-exec", step, "--device", "cpu", "--quiet", "--data", data, "--load", folder / "base", "--updates",
        5,
        "--save-adapter", folder / "adapter", "--save", folder / "own.safetensors")
    run(BIN / "gacc-exec", step, "--device", "cpu", "--quiet", "--data", data, "--load", folder / "base",
        "--load-adapter", folder / "adapter",
        "--predict", folder / "adapted.npy")
    adapted = peft.PeftModel.from_pretrained(model, folder / "adapter")
    with torch.no_grad():
        wanted = adapted(torch.from_numpy(tokens).long()).logits.numpy()
    got = numpy.load(folder / "adapted.npy").reshape(wanted.shape)
    return float(abs(got - wanted).max() / abs(wanted).max())


def check(peer, family, sizes, folder, adapter):
    """The largest deviations of a case, by name; what is wrong with it is raised."""
    numpy, torch, transformers = peer
    torch.manual_seed(1)
    config_class, model_class = classes_of(transformers, FAMILIES[family][0])
    model = model_class(config_of(transformers, config_class, sizes)).float().eval()
    with torch.no_grad():  # weights with which every part of the model matters
        for parameter in model.parameters():
            parameter.mul_(3) if parameter.dim() > 1 else parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder / "base")
    rng = numpy.random.default_rng(3)
    ids = rng.integers(2, sizes["vocab_size"], (UPDATES * 2 * BATCH, WINDOW + 1)).astype("<i4")
    tokens, following = numpy.ascontiguousarray(ids[:, :-1]), numpy.ascontiguousarray(ids[:, 1:])
    numpy.save(folder / "tokens.npy", tokens)
    numpy.save(folder / "next.npy", following)
    data = f"npy:tokens={folder}/tokens.npy,next={folder}/next.npy"
    step = folder / "step.ptx"
    settings = {"train.micro_batch": BATCH, "train.accumulate": 2, "train.shuffle": "false", "train.epochs": 1,
                "train.clip_norm": 1e9,
                "optimizer.lr": 1e-3, "optimizer.betas": [0.9, 0.95], "optimizer.eps": 1e-6,
                "optimizer.weight_decay": 0.01,
                "optimizer.decay": "all", "schedule.min_lr": 1e-3, "schedule.warmup": 0}
    options = itertools.chain.from_iterable(("--set", f"{k}={v}") for k, v in settings.items())
    run(BIN / "gaccc", folder / "base", "--context", WINDOW, "-o", step, *options)
    run(BIN / "gaccc", folder / "base", "--context", WINDOW, "--emit", "toml", "-o", folder / "model.toml")
    check_spelling(folder, family)
    execute = [BIN / "gacc-exec", step, "--device", "cpu", "--quiet", "--data", data]
    run(*execute, "--load", folder / "base", "--predict", folder / "logits.npy")
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens).long()).logits.numpy()
    got = numpy.load(folder / "logits.npy").reshape(wanted.shape)
    found = {"logits": float(abs(got - wanted).max() / abs(wanted).max())}
    run(*execute, "--load", folder / "base", "--log", folder / "log.jsonl", "--save", folder / "tuned.safetensors",
        "--save-as", "published")
    events = [json.loads(line) for line in open(folder / "log.jsonl")]
    ours = [event["loss"] for event in events if event["event"] == "update"]
    theirs = losses_of(torch, model, tokens, following)
    if len(ours) != len(theirs):
        raise RuntimeError(f"{len(ours)} updates, not {len(theirs)}")
    found["losses"] = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
    (folder / "tuned").mkdir()
    (folder / "tuned/config.json").write_bytes((folder / "base/config.json").read_bytes())
    (folder / "tuned.safetensors").rename(folder / "tuned/model.safetensors")
    tuned, told = type(model).from_pretrained(folder / "tuned", output_loading_info=True)
    if told["missing_keys"] or told["unexpected_keys"] or told["mismatched_keys"]:
        raise RuntimeError(f"published weights: {told}")
    trained, moved = model.state_dict(), tuned.float().state_dict()
    found["weights"] = max(float((moved[name] - x).norm() / x.norm().clamp(min=1e-3)) for name, x in trained.items())
    if sizes["vocab_size"] > 256:  # else a prompt is text
        check_words(peer, tuned.float().eval(), folder, step, tokens[0, :5])
    if adapter:
        found["adapter"] = check_adapter(peer,
                                         type(model).from_pretrained(folder / "base",
                                                                     attn_implementation="eager").float().eval(),
                                                                     folder, data, tokens)
    return found


def peers():
    """Returns numpy, PyTorch and transformers. Runs this script again under a Python that has them."""
    try:
        import numpy
        import torch
        import transformers
    except ImportError:
        python = os.environ.get("GACC_PEERS_PYTHON")
        if python and os.path.realpath(python) != os.path.realpath(sys.executable):
            os.execv(python, [python, *sys.argv])
        print("SKIPPED: no Python with transformers here (GACC_PEERS_PYTHON)", file=sys.stderr)
        sys.exit(77)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # models this small are slower on more
    return numpy, torch, transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--most", type=int, help="so many cases of each family")
    parser.add_argument("--keep", metavar="DIR", help="leave the files of cases that fail here")
    given = parser.parse_args()
    numpy, torch, transformers = peers()
    has_peft = importlib.util.find_spec("peft") is not None
    failed = count = 0
    for family, (name, cases) in FAMILIES.items():
        if given.family not in (None, family):
            continue
        config_class, model_class = classes_of(transformers, name)
        if config_class is None or model_class is None:
            print(f"{family}: transformers {transformers.__version__} has no such model")
            continue
        every = list(cases())
        unknown = [case for case in every if config_of(transformers, config_class, case) is None]
        if unknown:
            print(f"{family}: transformers {transformers.__version__} does not know {len(unknown)} of {len(every)} "
                  f"cases")
            every = [case for case in every if case not in unknown]
        chosen = every if given.all else list(covering(every))
        for number, sizes in enumerate(chosen[:given.most]):
            with tempfile.TemporaryDirectory(dir=given.keep) as folder:
                count += 1
                shown = {k: v for k, v in sizes.items() if SMALL.get(k, ...) != v}
                try:
                    found = check((numpy, torch, transformers), family, sizes, pathlib.Path(folder),
                                  adapter=number == 0 and has_peft)
                    wrong = {k: v for k, v in found.items() if not v <= 1e-5}
                    print(f"{family} {shown}: "
                          f"{', '.join(f'{k} {v:.1e}' for k, v in found.items())}{' WRONG' if wrong else ''}",
                          flush=True)
                    failed += bool(wrong)
                except RuntimeError as error:
                    print(f"{family} {shown}: {error}", flush=True)
                    failed += 1
    print(f"{failed} of {count} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
