"""Copies all documents into one folder, from which mkdocs builds the site (``make docs``).

Relative paths stay the same, so links between documents work. Links to other files are replaced by their text.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GATHERED: Final = ROOT / "build" / "documents"
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
_PICTURES: Final = frozenset({".svg", ".png"})


def documents() -> list[Path]:
    """All documents and pictures, as paths relative to the repository's root."""
    docs = [path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", *_PICTURES}]
    return sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *docs])


def relinked(text: str, document: str, documents: Collection[str]) -> str:
    """``text`` of ``document`` with only those links whose targets are in ``documents`` (pure)."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(document), match[3]))
        if target in documents:
            return match[0]
        # GitHub resolves a folder to its README.md, mkdocs does not.
        if f"{target}/README.md" in documents:
            return f"{match[1]}[{match[2]}]({match[3].rstrip('/')}/README.md{match[4] or ''})"
        return match[2]

    return _LINK.sub(link, text)


def gather(target: Path) -> None:
    """Replace the folder ``target`` with all documents."""
    shutil.rmtree(target, ignore_errors=True)
    paths = documents()
    names = {path.as_posix() for path in paths}
    for document in paths:
        (target / document).parent.mkdir(parents=True, exist_ok=True)
        if document.suffix == ".md":
            (target / document).write_text(relinked((ROOT / document).read_text(), document.as_posix(), names))
        else:
            shutil.copyfile(ROOT / document, target / document)


if __name__ == "__main__":
    gather(GATHERED)
