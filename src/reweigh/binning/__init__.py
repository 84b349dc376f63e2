"""Cutting numbers from 0 to 1 into bins, summing in them, and the error over them; pure functions on float64.

May import `errors` alone. A new rule is a function in `_rules.py` and its entry in `RULES`.
"""

from __future__ import annotations

from ._edges import interpolated_edges, members, split_edges, width_edges, width_members
from ._error import calibration_error, checked_norm, debiased_calibration_error
from ._rules import RULES, Bins, assign, check_parity, is_count
from ._sums import add_up, bin_sums, exact_sum, halves

__all__ = [
    "RULES",
    "Bins",
    "add_up",
    "assign",
    "bin_sums",
    "calibration_error",
    "check_parity",
    "checked_norm",
    "debiased_calibration_error",
    "exact_sum",
    "halves",
    "interpolated_edges",
    "is_count",
    "members",
    "split_edges",
    "width_edges",
    "width_members",
]
