//! A server with a single prepared reply, as a lower bound of a request's costs.
//!
//! It reads like memcached (epoll, one thread, one read and one write per wake-up), counts the
//! commands and keys of the text protocol, and replies to each with prepared bytes. It has no
//! table, no memory management and no statistics: what remains is the kernel and the loop. Start
//! the load with `--verify length`, because all values are the same.
//!
//! ```text
//! template   [VALUE k000… 0 100 CRLF value CRLF] × KEYS_MAX, END CRLF
//! a get of n keys is answered with the template's last n blocks and END
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// The maximum number of keys in one prepared reply; a larger get needs several replies.
const KEYS_MAX: usize = 128;
/// The maximum size of a prepared reply; with large values it covers fewer keys.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;
/// Bytes read per wake-up.
const READ_BYTES: usize = 256 << 10;
/// The maximum length of an incomplete command line that is kept.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Events taken per call.
const EVENTS_MAX: usize = 256;
/// The listener among the connections.
const LISTENER: u64 = u64::MAX;

/// Prepared replies.
#[derive(Debug)]
pub struct Replies {
    template: Vec<u8>,
    block_bytes: usize,
    keys_max: usize,
}

const END: &[u8] = b"END\r\n";

impl Replies {
    /// Returns replies for keys and values of these lengths.
    pub fn new(key_bytes: usize, value_bytes: usize) -> Self {
        let block =
            format!("VALUE {} 0 {value_bytes}\r\n{}\r\n", "k".repeat(key_bytes), "v".repeat(value_bytes));
        let keys_max = (TEMPLATE_BYTES_MAX / block.len()).clamp(1, KEYS_MAX);
        let mut template = block.repeat(keys_max).into_bytes();
        template.extend_from_slice(END);
        Self { template, block_bytes: block.len(), keys_max }
    }

    fn push_values(&self, mut keys: usize, out: &mut Vec<u8>) {
        while keys > self.keys_max {
            out.extend_from_slice(&self.template[..self.keys_max * self.block_bytes]);
            keys -= self.keys_max;
        }
        out.extend_from_slice(self.values(keys));
    }

    /// Returns the reply to a get of `keys` keys, at most `keys_max`.
    fn values(&self, keys: usize) -> &[u8] {
        &self.template[self.template.len() - END.len() - keys * self.block_bytes..]
    }
}

/// The unfinished input and output of a connection.
#[derive(Debug, Default)]
struct Requests {
    /// An incomplete command line.
    line_part: Vec<u8>,
    /// The number of missing bytes of a set's value, including the CRLF.
    value_bytes_left: usize,
}

impl Requests {
    /// Returns the reply if `bytes` are exactly one get with a prepared reply.
    fn as_one_get<'a>(&self, bytes: &[u8], replies: &'a Replies) -> Option<&'a [u8]> {
        let is_between = self.line_part.is_empty() && self.value_bytes_left == 0;
        let is_one_line = memchr::memchr(b'\n', bytes).is_some_and(|end| end + 1 == bytes.len());
        if !is_between || !is_one_line || !bytes.starts_with(b"get ") {
            return None;
        }
        let keys = memchr::memchr_iter(b' ', bytes).count();
        (keys <= replies.keys_max).then(|| replies.values(keys))
    }

    /// Appends the replies to all complete commands of `bytes` to `out`.
    fn answer(&mut self, mut bytes: &[u8], replies: &Replies, out: &mut Vec<u8>) -> io::Result<()> {
        loop {
            if self.value_bytes_left > 0 {
                let taken = self.value_bytes_left.min(bytes.len());
                self.value_bytes_left -= taken;
                bytes = &bytes[taken..];
                if self.value_bytes_left > 0 {
                    return Ok(());
                }
                out.extend_from_slice(b"STORED\r\n");
            }
            let Some(end) = memchr::memchr(b'\n', bytes) else { break };
            let (line, rest) = bytes.split_at(end + 1);
            if self.line_part.is_empty() {
                self.value_bytes_left = answer_line(line, replies, out);
            } else {
                self.line_part.extend_from_slice(line);
                self.value_bytes_left = answer_line(&self.line_part, replies, out);
                self.line_part.clear();
            }
            bytes = rest;
        }
        if self.line_part.len() + bytes.len() > LINE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "a command line without end"));
        }
        self.line_part.extend_from_slice(bytes);
        Ok(())
    }
}

/// Appends the reply to one line; for a set, returns how many bytes follow the line.
fn answer_line(line: &[u8], replies: &Replies, out: &mut Vec<u8>) -> usize {
    if line.starts_with(b"get ") {
        replies.push_values(memchr::memchr_iter(b' ', line).count(), out);
        return 0;
    }
    if line.starts_with(b"set ") {
        let digits = line.trim_ascii_end().rsplit(|&byte| byte == b' ').next().unwrap_or_default();
        let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok());
        return length.map_or(0, |length| length as usize + 2);
    }
    let reply: &[u8] = if line.starts_with(b"version") { b"VERSION 0.0.0\r\n" } else { b"ERROR\r\n" };
    out.extend_from_slice(reply);
    0
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    requests: Requests,
    out: Vec<u8>,
    out_sent: usize,
}

impl Client {
    /// Reads once, and replies to the received commands. Returns whether the connection stays open.
    fn serve(&mut self, buffer: &mut [u8], replies: &Replies) -> io::Result<bool> {
        // A client that does not receive its replies is not read from.
        if self.out.is_empty() {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(bytes) => match self.requests.as_one_get(&buffer[..bytes], replies) {
                    Some(reply) => self.send_uncopied(reply)?,
                    None => self.requests.answer(&buffer[..bytes], replies, &mut self.out)?,
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while self.out_sent < self.out.len() {
            match self.stream.write(&self.out[self.out_sent..]) {
                Ok(bytes) => self.out_sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.out_sent = 0;
        Ok(true)
    }

    /// Sends a prepared reply in place; only the part that the socket does not accept is copied.
    fn send_uncopied(&mut self, reply: &[u8]) -> io::Result<()> {
        let sent_bytes = match self.stream.write(reply) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        self.out.extend_from_slice(&reply[sent_bytes..]);
        Ok(())
    }
}

/// Serves `address` until the process is ended.
///
/// # Errors
/// Fails if the server cannot listen, or epoll fails. An error of a connection closes only that
/// connection.
pub fn serve(address: SocketAddr, replies: &Replies) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
    serve_on(&listener, replies)
}

/// Does the same as [`serve`] on a socket that is already listening.
///
/// # Errors
/// Returns an error if epoll fails.
pub fn serve_on(listener: &TcpListener, replies: &Replies) -> Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        events.clear();
        match epoll::wait(&epoll, spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let data = event.data.u64();
            if data == LISTENER {
                accept(listener, &epoll, &mut clients)?;
                continue;
            }
            let Some(place) = clients.get_mut(data as usize) else { continue };
            let Some(client) = place else { continue };
            let was_full = !client.out.is_empty();
            // An error ends only this connection.
            if !client.serve(&mut buffer, replies).unwrap_or(false) {
                *place = None;
                continue;
            }
            let is_full = !client.out.is_empty();
            if is_full != was_full {
                let flags = if is_full { EventFlags::OUT } else { EventFlags::IN };
                epoll::modify(&epoll, &client.stream, EventData::new_u64(data), flags)?;
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    epoll: &impl std::os::fd::AsFd,
    clients: &mut Vec<Option<Client>>,
) -> Result<()> {
    let Ok((stream, _)) = listener.accept() else { return Ok(()) };
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let place = clients.iter().position(Option::is_none).unwrap_or(clients.len());
    epoll::add(epoll, &stream, EventData::new_u64(place as u64), EventFlags::IN)?;
    let client = Client { stream, requests: Requests::default(), out: Vec::new(), out_sent: 0 };
    match clients.get_mut(place) {
        Some(free) => *free = Some(client),
        None => clients.push(Some(client)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_cut_anywhere_are_answered_alike() {
        let replies = Replies::new(2, 3);
        let block = "VALUE kk 0 3\r\nvvv\r\n";
        let input = b"version\r\nget a\r\nget a b c\r\nset a 0 0 5\r\nget\n\r\r\nget z\r\nfoo\r\n";
        let expected = format!(
            "VERSION 0.0.0\r\n{block}END\r\n{}END\r\nSTORED\r\n{block}END\r\nERROR\r\n",
            block.repeat(3)
        );
        for piece in 1..=input.len() {
            let (mut requests, mut out) = (Requests::default(), Vec::new());
            for bytes in input.chunks(piece) {
                requests.answer(bytes, &replies, &mut out).unwrap();
            }
            assert_eq!(String::from_utf8_lossy(&out), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn more_keys_than_prepared() {
        let replies = Replies::new(2, 3);
        let mut out = Vec::new();
        replies.push_values(KEYS_MAX * 2 + 1, &mut out);
        assert_eq!(out.len(), (KEYS_MAX * 2 + 1) * 19 + 5);
        assert!(out.ends_with(b"vvv\r\nEND\r\n"));
    }
}
