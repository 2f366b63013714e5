"""The frames that the node lets through on the flat network: rules of nftables, and the elements of their sets (pure).

The rules are fixed; sets and maps carry everything that changes, so a frame costs the same however many VMs there are.
They guard what the bridge and the tunnel learn from: a frame that is dropped here teaches neither where a VM is. All
else is dropped, too: IPv6, tagged frames, spanning tree.
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
"""Not VXLAN's own: the cluster's network may use that."""
TAP_PREFIX: Final = "nv"
TABLE: Final = "neonvm"
COUNTERS: Final = ("foreign", "spoofed", "misdirected", "flooded")
"""Why frames are dropped. ``foreign``: tunnel packets that no node sent from where the API has the VM."""

Elements = Mapping[str, frozenset[str]]
"""The elements of each set, by family, table and name of the set."""

# Elements in one command for nft, so that no line grows with the cluster.
_CHUNK: Final = 500
_BROADCASTS: Final = "50/second burst 100 packets"
"""For each guest. ARP needs one for each neighbour a minute; each goes to every node."""

_INNER_SOURCE: Final = "@th,176,48"
"""The sender's MAC within a VXLAN packet: after 8 bytes of UDP, 8 of VXLAN and the receiver's MAC."""

_ETHER_TYPE: Final = "@ll,96,16"
"""As it stands in the frame: ``ether type`` looks behind a tag of a VLAN."""

_RULES: Final = f"""
table inet {TABLE}
delete table inet {TABLE}
table inet {TABLE} {{
  set nodes {{ type ipv4_addr; }}
  set underlay {{ type ifname; }}
  set places {{ typeof ip saddr . {_INNER_SOURCE}; }}
  counter foreign {{ }}

  # Guests must not fill the node's table of connections: by frames that br_netfilter shows to it, or by packets of the
  # tunnel, whose ports are chosen by what is in them.
  chain sent {{
    type filter hook output priority raw; policy accept;
    udp dport {PORT} notrack
  }}
  chain early {{
    type filter hook prerouting priority raw; policy accept;
    udp dport {PORT} notrack
    iifname "{BRIDGE}" notrack
    # The kernel hands frames for 01:80:c2:00:00:0e to the node past the bridge and its rules.
    iifname "{TAP_PREFIX}*" drop
    iifname "{TUNNEL}" drop
  }}
  chain received {{
    type filter hook input priority -150; policy accept;
    udp dport {PORT} goto tunnel
  }}
  # A node that sends pods' packets on under its own address must not do so with these.
  chain forwarded {{
    type filter hook forward priority -150; policy accept;
    udp dport {PORT} ip daddr @nodes goto passed_on
  }}
  chain passed_on {{
    ip saddr != @nodes counter name foreign drop
    iifname != @underlay fib saddr . iif oif missing counter name foreign drop
  }}
  chain tunnel {{
    iifname != @underlay fib saddr . iif oif missing counter name foreign drop
    ip saddr . {_INNER_SOURCE} @places accept
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
  map spaces {{ type ipv4_addr : mark; }}
  set members {{ type mark . ipv4_addr; }}
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
    goto from_itself
  }}
  chain to_many {{
    update @broadcasts {{ iifname limit rate over {_BROADCASTS} }} counter name flooded drop
    goto from_itself
  }}
  chain from_itself {{
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
    # The runner that a guest leaves waits for its announcement.
    ether type 0x8035 oifname . ether saddr @macs accept
    ether type 0x8035 drop
    ip saddr @clients goto delivered
    ip daddr @clients goto delivered
    arp saddr ip @clients goto delivered
    arp daddr ip @clients goto delivered
    meta mark set ip saddr map @spaces meta mark . ip daddr @members goto delivered
    meta mark set arp saddr ip map @spaces meta mark . arp daddr ip @members goto delivered
    counter name misdirected drop
  }}
  chain delivered {{
    # The mark would go out on the tunnel's packets, and firewalls of the node read it there.
    meta mark set 0
    oifname "{TUNNEL}" accept
    oifname . ip daddr @taps ether daddr . ip daddr @known accept
    oifname . arp daddr ip @taps accept
    # Flooded to all ports, and for another guest.
    drop
  }}

  # The node itself has no part in this network.
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
    found: Iterable[Endpoint],
    taps: Mapping[str, str],
    peers: Mapping[str, frozenset[str]],
    isolated: bool,
    underlay: Iterable[str] = (),
) -> Elements:
    """Elements of the sets. ``taps``: the address of each tap of this node. ``peers``: the addresses of the other
    nodes, by name. ``isolated``: VMs of different namespaces do not reach each other. ``underlay``: interfaces by which
    packets of nodes come although the way back to them is another.
    """
    # `found` may be an iterator, and is read several times.
    every = list(found)
    spaces = _spaces(every, isolated)
    return {
        f"inet {TABLE} nodes": frozenset(address for peer in peers.values() for address in peer),
        # Names are quoted: an interface may be called like one of nft's keywords, or start with a digit.
        f"inet {TABLE} underlay": frozenset(f'"{interface}"' for interface in underlay),
        f"inet {TABLE} places": frozenset(_places(every, peers)),
        f"bridge {TABLE} taps": frozenset(f'"{tap}" . {address}' for tap, address in taps.items()),
        f"bridge {TABLE} macs": frozenset(f'"{tap}" . {flat_mac(address)}' for tap, address in taps.items()),
        f"bridge {TABLE} known": frozenset(f"{_facts(endpoint.address)[0]} . {endpoint.address}" for endpoint in every),
        f"bridge {TABLE} clients": frozenset(endpoint.address for endpoint in every if not endpoint.namespace),
        f"bridge {TABLE} spaces": frozenset(f"{address} : {number}" for address, number in spaces.items()),
        f"bridge {TABLE} members": frozenset(f"{number} . {address}" for address, number in spaces.items()),
    }


@lru_cache(maxsize=2**17)
def _facts(address: str) -> tuple[str, int]:
    """The MAC and the number of an address; cached, because each change needs those of all VMs of the cluster."""
    return flat_mac(address), int(IPv4Address(address))


def _places(every: Iterable[Endpoint], peers: Mapping[str, frozenset[str]]) -> Iterator[str]:
    for endpoint in every:
        # A raw payload expression is compared with a number, not with a MAC in nft's notation.
        mac = _facts(endpoint.address)[0].replace(":", "")
        yield from (f"{address} . 0x{mac}" for node in endpoint.nodes for address in peers.get(node, ()))


def _spaces(every: Iterable[Endpoint], isolated: bool) -> dict[str, int]:
    """A number for the namespace of each VM's address: the lowest address there, which no other namespace has."""
    members: dict[str, list[str]] = {}
    for endpoint in every:
        if endpoint.namespace:
            # Without isolation all VMs share one space. Clients are in none: they are matched by @clients.
            members.setdefault(endpoint.namespace if isolated else "", []).append(endpoint.address)
    lowest = [(addresses, min(_facts(address)[1] for address in addresses)) for addresses in members.values()]
    return {address: number for addresses, number in lowest for address in addresses}


def rebuilt(wanted: Elements) -> list[str]:
    """The lines for ``nft -f`` that replace all rules and sets in one transaction."""
    return [_RULES, *changed({}, wanted)]


def changed(before: Elements, wanted: Elements) -> list[str]:
    """The lines for ``nft -f`` that change the sets from ``before`` to ``wanted``."""
    # Removals come first: a map refuses a second mark for an address that it still has.
    removed = [line for name in wanted for line in _lines("delete", name, before.get(name, frozenset()) - wanted[name])]
    return removed + [
        line for name in wanted for line in _lines("add", name, wanted[name] - before.get(name, frozenset()))
    ]


def _lines(verb: str, name: str, some: Iterable[str]) -> Iterator[str]:
    # In a fixed order, so that two runs write the same lines.
    ordered = sorted(some)
    for at in range(0, len(ordered), _CHUNK):
        yield f"{verb} element {name} {{ {', '.join(ordered[at : at + _CHUNK])} }}"
