"""How many bytes a run takes: planned before it begins, measured while it runs."""
