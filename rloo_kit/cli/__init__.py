"""The same run without a notebook: ``rloo-kit`` and its verbs.

A run is a YAML file (``config.py``); a verb reads it, calls what a notebook would call, and prints.
"""
