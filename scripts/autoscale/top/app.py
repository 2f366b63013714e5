"""The terminal application: draws snapshots of a ``Source``, and handles keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from scheduler_plugin.dashboard.core.states import NODE_STATES, VM_STATES, VmState
from scheduler_plugin.databases import database_in
from scripts.autoscale.migrate import no_migration_reason
from scripts.autoscale.terminal.text_screen import TextScreen
from scripts.autoscale.terminal.visible import visible
from scripts.autoscale.top.columns import NODE_COLUMNS, VM_COLUMNS, PlacedColumn, View, fitted
from scripts.autoscale.top.fleet import FleetSnapshot
from scripts.autoscale.top.row_list import RowList


def _listed(states: tuple[VmState, ...]) -> str:
    return "\n".join(f"  {state.word:<10} {state.means}" for state in states)


HELP: Final = f"""\
arrows, j k, page keys    move to another row; left and right scroll sideways
home end, g G             move to the first or last row
< >                       sort by the previous or next column
r                         reverse the order
/                         filter: words, ns:shop node=node-1 state:denied; escape removes it
enter                     explain the database's size, live; on a node, show its databases
m                         migrate the VM, after a confirmation
n                         switch between nodes and databases
?                         this help
q, Ctrl-C                 quit

States of a database, worst first; otherwise its phase is shown:
{_listed(VM_STATES)}
States of a node, worst first; otherwise it is open:
{_listed(NODE_STATES)}
Columns that do not fit are hidden, the least important first; a wider terminal shows more.
`autoscale top --once -o wide` prints all of them; `-o json` is for scripts.
"""


class Question(ModalScreen[bool]):
    """A yes-or-no question; no is the default."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question .question {
        width: 80%; max-width: 90; height: auto; border: round $warning; background: $surface; padding: 1 2;
    }
    Question .keys { color: $text-muted; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        # Enter also opens explanations, so it is easily pressed by mistake.
        Binding("n,escape,q,enter", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question and its keys."""
        with Vertical(classes="question"):
            yield Static(Content(self._question), id="question")
            yield Static(Content("y: yes    n: no"), classes="keys")

    def action_answer(self, is_yes: bool) -> None:
        """Closes the screen with the answer."""
        self.dismiss(is_yes)


_KEYS: Final = "enter explain  m migrate  n nodes/databases  < > sort  r reverse  / filter  ? help  q quit"


class Source(Protocol):
    """Source of the application's data."""

    @property
    def title(self) -> str:
        """The name of the cluster."""

    async def read(self, on_screen: Sequence[str]) -> FleetSnapshot:
        """Returns the current state, with fresh data of the databases ``on_screen``."""

    async def explain(self, vm: str) -> list[str]:
        """Explains the database's size."""

    def question(self, vm: str) -> str:
        """The question to confirm a migration of the VM, with its consequences."""

    async def move(self, vm: str) -> str:
        """Starts a migration of the VM; returns a message."""


class TopApp(App[None]):
    """Nodes and databases, live."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #title, #trouble, #detail, #keys { height: auto; }
    #title { text-style: bold; }
    #trouble { color: $error; text-style: bold; display: none; }
    #detail { min-height: 1; max-height: 3; }
    #keys { color: $text-muted; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    RowList { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        # Textual binds ctrl+c to copying.
        Binding("ctrl+c", "quit", "quit", priority=True),
        Binding("n", "nodes", "nodes"),
        Binding("less_than_sign", "sort(-1)", "sort"),
        Binding("greater_than_sign", "sort(1)", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "clear", "clear"),
        Binding("m", "migrate", "migrate"),
        Binding("question_mark", "explain_keys", "help"),
    ]

    def __init__(self, source: Source, every: float = 1.0) -> None:
        super().__init__()
        self._source, self._every = source, every
        self._snapshot = FleetSnapshot()
        self._message = ""
        self._of_nodes = False
        # Nodes and databases have separate filters and orders.
        self._views = {True: View(NODE_COLUMNS, "node"), False: View(VM_COLUMNS, "vm")}
        self._placed: list[PlacedColumn] = []
        self._rows = RowList(id="rows")
        self._texts = {name: Static(id=name) for name in ("title", "trouble", "detail")}
        self._filter = Input(id="filter", placeholder="words, ns:…, node=…, state:…")

    def compose(self) -> ComposeResult:
        """Title, errors, table, the selected row's last decision, filter and keys."""
        yield self._texts["title"]
        yield self._texts["trouble"]
        yield self._rows
        yield self._texts["detail"]
        yield self._filter
        yield Static(Content(_KEYS), id="keys")

    async def on_ready(self) -> None:
        """Starts to refresh."""
        self._rows.focus()
        self.run_worker(self._follow(), exclusive=True)

    async def _follow(self) -> None:
        while True:
            await self.refresh_once()
            await asyncio.sleep(self._every)

    async def refresh_once(self) -> None:
        """Reads a snapshot, and draws it."""
        self._snapshot = await self._source.read([row.name for row in self._rows.on_screen if not self._of_nodes])
        self.draw()

    @property
    def view(self) -> View:
        """The view on the screen, of nodes or databases."""
        return self._views[self._of_nodes]

    def draw(self) -> None:
        """Draws the last snapshot."""
        view, everything = self.view, self._snapshot.nodes if self._of_nodes else self._snapshot.vms
        rows = view.rows(everything)
        self._placed = fitted(view.columns, rows, self._rows.size.width, view.sorted_by)
        self._rows.show(rows, self._placed, view.sorted_by, descending=view.descending)
        kind = "nodes" if self._of_nodes else "databases"
        count = f"{len(everything)} {kind}" if not view.words else f"{len(rows)} of {len(everything)} {kind}"
        self._show("title", f"{self._source.title}   {count}" + (f"   filter: {view.words}" if view.words else ""))
        self._show("trouble", "  ".join(self._snapshot.troubles), hide=True)
        self._detail()

    def _detail(self) -> None:
        """Shows a message, or the full last decision of the selected row, which its column may truncate."""
        row = self._rows.chosen
        self._show("detail", self._message or ("" if row is None else f"{row.name}: {row.cells[-1]}"))

    def _show(self, where: str, text: str, *, hide: bool = False) -> None:
        widget = self._texts[where]
        widget.update(Content(visible(text)))
        widget.display = bool(text) or not hide

    def on_resize(self, _: events.Resize) -> None:
        """Draws again: other columns may fit."""
        # The table's size is known only after the next layout.
        self.call_after_refresh(self.draw)

    def on_key(self, _: events.Key) -> None:
        """Clears the message, and shows the row of the cursor."""
        self._message = ""
        # The cursor moves after this handler.
        self.call_after_refresh(self._detail)

    def action_nodes(self) -> None:
        """Switches between nodes and databases."""
        self._of_nodes = not self._of_nodes
        self.draw()

    def action_sort(self, step: int) -> None:
        """Sorts by another column on the screen."""
        self._set_view(self.view.next_column([placed_column.column for placed_column in self._placed], step))

    def action_reverse(self) -> None:
        """Reverses the order."""
        self._set_view(self.view.reversed())

    def _set_view(self, view: View) -> None:
        self._views[self._of_nodes] = view
        self.draw()

    def action_filter(self) -> None:
        """Opens the filter's input."""
        self._filter.display = True
        self._filter.value = self.view.words
        self._filter.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Applies the filter while it is typed."""
        self._set_view(self.view.filtered(event.value))

    def on_input_submitted(self) -> None:
        """Returns to the table, and keeps the filter."""
        self._filter.display = False
        self._rows.focus()

    def action_clear(self) -> None:
        """Removes the filter."""
        self.on_input_submitted()
        self._set_view(self.view.filtered(""))

    def on_row_list_chosen(self) -> None:
        """Explains the selected database, or shows the databases of the selected node."""
        row = self._rows.chosen
        if row is None:
            return
        if self._of_nodes:
            self._of_nodes = False
            self._set_view(self.view.filtered(f"node={row.name}"))
            return
        self.push_screen(TextScreen(row.name, lambda: self._source.explain(row.name), self._every))

    def action_migrate(self) -> None:
        """Migrates the selected VM, after a confirmation."""
        row = self._rows.chosen
        if row is None or self._of_nodes:
            return
        if reason := no_migration_reason(database_in(row.name)):
            self._message = f"{reason}."
            self._detail()
            return

        async def answered(is_yes: bool | None) -> None:
            self._message = await self._source.move(row.name) if is_yes else f"Not migrating {row.name}."
            self._detail()

        self.push_screen(Question(self._source.question(row.name)), answered)

    def action_explain_keys(self) -> None:
        """Shows the help."""

        async def lines() -> list[str]:
            return HELP.splitlines()

        # The help does not change, so the interval does not matter.
        self.push_screen(TextScreen("autoscale top", lines, 3600.0))
