"""All texts of ``autoscale-injector``: warnings and refusals, readiness and log lines. Pure.

Some texts are templates for ``str.format``, whose fields mypy checks. The keeper of certificates, which other programs
use too, has its own texts.
"""

from __future__ import annotations

from typing import Final

# Warnings and refusals to the creator of a VM's pod

REFUSED: Final = "autoscaling: {why}"
NO_AGENT: Final = "autoscaling: no agent injected: {why}"
FAILED: Final = "autoscaling: internal error, see the injector's log; the pod is created unchanged"
VOLUMES_TAKEN: Final = "the pod uses names of the agent's volumes: {names}"
OWN_ACCOUNT: Final = "the pod has the service account {account}, but an agent needs {own}"
NO_ACCOUNT: Final = "namespace {namespace} has no service account {account} (apply agent-sidecar.yaml)"
ACCOUNT_UNREADABLE: Final = "the service account {account} cannot be read: {error}"
NOT_A_REVIEW: Final = "expected an AdmissionReview of admission.k8s.io/v1: {error}"

# Warnings to the creator of a pod of either kind

TOO_LARGE: Final = "autoscaling: the pod has more than {most} values and is created unchanged"

# Warnings to the creator of a postgres pod

NOT_RESIZED: Final = "autoscaling: postgres is not resized: {why}"

# Why no agent is injected, or the webhook is not ready

VERSION_UNKNOWN: Final = "the Kubernetes version is not known yet: no agent is injected"
VERSION_UNREADABLE: Final = "cannot read the Kubernetes version: {error}"
OLD_KUBERNETES: Final = "native sidecars need Kubernetes {least} or later, this is {version}: no agent is injected"
TIMED_OUT: Final = "timed out"
UNNAMED_VERSION: Final = "an unknown version"
NO_CERTIFICATE: Final = "the webhook has no certificate yet"
NO_AUTHORITY: Final = "no ca.crt contains a valid CA certificate"

# Log lines

WITHOUT_AGENT: Final = "VM pod created without an agent"
POD_UNCHANGED: Final = "internal error; pod created unchanged"
POD_UNREADABLE: Final = "an opted-in pod cannot be resized"
POD_TOO_LARGE: Final = "pod too large to read; created unchanged"
POD_REFUSED: Final = "VM pod refused"
NO_AGENTS: Final = "no agents are injected"
TURN_FAILED: Final = "checking certificates failed; retrying"
AUTHORITIES_PUBLISHED: Final = "CA bundle published"
WEBHOOK_TRUSTED: Final = "the API server trusts the webhook"
