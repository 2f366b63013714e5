"""Certificates in Secrets, on ports, and in the caBundles of webhooks (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from protocol.kubernetes.objects import Json, child, items, name_of, text
from protocol.runtime.certificates.keeper import decoded
from scripts.autoscale.check.facts import CheckFacts, Observed, UnavailableError, observed_values, require
from scripts.autoscale.check.finding import CheckProblem, CheckResult, CheckSection, Level, check_of
from scripts.autoscale.check.installed_programs import INJECTOR
from scripts.autoscale.check.judges.stored_certificates import (
    OF_THE_EXPANDER,
    RUNNERS,
    SECRETS,
    StoredCertificates,
    certificates,
    read_certificates,
)

check = partial(check_of, CheckSection.CERTIFICATES)

WEBHOOKS: Final = "autoscaling-"
LATE: Final = 0.9
"""Share of a certificate's lifetime after which it is reported; renewal is due after two thirds."""

_DAY: Final = 86_400.0
_OF_RUNNERS: Final = "kubectl -n {namespace} logs deployment/neonvm-controller --tail=50"


def _named(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or f"serial {certificate.serial_number:x}"


def _server_time(facts: CheckFacts) -> datetime:
    # By the API server's clock: this machine's may be wrong.
    return datetime.fromtimestamp(facts.server_now, UTC)


def _age_problem(what: str, subject: str, certificate: x509.Certificate, now: datetime) -> CheckProblem | None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= ends:
        return CheckProblem(subject, f"{what} expired {_span((now - ends).total_seconds())} ago")
    if now < begins:
        return CheckProblem(subject, f"{what} is not valid for another {_span((begins - now).total_seconds())}")
    if now >= begins + (ends - begins) * LATE:
        message = f"{what} expires in {_span((ends - now).total_seconds())} and was not renewed in time"
        return CheckProblem(subject, message, Level.WARNING)
    return None


def _span(seconds: float) -> str:
    """A human-readable duration.

    >>> _span(100), _span(7200.0), _span(400_000.0)
    ('2 minutes', '2 hours', '5 days')
    """
    for unit, name in ((_DAY, "day"), (3600.0, "hour"), (60.0, "minute")):
        # Use a unit from one and a half of it on: 84 minutes is more exact than 1 hour.
        if seconds >= unit * 1.5 or unit == 60.0:
            return f"{seconds / unit:.0f} {name}s"
    return ""


@check(
    "certificates-current",
    "certificates are valid",
    "kubectl -n {namespace} logs deployment/autoscaling-injector --tail=50; kubectl -n {namespace} describe secret"
    " {subject}",
)
def are_current(facts: CheckFacts) -> CheckResult:
    """A certificate in the Secrets `autoscaling-certificates…` or `neonvm-runners…` has expired, is not valid yet, or
    is in the last tenth of its life and was not renewed. The leader of `autoscaling-injector`, or cert-manager, renews
    those in `autoscaling-certificates…` (operations-certificates.md); the leader of `neonvm-controller` renews those in
    `neonvm-runners…`.
    """
    now, stored_certificates = _server_time(facts), read_certificates(facts)
    require(facts.secrets.value, f"Secret {SECRETS} not found")
    filled = {stored.secret for stored in stored_certificates}
    empty = sorted(name_of(secret).name for secret in facts.secrets.value if name_of(secret).name not in filled)
    problems = [CheckProblem(name, f"the Secret {name} has no certificate yet") for name in empty]
    problems += [
        CheckProblem(stored.secret, f"{stored} contains no certificate")
        for stored in stored_certificates
        if not stored.chain
    ]
    decisive = _decisive(stored_certificates)
    described = ((stored, f"{stored} ({_named(stored.decisive)})") for stored in decisive)
    problems += filter(None, (_age_problem(what, stored.secret, stored.decisive, now) for stored, what in described))
    # neonvm-controller issues the certificates of runners, so their remedy differs.
    problems = [
        replace(problem, remedy=_OF_RUNNERS) if problem.subject.startswith(RUNNERS) else problem for problem in problems
    ]
    ends = [stored.decisive.not_valid_after_utc for stored in decisive]
    summary = f"the first of {len(ends)} expires in {_span((min(ends) - now).total_seconds())}" if ends else ""
    return CheckResult(summary, problems)


def _decisive(certificates: list[StoredCertificates]) -> list[StoredCertificates]:
    """The certificates whose expiry matters: of the CAs in a Secret only the newest."""
    decisive = [stored for stored in certificates if stored.chain and stored.secret not in (SECRETS, RUNNERS)]
    # These Secrets contain a series of CAs, of which the newest signs.
    for name in (SECRETS, RUNNERS):
        signing = [stored for stored in certificates if stored.chain and stored.secret == name]
        # Older CAs are only trusted, so their expiry is harmless.
        decisive += [max(signing, key=lambda stored: stored.decisive.not_valid_after_utc)] if signing else []
    return decisive


@check("certificates-signed", "certificates are signed by our CA", "kubectl -n {namespace} describe secret {subject}")
def are_signed(facts: CheckFacts) -> CheckResult:
    """The CA and the certificate do not match because only one of them was replaced: clients reject the certificate."""
    stored_certificates = read_certificates(facts)
    authorities = [(stored, ca) for stored in stored_certificates if stored.is_authority for ca in stored.chain]
    leaves = [stored for stored in stored_certificates if stored.chain and not stored.is_authority]
    if not authorities or not leaves:
        raise UnavailableError(f"no Secret {SECRETS}… has a CA (ca.crt) and a certificate")
    problems = [
        CheckProblem(leaf.secret, f"{leaf} is not signed by any CA in ca.crt")
        for leaf in leaves
        # The CA of runners signs only certificates of runners, and no other CA does.
        if not _vouched(leaf.chain, [ca for holder, ca in authorities if holder.is_of_runners == leaf.is_of_runners])
    ]
    return CheckResult(f"{len(leaves)} certificates", problems)


def _vouched(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> bool:
    """Return True if one of ``authorities`` has signed the leaf, or an intermediate certificate above it."""
    # From the leaf upwards, as a TLS client builds the path.
    current, *others = chain
    while not any(_signed(current, ca) for ca in authorities):
        signers = [signer for signer in others if _signed(current, signer)]
        if not signers:
            return False
        current = signers[0]
        # Each certificate is used once, so that a cycle of signatures ends.
        others.remove(current)
    return True


def _signed(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    # TypeError: the CA's key is of a type that cannot sign certificates.
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


@check(
    "certificates-served",
    "ports serve the current certificates",
    "kubectl -n {namespace} rollout restart deployment/autoscaling-scheduler",
)
def are_served(facts: CheckFacts) -> CheckResult:
    """A program serves an expired or replaced certificate because it has not reloaded its files. The check connects
    through `kubectl port-forward`.
    """
    observed = observed_values(dict(sorted(facts.served.items())), "no program with a TLS port is running")
    now, stored_leaves = _server_time(facts), {leaf for stored in _stored(facts) for leaf in stored.chain}
    port_problems = (_port_problem(port, served.certificate, stored_leaves, now) for port, served in observed.items())
    return CheckResult(f"{len(observed)} ports", [*filter(None, port_problems)])


def _port_problem(port: str, certificate: bytes, stored: set[x509.Certificate], now: datetime) -> CheckProblem | None:
    remedy = f"kubectl -n {{namespace}} rollout restart deployment/{port.partition(':')[0]}"
    chain = certificates(certificate)
    if not chain:
        return CheckProblem(port, f"{port} serves no certificate", remedy=remedy)
    if problem := _age_problem(f"the certificate of {port}", port, chain[0], now):
        return replace(problem, remedy=remedy)
    # Without permission to read Secrets, there is nothing to compare with.
    if stored and chain[0] not in stored:
        message = f"{port} serves a stale certificate: it has not reloaded the one in its Secret"
        return CheckProblem(port, message, Level.WARNING, remedy)
    return None


def _stored(facts: CheckFacts) -> list[StoredCertificates]:
    return read_certificates(facts) if isinstance(facts.secrets, Observed) else []


def our_webhooks(facts: CheckFacts) -> list[tuple[str, Json]]:
    """Our webhooks, with the names of their configurations. Raises ``UnavailableError`` if there are none."""
    webhooks = [
        (name_of(configuration).name, webhook)
        for configuration in facts.webhooks.value
        if name_of(configuration).name.startswith(WEBHOOKS)
        for webhook in items(configuration, "webhooks")
    ]
    require(webhooks, "none of our webhooks is installed")
    return webhooks


@check(
    "webhooks-trusted",
    "the API server trusts the webhooks",
    "kubectl get mutatingwebhookconfiguration {subject} -o yaml",
)
def bundles_are_current(facts: CheckFacts) -> CheckResult:
    """A webhook's `caBundle` does not match its certificate. With `failurePolicy: Ignore` the API server then silently
    creates pods without their agent.
    """
    own = (
        stored
        for stored in _stored(facts)
        # Neither the expander's CA nor the runners' CA signs the injector's certificate.
        if stored.is_authority and stored.secret not in OF_THE_EXPANDER and not stored.is_of_runners
    )
    authorities = {ca for stored in own for ca in stored.chain}
    problems = [
        CheckProblem(configuration, why)
        for configuration, webhook in our_webhooks(facts)
        for why in _bundle(f"the caBundle of {configuration}", webhook, authorities, facts)
    ]
    return CheckResult("", problems)


def _bundle(subject: str, webhook: Json, authorities: set[x509.Certificate], facts: CheckFacts) -> Iterator[str]:
    bundle = set(certificates(decoded(text(child(webhook, "clientConfig"), "caBundle"))))
    if not bundle:
        yield f"{subject} is empty: the API server cannot verify the webhook"
        return
    # During a rotation both contain the old and the new CA, so one in common is enough.
    if authorities and not authorities & bundle:
        yield f"{subject} does not contain the CA in the Secrets: the API server does not trust the webhook"
        return
    for port, observation in facts.served.items():
        if isinstance(observation, Observed) and (why := observation.value.distrusted.get(text(webhook, "name"))):
            yield f"{subject} does not verify the certificate of {port}: {why}"


@check(
    "webhooks-answer",
    "webhooks answer",
    "kubectl -n {namespace} get pods -l app.kubernetes.io/name=autoscaling-injector",
)
def webhooks_answer(facts: CheckFacts) -> CheckResult:
    """The check sends a test review to each webhook through `kubectl port-forward`, and one failed."""
    names = [text(webhook, "name") for _, webhook in our_webhooks(facts)]
    reviews = observed_values(
        {name: facts.reviews[name] for name in names if name in facts.reviews}, "it was not called"
    )
    problems = [
        CheckProblem(name, f"webhook {name} failed a test review: {why}") for name, why in reviews.items() if why
    ]
    return CheckResult(f"{len(reviews)} webhooks", problems)


@check(
    "webhooks-reached",
    "the API server reaches our webhook",
    "kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={subject}; allow the API server to reach"
    " TCP port 10293 of these addresses",
)
def webhook_is_reached(facts: CheckFacts) -> CheckResult:
    """The check created a VM pod as a dry run in a namespace with the service account `vm-agent`, and the API server
    returned it without an agent. The API server connects to port 10293 of the pods of `autoscaling-injector`: a private
    GKE cluster needs a firewall rule for that, and on EKS with an overlay network it cannot reach pods at all
    (install.md, platforms and pipelines). With `failurePolicy: Ignore` nothing else reports this.
    """
    our_webhooks(facts)  # raises if there are none, so that the check is skipped
    why = facts.injection.value
    return CheckResult(
        "",
        [CheckProblem(INJECTOR, f"{why}: the API server cannot reach the webhook, port 10293 of {INJECTOR}")]
        if why
        else [],
    )
