"""Names in the documents exist, and their examples work."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from protocol.codec import decode_request, encode_response
from protocol.messages import PluginResponse
from protocol.units import Bytes, ComputeUnit, MilliCpu, Resources, Seconds
from protocol.wire.wire_batches import decode_batch, encode_batch, granted_entry, refused_entry
from scripts.autoscale.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = ("agent", "deploy", "docs", "protocol", "scheduler_plugin", "scripts", "tests", "vm_image")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./{{}},*-]+)`")
_BRACES = re.compile(r"\{([^{}]*)\}")


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def spelled_out(path: str) -> Iterator[str]:
    """``a/{b,c}.py`` as ``a/b.py`` and ``a/c.py``."""
    found = _BRACES.search(path)
    if found is None:
        yield path
        return
    for choice in found[1].split(","):
        yield from spelled_out(path[: found.start()] + choice + path[found.end() :])


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_links_resolve(document: Path) -> None:
    links = _LINK.findall(document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)
def test_named_files_exist(document: Path) -> None:
    named = {path for found in _PATH.findall(document.read_text()) for path in spelled_out(found)}
    assert sorted(path for path in named if not any(ROOT.glob(path.rstrip("/")))) == []


def test_index_reaches_all_documents() -> None:
    indexes = (ROOT / "docs" / "README.md", ROOT / "docs" / "runbooks" / "README.md")
    linked = {(index.parent / link).resolve() for index in indexes for link in _LINK.findall(index.read_text())}
    assert [by_name(each) for each in DOCUMENTS if each != indexes[0] and each not in linked] == []


def test_named_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for each in DOCUMENTS for name in re.findall(r"`make ([a-z-]+)", each.read_text())}
    assert named <= targets


def test_named_autoscale_commands_exist() -> None:
    root = get_command(app())
    commands = set(getattr(root, "commands", {}))
    named = {name for each in DOCUMENTS for name in re.findall(r"`autoscale ([a-z]+)", each.read_text())}
    assert named <= commands
    table = (ROOT / "README.md").read_text().partition("| `autoscale` | |")[2].partition("\n\n")[0]
    assert commands == {name.split()[0] for name in re.findall(r"^\| `([a-z]+)", table, re.MULTILINE)}


def test_protocol_examples_match_the_codec() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    request, response, batch, answers = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    slot = Bytes.parse("1Gi")
    asked = decode_request(request.encode())
    assert asked.resolve(slot).resources == Resources.parse(1, "4Gi")
    permit = PluginResponse(Resources.parse("750m", "4Gi"), ComputeUnit(MilliCpu(250), slot), migrate=False)
    assert json.loads(encode_response(asked.version, permit, slot)) == json.loads(response)
    entries = [decode_request(each) for each in decode_batch(batch.encode())]
    assert [str(each.resolve(slot).resources) for each in entries] == ["1 cpu, 4Gi", "2 cpu, 8Gi"]
    granted = PluginResponse(Resources.parse(1, "4Gi"), permit.compute_unit)
    why = "VirtualMachine default/pg-2 of pod default/pg-2 is not known yet"
    told = [granted_entry(encode_response(asked.version, granted, slot)), refused_entry(503, why, Seconds(1.0))]
    assert json.loads(encode_batch(told)) == json.loads(answers)


def test_decisions_are_short() -> None:
    """A decision record has at most 400 words: context, decision, consequences, rejected."""
    records = sorted((ROOT / "docs/decisions").glob("*.md"))
    words = {path.name: len(re.findall(r"[\w.%/'-]*[A-Za-z][\w.%/'-]*", path.read_text())) for path in records}
    assert {name: count for name, count in words.items() if count > 400} == {}
