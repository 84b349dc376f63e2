"""Four losses on long-tailed digits: what each one misses, and whether its confidence can be believed.

    make demo            about half a minute on two cores, no network

scikit-learn carries 1,797 handwritten digits. Of the digit 0 the networks see 80, of the digit 9 only 4, as
happens with rare diseases, defects and animals; the test set is balanced. Each loss trains the same small
network on the same splits, five times, so that every figure has a spread and every difference is paired.
"""

from __future__ import annotations

import math
import statistics
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import reweigh
from reweigh import metrics
from reweigh.cli._progress import track
from reweigh.cli._tables import table

RUNS = 5
EPOCHS = 40
BATCH = 32
MOST, FEWEST = 80, 4  # training pictures of the digits 0 and 9
VALIDATION, TEST = 20, 70  # pictures a digit
FEW = 10  # a digit with fewer training pictures is rare
MISSED = 0.75  # a digit recognised less often than this is missed
COUNTS = [round(MOST * (FEWEST / MOST) ** (digit / 9)) for digit in range(10)]
STUDENT = 2.776  # 97.5 % point of Student's t with RUNS - 1 = 4 degrees of freedom
REFERENCE = "cross_entropy"


@dataclass(frozen=True)
class Split:
    """Which pictures train, validate and test in one run."""

    train: Tensor
    validation: Tensor
    test: Tensor


@dataclass(frozen=True)
class Figures:
    """What one run of one loss came to; the recall of each digit, in percent like the accuracies."""

    accuracy: float
    many: float
    few: float
    calibration_error: float
    recall: list[float]


# The losses under trial, each one line, as in anybody's training script.
LOSSES: dict[str, Callable[[], reweigh.Loss]] = {
    REFERENCE: lambda: reweigh.loss("cross_entropy"),
    "focal": lambda: reweigh.loss("focal", gamma=2),
    "adaptive_focal": lambda: reweigh.loss("adaptive_focal"),
    "balanced_softmax": lambda: reweigh.loss("balanced_softmax", class_counts=COUNTS),
}


def pictures() -> tuple[Tensor, Tensor]:
    """(1797, 1, 8, 8) grey values in [0, 1] and (1797,) digits."""
    digits = load_digits()
    return torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)


def split(target: Tensor, seed: int) -> Split:
    """Balanced validation and test sets; training pictures thinned exponentially from digit to digit."""
    generator = torch.Generator().manual_seed(seed)
    train, validation, test = [], [], []
    for digit in range(10):
        rows = (target == digit).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        test.append(rows[:TEST])
        validation.append(rows[TEST : TEST + VALIDATION])
        train.append(rows[TEST + VALIDATION :][: COUNTS[digit]])
    return Split(torch.cat(train), torch.cat(validation), torch.cat(test))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def train(loss: reweigh.Loss, images: Tensor, target: Tensor, parts: Split, seed: int) -> nn.Module:
    torch.manual_seed(seed)  # the same first weights and the same batches for every loss
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    steps = EPOCHS * math.ceil(len(parts.train) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(EPOCHS):
        model.train()
        for rows in parts.train[torch.randperm(len(parts.train))].split(BATCH):
            across, down = torch.randint(-1, 2, (2,)).tolist()
            cost = loss(model(images[rows].roll((across, down), (2, 3))), target[rows])
            optimizer.zero_grad()
            cost.backward()
            optimizer.step()
            schedule.step()
        model.eval()
        if loss.rule.observes == "validation":  # AdaFocal steers by what validation shows
            with torch.no_grad():
                loss.observe(model(images[parts.validation]), target[parts.validation])
    return model


@torch.no_grad()
def figures(model: nn.Module, images: Tensor, target: Tensor, parts: Split) -> Figures:
    truth = target[parts.test]
    predictions = reweigh.Predictions(logits=model(images[parts.test]), targets=truth)
    right = predictions.correctness
    recall = [100 * float(right[truth == digit].mean()) for digit in range(10)]
    few = [recall[digit] for digit in range(10) if COUNTS[digit] < FEW]
    many = [recall[digit] for digit in range(10) if COUNTS[digit] >= FEW]
    return Figures(
        accuracy=100 * float(metrics.accuracy(predictions)),
        many=statistics.mean(many),
        few=statistics.mean(few),
        calibration_error=100 * float(metrics.expected_calibration_error(predictions)),
        recall=recall,
    )


def trial() -> dict[str, list[Figures]]:
    """Every loss in every run."""
    images, target = pictures()
    found: dict[str, list[Figures]] = {name: [] for name in LOSSES}
    jobs = [(seed, name) for seed in range(RUNS) for name in LOSSES]
    for seed, name in track(jobs, "training", len(jobs)):
        parts = split(target, seed)
        model = train(LOSSES[name](), images, target, parts, seed)
        found[name].append(figures(model, images, target, parts))
    return found


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):4.1f} ±{statistics.stdev(values):4.1f}"


def row(name: str, runs: list[Figures]) -> list[str]:
    recall = [statistics.mean(run.recall[digit] for run in runs) for digit in range(10)]
    missed = [f"{digit}: {found:.0f}" for digit, found in enumerate(recall) if found < 100 * MISSED]
    means = [
        f"{statistics.mean(values):.1f}" for values in ([run.accuracy for run in runs], [run.many for run in runs])
    ]
    spreads = [spread([run.few for run in runs]), spread([run.calibration_error for run in runs])]
    return [name, *means, *spreads, ", ".join(missed) or "none"]


def difference(runs: list[Figures], reference: list[Figures], what: str) -> tuple[float, float]:
    """The mean paired difference to the reference, and half of its 95 % interval."""
    pairs = [getattr(run, what) - getattr(other, what) for run, other in zip(runs, reference, strict=True)]
    return statistics.mean(pairs), STUDENT * statistics.stdev(pairs) / math.sqrt(len(pairs))


def verdict(found: dict[str, list[Figures]], what: str, better: int) -> list[str]:
    """Who is better, who is worse, and whom these runs cannot tell from the reference."""
    groups: dict[str, list[str]] = {"better": [], "worse": [], "not told apart": []}
    for name, runs in found.items():
        if name != REFERENCE:
            mean, half = difference(runs, found[REFERENCE], what)
            group = "not told apart" if abs(mean) <= half else "better" if mean * better > 0 else "worse"
            groups[group].append(f"{name} ({mean:+.1f} ±{half:.1f})")
    return [f"{group}: {', '.join(names)}" for group, names in groups.items() if names]


EXPLANATION = f"""
{MOST} training pictures of the digit 0 down to {FEWEST} of the digit 9; tested on {TEST} of each.
Mean of {RUNS} runs, ± their standard deviation, in percent. "common" and "rare" are the
accuracies on digits with {FEW} or more and with fewer training pictures, "cal. error" is
how far confidence is from accuracy (15 bins), "missed" are the digits recognised less
than {100 * MISSED:.0f} % of the time, and how often they were.
"""


def conclusion(found: dict[str, list[Figures]]) -> str:
    """What the figures say, and what they do not."""
    rare = {name: statistics.mean(run.few for run in runs) for name, runs in found.items()}
    error = {name: statistics.mean(run.calibration_error for run in runs) for name, runs in found.items()}
    finder, honest = max(rare, key=rare.__getitem__), min(error, key=error.__getitem__)
    if finder == honest:
        said = f"{finder} both finds most rare digits and has the confidence closest to its accuracy"
    else:
        said = f"{finder} finds most rare digits, but the confidence of {honest} is closest to its accuracy"
    limits = "so it is for this network on these digits, and a difference smaller than its interval is not shown at all"
    return textwrap.fill(f"Here {said}; {limits}.", 88)


def main() -> int:
    torch.set_num_threads(1)  # for a network this small a second thread only waits
    found = trial()
    print(EXPLANATION)
    heading = ("loss", "accuracy", "common", "rare", "cal. error", "missed")
    print(table([row(name, runs) for name, runs in found.items()], heading=heading, right=(1, 2)))
    print(f"\nIn points against {REFERENCE}, run by run, with 95 % intervals:")
    for label, what, better in (("rare digits", "few", +1), ("calibration error", "calibration_error", -1)):
        print(f"- {label}")
        for line in verdict(found, what, better):
            print(f"    {line}")
    print(f"\n{conclusion(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
