"""``python -m rloo_kit``: the command line, for when the command ``rloo-kit`` is not on the path."""

from rloo_kit.cli.app import main

if __name__ == "__main__":
    main()
