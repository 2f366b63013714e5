"""The page looks like its pictures in the documents. ``AUTOSCALE_PICTURES=1`` retakes them."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any, Final

import pytest

pytest.importorskip("playwright")
from PIL import Image, ImageDraw

from tests.browser.chromium import browsing, served, visit
from tests.browser.made_up_fleet import fleet, past_of, speaks
from tests.browser.pictures import KEPT, MOST_UNLIKE, NOON, SEEN, NoonClock, steady, unlike

WIDE: Final = (1360, 800)
PHONE: Final = (390, 800)


@dataclass(frozen=True, slots=True)
class Picture:
    """A view at an address of the page; ``text`` is visible once it is complete."""

    name: str
    path: str
    text: str
    size: tuple[int, int] = WIDE
    theme: Any = "dark"


PICTURES: Final = (
    Picture("page-fleet", "#/", "24 nodes"),
    Picture("page-vm", "#/vm/shop/db-0", "Cost of the last 15 minutes"),
    Picture("page-costs", "#/costs", "Scaling saved", theme="light"),
    Picture("page-phone", "#/", "24 nodes", PHONE, "light"),
)


def drawn(*boxes: tuple[int, int, int, int]) -> bytes:
    picture = Image.new("RGB", (400, 240), "white")
    for each in boxes:
        ImageDraw.Draw(picture).rectangle(each, fill="navy")
    written = io.BytesIO()
    picture.save(written, "png")
    return written.getvalue()


def test_missing_block_is_noticed() -> None:
    kept = drawn((20, 20, 120, 60), (200, 20, 260, 60))
    assert unlike(kept, kept) == 0
    assert unlike(kept, drawn((20, 21, 120, 61), (200, 20, 260, 60))) <= MOST_UNLIKE
    assert unlike(kept, drawn((20, 20, 120, 60))) > MOST_UNLIKE
    assert unlike(kept, drawn((20, 20, 120, 60), (200, 60, 260, 100))) > MOST_UNLIKE


@pytest.mark.browser
@pytest.mark.parametrize("picture", PICTURES, ids=lambda each: each.name)
async def test_the_page_looks_as_in_the_documents(picture: Picture) -> None:
    cluster, told = fleet(24, 12)
    speaks(told, "shop/db-0")
    options = {"color_scheme": picture.theme, "reduced_motion": "reduce", "locale": "en-GB", "timezone_id": "UTC"}
    async with browsing() as browser, served(cluster, told, history=past_of(cluster), clock=NoonClock()) as run:
        link = f"{run.url}#token={run.links[-1]}"
        async with visit(browser, link, *picture.size, at=NOON, **options) as seen:
            await seen.shows("288 databases")
            await seen.tab.evaluate("path => { location.hash = path }", picture.path)
            await seen.shows(picture.text)
            found = await steady(seen.tab)
            assert seen.complaints == []
    kept = KEPT / f"{picture.name}.png"
    if os.environ.get("AUTOSCALE_PICTURES"):
        kept.write_bytes(found)
    SEEN.mkdir(parents=True, exist_ok=True)
    (SEEN / kept.name).write_bytes(found)
    share = unlike(kept.read_bytes(), found)
    said = f"{share:.2%} of {kept} differ from {SEEN / kept.name}; AUTOSCALE_PICTURES=1 make test-page takes all anew"
    assert share <= MOST_UNLIKE, said
