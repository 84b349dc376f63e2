"""Cost and derivative in one pass, for sigmoid heads.

A sigmoid head has as many pieces of evidence as logits, so there is nothing to save by pricing first and
differentiating later: it would read and write everything several times. Instead the rule is priced and
differentiated block by block, while the block is in the cache; what is kept for the backward pass is the
derivative alone. Rules are the same pure functions as everywhere; nobody writing one needs to know.

The plain form, `sigmoid_cost`, is the truth: it runs under torch.compile and torch.func, on devices
without a kernel, for rules whose rows depend on each other, and for the second derivative.

May import `evidence`, `kernels` and `rules`. `_block` prices one block of labels, `_rows` one of whole rows,
`_sums` counts what a rule must know of the batch before it can price a label.
"""

from __future__ import annotations

from ..kernels._replay import Programs
from ._elements import runs, serves, sigmoid_total
from ._plain import sigmoid_cost
from ._rows import row_costs, serves_rows
from ._sums import all_hard, batch_sums

__all__ = [
    "Programs",
    "all_hard",
    "batch_sums",
    "row_costs",
    "runs",
    "serves",
    "serves_rows",
    "sigmoid_cost",
    "sigmoid_total",
]
