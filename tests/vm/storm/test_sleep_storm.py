"""``AUTOSCALE_STORM=3600 make test-vm TEST_ARGS='-s tests/vm/storm'``: an hour of sleeps, wakes, moves and kills."""

from __future__ import annotations

import os
import secrets
from typing import Final

import pytest
from rich.console import Console

from tests.vm.storm.sleep_storm import sleep_storm

SECONDS: Final = int(os.environ.get("AUTOSCALE_STORM", "0"))
SEED: Final = os.environ.get("AUTOSCALE_STORM_SEED", "")
"""Repeats the actions of an earlier storm."""


@pytest.mark.vm
@pytest.mark.skipif(not SECONDS, reason="AUTOSCALE_STORM says for how many seconds")
async def test_sleep_storm_loses_nothing() -> None:
    assert await sleep_storm(SECONDS, SEED or str(secrets.randbelow(10**6)), Console()) == []
