"""Answers Grafana's health check. Everything else that concerns Grafana is tested elsewhere."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
        self.wfile.write(b'{"database": "ok"}')


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", 3000), Health).serve_forever()
