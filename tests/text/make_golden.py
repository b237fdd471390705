#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small tokenizers of each kind and what the library `tokenizers` (0.23) makes of texts with them. Writes
data/NAME.json, data/gpt2/, data/tiny.gguf and golden.inc beside itself; the tests need no Python."""
import json
import pathlib
import struct

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE / "data"
TEXT = ["The quick brown fox jumps over the lazy dog. It's the dog that doesn't jump, isn't it?",
        "Attention is local regression: softmax fits a constant, LLA fits a line through the values.",
        "In 1998 there were 365 days and 12 months; 2024 has 366. Naïve café, déjà vu, über alles.",
        "def encode(text):\n    return [token for token in split(text)]\n\n\n    # the end\n",
        "中文 text 日本語 and 한국어, and the rest of the text is the text that there is."] * 4
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
CASES = [
    '', ' ', 'a', 'The dog', '  The   dogs  ', "it's IT'S isn't", '1998 12345 x1y22', 'naïve café ÅÅ',
    'line\n\n  next\r\n\tend \n', '中文, 日本語!', '\U0001f642 \u200d \xa0\u2003x',
    '<|end|>the<|end|><|end|> dog', '[CLS] the [SEP][MASK]', "a" * 70 + " " + "the" * 40,
    "return" + "  " * 40 + "text", '<s>the dog</s> text</s>', '▁the ▁ dog', 'İSTANBUL ǅ ﬁ ß',
    '\x01\x07\ufeff\u200bzero', "the dog.It was, not n't do not ' s 're",
    'special word specialword special', '́́x ẹ́', '٣٤ Ⅷ ½ x²', b'bad \xff\xfe utf\xc3',
    b'\xe4\xb8the\xf0\x9f\x99 \xed\xa0\x80']


def byte_level(size=400, split=None, **options):
    t = Tokenizer(models.BPE(**options))
    t.pre_tokenizer = split or pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                                    special_tokens=["<|end|>"],
                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def neox():
    t = byte_level()
    t.normalizer = normalizers.NFC()
    t.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 9)])
    t.add_tokens([AddedToken("special", single_word=True), AddedToken("é!", normalized=True)])
    return t


def smollm():
    byte = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return byte_level(split=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte]))


def cl100k():
    cut = pre_tokenizers.Split(Regex(CL100K), "isolated")
    t = byte_level(split=pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)]))
    t.model.ignore_merges = True
    ends = processors.TemplateProcessing(single="<|end|> $A", pair="<|end|> $A <|end|> $B",
                                         special_tokens=[("<|end|>", 0)])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), ends])
    return t


def characters(size, **options):
    """As Llama 2's, from a BPE by characters with ▁ for spaces."""
    t = Tokenizer(models.BPE(unk_token="<unk>", **options))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    bytes_ = [f"<0x{i:02X}>" for i in range(256)] if options.get("byte_fallback") else []
    t.train_from_iterator([x for x in TEXT if "中" not in x],
                          trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                              special_tokens=["<unk>", "<s>", "</s>"] + bytes_))
    j = json.loads(t.to_str())
    j["added_tokens"] = j["added_tokens"][:3]
    return j


def llama():
    j = characters(512, byte_fallback=True, fuse_unk=True)
    j["pre_tokenizer"] = None
    j["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    j["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    j["post_processor"] = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(j))


def metaspace():
    j = characters(200, fuse_unk=False)
    j["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    return Tokenizer.from_str(json.dumps(j))


def wordpiece():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=250, show_progress=False,
                                                          special_tokens=names))
    t.add_special_tokens([AddedToken("[MASK]", lstrip=True, rstrip=True, special=True)])
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def splits():
    """The other ways to cut a text, one after another."""
    words = ["[UNK]", "the", "dog", "1998", "!", "12", ",", "a-", "it", "'", "text", "is", "x"]
    t = Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    t.normalizer = normalizers.Lowercase()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("-", "merged_with_previous"),
        pre_tokenizers.Split(Regex("[xy]+"), "removed"), pre_tokenizers.Digits(False),
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Whitespace()])
    return t


def c_text(data):
    return '"' + "".join(f"\\{b:03o}" if b < 32 or b > 126 or b in b'"\\?' else chr(b) for b in data) + '"'


def gguf(path, tokens, merges):
    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def array(kind, items):
        return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)
    types = [struct.pack("<i", 3 if t == "<|end|>" else 1) for t in tokens]
    values = {"general.architecture": struct.pack("<I", 8) + text("llama"),
              "tokenizer.ggml.model": struct.pack("<I", 8) + text("gpt2"),
              "tokenizer.ggml.pre": struct.pack("<I", 8) + text("gpt-2"),
              "tokenizer.ggml.tokens": array(8, [text(t) for t in tokens]),
              "tokenizer.ggml.token_type": array(5, types),
              "tokenizer.ggml.merges": array(8, [text(m) for m in merges]),
              "tokenizer.ggml.add_bos_token": struct.pack("<IB", 7, 1),
              "tokenizer.ggml.bos_token_id": struct.pack("<II", 4, 0)}
    body = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    path.write_bytes(body + b"".join(text(k) + v for k, v in values.items()))


def main():
    (DATA / "gpt2").mkdir(parents=True, exist_ok=True)
    rows = []
    made = dict(bytes=byte_level(), neox=neox(), smollm=smollm(), cl100k=cl100k(), llama=llama(),
                metaspace=metaspace(), wordpiece=wordpiece(), splits=splits())
    for name, t in made.items():
        (DATA / f"{name}.json").write_text(json.dumps(json.loads(t.to_str()), ensure_ascii=False,
                                                      separators=(",", ":")) + "\n", encoding="utf-8")
        for number, case in enumerate(CASES):
            data = case if isinstance(case, bytes) else case.encode()
            special = number % 2
            ids = t.encode(data.decode(errors="replace"), add_special_tokens=bool(special)).ids
            back = t.decode(ids, skip_special_tokens=False).encode()
            head = f'{{ "{name}", {c_text(data)}, {len(data)}, {special},'
            wanted = f'{{ {", ".join(map(str, ids))} }},\n  {len(ids)}, {c_text(back)} }},'
            rows.append(f"{head}\n  {wanted}" if ids else f'{head} {{ 0 }}, 0, "" }},')
    (DATA / "train.txt").write_bytes(b"\0".join(text.encode() for text in TEXT))
    model = json.loads(made["bytes"].to_str())["model"]
    merges = [" ".join(m) for m in model["merges"]]
    (DATA / "gpt2" / "encoder.json").write_text(json.dumps(model["vocab"]))
    (DATA / "gpt2" / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    gguf(DATA / "tiny.gguf", sorted(model["vocab"], key=model["vocab"].get), merges)
    head = "/* SPDX-License-Identifier: MIT\n * Written by make_golden.py. */\n/* clang-format off */\n"
    (HERE / "golden.inc").write_text(head + "\n".join(fold(row) for row in rows) + "\n")


def fold(row):
    """Lines of at most 110 columns, cut where C does not mind."""
    out = []
    for line in row.split("\n"):
        while len(line) > 108:
            at = line.rfind(", ", 0, 108)
            quoted = line.count('"', 0, at + 1) % 2 == 1 if at > 0 else True
            if quoted:  # within a text: two texts side by side are one
                at = 100
                while "\\" in line[at - 4:at]:
                    at -= 1
                out.append(line[:at] + '"')
                line = '    "' + line[at:]
            else:
                out.append(line[:at + 1])
                line = "    " + line[at + 2:]
        out.append(line)
    return "\n".join(out)


if __name__ == "__main__":
    main()
