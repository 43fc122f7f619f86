//! A client that sends given frames, valid or not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use blocker::{Error, Segments, Timestamp};
use synapse::Address;
use synapse::codec::*;

pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

/// A frame that has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) bytes: Vec<u8>,
    head_bytes: usize,
}

impl Arrived {
    pub(crate) fn head(&self) -> Head<'_> {
        parse(&self.bytes).unwrap()
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[self.head_bytes..]
    }

    pub(crate) fn outcome(&self) -> Outcome {
        Outcome::decode(&self.head(), self.payload().to_vec().into()).unwrap()
    }

    pub(crate) fn goodbye(&self) -> Error {
        assert_eq!(self.head().header.op, Op::Goodbye, "not a goodbye");
        decode_goodbye(&self.head().header, self.payload())
    }
}

pub(crate) fn hello(lane: u16) -> Hello {
    let session = SessionId { client: [lane as u8 + 1; 16], lane };
    Hello::new(session, Features(0), [7; 32], Credits { slots: 4, bytes: 1 << 24 })
}

impl Raw {
    /// Returns a connection without a handshake.
    pub(crate) fn new(address: &Address) -> Self {
        let Address::Tcp(address) = address else { panic!("only TCP") };
        Self::over(TcpStream::connect(address.as_str()).unwrap())
    }

    /// Uses an existing connection, as either side.
    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        // If a server hangs, the test fails instead of hanging too.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Returns a connection after its handshake.
    pub(crate) fn welcomed(address: &Address, hello: &Hello) -> (Self, Welcome) {
        let mut raw = Self::new(address);
        raw.send(|out| hello.encode(out));
        let arrived = raw.frame();
        let welcome = Welcome::decode(&arrived.head()).unwrap();
        (raw, welcome)
    }

    pub(crate) fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write(&mut out);
        self.stream.write_all(&out).unwrap();
    }

    pub(crate) fn request(&mut self, id: RequestId, request: &Request) {
        let bytes = request_bytes(id, request);
        self.stream.write_all(&bytes).unwrap();
    }

    /// Returns the next frame.
    pub(crate) fn frame(&mut self) -> Arrived {
        self.try_frame().expect("a frame, not the end")
    }

    /// Returns the next frame; `None` at the end of the stream.
    pub(crate) fn try_frame(&mut self) -> Option<Arrived> {
        loop {
            if let Some(measured) = measure(&self.buffer, 64 << 20).unwrap() {
                let all = measured.head_bytes + measured.payload_bytes;
                if self.buffer.len() >= all {
                    let bytes = self.buffer.drain(..all).collect();
                    return Some(Arrived { bytes, head_bytes: measured.head_bytes });
                }
            }
            let mut chunk = [0; 65_536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                // The server closed the connection while bytes were in transit to it.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                // The process was suspended, and the system does not restart a read with a timeout.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

pub(crate) fn request_bytes(id: RequestId, request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    let payload: Segments = request.encode(id, Timestamp(0), false, &mut out);
    out.extend_from_slice(&payload.to_vec());
    out
}

pub(crate) fn id(slot: u32, sequence: u32) -> RequestId {
    RequestId { slot, sequence }
}
