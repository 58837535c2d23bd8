"""What ``benchmarks.restart`` compares with: a program that torchrun starts and starts again, with DCP's checkpoints.

    torchrun --standalone --nproc-per-node 4 --max-restarts 3 -m benchmarks.restart_torchrun FOLDER

The store is prefixed by the attempt: without it, the second attempt on gloo never forms its group. A step's end goes
into FOLDER/steps-<attempt>.jsonl (rank 0), a rank's process id into FOLDER/pid-<attempt>-<rank>.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

VOCAB, WIDTH, LAYERS, HEADS, LENGTH, ROWS, EVERY, STEPS = 101, 128, 4, 4, 32, 2, 5, 40


def main(folder: Path) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False
    )
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(f"attempt{attempt}", store), rank=rank, world_size=size
    )
    (folder / f"pid-{attempt}-{rank}").write_text(str(os.getpid()))
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    plain = nn.Sequential(
        nn.Embedding(VOCAB, WIDTH), nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, VOCAB)
    )
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    start = _load(folder, model, optimizer)
    rows = open(folder / f"steps-{attempt}.jsonl", "a", buffering=1) if rank == 0 else None  # noqa: SIM115
    for step in range(start + 1, STEPS + 1):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        tokens = torch.randint(0, VOCAB, (ROWS, LENGTH + 1), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rows is not None:
            rows.write(json.dumps({"step": step, "unix_s": time.time()}) + "\n")
        if step % EVERY == 0:
            _save(folder, step, model, optimizer)
    dist.destroy_process_group()


def _save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / f"step-{step:08d}")


def _load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The newest complete checkpoint: DCP writes ``.metadata`` last."""
    whole = sorted(path.parent for path in folder.glob("step-*/.metadata"))
    if not whole:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=whole[-1])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(whole[-1].name.removeprefix("step-"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
