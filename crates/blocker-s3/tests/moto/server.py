"""moto's S3 server on a free port of the loopback, which is printed once it accepts connections.

One request at a time: moto checks the condition of a put and stores the object in two steps, between which
another thread could come. Connections have threads, and stay open.
"""

import threading

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

# S3 alone: looking for the service of each request would take moto longer than to answer it.
moto, lock = create_backend_app("s3"), threading.Lock()


def one_at_a_time(environment, start):
    with lock:
        return list(moto(environment, start))


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass


server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=Handler)
print(server.port, flush=True)
server.serve_forever()
