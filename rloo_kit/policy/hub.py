"""The Hugging Face hub: whether it has a repository, an adapter's few files, and what its refusals mean.

For :mod:`.source`, :mod:`.load` and :mod:`.export`.  The hub's library downloads, resumes and caches; here its errors,
and those that transformers makes of them, become the kit's: what, where, what to do.  No text holds a token.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from rloo_kit.catalogue import CATALOGUE, nearest
from rloo_kit.errors import PolicyNotFoundError, RLOOKitError
from rloo_kit.policy.folder import ADAPTER_CONFIG
from rloo_kit.session.environment import within

HUB_SECONDS = 9.0

OF_NETWORKS = ("httpx", "httpcore", "requests", "huggingface_hub", "hf_xet")
"""Libraries whose errors are the hub's; httpx's own are not OSErrors."""

OF_FILES = ("config.json", "*.json", "adapter_model*", "*.jinja", "*.txt", "*.model")
"""What an adapter's repository is read for: not its optimizer, nor a run's other checkpoints."""


_CONNECT = (
    "connect and call prepare(offline=False) in a fresh kernel, or download it where there is a network (hf download) "
    "and give load_policy the folder; load_policy('tiny') needs neither"
)


def check(
    repository: str,
    token: str | None,
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> bool:
    """Check that the hub or its cache has a repository; return whether it is an adapter.

    Args:
        token: for the hub.
        revision: a branch, tag or commit; None takes the main branch.
        cache_dir: the cache's folder; None takes the hub library's own.

    Raises:
        PolicyNotFoundError: neither has it, it holds no model, or the hub cannot be reached or refuses.  Within
            10 s: the hub library itself retries for longer.
    """
    from huggingface_hub import constants, model_info, try_to_load_from_cache
    from huggingface_hub.errors import OfflineModeIsEnabled

    cache = None if cache_dir is None else os.fspath(cache_dir)
    for file in (ADAPTER_CONFIG, "config.json"):
        if isinstance(try_to_load_from_cache(repository, file, cache, revision), str):
            return file == ADAPTER_CONFIG
    if constants.HF_HUB_OFFLINE:
        raise told(OfflineModeIsEnabled(), repository, "load_policy")
    try:
        how: dict[str, Any] = {"revision": revision, "timeout": HUB_SECONDS, "token": token}
        found = within(HUB_SECONDS, lambda: model_info(repository, **how))
    except Exception as error:
        of_hub = _is_of_networks(error)
        if not of_hub and not isinstance(error, OSError):
            raise
        raise told(error if of_hub else TimeoutError(), repository, "load_policy") from error
    names = {file.rfilename for file in found.siblings or ()}
    if names and not names & {ADAPTER_CONFIG, "config.json"}:
        raise PolicyNotFoundError(
            "the repository holds neither a checkpoint nor an adapter",
            where=f"load_policy({repository!r}): no config.json and no {ADAPTER_CONFIG}",
            todo="name one that has the weights in Hugging Face's format; a GGUF alone cannot be trained",
        )
    return ADAPTER_CONFIG in names


def adapter(repository: str, asked: Mapping[str, Any]) -> str:
    """The folder in the hub's cache with an adapter's files, fetched where they are not there.

    Raises:
        PolicyNotFoundError: they cannot be had.
    """
    from huggingface_hub import snapshot_download

    how = {name: asked[name] for name in ("token", "cache_dir", "revision") if name in asked}
    with explained(repository, f"load_policy({repository!r})"):
        return snapshot_download(repository, allow_patterns=list(OF_FILES), ignore_patterns="*/*", **how)


@contextlib.contextmanager
def explained(repository: str | None, where: str) -> Iterator[None]:
    """Turn what goes wrong while a repository's files are read into the kit's error; None is a folder."""
    try:
        yield
    except RLOOKitError:
        raise
    except Exception as error:
        if repository is None or not (isinstance(error, OSError) or of_networks(error)):
            raise
        raise told(error, repository, where) from error


def told(error: BaseException, repository: str, where: str) -> PolicyNotFoundError:
    """The kit's error for one of the hub's, of its library or of transformers'."""
    from huggingface_hub import constants, errors

    cause = of_networks(error)
    status = getattr(getattr(cause, "response", None), "status_code", None)
    page = f"{constants.ENDPOINT}/{repository}"
    if isinstance(cause, errors.GatedRepoError):
        what, todo = _gated(repository, page, status)
    elif isinstance(cause, errors.RepositoryNotFoundError):
        what = (
            f"the hub has no repository {repository!r} that you may read, nor is there a folder of that name"
        )
        where = f"{where}, which knows {', '.join(CATALOGUE)}"
        todo = f"did you mean {' or '.join(nearest(repository))}? A private one needs HF_TOKEN in .env"
    elif isinstance(cause, errors.RevisionNotFoundError):
        what, todo = f"{repository} has no such revision", f"leave revision out, or choose one of {page}"
    elif status in (401, 403):
        known = "this token may not read" if status == 403 else "the hub does not know the token for"
        what = f"{known} {repository}"
        todo = f"set HF_TOKEN in .env to one of {constants.ENDPOINT}/settings/tokens; a public repository needs none"
    elif status is not None and status != 404:
        what = f"the hub fails: it answers {status} for {repository}"
        todo = "try again later; files that are whole stay in the hub's cache"
    elif _unreachable(error, cause):
        what, todo = _not_reached(repository)
        where = f"{where}; offline mode is {'on' if constants.HF_HUB_OFFLINE else 'off'}"
    elif cause is not None and status is None:
        what = f"the download of {repository} broke off: {_first_line(cause)}"
        todo = "call it again: files that are whole stay in the hub's cache, and only the rest is fetched"
    else:
        what = f"{repository} cannot be loaded: {_first_line(error)}"
        todo = (
            _CONNECT
            if constants.HF_HUB_OFFLINE
            else f"see which files {page} has; if none is missing, try later"
        )
    return PolicyNotFoundError(what, where=where, todo=todo)


def _gated(repository: str, page: str, status: int | None) -> tuple[str, str]:
    if status == 403:
        todo = f"accept its terms at {page} and wait to be let in; a fine-grained token must be for gated repositories"
        return f"{repository} is gated, and the account of this token has not been let in", todo
    return f"{repository} is gated", f"accept its terms at {page} and set HF_TOKEN in .env"


def _not_reached(repository: str) -> tuple[str, str]:
    what = (
        f"{repository} is not in the hub's cache, or not whole, nor is there a folder of that name, and the Hugging "
        "Face hub cannot be reached"
    )
    return what, _CONNECT


def _unreachable(error: BaseException, cause: BaseException | None) -> bool:
    """Whether nothing was answered at all: offline mode, no connection, or none in time."""
    import httpx
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    kinds = (OfflineModeIsEnabled, LocalEntryNotFoundError, httpx.ConnectError, httpx.TimeoutException)
    return isinstance(cause, kinds) or isinstance(error, TimeoutError | ConnectionError)


def of_networks(error: BaseException | None) -> BaseException | None:
    """The hub's own error below another: what it answered, or else the first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    found = [one for one in chain if _is_of_networks(one)]
    answered = [one for one in found if getattr(one, "response", None) is not None]
    return next(iter([*answered, *found]), None)


def _is_of_networks(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in OF_NETWORKS


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
