"""One check a file: a function of a `Context` that returns what it found in one sentence, or None.

May import everything `evaluation` may. Code, severity, why it matters and what to do stand in the decorator, so that
`reweigh show check NAME` tells them without running anything.
"""
