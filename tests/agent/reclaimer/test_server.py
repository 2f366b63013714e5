"""The reclaimer's socket: accepted and refused peers; a hold never outlives its connection."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.reclaimer import server
from agent.reclaimer.messages import LONGEST_LINE, HoldReply, HoldRequest, read_held, read_hold, write_line
from agent.reclaimer.server import ReclaimServer
from tests.agent.cgroups.trees import MIB, UID, Layout, Tree
from tests.agent.reclaimer.serving import SIZE, Serving, wait_until_released

USED = 400 * MIB
OTHER = "11111111-2222-4333-8444-555555555555"


class Node(Serving):
    """A server with a made tree of control groups."""

    def __init__(self, folder: Path, *, is_v2: bool = True) -> None:
        self.tree = Tree(folder / "cgroup", Layout(is_v2=is_v2, is_systemd=True)).make()
        super().__init__(folder, self.tree.root)

    @property
    def limit(self) -> str:
        name = "memory.high" if self.tree.layout.is_v2 else "memory.limit_in_bytes"
        return self.tree.file(name, of_pod=True).read_text().strip()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_hold_ends_with_its_connection(node: Node) -> None:
    with node.serving():
        with node.connected() as client:
            assert [client.hold(), client.hold(SIZE + MIB)] == [HoldReply(USED), HoldReply(USED)]
            assert node.limit == str(SIZE + MIB)
        wait_until_released(node)
        assert node.limit == "max"


def test_hold_ends_with_the_program(node: Node) -> None:
    with node.serving(), node.connected() as client:
        assert client.hold() == HoldReply(USED)
    assert node.limit == "max"


def test_hold_ends_with_silence(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that hangs keeps no pod's memory."""
    monkeypatch.setattr(server, "LONGEST_SILENCE", 0.05)
    with node.serving(), node.connected() as client:
        client.hold()
        assert client.is_ended()
        assert node.limit == "max"


def test_line_in_pieces_ends_the_hold(node: Node) -> None:
    """One byte every nine seconds is not silence, but would hold the pod for an hour without a check."""
    with node.serving(), node.connected() as client:
        client.hold()
        client.connection.sendall(b"{")
        assert client.is_ended()
        assert node.limit == "max"


def test_growth_is_settled_after_the_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1: a kubelet raised the limit while it was low; it has raised the container's by now."""
    monkeypatch.setattr(server, "SETTLE_INTERVAL", 0.01)
    node = Node(tmp_path, is_v2=False)
    with node.serving(), node.connected() as client:
        assert client.hold() == HoldReply(USED)
        node.tree.write("memory.limit_in_bytes", f"{1024 * MIB}\n")
        assert node.limit == str(512 * MIB)
        client.connection.close()
        while node.limit != str(1024 * MIB):
            pass


def test_thread_that_cannot_start_ends_its_connection_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many processes: what is held stays held."""

    def failing(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with node.serving(), node.connected() as first:
        assert first.hold() == HoldReply(USED)
        with monkeypatch.context() as faults:
            faults.setattr(threading.Thread, "start", failing)
            with node.connected() as second:
                assert second.is_ended()
        assert (first.hold(), node.limit) == (HoldReply(USED), str(SIZE))
    assert [record.__dict__["reason"] for record in caplog.records] == ["can't start new thread"]


def test_one_connection_holds_one_pod(node: Node) -> None:
    """Neither two connections the same pod, nor one connection two pods."""
    with node.serving(), node.connected() as first, node.connected() as second:
        assert first.hold() == HoldReply(USED)
        assert second.hold() == HoldReply(refusal="another connection already holds this pod")
        assert second.is_ended()
        assert node.limit == str(SIZE)
        assert first.hold(pod=OTHER) == HoldReply(refusal="this connection already holds another pod")
        assert first.is_ended()
        assert node.limit == "max"


@pytest.mark.parametrize(
    ("pod", "size", "refusal"),
    [
        (OTHER, SIZE, f"no cgroup found for pod {OTHER}"),
        ("../system.slice", SIZE, "pod UID: expected a UUID, got '../system.slice'"),
        (UID, 4096, "cannot hold the pod at 4096 bytes: it needs 243269632, headroom included"),
    ],
)
def test_refused_holds_end_the_connection(node: Node, pod: str, size: int, refusal: str) -> None:
    with node.serving(), node.connected() as client:
        assert client.hold(size, pod) == HoldReply(refusal=refusal)
        assert client.is_ended()
    assert node.limit == "max"


def test_group_that_goes_during_the_hold(node: Node) -> None:
    """The agent learns it, and the server serves on."""
    with node.serving():
        with node.connected() as client:
            client.hold()
            node.tree.file("memory.current", of_pod=True).unlink()
            answer = client.hold()
            assert answer is not None
            assert "No such file" in answer.refusal
        node.tree.write("memory.current", f"{USED}\n", of_pod=True)
        with node.connected() as client:
            assert client.hold() == HoldReply(USED)


def test_hold_that_cannot_be_released_is_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with node.serving(), node.connected() as client:
        client.hold()
        node.tree.write("memory.high", "nonsense", of_pod=True)
    assert [(record.message, record.__dict__["pod"]) for record in caplog.records] == [
        ("cannot restore a pod's memory limit", UID)
    ]


def test_strangers_are_not_heard(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with node.serving(frozenset({os.getuid() + 1})), node.connected() as client:
        assert client.hold() is None
        assert client.is_ended()
    assert (node.limit, caplog.records[0].__dict__["uid"]) == ("max", os.getuid())


def test_connections_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    with node.serving(), node.connected() as first:
        assert first.hold() == HoldReply(USED)
        with node.connected() as second:
            assert second.hold() is None
        assert first.hold() == HoldReply(USED)


HOSTILE = [
    b"\n",
    b"{}\n",
    b"[" * 400 + b"\n",
    b'{"pod":"a","size":-1}\n',
    b'{"pod":"a","size":1,"path":"/"}\n',
    b'{"pod":"' + b"a" * LONGEST_LINE,
    b"\xff\n",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_lines_end_the_connection(node: Node, line: bytes) -> None:
    with node.serving(), node.connected() as client:
        answer = client.send(line)
        assert answer is None or answer.refusal
        assert client.is_ended()
    assert node.limit == "max"


def test_socket_of_a_killed_process_is_replaced(node: Node) -> None:
    """Twice in the same place; what is no socket is left alone."""
    for _ in range(2):
        with node.serving(), node.connected() as client:
            assert client.hold() == HoldReply(USED)
    node.path.unlink()
    node.path.write_text("not a socket")
    with pytest.raises(OSError, match="Address already in use"):
        ReclaimServer(node.path, node.holds)


def test_broken_listener_ends_the_program(node: Node) -> None:
    """The kubelet restarts it. A program that no longer listens would hold nothing and seem healthy."""
    made = ReclaimServer(node.path, node.holds)
    made._listener.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        made.run()


@given(st.binary(max_size=LONGEST_LINE))
def test_any_line_decodes_or_raises_value_error(line: bytes) -> None:
    for read in (read_hold, read_held):
        try:
            read(line)
        except ValueError:
            continue


@given(st.text(max_size=64), st.integers(0, 2**62))
@settings(max_examples=50)
def test_messages_survive_the_wire(pod: str, size: int) -> None:
    assert read_hold(write_line(HoldRequest(pod, size))) == HoldRequest(pod, size)
    assert read_held(write_line(HoldReply(size, pod))) == HoldReply(size, pod)
