"""A server on loopback that takes what `wandb sync` uploads, and keeps it; see scripts/read_trackers.py.

It answers the GraphQL calls of the pinned package's own program by their operation, and takes file streams and files.
"""
import base64
import http.server
import json
import threading

ENTITY = "someone"


class WandbServer:
    """What was uploaded, while it is open."""

    def __init__(self, api_key: str) -> None:
        self.runs: dict[str, dict] = {}  # by their name: what was said of each, the newest of it
        self.lines: dict[str, dict[int, str]] = {}  # of each streamed file, by their number
        self.files: dict[str, bytes] = {}  # that were put
        self.ends: list[int] = []  # exit codes
        self.refused: list[str] = []  # what this server does not know
        self.sent_key_elsewhere = False
        self._api_key = api_key
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "WandbServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()

    def rows(self, file: str) -> list[dict]:
        """The lines of a streamed file, as they stand in the end."""
        return [json.loads(line) for _, line in sorted(self.lines.get(file, {}).items())]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> dict | None:
        """The answer to a request; none: it is not known."""
        authorization = headers.pop("Authorization", "")
        self.sent_key_elsewhere |= self._api_key in path + str(headers) + body.decode(errors="replace")
        if path.startswith("/files/put/"):  # such an address stands for itself: no key goes along
            self.files[path.removeprefix("/files/put/")] = body
            return {}
        if authorization != "Basic " + base64.b64encode(b"api:" + self._api_key.encode()).decode():
            return None
        if path == "/graphql":
            return self._graphql(json.loads(body))
        if path.startswith(f"/files/{ENTITY}/") and path.endswith("/file_stream"):
            return self._stream(json.loads(body))
        return None

    def _graphql(self, sent: dict) -> dict | None:
        query, variables = sent["query"], sent.get("variables") or {}
        answers = {"viewer": self._viewer, "serverInfo": self._server_info, "upsertBucket": self._upsert,
                   "createRunFiles": self._create_files, "model": self._resume}
        fields = query[query.index("{") + 1:].split()[0].split("(")[0]
        return {"data": {fields: answers[fields](variables)}} if fields in answers else None

    def _viewer(self, _: dict) -> dict:
        return {"id": "u1", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": {"edges": []}}

    def _server_info(self, _: dict) -> dict:
        return {"features": [], "cliVersionInfo": {"max_cli_version": "99"}, "latestLocalVersionInfo": None}

    def _resume(self, _: dict) -> dict:
        return {"id": "p1", "name": "", "entity": {"id": "e1", "name": ENTITY}, "bucket": None}

    def _upsert(self, variables: dict) -> dict:
        name, project = variables["name"], variables["project"]
        is_new = name not in self.runs
        self.runs.setdefault(name, {}).update({key: value for key, value in variables.items() if value is not None})
        bucket = {"id": "r1", "name": name, "displayName": variables.get("displayName") or name, "description": "",
                  "config": variables.get("config") or "{}", "sweepName": None, "historyLineCount": 0,
                  "project": {"id": "p1", "name": project, "entity": {"id": "e1", "name": ENTITY}}}
        return {"bucket": bucket, "inserted": is_new}

    def _create_files(self, variables: dict) -> dict:
        return {"runID": "r1", "uploadHeaders": [],
                "files": [{"name": name, "uploadUrl": f"{self.url}/files/put/{name}"} for name in variables["files"]]}

    def _stream(self, sent: dict) -> dict:
        for name, chunk in (sent.get("files") or {}).items():
            lines = self.lines.setdefault(name, {})
            lines.update(enumerate(chunk["content"], chunk["offset"]))
        if sent.get("complete"):
            self.ends.append(sent["exitcode"])
        return {}

    def _handler(self) -> type:
        kept = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def take(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = kept.take(self.path, dict(self.headers), body)
                if answer is None:
                    kept.refused.append(f"{self.command} {self.path} {body[:400]!r}")
                text = json.dumps(answer or {}).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = take

            def log_message(self, *_) -> None:
                pass

        return Handler
