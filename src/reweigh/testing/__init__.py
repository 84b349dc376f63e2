"""The contract suite: what every loss keeps, checked in words. `check_loss(loss)` runs it on yours.

May import the module, the rules, the evidence and the registry; needs torch alone, so that it runs on any machine.
To add a check, write a function of a `Subject` under `@check("name")` in the file of its group; a new group of
checks is named in `_suite.py`.
"""

from __future__ import annotations

from ._report import ContractError, Report, Result
from ._subject import Subject
from ._suite import check_loss, checks
from ._variants import Variant, variants

__all__ = ["ContractError", "Report", "Result", "Subject", "Variant", "check_loss", "checks", "variants"]
