"""Every error the kit raises on purpose: what is wrong, where, and what to do; values from a .env file are left out.

Each class also derives from the built-in it resembles, so ``except ValueError`` goes on working.
"""

from rloo_kit.redact import without_hidden


class RLOOKitError(Exception):
    """Base of the kit's errors: ``what`` is a clause, ``where`` a function, sample or value, ``todo`` what to do."""

    def __init__(self, what: str, *, where: str = "", todo: str = "") -> None:
        self.what, self.where, self.todo = map(without_hidden, (what, where, todo))
        lines = [self.what.rstrip(".") + "."]
        if where:
            lines.append(f"Where: {self.where.rstrip('.')}.")
        if todo:
            lines.append(f"What to do: {self.todo.rstrip('.')}{'' if todo.endswith('?') else '.'}")
        super().__init__("\n".join(lines))


class ImportOrderError(RLOOKitError, ImportError):
    """A library that unsloth has to patch was imported before unsloth."""


class VersionError(RLOOKitError, ImportError):
    """A library has a version that the kit was not written for."""


class ConfigError(RLOOKitError, ValueError):
    """A setting is out of range or contradicts another one."""


class ArgumentError(ConfigError, TypeError):
    """An argument that does not exist: a misspelling, or a name from an older TRL that has no successor."""


class DatasetError(RLOOKitError, ValueError):
    """A dataset that cannot be trained or evaluated on."""


class RewardError(RLOOKitError, ValueError):
    """Reward functions that cannot be trained on: none, or weights that do not match.  (What a function returns is
    checked by ``rewards.guarded``, which raises ``rewards.RewardValueError``.)"""


class NonFiniteError(RLOOKitError, FloatingPointError):
    """A gradient or a weight that is not finite; no such weight is ever saved."""


class RunFolderError(RLOOKitError, OSError):
    """A folder that a run or an adapter cannot be written to: another run's, full, or read-only."""


class PolicyNotFoundError(RLOOKitError, FileNotFoundError):
    """A policy's name, folder or hub id that does not exist, or a hub that cannot be reached."""


class OutOfMemoryError(RLOOKitError, MemoryError):
    """The device has too little memory for what was asked."""
