"""The tokenizers package as the oracle of rubato-tokenize: equal tokens, one by one.

    tokenizers_oracle.py PROGRAM

Four tokenizers of the kinds that GPT-2, Llama 3, SmolLM and Llama 2 have are trained on a text, and then read another: the
King James Bible, code, some scripts, emoji, broken UTF-8, added tokens, and edge cases as texts of their own.
"""

import array
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[4]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
END = "<|endoftext|>"
SCRIPTS = ("Ὁ λόγος ἐν ἀρχῇ. В начале было Слово, и Слово было у Бога. בראשית ברא אלהים את השמים ואת הארץ "
           "بِسْمِ اللَّهِ الرَّحْمَٰنِ الرَّحِيمِ प्रारम्भ में वचन था १२३ 太初有道，道與神同在。はじめに言葉があった。태초에 말씀이 "
           "계시니라 ½ ⅷ ² ٣٤ ǅ ʼn ﬁ é e\u0301 👩‍👩‍👧‍👦 🏳️‍🌈 ¡Hola! «naïve» \u00a0\u2003\u3000\u200b")
EDGES = ["", " ", "  ", "\n", " \n", "\n ", "a", " a", "a ", "  a  b   ", "\r\n\r\n x", "\t\tx\n\n\n  y  \n",
         "'s 'S 'ſ 'LL 'll", "it's IT'S don'T we'Ve", "1234567 12 3456", "x\u00a0y\u2003\u2003z", "!!!\n\n?",
         " !\r\n", "\u2581\u2581 a", "\x00\x01", "a\u0301", "</s>", "<s> x </s>y", f"a{END}b{END}{END}c",
         f" {END} ", f"{END}x", "\ufffd", "ab" * 40, " " * 65 + "z", "\n" * 9, "<0x41>", "<unk>",
         "ab<|x|>ab<|xab<y", "ab ab<", "a  1  b", "x1.5 \n 2\u00bd3 '4s", "7", "\u0663\u0664 \u216b"]
BROKEN = [b"\xff", b"a\xc3", b"\xe2\x82", b"\xe2\x82x\xf0\x9f\x98", b"\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80",
          b"\xf0\x80\x80\x80z"]


def corpus():
    bible = subprocess.run(["bible", "-f", "gen1:1-deu34:12"], capture_output=True, text=True).stdout
    code = "\n".join(p.read_text() for folder in ("worker", "tests/tools")
                     for p in sorted((ROOT / folder).rglob("*")) if p.suffix in (".cc", ".h", ".py", ".cu"))
    draw = random.Random(7)
    points = [p for p in range(0x3000) if not 0xD800 <= p < 0xE000] + list(range(0x1F300, 0x1F700))
    noise = "".join(chr(draw.choice(points)) for _ in range(60000))
    spaces = "".join(draw.choice(" \n\t\r.a1'sé\u00a0") for _ in range(60000))
    return bible[:600_000] + code[:500_000] + SCRIPTS * 40 + noise + spaces


def train(kind, text):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if kind == "llama2" else None, fuse_unk=kind == "llama2",
                                     byte_fallback=kind == "llama2", ignore_merges=kind == "llama3"))
    special = [END]
    if kind == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
        # Without cuts a whole text is one word, and so is a line.
        text = text.replace("\n", " ")
    else:
        tokenizer.decoder = decoders.ByteLevel()
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if kind == "llama3":
            split = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        if kind == "smollm":
            split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split])
        tokenizer.pre_tokenizer = split
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind != "llama2" else []
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=special, initial_alphabet=alphabet,
                                  show_progress=False, max_token_length=16, limit_alphabet=400)
    # In pieces of a few words, so that merges of one word stay cheap to count.
    words = text.split(" ")
    tokenizer.train_from_iterator((" ".join(words[i:i + 3]) for i in range(0, len(words), 3)), trainer)
    # Those that are looked for in normalized text come second, also where they begin first.
    tokenizer.add_tokens([AddedToken("<|x|>", normalized=False), AddedToken("<|x", normalized=False)])
    if kind != "llama2":
        tokenizer.add_tokens([AddedToken("ab<", normalized=True), AddedToken("ab", normalized=True)])
    if kind == "llama2":  # as bytes to fall back to they are tokens of the model alone
        parsed = json.loads(tokenizer.to_str())
        parsed["added_tokens"] = [t for t in parsed["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(parsed))
    return tokenizer


def tokens_of(path):
    raw = path.read_bytes()
    assert raw[:8] == b"RUBTOK1\n", raw[:8]
    width = int.from_bytes(raw[12:16], "little")
    out = array.array({1: "B", 2: "H", 4: "I"}[width])
    out.frombytes(raw[64:])
    return list(out)


def compare(program, kind, text):
    tokenizer = train(kind, text[:300_000])
    end = END if kind != "llama2" else "</s>"
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        # As transformers leaves them there; a text has the same tokens without.
        cut = Tokenizer.from_str(tokenizer.to_str())
        cut.enable_truncation(8)
        cut.enable_padding(length=8)
        cut.save(str(folder / "tokenizer.json"))
        texts = [text.encode()] + [edge.encode() for edge in EDGES] + BROKEN
        paths = []
        for i, raw in enumerate(texts):
            paths.append(folder / f"{i:03}.txt")
            paths[-1].write_bytes(raw)
        out = folder / "out.tok"
        done = subprocess.run([program, "--tokenizer", str(folder), "--end", end, "--out", str(out), *map(str, paths)],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ours = tokens_of(out)
    at = failed = 0
    for raw in texts:
        want = tokenizer.encode(raw.decode("utf-8", errors="replace"), add_special_tokens=False).ids
        got = ours[at:at + len(want) + 1]
        at += len(want) + 1
        if got == want + [tokenizer.token_to_id(end)]:
            continue
        first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), len(want))
        near = [tokenizer.id_to_token(t) for t in want[max(first - 3, 0):first + 4]]
        print(f"  FAIL {kind}: {raw[:40]!r}, at token {first} of {len(want)}: wanted near {near}, "
              f"got {[tokenizer.id_to_token(t) for t in got[max(first - 3, 0):first + 4]]}")
        failed += 1
        break  # what follows is shifted
    print(f"{kind}: {len(texts)} texts of {sum(map(len, texts))} bytes, {len(ours)} tokens, {failed} differ")
    return failed


def main():
    text = corpus()
    sys.exit(1 if sum(compare(sys.argv[1], kind, text) for kind in ("gpt2", "llama3", "smollm", "llama2")) else 0)


if __name__ == "__main__":
    main()
