"""Bad values: found on per-row results, raised at once on the CPU, at the next call on a device.

On a device no check may make the host wait. The first bad (row, code) is kept, packed in one number, by
an atomic minimum in a tensor on the device. From there it comes to the host by itself (kernels write it
into pinned memory when there is something to tell, other forms copy it without waiting), and is raised at
the next call, or at `loss.check()`, which waits for it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import InputError, bad_input

NOTHING = 2**62
OUT_OF_RANGE, NOT_FINITE, IMPOSSIBLE, BAD_WEIGHT, BAD_LABEL = 1, 2, 3, 4, 5
MEANING = {
    OUT_OF_RANGE: ("a target out of range", "class indices from 0 to K - 1, or ignore_index"),
    NOT_FINITE: ("NaN or +inf in logits", "finite logits (-inf only where a class is masked)"),
    IMPOSSIBLE: ("a logit of -inf on the target", "a target that is not masked"),
    BAD_WEIGHT: ("a sample_weight that is negative or not finite", "finite weights of at least 0"),
    BAD_LABEL: ("a label outside 0 to 1", "labels from 0 to 1, or ignore_index"),
}


@dataclass
class Findings:
    """What was found on devices and not yet said; one to a loss, never saved."""

    pending: dict[torch.device, tuple[Tensor, Tensor, ctypes.c_longlong]] = field(default_factory=dict)

    def flag(self, device: torch.device) -> Tensor:
        """The device's number, smaller than NOTHING once something bad was seen."""
        if device not in self.pending:
            on_device = torch.full((), NOTHING, dtype=torch.int64, device=device)
            on_host = torch.full((), NOTHING, dtype=torch.int64, pin_memory=device.type == "cuda")
            self.pending[device] = (on_device, on_host, ctypes.c_longlong.from_address(on_host.data_ptr()))
        return self.pending[device][0]

    def addresses(self, device: torch.device) -> tuple[int, int]:
        """Where a kernel lowers the device's number, and where it tells the host of it."""
        self.flag(device)
        on_device, on_host, _ = self.pending[device]
        return on_device.data_ptr(), on_host.data_ptr()

    def note(self, codes: Tensor) -> None:
        """Keep the first nonzero code of (n,) int64 codes, without waiting."""
        if codes.numel() == 0:
            return
        flag = self.flag(codes.device)
        rows = torch.arange(codes.numel(), device=codes.device)
        packed = torch.where(codes > 0, rows * 8 + codes, NOTHING)
        flag.copy_(torch.minimum(flag, packed.amin()))
        self.send(codes.device)

    def send(self, device: torch.device) -> None:
        """Copy the device's number to the host, without waiting."""
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return  # a graph replays the kernels; `check` reads the flag
        on_device, on_host, _ = self.pending[device]
        on_host.copy_(on_device, non_blocking=True)

    def raise_arrived(self, *, wait: bool = False) -> None:
        """Raise what has arrived; with `wait`, everything up to now."""
        for device, (on_device, on_host, told) in self.pending.items():
            if not wait and told.value == NOTHING:
                continue
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                continue
            packed = int(on_device if wait else on_host)
            if packed < NOTHING:
                on_device.fill_(NOTHING)
                on_host.fill_(NOTHING)
                raise deferred_error(packed)


def deferred_error(packed: int) -> InputError:
    """The error for a packed (row, code)."""
    came, expected = MEANING[packed % 8]
    return bad_input(
        "an earlier call of this loss",
        came=f"{came} at row {packed // 8} (rows counted over the flattened batch)",
        expected=expected,
        mend="Checks on a device are raised one call later; loss.check() raises them at once.",
    )


def softmax_codes(z: Tensor, target: Tensor, log_odds: Tensor, kept: Tensor | None) -> Tensor:
    """The code of each row, flat; from per-row results alone. z (n, K, ...), target (n, ...), log_odds (n, ...)."""
    true = z.gather(1, target.unsqueeze(1)).squeeze(1).reshape(-1)
    odds = log_odds.reshape(-1)
    codes = torch.where(torch.isfinite(odds), 0, torch.where(true == -torch.inf, IMPOSSIBLE, NOT_FINITE))
    return codes if kept is None else torch.where(kept.reshape(-1), codes, 0)


def raise_bad_softmax_rows(
    z: Tensor, target: Tensor, rows: Tensor, kept: Tensor | None, shape: tuple[int, ...] = ()
) -> None:
    """Look closely at suspicious rows (a boolean mask of the targets' shape) and raise for the first bad one.

    `shape`: of the targets as they were given, before their dimensions after the first were made one.
    """
    if kept is not None:
        rows = rows & kept.view(rows.shape)
    places = rows.nonzero()
    suspects = z.detach().movedim(1, -1)[rows]  # (m, K)
    true = suspects.gather(1, target[rows].unsqueeze(1)).squeeze(1)
    bad = torch.isnan(suspects).any(1) | (suspects == torch.inf).any(1) | (true == -torch.inf)
    if not bool(bad.any()):
        return
    first = int(bad.nonzero()[0])
    row, where = suspects[first], place_of(places[first].tolist(), shape)
    wrong = torch.isnan(row) | (row == torch.inf)
    if bool(wrong.any()):
        column = int(wrong.nonzero()[0])
        raise bad_input(
            "logits",
            came=f"{float(row[column])} at {where}, class {column}",
            expected="finite numbers, or -inf where a class is masked",
            mend="Look for an overflow or a division by zero before the last layer.",
        )
    raise bad_input(
        "target",
        came=f"class {int(target[rows][first])} at {where}, whose logit is -inf",
        expected="a target whose class is not masked",
    )


def place_of(index: Sequence[int], shape: tuple[int, ...]) -> str:
    """Where something is, in words: a row, or a position in targets of `shape`, whose last dimensions may be one here."""
    if len(index) == 1:
        return f"row {index[0]}"
    if len(index) == len(shape):
        return f"position {tuple(index)}"
    place, rest = [], index[1]
    for size in reversed(shape[1:]):
        place.append(rest % size)
        rest //= size
    return f"position {(index[0], *reversed(place))}"


def raise_bad_sigmoid(z: Tensor, positive: Tensor | None, kept: Tensor | None) -> None:
    """Raise for the first NaN, +inf, or -inf under a present label."""
    bad = torch.isnan(z) | (z == torch.inf)
    if positive is not None:
        bad = bad | ((z == -torch.inf) & positive)
    if kept is not None:
        bad = bad & kept
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise bad_input(
            "logits",
            came=f"{float(z[where])} at position {where}",
            expected="finite numbers (-inf only for absent labels)",
        )
