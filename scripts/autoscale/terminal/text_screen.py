"""A scrolling text in a terminal that is refreshed."""

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
    """A scrolling, refreshed text, until escape."""

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
        """A heading, the text and the keys."""
        with Vertical(classes="box"):
            yield Static(Content(visible(self._title)), classes="heading")
            with VerticalScroll():
                yield self._text
            yield Static(Content("escape: back"), classes="keys")

    async def on_mount(self) -> None:
        """Reads the text, and starts to refresh it."""
        # For the arrow keys.
        self.query_one(VerticalScroll).focus()
        # Do not wait an interval for the first text.
        await self.update_text()
        self.set_interval(self._every, self.update_text)

    async def update_text(self) -> None:
        """Reads and shows the text."""
        lines = await self._read()
        self._text.update(Content(visible_lines("\n".join(lines))))

    def action_dismiss_screen(self) -> None:
        """Closes the screen."""
        self.dismiss(None)


class WatchApp(App[None]):
    """A refreshed text, until escape, q or Ctrl-C."""

    ENABLE_COMMAND_PALETTE = False
    # Textual binds ctrl+c to copying.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "quit", priority=True)]

    def __init__(self, title: str, read: Callable[[], Awaitable[list[str]]], every: float) -> None:
        super().__init__()
        self._text_screen = TextScreen(title, read, every)

    def on_mount(self) -> None:
        """Shows the text; exits when it is closed."""
        self.push_screen(self._text_screen, lambda _: self.exit())
