"""Recordings as other tools write them: forms that are read, and errors that name the line."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from deploy.neonvm.simulated.recording_file import LONGEST_LINE, open_recording
from deploy.neonvm.simulated.recording_rows import RecordingError, RecordingRows, Row, parse_rows

PLAIN = "seconds,cpu_cores,mem_bytes\n0,1.5,100\n60,2,200\n"
ROWS = [(0.0, 1.5, 100.0), (60.0, 2.0, 200.0)]


def parsed(text: str) -> RecordingRows:
    return parse_rows(text.splitlines(keepends=True), "r.csv")


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "Mem_Bytes, CPU_CORES,Seconds\n100,1.5,0\n \n,,\n200,2,60\n \n",
        "seconds;cpu_cores;mem_bytes\n0;1,5;100\n60;2;200\n",
        "seconds\tcpu_cores\tmem_bytes\n0\t1,5\t100\n60\t2.0\t200\n",
        'sep=;\n"Time";"CPU";"Mem"\n"0";"1,5";"100"\n"60";"2";"200"\n',
        "# exported\n\n" + PLAIN.replace("\n60", "\n# a gap\n\n60"),
        "seconds,cpu_cores,mem_bytes,\n0,1.5,100,\n60,2,200,,\n",
        "timestamp,cpu,mem\n0,1500m,0.1k\n6e1,2,2e2\n",
        '"seconds", "cpu_cores", "mem_bytes"\n"0\n", "1.5", "100"\n60, 2, 200\n',
    ],
)
def test_form_is_read(text: str) -> None:
    recording = parsed(text)
    assert (list(recording.rows), recording.has_memory) == (ROWS, True)


@pytest.mark.parametrize(
    ("cells", "cores"),
    [
        (("3,600", "0,125"), [3.6, 0.125]),
        (("3,600", "2,5"), [3.6, 2.5]),
        (("3,6005", "1000,125"), [3.6005, 1000.125]),
        (("3.600", "1.250"), [3.6, 1.25]),
        (("1.704e1", "2,5"), [17.04, 2.5]),
        (("3,600", "1500,0m"), [3.6, 1.5]),
        (("1,2345e1", "2,3456e1"), [12.345, 23.456]),
        (("1.2345e1", "2,5"), [12.345, 2.5]),
    ],
)
def test_decimal_comma_is_proven_by_another_number(cells: tuple[str, str], cores: list[float]) -> None:
    """With three digits after it, a comma may separate thousands instead."""
    rows = parsed(f"time;cpu\n2024-01-01 00:00:00,000;{cells[0]}\n2024-01-01 00:00:01,500;{cells[1]}\n").rows
    assert list(rows) == [(0.0, cores[0], 0.0), (1.5, cores[1], 0.0)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("-30", "30"),
        ("1704067200", "1704067260"),
        ("1704067200000", "1704067260000"),
        ("1.7040672e15", "1.70406726e15"),
        ("1704067200000000000", "1704067260000000000"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:01:00Z"),
        ("2024-01-01 00:59:30+01", "2024-01-01T00:00:30.000+00:00"),
        ("2023-12-31 23:59:30", "2024-01-01 00:00:30 UTC"),
    ],
)
def test_times_have_any_unit(first: str, second: str) -> None:
    assert list(parsed(f"time,cpu\n{first},1\n{second},2\n").rows) == [(0.0, 1.0, 0.0), (60.0, 2.0, 0.0)]


@pytest.mark.parametrize(
    ("header", "notes"),
    [
        ("Seconds,cpu_cores,", ()),
        ("time,CPU,", ("read the column 'CPU' as vCPUs",)),
        ("time,cpu,host", ("read the column 'cpu' as vCPUs", "ignored the columns 'host'")),
        ("time,cpu_cores,\x1b[31m", (r"ignored the columns '\x1b[31m'",)),
    ],
)
def test_columns_are_noted(header: str, notes: tuple[str, ...]) -> None:
    recording = parsed(f"{header}\n0,1,a\n" if header[-1] != "," else f"{header}\n0,1,\n")
    assert (list(recording.rows), recording.has_memory, recording.notes) == ([(0, 1, 0)], False, notes)


COLUMNS = r'expected the columns "seconds,cpu_cores\[,mem_bytes\]", got '
AMOUNTS = r"expected amounts from 0 to 1e\+18, got "


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ":1: " + COLUMNS + "''"),
        ("\n\n", ":2: " + COLUMNS + "''"),
        ("# none\n\nload,cpu\n1,2\n", ":3: " + COLUMNS + "'load,cpu'"),
        ('[{"seconds": 0}]', ":1: " + COLUMNS),
        ("seconds,cpu_cores,seconds\n0,1,2\n", ":1: " + COLUMNS),
        ("seconds,cpu,cpu_cores\n0,1,2\n", ":1: " + COLUMNS),
        ("seconds,mem_bytes\n0,1\n", ":1: " + COLUMNS),
        ("seconds,cpu_cores\n0,1\n1,x\n", ":3: expected numbers, got '1,x'"),
        ("seconds,cpu_cores\n0,1\n1,\n", ":3: expected numbers, got '1,'"),
        ("seconds,cpu_cores\n0,\x00\n", ":2: expected numbers, got "),
        ("seconds,cpu_cores\n0,1\n1\n", ":3: expected 2 columns, got '1'"),
        ("seconds,cpu_cores\n0,1\n1,2,3\n", ":3: expected 2 columns, got '1,2,3'"),
        ("seconds,cpu_cores\n0,1\n1,-1\n", ":3: " + AMOUNTS + "'1,-1'"),
        ("seconds,cpu_cores\n0,1\n1,nan\n", ":3: " + AMOUNTS),
        ("seconds,cpu_cores\n0,1\n1,1e308\n", ":3: " + AMOUNTS),
        ("seconds,cpu_cores\n0,1\n5,1\n5,2\n", ":4: time does not advance from '5' to '5'"),
        ("seconds,cpu_cores\n\n0,1\n5,1\n\n4,2\n", ":6: time does not advance from '5' to '4'"),
        ('seconds,cpu_cores\n0,1\n"5\n",1\n\n5,2\n', ":6: time does not advance"),
        ("time,cpu\nsoon,2\n", ":2: expected seconds, or a time such as 2026-01-31T10:00:00Z, got 'soon'"),
        ("time,cpu\nnan,2\n", ":2: expected seconds"),
        ("seconds;cpu_cores\n0;1\n1;3,600\n2;1\n", ":3: '3,600' may be 3600 or 3.600: write all numbers without"),
        ("seconds;cpu_cores\n0;1\n3,600;2.5\n", ":3: '3,600' may be 3600 or 3.600: write all"),
        ("seconds\tcpu\tmem_bytes\n0\t1\t1,073Mi\n", ":2: '1,073Mi' may be 1073Mi or 1.073Mi: write all"),
        ("seconds;cpu_cores\n999;1\n1,000;2\n", ":3: '1,000' may be 1000 or 1.000: write all"),
        ("seconds;cpu_cores\n0;1.250\n1;2,5\n", ":2: '1.250' may be 1250 or 1.250: write all"),
        ("seconds;cpu_cores\n0;1\n1;1.250,5\n", ":3: expected numbers, got '1,1.250,5'"),
        ('seconds,cpu_cores\n0,1\n1,"3,600"\n', ":3: expected numbers, got '1,3,600'"),
        ('seconds,cpu_cores\n"' + 140 * (1000 * "0" + "\n"), ":132: not CSV: field larger than field limit"),
    ],
)
def test_error_names_the_line(text: str, problem: str) -> None:
    with pytest.raises(RecordingError, match=r"^r\.csv" + problem):
        list(parsed(text).rows)


def read(path: Path) -> list[Row]:
    with open_recording(path) as recording:
        return list(recording.rows)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_file_is_read(encoding: str, line_end: str, tmp_path: Path) -> None:
    path, content = tmp_path / "r.csv", PLAIN.replace("\n", line_end).encode(encoding)
    path.write_bytes(content)
    assert read(path) == ROWS
    path.write_bytes(gzip.compress(content))
    assert read(path) == ROWS


def test_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(PLAIN,))
    writer.start()
    assert read(pipe) == ROWS
    writer.join()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(PLAIN.encode())[:40], "r.csv: damaged gzip file: Compressed file ended"),
        (gzip.compress(PLAIN.encode())[:-8] + bytes(8), "r.csv: CRC check failed"),
        (b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 9, "r.csv: damaged gzip file: Error -3"),
        (b"seconds,cpu_cores\n0,1\n5,\xe9\n", "r.csv:3: expected numbers, got '5,\ufffd'"),
        (b"seconds,cpu_cores\n" + b"0" * LONGEST_LINE, "r.csv:2: expected a line of less than 65,536 characters"),
    ],
    ids=["truncated gzip", "wrong checksum", "no deflate", "not UTF-8", "long line"],
)
def test_damaged_file_is_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(content)
    with pytest.raises(RecordingError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{tmp_path}/{problem}")


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    for path, problem in ((tmp_path, "Is a directory"), (tmp_path / "r.csv", "No such file or directory")):
        with pytest.raises(RecordingError) as refused:
            read(path)
        assert str(refused.value) == f"{path}: {problem}"
