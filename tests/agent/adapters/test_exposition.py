"""Reading node_exporter's text; prometheus_client's parser is the oracle."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agent.adapters.exposition import BUSY_MODES, KERNEL_MODES, MAX_CPUS, SCALARS, read_sample
from agent.core.guest import CpuSeconds, GuestSample
from protocol.units import Bytes

PAGE = (Path(__file__).parent / "node_exporter.txt").read_bytes()


def oracle(page: bytes) -> dict[tuple[str, str, str], float]:
    return {
        (s.name, s.labels.get("cpu", ""), s.labels.get("mode", "")): s.value
        for family in text_string_to_metric_families(page.decode())
        for s in family.samples
    }


def test_real_page_matches_reference_parser() -> None:
    known, found = oracle(PAGE), read_sample(PAGE)
    busy, kernel = ({mode.decode() for mode in modes} for modes in (BUSY_MODES, KERNEL_MODES))
    for cpu in ("0", "1"):
        modes = {mode: v for (name, of, mode), v in known.items() if name == "node_cpu_seconds_total" and of == cpu}
        expected = CpuSeconds(
            busy=sum(v for m, v in modes.items() if m in busy),
            steal=modes["steal"],
            iowait=modes["iowait"],
            kernel=sum(v for m, v in modes.items() if m in kernel),
        )
        assert found.cpus[cpu] == expected
    assert set(found.cpus) == {"0", "1"}
    scalar = {name: value for (name, cpu, mode), value in known.items() if not cpu and not mode}
    assert found == GuestSample(
        cpus=found.cpus,
        boot_time=scalar["node_boot_time_seconds"],
        runnable=scalar["node_procs_running"],
        load1=scalar["node_load1"],
        load5=scalar["node_load5"],
        mem_total=Bytes(int(scalar["node_memory_MemTotal_bytes"])),
        mem_available=Bytes(int(scalar["node_memory_MemAvailable_bytes"])),
        cpu_stall=scalar["node_pressure_cpu_waiting_seconds_total"],
        mem_stall=scalar["node_pressure_memory_waiting_seconds_total"],
        io_stall=scalar["node_pressure_io_waiting_seconds_total"],
        mem_free=Bytes(int(scalar["node_memory_MemFree_bytes"])),
        refaulted=4096
        * (scalar["node_vmstat_workingset_refault_file"] + scalar["node_vmstat_workingset_refault_anon"]),
        read=1024 * scalar["node_vmstat_pgpgin"],
        written=1024 * scalar["node_vmstat_pgpgout"],
        oom_kills=scalar["node_vmstat_oom_kill"],
    )


def test_only_file_refaults_count() -> None:
    assert read_sample(b"node_vmstat_workingset_refault_file 3\n").refaulted == 3 * 4096
    assert read_sample(b"node_vmstat_workingset_refault_anon 3\n").refaulted is None


def test_empty_page_is_unknown_sample() -> None:
    assert read_sample(b"") == GuestSample()


def awake(*lines: str) -> tuple[str, ...]:
    return read_sample("".join(f"autoscale_database_awake{line}\n" for line in lines).encode()).awake


def test_reads_quiet_and_what_keeps_awake() -> None:
    page = b'autoscale_database_quiet_seconds 312.5\nautoscale_database_awake{reason="prepared"} 1\n'
    assert read_sample(page) == GuestSample(quiet=312.5, awake=("prepared",))
    assert awake('{reason="cron"} 0', '{reason="backup"} 1', '{reason="backup",more="x"} 1') == ("backup",)


@pytest.mark.parametrize("line", [" 1", '{reason=""} 1', '{reason="a b"} 1', '{reason="' + "a" * 33 + '"} 1', "{ 1"])
def test_database_stays_awake_in_doubt(line: str) -> None:
    assert awake(line) == ("unreadable",)
    assert awake('{reason="cron"} x') == ("cron",)


def test_reasons_to_stay_awake_are_bounded() -> None:
    assert len(awake(*(f'{{reason="r{number}"}} 1' for number in range(100)))) == 8


def test_reads_open_metrics() -> None:
    """Exemplars once hid the value, and timestamps in seconds counted as milliseconds."""
    page = (
        b"# TYPE node_cpu_seconds counter\n"
        b'node_cpu_seconds_total{mode="user",cpu="0"} 7.5 1790000000.25 # {trace_id="a"} 1.0 1790000000.0\n'
        b'node_cpu_seconds_created{mode="user",cpu="0"} 1.0\n'
        b'node_load1 0.5 # {trace_id="a b"} 1\n# EOF\n'
    )
    assert read_sample(page) == GuestSample(cpus={"0": CpuSeconds(7.5)}, load1=0.5, stamp=1790000000.25)


def test_a_bad_value_counts_as_missing() -> None:
    page = b"node_load1 NaN\nnode_load5 +Inf\nnode_procs_running x\nnode_memory_MemTotal_bytes -5\nhost_load1 1e300\n"
    assert read_sample(page) == GuestSample()


def test_reads_any_label_order_timestamp_and_line_end() -> None:
    page = (
        b'node_cpu_seconds_total{mode="user",cpu="3"} 1.5 1700000000000\r\n'
        b'node_cpu_seconds_total{ cpu="3" , mode="idle" } 100\n'
        b"node_load1\t0.25  \n"
        b"node_load15 9\nnode_load1_extra 9\n# node_load5 9\n"
    )
    assert read_sample(page) == GuestSample(cpus={"3": CpuSeconds(1.5)}, load1=0.25, stamp=1.7e9)


@given(st.binary(max_size=300))
def test_whatever_a_guest_sends_is_a_sample(page: bytes) -> None:
    assert isinstance(read_sample(page), GuestSample)


@given(
    st.dictionaries(
        st.sampled_from(["node_load1", "node_load5", "node_procs_running", "node_boot_time_seconds"]),
        st.floats(min_value=0, max_value=2.0**62),
    )
)
def test_every_number_reads_as_the_oracle_reads_it(values: dict[str, float]) -> None:
    page = "".join(f"{name} {value!r}\n" for name, value in values.items()).encode()
    known, found = oracle(page), read_sample(page)
    read = {
        "node_load1": found.load1,
        "node_load5": found.load5,
        "node_procs_running": found.runnable,
        "node_boot_time_seconds": found.boot_time,
    }
    assert {name: value for name, value in read.items() if value is not None} == {
        name: value for (name, _, _), value in known.items()
    }


VECTOR = b"""\
# HELP host_cpu_seconds_total cpu_seconds_total
# TYPE host_cpu_seconds_total counter
host_cpu_seconds_total{collector="cpu",cpu="0",host="pg-0",mode="idle"} 900.5 1700000000000
host_cpu_seconds_total{collector="cpu",cpu="0",host="pg-0",mode="io_wait"} 3.25 1700000000000
host_cpu_seconds_total{collector="cpu",cpu="0",host="pg-0",mode="nice"} 1 1700000000000
host_cpu_seconds_total{collector="cpu",cpu="0",host="pg-0",mode="system"} 20.5 1700000000000
host_cpu_seconds_total{collector="cpu",cpu="0",host="pg-0",mode="user"} 70 1700000000000
host_load1{collector="load",host="pg-0"} 0.5 1700000000000
host_load15{collector="load",host="pg-0"} 9 1700000000000
host_load5{collector="load",host="pg-0"} 0.25 1700000000000
host_memory_available_bytes{collector="memory",host="pg-0"} 3221225472 1700000000000
host_memory_total_bytes{collector="memory",host="pg-0"} 4294967296 1700000000000
"""


def test_vector_page_matches_reference_parser() -> None:
    known, found = oracle(VECTOR), read_sample(VECTOR)
    assert found == GuestSample(
        cpus={"0": CpuSeconds(busy=91.5, steal=0.0, iowait=3.25, kernel=20.5)},
        load1=known["host_load1", "", ""],
        load5=known["host_load5", "", ""],
        mem_total=Bytes(4 * 1024**3),
        mem_available=Bytes(3 * 1024**3),
        stamp=1.7e9,
        counted=995.25,
    )


def test_page_time_is_newest_cpu_timestamp() -> None:
    """An offline CPU keeps its last line for a while."""
    page = VECTOR + b'host_cpu_seconds_total{cpu="1",mode="user"} 5 1699999990000\n'
    assert read_sample(page).stamp == 1.7e9


LABELS = st.dictionaries(
    st.sampled_from(["cpu", "mode", "host", "a_b"]), st.text('ab}{,=# \\"', max_size=5), max_size=4
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["node_cpu_seconds_total", "host_cpu_seconds_total", "node_load1", "host_load5", "other"]),
            LABELS,
            st.floats(0, 1e15),
            st.sampled_from(["", " 1700000000000"]),
        ),
        max_size=5,
        unique_by=lambda line: line[0],
    )
)
def test_any_label_text_matches_reference_parser(
    lines: list[tuple[str, dict[str, str], float, str]],
) -> None:
    def line(name: str, labels: dict[str, str], value: float, stamp: str) -> str:
        escaped = {key: text.replace("\\", "\\\\").replace('"', '\\"') for key, text in labels.items()}
        inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
        return f"{name}{{{inside}}} {value!r}{stamp}"

    page = "\n".join(line(*each) for each in lines) + "\n"
    known = {name: value for (name, _, _), value in oracle(page.encode()).items()}
    found = read_sample(page.encode())
    assert (found.load1, found.load5) == (known.get("node_load1"), known.get("host_load5"))
    plain = [labels.get("cpu", "") for name, labels, _, _ in lines if name.endswith("cpu_seconds_total")]
    assert {cpu for cpu in plain if "\\" not in cpu and '"' not in cpu} <= set(found.cpus)


def test_every_metric_is_found() -> None:
    page = b"".join(name + b" 3\n" for name in SCALARS if name.startswith(b"node_"))
    found = read_sample(page + b"autoscale_database_quiet_seconds 3\n")
    missing = {"cpus", "stamp", "counted", "awake"}
    assert {name for name in found.__struct_fields__ if not getattr(found, name)} == missing
    assert found.refaulted == 2 * 3 * 4096
    host = read_sample(b"".join(name + b" 3\n" for name in SCALARS if name.startswith(b"host_")))
    assert (host.load1, host.load5, host.mem_total, host.mem_available) == (3, 3, Bytes(3), Bytes(3))


def test_cpus_are_bounded() -> None:
    """Each of them costs time when the page is read, and again when it is compared with the next."""
    cpus = [f'node_cpu_seconds_total{{cpu="{number}",mode="user"}} 1\n' for number in range(2 * MAX_CPUS)]
    page = "".join((*cpus, 'node_cpu_seconds_total{cpu="0",mode="system"} 2\n')).encode()
    found = read_sample(page).cpus
    assert (len(found), found["0"].busy) == (MAX_CPUS, 3.0)


MIB = 1024 * 1024
HOSTILE = {
    "blanks after a name": lambda size: b"node_load1" + b" " * size,
    "blanks in lines": lambda size: (b"node_load1" + b" " * 900 + b"\n") * (size // 911),
    "an unclosed label": lambda size: b"host_load1{" + b'a="' + b"\\x" * (size // 2),
    "labels without end": lambda size: (b"host_load1{" + b'a="",' * 190 + b"} 1\n") * (size // 965),
    "words": lambda size: b"node_load1" + b" 1" * (size // 2),
    "wanted lines": lambda size: b"node_load1 1\n" * (size // 13),
    "almost wanted lines": lambda size: b"node_memory_MemTotal_byte\n" * (size // 26),
    "empty lines": lambda size: b"\n" * size,
    "short lines": lambda size: b"n\n" * (size // 2),
    "all labels": lambda size: (b"host_load1{" + b'a="",' * 15 + b'a=""} 1\n') * (size // 98),
    "no line at all": lambda size: b"node_" * (size // 5),
}


def work(page: bytes) -> float:
    """The least CPU time of several runs, in seconds, because noise only adds."""
    times = []
    for _ in range(3):
        began = process_time()
        read_sample(page)
        times.append(process_time() - began)
    return min(times)


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_parsing_time_is_linear(kind: str) -> None:
    """A page four times as long takes about four times as long to parse."""
    part, whole = work(HOSTILE[kind](MIB // 8)), work(HOSTILE[kind](MIB // 2))
    assert whole <= 10 * part + 0.002, "quadratic work would be 16 times as much, and far more than 2 ms"
