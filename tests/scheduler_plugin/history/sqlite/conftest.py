"""An empty history in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_plugin.history.sqlite.store import SqliteStore
from tests.scheduler_plugin.history.sqlite.written_history import NOW


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    found = SqliteStore(path, lambda: NOW / 1000)
    yield found
    found.close()
