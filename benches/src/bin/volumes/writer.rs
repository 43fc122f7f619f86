//! A client of NBD that writes and flushes, one request at a time.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, ensure};

const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const EXPORT_NAME: u32 = 1;
/// The client's flags: fixed newstyle, and no zeros after the flags of the export.
const CLIENT_FLAGS: u32 = 3;

/// A connection that has selected an export.
pub(crate) struct Writer {
    socket: UnixStream,
}

impl Writer {
    pub(crate) fn connect(socket: &Path, export: &str) -> Result<Self> {
        let mut socket = UnixStream::connect(socket)?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        ensure!(greeting[..8] == INIT_MAGIC.to_be_bytes(), "this is no NBD server");
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        hello.extend_from_slice(&EXPORT_NAME.to_be_bytes());
        hello.extend_from_slice(&u32::try_from(export.len())?.to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        socket.write_all(&hello)?;
        socket.read_exact(&mut [0; 10]).with_context(|| format!("selecting {export}"))?;
        Ok(Self { socket })
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.ask(1, offset, u32::try_from(data.len())?, data)
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.ask(3, 0, 0, &[])
    }

    fn ask(&mut self, kind: u32, offset: u64, length: u32, payload: &[u8]) -> Result<()> {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        // This field consists of flags and command type, two bytes each.
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&0_u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(payload);
        self.socket.write_all(&request)?;
        let mut reply = [0; 16];
        self.socket.read_exact(&mut reply)?;
        ensure!(reply[..4] == REPLY_MAGIC.to_be_bytes() && reply[4..8] == [0; 4], "the reply is {reply:?}");
        Ok(())
    }
}
