"""The page's own files, read once. No request's path is ever looked up in the file system."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduler_plugin.dashboard.core.states import script

STATIC: Final = Path(__file__).parent / "static"
STATES: Final = "states.js"
"""Generated from ``core/states.py``; there is no such file on disk."""
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent."""

    body: bytes
    media_type: str
    etag: str


def page_files(folder: Path = STATIC) -> dict[str, PageFile]:
    """All files below ``folder`` by their path in it, and the tables of states."""
    files = {STATES: _file(script(), ".js")}
    for path in sorted(folder.rglob("*")):
        # A type that is not listed is not served, such as an editor's backup.
        if path.suffix in TYPES:
            files[path.relative_to(folder).as_posix()] = _file(path.read_bytes(), path.suffix)
    return files


def _file(body: bytes, suffix: str) -> PageFile:
    return PageFile(body, TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"')
