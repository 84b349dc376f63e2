"""Write docs/losses.md, docs/metrics.md and docs/calibrators.md from the registry and the docstrings.

make docs                       write them
scripts/make_docs.py --check    say which are out of date, write nothing
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from reweigh import registry
from reweigh.cli._signature import REQUIRED, documentation, settings

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTICE = "<!-- Written by scripts/make_docs.py from the source; change the docstring there, then run `make docs`. -->"
OPENINGS = {
    "loss": """# Losses

Each is built by `reweigh.loss(NAME, **settings)` or `reweigh.losses.NAME(**settings)` and called as
`loss(logits, target, sample_weight=None, normalizer=None)`. All take the keywords `reduction`, `ignore_index`,
`class_weight`, `validate` and `process_group`. The README has them by what goes wrong without them.""",
    "metric": """# Metrics

Each is `reweigh.metrics.NAME(predictions, **settings)` on a `reweigh.Predictions`;
`reweigh.metrics.estimate(metric, predictions, interval=0.95)` gives a value with its interval.""",
    "calibrator": """# Calibrators

Each is a scikit-learn estimator, `reweigh.calibration.NAME(**settings)`, fitted on logits and labels or on a
`reweigh.Predictions`; on the command line, `reweigh calibrate METHOD FILE -o CALIBRATOR.json`.""",
}
PAGES = {"loss": "losses.md", "metric": "metrics.md", "calibrator": "calibrators.md"}
ROOMS = {"loss": "losses", "metric": "metrics", "calibrator": "calibration"}


def page(kind: str) -> str:
    """The whole page of one kind."""
    entries = registry.entries(kind)
    listing = "\n".join(f"- [{entry.name}](#{entry.name}): {first_clause(entry.summary)}" for entry in entries)
    sections = "\n\n".join(map(section, entries))
    return f"{NOTICE}\n\n{OPENINGS[kind]}\n\n{listing}\n\n{sections}\n"


def first_clause(summary: str) -> str:
    return re.split(r": |; |\. ", summary)[0].rstrip(".")


def section(entry: registry.Entry) -> str:
    also = f", also {', '.join(entry.aliases)}" if entry.aliases else ""
    facts = {name: value for name, value in entry.details.items() if value not in ("", None, ())}
    parts = [f"## {entry.name}", f"`{signature(entry)}`{also}"]
    if "formula" in facts:
        parts.append(f"`{facts.pop('formula')}`")
    parts.append(markdown(documentation(entry) or entry.summary))
    if facts:
        parts.append(
            "\n".join(f"- {name.replace('_', ' ')}: {fact_text(name, value)}" for name, value in facts.items())
        )
    return "\n\n".join(parts)


def signature(entry: registry.Entry) -> str:
    words = []
    for one in settings(entry):
        if one.default == "(common)":
            continue
        words.append(one.name if one.default == REQUIRED else f"{one.name}={one.default}")
    start = ["predictions"] if entry.kind == "metric" and "predictions" not in words else []
    return f"reweigh.{ROOMS[entry.kind]}.{entry.attribute}({', '.join([*start, *words])})"


def fact_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return (" to " if name == "range" else ", ").join(map(str, value))
    return str(value)


def markdown(text: str) -> str:
    """A docstring as Markdown: examples fenced, settings as a list, everything else as it is."""
    blocks = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(block_markdown(block) for block in blocks)


def block_markdown(block: str) -> str:
    if block.lstrip().startswith(">>>"):
        return f"```pycon\n{textwrap.dedent(block)}\n```"
    heading, _, rest = block.partition("\n")
    if rest and heading.endswith(":") and rest.startswith("    "):
        return f"{heading}\n\n{list_markdown(rest)}"
    return textwrap.dedent(block)


def list_markdown(block: str) -> str:
    """`name: text` lines, each with its deeper-indented continuation, as a list."""
    lines = textwrap.dedent(block).splitlines()
    return "\n".join(line if line.startswith(" ") else f"- {line}" for line in lines)


def main(arguments: list[str]) -> int:
    stale = []
    for kind, name in PAGES.items():
        path, text = DOCS / name, page(kind)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        print(f"out of date: {', '.join(stale)}; run: make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
