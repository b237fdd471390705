#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The seeds of the fuzzers: small files of every kind that the readers take, and of the kinds that they must
refuse. What fuzzing finds is added beside them by hand. Writes its folders in corpus
beside itself."""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent / "corpus"


def save(kind, name, content):
    (HERE / kind).mkdir(parents=True, exist_ok=True)
    (HERE / kind / name).write_bytes(content)


def npy(descr, shape, data, order=False, version=1):
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data


def safetensors(header, data, told=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if told is None else told) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def gguf(keys, tensors, data, version=3):
    """Keys of key(); tensors as (name, sizes, type, offset)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys)
    for name, sizes, kind, offset in tensors:
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return head + b"\0" * (-len(head) % 32) + data


def llama_keys():
    numbers = {"block_count": 2, "embedding_length": 32, "attention.head_count": 2, "feed_forward_length": 64,
               "context_length": 32}
    return [key("general.architecture", 8, text("llama")),
            key("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
            key("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
            *(key("llama." + name, 4, struct.pack("<I", value)) for name, value in numbers.items())]


def gguf_files():
    forms = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    for kind, form in forms.items():
        one = struct.pack("<" + form, 1)
        save("gguf", f"scalar_{kind}", gguf([key("a", kind, one)], [], b""))
        values = struct.pack("<IQ", kind, 2) + 2 * one
        save("gguf", f"array_{kind}", gguf([key("a", 9, values)], [], b""))
    for kind in (0, 1, 2, 3, 8, 14, 28, 30):
        tensors = [("w", [32], kind, 0), ("v", [], 0, 256)]
        save("gguf", f"tensor_{kind}", gguf([], tensors, bytes(260)))
    save("gguf", "llama", gguf(llama_keys(), [("token_embd.weight", [32, 2], 8, 0)], bytes(68)))
    save("gguf", "nested", gguf([key("a", 9, struct.pack("<IQ", 9, 1))], [], b""))
    save("gguf", "huge_array", gguf([key("a", 9, struct.pack("<IQ", 10, 2**61))], [], b""))
    save("gguf", "huge_tensor", gguf([], [("w", [2**32, 2**32], 0, 0)], b""))
    save("gguf", "twice", gguf(2 * [key("a", 0, b"1")], [], b""))
    save("gguf", "overlap", gguf([], [("w", [16], 0, 0), ("v", [16], 0, 32)], bytes(96)))
    save("gguf", "version", gguf([], [], b"", version=2))
    save("gguf", "alignment", gguf([key("general.alignment", 4, struct.pack("<I", 64))], [], b""))


def config(**values):
    return json.dumps(values).encode()


def config_files():
    for kind in ("gpt2", "gpt_neox", "llama", "bert"):
        save("config", kind, config(model_type=kind, vocab_size=64, eos_token_id=[1, 2], bos_token_id=None))
    save("config", "gpt2_sizes", config(model_type="gpt2", n_layer=2, n_embd=16, n_head=2, n_inner=None,
                                        n_positions=32, activation_function="relu", tie_word_embeddings=False,
                                        scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=1e-3))
    save("config", "old_rope", config(model_type="gpt_neox", rotary_pct=.5, rotary_emb_base=500,
                                      rope_scaling=None))
    rope = {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": .25}
    save("config", "new_rope", config(model_type="gpt_neox", rope_parameters=rope,
                                      use_parallel_residual=False))
    save("config", "heads", config(model_type="llama", num_attention_heads=4, num_key_value_heads=2,
                                   head_dim=8))
    scaling = {"type": "linear", "factor": 2}
    save("config", "scaled_rope", config(model_type="llama", rope_scaling=scaling))
    kinds = ["full_attention", "sliding_attention"]
    save("config", "layers", config(model_type="llama", layer_types=kinds))
    own = {"mechanism": "features", "features": [3, 0, 512], "shared": True}
    save("config", "features", config(model_type="llama", num_hidden_layers=3, num_attention_heads=4,
         num_key_value_heads=2, hidden_size=64, loam_attention=own))
    save("config", "huge", config(model_type="llama", hidden_size=2**62, num_hidden_layers=2**63 - 1))
    save("config", "negative", config(model_type="bert", hidden_size=-768, type_vocab_size=0))
    save("config", "unknown", config(model_type="mamba"))


KINDS = {"html": b"\0", "txt": b"\1", "pod": b"\2", "dictionary": b"\3"}


def extract(kind, name, content):
    """What a fuzzer takes: a byte for the kind, a text."""
    save("extract", f"{kind}_{name}", KINDS[kind] + content)


def extract_files():
    prose = b"The house at the end of the lane had been empty for years before anybody came to live in it."
    extract("html", "prose", b"<p>" + prose + b"</p><p>" + prose + b"<div>" + prose.lower() + b"</div>")
    extract("html", "dropped", b"<script>a</p></script><pre>b</pre><nav><table>c</nav>d</table>e<style>")
    extract("html", "references", b"&amp;&#65;&#x41;&lt&nosuch;&#0;&#xd800;&#99999999999;&;&#;&#x;&am\0p;"
                                  b"&nbsp;")
    extract("html", "tags", b"<a title='>' b=\">\" c= \"x\" d>x</a><br/><P\nclass=x>y</><//><?x?><!x><!---->"
                            b"z")
    extract("html", "comments", b"a<!--> b --><!-- c -- > d --!> e -->f<!--g")
    extract("html", "open", b"<p>a < b << c <")
    extract("html", "quote", b"<a b='")
    extract("html", "bytes", b"\xff\xc2<p>\xa0\xc2\xa0\0\xc2")
    extract("html", "nested", b"<table>" * 50 + b"x" + b"</table>" * 51 + b"y")
    extract("txt", "lines", b"a\n b\t\tc\r\n\r\n d\n\n\n" + prose)
    extract("pod", "codes", b"=head1 A\n\nB<b I<c>> C<< d > e >> L<f|g> X<h> E<lt>E<gt>E<nosuch> i>\n\n"
                           b" verbatim\n")
    extract("pod", "block", b"=begin x\n\na\n\n=end x\n\nb B<<<<< c\n\nE<lt B<" + b"B<" * 50)
    extract("dictionary", "brackets", b"a [b] c <d> e\n[ f\n] g [h [i] j]\n[]<>\n" + prose + b"\n")


def main():
    gguf_files()
    config_files()
    extract_files()
    floats = struct.pack("<6f", *range(6))
    for version in (1, 2, 3):
        save("npy", f"version_{version}", npy("<f4", (2, 3), floats, version=version))
    save("npy", "double", npy("<f8", (3,), floats))
    save("npy", "half", npy("<f2", (12,), floats))
    save("npy", "scalar", npy("=f4", (), floats[:4]))
    save("npy", "empty", npy("<f4", (0, 5), b""))
    save("npy", "rank_8", npy("<f4", (1, 1, 1, 1, 1, 1, 2, 3), floats))
    save("npy", "fortran", npy("<f4", (2, 3), floats, order=True))
    save("npy", "big_endian", npy(">f4", (2, 3), floats))
    save("npy", "object", npy("|O", (3,), floats))
    save("npy", "records", npy([("a", "<f4")], (6,), floats))
    save("npy", "truncated", npy("<f4", (2, 3), floats)[:-5])
    save("npy", "trailing", npy("<f4", (2, 3), floats + b"x"))
    save("npy", "huge", npy("<f4", (4294967296, 4294967296), floats))
    save("npy", "negative", npy("<f4", (-2, 3), floats))
    a, b = tensor("F32", [2, 2], 0, 16), tensor("F64", [], 16, 24)
    save("safetensors", "two", safetensors({"a": a, "b": b}, floats))
    save("safetensors", "metadata", safetensors({"__metadata__": {"k": "v"}, "a": a, "b": b}, floats))
    halves = {"a": tensor("BF16", [4], 0, 8), "b": tensor("F16", [8], 8, 24)}
    save("safetensors", "bf16", safetensors(halves, floats))
    save("safetensors", "gap", safetensors({"a": a}, floats))
    save("safetensors", "overlap", safetensors({"a": a, "b": tensor("F64", [2], 8, 24)}, floats))
    save("safetensors", "beyond", safetensors({"a": tensor("F32", [6], 0, 28)}, floats))
    save("safetensors", "huge", safetensors({"a": tensor("F32", [2**40, 2**40], 0, 24)}, floats))
    save("safetensors", "negative", safetensors({"a": tensor("F32", [-6], 0, 24)}, floats))
    save("safetensors", "told", safetensors({"a": a, "b": b}, floats, told=2**63))
    save("safetensors", "no_json", safetensors(b"{'a': 3}", floats))
    save("safetensors", "array", safetensors(b"[1, 2]", b""))
    save("safetensors", "nested", safetensors(b"[" * 60, b""))
    save("csv", "header", b"x,y\n1,2\n3,4\n")
    save("csv", "plain", b"1,2\n3,4\n")
    save("csv", "quoted", b'"x","y ""z"""\r\n"1.5", -2e3 \r\n')
    save("csv", "missing", b"x,y\n1,\nNA,2\nnan,null\n5,6")
    save("csv", "ragged", b"x,y\n1\n2,3,4\n")
    save("csv", "open_quote", b'x\n"1\n2')
    save("csv", "stray_quote", b'x\n1"2\n')
    save("csv", "infinite", b"x\n1e999\ninf\n")
    save("csv", "hexadecimal", b"\xef\xbb\xbfx\n0x1p3\n")
    save("csv", "semicolons", b"g;x (a, b);y\na;1.5;2\nb;3;NA\na;4,5;1\n")
    save("csv", "tabs", b"g\tx\ty\r\n\"a;b\"\t1\t2\r\n\t3\t4\r\nc\t5\t6\r\n")
    save("csv", "blank", b"\n\n x \n\n1\n")
    tokenizers()


VOCAB = {"vocab": {"a": 0, "b": 1, "ab": 2, "[U]": 3, "##a": 4, "\u2581": 5, "\u2581a": 6, "<0x41>": 7}}
BPE = dict(VOCAB, type="BPE", merges=["a b", ["\u2581", "a"]], unk_token="[U]", fuse_unk=True)
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
SPLIT = {"type": "Split", "pattern": {"Regex": "[^\\s]?\\p{L}+|\\s+(?!\\S)"}, "behavior": "Isolated",
         "invert": True}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}


def tokenizer(name, text, model=BPE, **parts):
    """What a fuzzer takes: a tokenizer.json, a 0, a text."""
    save("tokenizer", name, json.dumps(dict(parts, model=model)).encode() + b"\0" + text)


def tokenizers():
    ends = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "s"}}, {"Sequence": {"id": "A"}}],
            "special_tokens": {"s": {"id": "s", "ids": [0], "tokens": ["a"]}}}
    tokenizer("bytes", b"ab ab\xff", pre_tokenizer=BYTES, decoder=BYTES, post_processor=ends)
    tokenizer("split", b"ab  ab\xe4\xb8\xad", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        SPLIT, {"type": "Digits", "individual_digits": True},
        {"type": "Punctuation", "behavior": "Contiguous"}, BYTES]})
    tokenizer("metaspace", b"a ab a", pre_tokenizer=METASPACE, decoder=METASPACE)
    steps = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, {"type": "NFKC"}]
    tokenizer("fallback", b"A a", dict(BPE, byte_fallback=True),
              normalizer={"type": "Sequence", "normalizers": steps},
              decoder={"type": "Sequence", "decoders": [
                  {"type": "ByteFallback"}, {"type": "Fuse"},
                  {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})
    tokenizer("wordpiece", b"aA \xc3\xa0b", dict(VOCAB, type="WordPiece", unk_token="[U]"),
              normalizer={"type": "BertNormalizer"}, pre_tokenizer={"type": "BertPreTokenizer"},
              decoder={"type": "WordPiece", "prefix": "##"})
    tokenizer("added", b" x ab<s>  <s>", added_tokens=[
        {"id": 8, "content": "<s>", "special": True, "lstrip": True, "rstrip": True},
        {"id": 9, "content": "X", "single_word": True, "normalized": True}], normalizer={"type": "Lowercase"})
    tokenizer("huge", b"a", dict(BPE, vocab={"a": 2**40}))
    save("tokenizer", "no_json", b"{]\0a")


if __name__ == "__main__":
    main()
