"""``RLOOConfig`` and ``RLOOTrainer``.  Their modules import torch and TRL, so unsloth is imported here, before them."""

from rloo_kit.session.import_order import import_unsloth

import_unsloth()
