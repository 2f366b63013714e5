"""How commands speak in a terminal: formats of output, live texts, and completion in shells."""
