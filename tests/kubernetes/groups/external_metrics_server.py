"""An external metrics API of fixed figures, ``FIGURES`` (JSON, by name), for callers that the API server passes on.

It runs in a pod that has Python and nothing of this project, so it stands alone.
"""

import json
import os
import ssl
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "external.metrics.k8s.io/v1beta1"
ROOT = f"/apis/{VERSION}"
KIND = {"name": "*", "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}


class ExternalMetrics(BaseHTTPRequestHandler):
    """Answers ``ROOT``, and ``ROOT/namespaces/NAMESPACE/METRIC``."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """One question."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._answer(HTTPStatus.OK, "ok")
        elif "X-Remote-User" not in self.headers:
            self._answer(HTTPStatus.UNAUTHORIZED, "ask through the API server")
        elif path == ROOT:
            self._answer(HTTPStatus.OK, {"kind": "APIResourceList", "groupVersion": VERSION, "resources": [KIND]})
        elif path.startswith(f"{ROOT}/namespaces/"):
            self._figure(path.rpartition("/")[2])
        else:
            self._answer(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _figure(self, name: str) -> None:
        value = json.loads(os.environ["FIGURES"]).get(name)
        if value is None:
            self._answer(HTTPStatus.NOT_FOUND, f"there is no metric {name}")
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        item = {"metricName": name, "metricLabels": {}, "timestamp": now, "value": value}
        listed = {"kind": "ExternalMetricValueList", "apiVersion": VERSION, "metadata": {}, "items": [item]}
        self._answer(HTTPStatus.OK, listed)

    def _answer(self, status: HTTPStatus, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("", 8443), ExternalMetrics)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/etc/server/tls.crt", "/etc/server/tls.key")
    # The greeting is left to each connection's own thread: one that says nothing must not keep the others waiting.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()
