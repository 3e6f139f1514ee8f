"""Golden values of tokenizers that put a token before every text: ids by Hugging Face tokenizers, and the perplexity of the
bundled target where each chunk begins with such a token, computed in numpy from the checkpoint.

    pip install tokenizers numpy safetensors
    python models/recipe/begin.py > models/data/begin.json
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

MODELS = pathlib.Path(__file__).resolve().parent.parent
CHUNK, CHUNKS = 64, 24
TEXTS = ["pub fn add(a: u32) -> u32", " a  b\n", "naïve café 🦀", "<|begin|>fn main() {}", "한국어"]


def special(id, content):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}


def template(*before):
    tokens = {token: {"id": token, "ids": [id], "tokens": [token]} for token, id in before}
    single = [{"SpecialToken": {"id": token, "type_id": 0}} for token, _ in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def llama3():
    """Byte-level, as Llama 3: a sequence of post-processors of which the last adds the token that begins a text."""
    tokenizer = json.loads((MODELS / "target/tokenizer.json").read_text())
    tokenizer["added_tokens"].append(special(4096, "<|begin|>"))
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    tokenizer["post_processor"] = {"type": "Sequence", "processors": [byte_level, template(("<|begin|>", 4096))]}
    return tokenizer


def qwen():
    """Byte-level, as Qwen: nothing is added."""
    tokenizer = json.loads((MODELS / "target/tokenizer.json").read_text())
    tokenizer["added_tokens"].append(special(4096, "<|begin|>"))
    tokenizer["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return tokenizer


def gemma():
    """Pieces with byte fallback, as Gemma and Llama 2: spaces are written as a letter, and a token begins a text."""
    pieces = ["<pad>", "<eos>", "<|begin|>", "<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁"] + [chr(c) for c in range(33, 127)] + ["fn", "▁a", "▁b", "▁-", "▁->", "u3", "u32", "▁u32", "pu", "pub"]
    merges = [["f", "n"], ["▁", "a"], ["▁", "b"], ["▁", "-"], ["▁-", ">"], ["u", "3"], ["u3", "2"], ["▁", "u32"], ["p", "u"],
              ["pu", "b"]]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [special(id, piece) for id, piece in enumerate(pieces[:4])],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None, "post_processor": template(("<|begin|>", 2)),
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {piece: id for id, piece in enumerate(pieces)}, "merges": merges},
    }


def logits(weights, config, ids):
    """The logits after each of `ids`, in f64."""
    hidden, heads, kv = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    dim, eps = config.get("head_dim") or hidden // heads, config["rms_norm_eps"]
    theta = (config.get("rope_parameters") or config)["rope_theta"]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[name]

    def turned(x):
        angle = np.arange(len(ids))[:, None] * theta ** (-np.arange(0, dim, 2) / dim)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        low, high = x[..., : dim // 2], x[..., dim // 2:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        def linear(x, part):
            return x @ weights[f"model.layers.{layer}.{part}.weight"].T

        h = norm(x, f"model.layers.{layer}.input_layernorm.weight")
        q = turned(linear(h, "self_attn.q_proj").reshape(-1, heads, dim))
        k = turned(linear(h, "self_attn.k_proj").reshape(-1, kv, dim)).repeat(heads // kv, 1)
        v = linear(h, "self_attn.v_proj").reshape(-1, kv, dim).repeat(heads // kv, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores = np.where(np.tril(np.ones((len(ids), len(ids)), bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hqk,khd->qhd", shares, v).reshape(len(ids), -1), "self_attn.o_proj")
        h = norm(x, f"model.layers.{layer}.post_attention_layernorm.weight")
        gate = linear(h, "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "model.norm.weight") @ weights["model.embed_tokens.weight"].T


def perplexity(ids, before):
    """Of `ids` in chunks of which each begins with `before`; the predictions of each chunk's second half are scored."""
    weights = {name: tensor.astype(np.float64) for name, tensor in load_file(MODELS / "target/model.safetensors").items()}
    config, losses = json.loads((MODELS / "target/config.json").read_text()), []
    for start in range(0, CHUNKS * CHUNK, CHUNK):
        chunk = list(before) + ids[start + len(before): start + CHUNK]
        rows = logits(weights, config, chunk[:-1])
        for at in range(CHUNK // 2 + 1, CHUNK):
            row = rows[at - 1]
            losses.append(np.log(np.exp(row - row.max()).sum()) + row.max() - row[chunk[at]])
    return float(np.exp(np.mean(losses)))


def main():
    tokenizers = {"llama3": llama3(), "qwen": qwen(), "gemma": gemma()}
    golden = {"texts": TEXTS, "tokenizers": {}}
    for name, tokenizer in tokenizers.items():
        loaded = Tokenizer.from_str(json.dumps(tokenizer))
        ids = [loaded.encode(text, add_special_tokens=True).ids for text in TEXTS]
        changes = {key: tokenizer[key] for key in ("added_tokens", "post_processor")}
        golden["tokenizers"][name] = {"json": tokenizer if name == "gemma" else changes, "ids": ids}
    # The bundled target has one special token, which ends a text; here it begins one.
    text = (MODELS / "data/eval.txt").read_text()
    ids = Tokenizer.from_file(str(MODELS / "target/tokenizer.json")).encode(text, add_special_tokens=False).ids
    golden["perplexity"] = {
        "chunk": CHUNK, "chunks": CHUNKS, "before": [0],
        "with": perplexity([0] + ids, [0]), "without": perplexity(ids, []),
    }
    print(json.dumps(golden, ensure_ascii=False, indent=1))


main()
