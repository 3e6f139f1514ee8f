"""Writes a Llama model folder as one GGUF file, vocabulary and merges included, so that llama.cpp can run the very same
weights. Matrices keep their 16 bits (bf16 becomes f32), norms are f32.

usage: python3 write_gguf.py MODEL_FOLDER OUT.gguf          needs the packages `gguf` and `numpy`
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np


def tensors(folder):
    """Name and array of every tensor of a folder's safetensors files."""
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name == "__metadata__":
                continue
            begin, end = (start + offset for offset in entry["data_offsets"])
            kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[entry["dtype"]]
            array = np.frombuffer(data[begin:end], kind)
            if entry["dtype"] == "BF16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            yield name, array.reshape(entry["shape"])


def interleaved(weights, heads):
    """Rows of a query or key matrix in llama.cpp's order: it turns neighbours, Hugging Face the two halves of a head."""
    outputs, inputs = weights.shape
    return weights.reshape(heads, 2, outputs // heads // 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)


def vocabulary(writer, folder, size):
    """The byte-level BPE of tokenizer.json."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    if model["type"] != "BPE" or tokenizer["pre_tokenizer"]["type"] != "ByteLevel":
        sys.exit("tokenizer.json: only byte-level BPE with GPT-2's pattern is known here")
    special = {added["id"]: added["content"] for added in tokenizer["added_tokens"]}
    tokens = {id: token for token, id in model["vocab"].items()} | special
    kinds = [gguf.TokenType.CONTROL if id in special else gguf.TokenType.NORMAL for id in range(size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens.get(id, f"[unused {id}]") for id in range(size)])
    writer.add_token_types(kinds)
    pairs = (merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"])
    writer.add_token_merges([" ".join(pair) for pair in pairs])
    writer.add_add_bos_token(False)


NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def peer_name(name):
    """llama.cpp's name of a tensor."""
    stem = name.removesuffix(".weight")
    if stem in OUTER:
        return OUTER[stem] + ".weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    rope = config.get("rope_parameters") or config
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(folder.name)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    eos = config["eos_token_id"]
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    writer.add_bos_token_id(config.get("bos_token_id") or 0)
    vocabulary(writer, folder, config["vocab_size"])
    for name, array in tensors(folder):
        if name.endswith("q_proj.weight"):
            array = interleaved(array, heads)
        elif name.endswith("k_proj.weight"):
            array = interleaved(array, kv_heads)
        writer.add_tensor(peer_name(name), np.ascontiguousarray(array if array.ndim > 1 else array.astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{out}: {out.stat().st_size} bytes")


main()
