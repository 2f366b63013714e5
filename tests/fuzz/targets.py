"""The fuzzed decoders: how their inputs are made, and the errors that they may raise. Add a line for a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from agent.adapters.exposition import read_sample
from agent.adapters.node_pods import assignment_of
from agent.config import PolicyError, read_policy
from agent.core.policy import Policy
from agent.core.vm import view
from deploy.local.apiserver.apimachinery.errors import StatusError
from deploy.local.apiserver.apimachinery.jsonvalue import NotJsonError
from deploy.local.apiserver.apimachinery.jsonvalue import decode as decode_json
from deploy.local.apiserver.apimachinery.protobuf import decode_protobuf
from deploy.local.apiserver.apimachinery.selectors import parse_labels
from deploy.neonvm.objects.runner_policy import new_policy, policy_action, relevant_fields
from deploy.neonvm.objects.vm_spec import machine_of
from deploy.neonvm.ports import GuestError
from deploy.neonvm.qemu.reports import parse_report, transfer_info
from deploy.neonvm.qemu.streams import BrokenStreamError
from deploy.neonvm.simulated.recording_rows import RecordingError, parse_rows
from deploy.neonvm.simulated.simulated_load import LoadError, recorded_load
from deploy.neonvm.sleep.asleep_page import asleep_response
from protocol.codec import MalformedMessageError, decode_request, decode_response
from protocol.durations import DurationError, parse_duration
from protocol.floors import decode_floor
from protocol.guest.monitor_messages import MalformedMonitorMessageError, read_from_monitor, read_greeting
from protocol.kubernetes.access_reviews import identity_in
from protocol.kubernetes.exec_credentials import ExecCredentialError, read_exec_credential
from protocol.kubernetes.kubeconfig import KubeconfigError, KubeconfigFile, read_login
from protocol.kubernetes.objects import Json
from protocol.kubernetes.pages import UnreadableAnswerError, read_event, read_object, read_page
from protocol.kubernetes.refusals import read_refusal
from protocol.permits import decode_permit
from protocol.ranking.config import RankingConfigError, parse_ranking
from protocol.runtime.followed_file import SettingsError
from protocol.runtime.tls_files import UnreadableCertificateError, validities
from protocol.units import Bytes, MilliCpu, QuantityError, parse_quantity
from protocol.versions import ProtocolVersion
from protocol.virtual_machine import InvalidObjectError
from protocol.wire.wire_batches import EncodedAnswer, MalformedBatchError, decode_answers, decode_batch
from scheduler_plugin.auth.token_shape import plausible_until
from scheduler_plugin.cluster.migrations import read_migration
from scheduler_plugin.cluster.pods.conflicts import read_cluster, read_horizontal, read_vertical
from scheduler_plugin.cluster.pods.databases import database_facts
from scheduler_plugin.cluster.pods.reading import pod_at_most, read_pod
from scheduler_plugin.cluster.scheduling_fields import pod_constraints, pod_traits, volume_terms
from scheduler_plugin.cluster.translate import read_node
from scheduler_plugin.cluster.virtual_machines import read_vm, vm_at_most, vm_facts
from scheduler_plugin.expander.settings import parse_settings as parse_expander
from scheduler_plugin.expander.wire import MalformedScaleUpError, decode_scale_up
from scheduler_plugin.injector.admission.injection import judge
from scheduler_plugin.injector.admission.reviews import MalformedReviewError, answer, read_review
from scheduler_plugin.injector.settings import parse_settings as parse_injector
from scheduler_plugin.settings.document import parse_settings
from tests.fuzz import group_objects, page_targets, samples, sleeper_frames
from tests.fuzz.mutations import QUANTITIES, VALUES, damaged, damaged_text, encoded
from tests.pod_databases import pod_database
from tests.scheduler_plugin.groups.objects.sample_group import shop
from tests.scheduler_plugin.objects import token_text

GIB: Final = Bytes(1024**3)
LIMIT: Final = 0.05
"""Seconds of CPU that one input may cost."""


@dataclass(frozen=True, slots=True)
class Target:
    """``make`` an input, ``feed`` it to a decoder, which may raise ``errors``; ``weight`` is its share of inputs."""

    name: str
    make: Callable[[Random], object]
    feed: Callable[..., object]
    errors: tuple[type[Exception], ...] = ()
    weight: int = 1


def documents(*examples: object) -> Callable[[Random], bytes]:
    """Damaged JSON documents as text; a tenth are damaged as texts, too."""

    def make(random: Random) -> bytes:
        body = encoded(damaged(random.choice(examples), random, random.choice((1, 1, 2, 4))))
        return damaged_text(body, random) if random.random() < 0.1 else body

    return make


def objects(*examples: object) -> Callable[[Random], bytes]:
    """Objects of the API as a list, a watch line or by themselves would bring them."""
    make = documents(*examples)
    return lambda random: b'{"type":"MODIFIED","object":' + make(random) + b"}"


def texts(*examples: bytes) -> Callable[[Random], bytes]:
    """Damaged texts."""
    return lambda random: damaged_text(random.choice(examples), random, random.choice((1, 2, 4, 8)))


def amounts(random: Random) -> object:
    """Any value that may be in the place of a quantity or duration."""
    found = random.choice((*QUANTITIES, *VALUES, "250m", "1.5Gi", "1h30m", 2))
    return damaged_text(found.encode(), random).decode(errors="replace") if isinstance(found, str) else found


def _object(read: Callable[[Json], object], line: bytes) -> object:
    """As informers do: a line, then its object; one that cannot be decoded never reaches the reader."""
    event = read_event(line)
    return None if event.unreadable is not None else read(event.object)


def _vm(found: Json) -> object:
    vm_facts(vm_at_most(found, "whatever"))
    machine = read_vm(found)
    if machine.bounds.max.cpu.value < machine.use.cpu.value:
        raise AssertionError("a VM may never use more than its bounds")
    return vm_facts(machine), view(machine, "db-pod")


def _pod(found: Json) -> object:
    spec = found.get("spec")
    fields = spec if isinstance(spec, dict) else {}
    pod_at_most(found, "whatever")
    facts = read_pod(found)
    database = None if facts.database is None else database_facts(facts.database)
    return facts, database, pod_constraints(fields), pod_traits({}, fields, is_terminating=False)


def _conflict(found: Json) -> object:
    return read_horizontal(found), read_vertical(found), read_cluster(found)


def _volume(found: Json) -> object:
    spec = found.get("spec")
    return volume_terms(spec.get("nodeAffinity") if isinstance(spec, dict) else None)


def _request(body: bytes) -> object:
    return decode_request(body).resolve(GIB)


def _answer(body: bytes) -> object:
    return [decode_response(version, body, GIB) for version in (ProtocolVersion.V2_1, ProtocolVersion.V5_0)]


def _batch(body: bytes) -> object:
    """As in the scheduler: the envelope, then each request alone."""
    return [decode_request(each).resolve(GIB) for each in decode_batch(body)]


def _batch_answer(body: bytes) -> object:
    """As in the agent: the envelope, then each response alone."""
    found = [each for each in decode_answers(body, 2) if isinstance(each, EncodedAnswer)]
    return [decode_response(ProtocolVersion.V2_1, each.body, GIB) for each in found]


def _versioned(random: Random) -> bytes:
    version: Json = {} if (number := random.randrange(8)) == 0 else {"protoVersion": number}
    return documents({**version, **samples.AGENT})(random)


def as_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """A reader of texts that is given bytes."""
    return lambda body: read(body.decode(errors="replace"))


def _policy(text: str) -> object:
    return read_policy(text, Policy())


def _network_policy(found: Json) -> object:
    return policy_action("kube-system", [VM], [relevant_fields(found)], False, [found])


def _review(found: Json) -> object:
    return identity_in(found, "autoscale-scheduler")


def _ranking(body: bytes) -> object:
    return parse_ranking(read_object(body))


def _token(text: str) -> object:
    return plausible_until(text, "autoscale-scheduler", 0.0)


def _admission(body: bytes) -> object:
    """As in the webhook: decode what is readable, judge it, and answer in any case."""
    question = read_review(body)
    found = judge(question.pod or {}, TEMPLATE)
    return answer(question.uid, found if isinstance(found, list) else ())


def _qemu(body: bytes) -> object:
    return transfer_info(parse_report(read_object(body)))


def _configuration(body: bytes) -> object:
    return group_objects.configuration(read_object(body))


def _load(text: str) -> object:
    return recorded_load(parse_rows(text.splitlines(keepends=True), "r.csv"))


TEMPLATE: Final = parse_injector(samples.INJECTOR.decode()).template()
MALFORMED: Final = (MalformedMessageError, MalformedBatchError)
BAD_LOAD: Final = (LoadError, RecordingError)
UNREADABLE: Final = (UnreadableAnswerError, ValueError)
VM: Final = samples.whole_vm()
ROWS: Final = (VM, samples.MIGRATION, pod_database())
PAGE: Final = {"metadata": {"resourceVersion": "7"}, "items": [VM, samples.whole_node()]}
STATUS: Final = {"kind": "Status", "reason": "Gone", "message": "m", "code": 410}
PERMIT: Final = {"vCPUs": "1", "mem": "1Gi"}
ANNOTATED: Final = {"cpu": {"target": 0.7}, "smoothing": {"cpu": [{"hold": {"window": "30s"}}]}}


# fmt: off
def _login(text: str) -> object:
    return read_login([KubeconfigFile(text)])


TARGETS: Final[tuple[Target, ...]] = (
    Target("quantity", amounts, parse_quantity, (QuantityError,), 8),
    Target("cpu", amounts, MilliCpu.parse, (QuantityError,), 4),
    Target("memory", amounts, Bytes.parse, (QuantityError,), 4),
    Target("duration", amounts, parse_duration, (DurationError,), 4),
    Target("permit annotation", documents(PERMIT), as_text(decode_permit), (ValueError,), 4),
    Target("answer of the API", documents(VM), read_object, (UnreadableAnswerError,), 2),
    Target("refusal", documents(STATUS), partial(read_refusal, 410), (), 2),
    Target("page", documents(PAGE), read_page, (UnreadableAnswerError,), 3),
    Target("watch line", objects(VM, STATUS), read_event, (UnreadableAnswerError,), 3),
    Target("VirtualMachine", objects(VM), partial(_object, _vm), (UnreadableAnswerError, InvalidObjectError), 16),
    Target("migration", objects(samples.MIGRATION), partial(_object, read_migration), UNREADABLE, 8),
    Target("Node", objects(samples.whole_node()), partial(_object, read_node), UNREADABLE, 8),
    Target("Pod", objects(samples.whole_pod(), samples.whole_postgres()), partial(_object, _pod), UNREADABLE, 12),
    Target("what else sizes a pod", objects(*samples.CONFLICTS), partial(_object, _conflict), UNREADABLE[:1], 4),
    Target("PersistentVolume", objects(samples.VOLUME), partial(_object, _volume), UNREADABLE, 4),
    Target("AdmissionReview", texts(samples.ADMISSION), _admission, (MalformedReviewError,), 6),
    Target("AdmissionReview of a pod", documents(samples.ADMITTED), _admission, (MalformedReviewError,), 6),
    Target("injector's settings", texts(samples.INJECTOR), as_text(parse_injector), (SettingsError,), 3),
    Target("certificate", texts(samples.CERTIFICATES), validities, (UnreadableCertificateError,), 3),
    Target("TokenReview", objects(samples.REVIEW), partial(_object, _review), UNREADABLE, 6),
    Target("agent's request", _versioned, _request, (MalformedMessageError,), 12),
    Target("scheduler's answer", documents(samples.ANSWER), _answer, (MalformedMessageError,), 8),
    Target("batch of requests", documents(samples.BATCH), _batch, MALFORMED, 6),
    Target("batch of answers", documents(samples.ANSWERS), _batch_answer, MALFORMED, 6),
    Target("metrics page", texts(samples.EXPOSITION), read_sample, (), 6),
    Target("frames for a sleeper", sleeper_frames.traffic, sleeper_frames.judged, (), 8),
    Target("streams of frames", texts(*sleeper_frames.STREAMS), sleeper_frames.streamed, (BrokenStreamError,), 4),
    Target("page of a sleeper", texts(samples.EXPOSITION), asleep_response, (), 4),
    Target("guest's monitor", documents(*samples.MONITOR), read_from_monitor, (MalformedMonitorMessageError,), 8),
    Target("monitor's greeting", documents({"version": 2}), read_greeting, (MalformedMonitorMessageError,), 2),
    Target("policy", texts(samples.POLICY), as_text(_policy), (PolicyError,), 3),
    Target("policy annotation", documents(ANNOTATED), as_text(_policy), (PolicyError,), 4),
    Target("scheduler's settings", texts(samples.SETTINGS), as_text(parse_settings), (SettingsError,), 2),
    Target("expander's settings", texts(samples.EXPANDER), as_text(parse_expander), (SettingsError,), 3),
    Target("kubeconfig", texts(samples.KUBECONFIG), as_text(_login), (KubeconfigError,), 2),
    Target("agent's account", documents(page_targets.ACCOUNT), page_targets.account, (UnreadableAnswerError,), 4),
    Target("scheduler's nodes", documents(page_targets.NODES), page_targets.nodes, (UnreadableAnswerError,), 4),
    Target("row of the page", objects(*ROWS), partial(_object, page_targets.rows), UNREADABLE[:1], 4),
    Target("agent's pod", objects(samples.whole_pod()), partial(_object, assignment_of), (UnreadableAnswerError,), 4),
    Target("machine of a VM", objects(VM), partial(_object, machine_of), UNREADABLE, 4),
    Target("NetworkPolicy", objects(new_policy("kube-system")), partial(_object, _network_policy), UNREADABLE[:1], 4),
    Target("ranking", documents(samples.RANKING), _ranking, (RankingConfigError, UnreadableAnswerError), 3),
    Target("expander's question", texts(samples.QUESTION), decode_scale_up, (MalformedScaleUpError,), 4),
    Target("bearer token", texts(token_text("t").encode()), as_text(_token), (), 3),
    Target("body of the API server", documents(VM), decode_json, (NotJsonError,), 3),
    Target("protobuf of the API server", texts(samples.PROTOBUF), decode_protobuf, (StatusError,), 3),
    Target("label selector", texts(b"a=b,c in (d, e),!f,g"), as_text(parse_labels), (StatusError,), 3),
    Target("answer of QEMU", documents(samples.QEMU), _qemu, (UnreadableAnswerError, GuestError), 3),
    Target("recording of a load", texts(b"seconds,cpu,mem\n0,1,1Gi\n5,2,2Gi\n"), as_text(_load), BAD_LOAD, 2),
    Target("floor annotation", documents(group_objects.FLOOR), as_text(decode_floor), (ValueError,), 4),
    Target("Tortoise", objects(group_objects.TORTOISE), partial(_object, group_objects.tortoise), UNREADABLE, 10),
    Target("HPA of a Tortoise", objects(group_objects.HPA), partial(_object, group_objects.hpa), UNREADABLE[:1], 4),
    Target("Hvpa", objects(*group_objects.HVPAS), partial(_object, group_objects.hvpa), UNREADABLE, 8),
    Target("VirtualMachineGroup", objects(shop()), partial(_object, group_objects.vm_group), UNREADABLE, 8),
    Target("Tortoise's settings", documents(group_objects.CONFIGURATION), _configuration, UNREADABLE, 4),
    Target("credential plug-in", documents(samples.CREDENTIAL), read_exec_credential, (ExecCredentialError,), 2),
)
# fmt: on
