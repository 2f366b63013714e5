"""The site is made of the documents as they are: links between them stay, others become text."""

from __future__ import annotations

import re

import pytest

from scripts.documents.__main__ import ROOT, documents, relinked

KNOWN = {"README.md", *(f"guide/{each}" for each in ("a.md", "runbooks/README.md", "a.svg"))}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[a](a.md#part)", "[a](a.md#part)"),
        ("[up](../README.md)", "[up](../README.md)"),
        ("![picture](a.svg)", "![picture](a.svg)"),
        ("[all](runbooks/)", "[all](runbooks/README.md)"),
        ("[code](../agent/core.py) and [web](https://example.com/)", "code and [web](https://example.com/)"),
    ],
)
def test_site_links_resolve(written: str, shown: str) -> None:
    assert relinked(written, "guide/b.md", KNOWN) == shown


def test_navigation_lists_documents() -> None:
    named = re.findall(r"^\s+- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(named) > 20
    assert sorted(set(named) - {each.as_posix() for each in documents()}) == []


def test_site_is_self_contained() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert "://" not in settings
    assert "script-src 'self'" in (ROOT / "docs" / "theme" / "main.html").read_text()
