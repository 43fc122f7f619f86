//! The reference: a header of 64 bytes and a payload over blocking sockets, one thread on each
//! side, with the same working set. It has no names, checks or deadlines. A write is received from
//! the socket directly into its slot, a read is sent from its slot, and small messages available at
//! the same time are sent together.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};

use crate::measure::Meter;
use crate::shape::{Operation, Shape};

const HEADER_BYTES: usize = 64;
/// The bytes received or sent in one call: everything available, so that the two sides alternate.
pub(crate) const WHOLE_BYTES: usize = 256 * 1024;
/// The bytes received or sent in one call if one side processes a batch while the other processes
/// the next, as in synapse.
pub(crate) const BATCH_BYTES: usize = 32 * 1024;
/// Payloads of at least this many bytes are sent and received without a buffer in between.
const DIRECT_BYTES_MIN: usize = 32 * 1024;

/// The header of both requests and replies.
struct Header {
    is_write: bool,
    slot: u32,
    payload_bytes: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = u8::from(self.is_write);
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self { is_write: bytes[0] == 1, slot: word(4), payload_bytes: word(8) }
    }
}

/// Serves one connection after the other, forever.
///
/// # Errors
/// Fails if the socket cannot be used. A client that disconnects is not an error.
pub(crate) fn serve(
    listener: &TcpListener,
    slot_count: usize,
    slot_bytes: usize,
    batch_bytes: usize,
) -> Result<()> {
    let mut slots: Vec<Vec<u8>> = (0..slot_count).map(|n| vec![n as u8 | 1; slot_bytes]).collect();
    loop {
        let (stream, _) = listener.accept().context("accepting")?;
        stream.set_nodelay(true)?;
        match serve_one(&stream, &mut slots, batch_bytes) {
            // The client has disconnected.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
            Err(error) => return Err(error.into()),
            _ => {}
        }
    }
}

fn serve_one(mut stream: &TcpStream, slots: &mut [Vec<u8>], batch_bytes: usize) -> io::Result<()> {
    let mut input = Input::for_payloads(slots.first().map_or(0, Vec::len), batch_bytes);
    let mut output: Vec<u8> = Vec::with_capacity(batch_bytes);
    loop {
        while let Some(header) = input.take(HEADER_BYTES).map(Header::decode) {
            let slot = slots.get_mut(header.slot as usize).ok_or(ErrorKind::InvalidInput)?;
            if header.is_write {
                if header.payload_bytes as usize != slot.len() {
                    return Err(ErrorKind::InvalidInput.into());
                }
                input.fill(stream, slot)?;
                output.extend_from_slice(&Header { payload_bytes: 0, ..header }.encode());
                continue;
            }
            if output.len() >= batch_bytes {
                stream.write_all(&output)?;
                output.clear();
            }
            output.extend_from_slice(&Header { payload_bytes: slot.len() as u32, ..header }.encode());
            if slot.len() >= DIRECT_BYTES_MIN {
                write_both(stream, &output, slot)?;
                output.clear();
            } else {
                output.extend_from_slice(slot);
            }
        }
        stream.write_all(&output)?;
        output.clear();
        if !input.receive(stream)? {
            return Ok(());
        }
    }
}

/// Runs the closed loop `shape` against the server at `address`.
///
/// # Errors
/// Returns an error if the connection fails or a response is wrong.
pub(crate) fn load(address: SocketAddr, shape: &Shape, batch_bytes: usize, meter: &mut Meter) -> Result<()> {
    let stream = TcpStream::connect(address).context("connecting")?;
    stream.set_nodelay(true)?;
    let payload_bytes = if shape.operation == Operation::Read { shape.bytes } else { 0 };
    let mut input = Input::for_payloads(payload_bytes, batch_bytes);
    let mut output = Vec::with_capacity(batch_bytes);
    let payload = vec![0x5a; shape.bytes];
    let mut target = vec![0; shape.bytes];
    let (mut sent, mut answered) = (0, 0);
    while !meter.is_done() {
        while sent - answered < shape.depth as u64 {
            send(&stream, shape, shape.slot(sent), &payload, &mut output)?;
            sent += 1;
            if output.len() >= batch_bytes {
                (&stream).write_all(&output)?;
                output.clear();
            }
        }
        (&stream).write_all(&output)?;
        output.clear();
        ensure!(input.receive(&stream)?, "the server has left");
        while let Some(header) = input.take(HEADER_BYTES).map(Header::decode) {
            if shape.operation == Operation::Read {
                ensure!(header.payload_bytes as usize == shape.bytes, "a reply of another length");
                input.fill(&stream, &mut target)?;
            }
            answered += 1;
            meter.count();
        }
    }
    Ok(())
}

fn send(
    stream: &TcpStream,
    shape: &Shape,
    slot: usize,
    payload: &[u8],
    output: &mut Vec<u8>,
) -> io::Result<()> {
    let is_write = shape.operation == Operation::Write;
    let payload_bytes = if is_write { shape.bytes as u32 } else { 0 };
    output.extend_from_slice(&Header { is_write, slot: slot as u32, payload_bytes }.encode());
    if is_write && shape.bytes >= DIRECT_BYTES_MIN {
        write_both(stream, output, payload)?;
        output.clear();
    } else if is_write {
        output.extend_from_slice(payload);
    }
    Ok(())
}

/// Writes both parts completely, in as few sends as the kernel allows.
fn write_both(mut stream: &TcpStream, first: &[u8], second: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(first), IoSlice::new(second)];
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let written = stream.write_vectored(rest)?;
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// The bytes received but not consumed yet.
struct Input {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// Receives only a header before a large payload, so that the payload is not copied.
    fn for_payloads(bytes: usize, batch_bytes: usize) -> Self {
        let len = if bytes >= DIRECT_BYTES_MIN { HEADER_BYTES } else { batch_bytes };
        Self { buffer: vec![0; len], start: 0, end: 0 }
    }

    /// Waits for more bytes. Returns false at the end of the stream.
    fn receive(&mut self, mut stream: &TcpStream) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let received = stream.read(&mut self.buffer[self.end..])?;
        self.end += received;
        Ok(received > 0)
    }

    /// Returns the next `len` bytes if they have arrived.
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let bytes = self.buffer[self.start..self.end].get(..len)?;
        self.start += len;
        Some(bytes)
    }

    /// Fills `target` with the next bytes: first from this buffer, then directly from the socket,
    /// together with the bytes that follow the target.
    fn fill(&mut self, mut stream: &TcpStream, target: &mut [u8]) -> io::Result<()> {
        let here = target.len().min(self.end - self.start);
        target[..here].copy_from_slice(&self.buffer[self.start..self.start + here]);
        self.start += here;
        let mut filled = here;
        while filled < target.len() {
            // The buffer is empty, so it receives the bytes that follow the target.
            let room = target.len() - filled;
            let mut places = [IoSliceMut::new(&mut target[filled..]), IoSliceMut::new(&mut self.buffer)];
            let count = stream.read_vectored(&mut places)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            (self.start, self.end) = (0, count.saturating_sub(room));
            filled += count.min(room);
        }
        Ok(())
    }
}
