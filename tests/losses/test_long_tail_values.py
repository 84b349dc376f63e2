"""Long-tail losses: shifted and scaled logits in 220 digits, class weights, the deferred switch, empty classes."""

from __future__ import annotations

import math
import pickle
from functools import partial

import mpmath
import pytest
import torch
from torch.nn.functional import cross_entropy

import reweigh
from losses.softmax_oracle import agree, grid
from reweigh.errors import InputError

mpf, log = mpmath.mpf, mpmath.log
COUNTS = [5000, 2997, 40, 9, 1]
TOTAL = sum(COUNTS)
close = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-13)


def plain(p, y, held):
    return -log(p[y])


def adjusted(counts: list[int], tau: float) -> dict:
    return {"offset": [tau * math.log(n / sum(counts)) if n else -math.inf for n in counts]}


def scaled(counts: list[int], gamma: float, tau: float) -> dict:
    return {"scale": [(n / max(counts)) ** gamma for n in counts], **adjusted(counts, tau)}


CASES = [
    ("logit_adjusted", {}, adjusted(COUNTS, 1.0)),
    ("logit_adjusted", {"tau": 2.5}, adjusted(COUNTS, 2.5)),
    ("balanced_softmax", {}, {"offset": [math.log(n) for n in COUNTS]}),
    ("vector_scaling", {}, scaled(COUNTS, 0.3, 1.0)),
    ("vector_scaling", {"gamma": 0.05, "tau": 0.0}, scaled(COUNTS, 0.05, 0.0)),
]
IDS = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings, _ in CASES]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("name", "settings", "link"), CASES, ids=IDS)
def test_values_and_gradients(name, settings, link, dtype):
    loss = reweigh.loss(name, class_counts=COUNTS, reduction="none", **settings)
    z, y = grid(5)
    agree(loss, z, y, plain, dtype=dtype, **link)
    # logits of 1e4 with small gaps: a float32 sum with the prior would be off by 5e-4
    close_by = torch.tensor([[1e4, 1e4, 1e4, 1e4, 1e4], [-1e4, -1e4 + 2, -1e4, 3.0, -1e4]], dtype=torch.float64)
    agree(loss, close_by, torch.tensor([4, 1]), plain, dtype=dtype, **link)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("margin", "scale"), [(0.5, 30.0), (0.2, 1.0)])
def test_margins(margin, scale, dtype):
    loss = reweigh.losses.margin_aware(class_counts=COUNTS, margin=margin, scale=scale, reduction="none")
    z, y = grid(5)
    delta = [margin * (min(COUNTS) / n) ** 0.25 for n in COUNTS]
    assert loss.margins.tolist() == pytest.approx([scale * value for value in delta], rel=1e-14)
    for k in range(5):
        rows = y == k
        offset = [-scale * delta[k] if j == k else 0.0 for j in range(5)]
        agree(loss, z[rows], y[rows], plain, dtype=dtype, scale=[scale] * 5, offset=offset)


def test_shifted_losses_in_plain_pytorch():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (30,), generator=generator)
    n = torch.tensor(COUNTS, dtype=torch.float64)
    prior = n / n.sum()
    close(reweigh.loss("LA", class_counts=COUNTS, tau=0.7)(z, y), cross_entropy(z + 0.7 * prior.log(), y))
    close(reweigh.loss("BS", class_counts=n)(z, y), cross_entropy(z + n.log(), y))
    delta = (n.max() / n) ** 0.3
    close(reweigh.loss("VS", class_counts=n.numpy())(z, y), cross_entropy(z / delta + prior.log(), y))
    lowered = z.clone()
    lowered[torch.arange(30), y] -= 0.5 * (n.min() / n[y]) ** 0.25
    close(reweigh.loss("LDAM", class_counts=COUNTS)(z, y), cross_entropy(30.0 * lowered, y))
    share = torch.rand(30, 5, generator=generator, dtype=torch.float64)
    share = share / share.sum(1, keepdim=True)
    close(reweigh.loss("LA", class_counts=COUNTS)(z, share), cross_entropy(z + prior.log(), share))
    each = [reweigh.loss("LDAM", class_counts=COUNTS, reduction="none")(z, torch.full_like(y, k)) for k in range(5)]
    close(reweigh.loss("LDAM", class_counts=COUNTS)(z, share), (share * torch.stack(each, 1)).sum(1).mean())


def test_equal_counts_change_nothing():
    z = torch.randn(8, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    expected = cross_entropy(z, y)
    for name, settings in (
        ("logit_adjusted", {}), ("balanced_softmax", {}), ("vector_scaling", {}), ("class_balanced", {}),
        ("margin_aware", {"margin": 0.0, "scale": 1.0}),
    ):  # fmt: skip
        close(reweigh.loss(name, class_counts=[7, 7, 7], **settings)(z, y), expected)
    close(reweigh.losses.logit_adjusted(class_counts=[5, 1, 0], tau=0.0)(z, y), expected)
    close(
        reweigh.losses.vector_scaling(class_counts=COUNTS[:3], gamma=0.0)(z, y),
        reweigh.losses.logit_adjusted(class_counts=COUNTS[:3])(z, y),
    )


# ------------------------------------------------------------------ class weights


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.9999, 1 - 1e-12, 1.0])
def test_effective_numbers(beta):
    loss = reweigh.losses.class_balanced(class_counts=COUNTS, beta=beta)
    with mpmath.workdps(60):
        if beta == 1.0:
            inverse = [mpf(1) / n for n in COUNTS]
        else:
            inverse = [(1 - mpf(beta)) / (1 - mpf(beta) ** n) for n in COUNTS]
        expected = [float(value * 5 / sum(inverse)) for value in inverse]
    assert loss.class_balance.tolist() == pytest.approx(expected, rel=1e-12)
    assert float(loss.class_balance.sum()) == pytest.approx(5.0, rel=1e-14)


def test_balanced_weights_are_class_weights():
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (30,), generator=generator)
    y[4] = -100
    loss = reweigh.losses.class_balanced(class_counts=COUNTS)
    weight = loss.class_balance
    close(loss(z, y), cross_entropy(z, y, weight=weight))
    own = torch.rand(5, generator=generator, dtype=torch.float64)
    both = reweigh.losses.class_balanced(class_counts=COUNTS, class_weight=own)
    close(both(z, y), cross_entropy(z, y, weight=weight * own))
    focal = reweigh.losses.class_balanced(class_counts=COUNTS, base=reweigh.losses.focal(gamma=1.0))
    close(focal(z, y), reweigh.losses.focal(gamma=1.0, class_weight=weight)(z, y))
    smooth = reweigh.losses.class_balanced(class_counts=COUNTS, base=reweigh.losses.cross_entropy(label_smoothing=0.1))
    close(smooth(z, y), cross_entropy(z, y, weight=weight, label_smoothing=0.1))
    adaptive = reweigh.losses.class_balanced(class_counts=COUNTS, base=reweigh.losses.adaptive_focal())
    kept = y >= 0
    adaptive.observe(z[kept], y[kept])
    alone = reweigh.losses.adaptive_focal(class_weight=weight)
    alone.observe(z[kept], y[kept])
    close(adaptive(z, y), alone(z, y))
    coupled = reweigh.losses.class_balanced(class_counts=COUNTS, base=reweigh.losses.kernel_calibration())
    close(coupled(z, y), reweigh.losses.kernel_calibration(class_weight=weight)(z, y))


def test_deferred_weights_begin_at_their_epoch():
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (30,), generator=generator)
    inner = reweigh.losses.margin_aware(class_counts=COUNTS)
    loss = reweigh.losses.deferred(loss=inner, class_counts=COUNTS, start=3)
    plainly = inner(z, y)
    weighed = reweigh.losses.margin_aware(
        class_counts=COUNTS, class_weight=reweigh.losses.class_balanced(class_counts=COUNTS).class_balance
    )(z, y)
    assert not torch.allclose(plainly, weighed)
    close(loss(z, y), plainly)
    for epoch, expected in ((0, plainly), (2, plainly), (3, weighed), (160, weighed), (1, plainly)):
        loss.advance(epoch)
        close(loss(z, y), expected)
    loss.advance(5)
    restored = reweigh.losses.deferred(loss=inner, class_counts=COUNTS, start=3)
    restored.load_state_dict(loss.state_dict())
    close(restored(z, y), weighed)
    close(pickle.loads(pickle.dumps(loss))(z, y), weighed)  # noqa: S301  our own bytes of a moment ago


def test_deferred_keeps_the_schedule_of_the_inner_loss():
    inner = reweigh.losses.selective_risk(histogram="epoch")
    loss = reweigh.losses.deferred(loss=inner, class_counts=[3, 1], start=1)
    z, y = torch.randn(20, 2, generator=torch.Generator().manual_seed(4)), torch.arange(20) % 2
    loss.observe(z, y)
    assert float(loss.counts.sum()) == 20
    loss.advance(1)
    assert float(loss.counts.sum()) == 0
    assert bool(loss.balancing)


# ------------------------------------------------------------------ empty classes


@pytest.mark.parametrize("name", ["logit_adjusted", "balanced_softmax", "vector_scaling"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_empty_class_is_masked(name, dtype):
    counts = [50, 0, 8, 1]
    loss = reweigh.loss(name, class_counts=counts)
    z = torch.tensor([[1.0, 9.0, -0.5, 0.25], [0.5, -math.inf, 1.5, 0.0]], dtype=dtype, requires_grad=True)
    y = torch.tensor([2, 3])
    value = loss(z, y)
    value.backward()
    assert not bool(z.grad[:, 1].any())
    short = reweigh.loss(name, class_counts=[50, 8, 1])(z.detach()[:, [0, 2, 3]], torch.tensor([1, 2]))
    torch.testing.assert_close(value.detach(), short, rtol=1e-5, atol=0)
    with pytest.raises(InputError, match=r"class_counts entry is 0"):
        loss(z, torch.tensor([2, 1]))
    shares = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.0, 0.1, 0.9, 0.0]], dtype=dtype)
    with pytest.raises(InputError, match=r"share of 0\.1\S* of class 1 at row 1"):
        loss(z.detach().nan_to_num(neginf=0.0), shares)
    assert bool(torch.isfinite(loss(z, torch.tensor([2, -100]))))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("class_balanced", {"class_counts": [5, 0]}, r"0 for class 1.*every class to have rows"),
        ("margin_aware", {"class_counts": [5, 0]}, "margin of an empty class"),
        ("vector_scaling", {"class_counts": [5, 0], "tau": 0.0}, "without tau"),
        ("balanced_softmax", {"class_counts": [0, 0]}, "only zeros"),
        ("logit_adjusted", {"class_counts": [5]}, "at least 2"),
        ("logit_adjusted", {"class_counts": [5, -1]}, "class 1"),
        ("logit_adjusted", {"class_counts": [5, math.nan]}, "class 1"),
        ("logit_adjusted", {"class_counts": "many"}, "one number a class"),
        ("class_balanced", {"class_counts": [5, 1], "beta": 1.1}, "beta"),
        ("margin_aware", {"class_counts": [5, 1], "scale": 0.0}, "above 0"),
    ],
)
def test_wrong_counts_are_answered(name, settings, words):
    with pytest.raises(InputError, match=words):
        reweigh.loss(name, **settings)


def test_what_cannot_be_balanced():
    losses = reweigh.losses
    with pytest.raises(InputError, match="3 class_counts around a logit_adjusted for 2 classes"):
        losses.class_balanced(class_counts=[3, 2, 1], base=losses.logit_adjusted(class_counts=[3, 2]))
    with pytest.raises(InputError, match="on the outer loss"):
        losses.class_balanced(class_counts=[3, 2], base=losses.focal(reduction="sum"))
    with pytest.raises(InputError, match="a Loss"):
        losses.deferred(loss="focal", class_counts=[3, 2])
    with pytest.raises(InputError, match="another loss inside"):
        losses.deferred(loss=losses.deferred(loss=losses.focal(), class_counts=[3, 2]), class_counts=[3, 2])
    with pytest.raises(InputError, match="start"):
        losses.deferred(loss=losses.focal(), class_counts=[3, 2], start=1.5)
    with pytest.raises(InputError, match="5 classes this loss was built for"):
        losses.logit_adjusted(class_counts=COUNTS)(torch.zeros(2, 3), torch.tensor([0, 1]))
