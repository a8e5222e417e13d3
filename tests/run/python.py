"""The Python package: it trains to gacc-exec's bits, takes arrays of all kinds, and says what is wrong and where."""
import copy
import inspect
import json
import os
import subprocess
import sys
import tomllib
import warnings

import harness
from harness import expect, raises, run

PACKAGE, FAST = harness.ROOT / "python", ["--device", "cpu", "--threads", 1]
harness.begin_package("numpy")
import gacc  # noqa: E402
import numpy as np  # noqa: E402
from gacc import _arguments  # noqa: E402

MODEL = {
    "model": {"name": "small", "metrics": ["accuracy"], "seed": 3},
    "inputs": {"x": {"shape": [2, 3], "dtype": "f32"}, "label": {"dtype": "i32", "range": 3}},
    "layers": [{"type": "flatten", "name": "flat"}, {"type": "linear", "name": "fc", "features": 3}],
    "loss": {"type": "cross_entropy", "target": "label"},
    "train": {"micro_batch": 4, "accumulate": 2, "shuffle": False},
    "optimizer": {"type": "adam", "lr": 0.01},
}


def data(samples, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (samples, 2, 3), np.uint8), rng.integers(0, 3, samples, np.int64)


def stored(folder, **arrays):
    """Writes arrays; gives the data that gacc-exec reads them by."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return "npy:" + ",".join(f"{name}={folder}/{name}.npy" for name in arrays)


def session(step=None, **options):
    return gacc.Session(step or gacc.compile(MODEL), "cpu", threads=1, **options)


def same(some, others):
    return sorted(some) == sorted(others) and all(np.array_equal(some[n].view(np.uint32), others[n].view(np.uint32))
                                                  for n in some)


def test_the_bits_of_gacc_exec(folder):
    """train() on batches of any size, whatever becomes of the rest of an epoch, and a loop of one's own."""
    x, label = data(17)
    spec = stored(folder, x=x, label=label)
    for tail in ("flush", "drop", "carry"):
        step = gacc.compile(MODEL, set={"train.tail": tail})
        step.save(folder / "step.ptx")
        run("gacc-exec", folder / "step.ptx", "--data", spec, "--epochs", 3, *FAST, "--seed", 7, "--save", folder / "w")
        wanted = gacc._arrays.read_safetensors(folder / "w")
        for size in (4, 8):
            batches = [(x[i:i + size], label[i:i + size]) for i in range(0, 17, size)]
            windows = []
            trained = gacc.train(gacc.open(folder / "step.ptx"), batches, epochs=3, seed=7, device="cpu", threads=1,
                                 on_update=lambda _, window: windows.append(window))
            expect(same(trained.parameters(), wanted), f"{tail}, batches of {size}: the weights differ")
            expect([w.samples for w in windows[:3]] == {"flush": [8, 8, 1], "drop": [8, 8, 8],
                                                        "carry": [8, 8, 5]}[tail], str(windows))
    run("gacc-exec", folder / "step.ptx", "--data", spec, "--load", folder / "w", "--predict", folder / "p.npy", *FAST)
    other = session(step)
    other.load(folder / "w")
    expect(np.array_equal(other.predict(x=x), np.load(folder / "p.npy")), "the predictions differ")


def test_evaluations_and_the_best_are_those_of_gacc_exec(folder):
    """The same evaluations, the same best parameters and the same end, for a loss and for a metric."""
    x, label = data(28)
    ex, elabel = data(18, 5)
    (folder / "eval").mkdir()
    step = gacc.compile(MODEL, set={"optimizer.lr": 0.3, "schedule.type": "plateau", "schedule.patience": 1})
    step.save(folder / "step.ptx")
    line = [folder / "step.ptx", "--data", stored(folder, x=x, label=label), "--eval",
            stored(folder / "eval", x=ex, label=elabel),
            *FAST, "--save-best", folder / "best", "--log", folder / "log", "--quiet"]
    batches, others = [(x[i:i + 4], label[i:i + 4]) for i in range(0, 28, 4)], {"x": ex, "label": elabel}
    for best, patience, every, limit in (("loss", 3, None, {}), ("accuracy", 4, 3, {}),
                                         ("loss", None, 3, {"updates": 7}), ("loss", 2, 2, {"updates": 9})):
        more = [word for option, value in (("--best", best), ("--patience", patience), ("--eval-every", every),
                                           ("--updates", limit.get("updates"))) if value
                for word in (option, value)]
        run("gacc-exec", *line, *more, *([] if limit else ["--epochs", 30]))
        wanted = [event for event in harness.read_log(folder / "log") if event["event"] == "eval"]
        updates = [event for event in harness.read_log(folder / "log") if event["event"] == "update"]
        found, windows = [], []
        run_ = gacc.train(step, batches, epochs=30, device="cpu", threads=1, evaluate=others, eval_every=every,
                          patience=patience, best=best,
                          save_best=folder / "ours", on_eval=lambda _, e: found.append((e.loss, e.metrics["accuracy"])),
                          on_update=lambda _, w: windows.append(w), **limit)
        distinct = {event["updates"]: (event["loss"], event["accuracy"])
                    for event in wanted}  # an epoch's end repeats what eval_every has measured
        expect(np.allclose(found, list(distinct.values()), rtol=1e-6), f"{found}\n{distinct}")
        expect([w.lr for w in windows] == [event["lr"] for event in updates]
               or np.allclose([w.lr for w in windows], [event["lr"] for event in updates]), "the rates")
        expect(same(gacc._arrays.read_safetensors(folder / "ours"), gacc._arrays.read_safetensors(folder / "best")),
               "another best")
        run_.close()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gacc.train(step, batches, epochs=1, device="cpu")
    expect(any("plateau" in str(each.message) and each.filename == __file__ for each in said), f"{said}")


def test_a_loop_writes_checkpoints_and_lines(folder):
    """After each epoch, at the end and on Ctrl-C; and it says what goes on, where it is asked to."""
    x, label = data(16)
    x = x.astype(np.float32) / 255  # of uint8 there is a warning
    batches = [(x[i:i + 4], label[i:i + 4]) for i in range(0, 16, 4)]
    step = gacc.compile(MODEL)
    code = f"""
import sys; sys.path.insert(0, {str(PACKAGE)!r})
import gacc, numpy as np
x, label = np.load({str(folder / "x.npy")!r}), np.load({str(folder / "label.npy")!r})
batches = [(x[i:i + 4], label[i:i + 4]) for i in range(0, 16, 4)]
gacc.train(gacc.open({str(folder / "step.ptx")!r}), batches, epochs=2, device="cpu", threads=1, evaluate={{"x": x, "label": label}}, patience=5, progress=True)
"""
    stored(folder, x=x, label=label)
    step.save(folder / "step.ptx")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    lines = done.stdout.splitlines()
    expect(done.returncode == 0 and not done.stderr and len(lines) == 4, done.stderr + done.stdout)
    expect(lines[0].startswith("epoch 1: 2 updates, 16 samples in ") and lines[0].endswith(" in the last update"),
           lines[0])
    expect(lines[1].startswith("eval, epoch 1, update 2: loss ") and ", 16 samples, accuracy " in lines[1]
           and lines[1].endswith(" (the best)"), lines[1])

    def interrupt(run_, window):
        if window.launches and run_.launches == 0 and len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(window)

    seen = []
    straight = gacc.train(step, batches, epochs=2, device="cpu", threads=1)
    raises(KeyboardInterrupt)(lambda: gacc.train(step, batches, epochs=2, device="cpu", threads=1,
                                                 checkpoint=folder / "run", on_update=interrupt))
    other = session(step)
    other.resume(folder / "run")
    expect(same(other.parameters(), straight.parameters()), "the state after the fourth update")
    gacc.train(step, batches, epochs=1, device="cpu", threads=1, checkpoint=folder / "run")
    other.resume(folder / "run")
    expect(same(other.parameters(), gacc.train(step, batches, epochs=1, device="cpu", threads=1).parameters()),
           "at the end")
    train = lambda **options: gacc.train(step, batches, device="cpu", **options)  # noqa: E731
    for option in ("patience", "eval_every"):
        raises(ValueError, f"{option} needs evaluate")(lambda: train(**{option: 3}))
        raises(ValueError, f"{option} is 0")(lambda: train(evaluate=batches, **{option: 0}))
    raises(gacc.Error,
           'acuracy: the model has no such metric; did you mean "accuracy"?')(
               lambda: train(evaluate=batches, best="acuracy"))


def test_folders_and_adapters_are_those_of_gacc_exec(folder):
    config = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=32, hidden_size=16,
                  intermediate_size=24, num_hidden_layers=1,
                  num_attention_heads=2, num_key_value_heads=2, hidden_act="silu", rms_norm_eps=1e-5,
                  max_position_embeddings=16, tie_word_embeddings=False)
    base = folder / "base"
    base.mkdir()
    (base / "config.json").write_text(json.dumps(config))
    (base / "tokenizer.json").write_text("{}")
    plain = gacc.compile(base, context=8)
    first = session(plain)
    raises(gacc.Error, "load the folder of the published model")(lambda: first.save(f"{folder}/none/"))
    first.save(base / "model.safetensors", published=True)
    step = gacc.compile(base, context=8, lora=2, set={"optimizer.lr": 0.05, "schedule.warmup": 0,
                                                      "train.accumulate": 1})
    step.save(folder / "step.ptx")
    run_ = session(step, updates=1)
    run_.load(base)
    raises(gacc.Error, "the model has adapters")(lambda: run_.save(f"{folder}/none/"))
    raises(gacc.Error, "expected f32, bf16 or f16")(lambda: run_.save(folder / "none", type="f64"))
    tokens = np.arange(8, dtype=np.int32)[None]
    run_.step(tokens=tokens, next=tokens + 1)
    run_.update()
    run_.save(folder / "w")
    raises(gacc.Error, "no pt files are written, but .safetensors:",
           "w.safetensors (PyTorch reads it")(lambda: run_.save(folder / "w.pt"))
    raises(gacc.Error,
           "no npz files are written, but .safetensors, .gguf:")(lambda: run_.save_adapter(folder / "w.npz"))
    run_.save_adapter(folder / "adapter")
    expect(told(lambda: run_.merge(f"{folder}/merged/", type="bf16")) == [], "a folder is meant")
    expect(told(lambda: run_.merge(folder / "m.safetensors")) == told(lambda: first.save(folder / "v")) == [], "a file")
    said = told(lambda: run_.merge(folder / "m"))
    expect(said == [f"{folder}/m is a file with the weights alone; '{folder}/m/' makes the whole folder of a published "
                    "model"], said)
    start = ["gacc-exec", folder / "step.ptx", "--init-only", *FAST]
    run(*start, "--load", folder / "w", "--save-adapter", folder / "theirs")
    run(*start, "--load", base, "--load-adapter", folder / "adapter", "--merge", "--save", f"{folder}/merged2/",
        "--save-type", "bf16")
    expect((folder / "adapter/adapter_model.safetensors").read_bytes() == (
        folder / "theirs/adapter_model.safetensors").read_bytes(), "another adapter")
    expect(json.loads((folder / "adapter/adapter_config.json").read_text())["base_model_name_or_path"] == str(
        base.resolve()), "its base")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        expect((folder / "merged" / name).read_bytes() == (folder / "merged2" / name).read_bytes(), f"another {name}")
    other = session(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        other.load(folder / "adapter")
        expect(len(caught) == 1 and "load their base first" in str(caught[0].message)
               and caught[0].filename == __file__, caught)
        other.load(base)
        other.load(folder / "adapter")
        expect(len(caught) == 1, "a base that was loaded")
    expect(same(other.parameters(), run_.parameters()), "the adapter that was loaded")
    expect(not (folder / "none").exists(), "something was written")


def test_launches_are_made_twice(folder):
    """With the same bits; and a bit that flips in the second run of the first launch is an error."""
    batches, step = [data(32)], gacc.compile(MODEL)
    trained = lambda **more: gacc.train(step, batches, epochs=1, device="cpu", threads=1, **more).parameters()
    expect(same(trained(), trained(recheck=1)), "other weights with recheck")
    step.save(folder / "step.ptx")
    os.environ["GACC_TEST_FLIP"] = f"2:0:{harness.ArtifactIr(folder / 'step.ptx').place('fc.weight')}:1"
    try:
        raises(gacc.Error, "launch 1: fc.weight[0, 0]", "only reads")(lambda: trained(recheck=1))
    finally:
        del os.environ["GACC_TEST_FLIP"]


def test_a_loader_may_fill_one_buffer(folder):
    """Whatever the tail: no array is kept beyond the batch that it came in."""
    x, label = data(32)
    for tail in ("flush", "drop", "carry"):
        step = gacc.compile(MODEL, set={"train.tail": tail, "train.accumulate": 4})

        class Refilled:
            def __iter__(self):
                buffers = np.empty((4, 2, 3), np.uint8), np.empty(4, np.int64)
                for i in range(0, 32, 4):
                    buffers[0][:], buffers[1][:] = x[i:i + 4], label[i:i + 4]
                    yield buffers

        batches = [(x[i:i + 4], label[i:i + 4]) for i in range(0, 32, 4)]
        trained = [gacc.train(step, loader, epochs=2, device="cpu", threads=1) for loader in (Refilled(), batches)]
        expect(same(*(one.parameters() for one in trained)), f"{tail}: one buffer gives other weights")


def test_drop_leaves_a_short_batch_out_at_the_end_alone(folder):
    step = gacc.compile(MODEL, set={"train.tail": "drop"})
    x, label = data(18)
    raises(gacc.Error, "batches of a multiple of 4 samples")(
        lambda: gacc.train(step, [(x[:6], label[:6]), (x[6:], label[6:])], epochs=1, device="cpu"))


def test_drop_counts_the_ordinals_of_samples_that_it_leaves_out(folder):
    """So dropout draws what it draws in gacc-exec."""
    x, label = data(19)
    model = dict(MODEL, layers=[MODEL["layers"][0], {"type": "dropout", "p": 0.5}, MODEL["layers"][1]])
    step = gacc.compile(model, set={"train.tail": "drop"})
    step.save(folder / "step.ptx")
    run("gacc-exec", folder / "step.ptx", "--data", stored(folder, x=x, label=label), "--epochs", 3, *FAST, "--save",
        folder / "w")
    trained = gacc.train(step, [(x, label)], epochs=3, device="cpu", threads=1)
    expect(same(trained.parameters(), gacc._arrays.read_safetensors(folder / "w")), "the weights differ")


def test_predictions_in_parts(folder):
    """The logits of one sample have no room at once."""
    tokens = np.random.default_rng(5).integers(0, 1009, (3, 8), np.int32)
    step = gacc.compile({
        "model": {"name": "wide"},
        "inputs": {"tokens": {"shape": [8], "dtype": "i32"}, "next": {"shape": [8], "dtype": "i32", "range": 1009}},
        "layers": [{"type": "embedding", "name": "wte", "vocab": 1009, "features": 16},
                   {"type": "rms_norm", "name": "norm"},
                   {"type": "linear", "name": "head", "features": 1009}],
        "loss": {"type": "cross_entropy", "target": "next", "chunks": 4},
        "train": {"micro_batch": 1},
        "optimizer": {"type": "sgd", "lr": 0.1},
        "recompute": {"policy": "all"},
    })
    step.save(folder / "step.ptx")
    expect(b"//ir   answer(" in (folder / "step.ptx").read_bytes() and step.output_shape == (8, 1009), "parts")
    run("gacc-exec", folder / "step.ptx", "--init-only", "--seed", 3, "--save", folder / "w", *FAST)
    run("gacc-exec", folder / "step.ptx", "--data", stored(folder, tokens=tokens), "--load", folder / "w", "--predict",
        folder / "p.npy",
        *FAST)
    other = session(step)
    other.load(folder / "w")
    expect(np.array_equal(other.predict(tokens=tokens), np.load(folder / "p.npy")), "the predictions differ")


def test_a_published_model_s_folder_compiles(folder):
    """With the plan of gaccc for the same options; and gacc.train takes arrays of a whole set."""
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=64, hidden_size=16, intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, hidden_act="silu", rms_norm_eps=1e-5,
        max_position_embeddings=32)))
    settings = {"train.accumulate": 2}
    step = gacc.compile(folder, lora=4, context=8, memory="1GiB", set=settings)
    said = json.loads(run("gaccc", folder, "--lora", 4, "--context", 8, "--memory", "1GiB", "--set",
                          "train.accumulate=2", "--plan", "--json").stdout)
    expect(dict(step.plan)["bytes"] == said["bytes"] and step.plan["trained"] == said["trained"], str(step.plan))
    expect(step.inputs["tokens"].shape == (8,), str(step.inputs))
    expect(gacc.compile(folder / "config.json", lora=4, context=8, memory="1GiB",
                        set=settings).plan["bytes"] == said["bytes"], "config.json")
    ids = np.random.default_rng(1).integers(0, 64, (6, 9), np.int32)
    windows = []
    gacc.train(step, {"tokens": ids[:, :8], "next": ids[:, 1:]}, epochs=1, device="cpu", threads=1, on_update=lambda _,
               w: windows.append(w.samples))
    expect(windows == [2, 2, 2], str(windows))
    raises(gacc.Error, "32 positions")(lambda: gacc.compile(folder, context=64))
    raises(gacc.Error, "context goes with a published model")(lambda: gacc.compile(MODEL, context=64))
    raises(ValueError, "lora is a whole number")(lambda: gacc.compile(folder, lora=0))
    empty = folder / "empty"
    empty.mkdir()
    raises(gacc.Error, "no config.json")(lambda: gacc.compile(empty))
    adapted = gacc.compile(MODEL, lora=2)
    expect(adapted.plan["trained"]["parameters"] < gacc.compile(MODEL).plan["trained"]["parameters"],
           "a model's own layers get adapters, too")


def test_a_loop_of_ones_own(folder):
    step = gacc.compile(MODEL)
    expect((step.micro_batch, step.accumulate, step.seed, step.output_shape) == (4, 2, 3, (3,)), repr(step))
    expect(step.inputs["x"] == ("x", "f32", (2, 3)), str(step.inputs))
    x, label = data(8)
    with session(step) as run_, session(step, seed=3) as other:
        run_.step({"x": x[:4]}, label=label[:4])
        expect(run_.launches == 1, "one launch")
        run_.step(x=x[4:], label=label[4:])
        window = run_.update()
        expect((window.launches, window.samples, window.applied, window.skipped) == (2, 8, True, False), str(window))
        expect(window.loss > 0 and window.grad_norm > 0 and abs(window.lr - 0.01) < 1e-8, str(window))
        gacc.train(step, [{"label": label, "x": x}], epochs=1, session=other)
        expect(same(run_.parameters(), other.parameters()), "the model's seed is 3")


def test_arrays_of_all_kinds(folder):
    x, label = data(4)

    class Interface:
        def __init__(self, array):
            self.array, self.__array_interface__ = array, array.__array_interface__

    class Shared:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    real = (x / np.float32(255)).astype(np.float32)
    padded = np.zeros((4, 2, 6), np.float32)
    padded[:, :, ::2] = real
    kinds = [x, real, real.astype(np.float64), real.astype(">f4"), np.asfortranarray(real), padded[:, :, ::2],
             real.reshape(4, 6),
             real.reshape(4, 1, 2, 3), real.tolist(), Interface(real), Shared(real)]
    labels = [label, label.astype(np.int32), label.astype(np.uint32), label.astype(np.uint64), label.astype(">i2"),
              label.tolist(), label[:, None]]
    step, first = gacc.compile(MODEL), None
    for i in range(len(kinds)):
        with session(step) as run_:
            run_.step(x=kinds[i], label=labels[i % len(labels)])
            run_.update()
            first = first or run_.parameters()
            expect(same(run_.parameters(), first), f"array {i} gives other bits")
    for it in (real, Interface(real), Shared(real)):
        expect(np.shares_memory(gacc._arrays.to_numpy(it), real), f"{type(it).__name__} was copied")
    expect(gacc._arrays.to_numpy(np.array([True, False])).dtype == np.int8, "bool")
    expect(gacc._arrays.to_numpy(np.ones(2, np.float16)).dtype == np.float32, "f16")


def test_what_is_not_what_it_shows(folder):
    """Masked numbers are none; columns go by name; lazy tensors are what their library prints."""
    to_numpy = gacc._arrays.to_numpy
    raises(ValueError, "masked")(lambda: to_numpy(np.ma.masked_array([1.0, 2.0], [False, True])))
    expect(to_numpy(np.ma.masked_array([1.0, 2.0])).tolist() == [1, 2], "nothing is masked")

    class Lazy:  # as torch's tensors: memory, and what is to be done with it
        def __init__(self, values, lazy):
            self.values, self.lazy = np.array(values), lazy

        def resolve_conj(self):
            return self

        def resolve_neg(self):
            return Lazy(-self.values, False) if self.lazy else self

        def __array__(self, *_, **__):
            return self.values

    expect(to_numpy(Lazy([1.0, -2.0], True)).tolist() == [-1, 2], "the sign is lost")

    class Table:  # as pandas' frames
        def __init__(self, columns):
            self.named, self.columns, self.shape = columns, list(columns), (4, len(columns))

        def __getitem__(self, names):
            return Table({name: self.named[name] for name in names})

        def __array__(self, *_, **__):
            return np.array([*self.named.values()]).T

    columns = {name: np.arange(4.0) * 3 + i for i, name in enumerate("abcdef")}
    turned = {name: columns[name] for name in "fbacde"}
    with session() as run_:
        first = run_.predict(x=Table(columns))
        expect(np.array_equal(run_.predict(x=Table(turned)), first), "columns go by their place")
        raises(ValueError, "the first table had a, b, c")(lambda: run_.predict(x=Table({**columns, "g": columns["a"]})))
        run_.save(folder / "w.safetensors")
    with session() as run_:
        run_.load(folder / "w.safetensors")
        expect(np.array_equal(run_.predict(x=Table(turned)), first), "columns go by their place in another session")
        run_.save(folder / "w.safetensors")
    with session() as run_:
        run_.load(folder / "w.safetensors")
        raises(ValueError, "the columns are g, ",
               "the first table had a, b, c")(
                   lambda: run_.predict(x=Table({"g" if k == "a" else k: v for k, v in columns.items()})))


TABLE = {
    "model": {"name": "table", "metrics": ["accuracy"]},
    "inputs": {"x": {"shape": [3]}, "y": {"shape": [1]}},
    "layers": [{"type": "linear", "name": "out", "features": 1, "bias": False}],
    "loss": {"type": "bce_with_logits", "target": "y"},
    "train": {"micro_batch": 16},
    "optimizer": {"type": "adam", "lr": 0.1},
}


def test_columns_hold_numbers_of_any_kind(_):
    """As pandas has them: by columns where the frame as a whole is of objects."""
    class NAType:
        pass

    class Frame:
        def __init__(self, **columns):
            self.kept, self.columns = columns, list(columns)

        def __len__(self):
            return 2

        def __getitem__(self, name):
            return self.kept[name]

        def __array__(self, *_, **__):
            return np.array([np.asarray(column, object) for column in self.kept.values()]).T
    with session(gacc.compile(TABLE)) as run_:
        run_.load({"out.weight": np.array([[1, 10, 100]], np.float32)})
        whole, truths, gap = np.array([1, 2], object), np.array([True, False]), np.array([1, NAType()], object)
        got = run_.predict(x=Frame(a=np.array([1.5, 2]), b=whole, c=truths))
        expect(got.ravel().tolist() == [111.5, 22.0], f"{got}")
        raises(ValueError, "'x'", "'b'", "no value in row 1")(lambda: run_.predict(x=Frame(a=whole, b=gap, c=truths)))
        raises(ValueError, "'b'", "no value in row 0")(
            lambda: run_.predict(x=Frame(a=whole, b=np.array([np.nan, 1]), c=truths)))
        raises(TypeError, "'b'", "text", "'red' in row 0", "inputs.NAME.columns")(
            lambda: run_.predict(x=Frame(a=whole, b=np.array(["red", "blue"]), c=truths)))


def told(function):
    """What it warns of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        function()
    expect(all(each.filename == __file__ for each in said), f"{[each.filename for each in said]}")
    return [str(each.message) for each in said]


def test_bytes_are_divided_by_255_aloud(_):
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    t = x[:, :1] > 0
    step = gacc.compile(TABLE)
    with session(step) as run_:  # targets of 0 and 1
        said = told(lambda: gacc.train(step, [(x, t.astype(np.uint8))] * 20, session=run_))
        expect(not any("255" in each for each in said), f"{said}")
        expect(run_.evaluate(x=x, y=t.astype(np.uint8)).metrics["accuracy"] > 0.9, "targets are not 0 and 1")
        raises(ValueError, "'y'", "up to 255", "float32")(lambda: run_.evaluate(x=x, y=t * np.uint8(255)))
    with session(step) as run_:  # those of images, which are bytes
        run_.evaluate(x=x, y=t * np.uint8(255))
        expect(run_.evaluate(x=x, y=t * np.uint8(255)).loss == run_.evaluate(x=x, y=t).loss, "bytes are not divided")
    small, large = (np.full((2, 3), n, np.uint8) for n in (7, 200))
    with session(step) as run_:
        expect(["float32 for other numbers" in said for said in told(lambda: run_.predict(x=small))] == [True],
               "a table")
        expect(told(lambda: run_.predict(x=small)) == [], "it is said twice")
        expect(["up to 7" in said for said in told(lambda: run_.predict(x=small.astype(int)))] == [True],
               "other numbers")
    with session(step) as run_:
        run_.predict(x=large.astype(np.float32))
        expect(["before is not" in said for said in told(lambda: run_.predict(x=large))] == [True],
               "bytes after numbers")


def test_a_table_of_settings_is_merged(_):
    step = gacc.compile(MODEL, set={"train": {"micro_batch": 3}, "inputs": {"x": {"shape": [6]}},
                                    "layers": {"fc": {"bias": False}}, "model.seed": 4})
    expect((step.micro_batch, step.accumulate, step.seed) == (3, 2, 4), f"{step}, {step.seed}")
    expect(step.inputs["x"].shape == (6,) and step.plan["parameters"] == 18,
           f"{step.inputs}, {step.plan['parameters']}")


def test_errors_name_the_caller_s_sample(folder):
    run_ = session()
    x, label = np.zeros((7, 2, 3), np.float32), np.zeros(7, np.int64)
    x[5, 1, 2] = np.nan
    wrong = label.copy()
    wrong[6] = 9
    for what in (lambda: run_.predict(x=x), lambda: run_.evaluate(x=x, label=label),
                 lambda: gacc.train(run_.compiled, [{"x": x, "label": label}], session=run_)):
        raises(gacc.Error, "sample 5")(what)
    raises(gacc.Error, "sample 6")(lambda: run_.evaluate(x=np.zeros_like(x), label=wrong))
    raises(ValueError, "no samples")(lambda: gacc.train(run_.compiled, [{}]))
    run_.evaluate(x=np.zeros((4, 2, 3)), label=np.zeros(4))  # whole numbers, as pandas has them
    raises(gacc.Error, "no whole number")(lambda: run_.evaluate(x=np.zeros((4, 2, 3)), label=np.full(4, .5)))


def test_errors_say_what_and_where(folder):
    model = folder / "m.toml"
    text = gacc._toml.document(MODEL)
    model.write_text(text.replace('"flatten"', '"flaten"'))
    line = 1 + model.read_text()[:model.read_text().index("flaten")].count("\n")
    for given, file in ((model, str(model)), (model.read_text(), "model")):
        error = raises(gacc.Error, f"{file}:{line}:", 'did you mean "flatten"?')(lambda: gacc.compile(given))
        expect((error.kind, error.file, error.line) == ("failed", file, line),
               f"{error.kind} {error.file} {error.line}")
    raises(gacc.Error, "/nonesuch.ptx")(lambda: gacc.open("/nonesuch.ptx"))
    raises(TypeError, "`model.name` is ", "of the type object")(lambda: gacc.compile({"model": {"name": object()}}))
    raises(gacc.Error, "needs at least 3.")(lambda: gacc.compile(MODEL, memory="1KiB"))
    run_ = session()
    x, label = data(4)
    raises(ValueError, "no input 'y' (it has x, label)")(lambda: run_.step(y=x, label=label))
    raises(ValueError, "'x' is [2, 3] a sample",
           "[4, 3, 2] was given")(lambda: run_.step(x=x.transpose(0, 2, 1), label=label))
    raises(ValueError, "has 3 samples, and another one 4")(lambda: run_.step(x=x, label=label[:3]))
    raises(TypeError, "'x'", "complex64")(lambda: run_.step(x=x.astype(np.complex64), label=label))
    raises(gacc.Error, 'no array for the input "label"')(lambda: run_.step(x=x))
    raises(gacc.Error,
           "1 to 4 samples, 8 were given")(lambda: run_.step(x=np.tile(x, (2, 1, 1)), label=np.tile(label, 2)))
    raises(gacc.Error, "the window has no launch")(run_.update)
    raises(ValueError, "fc.bias, fc.weight missing", "the model has no a")(lambda: run_.load({"a": x}))
    raises(TypeError, "by their names, and 1 is none")(lambda: run_.load({1: 2}))
    raises(TypeError,
           "fc.weight: there is no type object")(lambda: run_.load(dict(run_.parameters(), **{"fc.weight": None})))
    raises(ValueError, "fc.weight holds nan")(lambda: run_.load(dict(run_.parameters(),
                                                                     **{"fc.weight": np.full((3, 6), np.nan)})))
    train = lambda loader: gacc.train(run_.compiled, loader, epochs=2, session=run_)  # noqa: E731
    raises(ValueError, "a batch has 1 arrays, and the model 2 inputs")(lambda: train([[x]]))
    raises(ValueError, "a batch has no label")(lambda: train([{"x": x}]))
    raises(ValueError,
           "no batch in epoch 2; a generator can be gone through once")(lambda: train((x, label) for _ in range(2)))
    # An evaluation that ends by an error leaves nothing to the next one.
    raises(gacc.Error, "label")(lambda: run_.evaluate_over([(x, label), (x, label + 7)]))
    # Micro-batches are of 4 samples, and the sample is named by its number in the array.
    wrong = np.array([0, 1, 2, 0, 1, 9, 0])
    raises(gacc.Error, "element 0 of sample 5")(lambda: run_.evaluate(x=data(7)[0], label=wrong))
    raises(gacc.Error, "of sample 6")(lambda: run_.predict(x=np.where(np.arange(7)[:, None, None] == 6, np.nan,
                                                                      np.zeros((7, 2, 3), np.float32))))
    expect(run_.evaluate(x=x, label=label).samples == 4, "the evaluation began anew")
    run_.close()
    raises(gacc.Error, "the session is closed")(lambda: run_.step(x=x, label=label))


def test_state(folder):
    run_, other = session(seed=1), session(seed=2)
    x, label = data(8)
    run_.step(x=x[:4], label=label[:4])
    run_.checkpoint(folder / "run")
    other.resume(folder / "run")
    for each in (run_, other):
        each.step(x=x[4:], label=label[4:])
        each.update()
    expect(same(run_.parameters(), other.parameters()), "the window went on with other bits")
    before = run_.parameters()
    changed = {name: array + 1 for name, array in before.items()}
    run_.load(changed)
    expect(same(run_.parameters(), changed), "the parameters that were given")
    run_.load({**{name: array.astype(np.float64) for name, array in changed.items()},
               "bn.num_batches_tracked": np.int64(3)})
    expect(same(run_.parameters(), changed), "a state_dict with a batch norm's count")
    run_.save(folder / "w")
    other.load(folder / "w")
    expect(same(other.parameters(), changed), "the parameters of the file")
    result = other.evaluate(x=np.tile(x, (3, 1, 1)), label=np.tile(label, 3))
    expect(result.samples == 24 and 0 <= result.metrics["accuracy"] <= 1, str(result))


def test_attributes_are_not_set(_):
    run_ = session(seed=1)
    for of, name, value, words in ((run_, "lr", 0.1, 'set={"optimizer.lr": 0.1}'),
                                   (run_, "seed", 5, "Session(step, seed=5)"),
                                   (run_, "compiled", None, "compile another one"),
                                   (run_.compiled, "micro_batch", 9, 'set={"train.micro_batch": 9}'),
                                   (run_.compiled, "plan", {}, 'set={"optimizer.lr": 1e-3}'),
                                   (gacc.Window(1, 1, True, False, 1.0, 1.0, 1.0), "lr", 0.1, "set")):
        raises(AttributeError, words)(lambda: setattr(of, name, value))


def test_what_the_compiler_warns_of_is_a_warning(folder):
    model = harness.classifier("relu", [7], 5, '[[layers]]\ntype = "linear"\nfeatures = 5\nactivation = "relu"\n')
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gacc.compile(model)
    expect(len(said) == 1 and "relu" in str(said[0].message) and said[0].filename == __file__,
           [str(w.message) for w in said])


def test_a_dict_is_the_file(folder):
    """Every example, read as a dict, has the plan of its file; and no text or number is changed on the way."""
    for path in sorted(harness.EXAMPLES.glob("*.toml")):
        model = tomllib.loads(path.read_text())
        expect(tomllib.loads(gacc._toml.document(model)) == model, f"{path.name} is another model as text")
    example = harness.EXAMPLES / "mnist_mlp.toml"
    expect(gacc.compile(example).plan == gacc.compile(tomllib.loads(example.read_text())).plan, "another plan")
    odd = {"a b": 'quote " \\ \n\t\x01\x7f é', "f": [1e-300, 0.1, float("inf"), 1e22], "n": [-(2**63), True, []],
           "t": {"k": [{"x": {}}, {"y.z": 1}]}}
    expect(tomllib.loads(gacc._toml.document(odd)) == odd, gacc._toml.document(odd))
    expect(gacc._toml.value([np.float32(0.5), np.int64(3), np.array([1, 2])], "a") == "[0.5, 3, [1, 2]]",
           "numbers of numpy's")


def test_ctrl_c(folder):
    """The call under way ends, then KeyboardInterrupt comes, and the session is as it was between two calls."""
    script = folder / "loop.py"
    script.write_text(f"""
import sys
sys.path.insert(0, {str(PACKAGE)!r})
import gacc, numpy as np
run = gacc.Session(gacc.compile({MODEL!r}), "cpu", threads=1)
x, label = np.zeros((4, 2, 3), np.uint8), np.zeros(4, np.int32)
try:
    print("ready", flush=True)
    while True:
        run.step(x=x, label=label)
        if run.launches == 2: run.update()
except KeyboardInterrupt:
    while run.launches < 2: run.step(x=x, label=label)
    print(run.update().samples)
""")
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    expect(process.stdout.readline() == "ready\n", "it does not begin")
    process.send_signal(2)
    expect(process.communicate(timeout=60)[0] == "8\n" and process.returncode == 0, "it did not end as it should")


def test_the_plan_shows_itself(folder):
    step = gacc.compile(MODEL)
    shown = step._repr_html_()
    expect("iframe" in shown and "&lt;svg" in shown and f"{step.plan['bytes']['peak']:,} bytes" in shown, shown)
    step.save(folder / "step.ptx")
    expect("<table>" in gacc.open(folder / "step.ptx")._repr_html_(), "without its model it is a table")


def test_examples(folder):
    ran = []
    for name, needs, says in (("dataloader", "torch", "epoch 30: loss"), ("frame", "pandas", "R² 0.9")):
        if subprocess.run([sys.executable, "-c", f"import {needs}"], capture_output=True).returncode == 0:
            done = subprocess.run([sys.executable, PACKAGE / f"examples/{name}.py", "cpu"], cwd=folder,
                                  capture_output=True, text=True,
                                  env=dict(os.environ, PYTHONPATH=str(PACKAGE)))
            expect(done.returncode == 0 and says in done.stdout, f"{name}: {done.stdout}{done.stderr}")
            ran.append(name)
    if not ran:
        harness.skip("neither torch nor pandas is here")


def test_what_hardly_was_meant_is_a_warning(folder):
    """Nothing is trained, a rate of 0, large features, adapters beside weights that nobody loaded: once each."""
    step, (x, y) = gacc.compile(MODEL), data(8)
    small, large = np.ones((8, 2, 3), np.float32), np.full((8, 2, 3), -2e4, np.float32)
    train = lambda step, x, **options: told(  # noqa: E731
        lambda: gacc.train(step, [(x, y)] * 3, device="cpu", threads=1, **options))
    expect(train(step, small, epochs=2) == [], "nothing is wrong")
    expect(train(step, small, epochs=0) == ["epochs is 0: nothing is trained"], "no epoch")
    expect(train(step, small, updates=0) == ["updates is 0: nothing is trained"], "no update")
    still = gacc.compile(MODEL, set={"optimizer.lr": 0})
    expect(train(still, small) == ["the learning rate is 0: the parameters stay as they are"], "no rate")
    still.save(folder / "still.ptx")
    expect(len(train(gacc.open(folder / "still.ptx"), small)) == 1, "of an artifact")
    expect(train(step, large) == ["the input 'x' reaches 2e+04, and is not normalised: give (x - mean) / std, or let "
                                  "`inputs.x.normalize` of the model have a mean and a std"], "large features")
    means = {"mean": [0.0, 0.0], "std": [1e4, 1e4]}
    expect(train(gacc.compile(MODEL, set={"inputs.x.normalize": means}), large) == [], "they are normalised")
    go = session(step)
    expect(len(told(lambda: [gacc.train(session=go, loader=[(large, y)]) for _ in range(2)])) == 1, "once a session")
    adapted = gacc.compile(MODEL, set={"lora.match": ["*"], "lora.rank": 2, "lora.alpha": 2})
    said = "the model has adapters, and without `load` they are trained on weights drawn at random"
    expect(train(adapted, small) == [said], "adapters on random weights")
    go = session(adapted)
    go.load(go.parameters())
    expect(told(lambda: gacc.train(session=go, loader=[(small, y)])) == [], "they were loaded")


class Numbered:
    """A data set as PyTorch has them: samples by their numbers."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays[0])

    def __getitem__(self, number):
        return tuple(array[number] for array in self.arrays)


def test_batches_smaller_than_a_micro_batch_are_told(_):
    """Where the first two are; a short last one is none. A data set is no loader."""
    x, y = np.ones((12, 2, 3), np.float32), np.arange(12) % 3
    step = gacc.compile(MODEL)
    cut = lambda *ends: [(x[a:b], y[a:b]) for a, b in zip((0, *ends), ends)]  # noqa: E731
    train = lambda loader, **more: told(lambda: gacc.train(  # noqa: E731
        step, loader, epochs=2, device="cpu", threads=1, **more))
    said = ("batches have 2 samples, and micro_batch is 4: an update sees 4, and not 8; give batches of 4, or compile "
            "with train.micro_batch = 2")
    expect(train(cut(2, 4, 6, 8)) == [said], "small ones")
    for loader in cut(4, 8, 10), cut(4, 6), cut(2), cut(3, 7, 9), cut(9, 10), Numbered(x.reshape(3, 4, 2, 3),
                                                                                       y.reshape(3, 4)):
        expect(train(loader) == [], f"{len(loader)}: {train(loader)}")
    for call in (lambda: gacc.train(step, Numbered(x, y), device="cpu"),
                 lambda: gacc.train(step, [(x, y)], evaluate=Numbered(x, y), device="cpu"),
                 lambda: session(step).evaluate_over(Numbered(x, y))):
        raises(ValueError, "it is a Numbered, of which torch.utils.data.DataLoader(dataset, batch_size=32)")(call)


def test_an_artifact_has_a_name_of_its_own(folder):
    raises(gacc.Error, "is a folder, and no artifact: gacc.compile")(lambda: gacc.open(folder))
    step = gacc.compile(MODEL)
    for name in "a.onnx", "a.PT", "a.safetensors", "a.toml", "a.bin":
        raises(gacc.Error, f"no {name[2:].lower()} files are written, but .ptx: {folder}/a.ptx")(
            lambda: step.save(folder / name))
    expect(not list(folder.iterdir()), "a refused artifact was written")
    for name in "a", "a.ptx", "a.step", "v1.2":
        step.save(folder / name)
    raises(gacc.Error, "a.ptx: is an artifact already; gacc.open(path) reads it")(
        lambda: gacc.compile(folder / "a.ptx"))


def test_types_and_values_of_a_dict(_):
    """A type of numpy's is one of ours, and what no model can hold is named by its key."""
    def of(dtype):
        return gacc.compile(MODEL | {"inputs": MODEL["inputs"] | {"x": {"shape": [2, 3], "dtype": dtype}}})
    for dtype in np.float32, np.dtype("f4"):
        expect(of(dtype).inputs["x"].dtype == "f32", f"{dtype}")
    for dtype in float, np.float64, np.dtype("f8"):
        raises(TypeError, "`inputs.x.dtype` is ", 'called by name here, as "f32" and "i32"')(lambda: of(dtype))
    raises(TypeError, "`inputs.x.dtype` is None", "leave the key out")(lambda: of(None))
    raises(TypeError, "`layers[0].name` is ", "of the type object")(
        lambda: gacc.compile(MODEL | {"layers": [{"name": object()}]}))
    raises(TypeError, "`train.micro_batch` is ", "of the type object")(
        lambda: gacc.compile(MODEL, set={"train": {"micro_batch": object()}}))


def test_calls_of_another_kind_say_what_is_right(folder):
    """Arrays by place, a path for a step, arrays for a loader, negative numbers; bytes are a budget."""
    step = gacc.compile(MODEL)
    run, (x, y) = session(step), data(8)
    for call in (lambda: run.predict(x), lambda: run.evaluate(x, y), lambda: run.step(x[:4], y[:4]),
                 lambda: run.evaluate({"x": x}, y)):
        raises(TypeError, "by the names of the model's inputs: x=..., label=...")(call)
    for call in (lambda: gacc.train("model.toml", [(x, y)]), lambda: gacc.Session("step.ptx")):
        raises(TypeError, "gacc.compile(model) or gacc.open(artifact)")(call)
    for loader in (x, y), [x, y], x:
        for given in dict(loader=loader), dict(loader=[(x, y)], evaluate=loader):
            raises(TypeError, "[(x, y)] is a loader of one batch")(lambda: gacc.train(step, **given, device="cpu"))
    other = gacc.compile(MODEL, set={"train.micro_batch": 2})
    raises(ValueError,
           "the session has a step of its own, <gacc.Step small: 4 x 2")(
               lambda: gacc.train(other, [(x, y)], session=run))
    gacc.train(step, [(x, y)], epochs=1, session=run)
    train = lambda **options: gacc.train(step, [(x, y)], epochs=1, device="cpu",
                                         on_update=lambda *_: expect(False, "it trains"), **options)  # noqa: E731
    raises(ValueError,
           "evaluate is an iterator, which can be gone through once")(
               lambda: train(evaluate=(each for each in [(x, y)])))
    for wrong, says in ([], "a batch has no samples"), ({}, "a batch has no samples"), (
        [{"x": x}], "a batch has no label"), ([{"x": x, "y": y}],
                                              "the model has no input 'y'"), (
                                                  [(x[:, :1], y)], "the input 'x' is [2, 3]"):
        raises(ValueError, f"evaluate: {says}")(lambda: train(evaluate=wrong))
    for path, says in (f"{folder}/w.pt", "no pt files are written"), (f"{folder}/a/w",
                                                                      f"{folder}/a: No such file"), ("", "names no file"), (f"{folder}/", "has config.json"):
        raises((gacc.Error, ValueError), "save_best", says)(lambda: train(evaluate=[(x, y)], save_best=path))
    raises(FileExistsError, "python.py")(lambda: train(checkpoint=__file__))
    raises(OverflowError, "seed is 18446744073709551616")(lambda: train(seed=2**64))
    raises(ValueError, "there is no batch to evaluate")(lambda: run.evaluate_over([]))
    expect(run.evaluate_over({"x": x, "label": y}) == run.evaluate(x=x, label=y) == run.evaluate_over([(x, y)]),
           "a mapping is a batch")
    raises(TypeError, "train() takes no eval; did you mean evaluate?")(lambda: train(eval=[(x, y)]))
    raises(TypeError, "train() takes no zzz")(lambda: train(zzz=1))
    raises(TypeError, "train() takes no loss but with a module")(lambda: train(loss="mse"))
    raises(ValueError, "epochs is -1")(lambda: gacc.train(step, [(x, y)], epochs=-1, device="cpu"))
    for wrong, says in ((dict(epochs=1.5), "train(): epochs is 1.5, and takes a whole number or None"),
                        (dict(loader=None), "loader is None, and takes an iterable or a dict"),
                        (dict(loader="set.npz"), "loader is 'set.npz', and"),
                        (dict(device=0), "device is 0, and takes a str"), (dict(best=None), "best is None"),
                        (dict(module=3), "module is 3, and takes a torch.nn.Module"),
                        (dict(on_update="print"), "on_update is 'print', and takes a function or None"),
                        (dict(seed="1"), "seed is '1', and takes"), (dict(checkpoint=1), "checkpoint is 1")):
        raises(TypeError, says)(lambda: gacc.train(**{"step": step, "loader": [(x, y)], "device": "cpu", **wrong}))
    for call, says in ((lambda: gacc.compile(7), "model is 7, and takes a str, a path or a dict"),
                       (lambda: gacc.compile(MODEL, memory=1.5), "compile(): memory is 1.5"),
                       (lambda: gacc.Session(step, threads="2"), "Session(): threads is '2', and takes a whole number"),
                       (lambda: run.save("w", type=None), "Session.save(): type is None"),
                       (lambda: run.load(None), "a path is a str or an os.PathLike, not None"),
                       (lambda: gacc.open(3), "not 3"), (lambda: run.evaluate_over(None), "loader is None"),
                       (lambda: run.generate(5), "prompt is 5, and takes a str, a Sequence or None"),
                       (lambda: gacc.train(loader=[(x, y)]), "step is None, and takes a Step"),
                       *((lambda each=each: copy.copy(each), "neither copied nor pickled") for each in (step, run)),
                       (lambda: gacc.train(step, [None], device="cpu"), "input (x, label), not None")):
        raises(TypeError, says)(call)
    session(step, seed=np.int64(1), updates=np.int32(4))
    gacc.train(step, [(x, y)], epochs=np.int64(1), device="cpu")
    expect(gacc.compile(MODEL, memory=10**6).plan["bytes"]["peak"] <= 10**6, "a budget in bytes")
    raises(gacc.Error, 'must be a size such as "512MiB"')(lambda: gacc.compile(MODEL, set={"memory.budget": 10**6}))


def test_words_of_others_lead_to_those_of_here(_):
    """An argument that another package has is answered with gacc's, or with where it is said."""
    step, (x, y) = gacc.compile(MODEL), data(8)
    one = session(step)
    key = lambda text: f"gacc.compile(model, set={{{text}}}) has it"  # noqa: E731
    for call, words in (
            (lambda **given: gacc.train(step, [(x, y)], **given), (
                ("max_steps", 9, "did you mean updates?"), ("steps", 9, "did you mean updates?"),
                ("num_epochs", 9, "did you mean epochs?"), ("num_train_epochs", 9, "did you mean epochs?"),
                ("eval_dataset", [], "did you mean evaluate?"), ("val_loader", [], "did you mean evaluate?"),
                ("train_dataset", [], "did you mean loader?"), ("callbacks", [], "did you mean on_update?"),
                ("learning_rate", 0.1, key('"optimizer.lr": 0.1')), ("batch_size", 8, key('"train.micro_batch": 8')),
                ("gradient_accumulation_steps", 8, key('"train.accumulate": 8')),
                ("max_grad_norm", 1.0, key('"train.clip_norm": 1.0')),
                ("clip_grad", 1.0, key('"train.clip_norm": 1.0')),
                ("weight_decay", 0.1, key('"optimizer.weight_decay": 0.1')),
                ("scheduler", "cosine", key('"schedule.type": "cosine"')),
                ("warmup_steps", 5, key('"schedule.warmup": 5')), ("fp16", True, key('"precision.compute": "f16"')),
                ("bf16", True, key('"precision.compute": "bf16"')), ("lora", 8, "gacc.compile(lora=...) has it"),
                ("max_new_tokens", 8, "run.generate(tokens=...) has it"))),
            (lambda **given: gacc.Session(step, **given), (
                ("max_steps", 9, "did you mean updates?"), ("epochs", 9, "gacc.train(epochs=...) has it"),
                ("evaluate", [], "gacc.train(evaluate=...) has it"), ("lr", 0.1, key('"optimizer.lr": 0.1')))),
            (lambda **given: gacc.compile(MODEL, **given), (
                ("batch_size", 8, 'did you mean set={"train.micro_batch": 8}?'),
                ("optimizer", "adam", 'did you mean set={"optimizer.type": "adam"}?'),
                ("device", "cpu", "gacc.train(device=...) has it"))),
            (lambda **given: gacc.from_torch(None, {}, loss="mse", **given), (
                ("learning_rate", 0.1, 'did you mean optimizer={"type": "adamw", "lr": 0.1}?'),
                ("batch_size", 8, 'did you mean train={"micro_batch": 8}?'),
                ("lr_scheduler", "cosine", 'did you mean schedule={"type": "cosine"}?'),
                ("fp16", True, 'did you mean precision={"compute": "f16"}?'))),
            (lambda **given: gacc.from_pretrained("tl", **given), (
                ("max_length", 8, "did you mean context?"), ("peft_config", 8, "did you mean lora?"))),
            (lambda **given: one.generate("x", **given), (("max_new_tokens", 8, "did you mean tokens?"),)),
            (lambda **given: one.load("x", **given), (("strict", False, "Session.load() takes no strict"),))):
        for word, value, answer in words:
            raises(TypeError, f"takes no {word}", answer)(lambda: call(**{word: value}))
    raises(AttributeError, "no attribute 'load': gacc.open(path) reads an artifact")(lambda: gacc.load)
    raises(AttributeError, "no attribute 'Trainer': gacc.train(step, loader) trains")(lambda: gacc.Trainer)
    for of, name, answer in (
            (one, "state_dict", "parameters() gives"), (one, "fit", "gacc.train(loader=loader, session=run)"),
            (step, "generate", "gacc.Session(step).generate(...)"), (step, "train", "gacc.train(step, loader)"),
            (step, "state_dict", "it is a session's, gacc.Session(step): parameters()"), (one, "zzz", "'zzz'"),
            (step, "batch_size", "micro_batch")):
        raises(AttributeError, f"object has no attribute '{name}'", answer)(lambda: getattr(of, name))
    expect(not {*gacc.Session._elsewhere} & {*dir(one)}, f"a session has some of {[*gacc.Session._elsewhere]}")
    raises(TypeError, "type is <class 'numpy.float16'>, and takes a str; that is \"f16\"")(
        lambda: one.save("w", type=np.float16))
    raises(TypeError, "x=..., label=...; evaluate_over(loader)")(lambda: one.predict([(x, y)]))
    raises(ValueError, "[2, 3] was given: one sample alone is x[None]")(lambda: one.predict(x=x[0]))
    schema = run("gaccc", "--schema", "--json").stdout
    have = {name for each in _arguments.PUBLIC for name in inspect.signature(each).parameters}
    for here in _arguments.CALLED:
        key = here.rpartition(".")[2]
        expect(here in have or key == "type" or ("." in here and f'"key": "{key}"' in schema), f"there is no {here}")


def test_a_step_that_is_trained_again_begins_anew_aloud(_):
    """Where the last run is still there, and the call is the same."""
    step, (x, y) = gacc.compile(MODEL), data(8)
    x = x.astype(np.float32) / 255
    loader, runs = [(x, y)], []
    train = lambda **given: told(lambda: runs.append(gacc.train(**{  # noqa: E731
        "step": step, "loader": loader, "epochs": 1, "device": "cpu", "threads": 1, **given})))
    expect(train() == [], "the first")
    expect(train() == ["the step was trained on this loader before, and now begins anew as then: session=run goes on "
                       "from where that run ended"], "the second")
    expect(train(session=runs[-1]) == train(seed=7) == train(epochs=2) == train(loader=[(x, y)]) == [], "another run")
    runs.clear()
    expect(train() == [], "the first one is gone")


def test_targets_that_are_the_tokens(_):
    """Are refused as gacc-exec refuses them; the next tokens, few of them and one token alone are not."""
    step = gacc.compile(harness.example("shakespeare_gpt"), set={"train.micro_batch": 1, "train.accumulate": 1})
    length = step.inputs["bytes"].shape[0]
    text = np.random.default_rng(0).integers(0, 60, (1, length + 1))
    tokens, after = text[:, :-1], text[:, 1:]
    said = (f'the inputs "bytes" and "next" are the same in {length} of {length} places: the model sees each target',
            "bytes = tokens[:, :-1], next = tokens[:, 1:]")
    raises(gacc.Error, *said)(lambda: gacc.train(step, [(tokens, tokens)], epochs=1, device="cpu"))
    raises(gacc.Error, *said)(lambda: session(step, updates=1).step(bytes=tokens, next=tokens))
    session(step, updates=1).step(bytes=tokens, next=after)
    session(step, updates=1).step(bytes=tokens * 0, next=tokens * 0)


def rates_of(step, loader, **options):
    """The rates of a training, and what was warned of."""
    rates = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = gacc.train(step, loader, on_update=lambda run, window: rates.append(round(window.lr, 7)), device="cpu",
                         threads=1, **options)
    return run, rates, [str(each.message) for each in caught]


def loader_like_torch(x, y, size):
    class Loading:
        sampler, dataset, batch_size, drop_last = range(len(x)), x, size, False

        def __iter__(self):
            return iter([(x[i:i + size], y[i:i + size]) for i in range(0, len(x), size)])
    return Loading()


def test_a_schedule_as_long_as_the_run(folder):
    """A schedule takes its length from lists, torch's DataLoader or `updates`; with tails; else it is an error."""
    def linear(total):
        return [round(0.01 * (total - t) / total, 7) for t in range(total)]

    def compiled(**settings):
        return gacc.compile(MODEL, set={"schedule.type": "linear", "schedule.total": "run", **settings})
    x, y = data(50)
    x = x.astype(np.float32) / 255  # of uint8 there is a warning
    batches = [(x[i:i + 20], y[i:i + 20]) for i in range(0, 50, 20)]  # 5 + 5 + 3 launches
    for tail, updates in (("flush", 14), ("carry", 13), ("drop", 12)):
        step = compiled(**{"train.tail": tail})
        for loader in batches, loader_like_torch(x, y, 20):
            run, rates, said = rates_of(step, loader, epochs=2)
            expect(not said and rates == linear(updates), f"{tail}: {rates}, {said}")
    run, rates, said = rates_of(compiled(), (batch for batch in batches), epochs=1, updates=5)
    expect(not said and rates == linear(5), f"{rates}, {said}")

    @raises(gacc.Error, 'schedule.total is "run"', "updates=")
    def _():
        gacc.train(compiled(), (batch for batch in batches), epochs=1, device="cpu")
    run = session(compiled(), updates=3)
    run.step(x=x[:4], label=y[:4])
    expect(abs(run.update().lr - 0.01) < 1e-8, "a loop of one's own")
    run.checkpoint(folder / "run")
    again = session(compiled())
    again.resume(folder / "run")
    again.step(x=x[:4], label=y[:4])
    expect(abs(again.update().lr - 0.01 * 2 / 3) < 1e-8, "a resumed session has its length")
    # Going on is another length, which is said; a session that was told once is not told again.
    run, rates, _ = rates_of(compiled(), batches, epochs=1)
    _, rates, said = rates_of(run.compiled, batches, epochs=1, session=run)
    expect(len(said) == 1 and "which was 7 updates" in said[0] and rates == linear(14)[7:], f"{rates}, {said}")
    run = session(compiled(), updates=14)
    for part in linear(14)[:7], linear(14)[7:]:
        _, rates, said = rates_of(run.compiled, batches, epochs=1, session=run)
        expect(not said and rates == part, f"{rates}, {said}")


def test_a_schedule_of_another_length_is_a_warning(folder):
    x, y = data(48)
    x = x.astype(np.float32) / 255  # of uint8 there is a warning
    batches = [(x[i:i + 8], y[i:i + 8]) for i in range(0, 48, 8)]
    step = gacc.compile(MODEL, set={"schedule.type": "linear", "schedule.total": 12})
    for epochs, words in ((2, ""), (1, "the run ends after 6 updates"), (5, "the run has 30 updates: the last 18")):
        run, _, said = rates_of(step, batches, epochs=epochs)
        expect(len(said) == bool(words) and all("schedule.total is 12 updates" in text and words in text
                                                for text in said), f"{epochs}: {said}")
    run, _, said = rates_of(step, batches, epochs=1, session=session(step, updates=12))
    expect(not said, f"{said}")


harness.main(globals())
