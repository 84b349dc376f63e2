"""Messages about dense inputs name the place in the user's own dimensions."""

import numpy as np
import pytest
import torch

import reweigh


def test_a_bad_target_and_a_bad_logit_are_named_where_the_user_put_them():
    loss = reweigh.losses.focal()
    logits, target = torch.randn(2, 3, 4, 5), torch.zeros(2, 4, 5, dtype=torch.int64)
    wrong = target.clone()
    wrong[1, 2, 3] = 7
    with pytest.raises(ValueError, match=r"class 7 at position \(1, 2, 3\)"):
        loss(logits, wrong)
    logits[1, 0, 3, 1] = float("nan")
    with pytest.raises(ValueError, match=r"nan at position \(1, 3, 1\), class 0"):
        loss(logits, target)


def test_a_normalizer_may_be_a_number_of_numpy():
    loss, logits, target = reweigh.losses.focal(), torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert torch.equal(loss(logits, target, normalizer=np.int64(3)), loss(logits, target, normalizer=3))
