"""The verbs on objects, and the rules that hold for each kind."""
