"""The command lines of the control plane and of a node's programs (pure).

- Nothing listens outside of the cluster's namespaces; in the control plane's, all but the API server is on loopback.
- Every program shows a certificate of its own, and has only the rights of its own user.
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
    """One member."""
    # A single member has no peers; the address keeps the port on loopback.
    peer = "http://127.0.0.1:2380"
    return [
        "--name=control",
        f"--data-dir={data}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=control={peer}",
        # What is not yet on the disk is lost with the machine, but so is the cluster.
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(pki: str) -> list[str]:
    """The API server. ``pki`` is the folder of keys and certificates."""
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
        # No DNS knows the host names of nodes.
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-proxy/ca.pem",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={pki}/front-proxy-client.key",
        # No kube-proxy runs beside it: it reaches the pods behind a Service itself.
        "--enable-aggregator-routing=true",
        "--profiling=false",
    ]


def controller_manager(pki: str) -> list[str]:
    """All controllers but those of a cloud."""
    return [
        *_follower(f"{pki}/controller-manager.kubeconfig"),
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={pki}/service-accounts.key",
        f"--root-ca-file={pki}/ca.pem",
        f"--cluster-signing-cert-file={pki}/ca.pem",
        f"--cluster-signing-key-file={pki}/ca.key",
        f"--cluster-cidr={POD_RANGE}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        # The plan assigns the pod subnets.
        "--allocate-node-cidrs=false",
        "--controllers=*,-node-ipam-controller,-node-route-controller,-service-lb-controller",
        # Four updates of the kubelet, which posts its status every 5 s here.
        "--node-monitor-grace-period=20s",
        # Kubernetes' default is 15 s; with a shorter period people see an HPA act sooner.
        "--horizontal-pod-autoscaler-sync-period=5s",
    ]


def scheduler(pki: str) -> list[str]:
    """The default kube-scheduler."""
    return _follower(f"{pki}/scheduler.kubeconfig")


def _follower(kubeconfig: str) -> list[str]:
    users = [f"--{use}kubeconfig={kubeconfig}" for use in ("", "authentication-", "authorization-")]
    # There is only one instance, so an election would only delay its start.
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
