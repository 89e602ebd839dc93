# SPDX-License-Identifier: Apache-2.0
"""The weights of the workers, as content.c makes them, and a reader of safetensors files that owes nothing to the library."""
import functools
import json
import os
import struct

TENSORS, BLOCK = 10, 251
SMALL = [1, None, 100, 65536, None, 65537, 7, 30000, 0, 4096]


def size_of(tensor, kb):
    return SMALL[tensor] if SMALL[tensor] is not None else kb * 1024 + tensor


@functools.lru_cache(maxsize=64)
def bytes_of(version, tensor, kb):
    x, block = version * 1000 + tensor + 1, bytearray()
    for _ in range(BLOCK):
        x = (x * 1664525 + 1013904223) & 0xffffffff
        block.append(x >> 24)
    n = size_of(tensor, kb)
    return (bytes(block) * (n // BLOCK + 1))[:n]


def write(path, version, kb):
    head, at = {}, 0
    for i in range(TENSORS):
        n = size_of(i, kb)
        head[f"layers.{i}.weight"] = {"dtype": "U8", "shape": [n], "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for i in range(TENSORS):
            f.write(bytes_of(version, i, kb))


def version_of(path, versions, kb):
    """Which of these versions is in that file or folder: None, nothing is there; 0, none of them."""
    if os.path.isdir(path):
        if sorted(os.listdir(path)) != ["model.safetensors"]:
            return 0
        path = os.path.join(path, "model.safetensors")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as f:
        raw = f.read()
    try:
        n = struct.unpack_from("<Q", raw)[0]
        head = json.loads(raw[8:8 + n])
        ends = [head[f"layers.{i}.weight"]["data_offsets"] for i in range(TENSORS)]
    except (struct.error, ValueError, KeyError):
        return 0
    for v in versions:
        if all(raw[8 + n + a:8 + n + b] == bytes_of(v, i, kb) for i, (a, b) in enumerate(ends)):
            return v
    return 0
