"""A hub of datasets on this machine for the tests of prepare.py, with what huggingface_hub asks of one."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 2  # files in a page of a listing
SPLIT_PATH = re.compile(r"/(api/)?datasets/([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)/?(.*)")


class Hub(ThreadingHTTPServer):
    """A context manager. `files`: contents by path, at every revision of `revisions` (commit by name).

    `cuts`: how many of the next answers with a file end before half of it is sent; `broken`: a file all of
    whose answers do. `refusals`: the status and X-Error-Code with which a dataset is refused, by its name.
    `requests` lists the paths asked for.
    """

    daemon_threads = True

    def __init__(self, dataset, files, commit="a" * 40):
        super().__init__(("127.0.0.1", 0), Handler)
        self.dataset, self.files = dataset, files
        self.revisions = {"main": commit, commit: commit}
        self.cuts, self.broken, self.refusals = 0, None, {}
        self.requests, self.ignores_ranges = [], False
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: two would wait for each other

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub, url = self.server, urlsplit(self.path)
        hub.requests.append(self.path)
        if url.path.startswith("/cdn/"):
            return self.send_part(unquote(url.path[5:]))
        found = SPLIT_PATH.fullmatch(url.path)
        if not found:
            return self.refuse(404, "")
        _, dataset, kind, revision, path = (unquote(part or "") for part in found.groups())
        if dataset in hub.refusals and (kind == "resolve" or hub.refusals[dataset][1] != "GatedRepo"):
            return self.refuse(*hub.refusals[dataset])
        if dataset != hub.dataset:
            return self.refuse(401, "RepoNotFound")
        if revision not in hub.revisions:
            return self.refuse(404, "RevisionNotFound")
        if kind == "revision":
            return self.send_json({"id": dataset, "sha": hub.revisions[revision]})
        if kind == "tree":
            return self.send_tree(path, url)
        if path not in hub.files:
            return self.refuse(404, "EntryNotFound")
        self.send_response(302)
        self.send_header("Location", f"{hub.url}/cdn/{path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_tree(self, folder, url):
        """A page of what is in a folder, as the hub lists it."""
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        inside = f"{folder}/" if folder else ""
        entries = {}
        for path, data in sorted(self.server.files.items()):
            if path.startswith(inside):
                rest = path[len(inside) :]
                if "/" in rest and query.get("recursive") != "true":
                    name = inside + rest.partition("/")[0]
                    entries[name] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
                else:
                    entries[path] = {"type": "file", "oid": "0" * 40, "size": len(data), "path": path}
        if not entries:
            return self.refuse(404, "EntryNotFound")
        first = int(query.get("cursor", 0))
        more = first + PAGE < len(entries)
        recursive = query.get("recursive", "false")
        following = f"{self.server.url}{url.path}?recursive={recursive}&cursor={first + PAGE}"
        self.send_json(
            list(entries.values())[first : first + PAGE],
            {"Link": f'<{following}>; rel="next"'} if more else {},
        )

    def send_json(self, value, headers=()):
        data = json.dumps(value).encode()
        self.send_response(200)
        for name, content in dict(headers).items():
            self.send_header(name, content)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_part(self, path):
        data = self.server.files[path]
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(n) for n in asked.groups())
        part = data if self.server.ignores_ranges else data[first : last + 1]
        self.send_response(200 if self.server.ignores_ranges else 206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.server.cuts > 0 or path == self.server.broken:
            self.server.cuts -= path != self.server.broken
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
        else:
            self.wfile.write(part)
