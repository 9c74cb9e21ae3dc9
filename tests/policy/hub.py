"""A stand-in for the Hugging Face hub on this machine's loopback, for the tests of downloads.

It answers what ``huggingface_hub`` asks: a repository's list, HEAD and GET of its files.  It can refuse, miss a file or
be slow, and keeps a log of what it was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
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
        listing = "".join(f"{name}:{_etag(self.files[name])}" for name in sorted(self.files))
        return hashlib.sha1(listing.encode()).hexdigest()

    @classmethod
    def of(cls, folder: Path, **how: Any) -> Repository:
        """With the files of a folder."""
        return cls({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}, **how)


@dataclass
class Hub:
    """The stand-in's state: its address, repositories by name, tokens of an account and of those that gated and private
    repositories let in, the seconds that each answer takes, and what was asked."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    valid: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    seconds: float = 0.0
    log: list[Asked] = field(default_factory=list)

    def downloads(self, name: str) -> list[Asked]:
        """Of the files of this name."""
        return [one for one in self.log if one.method == "GET" and one.path.endswith("/" + name)]


class Handler(BaseHTTPRequestHandler):
    """Answers for :attr:`hub`, of the server."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        """Nothing: what was asked is in the hub's own log."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.hub.log.append(Asked(self.command, self.path, self.token))
        path = unquote(urlsplit(self.path).path)
        time.sleep(self.hub.seconds)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            self._list(found[1])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+(/.*)?", path):
            self._tree(found[1])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(*found.groups())
        else:
            self._refuse(404, "EntryNotFound", f"the stand-in knows no {path}")

    def _list(self, name: str) -> None:
        if (found := self._repository(name)) is not None:
            siblings = [{"rfilename": file} for file in sorted(found.files)]
            told = {"_id": "1", "id": name, "modelId": name, "sha": found.commit, "siblings": siblings}
            gated = "manual" if found.gated else False
            self._answer({**told, "private": found.private, "gated": gated, "tags": []})

    def _tree(self, name: str) -> None:
        if (found := self._repository(name)) is not None:
            files = sorted(found.files.items())
            self._answer([{"type": "file", "path": f, "size": len(c), "oid": _etag(c)} for f, c in files])

    def _file(self, name: str, revision: str, file: str) -> None:
        found = self._repository(name)
        if found is None:
            return
        if found.gated and self.token not in self.hub.members:
            said = f"Access to model {name} is restricted"
            self._refuse(401 if self.token is None else 403, "GatedRepo", said)
        elif file not in found.files or revision not in ("main", found.commit):
            code = "EntryNotFound" if file not in found.files else "RevisionNotFound"
            self._refuse(404, code, f"no {file}", commit=found.commit)
        else:
            content = found.files[file]
            etags = {"ETag": f'"{_etag(content)}"', "X-Linked-ETag": f'"{_etag(content)}"'}
            self._send(
                200, content, {**etags, "X-Repo-Commit": found.commit, "X-Linked-Size": str(len(content))}
            )

    def _repository(self, name: str) -> Repository | None:
        """The repository, where it may be seen; else that is answered, as the hub does."""
        found = self.hub.repositories.get(name)
        if self.token is not None and self.token not in self.hub.valid:
            self._refuse(401, "", "Invalid credentials in Authorization header")
            return None
        if found is None or (found.private and self.token not in self.hub.members):
            self._refuse(401 if self.token is None else 404, "RepoNotFound", "Repository not found")
            return None
        return found

    def _answer(self, data: object, status: int = 200, **headers: str) -> None:
        self._send(status, json.dumps(data).encode(), {"Content-Type": "application/json", **headers})

    def _refuse(self, status: int, code: str, said: str, commit: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": said, "X-Repo-Commit": commit}
        self._answer({"error": said}, status, **{name: value for name, value in headers.items() if value})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for header, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a free port of loopback, in threads of this process."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfHub", (Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
