"""A group of real VMs under a real HPA: a streaming replica comes with the load and goes with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from protocol.kubernetes.resources import HORIZONTAL_AUTOSCALERS, VM_GROUPS
from protocol.names import ANNOTATION_DRAINING
from tests.kubernetes.flat_client import flat_client
from tests.kubernetes.object_watch import asking
from tests.kubernetes.postgres_session import Session, password_of
from tests.kubernetes.real_kubernetes import RealKubernetes, eventually
from tests.kubernetes.vm_group.group_of_vms import FIRST, GROUP, HPA, NAME, PRIMARY, SECOND, GroupOfVms

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def group(with_vms: RealKubernetes) -> Iterator[GroupOfVms]:
    """A primary and one serving replica, which are deleted afterwards."""
    with asking(with_vms) as api:
        found = GroupOfVms(api)
        with_vms.apply(password_of(NAME), GROUP)
        try:
            found.serves(FIRST, seconds=600.0)
            yield found
        finally:
            with_vms.kubectl("delete", f"{HORIZONTAL_AUTOSCALERS.plural}/{NAME}", "--ignore-not-found")
            with_vms.kubectl("delete", f"{VM_GROUPS.plural}/{NAME}")
            found.is_gone(PRIMARY, FIRST, SECOND)


@pytest.fixture
def client(with_vms: RealKubernetes) -> Iterator[str]:
    """The namespace of the group's clients."""
    with flat_client(with_vms) as namespace:
        yield namespace


@contextmanager
def reading(namespace: str, address: str) -> Iterator[None]:
    """Keeps a database busy until the end of the block; not one query may fail."""
    over, failures = threading.Event(), list[OSError]()

    def read() -> None:
        try:
            with closing(Session(namespace, address)) as session:
                while not over.is_set():
                    session.ask("select count(*) from generate_series(1, 100000)")
        except OSError as error:
            failures.append(error)

    worker = threading.Thread(target=read)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()
    assert failures == []


def test_group_adds_and_removes_replica_with_load(with_vms: RealKubernetes, group: GroupOfVms, client: str) -> None:
    primary = group.vm(PRIMARY, bool, "the primary")
    addresses = group.serves(FIRST, seconds=30.0)
    with_vms.apply(HPA)
    group.rests()
    with ExitStack() as stack:

        def session(address: str) -> Session:
            return stack.enter_context(closing(Session(client, address)))

        writer = session(primary["status"]["extraNetIP"])
        backend = writer.ask("select pg_backend_pid()")
        with reading(client, addresses[FIRST]):
            group.wants(2, "the HPA asks for another replica", 120.0)
            addresses = group.serves(FIRST, SECOND, seconds=480.0)
            first, second = (session(addresses[each]) for each in (FIRST, SECOND))
            writer.ask("create table written as select 1 as row")
            eventually(lambda: rows(second) == "1", "what is written streams to it")
            streams = "select count(distinct client_addr) from pg_stat_replication where state = 'streaming'"
            assert writer.ask(streams) == "2", "a replica that connects anew counts once"
        group.wants(1, "the HPA asks for one less", 240.0)
        group.vm(SECOND, lambda it: ANNOTATION_DRAINING in it["metadata"].get("annotations", {}), "it drains")
        group.serves(FIRST, seconds=30.0)
        assert second.ask("select pg_is_in_recovery()") == "t", "who is connected goes on for a while"
        group.is_gone(SECOND)
        assert (rows(first), writer.ask("select pg_backend_pid()")) == ("1", backend)
    after = group.vm(PRIMARY, bool, "the primary")
    assert [each["metadata"]["uid"] for each in (primary, after)] == [primary["metadata"]["uid"]] * 2
    assert after["status"]["podName"] == primary["status"]["podName"]


def rows(session: Session) -> str:
    """Number of written rows in a database; None while it has no such table."""
    return session.ask("select count(*) from pg_class where relname = 'written'")
