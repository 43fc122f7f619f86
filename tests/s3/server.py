"""moto's S3 server on a free port of the loopback, which is printed once it accepts connections."""

import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

moto, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()


def one_at_a_time(environment, start):
    # moto's state is not made for several threads; connections are.
    with lock:
        return list(moto(environment, start))


server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
print(server.port, flush=True)
server.serve_forever()
