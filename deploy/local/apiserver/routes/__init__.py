"""HTTP routes: requests are translated to verbs, and results to responses."""
