"""Extended resources that make a node expensive: GPUs and slices of them, Gaudi, Neuron, TPUs and others (S2.7)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_ORDINARY: Final = frozenset(
    {
        "autoscaling.neon.tech",  # devices of guests
        "devices.kubevirt.io",  # /dev/kvm, tun, vhost-net
        "kubernetes.azure.com",  # MiB of enclaves (sgx_epc_mem_in_MiB)
        "networking.gke.io.networks",  # addresses in each network of a node with several
        "sgx.intel.com",  # bytes of enclaves (epc)
        "smarter-devices",  # device files of the host, such as /dev/fuse
        "vpc.amazonaws.com",  # network interfaces and addresses of every EC2 instance
    }
)
"""Domains whose resources ordinary nodes offer at no extra price."""


@lru_cache(maxsize=4096)
def is_accelerator(resource: str) -> bool:
    """Return True for an extended resource (``domain/name``), unless ordinary nodes offer it too.

    >>> [is_accelerator(name) for name in ("nvidia.com/mig-1g.5gb", "google.com/tpu", "hugepages-2Mi", "memory")]
    [True, True, False, False]
    """
    domain, slash, _ = resource.partition("/")
    # kubernetes.io and its subdomains are reserved for resources of Kubernetes itself.
    is_native = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    return bool(slash) and not is_native and domain not in _ORDINARY
