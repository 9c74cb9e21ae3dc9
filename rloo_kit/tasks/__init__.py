"""Tasks: datasets of prompts with verifiable answers, split by problem.

task = rloo_kit.tasks.arithmetic(policy=policy)  # task.train, task.held_out, task.correct
"""

from rloo_kit.tasks.ladder import LEVELS, PassRate, Problem, addition, arithmetic
from rloo_kit.tasks.task import Task
from rloo_kit.tasks.words import word_sums

__all__ = ["LEVELS", "PassRate", "Problem", "Task", "addition", "arithmetic", "word_sums"]
