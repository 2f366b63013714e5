"""A release whose certificates cert-manager itself makes: installed, over to a new key of its authority, and out."""

from __future__ import annotations

import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from tests.deploy.manifests import ROOT
from tests.kubernetes.adoption.cert_manager import AUTHORITY, CertManager, cert_manager
from tests.kubernetes.adoption.release import NAMESPACE, Release, telling
from tests.kubernetes.adoption.steps import (
    EMULATED,
    answers,
    deleted,
    installed,
    is_available,
    is_in_order,
    nothing_of_ours_is_left,
    pods_of_vm,
    resized,
)
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually

pytestmark = pytest.mark.kubernetes

KUBELET_BRINGS = 240.0
"""Seconds until programs show what has been signed anew: a kubelet brings files within two minutes."""

SIGNED = {f"{AUTHORITY}-{name}" for name in ("injector", "kube-scheduler", "scheduler")}


def test_vms_scale_during_cert_manager_key_rotation(release: Release, tmp_path: Path) -> None:
    cluster = release.cluster
    with telling(cluster), cert_manager(cluster, tmp_path) as signer:
        installed(release, "--create-namespace", "--set=certificates.provider=cert-manager")
        is_in_order(release)
        assert signer.certificates() == SIGNED
        cluster.kubectl("apply", f"--filename={ROOT / 'vm-deploy.yaml'}")
        eventually(lambda: is_available(cluster), "the VM is available", 240.0)
        resized(cluster, 2)
        pods = pods_of_vm(cluster)
        goes_over_to_a_new_key(cluster, signer)
        answers(release)
        is_in_order(release, KUBELET_BRINGS, but=EMULATED)
        resized(cluster, 3)
        assert pods_of_vm(cluster) == pods
        deleted(cluster)
        release.helm("uninstall", "--wait", "--timeout=2m")
        signer.secrets_are_taken_away()
        nothing_of_ours_is_left(release)


def goes_over_to_a_new_key(cluster: RealKubernetes, signer: CertManager) -> None:
    """As in docs/operations-certificates.md: all agents trust both CAs, kube-scheduler reads both, then the rest."""
    began = time.monotonic()
    before = signer.shown(AUTHORITY)
    signer.signs_with_a_new_key()
    eventually(lambda: len(trusted(cluster)) == 2, "both authorities are trusted")
    (after,) = trusted(cluster) - {before}
    for each in ("restart", "status"):
        cluster.kubectl("rollout", each, "deployment/autoscaling-scheduler", f"--namespace={NAMESPACE}")
    assert signed_by(signer, before) == SIGNED
    for name in SIGNED:
        signer.renews(name)
    eventually(lambda: signed_by(signer, after) == SIGNED, "the new key has signed them all")
    print(f"all is signed by the new key after {time.monotonic() - began:.0f} s")


def trusted(cluster: RealKubernetes) -> Set[x509.Certificate]:
    """The CAs that agents trust."""
    found = cluster.get("configmap", "autoscaling-ca", f"--namespace={NAMESPACE}")["data"]["ca.crt"]
    return set(x509.load_pem_x509_certificates(found.encode()))


def signed_by(signer: CertManager, authority: x509.Certificate) -> Set[str]:
    """The certificates that the CA has signed."""
    found = set()
    for name in SIGNED:
        with suppress(InvalidSignature):
            signer.shown(name).verify_directly_issued_by(authority)
            found.add(name)
    return found
