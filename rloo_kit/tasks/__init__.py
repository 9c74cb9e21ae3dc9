"""Tasks: datasets of prompts with verifiable answers, split by problem.

task = rloo_kit.tasks.arithmetic(policy=policy)  # task.train, task.held_out, task.correct
"""

from rloo_kit.tasks.ladder import LEVELS, PassRate, Problem, Task, addition, arithmetic

__all__ = ["LEVELS", "PassRate", "Problem", "Task", "addition", "arithmetic"]
