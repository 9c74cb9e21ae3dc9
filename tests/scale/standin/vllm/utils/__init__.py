"""Of utilities."""
