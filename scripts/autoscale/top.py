def top() -> None:
    """top"""
