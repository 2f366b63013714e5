"""Addresses on the flat network: one per VM, never one twice, even after interruptions."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.kube.informer import Informer
from deploy.neonvm.ports import GuestError
from deploy.neonvm.remote.address_choice import AddressRange, claim, free_addresses, own_address, owner_of
from deploy.neonvm.remote.address_claims import AddressClaims
from protocol.kubernetes.api import ApiUnknownError
from protocol.kubernetes.objects import Json, name_of
from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS, IP_ADDRESSES, VIRTUAL_MACHINES, Resource
from protocol.messages import ObjectName
from tests.fake_clock import FakeClock
from tests.neonvm.in_process import InProcess
from tests.neonvm.runtime_fixture import definition
from tests.neonvm.sample_objects import virtual_machine

FOUR = AddressRange.parse("10.100.128.0-10.100.128.3")


def vm(name: str, status: Json | None = None) -> Json:
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"extraNetwork": {"enable": True}}, "status": status or {}}


def made(address: str, owner: str, at: str) -> Json:
    found = claim(vm(owner), address)
    return {**found, "metadata": {**found["metadata"], "creationTimestamp": at}}  # type: ignore[dict-item]


@given(st.sets(st.integers(0, 3)), st.text("abc", min_size=1))
def test_each_free_address_is_tried_once(taken: set[int], name: str) -> None:
    every = {str(IPv4Address("10.100.128.0") + each) for each in range(4)}
    used = {str(IPv4Address("10.100.128.0") + each) for each in taken}
    found = list(free_addresses(vm(name), FOUR, used))
    assert (len(found), set(found)) == (4 - len(taken), every - used)


def test_status_claim_wins_then_oldest() -> None:
    claims = [
        made("10.100.128.2", "db", "2026-01-02"),
        made("10.100.128.3", "db", "2026-01-01"),
        made("10.100.128.1", "x", ""),
    ]
    assert own_address(vm("db"), claims) == "10.100.128.3"
    assert own_address(vm("db", {"extraNetIP": "10.100.128.2"}), claims) == "10.100.128.2"
    assert own_address(vm("db", {"extraNetIP": "10.100.128.1"}), claims) == "10.100.128.3"
    assert own_address(vm("other"), claims) == ""
    assert owner_of(claims[0]) == (ObjectName("default", "db"), "uid-db")


@pytest.mark.parametrize("written", ["", "10.0.0.1", "10.0.0.2-10.0.0.1", "a-b"])
def test_a_range_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the library says
        AddressRange.parse(written)


class Cluster:
    """Claims of one process over the embedded API server, whose watches the test does not run."""

    def __init__(self, api: InProcess | None = None) -> None:
        self.api = api or InProcess()
        self.client = self.api.client()
        clock = FakeClock()
        self.cache = Informer(self.client, IP_ADDRESSES, clock)
        self.vms = Informer(self.client, VIRTUAL_MACHINES, clock)
        self.claims = AddressClaims(self.client, self.cache, self.vms, FOUR)

    async def listed(self) -> AddressClaims:
        await self.cache.refresh()
        return self.claims

    @property
    def objects(self) -> list[str]:
        return sorted(name_of(each).name for each in self.api.objects("ipaddresses", "networking.k8s.io"))


async def test_addresses_are_unique_and_reusable() -> None:
    cluster = Cluster()
    claims = await cluster.listed()
    addresses = [await claims.claim_for(vm(name)) for name in "abcd"]
    assert (len(set(addresses)), [await claims.claim_for(vm(name)) for name in "abcd"]) == (4, addresses)
    with pytest.raises(GuestError, match="all 4 addresses"):
        await claims.claim_for(vm("e"))
    await claims.release(ObjectName("default", "b"), "uid-b")
    await cluster.listed()
    assert await claims.claim_for(vm("e")) == addresses[1]


async def test_unclaimed_used_address_is_reserved() -> None:
    """Another controller created the VM, or its claim was deleted by hand."""
    cluster = Cluster()
    await cluster.client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition("virtualmachines.yaml"))
    old = await cluster.client.create(VIRTUAL_MACHINES, "default", virtual_machine())
    await cluster.client.merge_patch(
        VIRTUAL_MACHINES, name_of(old), {"status": {"extraNetIP": "10.100.128.1"}}, "status"
    )
    await cluster.vms.refresh()
    claims = await cluster.listed()
    others = {await claims.claim_for(vm(name)) for name in "bcd"}
    assert others == {"10.100.128.0", "10.100.128.2", "10.100.128.3"}
    with pytest.raises(GuestError, match="all 4 addresses"):
        await claims.claim_for(vm("e"))
    (old,) = cluster.vms.objects.values()
    assert await claims.claim_for({**old, "spec": vm("db")["spec"]}) == "10.100.128.1"


async def test_contested_address_is_replaced() -> None:
    cluster = Cluster()
    claims = await cluster.listed()
    first = await claims.claim_for(vm("a"))
    assert await claims.claim_for(vm("b", {"extraNetIP": first})) != first


@pytest.mark.parametrize("said", ["", "none", "10.100.128.999", "10.101.0.1", "10.100.128.4"])
def test_foreign_address_is_ignored(said: str) -> None:
    assert len(list(free_addresses(vm("a", {"extraNetIP": said}), FOUR, (), ("10.100.128.1",)))) == 3


async def test_concurrent_allocators_never_duplicate() -> None:
    one = Cluster()
    other = Cluster(one.api)
    mine, theirs = await one.listed(), await other.listed()
    found = [await (mine if number % 2 else theirs).claim_for(vm(name)) for number, name in enumerate("abcd")]
    assert sorted(found) == one.objects


async def test_restart_finds_claim_after_lost_answer() -> None:
    cluster = Cluster()
    claims = await cluster.listed()
    cluster.api.unanswered = "POST /apis/networking.k8s.io/v1/ipaddresses"
    with pytest.raises(ApiUnknownError):
        await claims.claim_for(vm("a"))
    address = await claims.claim_for(vm("a"))
    again = await Cluster(cluster.api).listed()
    assert (await again.claim_for(vm("a")), cluster.objects) == (address, [address])


async def test_vm_without_network_needs_no_address() -> None:
    claims = await Cluster().listed()
    assert await claims.claim_for({"metadata": {"uid": "u"}, "spec": {}}) == ""


async def test_what_a_vanished_vm_has_left_is_swept() -> None:
    cluster = Cluster()
    claims = await cluster.listed()
    await claims.claim_for(vm("a"))
    await cluster.listed()
    await claims.sweep()
    assert cluster.objects == []
    await cluster.listed()
    # It counted as claimed until the controller restarted: without their finalizers, VMs could use up all addresses.
    assert len({await claims.claim_for(vm(name)) for name in "bcde"}) == 4


async def test_swept_address_is_free_despite_early_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch reported the claim before the response to its creation, and it then counted as claimed forever."""
    cluster = Cluster()
    claims, create = await cluster.listed(), cluster.client.create

    async def create_and_watch(resource: Resource, namespace: str, form: Json) -> Json:
        created = await create(resource, namespace, form)
        await cluster.cache.refresh()
        return created

    monkeypatch.setattr(cluster.client, "create", create_and_watch)
    await claims.claim_for(vm("a"))
    await claims.sweep()
    await cluster.listed()
    assert len({await claims.claim_for(vm(name)) for name in "bcde"}) == 4
