"""Runs ``ip``, ``bridge`` and ``nft``. The process has ended when the call returns, even on cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from deploy.neonvm.ports import NetworkError
from deploy.owned_process import run_command

_SECONDS: Final = 20.0
# All other commands belong to iproute2.
_PACKAGES: Final = {"nft": "nftables"}


async def run(*command: str, lines: Iterable[str] = ()) -> str:
    """Run ``command`` with ``lines`` as stdin; return its stdout. Raises ``NetworkError``."""
    try:
        async with asyncio.timeout(_SECONDS):
            code, output, errors = await run_command(*command, stdin="".join(f"{line}\n" for line in lines))
    except FileNotFoundError as error:
        package = _PACKAGES.get(command[0], "iproute2")
        raise NetworkError(f"{command[0]} is not installed; on Debian: sudo apt-get install {package}") from error
    except TimeoutError as error:
        raise NetworkError(f"`{' '.join(command)}` did not end within {_SECONDS:.0f} s") from error
    if code:
        raise NetworkError(f"`{' '.join(command)}` failed: {errors}")
    return output


async def ip_in(namespace: str, *lines: str) -> None:
    """Run ``lines`` with one ``ip -batch`` in a network namespace. Raises ``NetworkError``."""
    await run("ip", "-n", namespace, "-batch", "-", lines=lines)
