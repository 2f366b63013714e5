"""Gathers all documents in one folder, from which mkdocs builds the site: ``make docs``.

They keep their places, so that links between them stay true. A link to a file that is no document becomes its text.
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
    """All documents and their pictures, by their paths from the root of the repository."""
    docs = [path for path in (ROOT / "docs").rglob("*") if path.suffix in {".md", *_PICTURES}]
    return sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *docs])


def relinked(text: str, document: str, known: Collection[str]) -> str:
    """The text of ``document`` with links that lead within ``known`` (pure): a folder is its README.md."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(document), found[3]))
        if target in known:
            return found[0]
        # GitHub shows a folder's README.md; mkdocs needs the file's own name.
        if f"{target}/README.md" in known:
            return f"{found[1]}[{found[2]}]({found[3].rstrip('/')}/README.md{found[4] or ''})"
        # A link out of the documents would be broken on the site.
        return found[2]

    return _LINK.sub(link, text)


def gather(target: Path) -> None:
    """Empties ``target`` and writes all documents below it."""
    # A document that was renamed must not stay behind under its old name.
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
