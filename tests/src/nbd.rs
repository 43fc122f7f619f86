//! A minimal NBD client: one export, one request at a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The time limit for a reply. It is generous, because a flush may wait for many slow fsyncs.
const DEADLINE: Duration = Duration::from_secs(120);

const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// The client's flags: fixed newstyle, without zeros after the export's flags.
const CLIENT_FLAGS: u32 = 3;
const EXPORT_NAME: u32 = 1;
/// The flag that makes a write durable before its acknowledgement.
const FUA: u16 = 1;

/// A connection with a selected export.
#[derive(Debug)]
pub struct Disk {
    socket: UnixStream,
    /// The size of the export in bytes.
    pub size_bytes: u64,
    number: u64,
}

impl Disk {
    /// Connects to the server at a unix socket, and selects an export.
    ///
    /// # Errors
    /// Fails if the server cannot be reached, or closes the connection because the export does not
    /// exist.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Disk> {
        let mut socket = UnixStream::connect(socket)?;
        socket.set_read_timeout(Some(DEADLINE))?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        let number = |at: usize| u64::from_be_bytes(greeting[at..at + 8].try_into().expect("8 bytes"));
        if (number(0), number(8)) != (INIT_MAGIC, OPTION_MAGIC) {
            return Err(io::Error::other("this is no NBD server"));
        }
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        hello.extend_from_slice(&EXPORT_NAME.to_be_bytes());
        hello.extend_from_slice(&u32::try_from(export.len()).map_err(io::Error::other)?.to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        socket.write_all(&hello)?;
        let mut selected = [0; 10];
        socket.read_exact(&mut selected)?;
        let size_bytes = u64::from_be_bytes(selected[..8].try_into().expect("8 bytes"));
        Ok(Disk { socket, size_bytes, number: 0 })
    }

    /// Sets the time limit for replies.
    ///
    /// # Errors
    /// Fails if the system refuses the limit.
    pub fn set_deadline(&self, time: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(time))
    }

    /// Returns the socket, for invalid requests.
    pub fn into_socket(self) -> UnixStream {
        self.socket
    }

    /// Sends a request, and returns the error of the reply; the data of a read go to `into`.
    fn ask(
        &mut self,
        (kind, flags): (u16, u16),
        offset: u64,
        len_bytes: usize,
        payload: &[u8],
        into: &mut [u8],
    ) -> io::Result<()> {
        self.number += 1;
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend_from_slice(&flags.to_be_bytes());
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&self.number.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&u32::try_from(len_bytes).map_err(io::Error::other)?.to_be_bytes());
        request.extend_from_slice(payload);
        self.socket.write_all(&request)?;
        let mut reply = [0; 16];
        self.socket.read_exact(&mut reply)?;
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("4 bytes"));
        let number = u64::from_be_bytes(reply[8..].try_into().expect("8 bytes"));
        if (word(0), number) != (REPLY_MAGIC, self.number) {
            return Err(io::Error::other("the reply is to another request"));
        }
        match word(4) {
            0 => self.socket.read_exact(into),
            error => Err(io::Error::other(format!("the server answers error {error}"))),
        }
    }

    /// Reads a range.
    ///
    /// # Errors
    /// Fails if the server reports an error, or the connection fails.
    pub fn read(&mut self, offset: u64, len_bytes: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; len_bytes];
        self.ask((0, 0), offset, len_bytes, &[], &mut data)?;
        Ok(data)
    }

    /// Writes a range.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask((1, 0), offset, data.len(), data, &mut [])
    }

    /// Writes a range durably (FUA).
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub fn write_durably(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask((1, FUA), offset, data.len(), data, &mut [])
    }

    /// Makes all acknowledged writes durable.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.ask((3, 0), 0, 0, &[], &mut [])
    }
}
