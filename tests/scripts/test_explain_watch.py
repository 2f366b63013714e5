"""``autoscale explain --watch`` for scripts: it prints one document after the other, despite failures of the API
server.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
import yaml

from protocol.kubernetes.api import ApiUnknownError
from scripts.autoscale.explain import Explanation, print_repeatedly
from scripts.autoscale.site import SiteError
from scripts.autoscale.terminal.printing import Output, show


async def watched(output: Output, *answers: Explanation | Exception) -> None:
    """The first account, and one for each of the answers."""
    left = list(answers)

    async def ask() -> Explanation:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def pause() -> None:
        if not left:
            raise asyncio.CancelledError

    show(["vm 0"], {"vm": 0}, output)
    with suppress(asyncio.CancelledError):
        await print_repeatedly(ask, output, pause)


async def test_each_account_is_a_document_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    accounts: list[Explanation] = [([f"vm {at}"], {"vm": at}) for at in (1, 2)]
    await watched(Output.YAML, *accounts)
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [{"vm": 0}, {"vm": 1}, {"vm": 2}]
    await watched(Output.JSON, *accounts)
    assert [json.loads(f"{each}}}") for each in capsys.readouterr().out.strip().removesuffix("}").split("}\n")] == [
        *({"vm": at} for at in (0, 1, 2))
    ]


async def test_repeated_error_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    away, gone = ApiUnknownError("refused"), SiteError("no such VM")
    await watched(Output.TEXT, away, away, (["vm 1"], {}), away, gone, gone, (["vm 2"], {}))
    said = capsys.readouterr()
    assert said.out.split() == ["vm", "0", "vm", "1", "vm", "2"]
    now = "No explanation available"
    assert said.err.splitlines() == [f"{now}: refused", f"{now}: refused", f"{now}: no such VM"]


async def test_error_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    await watched(Output.TEXT, ApiUnknownError("port-forward to a:9101: \x1b[2J\x9b0m"), (["vm 1"], {}))
    assert capsys.readouterr().err == "No explanation available: port-forward to a:9101: ␛[2J\ufffd0m\n"
