"""Gathers everything that the checks need, concurrently unless one look depends on another."""

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
from scripts.autoscale.check.facts import ApiServerFacts, CheckFacts, Look, Objects, Right, SiteObservations, Unseen
from scripts.autoscale.check.gathering import accounts, kubelets, ports, rights, trials
from scripts.autoscale.check.gathering.looking import objects, why_not
from scripts.autoscale.check.installed_programs import SCHEDULER, agent_container, installed, leading_pod
from scripts.autoscale.check.judges.access import command_rights, exercised, install_rights, needed_rights
from scripts.autoscale.check.judges.stored_certificates import has_certificates

_DEPLOY: Final = Path(__file__).parents[4] / "deploy"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's if there is one: ten times as fast."""


@cache
def shipped() -> tuple[Json, ...]:
    """Every object of them, with the rights that a second scheduler adds. The files are the project's own, so an
    ordinary YAML loader reads them.
    """
    folder = _DEPLOY / "kubernetes"
    leader = folder / "with-certificates" / "scheduler-leader.yaml"
    files = (_DEPLOY / "scheduler-deploy.yaml", *sorted(folder.glob("*.yaml")), leader)
    documents = (document for path in files for document in yaml.load_all(path.read_text(), Loader=_LOADER))
    # An empty document (a trailing `---`) is None.
    return tuple(document for document in documents if isinstance(document, dict))


NODE_LEASES: Final = "kube-node-lease"
PLAIN_NAMESPACE: Final = "kube-system"
"""Where the plain manifests go."""

NEW_NAMESPACE: Final = "autoscale-system"
"""The documentation installs the chart there."""

STAND_IN: Final = "default"
"""Pods are tried there while the installation's namespace is not there yet."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Sources: the API, kubectl for what only it can show, and our calendar. An empty ``namespace`` means: find it.

    ``notes`` collects remarks on how the cluster was reached.
    """

    client: ApiClient
    kubectl: Kubectl
    clock: Clock
    namespace: str = ""
    release: str = ""
    notes: list[str] = field(default_factory=list)

    async def facts(self, *, before: bool) -> CheckFacts:
        """Everything that can be seen now. Never raises for what cannot."""
        usual, server = NEW_NAMESPACE if before else PLAIN_NAMESPACE, await self._server()
        # Without an API server every other look would only time out.
        if isinstance(server, Unseen):
            return CheckFacts(self.namespace or usual, self.clock.wall(), server, self.release)
        # Deployments go first: they tell the namespace in which everything else is looked for.
        facts = CheckFacts(self.namespace or usual, self.clock.wall(), server, self.release)
        facts = await self._with(
            facts, deployments=self._all(resources.DEPLOYMENTS), daemon_sets=self._all(resources.DAEMON_SETS)
        )
        facts = replace(facts, namespace=self.namespace or namespace_of(facts.deployments) or usual)
        facts = await self._listed(facts, before=before)
        facts = await self._tried(facts, before=before)
        return facts if before else await self._told(facts)

    async def _server(self) -> Look[ApiServerFacts]:
        """The API server's version, and our calendar against its own."""
        # The monotonic clock measures how long the answer takes; the wall clock may be set meanwhile.
        began = self.clock.now(), self.clock.wall()
        try:
            body, headers = await self.client.raw_response("/version")
        except ApiRefusedError as error:
            if error.kind is RefusalKind.UNAUTHORIZED:
                return Unseen("the API server rejected these credentials (401); they may have expired")
            return Unseen(f"GET /version failed: {error}")
        except ApiUnknownError as error:
            return Unseen(why_not(error))
        took = self.clock.now() - began[0]
        try:
            version = text(msgspec.json.decode(body, type=Json), "gitVersion")
        except (ValueError, RecursionError):
            version = ""
        # A proxy or another web server can answer /version, too.
        if not version:
            return Unseen("the server at this address is not a Kubernetes API server")
        at = _date(headers.get("date", ""))
        # Its Date is cut to the second, and was written at some moment while we waited.
        ahead = None if at is None else began[1] + took / 2 - (at + 0.5)
        return SiteObservations(ApiServerFacts(version, ahead, 0.5 + took / 2))

    async def _all(
        self, kind: resources.Resource, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> Objects:
        return await objects(self.client, kind, namespace, labels=labels, fields=fields)

    async def _with(self, facts: CheckFacts, **looks: Awaitable[Objects]) -> CheckFacts:
        """The facts with the outcome of these looks, each in the field of its name."""
        outcomes: dict[str, Any] = dict(zip(looks, await asyncio.gather(*looks.values()), strict=True))
        return replace(facts, **outcomes)

    async def _listed(self, facts: CheckFacts, *, before: bool) -> CheckFacts:
        """Objects that exist before an installation, too, and those of the installation."""
        facts = await self._with(
            facts,
            namespaces=self._all(resources.NAMESPACES),
            # The Service `kubernetes` in `default` is the API server's own.
            api_services=self._all(resources.SERVICES, "default", fields="metadata.name=kubernetes"),
            nodes=self._all(resources.NODES),
            node_leases=self._all(resources.LEASES, NODE_LEASES),
            definitions=self._all(resources.CUSTOM_RESOURCE_DEFINITIONS),
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
            slices=self._all(resources.ENDPOINT_SLICES, facts.namespace),
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
        # All are listed: a field selector cannot match the beginning of a name.
        secrets = await self._all(resources.SECRETS, namespace)
        if isinstance(secrets, Unseen):
            return secrets
        return SiteObservations([secret for secret in secrets.value if has_certificates(name_of(secret).name)])

    async def _tried(self, facts: CheckFacts, *, before: bool) -> CheckFacts:
        """Rights, and whether pods are admitted."""
        namespace = facts.namespace
        to_install = install_rights(namespace, makes_namespace=facts.lacks_namespace)
        own = await rights.own_rights(self.client, to_install if before else command_rights(namespace))
        workloads = [manifest for manifest in shipped() if text(manifest, "kind") in ("Deployment", "DaemonSet")]
        if not before:
            is_listed = not isinstance(facts.deployments, Unseen) and not isinstance(facts.daemon_sets, Unseen)
            workloads = list(installed(facts).values()) if is_listed else []
        # A dry run in a namespace that does not exist is refused for that reason alone.
        tried_in = STAND_IN if before and facts.lacks_namespace else namespace
        admission = await trials.admission(self.client, tried_in, workloads, is_installed=not before)
        facts = replace(facts, own_rights=own, admission=admission, tried_in=tried_in)
        # Before the installation there is no webhook that could inject an agent.
        return facts if before else replace(facts, injection=await trials.injection(self.client, facts))

    async def _told(self, facts: CheckFacts) -> CheckFacts:
        """Rights of programs, their metrics and explanations, and the certificates of their ports."""
        of_accounts = rights.account_rights(self.client, wanted_by_accounts(facts))
        if isinstance(facts.pods, Unseen):
            return replace(facts, account_rights=await of_accounts)
        pods = facts.pods.value
        has_vms = not isinstance(facts.vms, Unseen) and not isinstance(facts.vm_pods, Unseen)
        account_rights, pages = await asyncio.gather(of_accounts, accounts.pages(self.client, pods, self.notes))
        # The leader is found by its metrics, so ports and ledger are looked at after them.
        facts = replace(facts, account_rights=account_rights, metrics=pages)
        ledger, (served, answers) = await asyncio.gather(
            accounts.ledger(self.client, leading_pod(facts, SCHEDULER)), ports.tls_ports(self.kubectl, facts)
        )
        agents: Look[Mapping[str, Json | None]] = Unseen("VMs and their pods could not be listed")
        if has_vms:
            agents = await accounts.explanations(self.client, facts.vms.value, facts.vm_pods.value, pods)
        return replace(facts, ledger=ledger, agents=agents, served=served, answers=answers)


def namespace_of(deployments: Objects) -> str:
    """Namespace of the scheduler, if there is exactly one; else empty (pure)."""
    schedulers = [] if isinstance(deployments, Unseen) else deployments.value
    namespaces = {name_of(deployment).namespace for deployment in schedulers if name_of(deployment).name == SCHEDULER}
    return namespaces.pop() if len(namespaces) == 1 else ""


def wanted_by_accounts(facts: CheckFacts) -> dict[str, frozenset[Right]]:
    """Rights that the service accounts of existing pods need: programs, and VMs with a sidecar (pure)."""
    shipped_rights = needed_rights(shipped(), facts.namespace)
    pods = [] if isinstance(facts.pods, Unseen) else facts.pods.value
    pods_by_account = defaultdict[str, list[Json]](list)
    for pod in pods:
        pods_by_account[f"{facts.namespace}:{text(pod, 'spec', 'serviceAccountName')}"].append(pod)
    rights_by_account = {
        account: exercised(account, granted, pods_by_account[account])
        for account, granted in shipped_rights.items()
        if account in pods_by_account
    }
    # The agent's rights are those of its Role; a sidecar uses them in the namespace of its VM.
    of_agent = next(
        (granted for account, granted in shipped_rights.items() if account.endswith(f":{trials.AGENT_ACCOUNT}")),
        frozenset(),
    )
    for pod in [] if isinstance(facts.vm_pods, Unseen) else facts.vm_pods.value:
        if agent_container(pod) is not None:
            namespace = name_of(pod).namespace
            account = f"{namespace}:{text(pod, 'spec', 'serviceAccountName')}"
            rights_by_account[account] = frozenset(
                # Cluster-wide rights have no namespace and stay as they are.
                replace(right, namespace=namespace) if right.namespace else right
                for right in of_agent
            )
    return rights_by_account


def _date(header: str) -> float | None:
    try:
        return parsedate_to_datetime(header).timestamp()
    except (ValueError, TypeError):
        return None
