//! The client side of memcached over UDP: requests of one datagram, and replies of several
//! datagrams.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// The size of the frame header before each payload: ID, number, count, reserved.
const FRAME_BYTES: usize = 8;
/// The largest payload of a datagram.
const PAYLOAD_BYTES_MAX: usize = 65_507 - FRAME_BYTES;

/// A client of one server.
#[derive(Debug)]
pub struct UdpClient {
    socket: UdpSocket,
    /// The ID of the last request.
    id: u16,
    /// The number of the next datagram of the reply to the last request.
    next: u16,
}

impl UdpClient {
    /// Returns a client of the server at this address.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn connect(address: SocketAddr) -> io::Result<UdpClient> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(address)?;
        Ok(UdpClient { socket, id: 0x1234, next: 0 })
    }

    /// Sends requests in one datagram with a new ID.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    ///
    /// # Panics
    /// Panics if the requests exceed one datagram.
    pub fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        assert!(requests.len() <= PAYLOAD_BYTES_MAX, "{} bytes for one datagram", requests.len());
        self.id = self.id.wrapping_add(0x0101);
        self.next = 0;
        let [high, low] = self.id.to_be_bytes();
        self.socket.send(&[&[high, low, 0, 0, 0, 1, 0, 0], requests].concat()).map(drop)
    }

    /// Reads the payload of the next datagram of the reply. Loopback preserves the order of
    /// datagrams.
    ///
    /// # Errors
    /// Returns `WouldBlock` after `limit`; `InvalidData` for a frame that does not continue the
    /// reply.
    pub fn read_some(&mut self, into: &mut [u8], limit: Duration) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(limit))?;
        let bytes = self.socket.recv(into)?;
        let fields: Vec<u16> = into[..bytes.min(FRAME_BYTES)]
            .chunks_exact(2)
            .map(|two| u16::from_be_bytes([two[0], two[1]]))
            .collect();
        match fields[..] {
            [id, number, count, 0] if id == self.id && number == self.next && number < count => {}
            _ => return Err(io::Error::new(ErrorKind::InvalidData, format!("frame {fields:?}"))),
        }
        self.next += 1;
        into.copy_within(FRAME_BYTES..bytes, 0);
        Ok(bytes - FRAME_BYTES)
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
