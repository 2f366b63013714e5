"""A runner's pod that accepts only its controller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.neonvm.access.secured_pod import SecuredPod, secured_pod


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[SecuredPod]:
    async with secured_pod(tmp_path) as made:
        yield made
