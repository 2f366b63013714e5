"""The API's verbs, and the rules of each kind."""
