"""The page of a sleeping guest is a short one that scrapers read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from deploy.neonvm.sleep.asleep_page import MAX_RESPONSE, NOT_FOUND, asleep_response


def body(page: bytes) -> str:
    head, _, text = asleep_response(page).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(text)}\r\n".encode() in head
    return text.decode()


def test_essential_lines_stay() -> None:
    page = (
        b"# HELP node_load1 1m load average.\n# TYPE node_load1 gauge\nnode_load1 0.5\nnode_netstat_Tcp_InSegs 7\n"
        b'node_cpu_seconds_total{cpu="0",mode="user"} 12.5\nautoscale_database_quiet_seconds 900\n'
    )
    assert body(page).splitlines() == [
        "autoscale_asleep 1",
        "autoscale_database_quiet_seconds 900",
        "node_load1 0.5",
        'node_cpu_seconds_total{cpu="0",mode="user"} 12.5',
    ]


def test_labels_may_have_spaces() -> None:
    """The kernel's version has some, and a mount point may."""
    page = b'node_uname_info{release="6.1",version="#1 SMP Debian 6.1 {x}"} 1\nnode_load1{of="a b"} 0.5 1700000000000\n'
    assert body(page).splitlines() == ["autoscale_asleep 1", page.decode().splitlines()[0]]


def test_older_state_and_old_times_go() -> None:
    """The page may be from a guest that said it was awake, and Prometheus rejects samples of the past."""
    assert body(b"autoscale_asleep 0\nnode_load1 0.5 1700000000000\n") == "autoscale_asleep 1\n"


def test_family_is_whole_or_absent() -> None:
    cpus = b"".join(b'node_cpu_seconds_total{cpu="%d",mode="user"} 1\n' % cpu for cpu in range(200))
    assert body(cpus + b"node_load1 0.5\n").splitlines() == ["autoscale_asleep 1", "node_load1 0.5"]


def test_no_page_is_a_page_too() -> None:
    assert body(b"") == "autoscale_asleep 1\n"
    assert NOT_FOUND.startswith(b"HTTP/1.1 404 ")


LINES = st.one_of(
    st.binary(max_size=300),
    st.from_regex(
        rb"(node_load[0-9]|autoscale_[a-z]{1,200}|node_memory_Swap)(\{[a-z=\"]*\})? [0-9]{1,5}", fullmatch=True
    ),
)


@given(st.lists(LINES, max_size=60))
def test_page_is_bounded_whatever_the_guest_says(lines: list[bytes]) -> None:
    response = asleep_response(b"\n".join(lines))
    assert len(response) <= MAX_RESPONSE
    assert b"\r\n\r\nautoscale_asleep 1\n" in response


def test_prometheus_reads_the_page() -> None:
    page = b'node_filesystem_size_bytes{device="/dev/vda",mountpoint="/"} 1e+09\nnode_load1 0.5\nnode_load5 0.25\n'
    families = {family.name for family in text_string_to_metric_families(body(page))}
    assert families == {"autoscale_asleep", "node_load1", "node_load5", "node_filesystem_size_bytes"}
