"""The quick start's fleet on smaller nodes, in virtual time: no VM is denied for long beside idle neighbours (B.17)."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np

from deploy.local.cluster.guests import wave_period, waves
from protocol.messages import ObjectName
from protocol.units import Seconds
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettings
from scripts.autoscale.simulate.migration_model import LEAST_COST
from scripts.autoscale.simulate.recording_grid import RecordingGrid
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.vm_table import UNIT, VmTable
from tests.scripts.simulate.simulation_fixture import GIB

NODES, VMS = 10, 60
NODE = UNIT * 56
"""14 vCPU. On nodes with 15.5, as in the quick start, no VM is denied at all."""

SETTLE = MEASURED = 300
"""Seconds."""


def fleet() -> SimulatedFleet:
    """VMs whose load comes in waves, each with its own phase. Memory is never short."""
    period = wave_period(VMS)
    load = waves(0, period)
    cores = np.array([load.at(Seconds(float(second))).cpu for second in range(period)])
    one, all_vms, always = np.ones(1), np.ones(VMS, dtype=np.int64), np.ones(period, dtype=np.bool_)
    grid = RecordingGrid(
        cores / cores.max(), np.ones(period), always, np.zeros(1, dtype=np.int64), period * all_vms[:1], one
    )
    phases = np.array([zlib.crc32(str(ObjectName("default", f"vm-{n}")).encode()) % period for n in range(1, VMS + 1)])
    sizes = np.full(VMS, float(cores.max())), np.full(VMS, 5.0 * GIB)
    table = VmTable(grid, 0 * all_vms, period * all_vms, phases, 4 * all_vms, *sizes)
    return SimulatedFleet(SimulationSettings(nodes=NODES, vms=VMS, hours=1.0, step=Seconds(1.0)), table, NODE)


def waiting(run: Run, demand: list[float]) -> list[str]:
    """The VMs denied CPU while the others of their node hold more than twice what they use."""
    found, vms = [], run._cluster.vms
    for node in run._cluster.ledger.nodes.values():
        claims = {claim.pod.vm: claim for claim in node.claims.values() if claim.pod.vm is not None}
        used = {name: min(demand[vms[name].index], vms[name].use.cpu.as_cores) for name in claims}
        for name, claim in claims.items():
            neighbours = node.reserved.cpu.as_cores - claim.reserved.cpu.as_cores
            if claim.unmet.cpu and neighbours > 2 * (sum(used.values()) - used[name]):
                found.append(f"{name} on {node.name}")
    return found


def test_no_vm_waits_long_for_idle_neighbours() -> None:
    simulated, seconds, longest = fleet(), Counter[str](), 0
    run = Run(simulated, LEAST_COST)
    for step, _ in zip(range(SETTLE + MEASURED), run.execute(), strict=False):
        if step >= SETTLE:
            demand = simulated.table.at(step - run.warm_up)[0].tolist()
            seconds = Counter({name: seconds[name] + 1 for name in waiting(run, demand)})
            longest = max([longest, *seconds.values()])
    assert 0 < longest <= 30
