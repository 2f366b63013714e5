"""docs/check.md says what the table says, and every line leads to a place on it."""

from scripts.autoscale.check.page import page
from scripts.autoscale.check.table import CHECKS, evaluate
from tests.deploy.manifests import ROOT
from tests.scripts.check.good_state import good

PAGE = ROOT / "docs" / "check.md"


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text() == page(), "python -m scripts.autoscale.check.page writes it"


def test_every_check_has_a_section() -> None:
    text = PAGE.read_text()
    found = {each.check.page.partition("#")[2] for before in (True, False) for each in evaluate(good(), before=before)}
    assert found == {each.id for each in CHECKS}
    assert [name for name in found if f"\n### {name}\n" not in text] == []


def test_ids_and_titles_are_unique() -> None:
    assert len({each.id for each in CHECKS}) == len({each.title for each in CHECKS}) == len(CHECKS)
