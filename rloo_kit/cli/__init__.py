"""The same run without a notebook: ``rloo-kit`` and its verbs."""
