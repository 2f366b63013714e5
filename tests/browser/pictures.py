"""Pictures of the page: taken alike at every run, kept for the documents, and compared as a person compares them."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from PIL import Image, ImageChops, ImageStat
from playwright.async_api import Page as Tab

from protocol.runtime.clock import SystemClock

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / "docs" / "pictures"
SEEN: Final = ROOT / "build" / "pictures"
NOON: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""When all pictures are taken."""
COARSE: Final = 8
"""Pixels of a picture that are one when it is compared: letters are shades then, and boxes are boxes."""
UNLIKE: Final = 40
"""Of 255: a coarse pixel that differs by more is another thing; a line that stands a pixel off is not."""
MOST_UNLIKE: Final = 0.004
"""The share of such pixels that fonts and rounding may cause."""
_LOOKS: Final = 40


class NoonClock(SystemClock):
    """A clock whose seconds advance while its date stays."""

    def wall(self) -> float:
        return NOON.timestamp()


async def steady(tab: Tab) -> bytes:
    """The page once two screenshots are equal."""
    before = b""
    for _ in range(_LOOKS):
        now = await tab.screenshot(animations="disabled", caret="hide")
        if now == before:
            return now
        before = now
        await asyncio.sleep(0.25)
    return before


def unlike(kept: bytes, seen: bytes) -> float:
    """The share of coarse pixels that differ; 1 where the pictures are not of one size."""
    one, other = (Image.open(io.BytesIO(each)).convert("RGB") for each in (kept, seen))
    if one.size != other.size:
        return 1.0
    difference = ImageChops.difference(_coarse(one), _coarse(other))
    greatest = ImageChops.lighter(ImageChops.lighter(*difference.split()[:2]), difference.split()[2])
    return float(ImageStat.Stat(greatest.point(lambda value: 255 * (value > UNLIKE))).mean[0] / 255)


def _coarse(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    return picture.resize((max(1, width // COARSE), max(1, height // COARSE)), Image.Resampling.BOX)
