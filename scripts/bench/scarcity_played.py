"""The fleet of ``scripts.bench.scarcity`` in virtual time: real agents, ledger and planner, without a cluster.

Fifteen minutes take ten seconds, and the same seed gives the same result on the busiest machine.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from deploy.local.cluster.guests import wave_period, waves
from protocol.messages import ObjectName
from protocol.units import Bytes, Seconds
from scripts.autoscale.simulate.fleet import SimulatedFleet, SimulationSettings
from scripts.autoscale.simulate.recording_grid import RecordingGrid
from scripts.autoscale.simulate.run import Run
from scripts.autoscale.simulate.vm_table import UNIT, VmTable
from scripts.bench.scarcity_rule import NodeLook, Scarcity, VmLook

NODES: Final = 10
VMS: Final = 60
NODE: Final = UNIT * 62
"""15.5 vCPUs may be reserved of a node of 16."""

SETTLE: Final = 300
"""Seconds that are played and not judged."""

_MEM: Final = Bytes.parse("5Gi")
"""The memory that a VM uses; none of it is short."""


def play(minutes: float, seed: int = 1) -> Scarcity:
    """All looks at the fleet, one a second."""
    table = _table()
    settings = SimulationSettings(nodes=NODES, vms=VMS, hours=minutes / 60, step=Seconds(1.0), seed=seed)
    run, history = Run(SimulatedFleet(settings, table, NODE), "least-cost"), Scarcity()
    for played in run.play():
        second = played - 1 - SETTLE
        if second >= 60 * minutes:
            break
        if second >= 0:
            history.look(float(second), _nodes(run, table.at(played - 1 - run.warm_up)[0].tolist()))
    return history


def _nodes(run: Run, demand: list[float]) -> list[NodeLook]:
    """The nodes with their VMs. A VM uses what it demands, as far as it has it."""
    cluster = run.cluster
    looks = []
    for name in cluster.nodes:
        node, vms = cluster.ledger.nodes[name], []
        for claim in node.claims.values():
            if claim.pod.vm is not None and claim.pod.vm in cluster.vms:
                vm = cluster.vms[claim.pod.vm]
                uses = min(demand[vm.index], vm.use.cpu.as_cores)
                vms.append(VmLook(vm.name.name, claim.reserved.cpu.as_cores, uses, claim.unmet.cpu.as_cores))
        looks.append(NodeLook(name, node.room.total.cpu.as_cores, node.room.watermark.cpu.as_cores, vms))
    return looks


def _table() -> VmTable:
    """The waves of the quick start, each VM shifted as there."""
    period = wave_period(VMS)
    load = waves(0, period)
    cores = np.array([load.at(Seconds(float(second))).cpu for second in range(period)])
    peak, one = float(cores.max()), np.ones(VMS, dtype=np.int64)
    names = (ObjectName("default", f"vm-{number}") for number in range(1, VMS + 1))
    return VmTable(
        grid=RecordingGrid(
            cores=cores / peak,
            mem=np.ones(period),
            is_new=np.ones(period, dtype=np.bool_),
            base=np.zeros(1, dtype=np.int64),
            length=np.full(1, period),
            weight=np.ones(1),
        ),
        base=0 * one,
        length=one * period,
        offset=np.array([zlib.crc32(str(name).encode()) % period for name in names]),
        vcpus=4 * one,
        cpu_peak=np.full(VMS, peak),
        mem_peak=np.full(VMS, float(_MEM.value)),
    )
