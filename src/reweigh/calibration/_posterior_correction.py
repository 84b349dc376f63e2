"""What a binary loss's probability means: the posterior at which it would have been the best answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import bad_input
from ..registry import register_calibrator
from ._calibrator import Calibrator
from ._maps import LogitMap, ProbabilityMap
from ._posterior_maps import posterior_map


@register_calibrator(
    "posterior_correction",
    aliases=("posterior",),
    role="shift",
    preserves_accuracy=False,
    heads=("sigmoid",),
    weights=True,
    formula="log q / (1 - q) = log |dL-/dp| - log |dL+/dp|",
)
class PosteriorCorrection(Calibrator):
    """The probability of a sigmoid head trained with an improper loss, read as the posterior it stands for.

    A loss that is not proper answers a posterior q with another p; where q L+ + (1 - q) L- is least,
    q / (1 - q) = |dL-/dp| / |dL+/dp|, a closed form. `loss` is the name of a binary loss (full or as the papers say,
    such as "F-ECE") with its `settings`, or a function that maps an array of probabilities to posteriors. Nothing is
    fitted; `fit` learns the number of heads. It works on each label by itself; arrays are logits of sigmoid heads.
    The largest head stays the largest, but a label's decision at 1/2 moves.

    >>> import numpy as np
    >>> correct = PosteriorCorrection("ECE").fit(np.zeros((1, 1)))
    >>> correct.predict_proba(np.array([[np.log(3.0)]])).round(6).tolist()  # p = 3/4 means q = 9/10
    [[0.9]]
    """

    _state = ()
    _heads = ("sigmoid",)
    _soft_labels = True
    _needs_labels = False

    def __init__(
        self,
        loss: str | Callable[[np.ndarray], np.ndarray] = "focal_exponential",
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.loss = loss
        self.settings = settings

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Check the loss and learn the number of heads; nothing is estimated."""
        if isinstance(self.loss, str):
            posterior_map(self.loss, dict(self.settings or {}))
        elif not callable(self.loss) or self.settings:
            raise bad_input(
                "fitting PosteriorCorrection",
                came=f"loss={self.loss!r} with settings={self.settings!r}",
                expected="the name of a binary loss, or a function without settings",
            )
        self._read(X, y, sample_weight)
        return self

    def _build(self) -> torch.nn.Module:
        if isinstance(self.loss, str):
            return LogitMap(Posterior(self.loss, dict(self.settings or {})), "sigmoid")
        return ProbabilityMap(GivenPosterior(self.loss))


class Posterior(nn.Module):
    """The closed form, element by element."""

    def __init__(self, loss: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self.posterior = posterior_map(loss, settings)

    def forward(self, logits: Tensor) -> Tensor:
        return self.posterior(logits.clamp(-1e6, 1e6))


class GivenPosterior(nn.Module):
    """A function of probabilities that the user brought."""

    def __init__(self, function: Callable[[np.ndarray], np.ndarray]) -> None:
        super().__init__()
        self.function = function

    def forward(self, logits: Tensor) -> Tensor:
        p = torch.sigmoid(logits)
        q = np.asarray(self.function(p.cpu().numpy()), dtype=np.float64)
        if q.shape != tuple(p.shape) or not ((q >= 0) & (q <= 1)).all():
            raise bad_input(
                "applying the loss given to PosteriorCorrection",
                came=f"an array of shape {q.shape} with values from {q.min():.4g} to {q.max():.4g}",
                expected=f"posteriors from 0 to 1 of shape {tuple(p.shape)}",
            )
        return torch.from_numpy(q).to(p.device)
