"""Settings files of a node's kubelet, containerd, CNI and kube-proxy, at ``NODE_FILES`` inside the node (pure)."""

from __future__ import annotations

import json
from typing import Final

import yaml

from deploy.local.kubernetes.plan.cluster_plan import (
    CONTAINERD_SOCKET,
    DNS_SERVICE,
    DOMAIN,
    NODE_FILES,
    PAUSE_IMAGE,
    POD_RANGE,
    ClusterPlan,
    NodePlan,
)
from protocol.kubernetes.objects import Json

MAX_PODS: Final = 110


def node_files(plan: ClusterPlan, node: NodePlan) -> dict[str, str]:
    """Content of each settings file, by path in the node's folder."""
    return {
        "kubelet.yaml": kubelet_settings(plan, node),
        "containerd.toml": containerd_settings(),
        "cni/10-pods.conflist": cni_settings(node),
        "kube-proxy.yaml": kube_proxy_settings(node),
        # The machine's name servers are not reachable from the cluster.
        "resolv.conf": "",
        "cpus": f"{plan.visible_size(node).cpu.whole_cpus}\n",
    }


def kubelet_settings(plan: ClusterPlan, node: NodePlan) -> str:
    """The kubelet's configuration."""
    # The kubelet's capacity is the whole machine; a reservation reduces what is allocatable.
    reserved = plan.visible_size(node).minus_or_zero(node.size)
    settings: Json = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": 10250,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{NODE_FILES}/ca.pem"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{NODE_FILES}/kubelet.crt",
        "tlsPrivateKeyFile": f"{NODE_FILES}/kubelet.key",
        "rotateCertificates": False,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DOMAIN,
        "resolvConf": f"{NODE_FILES}/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "registerNode": True,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.node_cgroup(node)}",
        "failCgroupV1": False,
        # The machine may have swap.
        "failSwapOn": False,
        # The reservation needs no enforcement.
        "enforceNodeAllocatable": [],
        "systemReserved": {"cpu": reserved.cpu.quantity(), "memory": reserved.mem.quantity()},
        # The disk is shared with the machine: if it is full, do not evict pods or remove images.
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "localStorageCapacityIsolation": False,
        "maxPods": MAX_PODS,
        "nodeStatusUpdateFrequency": "5s",
        "shutdownGracePeriod": "0s",
    }
    return _yaml(settings)


def containerd_settings() -> str:
    """containerd's configuration.

    ``restrict_oom_score_adj``: start sandboxes without the permission to lower OOM scores.
    ``disable_apparmor``: a loaded profile would outlive the cluster.
    ``device_ownership_from_security_context``: a pod's devices belong to its user.
    """
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  device_ownership_from_security_context = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
  conf_dir = "/etc/cni/net.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "runc"
  SystemdCgroup = false
"""


def cni_settings(node: NodePlan) -> str:
    """CNI configuration: a point-to-point link for each pod, no bridge."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pod_subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni-addresses",
    }
    plugins = [
        # No bridge: traffic between pods of a node must be routed, so that replies pass kube-proxy's NAT.
        {"type": "ptp", "ipMasq": False, "ipam": addresses},
        {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}, indent=2) + "\n"


def kube_proxy_settings(node: NodePlan) -> str:
    """kube-proxy's configuration."""
    # Conntrack limits are machine-wide; zero leaves them unchanged.
    unchanged = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return _yaml(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": f"{NODE_FILES}/kube-proxy.kubeconfig"},
            "hostnameOverride": node.name,
            "clusterCIDR": POD_RANGE,
            "bindAddress": node.address,
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "conntrack": unchanged,
        }
    )


def _yaml(settings: Json) -> str:
    return yaml.safe_dump(settings, sort_keys=False)
