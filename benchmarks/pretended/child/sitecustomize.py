"""Pretend a card in every Python that is started with this folder on PYTHONPATH: checks, kernels and their children.

Python imports a module of this name when it starts; the variable names the card.
"""

import os
import traceback

if card := os.environ.get("RLOO_KIT_PRETENDED_CARD"):
    try:
        from benchmarks.pretended import start

        start(card)
    except BaseException:
        traceback.print_exc()
        os._exit(3)  # Python itself would go on without a card
