"""Prints as JSON how the matrices of a GGUF file are stored: the names of each type's, and which of them is the head.

usage: python3 tensor_types.py FILE.gguf          needs the package `gguf`
"""

import json
import sys

import gguf


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    matrices = {}
    for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
        if len(tensor.shape) > 1:
            matrices.setdefault(tensor.tensor_type.name, []).append(tensor.name)
    names = {name for group in matrices.values() for name in group}
    # llama.cpp scores with the embedding table where there is no head.
    head = "output.weight" if "output.weight" in names else "token_embd.weight"
    print(json.dumps({"head": head, "matrices": matrices}))


main()
