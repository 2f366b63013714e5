"""Command lines of the control plane and of a node's programs (pure).

- All programs listen in the cluster's network namespaces only; in the control plane's, only the API server listens on
  another address than loopback.
- Each program has its own certificate, and only its user's permissions.
"""

from __future__ import annotations

from deploy.local.kubernetes.plan.cluster_plan import (
    API_PORT,
    CONTROL_HOST,
    ETCD_PORT,
    ISSUER,
    NODE_FILES,
    POD_RANGE,
    SERVICE_RANGE,
    NodePlan,
)

ETCD_URL = f"http://127.0.0.1:{ETCD_PORT}"


def etcd(data: str) -> list[str]:
    """A single-member etcd."""
    # There are no peers; this only keeps the port on loopback.
    peer = "http://127.0.0.1:2380"
    return [
        "--name=control",
        f"--data-dir={data}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=control={peer}",
        # The cluster does not survive a crash of the machine anyway.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(pki: str) -> list[str]:
    """kube-apiserver; ``pki`` is the folder of keys and certificates."""
    return [
        f"--bind-address={CONTROL_HOST}",
        f"--advertise-address={CONTROL_HOST}",
        f"--secure-port={API_PORT}",
        f"--etcd-servers={ETCD_URL}",
        f"--tls-cert-file={pki}/api-server.crt",
        f"--tls-private-key-file={pki}/api-server.key",
        f"--client-ca-file={pki}/ca.pem",
        f"--token-auth-file={pki}/tokens.csv",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        f"--service-account-key-file={pki}/service-accounts.pub",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=true",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--kubelet-certificate-authority={pki}/ca.pem",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        # The nodes' host names are not in DNS.
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-proxy/ca.pem",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
        # No kube-proxy runs here, so the API server cannot reach Service IPs.
        "--enable-aggregator-routing=true",
        "--profiling=false",
    ]


def controller_manager(pki: str) -> list[str]:
    """kube-controller-manager, without cloud controllers."""
    return [
        *_client_flags(f"{pki}/controller-manager.kubeconfig"),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--root-ca-file={pki}/ca.pem",
        f"--cluster-signing-cert-file={pki}/ca.pem",
        f"--cluster-signing-key-file={pki}/ca.key",
        f"--cluster-cidr={POD_RANGE}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        # The plan assigns pod CIDRs.
        "--allocate-node-cidrs=false",
        "--controllers=*,-node-ipam-controller,-node-route-controller,-service-lb-controller",
        # Four missed status updates of the kubelet.
        "--node-monitor-grace-period=20s",
        # The default is 15 s; shorter for demonstrations.
        "--horizontal-pod-autoscaler-sync-period=5s",
    ]


def scheduler(pki: str) -> list[str]:
    """kube-scheduler with its default profile."""
    return _client_flags(f"{pki}/scheduler.kubeconfig")


def _client_flags(kubeconfig: str) -> list[str]:
    users = [f"--{use}kubeconfig={kubeconfig}" for use in ("", "authentication-", "authorization-")]
    # One instance only: an election would delay its start.
    return [*users, "--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false"]


def kubelet(node: NodePlan) -> list[str]:
    """A node's kubelet."""
    return [
        f"--config={NODE_FILES}/kubelet.yaml",
        f"--kubeconfig={NODE_FILES}/kubelet.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        "--root-dir=/var/lib/kubelet",
    ]


def kube_proxy() -> list[str]:
    """A node's kube-proxy."""
    return [f"--config={NODE_FILES}/kube-proxy.yaml"]


def containerd() -> list[str]:
    """A node's containerd."""
    return [f"--config={NODE_FILES}/containerd.toml"]
