"""Targets of migrations in a whole cluster: none that constraints forbid, and none that has just been refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local.scheduling import pod_rules
from deploy.local.scheduling.pod_rules import refusal
from protocol.kubernetes.objects import Json, name_of, text
from tests.local.moving.world import World, world_in

THREE = ("n1", "n2", "n3")


async def where(world: World) -> str:
    return text(await world.status(), "node")


@pytest.mark.parametrize("way", ["tainted", "not ready"])
async def test_unsuitable_node_is_skipped(tmp_path: Path, way: str) -> None:
    async with world_in(tmp_path, THREE) as world:
        await world.close_to_vms("n2", way)
        await world.occupy("n1", "5500m")
        await world.passes(14)
        await world.finish()
        assert (await where(world), await world.outcomes()) == ("n3", [("Succeeded", "Migrated")])


async def test_refused_target_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner does not know the rule by which the first target is refused."""
    refused: set[str] = set()

    def by_a_rule_of_its_own(pod: Json, node: Json) -> str | None:
        name = name_of(node).name
        if text(pod, "metadata", "name") != source and name != "n1":
            refused.update([] if refused else [name])
        return "node(s) were not liked" if name in refused else refusal(pod, node)

    async with world_in(tmp_path, THREE) as world:
        source = world.source.name
        monkeypatch.setattr(pod_rules, "refusal", by_a_rule_of_its_own)
        await world.occupy("n1", "5500m")
        await world.passes(14)
        await world.passes(40, step=1)
        await world.finish()
        assert (refused <= {"n2", "n3"}, await where(world) in {"n2", "n3"} - refused) == (True, True)
