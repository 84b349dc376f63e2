"""One of two ranks that train together: `python one_of_two_ranks.py RANK PORT FOLDER`."""

from __future__ import annotations

import sys

import numpy
import torch

import reweigh
from losses.test_adaptive_values import validation

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
try:
    found = {}
    logits, labels = validation(150, 2.0, seed=5)
    mine = slice(0, 101) if rank == 0 else slice(101, 150)
    for name in ("adaptive_focal", "calibration_focal"):
        loss = reweigh.loss(name)
        loss.observe(logits[mine], labels[mine], process_group="world")
        found.update({f"{name}.{key}": value.numpy() for key, value in loss.state().items()})
    logits[3] *= 1e3
    for name in ("MMCE", "KDE-XE", "MDCA", "AURC", "AUGRC"):
        point = logits[mine].clone().requires_grad_()
        value = reweigh.loss(name, process_group="world")(point, labels[mine])
        (gradient,) = torch.autograd.grad(value, point)
        found[name], found[f"{name}.gradient"] = value.detach().numpy(), gradient.numpy()
        # an empty shard takes part in every collective
        empty = logits[:0] if rank == 1 else logits
        loss = reweigh.loss(name, process_group="world")
        loss(empty.clone().requires_grad_(), labels[: len(empty)]).backward()
    numpy.savez(f"{folder}/{rank}.npz", **found)
    torch.distributed.barrier()  # nobody leaves while another still talks
finally:
    torch.distributed.destroy_process_group()
