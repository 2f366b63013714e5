"""HTTP requests to verbs and back."""
