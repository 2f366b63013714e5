"""The stage on which VMs are moved."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.neonvm.stage import Stage, staged


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as opened:
        yield opened
