//! The load: requests signed in advance, one at a time per connection, sent as fast as the
//! responses arrive.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The longest wait for a server.
const PATIENCE: Duration = Duration::from_secs(60);
const BUFFER_BYTES: usize = 1 << 20;
const HEAD_BYTES_MAX: usize = 16 << 10;

/// A request for known bytes.
#[derive(Clone, Debug)]
pub(crate) struct Get {
    /// The whole head.
    pub(crate) head: String,
    /// The length of the response's body, a positive multiple of eight.
    pub(crate) bytes: u64,
    /// The first and the last eight bytes of the body.
    pub(crate) ends: [[u8; 8]; 2],
}

/// A connection to a server.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    pub(crate) fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Sends a request with a body, and returns the status and the text of the response.
    pub(crate) fn send(&mut self, head: &str, body: &[u8]) -> Result<(u16, String)> {
        self.stream.write_all(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes())?;
        self.stream.write_all(body)?;
        let (status, begin, filled, left) = self.head()?;
        let here = (filled - begin) as u64;
        ensure!(left >= here, "more than one answer");
        let mut text = self.buffer[begin..filled].to_vec();
        (&mut self.stream).take(left - here).read_to_end(&mut text)?;
        Ok((status, String::from_utf8_lossy(&text).into_owned()))
    }

    /// Sends a read, and receives the response. `must_have` is a required line of the head, in
    /// lower case.
    pub(crate) fn get(&mut self, get: &Get, must_have: Option<&str>) -> Result<()> {
        self.stream.write_all(get.head.as_bytes())?;
        let (status, begin, filled, len) = self.head()?;
        let head = || String::from_utf8_lossy(&self.buffer[..begin]).to_ascii_lowercase();
        ensure!(matches!(status, 200 | 206) && len == get.bytes, "{} was answered: {}", get.head, head());
        if let Some(line) = must_have {
            ensure!(head().contains(line), "{} was answered without {line}: {}", get.head, head());
        }
        let mut here = filled - begin;
        ensure!(here as u64 <= len, "{}: more than the answer has come", get.head);
        self.buffer.copy_within(begin..filled, 0);
        let mut left = len - here as u64;
        // A read returns at least the last eight bytes in one piece.
        let mut is_first = true;
        loop {
            let more = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len() - here);
            self.stream.read_exact(&mut self.buffer[here..here + more])?;
            (left, here) = (left - more as u64, here + more);
            if std::mem::take(&mut is_first) {
                ensure!(self.buffer[..8] == get.ends[0], "{}: the body begins with wrong bytes", get.head);
            }
            if left == 0 {
                break;
            }
            // The lengths of the body and of the buffer are multiples of eight.
            here = 0;
        }
        ensure!(
            here >= 8 && self.buffer[here - 8..here] == get.ends[1],
            "{}: the body ends wrongly",
            get.head
        );
        Ok(())
    }

    /// Reads the head of a response. Returns its status, its end, the filled length of the buffer,
    /// and the length of the body.
    fn head(&mut self) -> Result<(u16, usize, usize, u64)> {
        let mut filled = 0;
        let end = loop {
            // The bytes after the head belong to the same response.
            let count = self.stream.read(&mut self.buffer[filled..])?;
            ensure!(count > 0, "the connection has ended");
            filled += count;
            let begin = filled.saturating_sub(count + 3);
            if let Some(at) = memchr::memmem::find(&self.buffer[begin..filled], b"\r\n\r\n") {
                break begin + at + 4;
            }
            ensure!(filled < HEAD_BYTES_MAX, "the head of the answer does not end");
        };
        let head = std::str::from_utf8(&self.buffer[..end]).context("the head of the answer")?;
        let status = head.get(9..12).and_then(|digits| digits.parse().ok());
        let mut len = None;
        for line in head.split("\r\n").skip(1) {
            let Some((name, value)) = line.split_once(':') else { continue };
            if name.eq_ignore_ascii_case("content-length") {
                len = value.trim().parse().ok();
            }
        }
        match (status, len) {
            (Some(status), Some(len)) => Ok((status, end, filled, len)),
            // This response has no body.
            (Some(status @ 204), None) => Ok((status, end, filled, 0)),
            _ => bail!("the head of the answer has no status or length: {head}"),
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) elapsed: Duration,
    /// Nanoseconds from the request to the end of the response.
    pub(crate) latency: Histogram<u64>,
}

impl Outcome {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// Sends random requests out of `gets` over `connections` connections for `time`.
pub(crate) fn run(
    address: SocketAddr,
    gets: &[Get],
    connections: usize,
    time: Duration,
    must_have: Option<&str>,
) -> Result<Outcome> {
    let start = Barrier::new(connections);
    std::thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = (0..connections)
            .map(|number| {
                scope.spawn(move || -> Result<(Histogram<u64>, Instant, Instant)> {
                    let mut rng = SmallRng::seed_from_u64(number as u64);
                    let opened = Connection::open(address);
                    start.wait();
                    let mut connection = opened?;
                    let mut latency = Histogram::new(3)?;
                    let begun = Instant::now();
                    let mut now = begun;
                    while now - begun < time {
                        connection.get(&gets[rng.random_range(0..gets.len())], must_have)?;
                        let done = Instant::now();
                        latency.record((done - now).as_nanos() as u64)?;
                        now = done;
                    }
                    Ok((latency, begun, now))
                })
            })
            .collect();
        let mut all: Option<(Histogram<u64>, Instant, Instant)> = None;
        for thread in threads {
            let (latency, begun, ended) = thread.join().expect("a thread of the load")?;
            all = Some(match all {
                None => (latency, begun, ended),
                Some((mut sum, first, last)) => {
                    sum.add(latency)?;
                    (sum, first.min(begun), last.max(ended))
                }
            });
        }
        let (latency, begun, ended) = all.context("no connections")?;
        Ok(Outcome { requests: latency.len(), elapsed: ended - begun, latency })
    })
}
