"""Python's ssl module against a server with TLS: tls.py PORT CA_FILE.

Versions, large values both ways, pipelines, resumption, an end in order, records in single bytes.
"""

import socket
import ssl
import sys

PORT, CA_FILE = int(sys.argv[1]), sys.argv[2]


def context(version=None):
    made = ssl.create_default_context(cafile=CA_FILE)
    if version:
        made.minimum_version = made.maximum_version = version
    return made


def connect(made, **more):
    raw = socket.create_connection(("127.0.0.1", PORT), timeout=60)
    return made.wrap_socket(raw, server_hostname="localhost", **more)


def ask(sock, request, reply):
    sock.sendall(request)
    got = b""
    while len(got) < len(reply):
        more = sock.recv(65536)
        assert more, (request[:50], got[:50])
        got += more
    assert got == reply, (request[:50], got[:50], reply[:50])


for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    made = context(version)
    sock = connect(made)
    for size in (0, 1, 100, 4096, 16384, 16385, 65536, 1_000_000):
        value = (b"0123456789abcdef" * (size // 16 + 1))[:size]
        ask(sock, b"set k 5 0 %d\r\n%s\r\n" % (size, value), b"STORED\r\n")
        reply = b"VALUE k 5 %d\r\n%s\r\nEND\r\n" % (size, value)
        ask(sock, b"get k\r\n", reply)
        ask(sock, b"get k\r\n" * 16, reply * 16)
    # The reply may come before the session's ticket has been read.
    again = connect(made, session=sock.session)
    ask(again, b"mn\r\n", b"MN\r\n")
    assert again.session_reused, version
    # An end in order: close_notify both ways.
    again.unwrap()
    sock.sendall(b"quit\r\n")
    assert sock.recv(10) == b""

# Records in single bytes, both ways, through buffers in memory.
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context().wrap_bio(incoming, outgoing, server_hostname="localhost")
raw = socket.create_connection(("127.0.0.1", PORT), timeout=60)
raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def step(act):
    while True:
        try:
            result = act()
            done = True
        except ssl.SSLWantReadError:
            result, done = None, False
        for byte in outgoing.read():
            raw.sendall(bytes([byte]))
        if done:
            return result
        data = raw.recv(7)
        assert data
        incoming.write(data)


step(tls.do_handshake)
step(lambda: tls.write(b"set s 0 0 5\r\nhello\r\nget s\r\n"))
reply = b""
while not reply.endswith(b"END\r\n"):
    reply += step(lambda: tls.read(100))
assert reply == b"STORED\r\nVALUE s 0 5\r\nhello\r\nEND\r\n", reply

# Old versions, and a server of another name, are refused.
old = context()
try:
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    connect(old)
    raise SystemExit("TLS 1.1 was accepted")
except (ssl.SSLError, OSError):
    pass
try:
    sock = socket.create_connection(("127.0.0.1", PORT), timeout=60)
    context().wrap_socket(sock, server_hostname="example.org")
    raise SystemExit("a wrong name was accepted")
except ssl.SSLCertVerificationError:
    pass
print("tls.py: all passed")
