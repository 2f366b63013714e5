"""The certificates of an installation over time: who makes them, when, and who knows of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cryptography import x509

from protocol.kubernetes.resources import MERGE_PATCH, SECRETS
from protocol.runtime.certificates.issuing import new_authority
from protocol.runtime.certificates.keeper import authorities_in, certificate_in
from protocol.units import Seconds
from tests.scheduler_plugin.injector.injecting import NAMESPACE, SETTINGS, installed

DAY = 86_400.0
SHORT = SETTINGS + "certificates: {authorityLife: 720s, life: 240s}\n"
ALL = ("scheduler", "injector", "expander", "kube-scheduler")


async def test_an_empty_installation_gets_certificates_within_seconds(tmp_path: Path) -> None:
    async with installed(tmp_path, *ALL) as cluster:
        program = await cluster.start("first")
        await cluster.clock.advance(3)
        (authority,) = authorities_in(await cluster.data(""))
        assert await cluster.bundles() == {authority.pair.certificate}
        names = {}
        for name in ALL:
            found = certificate_in(await cluster.data(name))
            assert found is not None
            assert found.is_signed_by(authority)
            names[name] = found.certificate.subject.rfc4514_string()
        assert names["kube-scheduler"] == "CN=autoscaling-kube-scheduler"
        server = certificate_in(await cluster.data("scheduler"))
        assert server is not None
        told = server.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {
            "autoscaling-scheduler.kube-system.svc",
            "autoscaling-scheduler-extender.kube-system.svc.cluster.local",
        } <= set(told.get_values_for_type(x509.DNSName))
        assert program.readiness() == (True, "ok, leading")
        program.tls.value()
        assert (tmp_path / "first" / "own.pem").stat().st_mode & 0o777 == 0o600


async def test_missing_component_gets_no_certificate(tmp_path: Path) -> None:
    async with installed(tmp_path, "scheduler", "injector") as cluster:
        await cluster.start("first")
        await cluster.clock.advance(3)
        assert await cluster.serial("scheduler")
        assert not [each for each in cluster.api.writes() if "POST" in each]


async def test_nothing_is_written_while_nothing_is_due(tmp_path: Path) -> None:
    async with installed(tmp_path, *ALL) as cluster:
        await cluster.start("first")
        await cluster.clock.advance(3)
        before = cluster.api.writes()
        await cluster.clock.advance(300)
        assert cluster.api.writes() == before


async def test_rotation_has_no_gap(tmp_path: Path) -> None:
    """For a quarter of an hour, in which each certificate is renewed several times, every served certificate is trusted
    by all bundles.
    """
    async with installed(tmp_path, *ALL, settings=SHORT) as cluster:
        await cluster.start("first")
        await cluster.clock.advance(3)
        seen: dict[str, set[str]] = {"authorities": set(), **{name: set() for name in ALL}}
        before = await cluster.bundles()
        for _ in range(18):
            await cluster.clock.advance(50)
            now = cluster.clock.wall()
            authorities = authorities_in(await cluster.data(""))
            (bundle,) = await cluster.bundles()
            seen["authorities"] |= {each.serial for each in authorities}
            for name in ALL:
                found = certificate_in(await cluster.data(name))
                assert found is not None
                assert found.lifetime.is_valid(now)
                (by,) = (each for each in authorities if found.is_signed_by(each))
                assert by.lifetime.is_valid(now)
                assert by.pair.certificate in bundle
                assert all(by.pair.certificate in old for old in before), "it was announced a turn before it signs"
                seen[name].add(found.serial)
            before = {bundle}
        assert len(seen["authorities"]) >= 4
        assert all(len(seen[name]) >= 5 for name in ALL)


async def test_damaged_or_misnamed_certificate_is_reissued(tmp_path: Path) -> None:
    async with installed(tmp_path, *ALL) as cluster:
        await cluster.start("first")
        await cluster.clock.advance(3)
        path = SECRETS.path(NAMESPACE, "autoscaling-certificates-scheduler")
        for data in ({"tls.key": "eA=="}, {"tls.crt": None}, {"ca.crt": "eA=="}):
            await cluster.api.request("PATCH", path, {"data": data}, MERGE_PATCH)
            await cluster.clock.advance(31)
            assert await cluster.serial("scheduler")
            assert len(await cluster.bundles()) == 1
    renamed = SETTINGS + "clusterDomain: example.internal\n"
    async with installed(tmp_path, *ALL) as cluster:
        await cluster.start("first")
        await cluster.clock.advance(3)
        before = await cluster.serial("scheduler")
        cluster.tasks["first"].cancel()
        cluster.text = renamed
        await cluster.clock.advance(1)
        await cluster.start("second")
        await cluster.clock.advance(20)
        assert await cluster.serial("scheduler") != before


async def test_lost_authority_replaces_its_certificates(tmp_path: Path) -> None:
    async with installed(tmp_path, *ALL) as cluster:
        await cluster.start("first")
        await cluster.clock.advance(3)
        before = {name: await cluster.serial(name) for name in ALL}
        path = SECRETS.path(NAMESPACE, "autoscaling-certificates")
        await cluster.api.request("PATCH", path, {"data": None}, MERGE_PATCH)
        await cluster.clock.advance(31)
        (authority,) = authorities_in(await cluster.data(""))
        assert await cluster.bundles() == {authority.pair.certificate}
        after = {name: await cluster.serial(name) for name in ALL}
        assert all(after.values())
        assert not set(after.values()) & set(before.values())


async def test_one_replica_issues_both_serve(tmp_path: Path) -> None:
    async with installed(tmp_path, *ALL, settings=SHORT) as cluster:
        way = cluster.way()
        first, second = await cluster.start("first", way), await cluster.start("second")
        await cluster.clock.advance(6)
        assert [each.readiness()[1] for each in (first, second)] == ["ok, leading", "ok, standing by"]
        files = [(tmp_path / name / "own.pem").read_bytes() for name in ("first", "second")]
        assert files[0] == files[1]
        way.is_cut = True
        await cluster.clock.advance(400)
        assert (first.leadership.leads, second.leadership.leads) == (False, True)
        assert (tmp_path / "second" / "own.pem").read_bytes() != files[0]


async def test_late_waking_leader_changes_nothing(tmp_path: Path) -> None:
    async with installed(tmp_path, *ALL, settings=SHORT) as cluster:
        way = cluster.way()
        await cluster.start("first", way)
        await cluster.clock.advance(3)
        way.cut_on = "secrets/autoscaling-certificates-scheduler"
        while not way.is_cut:
            await cluster.clock.advance(10)
        await cluster.start("second")
        await cluster.clock.advance(60)
        shown = await cluster.serial("scheduler")
        assert await way.send_late() == 409
        assert await cluster.serial("scheduler") == shown


async def test_killed_at_any_write_its_successor_finishes(tmp_path: Path) -> None:
    for cut, is_applied in ((0, False), (1, True), (4, False), (8, True)):
        async with installed(tmp_path, *ALL, settings=SHORT) as cluster:
            way = cluster.way()
            way.cut_at, way.is_applied = cut, is_applied
            await cluster.start("first", way)
            await cluster.clock.advance(3)
            await cluster.start("second")
            await cluster.clock.advance(40)
            authorities = authorities_in(await cluster.data(""))
            assert await cluster.bundles() == {b"".join(each.pair.certificate for each in authorities)}
            for name in ALL:
                found = certificate_in(await cluster.data(name))
                assert found is not None
                assert any(found.is_signed_by(each) for each in authorities)


async def test_failed_secret_blocks_no_other(tmp_path: Path) -> None:
    async with installed(tmp_path, *ALL) as cluster:
        way = cluster.way()
        way.refuse = {"certificates-scheduler": 403, "namespaces/default/configmaps": 403}
        program = await cluster.start("first", way)
        await cluster.clock.advance(3)
        assert [bool(await cluster.serial(name)) for name in ALL] == [False, True, True, True]
        assert program.readiness()[0]
        page = program.telemetry.page().decode()
        assert 'autoscale_certificate_renewals_total{outcome="done"} 3.0' in page
        assert 'autoscale_injector_turns_total{outcome="failed"}' in page


async def test_external_issuer_publishes_authorities_only(tmp_path: Path) -> None:
    async with installed(tmp_path, *ALL, settings=SETTINGS + "certificates: {provider: files}\n") as cluster:
        folder = tmp_path / "first"
        folder.mkdir()
        program = await cluster.start("first")
        await cluster.clock.advance(3)
        assert program.readiness() == (False, "the webhook has no certificate yet")
        theirs = new_authority(Seconds(DAY), cluster.clock.wall())
        for file, content in (("tls.crt", theirs.pair.certificate), ("tls.key", theirs.pair.key)):
            (folder / file).write_bytes(content)
        (folder / "ca.crt").write_bytes(theirs.pair.certificate)
        await cluster.clock.advance(3)
        assert program.readiness()[0]
        written = cluster.api.writes()
        assert [each for each in written if "secrets" in each] == []
        assert len(written) == 3


async def test_old_kubernetes_gets_no_sidecars(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with installed(tmp_path, *ALL) as cluster:
        way = cluster.way()
        way.version = "28"
        program = await cluster.start("first", way)
        await cluster.clock.advance(3)
        ready, said = program.readiness()
        assert (ready, said.partition(":")[0]) == (
            False,
            "native sidecars need Kubernetes 1.29 or later, this is v1.28",
        )
        assert [each.message for each in caplog.records].count("no agents are injected") == 1
        way.version = "29"
        await cluster.clock.advance(2)
        assert program.readiness()[0]


async def test_logs_contain_no_keys_and_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with installed(tmp_path, *ALL, settings=SHORT) as cluster:
        way = cluster.way()
        await cluster.start("first", way)
        await cluster.clock.advance(200)
        way.refuse = {"secrets": 422}
        await cluster.clock.advance(100)
        kept = [await cluster.data(name) for name in ("", *ALL)]
        keys = {key for data in kept for name, key in data.items() if name.endswith(".key")}
        secrets = {line for key in keys for line in key.decode().splitlines() if not line.startswith("-----")}
        assert len(secrets) > 10
        told = caplog.text + "".join(str(vars(each)) for each in caplog.records)
        assert [secret for secret in secrets if secret in told] == []
        assert "certificate renewed" in told
