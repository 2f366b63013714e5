"""Which kinds of objects there are: the built-in ones and those that definitions add. Pure."""
