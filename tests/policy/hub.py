"""A stand-in for the Hugging Face hub on this machine's loopback: a repository's list, HEAD and GET of its files.

It can refuse, and keeps a log of what it was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    token: str | None


@dataclass
class Repository:
    """Files, whether reading one needs a token of :attr:`Hub.members`, and whether even the name needs one."""

    files: dict[str, bytes] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    @property
    def commit(self) -> str:
        """The name of its state, as git has it: 40 digits."""
        return hashlib.sha1(repr(sorted(self.files.items())).encode()).hexdigest()

    @classmethod
    def of(cls, folder: Path, **how: bool) -> Repository:
        """With the files of a folder."""
        return cls({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}, **how)


@dataclass
class Hub:
    """Its address, repositories by name, tokens of any account and of those that are let in, and what was asked."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    valid: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    log: list[Asked] = field(default_factory=list)

    def answer(self, path: str, token: str | None) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers, as the hub's own."""
        found = re.fullmatch(
            r"(?:/api/models)?/([^/]+/[^/]+?)(?:/(revision|tree|resolve)/([^/]+)(?:/(.+))?)?", path
        )
        assert found, path
        name, what, revision, file = found.groups()
        repository = self.repositories.get(name)
        if token is not None and token not in self.valid:
            return _refused(401, "", "Invalid credentials in Authorization header")
        if repository is None or (repository.private and token not in self.members):
            return _refused(401 if token is None else 404, "RepoNotFound", "Repository not found")
        if what == "tree":
            tree = [
                {"type": "file", "path": f, "size": len(c), "oid": _etag(c)}
                for f, c in repository.files.items()
            ]
            return _json(tree)
        if what != "resolve":
            siblings = [{"rfilename": one} for one in repository.files]
            told = {
                "_id": "1",
                "id": name,
                "modelId": name,
                "sha": repository.commit,
                "siblings": siblings,
                "tags": [],
            }
            return _json(
                {**told, "private": repository.private, "gated": "manual" if repository.gated else False}
            )
        if repository.gated and token not in self.members:
            return _refused(
                401 if token is None else 403, "GatedRepo", f"Access to model {name} is restricted"
            )
        if file not in repository.files or revision not in ("main", repository.commit):
            return _refused(
                404, "EntryNotFound" if file not in repository.files else "RevisionNotFound", f"no {file}"
            )
        content = repository.files[file]
        etags = {"ETag": f'"{_etag(content)}"', "X-Linked-ETag": f'"{_etag(content)}"'}
        return 200, content, {**etags, "X-Repo-Commit": repository.commit, "X-Linked-Size": str(len(content))}


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(data: object, status: int = 200, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    return status, json.dumps(data).encode(), {"Content-Type": "application/json", **headers}


def _refused(status: int, code: str, said: str) -> tuple[int, bytes, dict[str, str]]:
    return _json({"error": said}, status, **{"X-Error-Code": code, "X-Error-Message": said})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        """Nothing: what was asked is in the hub's own log."""

    def do_GET(self) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.hub.log.append(Asked(self.command, self.path, token))
        status, body, headers = self.hub.answer(unquote(urlsplit(self.path).path), token)
        self.send_response(status)
        for header, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a free port of loopback, in threads of this process."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfHub", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
