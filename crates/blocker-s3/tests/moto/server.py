"""moto's S3 server on a free port of the loopback, which is printed once it accepts connections.

One request at a time: moto checks the condition of a put and stores the object in two steps, between which
another thread could come.
"""

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
print(server.port, flush=True)
server.serve_forever()
