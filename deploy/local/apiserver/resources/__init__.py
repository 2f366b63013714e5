"""Kinds of objects: the built-in ones and those that definitions add. Pure."""
