"""A stand-in for the Hugging Face hub on this machine's loopback, for the tests of downloads and uploads.

It answers what ``huggingface_hub`` asks: a repository's list, HEAD and GET of its files, and for an upload the four
requests that make a commit.  It can refuse, miss a file or be slow, and keeps a log of what it was asked.  Not Xet, the
hub's other way to move large files: its servers are closed, so uploads take Git LFS.
"""

from __future__ import annotations

import base64
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

LARGE = (".safetensors", ".bin", ".pt")
"""Endings of what the hub stores as large files."""


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    token: str | None


@dataclass
class Repository:
    """Files, and how the hub behaves when they are asked for.

    Attributes:
        files: name -> content.
        gated: whether reading a file needs a token of :attr:`Hub.members`; the list of the files is for all.
        private: whether even its name needs one.
        missing: files that are in the list, and not there.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    gated: bool = False
    private: bool = False
    missing: tuple[str, ...] = ()

    @property
    def commit(self) -> str:
        """The name of its state, as git has it: 40 digits."""
        listing = "".join(
            f"{name}:{hashlib.sha256(self.files[name]).hexdigest()}" for name in sorted(self.files)
        )
        return hashlib.sha1(listing.encode()).hexdigest()

    @classmethod
    def of(cls, folder: Path, **how: Any) -> Repository:
        """With the files of a folder."""
        return cls({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}, **how)


@dataclass
class Hub:
    """The stand-in's state.

    Attributes:
        address: for HF_ENDPOINT.
        repositories: by name.
        valid, members, writers: tokens of an account, of one that gated and private repositories let in, and those
            that may write.
        seconds: that each answer takes.
        log: what was asked.
        stored: large files that were uploaded, by their SHA-256.
    """

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    valid: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    writers: set[str] = field(default_factory=set)
    seconds: float = 0.0
    log: list[Asked] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)

    def downloads(self, name: str) -> list[Asked]:
        """Of the files of this name."""
        return [one for one in self.log if one.method == "GET" and one.path.endswith("/" + name)]


class Handler(BaseHTTPRequestHandler):
    """Answers for :attr:`hub`, of the server."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        """Nothing: what was asked is in the hub's own log."""

    # --- what is asked ------------------------------------------------------------------------------------

    def do_HEAD(self) -> None:
        self._read()

    def do_GET(self) -> None:
        self._read()

    def _read(self) -> None:
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

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self._body()
        self._note()
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3]).removesuffix(".git")
        if path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif self._token not in self.hub.writers:
            self._refuse(401 if self._token is None else 403, "", "you must not write")
        elif path == "/api/repos/create":
            self._make(json.loads(body))
        elif "/preupload/" in path:
            self._answer({"files": [_how_to_upload(one["path"]) for one in json.loads(body)["files"]]})
        elif path.endswith(".git/info/lfs/objects/batch"):
            to = f"{self.hub.address}/upload/"
            asked = json.loads(body)["objects"]
            objects = [{**one, "actions": {"upload": {"href": to + one["oid"]}}} for one in asked]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            self._commit(self.hub.repositories[name], [json.loads(line) for line in body.splitlines()])
            self._answer({"commitUrl": f"{self.hub.address}/{name}/commit/1", "commitOid": "1" * 40})
        else:
            self._refuse(404, "", f"the stand-in knows no {path}")

    def _make(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        self.hub.repositories.setdefault(name, Repository(private=asked.get("visibility") == "private"))
        self._answer({"url": f"{self.hub.address}/{name}", "id": name})

    def do_PUT(self) -> None:
        body = self._body()
        self._note()
        oid = self.path.rpartition("/")[2]
        if hashlib.sha256(body).hexdigest() != oid:
            self._refuse(400, "", "the file is not what it was announced as")
            return
        self.hub.stored[oid] = body
        self._answer({})

    # --- the answers --------------------------------------------------------------------------------------

    def _list(self, name: str) -> None:
        self._note()
        if (found := self._repository(name)) is None:
            return
        siblings = [{"rfilename": file} for file in sorted({*found.files, *found.missing})]
        told = {"_id": "1", "id": name, "modelId": name, "sha": found.commit, "siblings": siblings}
        self._answer(
            {**told, "private": found.private, "gated": "manual" if found.gated else False, "tags": []}
        )

    def _tree(self, name: str) -> None:
        self._note()
        if (found := self._repository(name)) is not None:
            self._answer(
                [
                    {"type": "file", "path": file, "size": len(content), "oid": _etag(content)}
                    for file, content in sorted(found.files.items())
                ]
            )

    def _file(self, name: str, revision: str, file: str) -> None:
        found = self._repository(name)
        if found is None:
            self._note()
            return
        if found.gated and self._token not in self.hub.members:
            self._note()
            said = f"Access to model {name} is restricted"
            self._refuse(401 if self._token is None else 403, "GatedRepo", said)
        elif file not in found.files or revision not in ("main", found.commit):
            self._note()
            code = "EntryNotFound" if file not in found.files else "RevisionNotFound"
            self._refuse(404, code, f"no {file}", commit=found.commit)
        else:
            self._send(found, file)

    def _send(self, repository: Repository, file: str) -> None:
        content = repository.files[file]
        self.send_response(200)
        for header, value in {
            "Content-Length": len(content),
            "ETag": f'"{_etag(content)}"',
            "X-Repo-Commit": repository.commit,
            "X-Linked-Size": len(content),
            "X-Linked-ETag": f'"{_etag(content)}"',
        }.items():
            self.send_header(header, str(value))
        self.end_headers()
        self._note()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _repository(self, name: str) -> Repository | None:
        """The repository, where it may be seen; else that is answered, as the hub does."""
        found = self.hub.repositories.get(name)
        if self._token is not None and self._token not in self.hub.valid:
            said = "Invalid credentials in Authorization header"
            self._refuse(401, "", said)
            return None
        if found is None or (found.private and self._token not in self.hub.members):
            self._refuse(401 if self._token is None else 404, "RepoNotFound", "Repository not found")
            return None
        return found

    def _commit(self, repository: Repository, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repository.files[value["path"]] = self.hub.stored[value["oid"]]

    # --- of HTTP ------------------------------------------------------------------------------------------

    @property
    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _note(self) -> None:
        self.hub.log.append(Asked(self.command, self.path, self._token))

    def _body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):  # in chunks
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, data: object, status: int = 200, **headers: str) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        for header, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str, said: str, commit: str = "") -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": said, "X-Repo-Commit": commit}
        self._answer({"error": said}, status, **{name: value for name, value in headers.items() if value})


def _how_to_upload(file: str) -> dict[str, Any]:
    return {"path": file, "uploadMode": "lfs" if file.endswith(LARGE) else "regular", "shouldIgnore": False}


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
