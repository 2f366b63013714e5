"""Table of the built-in resources.

They are served as by Kubernetes, but ``garbage_collector`` is their only controller, and they have no schemas:
Deployments and Jobs, for example, are only stored. Rules of single resources are in ``strategies``.
"""

from __future__ import annotations

from typing import Any, Final

from deploy.local.apiserver.resources.resource import CREATE_ONLY, ONE_BY_ONE, ScalePaths, ServedResource, TableColumn

_AGE: Final = TableColumn("Age", ".metadata.creationTimestamp", "date")
_ADMISSION: Final = "admissionregistration.k8s.io"
_SCALABLE: Final = ("status", "scale")
_ALL: Final = ("all",)
_STATUS: Final = ("status",)
_EVENT_FIELDS: Final = (
    *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion")),
    *("involvedObject.resourceVersion", "involvedObject.fieldPath"),
    *("reason", "reportingComponent", "source", "type"),
)
_POD_FIELDS: Final = (
    *(f"spec.{name}" for name in ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork")),
    *(f"status.{name}" for name in ("phase", "podIP", "nominatedNodeName")),
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


def _kind(group: str, plural: str, kind: str, short_names: str = "", **properties: Any) -> ServedResource:
    """A resource, by default in version v1; ``short_names`` are separated by spaces."""
    version = properties.pop("version", "v1")
    return ServedResource(group, version, plural, kind, short_names=tuple(short_names.split()), **properties)


def _cluster_kind(group: str, plural: str, kind: str, short_names: str = "", **properties: Any) -> ServedResource:
    return _kind(group, plural, kind, short_names, namespaced=False, **properties)


def _workload(plural: str, kind: str, short_name: str, group: str = "apps", **properties: Any) -> ServedResource:
    return _kind(group, plural, kind, short_name, categories=_ALL, generation=True, **properties)


def _scaled(
    plural: str, kind: str, short_name: str, columns: tuple[TableColumn, ...], group: str = "apps"
) -> ServedResource:
    """A workload with a ``scale`` subresource."""
    # Workloads have their selector in the spec, custom resources usually in the status.
    scale = ScalePaths(selector="spec.selector")
    return _workload(plural, kind, short_name, group, subresources=_SCALABLE, scale=scale, columns=columns)


def _review(group: str, plural: str, kind: str, *, namespaced: bool = False) -> ServedResource:
    return _kind(group, plural, kind, namespaced=namespaced, verbs=CREATE_ONLY)


BUILTINS: Final[tuple[ServedResource, ...]] = (
    # core
    _kind("", "bindings", "Binding", verbs=CREATE_ONLY),
    _kind("", "configmaps", "ConfigMap", "cm", columns=_CONFIG),
    _kind("", "endpoints", "Endpoints", "ep"),
    _kind("", "events", "Event", "ev", selectable=_EVENT_FIELDS, columns=_EVENT),
    _kind("", "limitranges", "LimitRange", "limits"),
    _cluster_kind(
        *("", "namespaces", "Namespace", "ns"),
        subresources=("status", "finalize"),
        # Namespaces cannot be deleted as a collection.
        verbs=ONE_BY_ONE,
        selectable=("status.phase",),
        columns=(TableColumn("Status", ".status.phase"), _AGE),
    ),
    _cluster_kind("", "nodes", "Node", "no", subresources=_STATUS, selectable=("spec.unschedulable",), columns=_NODE),
    _kind("", "persistentvolumeclaims", "PersistentVolumeClaim", "pvc", subresources=_STATUS),
    _cluster_kind("", "persistentvolumes", "PersistentVolume", "pv", subresources=_STATUS),
    _workload(
        *("pods", "Pod", "po", ""),
        subresources=("status", "binding", "eviction", "resize"),
        selectable=_POD_FIELDS,
        columns=_POD,
    ),
    _kind("", "podtemplates", "PodTemplate"),
    _scaled("replicationcontrollers", "ReplicationController", "rc", _REPLICAS, ""),
    _kind("", "resourcequotas", "ResourceQuota", "quota", subresources=_STATUS),
    _kind("", "secrets", "Secret", selectable=("type",), columns=_SECRET),
    _kind("", "serviceaccounts", "ServiceAccount", "sa", subresources=("token",)),
    _kind(
        *("", "services", "Service", "svc"),
        categories=_ALL,
        subresources=_STATUS,
        selectable=("spec.clusterIP", "spec.type"),
        columns=_SERVICE,
    ),
    # apiextensions
    _cluster_kind(
        *("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "crd crds"),
        categories=("api-extensions",),
        subresources=_STATUS,
        columns=(TableColumn("Created At", ".metadata.creationTimestamp"),),
        generation=True,
    ),
    # apps
    _kind("apps", "controllerrevisions", "ControllerRevision"),
    _workload("daemonsets", "DaemonSet", "ds", subresources=_STATUS, columns=_DAEMON_SET),
    _scaled("deployments", "Deployment", "deploy", _DEPLOYMENT),
    _scaled("replicasets", "ReplicaSet", "rs", _REPLICAS),
    _scaled("statefulsets", "StatefulSet", "sts", _REPLICAS),
    # authentication and authorization
    _review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview"),
    _review("authentication.k8s.io", "tokenreviews", "TokenReview"),
    _review("authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview", namespaced=True),
    _review("authorization.k8s.io", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    _review("authorization.k8s.io", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    _review("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview"),
    _cluster_kind("rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBinding"),
    _cluster_kind("rbac.authorization.k8s.io", "clusterroles", "ClusterRole"),
    _kind("rbac.authorization.k8s.io", "rolebindings", "RoleBinding"),
    _kind("rbac.authorization.k8s.io", "roles", "Role"),
    # the rest
    _kind(
        *("autoscaling", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "hpa"),
        version="v2",
        categories=_ALL,
        subresources=_STATUS,
        columns=_AUTOSCALER,
    ),
    _workload("cronjobs", "CronJob", "cj", "batch", subresources=_STATUS),
    _workload("jobs", "Job", "", "batch", subresources=_STATUS),
    _cluster_kind("networking.k8s.io", "ipaddresses", "IPAddress", "ip", columns=_IP),
    _kind("coordination.k8s.io", "leases", "Lease", columns=_LEASE),
    _kind("discovery.k8s.io", "endpointslices", "EndpointSlice"),
    _kind("events.k8s.io", "events", "Event", "ev"),
    _kind("networking.k8s.io", "ingresses", "Ingress", "ing", subresources=_STATUS),
    _cluster_kind(_ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    _kind("networking.k8s.io", "networkpolicies", "NetworkPolicy", "netpol"),
    _cluster_kind(
        _ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", subresources=_STATUS, generation=True
    ),
    _cluster_kind(_ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    _cluster_kind("node.k8s.io", "runtimeclasses", "RuntimeClass"),
    _kind("policy", "poddisruptionbudgets", "PodDisruptionBudget", "pdb", subresources=_STATUS, generation=True),
    _cluster_kind("scheduling.k8s.io", "priorityclasses", "PriorityClass", "pc"),
    _cluster_kind("storage.k8s.io", "csidrivers", "CSIDriver"),
    _cluster_kind("storage.k8s.io", "csinodes", "CSINode"),
    _kind("storage.k8s.io", "csistoragecapacities", "CSIStorageCapacity"),
    _cluster_kind("storage.k8s.io", "storageclasses", "StorageClass", "sc"),
    _cluster_kind("storage.k8s.io", "volumeattachments", "VolumeAttachment", subresources=_STATUS),
)
"""All built-in resources, in the order of discovery."""
