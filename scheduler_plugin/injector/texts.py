"""All texts of ``autoscale-injector``: warnings and refusals, readiness and log lines. Pure.

Texts with fields are templates for ``str.format``; mypy checks the fields. The keeper of certificates, which other
programs run as well, has its own texts.
"""

from __future__ import annotations

from typing import Final

# To those who create pods of VMs

REFUSED: Final = "autoscaling: {why}"
NO_AGENT: Final = "autoscaling: the VM has no agent: {why}"
FAILED: Final = "autoscaling: the injector failed, see its log; the pod is created as it is"
VOLUMES_TAKEN: Final = "the pod uses names of the agent's volumes: {names}"
OWN_ACCOUNT: Final = "its pod has the service account {account}, and agents use {own}"
NO_ACCOUNT: Final = "namespace {namespace} has no service account {account} for it (agent-sidecar.yaml)"
ACCOUNT_UNREADABLE: Final = "the service account {account} cannot be read: {error}"
NOT_A_REVIEW: Final = "expected an AdmissionReview of admission.k8s.io/v1: {error}"

# To those who create pods with a postgres

NOT_RESIZED: Final = "autoscaling: postgres is not resized: {why}"

# Why no agent is injected, or the webhook is not ready

VERSION_UNKNOWN: Final = "the version of Kubernetes is not known yet: no agent is injected"
VERSION_UNREADABLE: Final = "the version of Kubernetes cannot be read: {error}"
OLD_KUBERNETES: Final = "native sidecars need Kubernetes {least} or later, this is {version}: no agent is injected"
UNNAMED_VERSION: Final = "of an unknown version"
NO_CERTIFICATE: Final = "the webhook has no certificate yet"
NO_AUTHORITY: Final = "no ca.crt names an authority that is valid"

# Log lines

WITHOUT_AGENT: Final = "a VM's pod is made without an agent"
POD_UNCHANGED: Final = "the injector failed, a pod is created as it is"
POD_UNREADABLE: Final = "a pod opted in, and cannot be resized"
POD_REFUSED: Final = "a VM's pod is refused"
NO_AGENTS: Final = "no agents are injected"
TURN_FAILED: Final = "checking certificates failed, trying again"
AUTHORITIES_PUBLISHED: Final = "authorities published"
WEBHOOK_TRUSTED: Final = "the API server trusts the webhook"
LEASE_HELD: Final = "holds the Lease"
LEASE_LOST: Final = "does not hold the Lease"
