"""Of distributed work."""
