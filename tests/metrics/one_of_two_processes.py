"""One of two processes that share a metric: `python one_of_two_processes.py RANK PORT FOLDER`."""

from __future__ import annotations

import sys

import numpy
import torch

from metrics.metric_tables import logits_and_labels
from metrics.test_torchmetrics import CASES
from reweigh.metrics import torchmetrics_class

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
try:
    logits, labels = logits_and_labels(rows=210)
    mine = slice(0, 140) if rank == 0 else slice(140, 210)
    for number, (name, settings) in enumerate(CASES[:7]):
        metric = torchmetrics_class(name, num_classes=4, **settings)()
        metric.update(torch.tensor(logits)[mine], torch.tensor(labels)[mine])
        numpy.save(f"{folder}/{rank}-{number}.npy", metric.compute().numpy())
finally:
    torch.distributed.destroy_process_group()
