"""Objects from their JSON text in one go: on hot paths, dictionaries in between would cost more than the rest."""
