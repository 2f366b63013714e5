"""The link between the QEMUs of two pods: TLS over the pods' network, and the decision that the source's pod keeps."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.neonvm.addressing import MIGRATION_PORT
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.machine import Machine
from deploy.neonvm.qemu.wire import Arbiter, Decided, Route, Wire
from deploy.neonvm.remote.runner_client import RunnerClient
from deploy.neonvm.remote.tls_authority import MigrationAuthority
from deploy.neonvm.runner.pod_runner import TARGET_NAME
from deploy.neonvm.texts import controller as texts

_SOURCE_NAME = "source.migration.local"


@dataclass(frozen=True, slots=True)
class TlsWire(Wire):
    """The connection that carries the bytes of one move. Each end trusts certificates of this move alone."""

    source: RunnerClient
    target: RunnerClient
    move: str
    wall: float

    async def open(self, source: Machine, target: Machine) -> Route:  # noqa: ARG002 - a part of the port
        """Gives both ends their certificates, without which neither sends or takes a guest. Raises ``GuestError``,
        also for an open pod.
        """
        # Any program could be at the address of an open pod, and would be sent the guest's memory.
        for end in (self.source, self.target):
            if end.place.is_open:
                raise GuestError(f"{end.who}: {texts.OLD_RUNNER}")
        authority = MigrationAuthority(self.move, self.wall)
        # The target first: the source's certificate makes its pod prepare for the move.
        for client, name in ((self.target, TARGET_NAME), (self.source, _SOURCE_NAME)):
            signed = authority.signed(await client.signing_request(self.move), name)
            await client.use_certificate(self.move, signed, authority.certificate)
        address = self.target.place.address
        # The target listens on all its addresses, of the family by which the source reaches it.
        host, anywhere = (f"[{address}]", "[::]") if ":" in address else (address, "0.0.0.0")
        uri = f"tcp:{host}:{MIGRATION_PORT}"
        # `inc` sends along what the disk has beyond its image.
        return Route(f"tcp:{anywhere}:{MIGRATION_PORT}", {"uri": uri, "inc": True})


@dataclass(frozen=True, slots=True)
class SourceDecides(Arbiter):
    """The arbiter of a move between pods: the pod that the guest leaves keeps what was decided."""

    source: RunnerClient
    move: str

    async def decided(self) -> Decided:
        """The decision. Raises ``GuestError``."""
        return await self.source.decide(self.move, Decided.OPEN)

    async def give(self) -> Decided:
        """Decides for the target. Raises ``GuestError``."""
        return await self.source.decide(self.move, Decided.GIVEN)

    async def keep(self) -> Decided:
        """Decides for the source. Raises ``GuestError``."""
        return await self.source.decide(self.move, Decided.KEPT)
