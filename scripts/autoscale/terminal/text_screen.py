"""A text in a terminal that is read again and again, and scrolls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from scripts.autoscale.terminal.visible import visible, visible_lines


class TextScreen(ModalScreen[None]):
    """Lines that scroll, until escape."""

    DEFAULT_CSS = """
    TextScreen { align: center middle; }
    TextScreen .box { width: 94%; height: 94%; border: round $primary; background: $surface; padding: 0 1; }
    TextScreen .heading { text-style: bold; }
    TextScreen .keys { color: $text-muted; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss_screen", "back"),
    ]

    def __init__(self, title: str, read: Callable[[], Awaitable[list[str]]], every: float) -> None:
        super().__init__()
        self._title, self._read, self._every = title, read, every
        self._text = Static()

    def compose(self) -> ComposeResult:
        """A heading, and what is read."""
        with Vertical(classes="box"):
            yield Static(Content(visible(self._title)), classes="heading")
            with VerticalScroll():
                yield self._text
            yield Static(Content("escape: back"), classes="keys")

    async def on_mount(self) -> None:
        """Reads once, and then again and again."""
        # The scrolled part takes the arrow keys.
        self.query_one(VerticalScroll).focus()
        # The first reading is awaited, so that the screen is not empty for a whole interval.
        await self.update_text()
        self.set_interval(self._every, self.update_text)

    async def update_text(self) -> None:
        """Reads it again."""
        lines = await self._read()
        self._text.update(Content(visible_lines("\n".join(lines))))

    def action_dismiss_screen(self) -> None:
        """Goes back to the table."""
        self.dismiss(None)


class WatchApp(App[None]):
    """One text, live, until escape, q or Ctrl-C."""

    ENABLE_COMMAND_PALETTE = False
    # Textual gives ctrl+c to copying, which nobody expects here.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "quit", priority=True)]

    def __init__(self, title: str, read: Callable[[], Awaitable[list[str]]], every: float) -> None:
        super().__init__()
        self._shown = TextScreen(title, read, every)

    def on_mount(self) -> None:
        """Shows it, and ends with it."""
        self.push_screen(self._shown, lambda _: self.exit())
