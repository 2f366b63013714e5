"""The document of security shows the attacks as they are made."""

from tests.kubernetes.attacks.table import DOCUMENT, with_tables


def test_the_attack_table_is_that_of_the_attacks() -> None:
    text = DOCUMENT.read_text()
    assert text == with_tables(text), "run python -m tests.kubernetes.attacks.table"
