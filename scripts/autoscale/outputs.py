"""Options, input checks and reports of commands that read recordings or write files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer
import yaml

from protocol.durations import DurationError, parse_duration
from protocol.units import Seconds

OutputFiles = Literal["text", "json", "yaml"]

Recordings = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        "--traces",
        help="Recordings (seconds,cpu_cores[,mem_bytes]) or folders of them (default: generated ones).",
    ),
]
ReportForm = Annotated[OutputFiles, typer.Option("--output", "-o", help="text: tables; json or yaml: for scripts.")]
Speed = Annotated[float, typer.Option(min=0.001, max=1e6, help="Replay recordings this many times faster.")]
SleepAfter = Annotated[
    str,
    typer.Option(
        "--sleep",
        show_default="off",
        help="Also report what sleep would save after this time without load, such as 15m.",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", hidden=True, help="The same as -o json.")]


def write_report(document: bytes, form: OutputFiles) -> None:
    """Prints a JSON document, or the same document as YAML."""
    if form == "yaml":
        # Converted from the JSON document, so that both have the same fields.
        document = yaml.safe_dump(json.loads(document), sort_keys=False, allow_unicode=True).encode().rstrip(b"\n")
    # Bytes, so that a terminal's encoding cannot break JSON.
    sys.stdout.buffer.write(document + b"\n")
    sys.stdout.flush()


async def write_outcome(outcome: object, path: Path | None) -> None:
    """Writes an outcome as JSON to the file of ``--report``, if one is given."""
    if path is not None:
        await asyncio.to_thread(path.write_bytes, msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")


_PICTURES: Final = (".png", ".svg", ".pdf")


def check_output_path(path: Path | None) -> Path | None:
    """Refuses a file that cannot be written, or whose folder does not exist. Raises ``typer.BadParameter``."""
    # Checked first: a replay may take minutes before it writes its picture.
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"folder {str(path.parent)!r} does not exist")
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a folder")
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written")
    return path


def check_folder(path: Path | None) -> Path | None:
    """Refuses a folder to write to that is a file. Raises ``typer.BadParameter``."""
    if path is not None and path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is not a folder")
    return path


def check_picture_path(path: Path | None) -> Path | None:
    """Refuses a file whose folder does not exist, or whose format is unknown. Raises ``typer.BadParameter``."""
    if path is not None and path.suffix not in _PICTURES:
        raise typer.BadParameter(f"{path.name!r} does not end in {', '.join(_PICTURES)}")
    return check_output_path(path)


def parse_sleep_after(text: str) -> Seconds:
    """Parses ``--sleep``; 0 means that VMs do not sleep. Raises ``typer.BadParameter``."""
    try:
        after = parse_duration(text)
    except DurationError as error:
        raise typer.BadParameter(str(error), param_hint="--sleep") from None
    # Guests report every 15 s how long they have been idle, and agents accept no less than a minute.
    if after and not 60 <= after <= 7 * 86_400:
        raise typer.BadParameter(f"expected 1m to 7d, got {text!r}", param_hint="--sleep")
    return after


@contextmanager
def reporting_bad_input(command: str, *errors: type[ValueError]) -> Iterator[None]:
    """Ends ``command`` with exit code 2 and one line if a file fails, or one of ``errors`` is raised."""
    try:
        yield
    except OSError as error:
        # Some OSErrors have no file name.
        print(f"{command}: {f'{error.filename}: ' if error.filename else ''}{error.strerror}", file=sys.stderr)
        raise typer.Exit(2) from None
    except errors as error:
        print(f"{command}: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
