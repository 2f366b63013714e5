"""How a command ends: with its result, or cleanly by a signal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine

import pytest
import typer

from scripts.autoscale.running import run
from scripts.autoscale.site import SiteError


async def _says(result: int) -> int:
    return result


async def _fails() -> int:
    raise ExceptionGroup("several", [SiteError("there is no cluster")])


async def _is_sent(number: signal.Signals, cleaned: list[int]) -> int:
    os.kill(os.getpid(), number)
    try:
        await asyncio.Event().wait()
    finally:
        cleaned.append(number)
    return 0


def code(job: Coroutine[object, object, int]) -> int:
    with pytest.raises(typer.Exit) as ended:
        run(job)
    return ended.value.exit_code


def test_command_exits_with_result_or_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert [code(_says(3)), code(_fails())] == [3, 1]
    assert capsys.readouterr().err == "autoscale: there is no cluster\n"


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_a_signal_ends_a_command_in_order(number: signal.Signals, expected: int) -> None:
    cleaned: list[int] = []
    assert (code(_is_sent(number, cleaned)), cleaned) == (expected, [number])
