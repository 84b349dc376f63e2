"""Prediction files: one file a format; opening, saving, streaming, and the recorder for any loop and any rank.

May import `predictions`, `registry` and `errors`; nothing here computes a metric. A new format is one file with a
function under `@register_format(NAME, endings=(...))` that returns a `Format`.
"""

from __future__ import annotations

from ._describe import describe
from ._limits import free_memory
from ._open import batches, open, plan
from ._plan import Plan, merge_seen
from ._recorder import Recorder, record
from ._replace import replacing
from ._save import save
from ._source import Format, Source

__all__ = [
    "Format",
    "Plan",
    "Recorder",
    "Source",
    "batches",
    "describe",
    "free_memory",
    "merge_seen",
    "open",
    "plan",
    "record",
    "replacing",
    "save",
]
