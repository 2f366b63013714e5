"""A table of any length that draws only the lines on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from scheduler_plugin.dashboard.core import states
from scheduler_plugin.dashboard.core.rows import PENDING
from scripts.autoscale.terminal.visible import visible
from scripts.autoscale.top.columns import PlacedColumn, TableRow, header, line, taken

_PLAIN: Final = Style()
STYLES: Final[Mapping[str, Style]] = MappingProxyType(
    {
        states.UNHEALTHY.word: Style(color="magenta", bold=True),
        states.WAITING.word: Style(color="yellow", bold=True),
        states.DENIED.word: Style(color="red", bold=True),
        states.AGENT_PROBLEM.word: Style(color="yellow"),
        states.MIGRATING.word: Style(color="cyan"),
        states.WAKING.word: Style(color="blue", bold=True),
        states.ASLEEP.word: Style(color="blue", dim=True),
        states.CANNOT_DRAIN.word: Style(color="red", bold=True),
        states.OVER_WATERMARK.word: Style(color="red", bold=True),
        states.CORDONED.word: Style(dim=True),
        PENDING: Style(dim=True),
    }
)
"""Styles of states that need attention."""
_CURSOR: Final = Style(reverse=True)
_HEADER: Final = Style(bold=True, underline=True)


class RowList(ScrollView, can_focus=True):
    """Rows with a cursor, which stays at its row when the rows change."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "move_page(-1)", "page up", show=False),
        Binding("pagedown", "move_page(1)", "page down", show=False),
        Binding("home,g", "move(-1000000)", "first", show=False),
        Binding("end,G", "move(1000000)", "last", show=False),
        Binding("enter", "choose", "explain", show=False),
    ]

    class Chosen(Message):
        """Enter was pressed on a row."""

    def __init__(self, *, id: str) -> None:  # noqa: A002 - the framework's name
        super().__init__(id=id)
        self.rows: Sequence[TableRow] = ()
        self._placed: Sequence[PlacedColumn] = ()
        self._header = ""
        self._cursor = 0

    @property
    def chosen(self) -> TableRow | None:
        """The row under the cursor."""
        return self.rows[self._cursor] if self._cursor < len(self.rows) else None

    @property
    def on_screen(self) -> list[TableRow]:
        """The visible rows."""
        # The first line of the screen contains the headings.
        first = round(self.scroll_y)
        return list(self.rows[first : first + max(0, self.size.height - 1)])

    def show(
        self, rows: Sequence[TableRow], placed: Sequence[PlacedColumn], sorted_by: str, *, descending: bool
    ) -> None:
        """Replaces the rows."""
        previous = self.chosen
        self.rows, self._placed = rows, placed
        self._header = header(placed, sorted_by, descending=descending)
        # The cursor stays at its row, or else at its index.
        index = next(
            (index for index, row in enumerate(rows) if previous is not None and row.name == previous.name),
            self._cursor,
        )
        self._cursor = max(0, min(index, len(rows) - 1))
        # With a line for the headings.
        self.virtual_size = Size(taken(placed), len(rows) + 1)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Renders a line of the screen: the headings, or a row."""
        # The headings are in the first line and do not scroll.
        at = y - 1 + round(self.scroll_y)
        if y == 0:
            text, style = self._header, _HEADER
        elif at < len(self.rows):
            text, style = visible(line(self.rows[at], self._placed)), STYLES.get(self.rows[at].state, _PLAIN)
            style = style + _CURSOR if at == self._cursor else style
        else:
            text, style = "", _PLAIN
        left, width = round(self.scroll_x), self.size.width
        visible_part = text.ljust(left + width)[left : left + width]
        return Strip([Segment(visible_part, self.rich_style + style)], width)

    def action_move(self, by: int) -> None:
        """Moves the cursor, and scrolls to it."""
        self._cursor = max(0, min(self._cursor + by, len(self.rows) - 1))
        first, height = round(self.scroll_y), max(1, self.size.height - 1)
        if self._cursor < first:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= first + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)
        self.refresh()

    def action_move_page(self, by: int) -> None:
        """Moves the cursor by a screen."""
        self.action_move(by * max(1, self.size.height - 1))

    def action_choose(self) -> None:
        """Posts ``Chosen``."""
        self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the clicked row."""
        # Line 0 contains the headings.
        if event.y > 0:
            self.action_move(round(self.scroll_y) + event.y - 1 - self._cursor)
