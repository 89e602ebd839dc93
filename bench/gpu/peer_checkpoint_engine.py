#!/usr/bin/env python3
"""checkpoint-engine, unmodified, beside `isthmus bench update --device cuda --layout qwen3-8b`: the same tensors, owned in equal shares
by one parameter server a GPU in pinned host memory, into every parameter of an engine process on each GPU.

    PYTHONPATH=where/checkpoint-engine/lies bench/gpu/peer_checkpoint_engine.py [--gpus N] [--buckets 1,2,4,8] [--repeat 3]

An update's time is that of the slowest rank, as its caller sees it (torch.cuda.synchronize included); the process group is kept
(auto_pg=False), which is the faster of the two ways. What has arrived is compared at the end of each bucket size."""
import argparse
import importlib.metadata
import os
import sys
import time

import torch
import torch.multiprocessing as mp

PORT = 29631


def layout():
    """Names and shapes of Qwen3-8B."""
    hidden, ffn, kv = 4096, 12288, 1024
    yield "model.embed_tokens.weight", (151936, hidden)
    for i in range(36):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (hidden, hidden)
        yield at + "self_attn.k_proj.weight", (kv, hidden)
        yield at + "self_attn.v_proj.weight", (kv, hidden)
        yield at + "self_attn.q_norm.weight", (128,)
        yield at + "self_attn.k_norm.weight", (128,)
        yield at + "self_attn.o_proj.weight", (hidden, hidden)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "mlp.gate_proj.weight", (ffn, hidden)
        yield at + "mlp.up_proj.weight", (ffn, hidden)
        yield at + "mlp.down_proj.weight", (hidden, ffn)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (151936, hidden)


def count(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def share(rank, world):
    """The tensors whose middle lies in this rank's part of all bytes."""
    whole, seen, mine = sum(2 * count(s) for _, s in layout()), 0, []
    for name, shape in layout():
        if int((seen + count(shape)) / whole * world) == rank:
            mine.append((name, shape))
        seen += 2 * count(shape)
    return mine


def make(name, shape):
    seed = sum(name.encode())
    line = (torch.arange(1 << 16, dtype=torch.int32) * 40503 + seed).to(torch.int16)
    n = count(shape)
    return line.repeat((n + line.numel() - 1) // line.numel())[:n].view(torch.bfloat16).reshape(shape).contiguous()


def engine(gpu, uuid, orders, answers):
    import zmq
    from checkpoint_engine.worker import update_weights_from_ipc

    torch.cuda.set_device(gpu)
    context = zmq.Context()
    parameters = {name: torch.empty(shape, dtype=torch.bfloat16, device="cuda") for name, shape in layout()}

    def load(weights):
        for name, weight in weights:
            parameters[name].copy_(weight)

    answers.put("ready")
    while True:
        order = orders.get()
        if order is None:
            return
        if order == "compare":
            wrong = [name for name, p in parameters.items() if not torch.equal(p.view(torch.int16), make(name, p.shape).cuda().view(torch.int16))]
            for p in parameters.values():
                p.zero_()
            torch.cuda.synchronize()
            answers.put(wrong)
            continue
        update_weights_from_ipc(context, dict(order)[uuid], device_id=gpu, run=load, post_hook=torch.cuda.synchronize)


def server(rank, world, buckets, repeat, bar, times):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT))
    from loguru import logger

    logger.remove()
    from checkpoint_engine.ps import ParameterServer, _get_physical_gpu_id

    ps = ParameterServer(auto_pg=False)
    ps.init_process_group()
    context = mp.get_context("spawn")
    orders, answers = context.Queue(), context.Queue()
    worker = context.Process(target=engine, args=(rank, _get_physical_gpu_id(ps.device_manager, rank), orders, answers))
    worker.start()
    tensors = {name: make(name, shape) for name, shape in share(rank, world)}
    answers.get()

    def timed(what, call):
        bar.wait()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times[rank] = time.perf_counter() - start
        bar.wait()
        if rank == 0:
            print(f"{what:44s} {max(times):8.3f} s", flush=True)

    timed("register (named tensors)", lambda: ps.register_checkpoint("bench", named_tensors=tensors))
    timed("gather", lambda: ps.gather_metas("bench"))
    timed("gather, again", lambda: ps.gather_metas("bench"))
    for size in buckets:
        os.environ["PS_MAX_BUCKET_SIZE_GB"] = str(size)
        for i in range(repeat):
            timed(f"update {i + 1}, buckets of at most {size} GiB", lambda: ps.update("bench", orders.put))
        orders.put("compare")
        wrong = answers.get()
        if wrong:
            print(f"rank {rank}: {len(wrong)} parameters are wrong, first {wrong[0]}", flush=True)
            os._exit(1)
    orders.put(None)
    worker.join()
    bar.wait()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    args.add_argument("--buckets", default="0.5,1,2,4,8")
    args.add_argument("--repeat", type=int, default=3)
    o = args.parse_args()
    try:
        import checkpoint_engine  # noqa: F401
    except ImportError as e:
        sys.exit(f"checkpoint-engine can't be imported ({e}): give its folder in PYTHONPATH")
    context = mp.get_context("spawn")
    bar, times = context.Barrier(o.gpus), context.Array("d", o.gpus, lock=False)
    version = importlib.metadata.version("checkpoint-engine")
    print(f"checkpoint-engine {version}, torch {torch.__version__}, {o.gpus} GPUs")
    sizes = [float(x) for x in o.buckets.split(",")]
    ranks = [context.Process(target=server, args=(r, o.gpus, sizes, o.repeat, bar, times)) for r in range(o.gpus)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    return max(p.exitcode or 0 for p in ranks)


if __name__ == "__main__":
    sys.exit(main())
