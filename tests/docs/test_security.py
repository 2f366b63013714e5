"""The document of security shows the attacks as they are made."""

from tests.kubernetes.attacks.table import DOCUMENT, with_tables


def test_attack_table_matches_the_tests() -> None:
    text = DOCUMENT.read_text()
    assert text == with_tables(text), "run python -m tests.kubernetes.attacks.table"
