"""A group is decoded as a whole, or rejected with the name of the invalid field."""

from __future__ import annotations

import pytest

from protocol.kubernetes.objects import Json, child
from protocol.messages import ObjectName
from protocol.units import Seconds
from scheduler_plugin.groups.core.replicas.members import GroupSpec
from scheduler_plugin.groups.objects.vm_group import InvalidGroupError, parse_vm_group
from tests.scheduler_plugin.groups.objects.sample_group import GUEST, shop


def test_what_is_left_out_has_a_default() -> None:
    group = parse_vm_group(shop())
    assert group.name == ObjectName("default", "shop")
    assert group.spec == GroupSpec("shop", 2, Seconds(10.0), Seconds(30.0), Seconds(600.0))
    assert (group.port, group.primary_uid) == (5432, "")
    assert group.replica_template == group.template


def test_everything_can_be_said() -> None:
    smaller: Json = {"spec": {"guest": {**GUEST, "cpus": {"min": 1, "max": 2}}}}
    given = shop(
        replicas=0,
        replicaTemplate=smaller,
        readEndpoint={"port": 6432, "maxLag": "1m"},
        drain={"gracePeriod": "2m", "timeout": "1h"},
    )
    given["status"] = {"primary": {"uid": "u-1"}}
    group = parse_vm_group(given)
    assert group.spec == GroupSpec("shop", 0, Seconds(60.0), Seconds(120.0), Seconds(3600.0))
    assert (group.port, group.primary_uid) == (6432, "u-1")
    assert child(group.replica_template, "spec", "guest")["cpus"] == {"min": 1, "max": 2}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"replicas": -1}, "spec.replicas: expected a whole number from 0 to 64, got -1"),
        ({"replicas": True}, "spec.replicas: expected a whole number from 0 to 64, got True"),
        ({"replicas": 65}, "spec.replicas: expected a whole number from 0 to 64, got 65"),
        ({"readEndpoint": {"port": 0}}, "spec.readEndpoint.port: expected a whole number from 1 to 65535, got 0"),
        (
            {"readEndpoint": {"maxLag": "soon"}},
            'spec.readEndpoint.maxLag: expected seconds or a duration such as "90s", "5m" or "1h30m", got \'soon\'',
        ),
        (
            {"drain": {"gracePeriod": "5m", "timeout": "1m"}},
            "spec.drain.timeout: expected at least the grace period of 300 s, got 60 s",
        ),
        ({"template": {}}, "spec.template.spec.guest: expected a value, the field is missing"),
        (
            {"template": {"spec": {"guest": {**GUEST, "cpus": {"min": 4, "max": 1}}}}},
            "spec.template.spec.guest.cpus: expected 0 < min <= use <= max, got min 4, use 4, max 1",
        ),
        (
            {"replicaTemplate": {"spec": {"guest": {**GUEST, "appendKernelCmdline": "autoscale.primary=10.0.0.1"}}}},
            "spec.replicaTemplate.spec.guest.appendKernelCmdline: expected no autoscale.primary: the group sets it for "
            "replicas",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(spec: Json, message: str) -> None:
    with pytest.raises(InvalidGroupError) as caught:
        parse_vm_group(shop(**spec))
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["Shop", "my.shop", "1shop", "s" * 41, ""])
def test_invalid_group_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidGroupError, match=r"metadata\.name: expected at most 40 lower-case letters"):
        parse_vm_group({**shop(), "metadata": {"namespace": "default", "name": name}})
