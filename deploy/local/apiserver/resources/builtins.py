"""The resources that every cluster has, as one table.

They are stored and served like Kubernetes' own, but the only controller behind them is ``garbage_collector``; special
rules are in ``strategies``. Nothing here is validated against a schema: Deployments, Jobs and the like are
plain storage.
"""

from __future__ import annotations

from typing import Final

from deploy.local.apiserver.resources.resource import CREATE_ONLY, ONE_BY_ONE, ScalePaths, ServedResource, TableColumn

_AGE: Final = TableColumn("Age", ".metadata.creationTimestamp", "date")
_SCALABLE: Final = ("status", "scale")
_ALL: Final = ("all",)
_EVENT_FIELDS: Final = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
_POD_FIELDS: Final = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_REPLICAS: Final = (
    TableColumn("Desired", ".spec.replicas", "integer"),
    TableColumn("Current", ".status.replicas", "integer"),
    TableColumn("Ready", ".status.readyReplicas", "integer"),
    _AGE,
)
_DEPLOYMENT: Final = (
    TableColumn("Desired", ".spec.replicas", "integer"),
    TableColumn("Ready", ".status.readyReplicas", "integer"),
    TableColumn("Up-to-date", ".status.updatedReplicas", "integer"),
    TableColumn("Available", ".status.availableReplicas", "integer"),
    _AGE,
)
_DAEMON_SET: Final = (
    TableColumn("Desired", ".status.desiredNumberScheduled", "integer"),
    TableColumn("Current", ".status.currentNumberScheduled", "integer"),
    TableColumn("Ready", ".status.numberReady", "integer"),
    _AGE,
)
_POD: Final = (
    TableColumn("Ready", "computed:ready"),
    TableColumn("Status", "computed:pod-status"),
    TableColumn("Restarts", "computed:restarts", "integer"),
    _AGE,
    TableColumn("IP", ".status.podIP", priority=1),
    TableColumn("Node", ".spec.nodeName", priority=1),
)
_NODE: Final = (
    TableColumn("Status", "computed:node-status"),
    TableColumn("CPU", ".status.allocatable.cpu"),
    TableColumn("Memory", ".status.allocatable.memory"),
    _AGE,
    TableColumn("Version", ".status.nodeInfo.kubeletVersion"),
    TableColumn("Internal-IP", ".status.addresses[?(@.type=='InternalIP')].address", priority=1),
)
_EVENT: Final = (
    TableColumn("Last Seen", ".lastTimestamp", "date"),
    TableColumn("Type", ".type"),
    TableColumn("Reason", ".reason"),
    TableColumn("Object", "computed:involved-object"),
    TableColumn("Message", ".message"),
)
_SERVICE: Final = (
    TableColumn("Type", ".spec.type"),
    TableColumn("Cluster-IP", ".spec.clusterIP"),
    TableColumn("Port(s)", "computed:ports"),
    _AGE,
)
_AUTOSCALER: Final = (
    TableColumn("Reference", ".spec.scaleTargetRef.name"),
    TableColumn("MinPods", ".spec.minReplicas", "integer"),
    TableColumn("MaxPods", ".spec.maxReplicas", "integer"),
    TableColumn("Replicas", ".status.currentReplicas", "integer"),
    TableColumn("Desired", ".status.desiredReplicas", "integer", priority=1),
    _AGE,
)
_LEASE: Final = (TableColumn("Holder", ".spec.holderIdentity"), _AGE)
_IP: Final = (TableColumn("ParentRef", ".spec.parentRef.name"), _AGE)
_CONFIG: Final = (TableColumn("Data", "computed:data-count", "integer"), _AGE)
_SECRET: Final = (TableColumn("Type", ".type"), *_CONFIG)

_R = ServedResource


def _scaled(group: str, plural: str, kind: str, short_name: str, columns: tuple[TableColumn, ...]) -> ServedResource:
    """A workload with replicas that ``scale`` sets."""
    return ServedResource(
        group,
        "v1",
        plural,
        kind,
        short_names=(short_name,),
        categories=_ALL,
        subresources=_SCALABLE,
        # Workloads have their selector in the spec; for custom resources it is usually in the status.
        scale=ScalePaths(selector="spec.selector"),
        columns=columns,
        generation=True,
    )


def _review(group: str, plural: str, kind: str) -> ServedResource:
    """A review: it is answered and not stored."""
    return ServedResource(group, "v1", plural, kind, namespaced=False, verbs=CREATE_ONLY)


BUILTINS: Final[tuple[ServedResource, ...]] = (
    # core
    _R("", "v1", "bindings", "Binding", verbs=CREATE_ONLY),
    _R("", "v1", "configmaps", "ConfigMap", short_names=("cm",), columns=_CONFIG),
    _R("", "v1", "endpoints", "Endpoints", short_names=("ep",)),
    _R("", "v1", "events", "Event", short_names=("ev",), selectable=_EVENT_FIELDS, columns=_EVENT),
    _R("", "v1", "limitranges", "LimitRange", short_names=("limits",)),
    _R(
        "",
        "v1",
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        subresources=("status", "finalize"),
        # A namespace is deleted by name only.
        verbs=ONE_BY_ONE,
        selectable=("status.phase",),
        columns=(TableColumn("Status", ".status.phase"), _AGE),
    ),
    _R(
        "",
        "v1",
        "nodes",
        "Node",
        namespaced=False,
        short_names=("no",),
        subresources=("status",),
        selectable=("spec.unschedulable",),
        columns=_NODE,
    ),
    _R("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", short_names=("pvc",), subresources=("status",)),
    _R(
        "",
        "v1",
        "persistentvolumes",
        "PersistentVolume",
        namespaced=False,
        short_names=("pv",),
        subresources=("status",),
    ),
    _R(
        "",
        "v1",
        "pods",
        "Pod",
        short_names=("po",),
        categories=_ALL,
        subresources=("status", "binding", "eviction", "resize"),
        selectable=_POD_FIELDS,
        columns=_POD,
        generation=True,
    ),
    _R("", "v1", "podtemplates", "PodTemplate"),
    _scaled("", "replicationcontrollers", "ReplicationController", "rc", _REPLICAS),
    _R("", "v1", "resourcequotas", "ResourceQuota", short_names=("quota",), subresources=("status",)),
    _R("", "v1", "secrets", "Secret", selectable=("type",), columns=_SECRET),
    _R("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",), subresources=("token",)),
    _R(
        "",
        "v1",
        "services",
        "Service",
        short_names=("svc",),
        categories=_ALL,
        subresources=("status",),
        selectable=("spec.clusterIP", "spec.type"),
        columns=_SERVICE,
    ),
    # apiextensions
    _R(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
        columns=(TableColumn("Created At", ".metadata.creationTimestamp"),),
        generation=True,
    ),
    # apps
    _R("apps", "v1", "controllerrevisions", "ControllerRevision"),
    _R(
        "apps",
        "v1",
        "daemonsets",
        "DaemonSet",
        short_names=("ds",),
        categories=_ALL,
        subresources=("status",),
        columns=_DAEMON_SET,
        generation=True,
    ),
    _scaled("apps", "deployments", "Deployment", "deploy", _DEPLOYMENT),
    _scaled("apps", "replicasets", "ReplicaSet", "rs", _REPLICAS),
    _scaled("apps", "statefulsets", "StatefulSet", "sts", _REPLICAS),
    # authentication and authorization
    _review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    _review("authentication.k8s.io", "tokenreviews", "TokenReview"),
    _R("authorization.k8s.io", "v1", "localsubjectaccessreviews", "LocalSubjectAccessReview", verbs=CREATE_ONLY),
    _review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    _review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    _review("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview"),
    _R("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    _R("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    _R("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    _R("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    # the rest
    _R(
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
        short_names=("hpa",),
        categories=_ALL,
        subresources=("status",),
        columns=_AUTOSCALER,
    ),
    _R(
        "batch",
        "v1",
        "cronjobs",
        "CronJob",
        short_names=("cj",),
        categories=_ALL,
        subresources=("status",),
        generation=True,
    ),
    _R("batch", "v1", "jobs", "Job", categories=_ALL, subresources=("status",), generation=True),
    _R("networking.k8s.io", "v1", "ipaddresses", "IPAddress", namespaced=False, short_names=("ip",), columns=_IP),
    _R("coordination.k8s.io", "v1", "leases", "Lease", columns=_LEASE),
    _R("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    _R("events.k8s.io", "v1", "events", "Event", short_names=("ev",)),
    _R("networking.k8s.io", "v1", "ingresses", "Ingress", short_names=("ing",), subresources=("status",)),
    _R(
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        namespaced=False,
    ),
    _R("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short_names=("netpol",)),
    _R(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        namespaced=False,
        subresources=("status",),
        generation=True,
    ),
    _R(
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        namespaced=False,
    ),
    _R("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False),
    _R(
        "policy",
        "v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        short_names=("pdb",),
        subresources=("status",),
        generation=True,
    ),
    _R("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short_names=("pc",)),
    _R("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False),
    _R("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False),
    _R("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity"),
    _R("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False, short_names=("sc",)),
    _R(
        "storage.k8s.io",
        "v1",
        "volumeattachments",
        "VolumeAttachment",
        namespaced=False,
        subresources=("status",),
    ),
)
"""Every resource of the table, in the order in which discovery lists them."""
