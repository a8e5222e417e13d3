"""Texts, completions and chats through twenty small tokenizers: what is in front, between and behind, and what counts.

The tokenizers are made here, by the package tokenizers, and what is expected is taken from them alone: they are BPE,
WordPiece and Unigram, of bytes or of pieces that begin with a space, with and without marks around a text."""
import subprocess

import harness

MAKE = r"""
import itertools, json, pathlib, random, sys
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
folder = pathlib.Path(sys.argv[1])
TEXTS = ["2+2=", "4", "the answer is", " yes", "three", "is five", "a\n", "\nb", "  two  spaces ", "Ünï ✓ 日本", "It's", "'s",
         "<s> begun", "ends</s>", "", "x"]
TRAINED = [a + b for a in TEXTS for b in TEXTS] + ["the quick brown fox is 42 + 17 = 59?\n"] * 9
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|bot|>", "<|end|>", "<|call|>"]
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|{{ 'bot' if m.role == 'assistant' else 'user' }}|>{{ m.content }}<|end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}")


def byte_level(model, trainer, regex):
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    made.decoder = decoders.ByteLevel()
    return made, trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def metaspace(model, trainer, scheme):
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return made, trainer(initial_alphabet=sorted(set("".join(TRAINED)) | {"▁"}))


def prepended(model, trainer, _):  # as Llama 2 and Mistral have it
    made = Tokenizer(model)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return made, trainer(initial_alphabet=sorted(set("".join(TRAINED)) | {"▁"}))


def pieces(model, trainer, lower):
    made = Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(lowercase=lower)
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    return made, trainer()


def bpe(**more):
    return trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False, **more)


def unigram(**more):
    return trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False, **more)


def wordpiece(**more):
    return trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False, **more)


KINDS = [(byte_level, lambda: models.BPE(), bpe, True), (byte_level, lambda: models.BPE(), bpe, False),
         (metaspace, lambda: models.BPE(unk_token="<unk>"), bpe, "always"), (prepended, lambda: models.BPE(unk_token="<unk>"), bpe, None),
         (metaspace, lambda: models.Unigram(), unigram, "first"), (pieces, lambda: models.WordPiece(unk_token="<unk>"), wordpiece, True)]
MARKS = [("", ""), ("<s> ", ""), ("", " </s>"), ("<s> ", " </s>")]


def made_tokenizers():
    for (build, model, trainer, detail), (front, behind) in itertools.product(KINDS, MARKS):
        made, how = build(model(), trainer, detail)
        made.train_from_iterator(TRAINED, how)
        if front or behind:
            made.post_processor = processors.TemplateProcessing(
                single=f"{front}$A{behind}", special_tokens=[(word, made.token_to_id(word)) for word in ("<s>", "</s>")])
        elif build is byte_level:
            made.post_processor = processors.ByteLevel(trim_offsets=True)
        yield f"{build.__name__} {trainer.__name__} {detail} {front}...{behind}", made, front, behind, build is not pieces


def expect(right, *words):
    if not right:
        sys.exit(" | ".join(map(str, words)))
"""

CHECK = MAKE + r"""
import gacc
from gacc.tokens import Tokenizer as Ours, of_record
chance = random.Random(int(sys.argv[2]))
for number, (name, made, front, behind, lossless) in enumerate(made_tokenizers()):
    here = folder / str(number)
    here.mkdir()
    made.save(str(here / "tokenizer.json"))
    (here / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}))
    ours = Ours(here)
    plain = lambda text: made.encode(text, add_special_tokens=False).ids
    said = lambda ids: made.decode(ids, skip_special_tokens=False)
    bos, eos, end = map(made.token_to_id, ("<s>", "</s>", "<|end|>"))
    begins = [bos] if front else []
    for _ in range(int(sys.argv[3])):
        prompt, completion = (chance.choice(TEXTS) for _ in range(2))
        # 1. A text: what the tokenizer puts in front, the text, its end; each once.
        whole = [*begins, *plain(prompt)]
        if begins and plain(prompt)[:1] == begins:
            whole = plain(prompt)
        sample = of_record(ours, {"text": prompt}, "")
        expect(sample.ids == (whole if whole[-1:] == [eos] else [*whole, eos]) and all(sample.counts), name, prompt, sample)
        expect(ours.prompt(prompt) == whole, name, "a prompt has no end", prompt, ours.prompt(prompt))
        # 2. A completion: one text with its prompt, of which it alone counts.
        sample = of_record(ours, {"prompt": prompt, "completion": completion}, "")
        given = [token for token, counts in zip(sample.ids, sample.counts) if not counts]
        answer = [token for token, counts in zip(sample.ids, sample.counts) if counts]
        expect(sample.ids == given + answer, name, "counts after all that does not", prompt, completion, sample)
        together = [*begins, *plain(prompt + completion)]
        if begins and plain(prompt + completion)[:1] == begins:
            together = together[1:]
        together += [eos] * (together[-1:] != [eos])
        if sample.ids != together:  # a token would be of both: each has its own, and the prompt those of generating
            expect(given == (ours.prompt(prompt)), name, "a prompt as it is asked with", prompt, completion, given)
        if lossless and "日" not in prompt + completion:
            expect(said(sample.ids) == said(together), name, "is one text", prompt, completion, said(sample.ids))
            if prompt and completion and "<" not in prompt + completion:
                expect(said(sample.ids)[len(said(given)):] == completion + "</s>", name, prompt, completion, said(answer))
        # 3. A chat: the assistant's turns and the token of the template that ends each; an inner special token is none.
        turns = [chance.choice([t for t in TEXTS if "<" not in t and "日" not in t and t.strip()]) for _ in range(4)]
        turns[1] += "<|call|>" + turns[0]
        messages = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, turns)]
        sample = of_record(ours, {"messages": messages}, "")
        text = "<s>" + "".join(f"<|{'bot' if m['role'] == 'assistant' else 'user'}|>{m['content']}<|end|>\n" for m in messages)
        expect(sample.ids == plain(text) and sample.end == end, name, turns, sample)
        parts, wanted, at = made.encode(text, add_special_tokens=False), [False] * len(sample.ids), 0
        for position, token in enumerate(sample.ids):
            inside = any(sample.ids[p] == made.token_to_id("<|bot|>") and end not in sample.ids[p + 1:position] for p in range(position))
            wanted[position] = inside
        expect(sample.counts == wanted, name, turns, [(made.id_to_token(t), c) for t, c in zip(sample.ids, sample.counts)])
        expect(ours.chat(messages[:3]) == plain(text[:text.rindex("<|bot|>") + len("<|bot|>")]), name, "the prompt of a chat")
        expect(ours.stops_of(messages[:3]) == {eos, end}, name, ours.stops_of(messages[:3]))
"""


def test_texts_through_twenty_tokenizers(folder):
    python = harness.peer("numpy", "tokenizers", "jinja2")
    environment = {"PYTHONPATH": str(harness.ROOT / "python"), "GACC_LIBRARY": str(harness.BIN / "libgacc.so.0")}
    done = subprocess.run([python, "-c", CHECK, folder, "1", "6"], capture_output=True, text=True, env=environment)
    harness.expect(done.returncode == 0, done.stderr[-3000:])


if __name__ == "__main__":
    harness.main(globals())
