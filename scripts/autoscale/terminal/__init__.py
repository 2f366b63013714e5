"""Terminal input and output of commands: output formats, live texts, and shell completion."""
