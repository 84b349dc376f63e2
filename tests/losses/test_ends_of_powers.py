"""Ends where a power of a probability leaves no digits: hopeless rows, sure rows, labels of exactly 0 and 1."""

import math

import pytest
import torch

import reweigh


@pytest.mark.parametrize("gap", [20.0, 80.0, 600.0])
def test_a_hopeless_row_keeps_its_bi_tempered_gradient(gap):
    """With t2 = 1 it is -p^(1 - t1) at the true class, to leading order in p."""
    logits = torch.tensor([[0.0, gap]], dtype=torch.float64, requires_grad=True)
    reweigh.losses.bi_tempered(t1=0.5, t2=1.0)(logits, torch.tensor([0])).backward()
    assert logits.grad is not None
    root = math.exp(-gap / 2)
    assert logits.grad[0, 0].item() == pytest.approx(-root, rel=4 * root + 1e-12)


@pytest.mark.parametrize("gap", [12.0, 25.0, 34.0])
def test_bi_tempered_without_tempers_is_cross_entropy_of_sure_rows(gap):
    logits = torch.tensor([[gap, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    cost = reweigh.losses.bi_tempered(t1=1.0, t2=1.0)(logits, torch.tensor([0]))
    cost.backward()
    others = math.exp(-gap) + math.exp(-gap - 1.0)
    assert cost.item() == pytest.approx(math.log1p(others), rel=1e-12)
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx(
        [-others / (1 + others), math.exp(-gap) / (1 + others), math.exp(-gap - 1) / (1 + others)], rel=1e-12
    )


def test_second_derivative_of_asymmetric_at_float_labels():
    logits = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = (logits.detach() > 0.3).double()
    loss = reweigh.losses.asymmetric(gamma_positive=2.0, margin=0.0)
    assert torch.autograd.gradgradcheck(lambda z: loss(z, labels), logits)


def test_the_name_of_a_loss_is_a_word():
    with pytest.raises(ValueError, match="got NoneType"):
        reweigh.loss(None)  # type: ignore[arg-type]
