"""Terminal input and output of commands: formats of output, live texts, and completion in shells."""
