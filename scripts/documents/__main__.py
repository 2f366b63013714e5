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
    docs = [each for each in (ROOT / "docs").rglob("*") if each.suffix in {".md", *_PICTURES}]
    return sorted(each.relative_to(ROOT) for each in [*ROOT.glob("*.md"), *docs])


def relinked(text: str, document: str, known: Collection[str]) -> str:
    """The text of ``document`` with links that lead within ``known`` (pure): a folder is its README.md."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(document), found[3]))
        if target in known:
            return found[0]
        if f"{target}/README.md" in known:
            return f"{found[1]}[{found[2]}]({found[3].rstrip('/')}/README.md{found[4] or ''})"
        return found[2]

    return _LINK.sub(link, text)


def gather(target: Path) -> None:
    """Writes all documents below ``target``, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    found = documents()
    known = {each.as_posix() for each in found}
    for each in found:
        (target / each).parent.mkdir(parents=True, exist_ok=True)
        if each.suffix == ".md":
            (target / each).write_text(relinked((ROOT / each).read_text(), each.as_posix(), known))
        else:
            shutil.copyfile(ROOT / each, target / each)


if __name__ == "__main__":
    gather(GATHERED)
