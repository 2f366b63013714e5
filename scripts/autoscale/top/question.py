"""Dialogs above the table: a question, and the text of the help."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from scheduler_plugin.dashboard.core.states import NODE_STATES, VM_STATES, VmState


def _listed(states: tuple[VmState, ...]) -> str:
    return "\n".join(f"  {state.word:<10} {state.means}" for state in states)


HELP: Final = f"""\
arrows, j k, page keys    another row; left and right scroll sideways
home end, g G             the first row, the last one
< >                       sort by the column before, the next one
r                         sort the other way round
/                         filter: words, ns:shop node=node-1 state:denied; escape takes it away
enter                     why has this VM its size? (explain, live)
m                         migrate this VM, after a question
n                         nodes, or VMs again
?                         this help
q, Ctrl-C                 quit

States of a VM, the worst first; else its phase:
{_listed(VM_STATES)}
States of a node, likewise; else open:
{_listed(NODE_STATES)}
Columns that do not fit are left out, the least important first; a wider terminal shows more.
`autoscale top --once` prints all of them, and `-o json` for scripts.
"""


class Question(ModalScreen[bool]):
    """Yes or no; anything but yes does nothing."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question .question {
        width: 80%; max-width: 90; height: auto; border: round $warning; background: $surface; padding: 1 2;
    }
    Question .keys { color: $text-muted; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        # Enter means no: it also opens explanations, and is easily pressed once more.
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question and its answers."""
        with Vertical(classes="question"):
            yield Static(Content(self._question), id="question")
            yield Static(Content("y: yes    n: no"), classes="keys")

    def action_answer(self, is_yes: bool) -> None:
        """Passes the answer on."""
        self.dismiss(is_yes)
