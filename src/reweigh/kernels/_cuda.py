"""The kernels on NVIDIA GPUs, as the dispatch table sees them: what is served, and by which launch.

A softmax head has two ways. `softmax_forward` and `softmax_backward` make evidence and take its gradient: two readings
of the logits, for rules that look at the whole batch or cannot be traced. `softmax_total` has the rule priced inside
the kernel, which writes the gradient in the forward pass: one reading. A sigmoid head has `sigmoid_total`, of that
second kind. `multiply` is their backward pass.

Nothing here waits for the device: bad numbers are noted in a flag (see `validation.Findings`), what a mean divides by
stays on the device. float64 takes the composite form. Kernels are CUDA C++ (`softmax.cu`, `sigmoid.cu`, `rows.cu`),
compiled when a rule, a type and a form of row are first met, in about a second, and kept.

float32 arithmetic throughout, sums of costs in float64; what is said of the first choice (`confidence_log_odds`,
`log_top`, `log_second`, `entropy`) is summed in float64 over float32 terms and does not depend on the classes' order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from . import _sigmoid, _softmax, _statistics
from ._compiler import why_not
from ._launch import LABEL_NAMES, legal_targets, multiply, sum_of_weights

TYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_CLASSES = 2**30

legal_targets = legal_targets
multiply = multiply
sum_of_weights = sum_of_weights
count_in_bins = _statistics.count_in_bins
quantile = _statistics.quantile
cubic_pieces = _statistics.cubic_pieces
softmax_total = _softmax.total
sigmoid_total = _sigmoid.total
HARD, SOFT, OWN, INDEX = _sigmoid.HARD, _sigmoid.SOFT, _sigmoid.OWN, _sigmoid.INDEX
LABELS = tuple(LABEL_NAMES)
SoftmaxPricing = _softmax.Pricing
SigmoidPricing = _sigmoid.Pricing

_able: dict[int, bool] = {}


def serves(tensor: Tensor, head: str) -> bool:
    """Both heads, in float32, bfloat16 and float16, on devices that the compiler knows."""
    if tensor.dtype not in TYPES or (head == "softmax" and not 2 <= tensor.shape[1] <= MOST_CLASSES):
        return False
    return able(tensor.device)


def able(device: torch.device) -> bool:
    """Can kernels be compiled for this device, and run?"""
    if device.index not in _able:
        _able[device.index] = why_not(device) is None
    return _able[device.index]


def softmax_forward(z: Tensor, target: Tensor, link: Any) -> tuple[dict[str, Tensor], Any]:
    """The needed fields; what the backward pass reads again are the logits, so nothing else is kept."""
    fields = _softmax.forward(z, target, link)
    if fields is not None:
        return fields, link
    with torch.no_grad():  # the compiler refused
        link.forced.append(link.sole(z, target))
        return link.composite(z, target), link


def softmax_backward(z: Tensor, target: Tensor, link: Any, residue: Any, given: Mapping[str, Tensor]) -> Tensor:
    """The gradient for the logits, in their type."""
    gradient = _softmax.backward(z, target, link, given)
    if gradient is not None:
        return gradient
    again = z.detach().requires_grad_()
    with torch.enable_grad():
        fields = link.composite(again, target)
    return torch.autograd.grad([fields[name] for name in given], again, list(given.values()), materialize_grads=True)[0]


def describe() -> str:
    """Which way losses take on this machine's GPUs, and why."""
    if not torch.cuda.is_available():
        return "composite PyTorch operators: there is no NVIDIA device"
    lines = []
    for index in range(torch.cuda.device_count()):
        reason = why_not(torch.device("cuda", index))
        way = (
            "generated kernels (float64: composite PyTorch operators)"
            if reason is None
            else f"composite PyTorch operators: {reason}"
        )
        lines.append(f"cuda:{index}: {way}")
    return "; ".join(lines)
