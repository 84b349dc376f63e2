"""The two tables every part shares: `Predictions` for classifiers, `Detections` for boxes; nothing about files.

May import `errors` alone. A new column is a field of `_table.py`, checked in `_checks.py`.
"""

from __future__ import annotations

from ._detections import Detections
from ._table import Predictions

__all__ = ["Detections", "Predictions"]
