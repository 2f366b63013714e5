"""The node that is closest to having room for a VM."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from protocol.units import Resources
from scheduler_plugin.placement.verdict import Room
from scheduler_plugin.planner.beneficiaries import nearest_room_text

NEED = Resources.parse("3", "4Gi")


def room(node: str, cpu: str, mem: str) -> Room:
    total, free = Resources.parse("8", "16Gi"), Resources.parse(cpu, mem)
    return Room(node, total, total - free, free, total, is_open=True)


@pytest.mark.parametrize(
    ("rooms", "said"),
    [
        ([room("a", "3", "4Gi"), room("b", "0", "0")], ""),
        (
            [room("a", "1", "16Gi"), room("b", "2", "16Gi"), room("c", "8", "1Gi")],
            "no node has room for 3 vCPU and 4 GiB; closest is b, which lacks 1 vCPU",
        ),
        (
            [room("b", "2", "3Gi"), room("a", "2", "3Gi")],
            "no node has room for 3 vCPU and 4 GiB; closest is a, which lacks 1 vCPU and 1 GiB",
        ),
        ([replace(room("a", "8", "16Gi"), is_open=False)], "no other node accepts pods"),
        ([], "no other node accepts pods"),
    ],
)
def test_nearest_node_lacks_the_smallest_share(rooms: list[Room], said: str) -> None:
    assert nearest_room_text(rooms, NEED) == said
