#!/usr/bin/env python3
"""safetensors' own loader, beside `isthmus bench load --device cuda --checkpoint FOLDER`: all files of the folder onto the first GPU."""
import glob
import os
import sys
import time

import torch
from safetensors.torch import load_file

files = sorted(glob.glob(os.path.join(sys.argv[1], "*.safetensors")))
size = sum(os.path.getsize(f) for f in files)
torch.empty(1, device="cuda")
for i in range(3):
    torch.cuda.synchronize()
    start = time.perf_counter()
    tensors = [load_file(f, device="cuda:0") for f in files]
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    print(f"safetensors load_file {i + 1}: {took:.3f} s, {size / took / 1e9:.2f} GB/s", flush=True)
    del tensors
