//! A client that changes its own keys, and knows the required state of each.

use super::history::{Change, Flush, Pending, Seen};
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A time to live that is longer than a test.
const HOURS_SECS: u32 = 50_000;
/// The number of a client's keys.
const KEYS: u32 = 120;

/// A connection to the server under test. An error means that the server has exited.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

/// A reply of the meta protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The code: `HD`, `VA`, `EN`, `NS` and so on.
    pub code: String,
    /// The flags after the code.
    pub flags: Vec<String>,
    /// The value of a `VA`.
    pub value: Vec<u8>,
}

impl Reply {
    /// Returns the number of the flag with this letter.
    pub fn number(&self, letter: char) -> Option<u64> {
        self.flags.iter().find_map(|flag| flag.strip_prefix(letter)?.parse().ok())
    }
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Returns a system error.
    pub fn open(port: u16) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(crate::conn::DEADLINE))?;
        Ok(Connection { reader: BufReader::new(stream) })
    }

    /// Sends a request and reads its reply.
    ///
    /// # Errors
    /// Returns a system error: the server has ended.
    pub fn ask(&mut self, request: &[u8]) -> std::io::Result<Reply> {
        self.reader.get_mut().write_all(request)?;
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let code = words.next().unwrap_or_default();
        let mut value = Vec::new();
        if code == "VA" {
            let bytes: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            value.resize(bytes + 2, 0);
            self.reader.read_exact(&mut value)?;
            value.truncate(bytes);
        }
        Ok(Reply { code, flags: words.collect(), value })
    }

    /// Reads a key.
    ///
    /// # Errors
    /// Returns the errors of [`ask`](Connection::ask).
    pub fn look(&mut self, key: &str) -> std::io::Result<Option<Seen>> {
        // The request has no flag `k`, and does not update the time of last use.
        let reply = self.ask(format!("mg {key} v f t c\r\n").as_bytes())?;
        if reply.code != "VA" {
            return Ok(None);
        }
        let expires = reply.flags.iter().any(|flag| flag.starts_with('t') && flag != "t-1");
        let stale = reply.flags.iter().any(|flag| flag == "X");
        Ok(Some(Seen {
            flags: reply.number('f').unwrap_or(0) as u32,
            cas: reply.number('c').filter(|cas| *cas != 0),
            value: reply.value,
            expires,
            stale,
        }))
    }
}

/// The state that all clients share.
#[derive(Debug, Default)]
pub struct Common {
    /// A counter of all events.
    pub clock: AtomicU64,
    /// The number of changes acknowledged in this round.
    pub acknowledged: AtomicU64,
}

impl Common {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

/// A client and its keys.
pub struct Client {
    number: usize,
    random: SmallRng,
    /// The last acknowledged change of each key.
    pub last: HashMap<String, Change>,
    /// The unacknowledged change, if any.
    pub pending: Option<(String, Pending)>,
    /// The client's flushes.
    pub flushes: Vec<Flush>,
    /// The CAS values that the client has received in this round, with their keys.
    pub cas_values: Vec<(String, u64)>,
    /// Impossible replies.
    pub surprises: Vec<String>,
    /// Keys that went missing while the server ran, each with the last change before that.
    pub gone_while_running: Vec<(String, Change)>,
}

impl Client {
    /// Returns a client.
    pub fn new(number: usize, random: SmallRng) -> Client {
        Client {
            number,
            random,
            last: HashMap::new(),
            pending: None,
            flushes: Vec::new(),
            cas_values: Vec::new(),
            surprises: Vec::new(),
            gone_while_running: Vec::new(),
        }
    }

    /// Returns the keys of a client.
    pub fn keys(number: usize) -> impl Iterator<Item = String> {
        (0..KEYS).map(move |n| format!("client-{number}-key-{n}"))
    }

    /// Sends changes until the server has ended.
    pub fn run(&mut self, port: u16, common: &Common) {
        let Ok(mut connection) = Connection::open(port) else { return };
        while self.step(&mut connection, common).is_ok() {}
    }

    /// Sends changes while `goes_on`; returns the longest duration of a change.
    ///
    /// # Errors
    /// Returns a system error: the server has ended.
    pub fn run_while(
        &mut self,
        port: u16,
        common: &Common,
        goes_on: &AtomicBool,
    ) -> std::io::Result<Duration> {
        let mut connection = Connection::open(port)?;
        let mut longest = Duration::ZERO;
        while goes_on.load(Ordering::Relaxed) {
            let begun = Instant::now();
            self.step(&mut connection, common)?;
            longest = longest.max(begun.elapsed());
        }
        Ok(longest)
    }

    /// Returns the known state of a key; `None` if the key is missing, or may be missing.
    fn known(&self, key: &str) -> Option<Seen> {
        self.last.get(key).and_then(|change| change.result.clone())
    }

    fn step(&mut self, connection: &mut Connection, common: &Common) -> std::io::Result<()> {
        if self.number == 0 && self.random.random_ratio(1, 600) {
            let sent = common.tick();
            self.flushes.push(Flush { sent, acknowledged: None });
            let reply = connection.ask(b"flush_all\r\n")?;
            assert_eq!(reply.code, "OK");
            let acknowledged = Some(common.tick());
            self.flushes.pop();
            self.flushes.push(Flush { sent, acknowledged });
            return Ok(());
        }
        let key = format!("client-{}-key-{}", self.number, self.random.random_range(0..KEYS));
        let old = self.known(&key);
        let kind = self.random.random_range(0..100);
        let expires = self.random.random_ratio(1, 3);
        let ttl = if expires { HOURS_SECS } else { 0 };
        let flags = if self.random.random_ratio(1, 3) { self.random.random::<u32>() } else { 0 };
        let text = self.value();
        let fresh = Seen { value: text.clone(), flags, expires, stale: false, cas: None };
        let store = |mode: &str, more: &str, text: &[u8]| {
            let head = format!("ms {key} {} {mode} F{flags} T{ttl} c{more}\r\n", text.len());
            [head.as_bytes(), text, b"\r\n"].concat()
        };
        // The pair consists of the request and of the key's new state after a reply HD or VA.
        let (request, result): (Vec<u8>, Option<Seen>) = match (kind, old) {
            (0..40, _) => (store("MS", "", &text), Some(fresh)),
            (40..45, _) => {
                let number = self.random.random_range(0u64..1_000).to_string().into_bytes();
                (store("MS", "", &number), Some(Seen { value: number, ..fresh }))
            }
            (45..50, _) => (store("ME", "", &text), Some(fresh)),
            (50..60, Some(old)) => {
                let append = kind < 55;
                let value = if append {
                    [&old.value[..], b"tail"].concat()
                } else {
                    [&b"head"[..], &old.value].concat()
                };
                let mode = if append { "MA" } else { "MP" };
                // Flags and expiry stay; the item is no longer stale.
                (
                    store(mode, "", if append { b"tail" } else { b"head" }),
                    Some(Seen { value, stale: false, cas: None, ..old }),
                )
            }
            (60..70, Some(Seen { cas: Some(cas), .. })) => {
                (store("MS", &format!(" C{cas}"), &text), Some(fresh))
            }
            (70..82, Some(old))
                if !old.value.is_empty()
                    && old.value.len() < 15
                    && old.value.iter().all(u8::is_ascii_digit) =>
            {
                let number: u64 = String::from_utf8_lossy(&old.value).parse().unwrap_or(0);
                let sum = (number + 7).to_string().into_bytes();
                (format!("ma {key} D7 c v\r\n").into_bytes(), Some(Seen { value: sum, cas: None, ..old }))
            }
            (82..88, Some(old)) => {
                let request = format!("mg {key} T{ttl} c f\r\n");
                // Reading a stale item would win its token, so the test does not read stale items.
                if old.stale {
                    return Ok(());
                }
                (request.into_bytes(), Some(Seen { expires, ..old }))
            }
            (88..91, Some(old)) => {
                let request = format!("md {key} I\r\n");
                (request.into_bytes(), Some(Seen { stale: true, cas: None, ..old }))
            }
            (91.., Some(_)) => (format!("md {key}\r\n").into_bytes(), None),
            _ => (store("MS", "", &text), Some(fresh)),
        };
        self.ask(connection, common, key, &request, result)
    }

    /// Requests a change, and records its outcome.
    fn ask(
        &mut self,
        connection: &mut Connection,
        common: &Common,
        key: String,
        request: &[u8],
        result: Option<Seen>,
    ) -> std::io::Result<()> {
        let sent = common.tick();
        let mut results = vec![result.clone()];
        if let (Some(before), Some(after)) = (self.known(&key), &result) {
            // The CAS value changes before the mark.
            results.push(Some(Seen { cas: None, ..before.clone() }).filter(|_| after.stale));
        }
        self.pending = Some((key.clone(), Pending { results }));
        let reply = connection.ask(request)?;
        self.pending = None;
        let acknowledged = common.tick();
        let change = |result| Change { sent, acknowledged, result };
        match reply.code.as_str() {
            "HD" | "VA" => {
                let cas = reply.number('c').filter(|cas| *cas != 0);
                // A touch reports the previous CAS value.
                if !request.starts_with(b"mg") {
                    self.cas_values.extend(cas.map(|cas| (key.clone(), cas)));
                }
                let known = result.map(|seen| Seen { cas, ..seen });
                self.last.insert(key, change(known));
                common.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            // The item exists already, or has another CAS value than the client expects.
            "NS" if request.windows(4).any(|word| word == b" ME ") => {
                if self.known(&key).is_none() {
                    self.surprises.push(format!("{key} is there, and should not be"));
                }
            }
            // The item is missing; whether a flush explains this is judged later.
            "NF" | "EN" | "NS" => self.gone(&key, sent, acknowledged),
            _ => self.surprises.push(format!(
                "{} to {}",
                reply.code,
                String::from_utf8_lossy(request).lines().next().unwrap_or_default()
            )),
        }
        Ok(())
    }

    /// Records that a key is unexpectedly missing.
    fn gone(&mut self, key: &str, sent: u64, acknowledged: u64) {
        let change = Change { sent, acknowledged, result: None };
        if let Some(before) = self.last.insert(key.to_owned(), change)
            && before.result.is_some()
        {
            self.gone_while_running.push((key.to_owned(), before));
        }
    }

    /// Returns a value: usually small, sometimes large enough to be split into pieces.
    fn value(&mut self) -> Vec<u8> {
        let bytes = match self.random.random_range(0..40) {
            0 => self.random.random_range(20_000..60_000),
            1..4 => self.random.random_range(2_000..9_000),
            _ => self.random.random_range(0..200),
        };
        let first = self.random.random_range(b'a'..=b'z');
        (0..bytes).map(|at: usize| (first - b'a' + (at % 23) as u8) % 26 + b'a').collect()
    }
}
