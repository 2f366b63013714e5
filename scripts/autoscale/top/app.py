"""The terminal application: draws what a ``Source`` sees, and passes a person's orders on."""

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
from scripts.autoscale.migrate import stays_because
from scripts.autoscale.terminal.text_screen import TextScreen
from scripts.autoscale.terminal.visible import visible
from scripts.autoscale.top.columns import NODE_COLUMNS, VM_COLUMNS, PlacedColumn, View, fitted
from scripts.autoscale.top.fleet import FleetSnapshot
from scripts.autoscale.top.row_list import RowList


def _listed(states: tuple[VmState, ...]) -> str:
    return "\n".join(f"  {state.word:<10} {state.means}" for state in states)


HELP: Final = f"""\
arrows, j k, page keys    another row; left and right scroll sideways
home end, g G             the first row, the last one
< >                       sort by the column before, the next one
r                         sort the other way round
/                         filter: words, ns:shop node=node-1 state:denied; escape takes it away
enter                     why has this database its size? (explain, live)
m                         migrate this VM, after a question
n                         nodes, or databases again
?                         this help
q, Ctrl-C                 quit

States of a database, the worst first; else its phase:
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


_KEYS: Final = "enter explain  m migrate  n nodes/databases  < > sort  r reverse  / filter  ? help  q quit"


class Source(Protocol):
    """Source of the application's data."""

    @property
    def title(self) -> str:
        """The name of the cluster."""

    async def look(self, on_screen: Sequence[str]) -> FleetSnapshot:
        """The present state; VMs ``on_screen`` matter most."""

    async def story(self, vm: str) -> list[str]:
        """Explanation of the database's size."""

    def question(self, vm: str) -> str:
        """Consequences of migrating the VM."""

    async def move(self, vm: str) -> str:
        """Migrates it, and says what was done."""


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
        self._seen = FleetSnapshot()
        self._said = ""
        self._of_nodes = False
        # Nodes and databases each keep their filter and order.
        self._views = {True: View(NODE_COLUMNS, "node"), False: View(VM_COLUMNS, "vm")}
        self._placed: list[PlacedColumn] = []
        self._rows = RowList(id="rows")
        self._texts = {name: Static(id=name) for name in ("title", "trouble", "detail")}
        self._filter = Input(id="filter", placeholder="words, ns:…, node=…, state:…")

    def compose(self) -> ComposeResult:
        """Title, trouble, table, the whole sentence of the chosen row, filter and keys."""
        yield self._texts["title"]
        yield self._texts["trouble"]
        yield self._rows
        yield self._texts["detail"]
        yield self._filter
        yield Static(Content(_KEYS), id="keys")

    async def on_ready(self) -> None:
        """Begins to look."""
        self._rows.focus()
        self.run_worker(self._follow(), exclusive=True)

    async def _follow(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._every)

    async def look(self) -> None:
        """Looks once, and draws it."""
        # Each look asks the agents of the VMs on the screen; nodes have none to ask.
        self._seen = await self._source.look([row.name for row in self._rows.on_screen if not self._of_nodes])
        self.draw()

    @property
    def view(self) -> View:
        """The view on the screen, of nodes or databases."""
        return self._views[self._of_nodes]

    def draw(self) -> None:
        """Draws the last look again."""
        view, everything = self.view, self._seen.nodes if self._of_nodes else self._seen.vms
        rows = view.shown(everything)
        self._placed = fitted(view.columns, rows, self._rows.size.width, view.sorted_by)
        self._rows.show(rows, self._placed, view.sorted_by, descending=view.descending)
        kind = "nodes" if self._of_nodes else "databases"
        count = f"{len(everything)} {kind}" if not view.words else f"{len(rows)} of {len(everything)} {kind}"
        self._say("title", f"{self._source.title}   {count}" + (f"   filter: {view.words}" if view.words else ""))
        self._say("trouble", "  ".join(self._seen.troubles), hide=True)
        self._detail()

    def _detail(self) -> None:
        """The sentence of the chosen row, whole, which its column may have shortened."""
        row = self._rows.chosen
        self._say("detail", self._said or ("" if row is None else f"{row.name}: {row.cells[-1]}"))

    def _say(self, where: str, text: str, *, hide: bool = False) -> None:
        widget = self._texts[where]
        widget.update(Content(visible(text)))
        widget.display = bool(text) or not hide

    def on_resize(self, _: events.Resize) -> None:
        """Other columns may fit now."""
        # The table's own size is known only after the next layout.
        self.call_after_refresh(self.draw)

    def on_key(self, _: events.Key) -> None:
        """The cursor may have moved; the last message has been read."""
        self._said = ""
        # The cursor moves after this handler.
        self.call_after_refresh(self._detail)

    def action_nodes(self) -> None:
        """Nodes instead of databases, or back."""
        self._of_nodes = not self._of_nodes
        self.draw()

    def action_sort(self, step: int) -> None:
        """By the next column of those on the screen."""
        self._see(self.view.next_column([placed_column.column for placed_column in self._placed], step))

    def action_reverse(self) -> None:
        """The other way round."""
        self._see(self.view.reversed())

    def _see(self, view: View) -> None:
        self._views[self._of_nodes] = view
        self.draw()

    def action_filter(self) -> None:
        """Lets a person type a filter; the table follows each letter."""
        self._filter.display = True
        self._filter.value = self.view.words
        self._filter.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters while one types."""
        self._see(self.view.filtered(event.value))

    def on_input_submitted(self) -> None:
        """Back to the table, with the filter."""
        self._filter.display = False
        self._rows.focus()

    def action_clear(self) -> None:
        """Takes the filter away."""
        self.on_input_submitted()
        self._see(self.view.filtered(""))

    def on_row_list_chosen(self) -> None:
        """Explains the database, live; of a node, shows its databases."""
        row = self._rows.chosen
        if row is None:
            return
        if self._of_nodes:
            self._of_nodes = False
            self._see(self.view.filtered(f"node={row.name}"))
            return
        self.push_screen(TextScreen(row.name, lambda: self._source.story(row.name), self._every))

    def action_migrate(self) -> None:
        """Migrates the chosen VM if the answer is yes."""
        row = self._rows.chosen
        if row is None or self._of_nodes:
            return
        if why := stays_because(database_in(row.name)):
            self._said = f"{why}."
            self._detail()
            return

        async def answered(is_yes: bool | None) -> None:
            self._said = await self._source.move(row.name) if is_yes else f"{row.name} is not migrated."
            self._detail()

        self.push_screen(Question(self._source.question(row.name)), answered)

    def action_explain_keys(self) -> None:
        """Shows the help."""

        async def lines() -> list[str]:
            return HELP.splitlines()

        # The help does not change, so it is read once an hour.
        self.push_screen(TextScreen("autoscale top", lines, 3600.0))
