"""The settings of the groups' program: defaults, refusals that name the field, and new ones while it runs."""

from __future__ import annotations

import pytest

from protocol.kubernetes.resources import DEPLOYMENTS, HVPAS
from protocol.messages import ObjectName
from protocol.runtime.followed_file import SettingsError
from protocol.runtime.kubernetes.lease import LeaseTerms
from protocol.units import Seconds
from scheduler_plugin.groups.settings import GroupsSettings, parse_settings
from tests.scheduler_plugin.groups.program.running import DEPLOYMENT, world
from tests.scheduler_plugin.groups.program.test_hvpa import INTERVALS

LEASE = "lease: {namespace: a, name: b, durationSeconds: 12, renewSeconds: 3}"


def test_an_empty_file_means_the_defaults() -> None:
    assert parse_settings("") == GroupsSettings()
    terms = GroupsSettings().lease.terms()
    name = ObjectName("kube-system", "autoscale-groups")
    assert terms == LeaseTerms(name, Seconds(9.0), Seconds(2.0), is_fenced=True)


def test_everything_can_be_set() -> None:
    found = parse_settings(f"{LEASE}\nintervalSeconds: 5\ntortoise: {{PreferredMaxReplicas: 12}}")
    assert found.lease.terms() == LeaseTerms(ObjectName("a", "b"), Seconds(12.0), Seconds(3.0), is_fenced=True)
    assert (found.interval_seconds, found.configuration().preferred_max_replicas) == (5, 12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("intervalSeconds: soon", "intervalSeconds"),
        ("intervalSeconds: 0", "intervalSeconds"),
        ("interval: 3", "interval"),
        ("lease: {durationSeconds: 3}", "lease.durationSeconds"),
        ("lease: {durationSeconds: 6, renewSeconds: 4}", "lease.renewSeconds: expected at most half"),
        ("lease: {name: 'A b'}", "lease.name"),
        ("tortoise: {PreferredMaxReplicas: many}", "tortoise.PreferredMaxReplicas"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_settings(text)


async def test_settings_reload_or_refuse() -> None:
    async with world() as run:
        await run.cluster.make(DEPLOYMENTS, DEPLOYMENT)
        await run.cluster.make(HVPAS, INTERVALS)
        program = await run.start()
        program.use(parse_settings("intervalSeconds: 60"))
        program.telemetry.settings_refused("settings.yaml: intervalSeconds: expected a number")
        assert program.context.interval == Seconds(60.0)
        page = program.page().decode()
        assert 'autoscale_groups_settings_reloads_total{outcome="refused"} 1.0' in page
        assert "autoscale_groups_settings_refused 1.0" in page
