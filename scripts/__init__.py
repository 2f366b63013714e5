"""Commands that people run, and the measurements behind the project's claims."""
