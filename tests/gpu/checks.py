"""What must hold on a GPU, as plain functions: pytest runs them (`test_gpu.py`), and so does `scripts/gpu_check.sh` on a
machine that has torch and nothing else. Each raises AssertionError with a sentence.

What is compared with is the composite form in float64, on the same device.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import reweigh
from reweigh import registry
from reweigh.testing import variants

DEVICE = torch.device("cuda", 0)
# What the result may differ by: value and gradient, relative; the gradient also to the row's largest.
CLOSE = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (1e-5, 1e-2), torch.float16: (1e-5, 3e-3)}

# A loss for each way through the kernels: the simplest fields, a rival, the second choice, entropy, squares, sums,
# offsets, scale and offset, a table.
SOFTMAX: dict[str, Callable[[int], reweigh.Loss]] = {
    "focal": lambda k: reweigh.losses.focal(),
    "dual_focal": lambda k: reweigh.losses.dual_focal(),
    "dual_focal next_lower": lambda k: reweigh.losses.dual_focal(variant="next_lower"),
    "confidence_penalty": lambda k: reweigh.losses.confidence_penalty(),
    "brier": lambda k: reweigh.losses.brier(),
    "label smoothing": lambda k: reweigh.losses.cross_entropy(label_smoothing=0.1),
    "logit_adjusted": lambda k: reweigh.losses.logit_adjusted(class_counts=counts(k)),
    "vector_scaling": lambda k: reweigh.losses.vector_scaling(class_counts=counts(k)),
    "adaptive_focal": lambda k: reweigh.losses.adaptive_focal(),
}
SIGMOID = ("binary_focal", "focal_exponential", "asymmetric", "binary_adaptive_focal")


def counts(classes: int) -> list[int]:
    """Long-tailed counts."""
    return [1000 // (k + 1) + 1 for k in range(classes)]


def draw(n: int, classes: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Fresh logits and targets."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    z = 3 * torch.randn(n, classes, device=DEVICE, generator=generator)
    return z.to(dtype), torch.randint(classes, (n,), device=DEVICE, generator=generator)


def value_and_gradient(loss: Any, z: Tensor, target: Tensor, seed: Tensor | None = None, **given: Any) -> Any:
    """The loss and its gradient, in the types they come in."""
    leaf = z.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    value = loss(leaf, target, **given)
    gradient = torch.autograd.grad(value, leaf, seed if seed is None else seed.to(value.dtype))[0]
    return value.detach(), gradient


def same(loss: Any, z: Tensor, target: Tensor, what: str, **given: Any) -> None:
    """The loss at these logits is that of the composite form in float64."""
    value, gradient = value_and_gradient(loss, z, target, **given)
    wide = {name: each.double() if isinstance(each, Tensor) else each for name, each in given.items()}
    labels = target.double() if target.is_floating_point() else target
    right, slope = value_and_gradient(loss, z.double(), labels, **wide)
    near, close = CLOSE[z.dtype]
    assert gradient.dtype == z.dtype and gradient.shape == z.shape, f"{what}: a gradient of another type or shape"
    off = (value.double() - right).abs() / (right.abs() + 1e-7)
    assert bool((off <= near).all()), f"{what}: value off by {off.max().item():.1e}"
    largest = slope.abs().amax(1, keepdim=True) if slope.dim() > 1 else slope.abs()
    away = (gradient.double() - slope).abs() / (largest + 1e-6 * slope.abs().max() + 1e-30)
    assert bool((away <= close).all()), f"{what}: gradient off by {away.max().item():.1e}"
    loss.check()


# ---------------------------------------------------------------- shapes


def widths(dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Rows and classes: every kind of form, and widths that fill none of them."""
    few = (2, 3, 10, 16, 17, 33, 64, 65, 100, 104, 129, 257, 1000, 1001, 2049, 4096, 5003, 16_385, 32_000, 50_257)
    for classes in few:
        yield 37, classes
    for classes in (131_072, 262_144):
        yield 5, classes
    yield 100_003, 10
    yield 3001, 1000


def check_widths(name: str, dtype: torch.dtype) -> None:
    """Values and gradients at every kind of width."""
    for n, classes in widths(dtype):
        z, target = draw(n, classes, dtype, seed=classes)
        loss = SOFTMAX[name](classes).to(DEVICE)
        same(loss, z, target, f"{name}, {n} x {classes}, {dtype}")


def check_layouts(name: str, dtype: torch.dtype) -> None:
    """Dense logits, channels last, slices, rows apart, transposed, expanded, and starts that divide by nothing."""
    loss = SOFTMAX[name](21).to(DEVICE)
    z = 3 * torch.randn(3, 21, 7, 5, device=DEVICE).to(dtype)
    target = torch.randint(21, (3, 7, 5), device=DEVICE)
    same(loss, z, target, f"{name} dense")
    same(loss, z.to(memory_format=torch.channels_last), target, f"{name} channels last")
    long = torch.randn(40, 23, device=DEVICE).to(dtype)
    rows = torch.randint(21, (40,), device=DEVICE)
    for what, view in (("slice", long[:, 1:22]), ("rows apart", long[::2, :21]), ("classes apart", long.t()[:21].t())):
        leaf = long.clone().requires_grad_()
        kept = {"slice": leaf[:, 1:22], "rows apart": leaf[::2, :21], "classes apart": leaf.t()[:21].t()}[what]
        got = torch.autograd.grad(loss(kept, rows[: len(view)]), leaf)[0]
        wide = long.double().requires_grad_()
        kept = {"slice": wide[:, 1:22], "rows apart": wide[::2, :21], "classes apart": wide.t()[:21].t()}[what]
        right = torch.autograd.grad(loss(kept, rows[: len(view)]), wide)[0]
        off = (got.double() - right).norm() / right.norm()
        assert off <= CLOSE[dtype][1], f"{name} {what}: gradient off by {off:.1e}"
    flat = torch.randn(40 * 21 + 3, device=DEVICE).to(dtype)[3:].view(40, 21)
    same(loss, flat, rows, f"{name} from an odd start")
    same(loss, long[:1, :21].expand(40, 21), rows, f"{name} expanded")


def check_weights(name: str) -> None:
    """Weights, ignored rows, reductions, a normaliser, masked classes, rows without an alternative."""
    z, target = draw(64, 100, torch.float32, 5)
    z[3, (target[3] + 1) % 100] = -math.inf
    z[5] = -math.inf
    z[5, target[5]] = 1.0
    ignored = target.clone()
    ignored[::5] = -100
    rows = torch.rand(64, device=DEVICE)
    settings = [
        ({}, {}), ({"reduction": "sum"}, {"sample_weight": rows}), ({"class_weight": torch.rand(100) + 0.1}, {}),
        ({"reduction": "none"}, {"sample_weight": rows}), ({}, {"normalizer": 7.0}),
        ({}, {"normalizer": torch.tensor(7.0, device=DEVICE)}),
    ]  # fmt: skip
    rule = SOFTMAX[name](100).rule
    for common, given in settings:
        loss = reweigh.Loss(rule, **common).to(DEVICE)
        shape = (64,) if common.get("reduction") == "none" else ()
        same(
            loss, z, ignored, f"{name} {sorted(common)} {sorted(given)}", seed=torch.rand(shape, device=DEVICE), **given
        )
    same(SOFTMAX[name](100).to(DEVICE), z, torch.full_like(target, -100), f"{name}, all rows ignored")


def check_extremes(name: str) -> None:
    """Logits to 1e4, gaps to 1e-12, ties, a wrong class that has nearly everything."""
    z, target = draw(12, 9, torch.float32, 7)
    z[0] += 1e4
    z[1] *= 1e4
    z[2] -= 1e4
    z[3], z[3, target[3]] = 0.0, 1e-6
    z[4] = 0.0
    z[5], z[5, (target[5] + 1) % 9] = 0.0, 60.0
    z[6], z[6, target[6]] = 0.0, 27.6
    z[7, :] = torch.round(z[7])
    if name != "adaptive_focal":  # whose bins are cut by the last digit
        same(SOFTMAX[name](9).to(DEVICE), z, target, f"{name} at the extremes")


# ---------------------------------------------------------------- sigmoid


def check_sigmoid(name: str, dtype: torch.dtype) -> None:
    """Labels of every type, soft ones, ignored ones, weights, layouts."""
    build = getattr(reweigh.losses, name)
    loss = build().to(DEVICE)
    for shape in ((1000, 80), (37, 7), (5,), (4, 3, 6, 5)):
        z = 3 * torch.randn(shape, device=DEVICE).to(dtype)
        hard = torch.rand(shape, device=DEVICE) > 0.7
        for label in (torch.bool, torch.uint8, torch.int64, torch.float32, dtype):
            same(loss, z, hard.to(label), f"{name} {shape} {label}")
        if loss.rule.soft != "refused":
            same(loss, z, torch.rand(shape, device=DEVICE), f"{name} {shape} soft")
        some = hard.long()
        some.view(-1)[::7] = -100
        same(loss, z, some, f"{name} {shape} ignored")
        same(loss, z, some.float(), f"{name} {shape} ignored, float")
        every = build(reduction="none").to(DEVICE)
        seed, weight = torch.rand(shape, device=DEVICE), torch.rand(shape[0], device=DEVICE)
        same(every, z, some, f"{name} {shape} none", seed=seed, sample_weight=weight)
    z = torch.randn(4, 3, 6, 5, device=DEVICE).to(dtype).to(memory_format=torch.channels_last)
    same(build(class_weight=torch.tensor([0.5, 1.0, 2.0])).to(DEVICE), z, z > 0, f"{name} channels last, class weights")
    if "targets" in inspect.signature(build).parameters:
        index = torch.randint(7, (37,), device=DEVICE)
        index[3] = -100
        same(build(targets="index").to(DEVICE), torch.randn(37, 7, device=DEVICE).to(dtype), index, f"{name} by index")


# ---------------------------------------------------------------- promises about the device


def every_loss(head: str | None = None) -> Iterator[tuple[str, reweigh.Loss]]:
    """Every form of every registered loss that takes class indices or labels of 10 classes."""
    for entry in registry.entries("loss"):
        for form in variants(entry.name, classes=10):
            if form.loss.rule.head in (("softmax", "sigmoid") if head is None else (head,)):
                yield form.label, form.loss


def inputs_for(loss: reweigh.Loss, n: int = 64, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Logits and targets that the loss takes."""
    classes = loss.rule.num_classes or classes
    z, target = draw(n, classes, torch.float32, 3)
    if loss.rule.head == "sigmoid" and not loss.rule.index_targets:
        return z, torch.nn.functional.one_hot(target, classes).float()
    return z, target


def check_nothing_waits() -> None:
    """No loss makes the host wait for the device, forward or backward."""
    waiting = []
    for label, form in every_loss():
        loss = copy.deepcopy(form).to(DEVICE)
        z, target = inputs_for(loss)
        z.requires_grad_()
        loss(z, target).backward()  # compiles, allocates
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss(z, target).backward()
        except RuntimeError as error:
            waiting.append(f"{label}: {str(error).splitlines()[0]}")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert not waiting, "these wait for the device: " + "; ".join(waiting)


def check_same_bits() -> None:
    """The same input gives the same bits, every time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for name, build in SOFTMAX.items():
            for n, classes, dtype in (
                (20_001, 10, torch.float32),
                (4099, 1000, torch.bfloat16),
                (65, 20_001, torch.float32),
            ):
                z, target = draw(n, classes, dtype)
                loss = build(classes).to(DEVICE)
                first = value_and_gradient(loss, z, target)
                for _ in range(3):
                    again = value_and_gradient(loss, z, target)
                    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1]), (
                        f"{name} {n} x {classes}"
                    )
        loss = reweigh.losses.selective_risk().to(DEVICE)
        z, target = draw(20_001, 100, torch.float32)
        first, again = value_and_gradient(loss, z, target), value_and_gradient(loss, z, target)
        assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1]), "selective_risk"
    finally:
        torch.use_deterministic_algorithms(False)


def check_memory() -> None:
    """Beyond the inputs there is the gradient, and 64 bytes a row."""
    for n, classes, dtype in (
        (200_000, 100, torch.float32),
        (65_536, 1000, torch.bfloat16),
        (512, 131_072, torch.float32),
    ):
        for name in ("focal", "dual_focal", "label smoothing", "confidence_penalty"):
            z, target = draw(n, classes, dtype)
            loss, leaf = SOFTMAX[name](classes).to(DEVICE), z.requires_grad_()
            torch.autograd.grad(loss(leaf, target), leaf)
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            torch.autograd.grad(loss(leaf, target), leaf)
            extra = torch.cuda.max_memory_allocated() - before
            allowed = z.numel() * z.element_size() + 64 * n + 2**20
            assert extra <= allowed, f"{name} {n} x {classes}: {extra / 2**20:.1f} MiB, allowed {allowed / 2**20:.1f}"


def check_poisoned() -> None:
    """Every element of the gradient is written: memory full of NaN does not show."""
    for name, build in SOFTMAX.items():
        for n, classes, dtype in ((1001, 10, torch.float32), (517, 1001, torch.bfloat16), (9, 40_001, torch.float32)):
            z, target = draw(n, classes, dtype)
            target[::3] = -100
            loss = build(classes).to(DEVICE)
            value_and_gradient(loss, z, target)
            poison = [torch.full_like(z, math.nan) for _ in range(4)]
            del poison
            _, gradient = value_and_gradient(loss, z, target)
            assert bool(torch.isfinite(gradient).all()), f"{name} {n} x {classes}: elements nobody wrote"
            assert not bool(gradient[::3].any()), f"{name} {n} x {classes}: ignored rows with a gradient"


def check_graphs() -> None:
    """Forward and backward can be captured, and replayed on new logits."""
    for name in ("focal", "dual_focal", "logit_adjusted"):
        for n, classes in ((128, 10), (5000, 100), (64, 20_001)):
            z, target = draw(n, classes, torch.float32)
            loss, leaf = SOFTMAX[name](classes).to(DEVICE), z.clone().requires_grad_()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(2):
                    torch.autograd.grad(loss(leaf, target), leaf)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                value = loss(leaf, target)
                gradient = torch.autograd.grad(value, leaf)[0]
            for seed in (1, 2):
                other, _ = draw(n, classes, torch.float32, seed)
                with torch.no_grad():
                    leaf.copy_(other)
                graph.replay()
                graph.replay()
                torch.cuda.synchronize()
                right = value_and_gradient(loss, other, target)
                assert torch.equal(value, right[0]) and torch.equal(gradient, right[1]), (
                    f"{name} {n} x {classes} replayed"
                )


def check_streams() -> None:
    """Two streams at once do not disturb each other."""
    loss = reweigh.losses.focal().to(DEVICE)
    z, target = draw(50_000, 100, torch.float32)
    right = value_and_gradient(loss, z, target)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(10):
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(value_and_gradient(loss, z, target))
        torch.cuda.synchronize()
        assert all(torch.equal(value, right[0]) and torch.equal(g, right[1]) for value, g in found), "streams disturb"


def check_bad_values() -> None:
    """What is bad is said at the next call or by check(), naming the first row; ignored rows may hold anything."""
    z, target = draw(100, 50, torch.float32)
    bad = {
        "NaN": (z.clone().index_fill_(0, torch.tensor([17], device=DEVICE), math.nan), target, "row 17"),
        "inf": (z.clone().index_put_((torch.tensor(23, device=DEVICE), (target[23] + 1) % 50), torch.tensor(math.inf, device=DEVICE)), target, "row 23"),
        "target": (z, target.clone().index_fill_(0, torch.tensor([31], device=DEVICE), 50), "row 31"),
        "masked": (z.clone().index_put_((torch.tensor(41, device=DEVICE), target[41]), torch.tensor(-math.inf, device=DEVICE)), target, "row 41"),
    }  # fmt: skip
    for build in (
        reweigh.losses.focal,
        reweigh.losses.dual_focal,
        reweigh.losses.selective_risk,
        reweigh.losses.seesaw,
    ):
        for what, (logits, rows, where) in bad.items():
            loss = (build(class_counts=counts(50)) if build is reweigh.losses.seesaw else build()).to(DEVICE)
            loss(logits, rows)
            try:
                loss.check()
            except ValueError as error:
                assert where in str(error), f"{loss.rule.name} {what}: {error}"
            else:
                raise AssertionError(f"{loss.rule.name}: {what} went unnoticed")
            loss.check()  # said once
            skipped = rows.clone()
            skipped[int(where.split()[1])] = -100
            loss(logits, skipped)
            loss.check()
    loss = reweigh.losses.focal().to(DEVICE)
    loss(bad["NaN"][0], target)
    torch.cuda.synchronize()
    try:
        loss(z, target)
    except ValueError:
        pass
    else:
        raise AssertionError("NaN was not said at the next call")
    loss = reweigh.losses.focal(validate=False).to(DEVICE)
    loss(bad["target"][0], bad["target"][1])
    loss.check()


def check_sigmoid_bad_values() -> None:
    """Labels and logits of a sigmoid head likewise."""
    z, _ = draw(100, 50, torch.float32)
    label = (z > 0).float()
    for what, (row, column, value) in {"NaN": (17, 3, math.nan), "a label of 2": (31, 5, 2.0)}.items():
        loss = reweigh.losses.binary_focal().to(DEVICE)
        logits, labels = z.clone(), label.clone()
        (logits if what == "NaN" else labels)[row, column] = value
        loss(logits, labels)
        try:
            loss.check()
        except ValueError as error:
            assert f"row {row}" in str(error), f"{what}: {error}"
        else:
            raise AssertionError(f"{what} went unnoticed")


def check_double_backward() -> None:
    """The gradient can be differentiated."""
    for name in ("focal", "brier"):
        z, target = draw(9, 7, torch.float32)
        leaf = z.requires_grad_()
        loss = SOFTMAX[name](7).to(DEVICE)
        (gradient,) = torch.autograd.grad(loss(leaf, target), leaf, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), leaf)
        wide = z.detach().double().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(wide, target), wide, create_graph=True)
        (right,) = torch.autograd.grad(gradient.square().sum(), wide)
        assert (second.double() - right).norm() <= 1e-4 * right.norm(), f"{name}: second derivative"


def check_scaled_half() -> None:
    """A scaled loss in float16 keeps what float16 would lose."""
    z, target = draw(4096, 100, torch.float16)
    loss = reweigh.losses.focal().to(DEVICE)
    leaf = z.requires_grad_()
    (got,) = torch.autograd.grad(loss(leaf, target) * 65536.0, leaf)
    wide = z.detach().double().requires_grad_()
    (right,) = torch.autograd.grad(loss(wide, target) * 65536.0, wide)
    assert torch.equal(got, right.half()) or (got.double() - right).abs().max() <= 2e-3 * right.abs().max()
    lost = (got == 0) & (right.abs() > 1e-7)
    assert not bool(lost.any()), "gradients that float16 can hold were lost"


def check_beyond_32_bits() -> None:
    """More than 2^31 logits: the last rows are what they are alone."""
    n, classes = 17_000, 131_072
    if torch.cuda.mem_get_info()[0] < 14 * 2**30:
        return
    z = torch.empty(n, classes, dtype=torch.bfloat16, device=DEVICE).normal_()
    target = torch.randint(classes, (n,), device=DEVICE)
    loss = reweigh.losses.focal(reduction="sum").to(DEVICE)
    (gradient,) = torch.autograd.grad(loss(z.requires_grad_(), target), z)
    tail = z.detach()[-3:].clone().requires_grad_()
    (right,) = torch.autograd.grad(loss(tail, target[-3:]), tail)
    assert torch.equal(gradient[-3:], right), "the last rows differ"


def check_autocast() -> None:
    """Under autocast the loss is computed in float32."""
    z, target = draw(64, 100, torch.bfloat16)
    loss = reweigh.losses.focal().to(DEVICE)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        value = loss(z, target)
    assert value.dtype == torch.float32 and torch.equal(value, loss(z, target))


def check_compiles() -> None:
    """No graph break."""
    z, target = draw(64, 100, torch.float32)
    for build in (reweigh.losses.focal, reweigh.losses.selective_risk):
        loss = build().to(DEVICE)
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        leaf = z.clone().requires_grad_()
        value = compiled(leaf, target)
        (gradient,) = torch.autograd.grad(value, leaf)
        right = value_and_gradient(loss, z, target)
        assert torch.allclose(value, right[0], rtol=1e-5) and torch.allclose(gradient, right[1], rtol=1e-3, atol=1e-7)


def check_ragged_widths() -> None:
    """Many widths share a few kernels."""
    from reweigh.kernels import _softmax

    loss = reweigh.losses.focal(gamma=1.75).to(DEVICE)
    for classes in range(900, 9000, 83):
        z, target = draw(16, classes, torch.float32, classes)
        same(loss, z, target, f"ragged width {classes}")
    made = [forms for (_, _, settings), forms in _softmax._made.items() if "1.75" in (settings.price or "")]
    assert made and all(len(forms) <= _softmax.FEW + 1 for forms in made), f"{[len(forms) for forms in made]} kernels"


# ---------------------------------------------------------------- all of them


def all_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every check with its name."""
    from functools import partial

    for name in SOFTMAX:
        for dtype in (torch.float32, torch.bfloat16) + ((torch.float16,) if name == "focal" else ()):
            yield f"widths, {name}, {dtype}", partial(check_widths, name, dtype)
        yield f"layouts, {name}", partial(check_layouts, name, torch.float32)
        yield f"weights, {name}", partial(check_weights, name)
        yield f"extremes, {name}", partial(check_extremes, name)
    yield "layouts, focal, bfloat16", partial(check_layouts, "focal", torch.bfloat16)
    for name in SIGMOID:
        for dtype in (torch.float32, torch.bfloat16):
            yield f"sigmoid, {name}, {dtype}", partial(check_sigmoid, name, dtype)
    for check in (
        check_nothing_waits, check_same_bits, check_memory, check_poisoned, check_graphs, check_streams,
        check_bad_values, check_sigmoid_bad_values, check_double_backward, check_scaled_half, check_beyond_32_bits,
        check_autocast, check_compiles, check_ragged_widths,
    ):  # fmt: skip
        yield (check.__doc__ or check.__name__).splitlines()[0], check
