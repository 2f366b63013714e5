"""Resources of the Kubernetes API, their paths, and the content types of patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from protocol import names

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"


def escaped(part: str) -> str:
    """Escape one segment of a URL path, including ``.`` and ``..``, which clients would resolve.

    >>> escaped("a/b"), escaped(".."), escaped("db.1")
    ('a%2Fb', '%2E%2E', 'db.1')
    """
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource: its API group (empty for the core group), version, and names."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of this kind's objects.

        >>> PODS.api_version, VIRTUAL_MACHINES.api_version
        ('v1', 'vm.neon.tech/v1')
        """
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """The path of the API group and version.

        >>> PODS.prefix
        '/api/v1'
        """
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str | None = None, subresource: str = "") -> str:
        """The path of the collection, of one object, or of a subresource; names are escaped.

        Raises ``ValueError`` if ``name`` is empty: that would be the path of the collection.

        >>> PODS.path()
        '/api/v1/pods'
        >>> PODS.path("default", "db-1", "binding")
        '/api/v1/namespaces/default/pods/db-1/binding'
        >>> NODES.path(name="../secrets")
        '/api/v1/nodes/..%2Fsecrets'
        >>> NODES.path(name="..")
        '/api/v1/nodes/%2E%2E'
        """
        if name == "":
            raise ValueError(f"a {self.kind} without a name has no path")
        # Without a namespace, this is the collection in all namespaces.
        scope = ("namespaces", namespace) if self.namespaced and namespace else ()
        parts = (*scope, self.plural, *(part for part in (name, subresource) if part))
        return "/".join((self.prefix, *(escaped(part) for part in parts)))


PODS: Final = Resource("", "v1", "pods", "Pod")
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
EVENTS: Final = Resource("", "v1", "events", "Event")
NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
PERSISTENT_VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SETS: Final = Resource("apps", "v1", "daemonsets", "DaemonSet")
REPLICA_SETS: Final = Resource("apps", "v1", "replicasets", "ReplicaSet")
HORIZONTAL_AUTOSCALERS: Final = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
VERTICAL_AUTOSCALERS: Final = Resource("autoscaling.k8s.io", "v1", "verticalpodautoscalers", "VerticalPodAutoscaler")
HVPAS: Final = Resource("autoscaling.k8s.io", "v1alpha1", "hvpas", "Hvpa")
CNPG_CLUSTERS: Final = Resource("postgresql.cnpg.io", "v1", "clusters", "Cluster")
TORTOISES: Final = Resource("autoscaling.mercari.com", "v1beta3", "tortoises", "Tortoise")
TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
VIRTUAL_MACHINES: Final = Resource(names.VM_GROUP, names.VM_VERSION, names.VM_PLURAL, "VirtualMachine")
MIGRATIONS: Final = Resource(names.VM_GROUP, names.VM_VERSION, names.MIGRATION_PLURAL, "VirtualMachineMigration")
VM_GROUPS: Final = Resource(names.GROUP_GROUP, names.GROUP_VERSION, names.GROUP_PLURAL, names.GROUP_KIND)
IP_ADDRESSES: Final = Resource("networking.k8s.io", "v1", "ipaddresses", "IPAddress", namespaced=False)
SERVICES: Final = Resource("", "v1", "services", "Service")
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
MUTATING_WEBHOOKS: Final = Resource(
    *("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    namespaced=False,
)
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)

VERSION_PATH: Final = "/version"
"""Path of the API server's version."""
