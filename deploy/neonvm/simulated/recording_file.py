"""Opens files of recordings: plain or compressed with gzip, in UTF-8 or, with a byte order mark, in UTF-16."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from deploy.neonvm.simulated.recording_rows import RecordingError, RecordingRows, parse_rows

LONGEST_LINE: Final = 65_536  # characters
_GZIP: Final = b"\x1f\x8b"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def open_recording(path: Path) -> Iterator[RecordingRows]:
    """The rows of the file at ``path``, which may be a pipe. They are read while the context is open.

    Raises ``RecordingError``.
    """
    try:
        with path.open("rb") as file:
            is_compressed = file.peek(2)[:2] == _GZIP
            content = io.BufferedReader(gzip.GzipFile(fileobj=file)) if is_compressed else file
            encoding = "utf-16" if content.peek(2)[:2] in _UTF_16 else "utf-8-sig"
            # Invalid characters are only errors in cells that are read.
            with io.TextIOWrapper(content, encoding=encoding, errors="replace") as text:
                yield parse_rows(_lines(text, path), str(path))
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise RecordingError(f"{path}: damaged gzip file: {error}") from None


def _lines(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """The lines, each in bounded memory: a file without line breaks may be endless, as ``/dev/zero`` is."""
    for number in count(1):
        line = text.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) == LONGEST_LINE:
            raise RecordingError(f"{path}:{number}: expected a line of less than {LONGEST_LINE:,} characters")
        yield line
