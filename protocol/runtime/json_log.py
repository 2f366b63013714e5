"""The log format of all programs: one JSON object per line, with the same field names everywhere.

- Every line contains ``ts`` (RFC 3339, UTC, milliseconds), ``level``, ``logger`` and ``msg``; ``error`` is the
  traceback and ``stack`` the stack, if any. Other fields come from ``extra=`` and keep their names: ``vm``, ``node``,
  ``pod`` …
- A record is always one line of valid JSON.
- Tokens and private keys are redacted from every line.
- Control characters are escaped, so that no text can manipulate the terminal.
"""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

QUIET: Final = ("httpx2", "httpcore2", "uvicorn", "asyncio")
"""Verbose libraries, of which only warnings are logged."""

# ``taskName`` is an attribute of records from Python 3.12 on.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FIELDS: Final = frozenset({"ts", "level", "logger", "msg"})
_LONGEST: Final = 16 * 1024
_SECRETS: Final = re.compile(
    r"(?<=Bearer )[\w.~+/=-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|(?=\"|$))",
    re.DOTALL,
)
"""Bearer tokens and PEM keys, in a text or an encoded line. No match contains a quotation mark."""

STEERING: Final = r"\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""A regular expression's character range that JSON does not escape: terminal control characters, and marks that reverse
the text direction.
"""

_STEERING: Final = re.compile(f"[{STEERING}]")

_RUNS: Final = re.compile(r"[\w.-]{20,}+")
"""Runs that may contain a JSON Web Token. Possessive, so that untrusted text cannot cause backtracking."""

_TOKEN: Final = re.compile(r"eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]++")


class JsonFormatter(logging.Formatter):
    """A record as one JSON object.

    >>> record = logging.makeLogRecord({"name": "agent", "levelname": "INFO", "msg": "resized", "created": 0.0})
    >>> record.vm = "default/db"
    >>> JsonFormatter().format(record)
    '{"ts":"1970-01-01T00:00:00.000Z","level":"info","logger":"agent","msg":"resized","vm":"default/db"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line without its newline."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {
            "ts": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": _message(record),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD:
                # A field of the caller must not replace a standard field.
                line[f"{name}_" if name in _FIELDS else name] = _cut(name, value)
        if record.exc_info:
            line["error"] = _end(self.formatException(record.exc_info))
        elif record.exc_text:
            line["error"] = _end(record.exc_text)
        if record.stack_info:
            line["stack"] = _end(self.formatStack(record.stack_info))
        return without_steering(without_secrets(_encoded(line)))


def without_steering(text: str) -> str:
    r"""JSON text with control characters and direction marks escaped.

    >>> without_steering('"\x9b2J"')
    '"\\u009b2J"'
    """
    return _STEERING.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def without_secrets(line: str) -> str:
    """An encoded line with tokens and private keys redacted, in time linear in its length."""
    return _RUNS.sub(lambda run: _without_token(run[0]), _SECRETS.sub("<secret>", line))


def _without_token(run: str) -> str:
    """``run`` without its tokens. If the first ``eyJ`` of a segment does not start a token, no later one can."""
    parts, done, at = list[str](), 0, run.find("eyJ")
    while at >= 0:
        if token := _TOKEN.match(run, at):
            parts += (run[done:at], "<secret>")
            done = next_at = token.end()
        else:
            # Continue after the next dot.
            next_at = run.find(".", at) + 1 or len(run)
        at = run.find("eyJ", next_at)
    return "".join((*parts, run[done:]))


def log_as_json(level: str = "info", stream: TextIO | None = None) -> None:
    """Log everything in this process to ``stream`` (default: stderr) as JSON; replaces any earlier configuration."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _cut(name: str, value: object) -> object:
    # A field may contain user input of any length, such as a name that is not validated yet.
    if not isinstance(value, str):
        return value
    return _end(value) if name == "error" else value[:_LONGEST]


def _end(text: str) -> str:
    """The end of a traceback, which contains the error."""
    # Redact before truncating, because a truncated secret would not be recognized.
    return text if len(text) <= _LONGEST else without_secrets(text)[-_LONGEST:]


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()[:_LONGEST]
    except Exception:  # noqa: BLE001 - wrong arguments must not lose the line
        return f"{_text(record.msg)} {_text(record.args)}"[:_LONGEST]


def _encoded(line: dict[str, object]) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=_text).decode()
    except (TypeError, ValueError, RecursionError, OverflowError):
        # Convert each field to text: one invalid value must not lose the line.
        plain = {name: _text(value).encode(errors="replace").decode() for name, value in line.items()}
        return msgspec.json.encode(plain).decode()


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a failing ``__str__`` must not lose the line
        return f"<a {type(value).__name__} that cannot be shown: {type(error).__name__}>"
