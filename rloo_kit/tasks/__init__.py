"""Tasks: datasets of prompts with verifiable answers, split by problem.

task = rloo_kit.tasks.arithmetic(policy=policy)  # task.train, task.held_out, task.correct, task.description
task = rloo_kit.tasks.from_file("mine.csv", policy=policy)
"""

from rloo_kit.tasks.arithmetic import LEVELS, PassRate, addition, arithmetic, word_sums
from rloo_kit.tasks.files import from_file
from rloo_kit.tasks.gsm8k import gsm8k
from rloo_kit.tasks.gym import reasoning_gym
from rloo_kit.tasks.task import Problem, Task
from rloo_kit.tasks.within_reach import within_reach

__all__ = ["LEVELS", "PassRate", "Problem", "Task", "addition", "arithmetic", "from_file", "gsm8k"]
__all__ += ["reasoning_gym", "within_reach", "word_sums"]
