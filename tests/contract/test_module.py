"""What the module does around every rule: it warns, refuses and checks; the suite looks at everything else."""

from __future__ import annotations

import warnings

import pytest
import torch

import reweigh
from reweigh.errors import InputError
from reweigh.module import UNOBSERVED


def batch():
    return torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 2, 0])


def steps(loss, number: int) -> list[str]:
    """What is said during so many forward passes."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(number):
            loss(*batch())
    return [str(one.message) for one in said]


def test_a_running_loss_that_nobody_feeds_says_so_once():
    (said,) = steps(reweigh.losses.seesaw(num_classes=3), 3 * UNOBSERVED)
    assert "seesaw" in said and "observe" in said and str(UNOBSERVED) in said


@pytest.mark.parametrize("why", ["too few", "evaluating", "observed", "validation is observed", "nothing is observed"])
def test_others_keep_quiet(why):
    loss, number = reweigh.losses.seesaw(num_classes=3), 2 * UNOBSERVED
    if why == "too few":
        number = UNOBSERVED - 1
    elif why == "evaluating":
        loss.eval()
    elif why == "observed":
        loss.observe(*batch())
    elif why == "validation is observed":
        loss = reweigh.losses.adaptive_focal()
    else:
        loss = reweigh.losses.seesaw(class_counts=[3, 2, 1])
    assert steps(loss, number) == []


def test_an_inner_loss_brings_its_rule_and_no_keywords():
    with pytest.raises(InputError, match=r"deferred.*reduction"):
        reweigh.losses.deferred(loss=reweigh.losses.focal(reduction="sum"), class_counts=[3, 2, 1])
    with pytest.raises(InputError, match=r"deferred.*str"):
        reweigh.losses.deferred(loss="focal", class_counts=[3, 2, 1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_strict_checks_hold_under_compile(bad):
    torch._dynamo.reset()
    logits, target = batch()
    compiled = torch.compile(reweigh.losses.focal(validate="strict"), fullgraph=True, backend="aot_eager")
    assert torch.isfinite(compiled(logits, target))
    logits[2, 1] = bad
    with pytest.raises(RuntimeError, match="bad logits"):
        compiled(logits, target)
    torch._dynamo.reset()


def test_evidence_is_constant_and_small():
    logits, target = batch()
    loss = reweigh.losses.adaptive_focal()
    seen = loss.evidence(logits.requires_grad_(), target)
    held = [value for value in vars(seen).values() if isinstance(value, torch.Tensor)]
    assert held and not any(value.requires_grad for value in held)
    assert all(value.shape == (4,) for value in held)


def test_class_weight_moves_and_is_saved():
    loss = reweigh.losses.focal(class_weight=[1.0, 2.0, 3.0])
    assert "class_weight" in loss.state_dict()
    assert loss.half().class_weight.dtype == torch.float32
    assert loss.to("meta").class_weight.device.type == "meta"


def test_gradients_accumulate_to_the_whole_step_with_padding():
    """As trainers with `num_items_in_batch` do it: micro-batches of uneven content, one denominator."""
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3).double()
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 3
    y[4:9] = -100
    weights = [1.0, 3.0, 0.5]
    loss = reweigh.losses.focal(class_weight=weights)
    loss(model(x), y).backward()
    whole, model.weight.grad = model.weight.grad, None
    number = torch.tensor(weights)[y[y >= 0]].sum()
    for part in (slice(0, 5), slice(5, 8), slice(8, 12)):  # the middle one holds padding alone
        loss(model(x[part]), y[part], normalizer=number).backward()
    torch.testing.assert_close(model.weight.grad, whole, rtol=1e-6, atol=0)
    assert loss.check() is None
