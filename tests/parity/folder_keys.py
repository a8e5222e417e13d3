"""Every key of a published folder's config.json, changed and left out, beside transformers with the same weights: the
same logits, or an error that says why. Anything else is silent, and wrong.

    GACC_PEERS_PYTHON=venv/bin/python tests/parity/folder_keys.py [--family gemma2] [--cases 2]

Needs a Python with transformers, and gaccc and gacc-exec in GACC_BIN. """
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import folders

# What says who wrote the file.
NOT_OF_THE_MODEL = {"architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "_name_or_path"}
WORDS = {"hidden_act": ("gelu", "relu"), "hidden_activation": ("silu", "relu"), "rope_type": ("linear", "default")}
BOUND = 1e-4


def changes(name, value):
    """Other values of the type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value + 2]
    if isinstance(value, float):
        return [value * 1.5 + 0.01, value / 3]
    if isinstance(value, str):
        return [word for word in WORDS.get(name, ("other",)) if word != value]
    if isinstance(value, list):
        return [value[::-1], value[:-1]]
    return [True, 3, 0.5] if value is None else []


def variants(config, path=()):
    """Paths of keys, and configurations in which one of them is left out or has another value."""
    for key, value in config.items():
        if not path and key in NOT_OF_THE_MODEL:
            continue
        name = ".".join((*path, key))
        yield f"{name} left out", {k: v for k, v in config.items() if k != key}
        for other in [*changes(key, value), *([None] if value is not None else [])]:
            yield f"{name} = {json.dumps(other)}", {**config, key: other}
        if isinstance(value, dict):
            for inner, made in variants(value, (*path, key)):
                yield inner, {**config, key: made}


def theirs(peer, model_class, folder, tokens):
    """transformers' logits, or nothing where it refuses the folder or draws weights that the file lacks."""
    _, torch, _ = peer
    try:
        model, told = model_class.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
        if any(told[kind] for kind in ("missing_keys", "mismatched_keys", "unexpected_keys")):
            return None
        with torch.no_grad():
            return model.float().eval()(torch.from_numpy(tokens).long()).logits.numpy()
    except Exception:
        return None


def ours(numpy, folder, data, shape):
    """gacc's logits, or what it says against the folder."""
    step, out = folder / "step.ptx", folder / "logits.npy"
    for command in ([folders.BIN / "gaccc", folder, "--context", folders.WINDOW, "-o", step, "--set",
                     f"train.micro_batch={folders.BATCH}"],
                    [folders.BIN / "gacc-exec", step, "--device", "cpu", "--quiet", "--data", data, "--load", folder,
                     "--predict", out]):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            return next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
    return numpy.load(out).reshape(shape)


def check(peer, family, sizes, folder, counts):
    """Returns what is silent."""
    numpy, torch, transformers = peer
    torch.manual_seed(1)
    config_class, model_class = folders.classes_of(transformers, folders.FAMILIES[family][0])
    model = model_class(folders.config_of(transformers, config_class, sizes)).float().eval()
    with torch.no_grad():  # weights with which every part of the model matters
        for parameter in model.parameters():
            parameter.mul_(3) if parameter.dim() > 1 else parameter.add_(0.2 * torch.randn_like(parameter))
    base = folder / "base"
    model.save_pretrained(base)
    tokens = numpy.random.default_rng(3).integers(3, 90, (folders.BATCH, folders.WINDOW)).astype("<i4")
    numpy.save(folder / "tokens.npy", tokens)
    data = f"npy:tokens={folder}/tokens.npy,next={folder}/tokens.npy"
    wanted = theirs(peer, model_class, base, tokens)
    usual = ours(numpy, base, data, wanted.shape)
    if isinstance(usual, str) or abs(usual - wanted).max() > BOUND * abs(wanted).max():
        return [f"the folder as it is: {usual if isinstance(usual, str) else 'other logits'}"]
    silent = []
    for number, (what, config) in enumerate(variants(json.loads((base / "config.json").read_text()))):
        changed = folder / str(number)
        changed.mkdir()
        (changed / "config.json").write_text(json.dumps(config))
        (changed / "model.safetensors").symlink_to(base / "model.safetensors")
        expected, found = theirs(peer, model_class, changed, tokens), ours(numpy, changed, data, wanted.shape)
        if isinstance(found, str):
            same = expected is not None and abs(expected - wanted).max() <= BOUND * abs(wanted).max()
            counts["refused, the same function in transformers" if same else "refused"] += 1
        elif expected is None:
            counts["taken, and refused by transformers"] += 1
        elif abs(found - expected).max() <= BOUND * abs(expected).max():
            counts["the same logits"] += 1
        else:
            silent.append(f"{what}: {abs(found - expected).max() / abs(expected).max():.1e} off")
    counts["silent"] += len(silent)
    return silent


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", choices=folders.FAMILIES, action="append")
    parser.add_argument("--cases", type=int, default=2, help="so many of each family, the last ones (2)")
    given = parser.parse_args()
    numpy, torch, transformers = peer = folders.peers()
    wrong = False
    for family in given.family or folders.FAMILIES:
        counts = collections.Counter()
        for sizes in list(folders.FAMILIES[family][1]())[-given.cases:]:
            with tempfile.TemporaryDirectory() as folder:
                for line in check(peer, family, sizes, pathlib.Path(folder), counts):
                    wrong = True
                    print(f"{family} {sizes}: {line}", flush=True)
        print(f"{family}: {', '.join(f'{count} {what}' for what, count in counts.items())}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
