"""One rank of PyTorch's DistributedDataParallel (gloo) on the same network: python ddp_rank.py MINIBATCHES.

RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME say where it stands; `hosts.py` sets them.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scaling"))
from ddp import network, train

if __name__ == "__main__":
    minibatches = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network())
    train(model, max(minibatches // 10, 1))
    rate = train(model, minibatches)
    if dist.get_rank() == 0:
        print(f"DDP {rate:.0f} samples/s", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may be ended in an order in which they abort the process
