"""Names read from source files are those that parsing the whole of them gives."""

from __future__ import annotations

import ast
import textwrap

import pytest

from reweigh import registry


@pytest.mark.parametrize("kind", [kind for kind in registry.FOLDERS if registry.entries(kind)])
def test_heads_of_definitions_are_enough(kind, monkeypatch):
    fast = [entry for entry in registry.entries(kind) if entry.thing is None]  # not what other tests registered
    monkeypatch.setattr(registry, "_definitions", lambda kind, text: ast.parse(text).body)
    whole = registry._of_package.__wrapped__(kind)
    assert {entry.name: entry for entry in fast} == whole


@pytest.mark.parametrize(
    "source",
    [
        '@register_loss("a", aliases=("A",))\ndef a(*, x: int = 3):\n    """One."""\n    return 1\n\n\ndef b():\n    pass\n',
        '@other\n@register_loss("a")\n@another(1)\ndef a(\n    *,\n    x: int = 3,\n):\n    r"""One.\n\n    More.\n    """\n    return 1\n',
        '@register_loss(\'a\')\ndef a():\n    return 1\n\n\n@register_loss(\'b\')\ndef b():\n    """Two."""\n',
        '@register_loss("a")\nclass A(B):\n    """One."""\n\n    x = """three quotes"""\n\n\n@register_loss("b")\ndef b():\n    """Two."""\n',
        "@register_loss('a')\ndef a():\n    '''One.'''\n",
        'text = """\n@register_loss("no")\n"""\n\n\n@register_loss("a")\ndef a():\n    """One."""\n',
    ],
)
def test_odd_files(tmp_path, source, monkeypatch):
    path = tmp_path / "_a.py"
    path.write_text(textwrap.dedent(source))
    fast = registry._read("loss", path, "reweigh.losses._a")
    monkeypatch.setattr(registry, "_definitions", lambda kind, text: ast.parse(text).body)
    assert fast == registry._read("loss", path, "reweigh.losses._a")
    assert fast
