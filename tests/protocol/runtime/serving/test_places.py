"""The choice of the connection that a full listener closes."""

from __future__ import annotations

from protocol.runtime.serving.limits import Limits, Peers
from tests.protocol.runtime.serving.test_limits import Placed


def test_full_listener_displaces_the_most_crowded_peer() -> None:
    """A kubelet's probe came first; strangers who take all other places from a few addresses displace each other."""
    peers = Peers(Limits(connections=7, per_peer=3))
    probe, crowd = Placed(), [Placed() for _ in range(12)]
    assert peers.admit(probe, "kubelet")
    for number, each in enumerate(crowd):
        assert peers.admit(each, f"stranger {number % 4}")
    assert not probe.is_displaced
    assert any(each.is_displaced for each in crowd)


def test_few_addresses_do_not_keep_out_others() -> None:
    """Two agents take all places, and have shown who they are; the agents of other nodes get in one by one."""
    peers = Peers(Limits(connections=6, per_peer=3))
    greedy = [Placed() for _ in range(6)]
    for number, each in enumerate(greedy):
        assert peers.admit(each, f"greedy {number % 2}")
        peers.authenticated(each)
    agents = [Placed() for _ in range(4)]
    for number, each in enumerate(agents):
        assert peers.admit(each, f"node {number}")
        peers.authenticated(each)
    assert [each.is_displaced for each in greedy] == [True] * 4 + [False] * 2
    assert not any(each.is_displaced for each in agents)
    # All addresses have one now, so nobody has to leave for another one.
    assert not peers.admit(Placed(), "node 4")


def test_greedy_address_displaces_nobody() -> None:
    peers = Peers(Limits(connections=4, per_peer=3))
    agents = [Placed() for _ in range(2)]
    for each in agents:
        assert peers.admit(each, "node")
        peers.authenticated(each)
    greedy = [Placed() for _ in range(2)]
    for each in greedy:
        assert peers.admit(each, "greedy")
        peers.authenticated(each)
    assert not peers.admit(Placed(), "greedy")
    assert not any(each.is_displaced for each in (*agents, *greedy))
