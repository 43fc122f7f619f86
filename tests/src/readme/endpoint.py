"""An S3 endpoint on 127.0.0.1:7480 with one object, as far as a GET needs one; prints a line once it accepts connections."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BODY = bytes(1 << 20)


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        found = self.path == "/bucket/large"
        self.send_response(200 if found else 404)
        self.send_header("ETag", '"b6d81b360a5672d80c27430f39153e2c"')
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 12:00:00 GMT")
        self.send_header("Content-Length", str(len(BODY) if found else 0))
        self.end_headers()
        if found:
            self.wfile.write(BODY)

    def log_message(self, *words):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 7480), Endpoint)
print("ready", flush=True)
server.serve_forever()
