"""What libnbd sees of features and errors. Its own checks are off, so that the server has to refuse."""

import errno
import sys

import nbd

uri, read_only_uri = sys.argv[1:]


def refused(expected, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except nbd.Error as error:
        assert error.errnum == expected, f"{call.__name__}{arguments}: {error}"
    else:
        raise AssertionError(f"{call.__name__}{arguments} succeeded")


def connect(uri, contexts=(), structured=True):
    handle = nbd.NBD()
    handle.set_strict_mode(0)
    handle.set_request_structured_replies(structured)
    for context in contexts:
        handle.add_meta_context(context)
    handle.connect_uri(uri)
    return handle


h = connect(uri, ["base:allocation", "qemu:dirty-bitmap:monday", "qemu:dirty-bitmap:friday"])
size = h.get_size()
assert h.get_structured_replies_negotiated()
assert h.can_meta_context("base:allocation") and h.can_meta_context("qemu:dirty-bitmap:monday")
assert not h.can_meta_context("qemu:dirty-bitmap:friday")
for feature in ("flush", "fua", "trim", "zero", "fast_zero", "cache", "df", "multi_conn"):
    assert getattr(h, "can_" + feature)(), feature
assert (h.get_block_size(nbd.SIZE_MINIMUM), h.get_block_size(nbd.SIZE_MAXIMUM)) == (1, 32 << 20)

# Every operation, at odd offsets, and what it leaves.
h.pwrite(b"x" * 70001, 4097, nbd.CMD_FLAG_FUA)
assert h.pread(70003, 4096) == b"\0" + b"x" * 70001 + b"\0"
assert h.pread(70003, 4096, nbd.CMD_FLAG_DF) == b"\0" + b"x" * 70001 + b"\0"
h.zero(10, 5000)
h.zero(10, 6000, nbd.CMD_FLAG_NO_HOLE)
h.zero(1 << 20, 1 << 20, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(12, 4999) == b"x" + b"\0" * 10 + b"x"
h.trim(1 << 20, 1 << 20)
h.cache(size, 0)
h.flush()
large = bytes(range(256)) * (32 << 12)
h.pwrite(large, size - len(large))
assert h.pread(len(large), size - len(large)) == large

# The client has a limit below the server's; a hole is described, also a large one.
pieces = []
h.pread_structured(3 << 20, 1 << 20, lambda data, offset, status, error: pieces.append((offset, status)))
assert pieces == [(1 << 20, nbd.READ_HOLE)], pieces

extents = {}
h.block_status(4 << 20, 0, lambda context, offset, entries, error: extents.update({context: entries}))
assert extents["base:allocation"][:4] == [131072, 0, (4 << 20) - 131072, 3], extents
assert extents["qemu:dirty-bitmap:monday"] == [131072, 1, (4 << 20) - 131072, 0], extents
extents.clear()
flags = nbd.CMD_FLAG_REQ_ONE
h.block_status(4 << 20, 0, lambda context, offset, entries, error: extents.update({context: entries}), flags)
assert extents["base:allocation"] == [131072, 0], extents

# Refused, each with its value; and the connection is still in step.
refused(errno.EINVAL, h.pread, 1, size)
refused(errno.EINVAL, h.pread, 2, size - 1)
refused(errno.ENOSPC, h.pwrite, b"x" * 512, size)
refused(errno.ENOSPC, h.pwrite, b"x" * 100000, size - 512)
refused(errno.ENOSPC, h.zero, 512, size)
refused(errno.EINVAL, h.trim, 512, size)
refused(errno.EINVAL, h.cache, 512, size)
refused(errno.ENOTSUP, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
assert h.pread(1, 4096 + 1) == b"x"
h.shutdown()

# Without structured replies.
h = connect(uri, structured=False)
assert not h.can_df()

refused(errno.EINVAL, h.pread, 1, size)
refused(errno.EINVAL, h.pread, 1, 0, nbd.CMD_FLAG_DF)
h.pwrite(b"end", size - 3)
assert h.pread(3, size - 3) == b"end"
h.shutdown()

h = connect(read_only_uri)
assert h.is_read_only() and not h.can_trim() and not h.can_zero()
refused(errno.EPERM, h.pwrite, b"x", 0)
refused(errno.EPERM, h.zero, 1, 0)
refused(errno.EPERM, h.trim, 1, 0)
h.shutdown()

# Many at once, over several connections: what one was told is what the others see.
handles = [connect(uri) for _ in range(4)]
cookies = []
for at, handle in enumerate(handles):
    for block in range(64):
        data = nbd.Buffer.from_bytearray(bytearray([at + 1]) * 4096)
        cookies.append((handle, handle.aio_pwrite(data, (at * 64 + block) * 4096)))
for handle, cookie in cookies:
    while not handle.aio_command_completed(cookie):
        handle.poll(-1)
handles[0].flush()
for at in range(4):
    assert handles[3 - at].pread(64 * 4096, at * 64 * 4096) == bytes([at + 1]) * (64 * 4096)

refused(errno.ENOENT, connect, uri.replace("/disk", "/other"))
