"""The process, before and after a run: import order, .env, release, kernel shutdown, and output."""
