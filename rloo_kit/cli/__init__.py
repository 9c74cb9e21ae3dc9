"""The same run without a notebook: ``rloo-kit``, one file a verb.

A run is a YAML file (``schema.py``); a verb reads it, calls what a notebook would call, and prints.  Nothing is
computed here.  A verb imports what is heavy when it is called, so that ``--help`` is quick.
"""
