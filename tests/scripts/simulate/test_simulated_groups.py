"""Groups in a simulated fleet: members are spread over nodes, also by migrations, and nothing is overcommitted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from protocol.units import Seconds
from scripts.autoscale.simulate.fleet import SimulationSettings, SimulationSettingsError, make_fleet
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.simulated_groups import SimulatedGroups

GROUPS = SimulatedGroups(count=4, replicas=2)
SETTINGS = SimulationSettings(nodes=4, vms=24, hours=0.1, step=Seconds(30.0), fill=0.9, groups=GROUPS)


def played(settings: SimulationSettings) -> Run:
    run = Run(make_fleet(settings), "least-loaded")
    for _ in run.execute():
        pass
    return run


def test_groups_spread_reproducibly() -> None:
    run = played(SETTINGS)
    found = run.figures(0.0)
    assert (run.problems, found.violations, found.groups, found.replicas) == ([], 0, 4, 8)
    assert found.sharing_percent < 10
    assert played(SETTINGS).figures(0.0) == found


def test_many_members_spread_as_evenly_as_possible() -> None:
    crowded = replace(SETTINGS, groups=SimulatedGroups(count=2, replicas=5), fill=0.5)
    cluster = Run(make_fleet(crowded), "none")._cluster
    on = np.array([cluster.nodes.index(vm.node) for vm in cluster.vms.values()])
    assert crowded.groups.colocated(on) == 2 * 2


def test_replicas_of_a_group_share_a_recording() -> None:
    alone = make_fleet(replace(SETTINGS, groups=SimulatedGroups()))
    fleet = make_fleet(SETTINGS)
    cores, mem, _ = fleet.table.at(7)
    for first in range(1, GROUPS.members, GROUPS.size):
        assert (cores[first], mem[first], fleet.table.vcpus[first]) == (
            cores[first + 1],
            mem[first + 1],
            fleet.table.vcpus[first + 1],
        )
    own = [vm for vm in range(SETTINGS.vms) if vm >= GROUPS.members or vm % GROUPS.size < 2]
    assert np.array_equal(cores[own], alone.table.at(7)[0][own])


def test_members_that_share_a_node_are_counted() -> None:
    two = SimulatedGroups(count=2, replicas=2)
    assert two.colocated(np.array([0, 1, 2, 3, 3, 3, 0, 0])) == 2
    assert SimulatedGroups().colocated(np.array([0, 0])) == 0


def test_groups_larger_than_the_fleet_are_refused() -> None:
    with pytest.raises(SimulationSettingsError, match="--groups: 27 members are more than --vms 24"):
        make_fleet(replace(SETTINGS, groups=SimulatedGroups(count=9, replicas=2)))
