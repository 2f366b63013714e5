"""The scenario of a full node with a database in a pod: the full node, and the neighbour that leaves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from protocol.kubernetes.objects import Json, child
from protocol.units import Bytes, MilliCpu, Resources, Seconds
from scripts.autoscale.demo import _denial_text
from scripts.autoscale.demonstration.pods.full_node import NEIGHBOUR, FullNodeScenario
from scripts.autoscale.demonstration.pods.pod_database import DEMO_POD
from scripts.autoscale.demonstration.report import RoomPoint
from scripts.autoscale.demonstration.watcher import Snapshot, Watcher
from scripts.autoscale.site import Site, SiteError
from tests.fake_clock import SleepingClock

SMALL, LARGE = Resources.parse("500m", "256Mi"), Resources.parse(1, "256Mi")
FULL = "node node-1 has 0 free of 6; 0.5 more needed"


@dataclass
class Node:
    """A node with 6 vCPU, its database, and its cluster; a neighbour takes the rest."""

    clock: SleepingClock
    is_counted: bool = True
    is_denied: bool = True
    gives_room: bool = True
    vm = DEMO_POD
    neighbours: list[Json] = field(default_factory=list)
    has_left: bool = False
    unanswered: int = 1

    @property
    def client(self) -> Node:
        return self

    async def create(self, _: object, __: str, pod: Json) -> None:
        self.neighbours.append(pod)

    async def get(self, _: object, __: object) -> Json:
        return {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}

    async def delete(self, _: object, __: object) -> None:
        self.has_left = True

    async def of_scheduler(self, path: str) -> Json:
        if path == "/explain/default/pod/demo-0":
            self.unanswered -= 1
            return {"pods": [{"deniedBy": None if self.unanswered >= 0 else FULL}]}
        reserved = "6" if self.neighbours and self.is_counted else "1500m"
        return {"nodes": [{"name": "node-1", "total": {"cpu": "6"}, "reserved": {"cpu": reserved}}]}

    @property
    def explanation(self) -> Json:
        return {"denied": {"by": "scheduler"}} if self.is_denied and self.neighbours else {}

    def snapshot(self) -> Snapshot:
        size = LARGE if self.has_left and self.gives_room else SMALL
        return Snapshot("Running", "node-1", size, LARGE, True, 0.4, Bytes(1), "granted too little")


def full_node_scenario(node: Node, told: list[str]) -> FullNodeScenario:
    return FullNodeScenario(cast("Site", node), node.clock, told.append, cast("Watcher", node))


async def play(node: Node, told: list[str]) -> RoomPoint:
    async def load() -> None:
        await node.clock.sleep(Seconds(30.0))

    scenario = full_node_scenario(node, told)
    await scenario.fill_node()
    return await scenario.play(load)


async def test_pod_grows_after_its_neighbour_left() -> None:
    node, told = Node(SleepingClock()), list[str]()
    room = await play(node, told)
    assert (room.neighbour, room.node, room.reason) == ("neighbour", "node-1", FULL)
    assert room.denied_seconds is not None
    assert room.room_seconds is not None
    (pod,) = node.neighbours
    assert child(pod, "spec", "nodeSelector") == {"kubernetes.io/hostname": "node-1"}
    taken = child(pod["spec"]["containers"][0], "resources", "requests")["cpu"]  # type: ignore[index]
    assert taken == MilliCpu(4500).quantity()
    assert told == [
        "neighbour has taken the remaining 4.5 vCPU of node-1",
        f"denied: {FULL}",
        f"{NEIGHBOUR.name} has left",
    ]


@pytest.mark.parametrize(
    ("is_denied", "gives_room", "line"),
    [
        (False, True, "nothing was denied on node-1"),
        (True, False, f"denied 0.0 s after the load began ({FULL}); no more CPU after neighbour left"),
        (True, True, f"denied 0.0 s after the load began ({FULL}); more CPU 0.0 s after neighbour left"),
    ],
)
async def test_the_outcome_is_one_line(is_denied: bool, gives_room: bool, line: str) -> None:
    node = Node(SleepingClock(), is_denied=is_denied, gives_room=gives_room)
    assert _denial_text(await play(node, [])) == line


async def test_agent_explains_if_scheduler_does_not() -> None:
    assert (await play(Node(SleepingClock(), unanswered=1000), [])).reason == "granted too little"


async def test_uncounted_neighbour_ends_the_demonstration() -> None:
    with pytest.raises(SiteError, match="the scheduler does not count neighbour on node-1"):
        await full_node_scenario(Node(SleepingClock(), is_counted=False), []).fill_node()
