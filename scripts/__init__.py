"""Interactive commands, and the measurements behind the project's claims."""
