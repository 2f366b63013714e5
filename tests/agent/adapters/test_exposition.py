"""Reading node_exporter's text; prometheus_client's parser is the oracle."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agent.adapters.exposition import BUSY_MODES, KERNEL_MODES, read_sample
from agent.core.guest import CpuSeconds, GuestSample
from protocol.units import Bytes

PAGE = (Path(__file__).parent / "node_exporter.txt").read_bytes()


def oracle(page: bytes) -> dict[tuple[str, str, str], float]:
    return {
        (s.name, s.labels.get("cpu", ""), s.labels.get("mode", "")): s.value
        for family in text_string_to_metric_families(page.decode())
        for s in family.samples
    }


def test_a_real_page_reads_as_the_oracle_reads_it() -> None:
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
    )


def test_refaults_of_files_alone_are_refaults_and_those_of_programs_alone_are_not() -> None:
    assert read_sample(b"node_vmstat_workingset_refault_file 3\n").refaulted == 3 * 4096
    assert read_sample(b"node_vmstat_workingset_refault_anon 3\n").refaulted is None


def test_an_empty_page_is_a_sample_of_which_nothing_is_known() -> None:
    assert read_sample(b"") == GuestSample()


def test_a_bad_value_counts_as_missing() -> None:
    page = b"node_load1 NaN\nnode_load5 +Inf\nnode_procs_running x\nnode_memory_MemTotal_bytes -5\n"
    assert read_sample(page) == GuestSample()


def test_labels_in_any_order_timestamps_and_line_ends_of_any_kind_are_read() -> None:
    page = (
        b'node_cpu_seconds_total{mode="user",cpu="3"} 1.5 1700000000000\r\n'
        b'node_cpu_seconds_total{ cpu="3" , mode="idle" } 100\n'
        b"node_load1\t0.25  \n"
        b"node_load15 9\nnode_load1_extra 9\n# node_load5 9\n"
    )
    assert read_sample(page) == GuestSample(cpus={"3": CpuSeconds(1.5)}, load1=0.25)


@given(st.binary(max_size=300))
def test_whatever_a_guest_sends_is_a_sample(page: bytes) -> None:
    assert isinstance(read_sample(page), GuestSample)


@given(
    st.dictionaries(
        st.sampled_from(["node_load1", "node_load5", "node_procs_running", "node_boot_time_seconds"]),
        st.floats(min_value=0, allow_nan=False, allow_infinity=False),
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
