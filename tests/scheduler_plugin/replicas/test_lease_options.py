"""Replica addresses that are rejected at start because clients could never be routed there."""

from __future__ import annotations

import pytest

from protocol.runtime.serving.listeners import ListenError
from scheduler_plugin.options import lease_terms, parser

LEADS = ["--lease=kube-system/scheduler", "--leader-endpoints=scheduler"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("", "--leader-endpoints needs --pod-ip"),
        ("fd00:10:244::7", "expected an IPv4 address, got 'fd00:10:244::7': IPv6-only clusters are not supported"),
        ("scheduler-0", "expected an IPv4 address, got 'scheduler-0'"),
    ],
)
def test_ipv6_replica_does_not_start(address: str, said: str) -> None:
    with pytest.raises(ListenError, match=said):
        lease_terms(parser().parse_args([*LEADS, f"--pod-ip={address}"]))


def test_no_slice_needs_no_address() -> None:
    assert lease_terms(parser().parse_args([LEADS[0], "--pod-ip="])).name.name == "scheduler"
    assert lease_terms(parser().parse_args([*LEADS, "--pod-ip=10.0.0.7"])).name.name == "scheduler"
