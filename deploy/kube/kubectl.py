"""Forwards local ports to pods with ``kubectl port-forward``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from protocol.units import Seconds

TIMEOUT: Final = Seconds(8.0)

_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)")
_FORBIDDEN: Final = re.compile(r"\(Forbidden\)| is forbidden: ")


class ForwardingError(Exception):
    """The ports cannot be forwarded; the message says why."""


class CannotForwardError(ForwardingError):
    """kubectl itself failed: not installed, forbidden, or ``is_slow``. This says nothing about the pod."""

    def __init__(self, why: str, *, is_slow: bool = False) -> None:
        super().__init__(why)
        self.is_slow = is_slow


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl for one cluster: command line, environment (None: ours), and the timeout for opening a forward."""

    command: Sequence[str] = ("kubectl",)
    environment: Mapping[str, str] | None = None
    timeout: Seconds = TIMEOUT

    @asynccontextmanager
    async def forward(self, namespace: str, target: str, ports: Sequence[int]) -> AsyncIterator[Mapping[int, int]]:
        """Forward local ports to ``ports`` of ``target`` (``pod/NAME``); yields the local port of each.

        Raises ``ForwardingError``.
        """
        # kubectl chooses the local ports.
        mappings = [f":{port}" for port in ports]
        # Below our own timeout, so that kubectl reports why a pod does not run.
        pod_timeout = f"--pod-running-timeout={self.timeout / 2:g}s"
        arguments = ("--namespace", namespace, "port-forward", pod_timeout, "--address", "127.0.0.1", target, *mappings)
        try:
            process = await asyncio.create_subprocess_exec(
                *(*self.command, *arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment,
            )
        except OSError as error:
            raise CannotForwardError(f"cannot run kubectl: {error.strerror}") from None
        try:
            yield await self._open(process, target, ports)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def _open(self, process: asyncio.subprocess.Process, target: str, ports: Sequence[int]) -> dict[int, int]:
        try:
            return await asyncio.wait_for(_ports(process, ports), self.timeout)
        except TimeoutError:
            why = f"kubectl port-forward {target} timed out after {self.timeout:g} s"
            raise CannotForwardError(why, is_slow=True) from None


async def _ports(process: asyncio.subprocess.Process, ports: Sequence[int]) -> dict[int, int]:
    """The local port of each forwarded port, from kubectl's output."""
    local_ports = list[int]()
    while len(local_ports) < len(ports):
        line = (await process.stdout.readline()).decode() if process.stdout else ""
        if not line:
            errors = (await process.stderr.read()).decode().strip() if process.stderr else ""
            # RBAC's refusals are about the user, all other errors about the pod.
            kind = CannotForwardError if _FORBIDDEN.search(errors) else ForwardingError
            # The lines before the last are kubectl's warnings.
            raise kind(errors.splitlines()[-1] if errors else "kubectl port-forward exited")
        if match := _FORWARDING.search(line):
            local_ports.append(int(match[1]))
    # kubectl prints the ports in the order of its arguments.
    return dict(zip(ports, local_ports, strict=True))
