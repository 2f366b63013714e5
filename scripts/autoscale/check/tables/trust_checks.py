"""Leases, certificates and clocks: lines of ``autoscale check`` (pure)."""

from __future__ import annotations

from typing import Final

from scripts.autoscale.check.finding import Check, CheckSection, When
from scripts.autoscale.check.judges import certificate_ages, clock_skew, lease_holders

CHECKS: Final = (
    Check(
        "leases-held",
        CheckSection.LEASES,
        "each Lease is held and renewed",
        lease_holders.are_held,
        "A program with several replicas acts only in the one that holds its Lease. Where the holder is gone and the"
        " Lease does not end, or the holder hangs, nothing acts.",
        "kubectl -n {namespace} get lease {subject} -o yaml; once its holder is gone for good; kubectl -n {namespace}"
        " delete lease {subject}",
    ),
    Check(
        "leases-acted-on",
        CheckSection.LEASES,
        "who holds a Lease acts",
        lease_holders.holders_lead,
        "A replica has won the Lease and renews it, but has not begun to lead: it cannot read the cluster, or waits for"
        " a scheduler without a Lease to end. No other replica can take its place.",
        "kubectl -n {namespace} logs {subject} --all-containers --tail=50; where it says nothing; kubectl -n"
        " {namespace} delete pod {subject}",
    ),
    Check(
        "leases-one-leader",
        CheckSection.LEASES,
        "one replica leads",
        lease_holders.one_leads,
        "Two replicas of a program say at once that they lead. What they write is fenced by versions of objects, so"
        " nothing is lost, but one of them should end.",
        "kubectl -n {namespace} delete pod {subject}",
    ),
    Check(
        "leader-reached",
        CheckSection.LEASES,
        "clients are led to the scheduler that leads",
        lease_holders.lead_to_leader,
        "With two schedulers the leader writes its address into two EndpointSlices, and makes one that is missing: Argo"
        " CD leaves that kind out by default, and a restored cluster may lack it. For that its Role must allow `create`"
        " of endpointslices and `get` of the two Services.",
        "kubectl -n {namespace} logs deployment/autoscaling-scheduler -c service | grep endpoints; kubectl -n"
        " {namespace} get endpointslice {subject} -o yaml",
    ),
    Check(
        "certificates-current",
        CheckSection.CERTIFICATES,
        "certificates are valid",
        certificate_ages.are_current,
        "A certificate in the Secrets `autoscaling-certificates…` or `neonvm-runners…` has expired, is not valid yet,"
        " or is in the last tenth of its life and was not replaced. The leader of `autoscaling-injector`, or"
        " cert-manager, replaces the former (operations-certificates.md), that of `neonvm-controller` the latter.",
        "kubectl -n {namespace} logs deployment/autoscaling-injector --tail=50; kubectl -n {namespace} describe secret"
        " {subject}",
    ),
    Check(
        "certificates-signed",
        CheckSection.CERTIFICATES,
        "they are signed by our authority",
        certificate_ages.are_signed,
        "The authority was replaced without the certificates beside it, or the other way round: clients trust neither.",
        "kubectl -n {namespace} describe secret {subject}",
    ),
    Check(
        "certificates-served",
        CheckSection.CERTIFICATES,
        "the ports show them",
        certificate_ages.are_served,
        "Looked at through `kubectl port-forward`. A program shows a certificate that has expired, or one that has"
        " been replaced since: it does not follow its files.",
        "kubectl -n {namespace} rollout restart deployment/autoscaling-scheduler",
    ),
    Check(
        "webhooks-trusted",
        CheckSection.CERTIFICATES,
        "webhooks are trusted by the API server",
        certificate_ages.bundles_are_current,
        "The `caBundle` of a webhook does not vouch for what it shows. With `failurePolicy: Ignore` pods are made"
        " without their agent, and nothing tells you.",
        "kubectl get mutatingwebhookconfiguration {subject} -o yaml",
    ),
    Check(
        "webhooks-answer",
        CheckSection.CERTIFICATES,
        "webhooks answer",
        certificate_ages.webhooks_answer,
        "A made-up review was sent to the webhook through `kubectl port-forward`.",
        "kubectl -n {namespace} get pods -l app.kubernetes.io/name=autoscaling-injector",
    ),
    Check(
        "webhooks-reached",
        CheckSection.CERTIFICATES,
        "the API server reaches our webhook",
        certificate_ages.webhook_is_reached,
        "A pod of a VM was tried as a dry run, in a namespace with the account `vm-agent`, and came back without an"
        " agent. The API server connects to port 10293 of the pods of `autoscaling-injector` itself: a private GKE"
        " cluster needs a firewall rule for that, and on EKS with an overlay network it reaches no pods at all"
        " (install.md, pipelines and networks). With `failurePolicy: Ignore` nothing else tells you.",
        "kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={subject}; let the API server reach"
        " TCP port 10293 of these addresses",
    ),
    Check(
        "clock-here",
        CheckSection.CLOCKS,
        "local clock matches the API server",
        clock_skew.ours,
        "Compared with the `Date` of an answer. Ages in the output of this and other commands are wrong by as much,"
        " and certificates and tokens seem expired or not valid yet.",
        "timedatectl status; synchronize this machine's clock",
        When.ALWAYS,
    ),
    Check(
        "clock-nodes",
        CheckSection.CLOCKS,
        "the nodes' clocks are",
        clock_skew.of_nodes,
        "A kubelet renews its Lease by its own clock, and the API server notes by its own when that came. Tokens and"
        " certificates are refused on such a node.",
        "synchronize the clock of node {subject} (chrony, systemd-timesyncd)",
        When.ALWAYS,
    ),
    Check(
        "clock-programs",
        CheckSection.CLOCKS,
        "the clocks of our programs are",
        clock_skew.of_programs,
        "The same for the holders of our Leases. Nothing of ours is decided by calendars, but certificates are.",
        "kubectl -n {namespace} get lease {subject}; synchronize the clock of the node on which the holder runs",
    ),
)
