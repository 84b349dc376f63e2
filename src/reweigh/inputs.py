"""The boundary of every loss: what came in is checked once and put into one shape.

softmax: logits (n, K) or (n, K, d), targets (n,) or (n, d) of class indices, or soft targets of the
logits' shape. sigmoid: logits of any shape, labels of the same shape. boxes: (n, 4) twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import bad_input
from .validation import place_of

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class Batch:
    """One call's input in its one shape."""

    logits: Tensor
    target: Tensor  # legal everywhere: ignored places hold class 0
    kept: Tensor | None  # places that count, flat for softmax; None: all do
    soft: bool
    shape: tuple[int, ...]  # of the result of reduction="none"
    weight: Tensor | None  # sample_weight, flat for softmax, broadcast to the logits for sigmoid


def check_tensors(logits: Any, target: Any) -> None:
    """Types and devices, for every head."""
    if not isinstance(logits, Tensor):
        raise bad_input("logits", came=type(logits).__name__, expected="a torch tensor of floating-point numbers")
    if logits.layout != torch.strided:
        raise bad_input(
            "logits", came=f"layout {_word(logits.layout)}", expected="a dense tensor", mend="Use .to_dense()."
        )
    if logits.dtype not in FLOATS:
        raise bad_input(
            "logits",
            came=f"type {_word(logits.dtype)}",
            expected="float64, float32, bfloat16 or float16",
            mend="Convert them, for example with logits.float().",
        )
    if not isinstance(target, Tensor):
        raise bad_input(
            "target", came=type(target).__name__, expected="a torch tensor", mend="Use torch.as_tensor(target)."
        )
    if target.device != logits.device:
        raise bad_input(
            "target",
            came=f"device {target.device}",
            expected=f"the device of the logits, {logits.device}",
            mend="Move one with .to().",
        )


def _word(dtype: torch.dtype | torch.layout) -> str:
    return str(dtype).removeprefix("torch.")


def _cpu_eager(tensor: Tensor) -> bool:
    """May values be looked at? Elsewhere a look would make the host wait, or break a trace."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )


def softmax_batch(
    logits: Tensor,
    target: Tensor,
    sample_weight: Any,
    *,
    ignore_index: int,
    validate: bool,
    classes: int | None = None,
    legalize: Callable[[Tensor, int], tuple[Tensor, Tensor]] | None = None,
) -> Batch:
    """The one shape of a softmax call. `legalize` stands in, on a device, for looking at the targets here."""
    check_tensors(logits, target)
    single = logits.dim() == 1  # one decision, (K,) with ()
    if single:
        logits, target = logits.unsqueeze(0), target.unsqueeze(0)
    if logits.dim() == 0:
        raise bad_input("logits", came="a single number", expected="shape (n, K) or (n, K, d1, ...)")
    count = logits.shape[1]
    if count < 2:
        raise bad_input(
            "logits", came=f"{count} class (shape {tuple(logits.shape)})", expected="at least 2 classes in dimension 1",
            mend="For one output a row use a loss with a sigmoid head, such as binary_cross_entropy.",
        )  # fmt: skip
    if classes is not None and count != classes:
        raise bad_input("logits", came=f"{count} classes", expected=f"the {classes} classes this loss was built for")
    shape = (logits.shape[0], *logits.shape[2:])
    soft = target.is_floating_point()
    if target.shape != (logits.shape if soft else shape):
        raise _wrong_target_shape(logits, target, shape)
    if not soft and target.dtype not in INTEGERS:
        raise bad_input(
            "target", came=f"type {_word(target.dtype)}", expected="integer class indices or floating soft targets"
        )
    z = logits if logits.dim() <= 2 else logits.flatten(2)
    weight = None if sample_weight is None else softmax_weight(sample_weight, logits, shape, validate)
    kept = None
    if soft:
        target = target if logits.dim() <= 2 else target.flatten(2)
        if validate and _cpu_eager(target):
            _check_shares(target, z)
    else:
        target = target if logits.dim() <= 2 else target.flatten(1)
        if legalize is not None:
            target, kept = legalize(target.long(), count)
        else:
            target, kept = _legal_indices(target.long(), count, ignore_index, validate, shape)
    return Batch(z, target, kept, soft, () if single else shape, weight)


def _wrong_target_shape(logits: Tensor, target: Tensor, shape: tuple[int, ...]) -> Exception:
    mend = ""
    if target.shape == logits.shape:
        mend = "Labels of the logits' shape are soft targets: convert them with target.float()."
    elif target.is_floating_point() and target.shape == shape:
        mend = "Class indices are integers: convert them with target.long()."
    expected = f"class indices of shape {shape}, or soft targets of shape {tuple(logits.shape)}"
    return bad_input(
        "target", came=f"{_word(target.dtype)} of shape {tuple(target.shape)}", expected=expected, mend=mend
    )


def _legal_indices(
    target: Tensor, count: int, ignore_index: int, validate: bool, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor | None]:
    """Targets that are legal everywhere, and which of them count (flat; None: all). `shape`: as the user gave them."""
    if _cpu_eager(target):
        if target.numel() == 0:
            return target, None
        low, high = torch.aminmax(target)
        inside = low.item() >= 0 and high.item() < count
        if inside and not 0 <= ignore_index < count:
            return target, None
        kept = target != ignore_index
        if not inside and validate:
            wrong = kept & ((target < 0) | (target >= count))
            if bool(wrong.any()):
                where = tuple(int(i) for i in wrong.nonzero()[0])
                raise bad_input(
                    "target",
                    came=f"class {int(target[where])} at {place_of(where, shape)}",
                    expected=f"indices from 0 to {count - 1}, or ignore_index={ignore_index}",
                )
        if bool(kept.all()):
            return target, None
        return torch.where(kept, target, 0).clamp(0, count - 1), kept.reshape(-1)
    kept = target != ignore_index
    return torch.where(kept, target, 0).clamp(0, count - 1), kept.reshape(-1)


def _check_shares(target: Tensor, z: Tensor) -> None:
    """Soft targets: not negative, rows that sum to one, nothing on a masked class."""
    if target.numel() == 0:
        return
    sums = target.sum(1, dtype=torch.float64 if target.dtype == torch.float64 else torch.float32)
    slack = {torch.float64: 1e-6, torch.float32: 1e-4}.get(target.dtype, 2e-2)
    wrong = ~((sums - 1).abs() <= slack)
    if bool(wrong.any()):
        where = tuple(int(i) for i in wrong.nonzero()[0])
        raise bad_input(
            "target",
            came=f"soft targets that sum to {float(sums[where]):.6g} at {'row ' + str(where[0]) if len(where) == 1 else where}",
            expected="rows that sum to 1",
            mend="For several labels at once use a loss with a sigmoid head.",
        )
    if not target.amin().item() >= 0:
        where = tuple(int(i) for i in (~(target >= 0)).nonzero()[0])
        raise bad_input("target", came=f"{float(target[where])} at position {where}", expected="shares of at least 0")
    if z.detach().amin().item() > -torch.inf:  # nothing is masked
        return
    closed = (z == -torch.inf) & (target > 0)
    if bool(closed.any()):
        where = tuple(int(i) for i in closed.nonzero()[0])
        raise bad_input(
            "target", came=f"a share of {float(target[where]):g} at position {where}, whose logit is -inf",
            expected="no share on a masked class",
        )  # fmt: skip


def weights_tensor(sample_weight: Any, logits: Tensor, validate: bool) -> Tensor:
    """sample_weight as a tensor of the right device, checked to be finite and not negative."""
    if not isinstance(sample_weight, Tensor):
        try:
            sample_weight = torch.as_tensor(sample_weight, device=logits.device)
        except (TypeError, ValueError, RuntimeError):
            came = f"{type(sample_weight).__name__} {sample_weight!r:.60}"
            raise bad_input("sample_weight", came=came, expected="a tensor, an array or a list of numbers") from None
    if sample_weight.device != logits.device:
        raise bad_input(
            "sample_weight", came=f"device {sample_weight.device}", expected=f"that of the logits, {logits.device}"
        )
    weight = sample_weight.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    if validate and _cpu_eager(weight) and weight.numel():
        wrong = ~((weight >= 0) & (weight < torch.inf))
        if bool(wrong.any()):
            where = tuple(int(i) for i in wrong.nonzero()[0])
            raise bad_input("sample_weight", came=f"{float(weight[where])} at index {where[0] if len(where) == 1 else where}", expected="finite numbers of at least 0")  # fmt: skip
    return weight


def softmax_weight(sample_weight: Any, logits: Tensor, shape: tuple[int, ...], validate: bool) -> Tensor:
    """sample_weight, one number a row, flat."""
    weight = weights_tensor(sample_weight, logits, validate)
    if tuple(weight.shape) == shape:
        return weight.reshape(-1)
    if weight.shape == (shape[0],):
        return weight.view(-1, *[1] * (len(shape) - 1)).expand(shape).reshape(-1)
    raise bad_input(
        "sample_weight", came=f"shape {tuple(weight.shape)}", expected=f"({shape[0]},) or the targets' shape {shape}"
    )


def sigmoid_batch(
    logits: Tensor,
    target: Tensor,
    sample_weight: Any,
    *,
    ignore_index: int,
    index: bool,
    validate: bool,
    classes: int | None,
) -> Batch:
    """The one shape of a sigmoid call: labels of the logits' shape, or class indices where the loss was built for them."""
    check_tensors(logits, target)
    if classes is not None and logits.dim() < 2:
        raise bad_input(
            "logits",
            came=f"shape {tuple(logits.shape)}",
            expected=f"(n, {classes}, ...): this loss has a state for each class",
        )
    if classes is not None and logits.shape[1] != classes:
        raise bad_input(
            "logits", came=f"{logits.shape[1]} classes", expected=f"the {classes} classes this loss was built for"
        )
    kept = None
    if index:
        target, kept = _one_against_rest(logits, target, ignore_index, validate)
    elif target.shape != logits.shape:
        raise _wrong_label_shape(logits, target)
    else:
        kept = _kept_labels(target, ignore_index, validate)
    soft = target.is_floating_point()
    weight = None if sample_weight is None else sigmoid_weight(sample_weight, logits, validate)
    return Batch(logits, target, kept, soft, tuple(logits.shape), weight)


def sigmoid_weight(sample_weight: Any, logits: Tensor, validate: bool) -> Tensor:
    """sample_weight, broadcastable to the logits."""
    weight = weights_tensor(sample_weight, logits, validate)
    if weight.shape == logits.shape:
        return weight
    row_shape = (logits.shape[0], *logits.shape[2:]) if logits.dim() > 1 else logits.shape
    if tuple(weight.shape) == tuple(row_shape) and logits.dim() > 1:
        return weight.unsqueeze(1)
    if weight.shape == logits.shape[:1]:
        return weight.view(-1, *[1] * (logits.dim() - 1))
    raise bad_input("sample_weight", came=f"shape {tuple(weight.shape)}", expected=f"({logits.shape[0] if logits.dim() else 1},) or {tuple(logits.shape)}")  # fmt: skip


def _wrong_label_shape(logits: Tensor, target: Tensor) -> Exception:
    mend = ""
    if logits.dim() > 1 and target.shape == (logits.shape[0], *logits.shape[2:]) and not target.is_floating_point():
        mend = "These look like class indices: build the loss with targets='index', or one-hot encode them."
    elif target.numel() == logits.numel():
        mend = "Reshape one of them: target.view_as(logits)."
    return bad_input(
        "target",
        came=f"shape {tuple(target.shape)}",
        expected=f"labels of the logits' shape {tuple(logits.shape)}",
        mend=mend,
    )


def _one_against_rest(
    logits: Tensor, target: Tensor, ignore_index: int, validate: bool
) -> tuple[Tensor, Tensor | None]:
    """Class indices as boolean labels of the logits' shape; ignored rows are not kept."""
    if logits.dim() < 2:
        raise bad_input("logits", came=f"shape {tuple(logits.shape)}", expected="(n, K, ...) for class indices")
    shape = (logits.shape[0], *logits.shape[2:])
    if target.shape != shape or target.dtype not in INTEGERS:
        raise bad_input(
            "target",
            came=f"{_word(target.dtype)} of shape {tuple(target.shape)}",
            expected=f"class indices of shape {shape} (targets='index')",
        )
    legal, kept = _legal_indices(target.long(), logits.shape[1], ignore_index, validate, shape)
    labels = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device).scatter(1, legal.unsqueeze(1), True)
    return labels, None if kept is None else kept.view(shape).unsqueeze(1).expand(logits.shape)


def _kept_labels(target: Tensor, ignore_index: int, validate: bool) -> Tensor | None:
    """Which labels count (None: all); on the CPU one look at the smallest and largest usually settles it."""
    if target.dtype == torch.bool:
        return None
    if not _cpu_eager(target):
        return target != ignore_index
    if target.numel() == 0:
        return None
    low, high = torch.aminmax(target)
    if low.item() >= 0 and high.item() <= 1 and not 0 <= ignore_index <= 1:
        return None
    kept = target != ignore_index
    wrong = ~((target >= 0) & (target <= 1)) & kept
    if validate and bool(wrong.any()):
        where = tuple(int(i) for i in wrong.nonzero()[0])
        floating = target.is_floating_point()
        raise bad_input(
            "target",
            came=f"{target[where].item()} at position {where}",
            expected=f"labels {'from 0 to 1' if floating else '0 and 1'}, or ignore_index={ignore_index}",
            mend="" if floating else "Class indices need a loss built with targets='index'.",
        )
    return kept


def box_batch(boxes: Tensor, target: Tensor, sample_weight: Any, *, validate: bool) -> Batch:
    """Predicted and true boxes, (n, 4) as x1 y1 x2 y2."""
    check_tensors(boxes, target)
    for name, value in (("boxes", boxes), ("target", target)):
        if value.dim() != 2 or value.shape[1] != 4:
            raise bad_input(name, came=f"shape {tuple(value.shape)}", expected="(n, 4): x1, y1, x2, y2 in pixels")
    if len(boxes) != len(target):
        raise bad_input(
            "target", came=f"{len(target)} boxes", expected=f"one for each of the {len(boxes)} predicted boxes"
        )
    if validate and _cpu_eager(boxes):
        for name, value in (("boxes", boxes), ("target", target)):
            bad = ~torch.isfinite(value).all(1)
            if name == "target":
                bad = bad | (value[:, 2:] < value[:, :2]).any(1)
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                raise bad_input(
                    name, came=f"{value[row].tolist()} in row {row}", expected="finite corners, x1 <= x2 and y1 <= y2"
                )
    weight = None if sample_weight is None else weights_tensor(sample_weight, boxes, validate)
    if weight is not None and weight.shape != (len(boxes),):
        raise bad_input("sample_weight", came=f"shape {tuple(weight.shape)}", expected=f"({len(boxes)},)")
    return Batch(boxes, target, None, False, (len(boxes),), weight)
