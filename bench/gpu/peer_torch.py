#!/usr/bin/env python3
"""What torch's NCCL world takes, to be held against `isthmus bench group --device cuda --backend nccl`: RANKS processes on this
machine, rank r on GPU r modulo their number. Several on one GPU need NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL 2.30 or newer."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def first_use(group, x):
    dist.all_reduce(x, group=group)
    torch.cuda.synchronize()


def median_of(repeat, call):
    times = []
    for _ in range(repeat):
        dist.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def member(rank, world, port):
    torch.cuda.set_device(rank % torch.cuda.device_count())
    x = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    start = time.perf_counter()
    dist.init_process_group("nccl", rank=rank, world_size=world)
    first_use(None, x)
    fresh = time.perf_counter() - start
    warm = median_of(5, lambda: first_use(dist.new_group(list(range(world))), x))
    barrier = median_of(50, lambda: first_use(None, x))
    big = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")

    def broadcast():
        dist.broadcast(big, 0)
        torch.cuda.synchronize()

    broadcast()
    rate = big.numel() / median_of(5, broadcast) / 1e9
    if rank == 0:
        print(f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, {world} ranks")
        print(f"  init_process_group + first all_reduce   {fresh * 1e3:8.1f} ms")
        print(f"  new_group + first all_reduce            {warm * 1e3:8.1f} ms")
        print(f"  all_reduce of one element, synchronised {barrier * 1e6:8.1f} us")
        print(f"  broadcast of 1 GiB                      {rate:8.1f} GB/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count()
    mp.spawn(member, args=(ranks, int(sys.argv[2]) if len(sys.argv) > 2 else 29517), nprocs=ranks)
