"""What only a GPU can show: ``make gpu-check``, in four parts, within nine minutes, without a network.

correct.py, memory.py, speed.py and hygiene.py hold the checks: plain functions, registered by name with their limits
(checks.py).  ``python -m benchmarks.gpu`` (__main__.py) runs them in processes of their own (runner.py, worker.py)
and writes what they found (report.py).  shapes.py makes checkpoints of the real Qwen3 shapes with random weights,
since weights change neither memory nor speed; device.py has every line that asks the card itself.
"""
