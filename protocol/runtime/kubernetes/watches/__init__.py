"""The objects of one kind, kept in step with the API by list and watch."""
