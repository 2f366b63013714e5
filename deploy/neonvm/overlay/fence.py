"""The nftables rules that filter the flat network's frames, and the elements of their sets (pure).

The rules are constant; only sets and maps change, so the cost per frame does not depend on the number of VMs. The
bridge and the VXLAN device learn MACs only from frames that pass these rules. Everything else is dropped: IPv6, VLAN
tags, STP.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Final

from deploy.neonvm.addressing import RETURNED_MAC, flat_mac
from deploy.neonvm.overlay.endpoints import Endpoint

BRIDGE: Final = "neonvm0"
TUNNEL: Final = "neonvm-vxlan"
PORT: Final = 8479
"""UDP port; not VXLAN's default, which the cluster's CNI may use."""
TAP_PREFIX: Final = "nv"
TABLE: Final = "neonvm"
COUNTERS: Final = ("foreign", "spoofed", "misdirected", "flooded")
"""Reasons for drops. ``foreign``: VXLAN packets whose source node does not run the sender's VM."""

Elements = Mapping[str, frozenset[str]]
"""The elements of each set, by ``family table set``."""

# Elements per nft command.
_CHUNK: Final = 500
_BROADCASTS: Final = "50/second burst 100 packets"
"""Limit per guest. ARP needs one broadcast per neighbour and minute; each goes to every node."""

_INNER_SOURCE: Final = "@th,176,48"
"""The inner source MAC of a VXLAN packet: after 8 bytes of UDP, 8 of VXLAN and the destination MAC."""

_ETHER_TYPE: Final = "@ll,96,16"
"""The frame's raw EtherType; ``ether type`` would skip a VLAN tag."""

_RULES: Final = f"""
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
  set nodes {{ type ipv4_addr; }}
  set underlay {{ type ifname; }}
  set tunnel_sources {{ typeof ip saddr . {_INNER_SOURCE}; }}
  counter foreign {{ }}

  # Guests must not fill the node's conntrack table, through br_netfilter or through the tunnel's source ports.
  chain sent {{
    type filter hook output priority raw; policy accept;
    udp dport {PORT} notrack
  }}
  chain early {{
    type filter hook prerouting priority raw; policy accept;
    udp dport {PORT} notrack
    iifname "{BRIDGE}" notrack
    # Frames to 01:80:c2:00:00:0e (LLDP) reach the node without passing the bridge's rules.
    iifname "{TAP_PREFIX}*" drop
    iifname "{TUNNEL}" drop
  }}
  chain received {{
    type filter hook input priority -150; policy accept;
    udp dport {PORT} goto tunnel
  }}
  # A node that masquerades pods' packets must not forward these under its own IP.
  chain forwarded {{
    type filter hook forward priority -150; policy accept;
    udp dport {PORT} ip daddr @nodes goto between_nodes
  }}
  chain between_nodes {{
    ip saddr != @nodes counter name foreign drop
    iifname != @underlay fib saddr . iif oif missing counter name foreign drop
  }}
  chain tunnel {{
    iifname != @underlay fib saddr . iif oif missing counter name foreign drop
    ip saddr . {_INNER_SOURCE} @tunnel_sources accept
    ip saddr @nodes {_INNER_SOURCE} 0x{RETURNED_MAC.replace(":", "")} accept
    counter name foreign drop
  }}
}}
table bridge {TABLE}
delete table bridge {TABLE}
table bridge {TABLE} {{
  set taps {{ type ifname . ipv4_addr; }}
  set macs {{ type ifname . ether_addr; }}
  set known {{ type ether_addr . ipv4_addr; }}
  set clients {{ type ipv4_addr; }}
  map namespace_marks {{ type ipv4_addr : mark; }}
  set namespace_members {{ type mark . ipv4_addr; }}
  set broadcasts {{ type ifname; size 4096; flags dynamic, timeout; timeout 10s; }}
  counter spoofed {{ }}
  counter misdirected {{ }}
  counter flooded {{ }}

  chain prerouting {{
    type filter hook prerouting priority -300; policy accept;
    iifname "{TAP_PREFIX}*" goto from_guest
    iifname "{TUNNEL}" goto from_node
  }}
  chain from_guest {{
    {_ETHER_TYPE} != {{ 0x0800, 0x0806, 0x8035 }} drop
    ether saddr {RETURNED_MAC} iifname . ether daddr @macs goto addressed
    iifname . ether saddr != @macs counter name spoofed drop
    ether daddr & 01:00:00:00:00:00 != 00:00:00:00:00:00 goto to_many
    goto own_source
  }}
  chain to_many {{
    update @broadcasts {{ iifname limit rate over {_BROADCASTS} }} counter name flooded drop
    goto own_source
  }}
  chain own_source {{
    ether type 0x8035 ether daddr ff:ff:ff:ff:ff:ff accept
    iifname . arp saddr ip @taps arp saddr ether . arp saddr ip @known goto addressed
    udp sport 67 counter name spoofed drop
    iifname . ip saddr @taps goto addressed
    counter name spoofed drop
  }}
  chain from_node {{
    {_ETHER_TYPE} != {{ 0x0800, 0x0806, 0x8035 }} drop
    ether type 0x8035 ether daddr ff:ff:ff:ff:ff:ff accept
    ether saddr {RETURNED_MAC} goto addressed
    ether saddr . arp saddr ip @known arp saddr ether . arp saddr ip @known goto addressed
    ether saddr . ip saddr @known goto addressed
    counter name spoofed drop
  }}
  chain addressed {{
    arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp operation {{ request, reply }} accept
    ether daddr . ip daddr @known accept
    counter name misdirected drop
  }}

  chain forward {{
    type filter hook forward priority -300; policy accept;
    oifname "{TAP_PREFIX}*" goto leaving
    oifname "{TUNNEL}" goto leaving
  }}
  chain leaving {{
    ether type 0x8035 oifname "{TUNNEL}" accept
    # The source runner of a migration waits for the guest's announcement.
    ether type 0x8035 oifname . ether saddr @macs accept
    ether type 0x8035 drop
    ip saddr @clients goto delivered
    ip daddr @clients goto delivered
    arp saddr ip @clients goto delivered
    arp daddr ip @clients goto delivered
    meta mark set ip saddr map @namespace_marks meta mark . ip daddr @namespace_members goto delivered
    meta mark set arp saddr ip map @namespace_marks meta mark . arp daddr ip @namespace_members goto delivered
    counter name misdirected drop
  }}
  chain delivered {{
    # Otherwise the tunnel's packets would carry the mark to the node's firewall.
    meta mark set 0
    oifname "{TUNNEL}" accept
    oifname . ip daddr @taps ether daddr . ip daddr @known accept
    oifname . arp daddr ip @taps accept
    # Flooded frames for another guest.
    drop
  }}

  # The node itself is not part of this network.
  chain input {{
    type filter hook input priority -300; policy accept;
    iifname "{TAP_PREFIX}*" drop
    iifname "{TUNNEL}" drop
  }}
  chain output {{
    type filter hook output priority -300; policy accept;
    oifname "{TAP_PREFIX}*" drop
    oifname "{TUNNEL}" drop
  }}
}}
"""  # noqa: S608 - no SQL


def elements(
    endpoints: Iterable[Endpoint],
    taps: Mapping[str, str],
    peers: Mapping[str, frozenset[str]],
    isolated: bool,
    underlay: Iterable[str] = (),
) -> Elements:
    """Elements of the sets.

    ``taps`` are the IPs of this node's taps by interface name, ``peers`` the IPs of the other nodes by node name. If
    ``isolated``, VMs cannot reach other namespaces. ``underlay`` interfaces are exempt from the reverse path check.
    """
    all_endpoints = list(endpoints)
    marks = _namespace_marks(all_endpoints, isolated)
    return {
        f"inet {TABLE} nodes": frozenset(address for peer in peers.values() for address in peer),
        # Quoted: an interface name may be an nft keyword or start with a digit.
        f"inet {TABLE} underlay": frozenset(f'"{interface}"' for interface in underlay),
        # A raw payload expression is compared with a number, not a MAC.
        f"inet {TABLE} tunnel_sources": frozenset(
            f"{address} . 0x{_mac_and_number(endpoint.address)[0].replace(':', '')}"
            for endpoint in all_endpoints
            for node in endpoint.nodes
            for address in peers.get(node, ())
        ),
        f"bridge {TABLE} taps": frozenset(f'"{tap}" . {address}' for tap, address in taps.items()),
        f"bridge {TABLE} macs": frozenset(f'"{tap}" . {flat_mac(address)}' for tap, address in taps.items()),
        f"bridge {TABLE} known": frozenset(
            f"{_mac_and_number(endpoint.address)[0]} . {endpoint.address}" for endpoint in all_endpoints
        ),
        f"bridge {TABLE} clients": frozenset(endpoint.address for endpoint in all_endpoints if not endpoint.namespace),
        f"bridge {TABLE} namespace_marks": frozenset(f"{address} : {number}" for address, number in marks.items()),
        f"bridge {TABLE} namespace_members": frozenset(f"{number} . {address}" for address, number in marks.items()),
    }


@lru_cache(maxsize=2**17)
def _mac_and_number(address: str) -> tuple[str, int]:
    """The MAC of an IP, and the IP as a number; cached, because every change needs them for all VMs."""
    return flat_mac(address), int(IPv4Address(address))


def _namespace_marks(all_endpoints: Iterable[Endpoint], isolated: bool) -> dict[str, int]:
    """A mark for each VM's IP, unique for its namespace: the namespace's lowest IP as a number."""
    members: dict[str, list[str]] = {}
    for endpoint in all_endpoints:
        if endpoint.namespace:
            # Without isolation, all VMs share one mark. Clients have none.
            members.setdefault(endpoint.namespace if isolated else "", []).append(endpoint.address)
    lowest = [(addresses, min(_mac_and_number(address)[1] for address in addresses)) for addresses in members.values()]
    return {address: number for addresses, number in lowest for address in addresses}


def full_ruleset(desired: Elements) -> list[str]:
    """Commands for ``nft -f`` that replace all rules and sets in one transaction."""
    return [_RULES, *set_changes({}, desired)]


def set_changes(loaded: Elements, desired: Elements) -> list[str]:
    """Commands for ``nft -f`` that change the sets from ``loaded`` to ``desired``."""
    # Deletions first: a map accepts one mark per IP.
    removed = [
        line
        for name in desired
        for line in _element_lines("delete", name, loaded.get(name, frozenset()) - desired[name])
    ]
    return removed + [
        line for name in desired for line in _element_lines("add", name, desired[name] - loaded.get(name, frozenset()))
    ]


def _element_lines(verb: str, name: str, elements: Iterable[str]) -> Iterator[str]:
    ordered = sorted(elements)
    for at in range(0, len(ordered), _CHUNK):
        yield f"{verb} element {name} {{ {', '.join(ordered[at : at + _CHUNK])} }}"
