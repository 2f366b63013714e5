"""One node's part of the flat network: its links, and where frames go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.neonvm.addressing import RETURNED_MAC, flat_mac
from deploy.neonvm.overlay.endpoints import Endpoint
from deploy.neonvm.overlay.node_plan import (
    OverlayNode,
    attach_tap,
    create_links,
    fdb_changes,
    peers,
    set_alias,
    tap_addresses,
    tap_name,
)
from protocol.kubernetes.objects import Json

HERE = OverlayNode("n1", "10.0.0.1", 1500)
EVERYBODY = "00:00:00:00:00:00"


def node(name: str, *addresses: str, kind: str = "InternalIP") -> Json:
    found = [{"type": kind, "address": each} for each in addresses]
    return {"metadata": {"name": name}, "status": {"addresses": found}}


def test_bridge_and_tunnel_are_created_once() -> None:
    lines = create_links(HERE, ["lo", "eth0"])
    assert lines == [
        "link add neonvm0 type bridge mcast_snooping 0",
        "link add neonvm-vxlan type vxlan id 4097 dstport 8479 local 10.0.0.1",
        "link set neonvm-vxlan mtu 1450 master neonvm0 addrgenmode none arp off",
        "link set neonvm-vxlan type bridge_slave flood off mcast_flood off",
        "link set neonvm-vxlan up",
        "link set neonvm0 mtu 1450 addrgenmode none arp off",
        "link set neonvm0 type bridge no_linklocal_learn 1",
        "link set neonvm0 up",
    ]
    assert create_links(HERE, ["neonvm0", "neonvm-vxlan"]) == lines[2:]


def test_tap_joins_bridge_with_unique_name() -> None:
    assert attach_tap("nv1", 1450) == [
        "link set nv1 mtu 1450 master neonvm0 addrgenmode none arp off",
        "link set nv1 up",
    ]
    assert (len(tap_name("uid-1")), tap_name("uid-1") == tap_name("uid-2")) == (15, False)


def test_the_peers_are_the_other_nodes_internal_addresses() -> None:
    nodes = [
        node("n1", "10.0.0.1"),
        node("n2", "10.0.0.2", "fd00::2"),
        node("n3", "x"),
        node("n4", "1.2.3.4", kind="ExternalIP"),
    ]
    assert peers(nodes, "n1") == {"n2": {"10.0.0.2"}, "n3": frozenset(), "n4": frozenset()}


def entry(mac: str, **more: object) -> dict[str, object]:
    return {"mac": mac, "ifname": "neonvm-vxlan", **more}


def applied(present: list[dict[str, object]], lines: list[str]) -> list[dict[str, object]]:
    """The tables after ``lines``, as the ``bridge`` command would change them."""
    after = list(present)
    for line in lines:
        _, verb, mac, _, _, *words = line.split()
        gone = entry(mac, dst=words[1]) if "dst" in words else entry(mac, master="neonvm0", state="static")
        if verb == "del":
            keys = ("mac", "dst") if "dst" in words else ("mac", "master")
            after = [each for each in after if any(each.get(key) != gone.get(key) for key in keys)]
        else:
            after.append(gone)
    return after


ADDRESSES = [f"10.111.0.{number}" for number in range(1, 5)]
PEERS = {"b": frozenset({"10.0.0.2"}), "c": frozenset({"10.0.0.3"})}
PRESENT = st.lists(
    st.one_of(
        st.builds(
            entry, st.sampled_from([EVERYBODY, *map(flat_mac, ADDRESSES)]), dst=st.sampled_from(["10.0.0.2", "z"])
        ),
        st.builds(
            entry,
            st.sampled_from([*map(flat_mac, ADDRESSES), "02:11:22:33:44:55"]),
            ifname=st.sampled_from(["neonvm-vxlan", "nv0123456789abc"]),
            master=st.just("neonvm0"),
            state=st.sampled_from(["", "static", "permanent"]),
        ),
    ),
    unique_by=lambda each: (each["mac"], each.get("dst")),
)
FOUND = st.lists(
    st.builds(
        Endpoint,
        st.sampled_from(ADDRESSES),
        st.sampled_from(["shop", "bank", ""]),
        st.lists(st.sampled_from(["a", "b", "c", "gone"]), unique=True, max_size=2).map(tuple),
    ),
    unique_by=lambda each: each.address,
)


@given(PRESENT, FOUND)
def test_frames_go_where_the_api_has_their_receivers(present: list[dict[str, object]], found: list[Endpoint]) -> None:
    """Whatever was learned, no MAC points to a node where it may not be, and a second run changes nothing."""
    after = applied(present, fdb_changes(present, PEERS, found, "a"))
    may = {flat_mac(each.address): {ip for node in each.nodes for ip in PEERS.get(node, ())} for each in found}
    tunnel = [(str(each["mac"]), str(each["dst"])) for each in after if "dst" in each]
    assert {dst for mac, dst in tunnel if mac == EVERYBODY} == {"10.0.0.2", "10.0.0.3"}
    assert all(dst in may.get(mac, ()) for mac, dst in tunnel if mac != EVERYBODY)
    assert all(any(mac == each for each, _ in tunnel) for mac, places in may.items() if places)
    into_tunnel = {
        str(each["mac"])
        for each in after
        if each["ifname"] == "neonvm-vxlan" and "dst" not in each and each.get("state") != "permanent"
    }
    assert into_tunnel <= {flat_mac(each.address) for each in found if any(node != "a" for node in each.nodes)}
    assert fdb_changes(after, PEERS, found, "a") == []


def test_what_was_learned_during_a_move_stays() -> None:
    """The target's announcement has arrived before the API objects show that the VM has."""
    mac = flat_mac("10.111.0.1")
    moving = [Endpoint("10.111.0.1", "shop", ("b", "c"))]
    everybody = [entry(EVERYBODY, dst=each) for each in ("10.0.0.2", "10.0.0.3")]
    there = entry(mac, master="neonvm0", state="static")
    assert fdb_changes([*everybody, there, entry(mac, dst="10.0.0.3")], PEERS, moving, "a") == []
    own = entry(mac, master="neonvm0", ifname="nv0123456789abc", state="")
    arriving = [Endpoint("10.111.0.1", "shop", ("b", "a"))]
    assert fdb_changes([*everybody, own, entry(mac, dst="10.0.0.2")], PEERS, arriving, "a") == []


def test_frames_that_are_given_back_leave_no_trace() -> None:
    everybody = [entry(EVERYBODY, dst=each) for each in ("10.0.0.2", "10.0.0.3")]
    learned = [entry(RETURNED_MAC, dst="10.0.0.2"), entry(RETURNED_MAC, master="neonvm0", state="")]
    assert fdb_changes([*everybody, *learned], PEERS, [], "a") == []


def test_tap_says_whose_it_is() -> None:
    """In its alias, which outlives the program; a tap has none while it is being created."""
    name = tap_name("uid-1")
    earlier, orphan = tap_name("uid-3"), tap_name("uid-4")
    links: list[dict[str, object]] = [
        {"ifname": "eth0", "ifalias": "10.111.0.9"},
        {"ifname": name, "ifalias": "10.111.0.1", "altnames": ["other", f"{name}-v1"]},
        {"ifname": tap_name("uid-2")},
        {"ifname": earlier, "ifalias": "10.111.0.2"},
        {"ifname": orphan, "ifalias": "10.111.0.3", "altnames": [f"{orphan}-v3"]},
    ]
    assert set_alias(name, "10.111.0.1", "v1") == [
        f"link set {name} alias 10.111.0.1",
        f"link property add dev {name} altname {name}-v1",
    ]
    owners = {"10.111.0.1": "v1", "10.111.0.3": "v4"}
    assert tap_addresses(links, owners) == {name: "10.111.0.1", earlier: "10.111.0.2"}
