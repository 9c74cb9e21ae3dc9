"""Pretend a card in every Python that is started with this folder on PYTHONPATH: checks, kernels and their children.

Python imports a module of this name when it starts; RLOO_KIT_PRETENDED_CARD names the card.
"""

import importlib
import os
import traceback

if card := os.environ.get("RLOO_KIT_PRETENDED_CARD"):
    try:
        importlib.import_module("benchmarks.pretended").start(card)
    except BaseException:
        traceback.print_exc()
        os._exit(3)  # Python would otherwise go on without a card
