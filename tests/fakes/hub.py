"""A stand-in for the Hugging Face hub: repositories in memory, over the part of its HTTP interface that is used."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub(BaseHTTPRequestHandler):
    """Each repository holds the files of its last commit."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size) if size else self._chunks()
        path, repos = self.path.partition("?")[0], self.server.repos
        if path == "/api/repos/create":
            told = json.loads(body)
            name = "/".join(filter(None, (told.get("organization"), told["name"])))
            repos.setdefault(name, {})
            self.server.private[name] = told.get("private") or told.get("visibility") == "private"
            self._answer({"url": f"{self.server.address}/{name}", "name": name})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/[^/]+", path):
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/[^/]+", path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    repos[found[1]][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del repos[found[1]][line["value"]["path"]]
            self._answer({"commitUrl": f"{self.server.address}/{found[1]}/commit/{COMMIT}", "commitOid": COMMIT})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        else:
            self._answer({"error": f"no such request: {path}"}, 404)

    def do_GET(self):
        path, repos = self.path.partition("?")[0], self.server.repos
        if (found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/[^/]+)?", path)) and found[1] in repos:
            files = repos[found[1]]
            siblings = [{"rfilename": name} for name in files]
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for name, data in files.items()
            ]
            about = {"id": found[1], "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            self._answer(tree if found[2] == "tree" else about)
        elif (found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)) and found[2] in repos.get(
            found[1], ()
        ):
            self._send(repos[found[1]][found[2]], 200)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET

    def _chunks(self):
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _answer(self, tree, code=200):
        self._send(json.dumps(tree).encode(), code)

    def _send(self, data, code):
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def served_hub():
    """A hub on this machine; `repos` holds the files of each repository, `address` is its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), FakeHub) as server:
        server.repos, server.private, server.address = {}, {}, f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
