"""Faults of the cluster that ``autoscale check`` names: its API, rights, definitions and namespace."""

from __future__ import annotations

from scripts.autoscale.check.facts import Right, Unavailable
from scripts.autoscale.check.finding import Level
from tests.scripts.check.changes import (
    Fault,
    both,
    changed,
    drop_slot_size,
    in_list,
    kube_scheduler,
    no_answer,
    of_account,
    own,
    refused,
    server,
    without,
    yet_to_come,
)
from tests.scripts.check.good_state import NAMESPACE, stamp

SCHEDULER = f"{NAMESPACE}:autoscaling-scheduler"
WARNING = Level.WARNING
NO_QUOTA_FOR_CLASS = "insufficient quota to match these scopes: [{PriorityClass In [system-node-critical]}]"

CLUSTER_FAULTS = (
    Fault("api-answers", "cannot connect", no_answer),
    Fault(
        "api-looks", "list secrets: slow", changed(secrets=Unavailable("list secrets: slow", has_failed=True)), WARNING
    ),
    Fault("api-version", "1.30 is too old: 1.31", both(kube_scheduler("v1.30.0"), server("v1.30.9"))),
    Fault("api-version", "neonvm-controller needs Kubernetes 1.33", both(kube_scheduler("v1.32.0"), server("v1.32.9"))),
    Fault("api-version", "1.99 is newer than", both(kube_scheduler("v1.99.0"), server("v1.99.0+k3s1")), WARNING),
    Fault(
        "api-addresses",
        "is IPv6 (the API server's Service has fd00:10:96::1)",
        in_list("api_services", "kubernetes", lambda each: each["spec"].update(clusterIP="fd00:10:96::1")),
        before=True,
    ),
    Fault("kube-scheduler-version", "1.37, the API server is 1.36: kube-scheduler must not", kube_scheduler("v1.37.0")),
    Fault("kube-scheduler-version", "at most one minor version older", kube_scheduler("v1.34.1"), WARNING),
    Fault(
        "rights-install",
        "you cannot create customresourcedefinitions.apiextensions.k8s.io",
        own(Right("create", "apiextensions.k8s.io", "customresourcedefinitions")),
        before=True,
    ),
    Fault(
        "rights-install",
        "you cannot create validatingadmissionpolicies.admissionregistration.k8s.io",
        own(Right("create", "admissionregistration.k8s.io", "validatingadmissionpolicies")),
        before=True,
    ),
    Fault(
        "rights-install",
        "you cannot create namespaces",
        both(yet_to_come, own(Right("create", "", "namespaces"))),
        before=True,
    ),
    Fault(
        "rights-install",
        "you cannot patch rolebindings.rbac.authorization.k8s.io in kube-system",
        own(Right("patch", "rbac.authorization.k8s.io", "rolebindings", "kube-system")),
        before=True,
    ),
    Fault("rights-commands", "you cannot get pods/portforward", own(Right("get", "", "pods/portforward"))),
    Fault(
        "rights-programs",
        f"the service account {SCHEDULER} cannot patch virtualmachines.vm.neon.tech",
        of_account(SCHEDULER, Right("patch", "vm.neon.tech", "virtualmachines")),
    ),
    Fault(
        "rights-programs",
        f"the service account {NAMESPACE}:autoscaling-agent cannot create subjectaccessreviews.authorization.k8s.io",
        of_account(f"{NAMESPACE}:autoscaling-agent", Right("create", "authorization.k8s.io", "subjectaccessreviews")),
    ),
    Fault(
        "definitions-in-the-way",
        "virtualmachines.vm.neon.tech already exists and lacks spec.guest.memorySlotSize",
        in_list("crds", "virtualmachines.vm.neon.tech", drop_slot_size),
        WARNING,
        before=True,
    ),
    Fault(
        "definitions-served",
        "virtualmachinemigrations.vm.neon.tech is not installed",
        without("crds", "virtualmachinemigrations.vm.neon.tech"),
    ),
    Fault(
        "definitions-served",
        "does not serve v1",
        in_list("crds", "virtualmachines.vm.neon.tech", lambda d: d["spec"]["versions"][0].update(served=False)),
    ),
    Fault(
        "definitions-served",
        "is not Established: conflict",
        in_list(
            "crds",
            "hvpas.autoscaling.k8s.io",
            lambda d: d.update(
                status={"conditions": [{"type": "Established", "status": "False", "message": "conflict"}]}
            ),
        ),
    ),
    Fault(
        "definitions-fields",
        "virtualmachines.vm.neon.tech lacks spec.guest.memorySlotSize",
        in_list("crds", "virtualmachines.vm.neon.tech", drop_slot_size),
    ),
    Fault(
        "definitions-fields",
        "lacks the status subresource",
        in_list("crds", "virtualmachines.vm.neon.tech", lambda d: d["spec"]["versions"][0].pop("subresources")),
    ),
    Fault("namespace-exists", f"namespace {NAMESPACE} not found", without("namespaces", NAMESPACE)),
    Fault(
        "namespace-exists",
        "is being deleted",
        in_list("namespaces", NAMESPACE, lambda each: each["metadata"].update(deletionTimestamp=stamp(1.0))),
    ),
    Fault(
        "namespace-pod-security",
        'neonvm-network: violates PodSecurity "restricted:latest"',
        refused("neonvm-network", 'violates PodSecurity "restricted:latest": host namespaces'),
    ),
    Fault(
        "namespace-pod-security",
        f"neonvm-devices in default ({NAMESPACE} does not exist yet): violates PodSecurity",
        both(yet_to_come, refused("neonvm-devices", 'violates PodSecurity "baseline:latest": hostPath volumes')),
        before=True,
    ),
    Fault(
        "namespace-quota", "exceeded quota: few", refused("autoscaling-scheduler", "exceeded quota: few, used: pods=1")
    ),
    Fault(
        "namespace-quota",
        "maximum memory usage per Container",
        refused("autoscaling-agent", "maximum memory usage per Container is 64Mi, but limit is 192Mi"),
        before=True,
    ),
    Fault("namespace-quota", f"agent: {NO_QUOTA_FOR_CLASS}", refused("autoscaling-agent", NO_QUOTA_FOR_CLASS)),
    Fault(
        "namespace-quota",
        f"agent in default ({NAMESPACE} does not exist yet): {NO_QUOTA_FOR_CLASS}",
        both(yet_to_come, refused("autoscaling-agent", NO_QUOTA_FOR_CLASS)),
        WARNING,
        before=True,
    ),
    Fault(
        "namespace-admission",
        'admission webhook "guard"',
        refused("autoscaling-agent", 'admission webhook "guard" denied'),
    ),
)
