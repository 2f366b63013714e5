"""Ways from this machine to ports of pods by ``kubectl port-forward``, where the API server's proxy does not help."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from protocol.units import Seconds

PATIENCE: Final = Seconds(8.0)

_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> (\d+)")
_FORBIDDEN: Final = re.compile(r"\(Forbidden\)| is forbidden: ")


class ForwardingError(Exception):
    """The ports cannot be reached; the message says why."""


class CannotForwardError(ForwardingError):
    """Forwarding itself fails: there is no kubectl, no right to it, or it ``is_slow``. The pod may be well."""

    def __init__(self, why: str, *, is_slow: bool = False) -> None:
        super().__init__(why)
        self.is_slow = is_slow


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl for one cluster: its command line, its environment (None: ours), and how long a way may take to open."""

    command: Sequence[str] = ("kubectl",)
    environment: Mapping[str, str] | None = None
    patience: Seconds = PATIENCE

    @asynccontextmanager
    async def forward(self, namespace: str, target: str, ports: Sequence[int]) -> AsyncIterator[Mapping[int, int]]:
        """Local ports by those of ``target`` (``pod/NAME``) that they lead to. Raises ``ForwardingError``."""
        # An empty local port lets kubectl choose a free one.
        wanted = [f":{port}" for port in ports]
        # Well below our own patience, so that kubectl itself reports why a pod does not run.
        waits = f"--pod-running-timeout={self.patience / 2:g}s"
        arguments = ("--namespace", namespace, "port-forward", waits, "--address", "127.0.0.1", target, *wanted)
        try:
            process = await asyncio.create_subprocess_exec(
                *(*self.command, *arguments),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self.environment,
            )
        except OSError as error:
            raise CannotForwardError(f"kubectl cannot be run: {error.strerror}") from None
        try:
            yield await self._opened(process, target, ports)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    async def _opened(self, process: asyncio.subprocess.Process, target: str, ports: Sequence[int]) -> dict[int, int]:
        try:
            return await asyncio.wait_for(_ports(process, ports), self.patience)
        except TimeoutError:
            why = f"kubectl port-forward {target} gave no port within {self.patience:g} s"
            raise CannotForwardError(why, is_slow=True) from None


async def _ports(process: asyncio.subprocess.Process, ports: Sequence[int]) -> dict[int, int]:
    """The local port of each forwarded port, from kubectl's output."""
    local_ports = list[int]()
    while len(local_ports) < len(ports):
        line = (await process.stdout.readline()).decode() if process.stdout else ""
        if not line:
            errors = (await process.stderr.read()).decode().strip() if process.stderr else ""
            # A refusal by RBAC concerns the person who asks; any other error concerns the pod.
            kind = CannotForwardError if _FORBIDDEN.search(errors) else ForwardingError
            # The last line has the reason; those before it are warnings of kubectl.
            raise kind(errors.splitlines()[-1] if errors else "kubectl port-forward ended")
        if match := _FORWARDING.search(line):
            local_ports.append(int(match[1]))
    # kubectl prints a line for each port in the order in which they were asked for.
    return dict(zip(ports, local_ports, strict=True))
