"""The demonstration's page: its link is among the first lines, and the VM grows there while the load runs."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("playwright")
from tests.browser.chromium import browsing, visit

pytestmark = pytest.mark.browser
COMMAND = (sys.executable, "-m", "scripts.autoscale.main", "demo", "--guests", "simulated", "--seconds", "20")
FIRST_LINES = 10
INTERRUPTED = 130


async def test_demo_page_shows_growth_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOSCALE_HOME", str(tmp_path))
    with taken(10290):
        process = await asyncio.create_subprocess_exec(*COMMAND, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            link = await link_in(process.stdout)
            assert ":10290/" not in link
            reading = asyncio.create_task(process.stdout.read())
            async with browsing() as browser, visit(browser, link) as seen:
                await seen.shows("1 database on 2 nodes")
                await seen.tab.evaluate("location.hash = '#/vm/default/demo'")
                await seen.shows("Guest size")
                await seen.tab.locator(".facts div", has_text="Size4 vCPU").first.wait_for(timeout=60_000)
                assert seen.complaints == []
                process.send_signal(signal.SIGINT)
                await seen.shows("No connection to the page's server")
            assert "Traceback" not in (await reading).decode()
            assert await process.wait() == INTERRUPTED
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def link_in(lines: asyncio.StreamReader) -> str:
    said: list[str] = []
    # The tenth line may come when the load has begun, which is to be seen.
    while len(said) < FIRST_LINES:
        said.append((await lines.readline()).decode())
        if found := re.search(r"http://127\.0\.0\.1:\d+/#token=\S+", said[-1]):
            return found[0]
    pytest.fail(f"no link in {said}")


@contextmanager
def taken(port: int) -> Iterator[None]:
    """The port of loopback is taken within the context, by this process or by another one."""
    with socket.socket() as sock:
        with suppress(OSError):
            sock.bind(("127.0.0.1", port))
            sock.listen()
        yield
