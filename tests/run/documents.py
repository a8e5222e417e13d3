"""Documents in a window: packed ones give what each gives alone, and nothing depends on how they are run."""
import array
import random
import re
import struct
import subprocess

import harness
import ranks
from harness import expect, run

VOCABULARY, WINDOW = 23, 80
# Learned and rotary positions, shared heads, a window, norms of heads; causal or not.
MODEL = """
model = {{ name = "packed", seed = 3, allow = ["not-causal"] }}
inputs.tokens = {{ shape = [{length}], dtype = "i32", range = {vocabulary} }}
inputs.next = {{ shape = [{length}], dtype = "i32" }}
{documents}
loss = {{ type = "cross_entropy", target = "next" }}
optimizer = {{ type = "sgd", lr = 0.1 }}
train = {{ micro_batch = {micro}, accumulate = {accumulate}, lanes = {lanes} }}
precision = {{ compute = "{compute}", loss_scale = "none" }}
recompute = {{ policy = "{recompute}" }}
[[layers]]
type = "embedding"
name = "embed"
vocab = {vocabulary}
features = 48
[[layers]]
type = "position_embedding"
name = "positions"
positions = {positions}
[[layers]]
type = "attention"
name = "a"
heads = 3
causal = {causal}
{names}
[[layers]]
type = "attention"
name = "b"
heads = 4
kv_heads = 2
head_dim = 16
causal = {causal}
rope = {{ theta = 100.0, scaling = {{ type = "linear", factor = 2.0 }} }}
qk_norm = {{ eps = 1e-5 }}
{window}
{dropout}
{names}
[[layers]]
type = "linear"
name = "head"
features = {vocabulary}
"""


def compiled(folder, name, length=WINDOW, packed=True, causal=True, micro=1, accumulate=1, compute="f32",
             recompute="none", dropout=0.0, lanes=1):
    text = MODEL.format(
        length=length, vocabulary=VOCABULARY, positions=WINDOW, micro=micro, accumulate=accumulate, lanes=lanes,
        compute=compute, recompute=recompute,
        causal=str(causal).lower(), window="window = 9" if causal and length > 9 else "",
        dropout=f"dropout = {dropout}" if dropout else "",
        documents=f'inputs.documents = {{ shape = [{length}], dtype = "i32" }}' if packed else "",
        names='documents = "documents"' if packed else "")
    return harness.compile_text(folder, text, name)


def spec_of(folder, windows):
    """windows: lists of (tokens, targets, documents), all of one length."""
    shape, names = [len(windows), len(windows[0][0])], ["tokens", "next", "documents"][:len(windows[0])]
    return harness.write_arrays(folder, {name: (array.array("i", [value for window in windows for value in window[i]]),
                                                shape)
                                         for i, name in enumerate(names)})


def document(chance, length, ignored=0.2):
    tokens = [chance.randrange(VOCABULARY) for _ in range(length)]
    return tokens, [-100 if chance.random() < ignored else chance.randrange(VOCABULARY) for _ in range(length)]


def in_a_window(documents, length=WINDOW, scattered=None):
    """Documents side by side and a tail of none; or dealt position by position, as `scattered` draws."""
    places = [number for number, (tokens, _) in enumerate(documents) for _ in tokens]
    places += [-1 - i for i in range(length - len(places))]
    if scattered is not None:
        scattered.shuffle(places)
    parts = [iter(list(zip(*one))) for one in documents]
    # The tail's contents must not matter.
    rows = [next(parts[number]) if number >= 0 else (i % VOCABULARY, i % VOCABULARY) for i, number in enumerate(places)]
    names = [1000 * number % 77 + 5 if number >= 0 else number for number in places]
    return [row[0] for row in rows], [row[1] for row in rows], names


def gradients(artifact, spec, folder, *options):
    """Sums of gradients: name -> (shape, values), and how much was counted."""
    run("gacc-exec", artifact, "--data", spec, "--no-shuffle", "--launches", 1, "--dump-grads", folder / "g", *options)
    return harness.read_safetensors(folder / "g")


def counted(windows):
    return sum(t != -100 and (len(w) < 3 or w[2][i] >= 0) for w in windows for i, t in enumerate(w[1]))


def alone(folder, documents, causal, compute="f32", *options):
    """The mean gradient over documents that each have a window of their own length."""
    total = {}
    for tokens, targets in documents:
        if all(target == -100 for target in targets):
            continue
        name = f"alone_{len(tokens)}_{causal}_{compute}"
        artifact = folder / f"{name}.ptx"
        if not artifact.exists():
            compiled(folder, name, len(tokens), packed=False, causal=causal, compute=compute)
        found = gradients(artifact, spec_of(folder, [(tokens, targets)]), folder, *options)
        for name, (shape, values) in found.items():
            before = total.setdefault(name, (shape, [0.0] * len(values)))[1]
            for i, value in enumerate(values):
                before[i] += value * counted([(tokens, targets)])
    all_counted = sum(target != -100 for _, targets in documents for target in targets)
    return {name: (shape, [value / all_counted for value in values]) for name, (shape, values) in total.items()}


def test_packed_documents_give_what_each_gives_alone(folder):
    chance = random.Random(7)
    lengths = {"several": [1, 23, 5, 31, 9], "one": [WINDOW], "a short one": [3], "no tail": [50, 29, 1]}
    for causal in (True, False):
        packed = compiled(folder, "packed", causal=causal)
        for name, parts in lengths.items():
            documents = [document(chance, length) for length in parts]
            documents[0][1][0] = 4  # something counts
            if name == "several":  # all targets of one document are ignored
                documents[2] = (documents[2][0], [-100] * len(documents[2][0]))
            want = alone(folder, documents, causal)
            orders = [documents, documents[::-1], chance.sample(documents, len(documents))]
            for order in orders if name == "several" else orders[:1]:
                for scattered in (None, chance):
                    # Numbers dealt position by position: what a window of earlier positions means is then another
                    # thing.
                    if scattered is not None and causal:
                        continue
                    spec = spec_of(folder, [in_a_window(order, scattered=scattered)])
                    for device in ("cpu",
                                   "emulate") if order is documents and name in ("several", "no tail") else ("cpu",):
                        worst, who = harness.far_apart(gradients(packed, spec, folder, "--device", device), want,
                                                       least=0.01)
                        print(f"causal {causal}, {name}, {device}: {worst:.1e} ({who})")
                        expect(worst <= 1e-6, f"causal {causal}, {name}, {device}: {who} is {worst:.2e} away")


def test_in_half_precision_packed_is_as_near_as_alone(folder):
    chance = random.Random(8)
    documents = [document(chance, length) for length in (1, 37, 24, 11)]
    for compute, bound in (("f16", 2e-3), ("bf16", 2e-2)):
        want = alone(folder, documents, True, compute, "--device", "cpu")
        packed = compiled(folder, "packed", compute=compute)
        spec = spec_of(folder, [in_a_window(documents)])
        for device in ("cpu", "emulate"):  # emulated: by tensor cores
            worst, who = harness.far_apart(gradients(packed, spec, folder, "--device", device), want, least=0.01)
            print(f"{compute}, {device}: {worst:.1e} ({who})")
            expect(worst <= bound, f"{compute}, {device}: {who} is {worst:.2e} away")


def trained(folder, artifact, spec, name, *options):
    run("gacc-exec", artifact, "--data", spec, "--save", folder / name, "--log", folder / f"{name}.log", "--updates", 4,
        "--device", "cpu", *options)
    return (folder / name).read_bytes()


def some_windows(chance, count=8):
    return [in_a_window([document(chance, length)
                         for length in chance.choice(([1, 23, 5, 31, 9], [WINDOW], [40, 40], [3]))])
                         for _ in range(count)]


def test_bits_depend_on_no_thread_no_recompute_and_no_rest_between(folder):
    spec = spec_of(folder, some_windows(random.Random(9)))
    artifact = compiled(folder, "step", micro=2, accumulate=2, dropout=0.1)
    want = trained(folder, artifact, spec, "one", "--threads", 1)
    expect(trained(folder, artifact, spec, "three", "--threads", 3) == want, "three threads give other bits")
    again = compiled(folder, "again", micro=2, accumulate=2, dropout=0.1, recompute="all")
    expect(trained(folder, again, spec, "again") == want, "recompute gives other bits")
    trained(folder, artifact, spec, "begun", "--checkpoint", folder / "c", "--launches", 3)
    expect(trained(folder, artifact, spec, "ended", "--checkpoint", folder / "c", "--resume") == want,
           "a resumed run gives other bits")


def test_bits_depend_on_no_number_of_ranks(folder):
    ranks.need_mpi()
    spec = spec_of(folder, some_windows(random.Random(9)))
    artifact = compiled(folder, "step", micro=1, accumulate=4, dropout=0.1, lanes=2)
    want = trained(folder, artifact, spec, "one")
    ranks.mpirun(2, [harness.BIN / "gacc-exec", artifact, "--data", spec, "--save", folder / "two", "--updates", 4,
                     "--device", "cpu"])
    expect((folder / "two").read_bytes() == want, "two ranks give other bits")


def test_what_belongs_to_no_document_counts_nothing(folder):
    tokens, _ = document(random.Random(1), WINDOW)
    artifact = compiled(folder, "step")
    done = run("gacc-exec", artifact, "--data", spec_of(folder, [(tokens, tokens[1:] + [0], [-1] * WINDOW)]), "--save",
               folder / "after", code=1)
    harness.one_error(done, "nothing was counted")
    expect(not (folder / "after").exists(), "weights were written")


def test_a_token_ends_documents_of_a_stream(folder):
    chance = random.Random(5)
    end, stream = 0, []
    for _ in range(40):
        stream += [chance.randrange(1, VOCABULARY) for _ in range(chance.randrange(1, 30))] + [end]
    (folder / "t.bin").write_bytes(struct.pack(f"<{len(stream)}H", *stream))
    windows = []
    for first in range(0, len(stream) - WINDOW, WINDOW):
        tokens, number, documents = stream[first:first + WINDOW], 0, []
        for token in tokens:
            documents.append(-1 if token == end else number)
            number += token == end
        windows.append((tokens, stream[first + 1:first + WINDOW + 1], documents))
    artifact = compiled(folder, "step", micro=2)
    by_end = trained(folder, artifact, f"tokens:{folder / 't.bin'},end={end}", "stream")
    expect(by_end == trained(folder, artifact, spec_of(folder, windows), "arrays"), "end= gives other documents")
    for spec, *words in ((f"tokens:{folder / 't.bin'}", "documents", "end=ID"),
                         (f"tokens:{folder / 't.bin'},end=x", "end=x"),
                         (f"tokens:{folder / 't.bin'},end=30", "30")):
        harness.one_error(run("gacc-exec", artifact, "--data", spec, "--updates", 1, code=1), *words)


def test_a_packed_model_goes_on_with_a_text(folder):
    """As the model without documents does: a text is one document, also beyond the window."""
    weights = folder / "w.safetensors"
    plain, packed = compiled(folder, "plain", packed=False), compiled(folder, "packed")
    run("gacc-exec", plain, "--init-only", "--save", weights)
    for device, tokens in (("cpu", WINDOW + 9), ("emulate", 4)):
        texts = [subprocess.run([harness.BIN / "gacc-exec", artifact, "--load", weights, "--generate", str(tokens),
                                 "--device", device,
                                 "--prompt", "\x01\x02"], capture_output=True, check=True).stdout
                                 for artifact in (plain, packed)]
        expect(texts[0] == texts[1] and len(texts[0]) == tokens, texts)


def test_the_plan_says_how_far_a_text_goes_position_by_position(folder):
    """Twelve frozen layers, whose keys and values are more than the peak; behind that place a token takes a whole
    window."""
    weights, texts = folder / "w.safetensors", []
    for packed in (False, True):
        artifact, model = compiled(folder, "m", packed=packed), folder / "m.toml"
        head, layer = (model.read_text().index(f'[[layers]]\ntype = "{kind}"\nname = "{name}"') for kind,
                       name in (("linear", "head"), ("attention", "b")))
        text = model.read_text()
        text = text[:layer] + "".join(text[layer:head].replace('name = "b"', f'name = "b{i}"')
                                      for i in range(12)) + text[head:]
        model.write_text(re.sub('(type = "(embedding|position_embedding|attention)"\n)', r"\1trainable = false\n",
                                text))
        said = re.search(r"  texts +of up to (\d+) positions one by one, for which the peak has room",
                         run("gaccc", model, "--plan", "-o", artifact).stdout)
        expect(said and 1 < int(said[1]) < WINDOW, f"{packed}: {said}")
        run("gacc-exec", artifact, "--init-only", "--save", weights, "--seed", 1)
        texts.append(subprocess.run([harness.BIN / "gacc-exec", artifact, "--load", weights, "--generate",
                                     str(int(said[1]) + 5), "--device", "cpu",
                                     "--prompt", "\x01\x02"], capture_output=True, check=True).stdout)
    expect(texts[0].startswith(texts[1]) or texts[1].startswith(texts[0]), texts)


harness.main(globals())
