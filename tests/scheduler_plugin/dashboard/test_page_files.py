from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from scheduler_plugin.dashboard.headers import HEADERS
from scheduler_plugin.dashboard.web import page_files
from tests.scheduler_plugin.dashboard.page_cluster import page

ROOT = Path(__file__).parents[3]
MOST_BYTES = 300 * 1024
_WRITES_MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser")
_ELSEWHERE = re.compile(r"https?://(?!www\.w3\.org/2000/svg)|//[a-z]+\.[a-z]+/")


async def test_every_answer_has_strict_csp() -> None:
    async with page() as run:
        for path in ("/", "/static/app.js", "/static/none.js", "/api/events", "/nowhere"):
            answer = await run.http.get(path)
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "script-src 'self'" in HEADERS["Content-Security-Policy"]
        assert "unsafe" not in HEADERS["Content-Security-Policy"]


async def test_static_files_are_cached_and_confined() -> None:
    async with page() as run:
        first = await run.http.get("/static/app.js")
        again = await run.http.get("/static/app.js", headers={"If-None-Match": first.headers["etag"]})
        assert (first.status_code, first.headers["content-type"], again.status_code) == (
            200,
            "text/javascript; charset=utf-8",
            304,
        )
        for path in ("/static/../web.py", "/static/%2e%2e/web.py", "/static//etc/passwd", "/static/vendor"):
            assert (await run.http.get(path)).status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "localhost@evil"])
async def test_foreign_host_header_is_refused(host: str) -> None:
    async with page() as run:
        assert (await run.http.get("/", headers={"Host": host})).status_code == 421


@pytest.mark.parametrize("host", ["localhost:10290", "127.0.0.1", "[::1]:10290", "LOCALHOST"])
async def test_on_one_machine_its_own_names_are_answered(host: str) -> None:
    async with page() as run:
        assert (await run.http.get("/", headers={"Host": host})).status_code == 200


def test_page_is_small_and_self_contained() -> None:
    files = page_files()
    assert sum(len(each.body) for each in files.values()) < MOST_BYTES
    own = {name: each.body.decode() for name, each in files.items() if not name.startswith("vendor/")}
    assert {name for name, text in own.items() if _ELSEWHERE.search(text)} == set()
    assert {name for name, text in own.items() if _WRITES_MARKUP.search(text)} == set()
    assert re.findall(r"<script(?![^>]*src=)|<style|style=|\son[a-z]+=", own["index.html"]) == []


def test_what_is_vendored_is_what_was_locked() -> None:
    lines = (ROOT / "scripts/vendored.sha256").read_text().splitlines()
    locked = {path: digest for digest, path in (line.split() for line in lines)}
    folders = (ROOT / folder for folder in ("scheduler_plugin/dashboard/static/vendor", "tests/browser/vendor"))
    files = [path for folder in folders for path in folder.iterdir()]
    assert {f"{path.relative_to(ROOT)}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == locked


def test_page_names_addresses_relative_to_its_own() -> None:
    """An Ingress may lead to the page below a path that it takes away, which the page cannot know."""
    own = {name: each.body.decode() for name, each in page_files().items() if not name.startswith("vendor/")}
    absolute = re.compile(r"""["'`(=]/(?:api|static)\b|location\.(?:origin|host)\b""")
    assert {name: found for name, text in own.items() if (found := absolute.findall(text))} == {}
    assert len(re.findall(r'(?:href|src)="static/', own["index.html"])) == 5
