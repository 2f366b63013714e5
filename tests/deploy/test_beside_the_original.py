"""Installation alongside the original, v0.49.1: no object of ours has the name of one of its objects (B.11)."""

from __future__ import annotations

from tests.deploy.manifests import FILES, Document, documents

NAMESPACED = {
    ("kube-system", "autoscaler-agent"): {"DaemonSet", "ServiceAccount"},
    ("kube-system", "autoscaler-agent-config"): {"ConfigMap"},
    ("kube-system", "autoscale-scheduler"): {"Deployment", "ServiceAccount"},
    ("kube-system", "autoscale-scheduler-config"): {"ConfigMap"},
    ("kube-system", "scheduler-plugin-config"): {"ConfigMap"},
    ("kube-system", "autoscale-scheduler-apiserver-auth-config"): {"RoleBinding"},
    ("kube-system", "kube-multus-ds"): {"DaemonSet"},
    ("neonvm-system", "neonvm-controller"): {"Deployment", "ServiceAccount"},
    ("neonvm-system", "neonvm-device-plugin"): {"DaemonSet"},
    ("neonvm-system", "neonvm-leader-election-role"): {"Role"},
    ("neonvm-system", "neonvm-leader-election-rolebinding"): {"RoleBinding"},
}
OF_THE_CLUSTER = {
    "ClusterRole": {
        "multus",
        "neonvm-manager-role",
        "neonvm-virtualmachine-editor-role",
        "neonvm-virtualmachine-viewer-role",
        "neonvm-virtualmachinemigration-editor-role",
        "neonvm-virtualmachinemigration-viewer-role",
    },
    "ClusterRoleBinding": {
        "autoscaler-view",
        "autoscaler-virtualmachine-editor",
        "autoscale-scheduler-virtualmachine-editor",
        "autoscale-scheduler-virtualmachinemigration-editor",
        "autoscale-scheduler-as-kube-scheduler",
        "autoscale-scheduler-as-volume-scheduler",
        "multus",
        "neonvm-manager-rolebinding",
    },
    "MutatingWebhookConfiguration": {"neonvm-mutating-webhook-configuration"},
    "ValidatingWebhookConfiguration": {"neonvm-validating-webhook-configuration"},
    "CustomResourceDefinition": {"ippools.vm.neon.tech", "network-attachment-definitions.k8s.cni.cncf.io"},
}
"""Its kinds VirtualMachine and VirtualMachineMigration are the contract, which both sides share (decision 9)."""


def ours() -> set[tuple[str, str, str]]:
    """Kind, namespace and name of everything that our manifests make."""
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in applied()}


def applied() -> list[Document]:
    return [each for each in documents(*FILES) if "metadata" in each]


def test_nothing_replaces_original_objects() -> None:
    theirs = {(kind, *place) for place, kinds in NAMESPACED.items() for kind in kinds}
    theirs |= {(kind, "", name) for kind, names in OF_THE_CLUSTER.items() for name in names}
    assert ours() & theirs == set()


def test_selectors_match_no_original_pods() -> None:
    """Its pods are labelled ``name``, ``component``, ``tier`` and ``control-plane``; ours are selected by another."""
    workloads = [each for each in applied() if each["kind"] in {"Deployment", "DaemonSet"}]
    assert {key for each in workloads for key in each["spec"]["selector"]["matchLabels"]} == {"app.kubernetes.io/name"}
    names = {each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] for each in workloads}
    assert names & {"NeonVM", "deployment"} == set()
