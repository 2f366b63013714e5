"""Gathers the facts that the checks need, concurrently unless one query depends on another."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from deploy.kube.client import ApiClient
from deploy.kube.kubectl import Kubectl
from protocol.kubernetes import resources
from protocol.kubernetes.api import ApiRefusedError, ApiUnknownError
from protocol.kubernetes.objects import Json, name_of, text
from protocol.kubernetes.refusals import RefusalKind
from protocol.names import LABEL_ENABLED, LABEL_VM_NAME, SCHEDULER_NAME
from protocol.runtime.clock import Clock
from scripts.autoscale.check.facts import ApiServerFacts, CheckFacts, Objects, Observation, Observed, Right, Unavailable
from scripts.autoscale.check.gathering import kubelets, ports, program_queries, rights, trials
from scripts.autoscale.check.gathering.observing import objects
from scripts.autoscale.check.installed_programs import SCHEDULER, agent_container, installed, leading_pod
from scripts.autoscale.check.judges.access import command_rights, exercised, install_rights, needed_rights
from scripts.autoscale.check.judges.stored_certificates import has_certificates
from scripts.autoscale.terminal.api_failures import NOT_KUBERNETES, REJECTED, failure_reason

_DEPLOY: Final = Path(__file__).parents[4] / "deploy"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader is ten times as fast, but may be missing."""


@cache
def shipped() -> tuple[Json, ...]:
    """All objects of the shipped manifests, including the rights that a second scheduler needs."""
    folder = _DEPLOY / "kubernetes"
    leader = folder / "with-certificates" / "scheduler-leader.yaml"
    files = (_DEPLOY / "scheduler-deploy.yaml", *sorted(folder.glob("*.yaml")), leader)
    documents = (document for path in files for document in yaml.load_all(path.read_text(), Loader=_LOADER))
    # An empty document (a trailing `---`) is None.
    return tuple(document for document in documents if isinstance(document, dict))


NODE_LEASES: Final = "kube-node-lease"
PLAIN_NAMESPACE: Final = "kube-system"
"""The namespace of the plain manifests."""

NEW_NAMESPACE: Final = "autoscale-system"
"""The namespace in which the documentation installs the chart."""

STAND_IN: Final = "default"
"""The namespace for dry runs of pods while the installation's namespace does not exist."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Gathers facts from the API server and, for port-forwards, with kubectl. An empty ``namespace`` is detected.

    ``notes`` collects remarks on how the cluster was reached.
    """

    client: ApiClient
    kubectl: Kubectl
    clock: Clock
    namespace: str = ""
    release: str = ""
    notes: list[str] = field(default_factory=list)

    async def facts(self, *, before: bool) -> CheckFacts:
        """Makes all observations; those that fail are ``Unavailable``."""
        default, server = NEW_NAMESPACE if before else PLAIN_NAMESPACE, await self._server()
        facts = CheckFacts(self.namespace or default, self.clock.wall(), server, self.release)
        # Without an API server every other query would only time out.
        if isinstance(server, Unavailable):
            return facts
        # Deployments come first: they determine the namespace of the other queries.
        facts = await self._with(
            facts, deployments=self._all(resources.DEPLOYMENTS), daemon_sets=self._all(resources.DAEMON_SETS)
        )
        facts = replace(facts, namespace=self.namespace or namespace_of(facts.deployments) or default)
        facts = await self._list_objects(facts, before=before)
        facts = await self._test_permissions(facts, before=before)
        return facts if before else await self._query_programs(facts)

    async def _server(self) -> Observation[ApiServerFacts]:
        """The API server's version and clock."""
        # The duration is by the monotonic clock: the wall clock may be adjusted meanwhile.
        began = self.clock.now(), self.clock.wall()
        try:
            body, headers = await self.client.raw_response("/version")
        except ApiRefusedError as error:
            if error.kind is RefusalKind.UNAUTHORIZED:
                return Unavailable(REJECTED)
            return Unavailable(f"GET /version failed: {error}")
        except ApiUnknownError as error:
            return Unavailable(failure_reason(error))
        duration = self.clock.now() - began[0]
        try:
            version = text(msgspec.json.decode(body, type=Json), "gitVersion")
        except (ValueError, RecursionError):
            version = ""
        # A proxy or another web server may also answer /version.
        if not version:
            return Unavailable(NOT_KUBERNETES)
        at = _date(headers.get("date", ""))
        # Date is truncated to a second, and was written at some time during the request.
        ahead = None if at is None else began[1] + duration / 2 - (at + 0.5)
        return Observed(ApiServerFacts(version, ahead, 0.5 + duration / 2))

    async def _all(
        self, kind: resources.Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Objects:
        return await objects(self.client, kind, namespace, labels=labels, fields=fields)

    async def _with(self, facts: CheckFacts, **observations: Awaitable[Objects]) -> CheckFacts:
        """Adds observations to the facts, each in the field of its name."""
        outcomes: dict[str, Any] = dict(zip(observations, await asyncio.gather(*observations.values()), strict=True))
        return replace(facts, **outcomes)

    async def _list_objects(self, facts: CheckFacts, *, before: bool) -> CheckFacts:
        """Lists the cluster's objects and, after installing, the installation's."""
        facts = await self._with(
            facts,
            namespaces=self._all(resources.NAMESPACES),
            # The Service `kubernetes` in `default` is the API server's own.
            api_services=self._all(resources.SERVICES, "default", fields="metadata.name=kubernetes"),
            nodes=self._all(resources.NODES),
            node_leases=self._all(resources.LEASES, NODE_LEASES),
            crds=self._all(resources.CUSTOM_RESOURCE_DEFINITIONS),
            database_pods=self._all(resources.PODS, labels=f"{LABEL_ENABLED}=true,!{LABEL_VM_NAME}"),
        )
        core_api, configurations = await asyncio.gather(
            kubelets.core_api(self.client), kubelets.configurations(self.client, facts.database_pods)
        )
        facts = replace(facts, core_api=core_api, kubelets=configurations)
        if before:
            return facts
        facts = await self._with(
            facts,
            pods=self._all(resources.PODS, facts.namespace),
            config_maps=self._all(resources.CONFIG_MAPS, facts.namespace),
            secrets=self._certificates(facts.namespace),
            leases=self._all(resources.LEASES, facts.namespace),
            webhooks=self._all(resources.MUTATING_WEBHOOKS),
            endpoint_slices=self._all(resources.ENDPOINT_SLICES, facts.namespace),
        )
        return await self._with(
            facts,
            vms=self._all(resources.VIRTUAL_MACHINES),
            migrations=self._all(resources.MIGRATIONS),
            vm_pods=self._all(resources.PODS, labels=LABEL_VM_NAME),
            network_policies=self._all(resources.NETWORK_POLICIES),
            waiting_pods=self._all(resources.PODS, fields=f"spec.schedulerName={SCHEDULER_NAME},status.phase=Pending"),
        )

    async def _certificates(self, namespace: str) -> Objects:
        """Our Secrets with certificates."""
        # Lists all Secrets: a field selector cannot match a prefix.
        secrets = await self._all(resources.SECRETS, namespace)
        if isinstance(secrets, Unavailable):
            return secrets
        return Observed([secret for secret in secrets.value if has_certificates(name_of(secret).name)])

    async def _test_permissions(self, facts: CheckFacts, *, before: bool) -> CheckFacts:
        """Tests the user's permissions, and the admission of our pods."""
        namespace = facts.namespace
        to_install = install_rights(namespace, makes_namespace=facts.lacks_namespace)
        own = await rights.own_rights(self.client, to_install if before else command_rights(namespace))
        workloads = [manifest for manifest in shipped() if text(manifest, "kind") in ("Deployment", "DaemonSet")]
        if not before:
            is_listed = not isinstance(facts.deployments, Unavailable) and not isinstance(
                facts.daemon_sets, Unavailable
            )
            workloads = list(installed(facts).values()) if is_listed else []
        # A dry run in a namespace that does not exist is always refused.
        admission_namespace = STAND_IN if before and facts.lacks_namespace else namespace
        admission = await trials.admission(self.client, admission_namespace, workloads, is_installed=not before)
        facts = replace(facts, own_rights=own, admission=admission, admission_namespace=admission_namespace)
        # Before installing there is no webhook that could inject an agent.
        return facts if before else replace(facts, injection=await trials.injection(self.client, facts))

    async def _query_programs(self, facts: CheckFacts) -> CheckFacts:
        """Queries the programs' permissions, metrics, explanations and TLS ports."""
        of_accounts = rights.account_rights(self.client, needed_by_accounts(facts))
        if isinstance(facts.pods, Unavailable):
            return replace(facts, account_rights=await of_accounts)
        pods = facts.pods.value
        has_vms = not isinstance(facts.vms, Unavailable) and not isinstance(facts.vm_pods, Unavailable)
        account_rights, pages = await asyncio.gather(of_accounts, program_queries.pages(self.client, pods, self.notes))
        # Metrics identify the leader, whose ledger and ports are queried next.
        facts = replace(facts, account_rights=account_rights, metrics=pages)
        ledger, (served, reviews) = await asyncio.gather(
            program_queries.ledger(self.client, leading_pod(facts, SCHEDULER)), ports.tls_ports(self.kubectl, facts)
        )
        agents: Observation[Mapping[str, Json | None]] = Unavailable("VMs and their pods could not be listed")
        if has_vms:
            agents = await program_queries.explanations(self.client, facts.vms.value, facts.vm_pods.value, pods)
        return replace(facts, ledger=ledger, agents=agents, served=served, reviews=reviews)


def namespace_of(deployments: Objects) -> str:
    """The scheduler's namespace if there is exactly one, else empty (pure)."""
    schedulers = [] if isinstance(deployments, Unavailable) else deployments.value
    namespaces = {name_of(deployment).namespace for deployment in schedulers if name_of(deployment).name == SCHEDULER}
    return namespaces.pop() if len(namespaces) == 1 else ""


def needed_by_accounts(facts: CheckFacts) -> dict[str, frozenset[Right]]:
    """Rights that the service accounts of existing pods need, of programs and of VMs with a sidecar (pure)."""
    shipped_rights = needed_rights(shipped(), facts.namespace)
    pods = [] if isinstance(facts.pods, Unavailable) else facts.pods.value
    pods_by_account = defaultdict[str, list[Json]](list)
    for pod in pods:
        pods_by_account[f"{facts.namespace}:{text(pod, 'spec', 'serviceAccountName')}"].append(pod)
    rights_by_account = {
        account: exercised(account, granted, pods_by_account[account])
        for account, granted in shipped_rights.items()
        if account in pods_by_account
    }
    # A sidecar uses the rights of the agent's Role in its VM's namespace.
    of_agent = next(
        (granted for account, granted in shipped_rights.items() if account.endswith(f":{trials.AGENT_ACCOUNT}")),
        frozenset(),
    )
    for pod in [] if isinstance(facts.vm_pods, Unavailable) else facts.vm_pods.value:
        if agent_container(pod) is not None:
            namespace = name_of(pod).namespace
            account = f"{namespace}:{text(pod, 'spec', 'serviceAccountName')}"
            rights_by_account[account] = frozenset(
                # Cluster-wide rights have no namespace.
                replace(right, namespace=namespace) if right.namespace else right
                for right in of_agent
            )
    return rights_by_account


def _date(header: str) -> float | None:
    try:
        return parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError):
        return None
