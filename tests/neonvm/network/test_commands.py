"""Commands that change the network: their output, their faults, and that none outlives its caller."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from deploy.neonvm.network.commands import run
from deploy.neonvm.ports import NetworkError


async def test_command_returns_its_output() -> None:
    assert await run("cat", lines=("one", "two")) == "one\ntwo\n"


async def test_failed_command_quotes_stderr() -> None:
    with pytest.raises(NetworkError, match=r"`sh -c echo no >&2; exit 3` failed: no"):
        await run("sh", "-c", "echo no >&2; exit 3")


async def test_a_missing_program_is_reported_with_the_remedy() -> None:
    with pytest.raises(
        NetworkError, match="no-such-program is not installed; on Debian: sudo apt-get install iproute2"
    ):
        await run("no-such-program")


async def test_missing_nft_names_its_own_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NetworkError, match="nft is not installed; on Debian: sudo apt-get install nftables"):
        await run("nft", "-f", "-")


async def test_cancelled_call_kills_its_command(tmp_path: Path) -> None:
    """The command writes its pid to a named pipe, so that the test knows when it runs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    task = asyncio.create_task(run("sh", "-c", f"echo $$ >{pipe}; exec tail -f /dev/null"))
    process = int(await asyncio.to_thread(pipe.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
