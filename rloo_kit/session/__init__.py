"""The process, before and after a run: import order, .env, release, kernel, and how things are shown."""
