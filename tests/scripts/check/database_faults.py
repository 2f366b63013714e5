"""Faults of nodes, VMs and postgres in pods that ``autoscale check`` names."""

from __future__ import annotations

from scripts.autoscale.check.facts import Observed
from scripts.autoscale.check.finding import Level
from tests.scripts.check.changes import (
    EMULATED,
    LIMITED,
    OPEN,
    SIDECAR,
    Fault,
    added,
    both,
    changed,
    deferred,
    heard,
    in_list,
    kubelet,
    kubelet_has,
    leaves_two_unready,
    migration,
    no_devices,
    no_network,
    not_ready,
    of_pod,
    of_vm,
    permit,
    placed,
    restarts,
    serves_no_pods,
    without,
)
from tests.scripts.check.good_state import stamp

WARNING = Level.WARNING

DATABASE_FAULTS = (
    Fault("nodes-ready", "node node-2 is not ready: no network", in_list("nodes", "node-2", not_ready), WARNING),
    Fault("nodes-ready", "node node-1 is not ready", leaves_two_unready),
    Fault("nodes-ready", "has no node", changed(nodes=Observed([])), before=True),
    Fault(
        "nodes-devices",
        "node node-2 offers no autoscaling.neon.tech/guest-devices",
        in_list("nodes", "node-2", no_devices),
        WARNING,
    ),
    Fault(
        "nodes-devices",
        "node node-1 offers no autoscaling.neon.tech/guest-devices",
        both(in_list("nodes", "node-1", no_devices), in_list("nodes", "node-2", no_devices)),
    ),
    Fault("nodes-network", "node node-2 offers no autoscaling", in_list("nodes", "node-2", no_network), WARNING),
    Fault(
        "nodes-network",
        "node node-1 offers no autoscaling.neon.tech/flat-network",
        both(in_list("nodes", "node-1", no_network), in_list("nodes", "node-2", no_network)),
    ),
    Fault(
        "nodes-accelerate",
        "guests on node node-1 are emulated, which is many times slower: software emulation",
        of_vm(conditions=EMULATED),
        WARNING,
    ),
    Fault("vms-network", "VM default/db runs without a flat-network address", of_vm(extraNetIP="")),
    Fault("vms-limits", "VM default/db cannot grow to its maximum: its memory", of_vm(conditions=LIMITED), WARNING),
    Fault("vms-closed", "pod default/db-x accepts anyone on ports 20183 and 25183", added("vm_pods", OPEN), WARNING),
    Fault(
        "vms-agents",
        "VM default/db has no agent",
        both(without("pods", "autoscaling-agent-0", "autoscaling-agent-1"), without("database_pods", "pg-1")),
    ),
    Fault("vms-agents", "has two agents", added("vm_pods", SIDECAR), WARNING),
    Fault(
        "agents-answered",
        "the scheduler last answered 90 s ago: 403: not its agent",
        heard(
            {"scheduler_answered_seconds": 90.0, "troubles": [{"with_": "scheduler", "reason": "403: not its agent"}]}
        ),
    ),
    Fault("agents-answered", "the scheduler has never answered", heard({})),
    Fault("agents-answered", "does not respond to /explain", heard(None), WARNING),
    Fault(
        "vms-permits",
        "VM default/db: its size of 1 cpu, 2Gi exceeds its permit of 500m cpu, 2Gi",
        permit('{"vCPUs":"500m","mem":"2Gi"}'),
        WARNING,
    ),
    Fault("vms-permits", "metadata.annotations[autoscaling.neon.tech/permit]", permit("{"), WARNING),
    Fault(
        "vms-permits",
        "cannot decode VM default/db: spec.guest.memorySlots",
        in_list("vms", "db", lambda vm: vm["spec"]["guest"]["memorySlots"].update(use=99)),
    ),
    Fault(
        "vms-sleep",
        "VM default/db sets sleep.after but can never sleep",
        in_list("vms", "db", lambda vm: vm["spec"].pop("extraNetwork")),
        WARNING,
    ),
    Fault(
        "vms-readable",
        "Pod default/x: spec: too deep",
        changed(ledger=Observed({"unreadable": [{"kind": "Pod", "object": "default/x", "reason": "spec: too deep"}]})),
        WARNING,
    ),
    Fault("vms-placed", "pod default/p is not scheduled: 0/2 nodes", placed(message="0/2 nodes"), WARNING),
    Fault("migrations-end", "migration default/away is Running after 500 s", added("migrations", migration())),
    Fault(
        "migrations-end",
        "has been terminating for 70 s",
        added("migrations", migration(creationTimestamp=stamp(90.0), deletionTimestamp=stamp(70.0))),
    ),
    Fault(
        "migrations-end",
        "has been terminating for 70 s",
        added("migrations", {**migration(deletionTimestamp=stamp(70.0)), "status": {"phase": "Succeeded"}}),
    ),
    Fault(
        "migrations-end",
        "should move off node node-1 but cannot: no room",
        changed(ledger=Observed({"nodes": [{"name": "node-1", "stuck": "no room"}]})),
        WARNING,
    ),
    Fault("pods-resize", "the API server does not offer pods/resize", changed(core_api=Observed({}))),
    Fault("pods-resize", "node node-1 is v1.32.9; resizing pods in place needs 1.33", kubelet("v1.32.9")),
    Fault("pods-resize", "node node-1 is v1.33.1; lowering memory in place needs 1.34", kubelet("v1.33.1"), WARNING),
    Fault("pods-resize", "has cpuManagerPolicy: static", kubelet_has(cpuManagerPolicy="static"), WARNING, before=True),
    Fault("pods-resize", "has memoryManagerPolicy: Static", kubelet_has(memoryManagerPolicy="Static"), WARNING),
    Fault(
        "pods-agents",
        "1 pods have opted in, but no agent serves pods",
        in_list("daemon_sets", "autoscaling-agent", serves_no_pods),
    ),
    Fault(
        "pods-agents",
        "pod default/pg-1 has no agent: none runs on node node-3",
        both(of_pod(lambda pod: pod["spec"].update(nodeName="node-3")), changed(kubelets={})),
    ),
    Fault(
        "pods-readable",
        "pod default/pg-1: spec.containers[postgres].resizePolicy: expected NotRequired for memory",
        of_pod(restarts),
        WARNING,
    ),
    Fault(
        "pods-readable",
        "pod default/pg-1: its minimum is what it requests now, so it never shrinks: add min to its bounds",
        of_pod(lambda pod: pod["metadata"]["annotations"].pop("autoscaling.neon.tech/first-requests")),
        WARNING,
    ),
    Fault("pods-resized", "pod default/pg-1: Deferred: not enough cpu", of_pod(deferred), WARNING),
)
