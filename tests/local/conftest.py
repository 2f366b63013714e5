"""The runtime fixture: a whole runtime in one process, over fake guests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.neonvm.runtime_fixture import RuntimeFixture, running_runtime


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[RuntimeFixture]:
    async with running_runtime(tmp_path) as opened:
        yield opened
