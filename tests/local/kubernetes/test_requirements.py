"""Messages if a real Kubernetes cannot run on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deploy.local.kubernetes.plan.requirements import INSTALLER, PACKAGES, MachineReport, missing

ABLE = MachineReport(
    root=True,
    programs=frozenset(PACKAGES),
    without_go="",
    without_overlay="",
    without_namespaces="",
    without_nftables="",
    unified_cgroups=False,
    controllers=("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids", "blkio"),
)


def test_complete_machine_lacks_nothing() -> None:
    assert missing(ABLE) == []
    assert missing(replace(ABLE, unified_cgroups=True, controllers=("cpu", "cpuset", "memory", "pids", "io"))) == []


def test_without_root_nothing_else_is_asked_for() -> None:
    clause = "it needs root, for namespaces, mounts and control groups"
    assert missing(replace(ABLE, root=False, without_go="Go is missing")) == [clause]


@pytest.mark.parametrize(
    ("lack", "clause"),
    [
        ({"without_go": "Go is missing: install it"}, "Go is missing: install it"),
        ({"without_overlay": "cannot mount overlayfs"}, "cannot mount overlayfs"),
        ({"without_namespaces": "cannot create namespaces"}, "cannot create namespaces"),
        ({"without_nftables": "nftables NAT does not work"}, "nftables NAT does not work"),
        (
            {"programs": frozenset(PACKAGES) - {"runc", "nft"}, "without_nftables": "not asked for without nft"},
            f"packages are missing: {INSTALLER} kubernetes (for nftables, runc)",
        ),
        (
            {"controllers": ("cpu", "cpuset", "memory", "pids")},
            "control groups (version 1) lack cpuacct, devices, freezer",
        ),
        (
            {"unified_cgroups": True, "controllers": ("memory", "pids")},
            "control groups (version 2) lack cpu, cpuset",
        ),
        ({"without_groups": "control groups get no cpu"}, "control groups get no cpu"),
        ({"kmsg": False}, "there is no /dev/kmsg, which the kubelet needs"),
    ],
)
def test_what_is_missing_is_said_with_the_remedy(lack: dict[str, Any], clause: str) -> None:
    assert missing(replace(ABLE, **lack)) == [clause]


def test_many_nodes_need_inotify_instances() -> None:
    assert missing(replace(ABLE, inotify_instances=128), nodes=14) == []
    assert missing(replace(ABLE, inotify_instances=128), nodes=15) == [
        "15 nodes need 135 inotify instances, the limit is 128: sysctl -w fs.inotify.max_user_instances=270"
    ]


def test_all_that_is_missing_is_said_at_once() -> None:
    assert missing(replace(ABLE, without_go="no Go", without_overlay="no overlayfs")) == ["no Go", "no overlayfs"]
