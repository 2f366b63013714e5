"""The nftables sets of the fence: their content and their updates."""

from __future__ import annotations

import re
from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.addressing import flat_mac
from deploy.neonvm.overlay.endpoints import Endpoint
from deploy.neonvm.overlay.fence import COUNTERS, Elements, elements, full_ruleset, set_changes

ADDRESSES = [f"10.111.{number // 256}.{number % 256}" for number in range(1, 700)]
TAPS = {"nv0123456789abc": "10.111.0.1"}
PEERS = {"b": frozenset({"10.0.0.2", "10.0.1.2"}), "c": frozenset({"10.0.0.3"})}
FOUND = st.lists(
    st.builds(
        Endpoint,
        st.sampled_from(ADDRESSES),
        st.sampled_from(["shop", "bank", "", "blog"]),
        st.lists(st.sampled_from(["a", "b", "c", "gone"]), unique=True, max_size=3).map(tuple),
    ),
    unique_by=lambda each: each.address,
    max_size=12,
)


def applied(lines: list[str], before: Elements) -> dict[str, frozenset[str]]:
    after = {name: set(held) for name, held in before.items()}
    for line in lines:
        found = re.fullmatch(r"(add|delete) element (\w+ \w+ \w+) \{ (.+) \}", line)
        assert found is not None, line
        verb, name, held = found[1], found[2], found[3].split(", ")
        for each in held:
            (after.setdefault(name, set()).add if verb == "add" else after[name].remove)(each)
    return {name: frozenset(held) for name, held in after.items()}


@given(FOUND, FOUND, st.booleans())
def test_changes_lead_to_what_is_wanted(before: list[Endpoint], after: list[Endpoint], isolated: bool) -> None:
    first, second = elements(before, {}, PEERS, isolated), elements(after, TAPS, PEERS, isolated)
    assert applied(set_changes(first, second), first) == second
    assert applied(full_ruleset(second)[1:], dict.fromkeys(second, frozenset[str]())) == second
    assert set_changes(second, second) == []


@given(FOUND, st.booleans())
def test_numbers_tell_namespaces_apart(found: list[Endpoint], isolated: bool) -> None:
    """Two VMs are members of one another's number exactly if they may talk; clients have none."""
    held = elements(found, {}, PEERS, isolated)
    numbers = dict(each.split(" : ") for each in held["bridge neonvm namespace_marks"])
    vms = [each for each in found if each.namespace]
    assert numbers.keys() == {each.address for each in vms}
    assert all(0 < int(number) < 2**32 for number in numbers.values())
    for one in vms:
        for other in vms:
            is_member = f"{numbers[one.address]} . {other.address}" in held["bridge neonvm namespace_members"]
            assert is_member == (one.namespace == other.namespace or not isolated)


@given(FOUND)
def test_tunnel_takes_a_vm_only_from_its_nodes(found: list[Endpoint]) -> None:
    held = elements(found, TAPS, PEERS, isolated=True, underlay=["wg0"])
    assert held["inet neonvm underlay"] == {'"wg0"'}
    assert held["inet neonvm nodes"] == {"10.0.0.2", "10.0.1.2", "10.0.0.3"}
    expected = {
        f"{address} . 0x{flat_mac(each.address).replace(':', '')}"
        for each in found
        for node, addresses in PEERS.items()
        for address in addresses
        if node in each.nodes
    }
    assert held["inet neonvm tunnel_sources"] == expected
    assert held["bridge neonvm known"] == {f"{flat_mac(each.address)} . {each.address}" for each in found}
    assert held["bridge neonvm clients"] == {each.address for each in found if not each.namespace}
    assert held["bridge neonvm taps"] == {'"nv0123456789abc" . 10.111.0.1'}
    assert held["bridge neonvm macs"] == {'"nv0123456789abc" . 52:54:00:6f:00:01'}


def test_thousands_of_vms_cost_no_rule() -> None:
    """They only add elements, and each line stays short enough for nft to read."""
    found = [Endpoint(each, f"space-{int(IPv4Address(each)) % 50}", ("b",)) for each in ADDRESSES]
    rules, *lines = full_ruleset(elements(found, {}, PEERS, isolated=True))
    assert rules == full_ruleset(elements([], {}, {}, isolated=True))[0]
    assert max(map(len, lines)) < 30_000
    assert all(f"counter {each} " in rules for each in COUNTERS)
