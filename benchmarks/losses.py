"""Losses on the CPU: time of forward and backward over torch's cross-entropy, and extra memory over it, in one run.

Run alone with `python -m benchmarks.losses [--quick] [NAME...]`. Rounds are interleaved, so that a machine that slows
down slows everything; the figure is the lower quartile of the process's own time, on one thread.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

# without these the allocator gives large buffers back at every step, and the same code takes 2 or 22 ms
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import reweigh  # noqa: E402
from reweigh import registry  # noqa: E402

Step = partial


def step(loss: Callable, logits: torch.Tensor, target: torch.Tensor) -> Step:
    """One forward and backward pass."""
    return partial(_run, loss, logits, target)


def _run(loss: Callable, logits: torch.Tensor, target: torch.Tensor) -> None:
    logits.grad = None
    loss(logits, target).backward()


def interleaved(steps: dict[str, Step], rounds: int, seconds: float) -> dict[str, float]:
    """Lower quartile of the time of each step, rounds taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for run in steps.values():
        run()
        run()
    start = time.perf_counter()
    for _ in range(rounds):
        for name, run in steps.items():
            before = time.process_time()
            run()
            taken[name].append(time.process_time() - before)
        if time.perf_counter() - start > seconds:
            break
    return {name: sorted(times)[len(times) // 4] for name, times in taken.items()}


def peak_bytes(loss: Callable, logits: torch.Tensor, target: torch.Tensor) -> int:
    """The most memory alive at once beyond the inputs, from the profiler's record of allocations."""
    logits.grad = None
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss(logits, target).backward()
    changes = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = highest = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        highest = max(highest, alive)
    return highest


# ---------------------------------------------------------------------------- what ours is compared with


def plain_focal(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    log_p = F.log_softmax(logits, 1).gather(1, target[:, None]).squeeze(1)
    return ((1 - log_p.exp()) ** 2 * -log_p).mean()


def plain_dual_focal(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    log_all = F.log_softmax(logits, 1)
    p = log_all.exp()
    log_p, true = log_all.gather(1, target[:, None]).squeeze(1), p.gather(1, target[:, None]).squeeze(1)
    rival = p.scatter(1, target[:, None], 0.0).amax(1)
    return ((1 - true + rival) ** 5 * -log_p).mean()


def plain_brier(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((F.softmax(logits, 1) - F.one_hot(target, logits.shape[1])) ** 2).sum(1).mean()


def plain_confidence_penalty(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    log_all = F.log_softmax(logits, 1)
    return (F.nll_loss(log_all, target, reduction="none") + 0.1 * (log_all.exp() * log_all).sum(1)).mean()


def published_selective_risk(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """What the published program computes: the softmax twice, n x M sigmoids under autograd, everything clamped."""
    scores = F.softmax(F.softmax(logits, 1), 1).clamp(1e-9, 1 - 1e-9).max(1).values
    edges = torch.linspace(0, 1, 65)
    centres = (edges[1:] + edges[:-1]) / 2
    with torch.no_grad():
        place = (torch.bucketize(scores, edges, right=True) - 1).clamp(0, 63)
        counts = torch.bincount(place, minlength=64).float().clamp(min=1e-12)
    tau = torch.quantile(scores, 0.8)
    below = (torch.sigmoid((scores[:, None] - centres) / 0.01) * counts).sum(1) / counts.sum()
    at_tau = (torch.sigmoid((tau - centres) / 0.01) * counts).sum() / counts.sum()
    n = len(target)
    below, at_tau = below.clamp(1 / (n + 1), n / (n + 1)), at_tau.clamp(1 / (n + 1), n / (n + 1))
    weight = torch.where(scores >= tau, -torch.log(1 - at_tau), -torch.log(1 - below))
    return (weight * F.cross_entropy(logits, target, reduction="none")).mean()


def plain_binary_focal(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    p = torch.sigmoid(logits)
    true = p * target + (1 - p) * (1 - target)
    return ((1 - true) ** 2 * F.binary_cross_entropy_with_logits(logits, target, reduction="none")).mean()


def peers() -> dict[str, tuple[str, Callable]]:
    """The peers that are installed: name -> (head, loss)."""
    found: dict[str, tuple[str, Callable]] = {}

    def enter(name: str, head: str, module: str, build: Callable) -> None:
        try:
            found[name] = (head, build(importlib.import_module(module)))
        except Exception as error:  # a peer that does not import is left out, and said so
            print(f"left out: {name} ({type(error).__name__}: {str(error)[:60]})", file=sys.stderr)

    enter("torchvision sigmoid_focal_loss", "sigmoid", "torchvision.ops", lambda m: lambda z, y: m.sigmoid_focal_loss(z, y, reduction="mean"))  # fmt: skip
    enter("timm AsymmetricLossMultiLabel", "sigmoid", "timm.loss", lambda m: m.AsymmetricLossMultiLabel())
    enter("timm AsymmetricLossSingleLabel", "softmax", "timm.loss", lambda m: m.AsymmetricLossSingleLabel())
    enter(
        "kornia FocalLoss", "softmax", "kornia.losses", lambda m: m.FocalLoss(alpha=None, gamma=2.0, reduction="mean")
    )
    enter("torch-uncertainty FocalLoss", "softmax", "torch_uncertainty.losses", lambda m: m.FocalLoss(gamma=2.0))
    return found


# ---------------------------------------------------------------------------- the tables


def settings_of(name: str, classes: int) -> dict:
    """What a loss cannot be built without."""
    counts = {"class_counts": [1000.0 / (1 + k) for k in range(classes)]}
    return {
        "seesaw": counts,
        "equalization": {"num_classes": classes},
        "deferred": {"loss": reweigh.loss("cross_entropy"), **counts},
        **dict.fromkeys(("class_balanced", "margin_aware", "logit_adjusted", "balanced_softmax", "vector_scaling", "distribution_balanced"), counts),
    }.get(name, {})  # fmt: skip


def losses_of(head: str, classes: int, only: list[str]) -> dict[str, Callable]:
    built = {}
    for name in registry.names("loss"):
        if only and name not in only:
            continue
        loss = reweigh.loss(name, **settings_of(name, classes))
        if loss.rule.head == head:
            built[name] = loss.train(False)
    return built


def table(title: str, steps: dict[str, Step], floor: str, rounds: int, seconds: float, memory: bool) -> None:
    times = interleaved(steps, rounds, seconds)
    print(f"\n{title}\n{'':42}{'ms':>10}{'x':>8}{'extra MB' if memory else '':>10}")
    for name, taken in times.items():
        extra = f"{peak_bytes(*steps[name].args) / 1e6:10.1f}" if memory else ""
        print(f"{name:42}{taken * 1e3:10.3f}{taken / times[floor]:8.2f}{extra}")


def softmax_table(rows: int, classes: int, only: list[str], quick: bool) -> None:
    torch.manual_seed(0)
    logits = (2 * torch.randn(rows, classes)).requires_grad_()
    target = torch.randint(0, classes, (rows,))
    with torch.no_grad():
        logits[torch.arange(rows // 2), target[: rows // 2]] += 8.0  # half of the rows are right, as in training
    steps = {"torch cross_entropy": step(F.cross_entropy, logits, target)}
    plain = {
        "plain focal": plain_focal,
        "plain dual focal": plain_dual_focal,
        "plain brier": plain_brier,
        "plain confidence penalty": plain_confidence_penalty,
        "published selective risk": published_selective_risk,
    }
    steps |= {name: step(loss, logits, target) for name, loss in plain.items()}
    steps |= {name: step(loss, logits, target) for name, (head, loss) in peers().items() if head == "softmax"}
    steps |= {name: step(loss, logits, target) for name, loss in losses_of("softmax", classes, only).items()}
    rounds, seconds = (3, 20.0) if quick else (200 if rows < 1000 else 15, 90.0)
    table(f"softmax, {rows:,} x {classes:,} float32", steps, "torch cross_entropy", rounds, seconds, rows >= 1000)


def sigmoid_table(rows: int, classes: int, only: list[str], quick: bool) -> None:
    torch.manual_seed(0)
    logits = (2 * torch.randn(rows, classes) - 2).requires_grad_()
    target = (torch.rand(rows, classes) < 0.05).float()
    steps = {"torch binary_cross_entropy": step(F.binary_cross_entropy_with_logits, logits, target)}
    steps["plain binary focal"] = step(plain_binary_focal, logits, target)
    steps |= {name: step(loss, logits, target) for name, (head, loss) in peers().items() if head == "sigmoid"}
    steps |= {name: step(loss, logits, target) for name, loss in losses_of("sigmoid", classes, only).items()}
    table(
        f"sigmoid, {rows:,} x {classes:,} float32", steps, "torch binary_cross_entropy", 2 if quick else 6, 120.0, True
    )


def cdf_table() -> None:
    """The smoothed distribution of a million scores: ours, and the n x M form."""
    from reweigh.losses._score_histogram import histogram, smoothed_distribution

    torch.manual_seed(0)
    scores = torch.rand(1_000_000, dtype=torch.float64) ** 0.3
    counts = histogram(scores, None, 64)
    centres = (torch.arange(64, dtype=torch.float64) + 0.5) / 64

    def direct() -> torch.Tensor:
        return torch.sigmoid((scores[:, None] - centres) / 0.01) @ (counts / counts.sum())

    def ours() -> torch.Tensor:
        return smoothed_distribution(scores, counts, 0.01)

    times = interleaved({"n x M": direct, "ours": ours}, 3, 30.0)
    error = (direct() - ours()).abs().max().item()
    print(
        f"\nsmoothed CDF of 1e6 scores: ours {times['n x M'] / times['ours']:.1f} times faster, largest error {error:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these losses")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks.losses", *sys.argv[1:]], {**os.environ, **ALLOCATOR}
        )
    warnings.simplefilter("ignore")  # flat weights on random logits
    torch.set_num_threads(1)
    softmax_table(4096, 1000, arguments.names, arguments.quick)
    softmax_table(1024, 1000, arguments.names or ["selective_risk"], arguments.quick)
    softmax_table(128, 10, arguments.names, arguments.quick)
    sigmoid_table(100_000, 80, arguments.names, arguments.quick)
    cdf_table()


if __name__ == "__main__":
    main()
