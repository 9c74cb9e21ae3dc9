"""``RLOOConfig`` and ``RLOOTrainer``."""
