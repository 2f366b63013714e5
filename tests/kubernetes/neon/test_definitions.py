"""Our definitions take the place of NeonVM's on a cluster that has objects, and give it back (B.11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.kubernetes.resources import CUSTOM_RESOURCE_DEFINITIONS
from tests import plain_yaml
from tests.deploy.manifests import documents
from tests.kubernetes.failing.fleet import VMS, Fleet, Obj, until
from tests.kubernetes.neon.conftest import World
from tests.kubernetes.neon.stage import MIGRATIONS
from tests.kubernetes.neon.stage import stage as new_stage

pytestmark = pytest.mark.kubernetes

KINDS = ("virtualmachines", "virtualmachinemigrations")
OBJECTS: dict[str, tuple[str, Obj, Obj]] = {
    "odd": (
        VMS,
        {
            "guest": {
                "cpus": {"min": "0.25", "use": "2.5e-1", "max": "1.25"},
                "memorySlotSize": "1024Mi",
                "memorySlots": {"min": 1, "use": 1, "max": 5},
                "rootDisk": {"image": "pg", "size": "+8Gi"},
                "ports": [{"port": 5432}, {"port": 53, "protocol": "SCTP"}],
                "settings": {"swap": ".5Gi"},
            },
            "terminationGracePeriodSeconds": -1,
        },
        {"phase": "Draining", "cpus": "0.25", "memorySize": "1e9"},
    ),
    "bare": (VMS, {"guest": {}}, {"phase": "Whatever"}),
    "move": (MIGRATIONS, {"vmName": "odd", "maxBandwidth": "1e9", "completionTimeout": 0}, {"phase": "Odd"}),
}
"""By name: the collection, spec and status of objects that NeonVM's definitions accept."""


def theirs(binaries: Path) -> list[Obj]:
    return [plain_yaml.load((binaries / f"vm.neon.tech_{plural}.yaml").read_text()) for plural in KINDS]


async def are_in_force(fleet: Fleet) -> bool:
    """True if the API server has accepted all names of the definitions."""
    for plural in KINDS:
        path = CUSTOM_RESOURCE_DEFINITIONS.path(name=f"{plural}.vm.neon.tech")
        found = (await fleet.http.get(path)).json()
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        if (conditions["NamesAccepted"], conditions["Established"]) != ("True", "True"):
            return False
    return True


async def all_can_be_changed(fleet: Fleet, mark: str) -> bool:
    """True if each object accepts a label and a status, and keeps its other fields."""
    for name, (path, spec, status) in OBJECTS.items():
        await fleet.patch(f"{path}/{name}", {"metadata": {"labels": {"seen": mark}}})
        found = await fleet.patch(f"{path}/{name}/status", {"status": {"podName": mark, "sourceNode": mark}})
        kept = found["spec"].items() >= {key: value for key, value in spec.items() if key != "guest"}.items()
        if not kept or found["status"]["phase"] != status["phase"]:
            return False
    return True


async def test_fleet_objects_stay_valid_with_our_crds(world: World, tmp_path: Path) -> None:
    ours = [each for each in documents("deploy/neonvm.yaml") if each["spec"]["names"]["plural"] in KINDS]
    async with new_stage(world.plane, world.places, world.binaries, tmp_path) as stage:
        fleet = stage.fleet

        async def settled() -> bool:
            return await are_in_force(fleet)

        try:
            world.plane.apply(theirs(world.binaries))
            await until(settled, "NeonVM's definitions are in force")
            for name, (path, spec, status) in OBJECTS.items():
                kind = "VirtualMachine" if path == VMS else "VirtualMachineMigration"
                body = {"apiVersion": "vm.neon.tech/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
                await fleet.create(path, body)
                await fleet.patch(f"{path}/{name}/status", {"status": status})
            for mark, definitions in (("ours", ours), ("theirs", theirs(world.binaries)), ("again", ours)):
                world.plane.apply(definitions)
                await until(settled, f"{mark}: all names are accepted")
                assert await all_can_be_changed(fleet, mark), mark
            made_under_neonvms = (await fleet.http.get(f"{VMS}/odd")).json()["spec"]
            assert "cpuScalingMode" not in made_under_neonvms, "the controller's flag decides, and not our definition"
        finally:
            world.plane.apply(ours)
