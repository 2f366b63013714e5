"""cert-manager makes the certificates, and its issuer gets a new key: all that is shown is trusted at every moment."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protocol.kubernetes.resources import MERGE_PATCH, SECRETS
from protocol.runtime.certificates.issuing import Issued, Purpose, issue, new_authority
from protocol.runtime.certificates.keeper import BUNDLE, CERTIFICATE, KEY
from protocol.units import Seconds
from scheduler_plugin.injector.certificates import OVERLAP, authorities
from tests.scheduler_plugin.injector.injecting import NAMESPACE, SETTINGS, Cluster, installed

DAY = 86_400.0
YEAR = Seconds(365 * DAY)
FILES = SETTINGS + "certificates: {provider: files}\n"
NAMES = ("injector", "kube-scheduler", "scheduler")
REPLICAS = ("first", "second")


@dataclass
class CertManager:
    """A stand-in for cert-manager: it fills Secrets with what its issuer signs, and names in ``ca.crt`` the authority
    that has signed. ``shows`` is who has signed what each Secret has.
    """

    cluster: Cluster
    issuer: Issued
    shows: dict[str, Issued] = field(default_factory=dict)

    @classmethod
    async def on(cls, cluster: Cluster) -> CertManager:
        found = cls(cluster, new_authority(YEAR, cluster.clock.wall()))
        for name in NAMES:
            await found.renew(name)
        return found

    def new_key(self) -> Issued:
        self.issuer = new_authority(YEAR, self.cluster.clock.wall())
        return self.issuer

    async def renew(self, name: str) -> None:
        pair = issue(self.issuer, Purpose(name, (name,)), Seconds(90 * DAY), self.cluster.clock.wall()).pair
        data = {CERTIFICATE: pair.certificate, KEY: pair.key, BUNDLE: self.issuer.pair.certificate}
        await self.fill(f"autoscaling-certificates-{name}", data)
        self.shows[name] = self.issuer
        for replica in REPLICAS if name == "injector" else ():  # the kubelet brings it
            folder = self.cluster.folder / replica
            folder.mkdir(exist_ok=True)
            for file, content in data.items():
                (folder / file).write_bytes(content)

    async def fill(self, secret: str, data: dict[str, bytes]) -> None:
        body = {"data": {key: base64.b64encode(value).decode() for key, value in data.items()}}
        await self.cluster.api.request("PATCH", SECRETS.path(NAMESPACE, secret), body, MERGE_PATCH)

    async def refused(self) -> list[str]:
        """Programs whose certificate some clients do not trust."""
        told = [authorities(each) for each in await self.cluster.published()]
        return [name for name, by in self.shows.items() if not all(by.certificate in each for each in told)]


async def trusted(cluster: Cluster) -> list[str]:
    """The published CAs, by number."""
    (bundle,) = await cluster.published()
    return [
        f"{each.serial_number:x}" for each in sorted(authorities(bundle), key=lambda each: each.not_valid_before_utc)
    ]


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]], ids=["the injector's first", "the injector's last"])
async def test_rotation_trusts_both_authorities(tmp_path: Path, order: tuple[str, ...]) -> None:
    async with installed(tmp_path, *NAMES, settings=FILES) as cluster:
        manager = await CertManager.on(cluster)
        await cluster.start("first")
        await cluster.clock.advance(3)
        old = manager.issuer
        assert await trusted(cluster) == [old.serial]
        await cluster.clock.advance(2 * OVERLAP)
        new = manager.new_key()
        for name in order:
            await manager.renew(name)
            await cluster.clock.advance(11)
            assert await manager.refused() == []
            assert await trusted(cluster) == [old.serial, new.serial]
            await cluster.clock.advance(OVERLAP - 30)
        assert await trusted(cluster) == [old.serial, new.serial], "pods may still show what their Secrets had"
        await cluster.clock.advance(31)
        assert await trusted(cluster) == [new.serial], "what nothing shows any more is trusted no longer"
        assert await manager.refused() == []


async def test_chart_authority_is_published_first(tmp_path: Path) -> None:
    async with installed(tmp_path, *NAMES, settings=FILES) as cluster:
        manager = await CertManager.on(cluster)
        await cluster.start("first")
        await cluster.clock.advance(60)
        old, new = manager.issuer, manager.new_key()
        await manager.fill("autoscaling-certificates", {BUNDLE: new.pair.certificate})
        await cluster.clock.advance(11)
        assert await trusted(cluster) == [old.serial, new.serial]


async def test_new_leader_adopts_permits_briefly(tmp_path: Path) -> None:
    async with installed(tmp_path, *NAMES, settings=FILES) as cluster:
        manager = await CertManager.on(cluster)
        way = cluster.way()
        await cluster.start("first", way)
        await cluster.start("second")
        await cluster.clock.advance(60)
        old, new = manager.issuer, manager.new_key()
        for name in NAMES:
            await manager.renew(name)
        await cluster.clock.advance(11)
        way.is_cut = True
        await cluster.clock.advance(OVERLAP - 60)
        assert await trusted(cluster) == [old.serial, new.serial]
        await cluster.clock.advance(90)
        assert await trusted(cluster) == [new.serial]


async def test_expired_authority_is_not_published(tmp_path: Path) -> None:
    async with installed(tmp_path, *NAMES, settings=FILES) as cluster:
        manager = await CertManager.on(cluster)
        program = await cluster.start("first")
        await cluster.clock.advance(3)
        short = new_authority(Seconds(60.0), cluster.clock.wall())
        await manager.fill("autoscaling-certificates-kube-scheduler", {BUNDLE: short.pair.certificate})
        await cluster.clock.advance(11)
        assert short.serial in await trusted(cluster)
        await cluster.clock.advance(60)
        assert await trusted(cluster) == [manager.issuer.serial]
        for name in NAMES:
            await manager.fill(f"autoscaling-certificates-{name}", {BUNDLE: b"none"})
        (tmp_path / "first" / BUNDLE).write_bytes(b"none")
        before = await cluster.published()
        await cluster.clock.advance(2 * OVERLAP)
        assert await cluster.published() == before, "no client is told to trust nothing"
        assert 'autoscale_injector_turns_total{outcome="failed"}' in program.telemetry.page().decode()
