"""Nodes, and the VMs on them: lines of ``autoscale check`` (pure)."""

from __future__ import annotations

from typing import Final

from scripts.autoscale.check.finding import Check, CheckSection, When
from scripts.autoscale.check.judges import guest_nodes, moving_vms

CHECKS: Final = (
    Check(
        "nodes-ready",
        CheckSection.NODES,
        "nodes are ready",
        guest_nodes.are_ready,
        "VMs on a node that is not ready run on, and are neither resized nor moved.",
        "kubectl describe node {subject}",
        When.ALWAYS,
    ),
    Check(
        "nodes-devices",
        CheckSection.NODES,
        "nodes offer devices for guests",
        guest_nodes.offer_devices,
        "Pods of VMs ask for `autoscaling.neon.tech/guest-devices`; a node without it is given none. The device"
        " plugin does not run there, or the kubelet's folder is elsewhere.",
        "kubectl -n {namespace} get pods -l app.kubernetes.io/name=neonvm-devices --field-selector"
        " spec.nodeName={subject}",
    ),
    Check(
        "nodes-network",
        CheckSection.NODES,
        "nodes offer the flat network",
        guest_nodes.offer_network,
        "Pods of VMs with `spec.extraNetwork` ask for `autoscaling.neon.tech/flat-network`. A node without it filters"
        " no frames: its kernel lacks nftables for bridges, or the kubelet's folder is elsewhere. The log says which.",
        "kubectl -n {namespace} logs -l app.kubernetes.io/name=neonvm-network --prefix",
    ),
    Check(
        "nodes-accelerate",
        CheckSection.NODES,
        "guests run on KVM",
        guest_nodes.accelerate,
        "VMs on this node say in their condition `Accelerated` that they are emulated, and why.",
        "docs/vms-on-kubernetes.md has each message; to keep VMs off such nodes give them a nodeSelector",
    ),
    Check(
        "vms-network",
        CheckSection.VMS,
        "VMs have their own addresses",
        guest_nodes.has_pods_network,
        "A VM with `spec.extraNetwork.enable` runs without `status.extraNetIP`: it cannot move with its connections.",
        "kubectl -n {namespace} logs daemonset/neonvm-network",
    ),
    Check(
        "vms-limits",
        CheckSection.VMS,
        "pods of VMs have no limits below their VMs' maximum",
        guest_nodes.may_grow,
        "A limit of the pod (`spec.podResources.limits`, the default of a LimitRange, a webhook) is less than the VM's"
        " maximum and QEMU's own memory. The VM is held below it, because the kubelet would kill QEMU.",
        "raise or drop the limit, then delete the pod when it suits; kubectl get limitranges -A",
    ),
    Check(
        "vms-closed",
        CheckSection.VMS,
        "VMs' pods let in their controller alone",
        guest_nodes.are_closed,
        "A pod of NeonVM's controller, or of a release of ours that asked for no certificate, lets everyone in who"
        " reaches its ports. Our controller closes a VM's ports with its next pod; until then it resizes the VM and"
        " does not move it. A NetworkPolicy is a second fence, which our controller keeps unless the value"
        " `neonvm.policy.enabled` of the chart is false.",
        "restart the VM of pod {subject}; until then:"
        " kubectl apply -n NAMESPACE -f deploy/kubernetes/neonvm-policy.yaml",
    ),
    Check(
        "vms-agents",
        CheckSection.VMS,
        "VMs have one agent each",
        moving_vms.have_agents,
        'A VM with the label `autoscaling.neon.tech/enabled: "true"` is sized by a sidecar in its pod, or by the'
        " agent of its node; with none it never grows.",
        "autoscale explain {subject}",
    ),
    Check(
        "agents-answered",
        CheckSection.VMS,
        "agents are answered by the scheduler",
        moving_vms.are_answered,
        "Each agent says in `/explain` when the scheduler answered it last; it asks once in 15 s. After a minute"
        " without an answer VMs do not grow. The agent's own reason is shown (401: token; 403: `agents.nodeAgents`;"
        " 503: the API).",
        "autoscale explain {subject}",
    ),
    Check(
        "vms-permits",
        CheckSection.VMS,
        "VMs keep to their permits",
        moving_vms.permits_hold,
        "A VM cannot be read, or was given more than the scheduler had permitted: by hand, or by another autoscaler.",
        "autoscale explain {subject}",
    ),
    Check(
        "vms-readable",
        CheckSection.VMS,
        "the scheduler reads every object",
        moving_vms.objects_are_read,
        "Objects that the scheduler cannot decode count at their maximum, so nodes seem fuller than they are.",
        "kubectl get events -A --field-selector reason=Unreadable",
    ),
    Check(
        "vms-placed",
        CheckSection.VMS,
        "pods find a node",
        moving_vms.are_placed,
        "kube-scheduler has looked at a pod and found no node for it.",
        "kubectl describe pod {subject}; autoscale top",
    ),
    Check(
        "migrations-end",
        CheckSection.VMS,
        "migrations end",
        moving_vms.moves_end,
        "A migration is over its time-out or does not go away, or VMs should leave a node and none can.",
        "kubectl describe vmm {subject}; kubectl get lease -n {namespace} neonvm-controller",
    ),
)
