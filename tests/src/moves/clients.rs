//! Clients of [`Registers`]: each has a connection to every node, and uses all protocols.

use super::registers::{Before, Found, Register, Registers, Times, any};
use crate::ending::SetOnDrop;
use crate::frame::{Request, op};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The time limit of a reply. Requests that wait for a node may take 30 seconds.
const REPLY: Duration = Duration::from_secs(100);
/// The pause after a request without success.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(5);

/// The clients of a run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The number of clients.
    pub clients: usize,
    /// The percentage of requests that change a key.
    pub changes: u32,
    /// The pause of each client after a request. Without one, clients take all processors.
    pub pause: Duration,
    /// The seed of the clients' choices.
    pub seed: u64,
}

impl Load {
    /// Runs the clients while `meanwhile` runs. Returns what this returns, and the times of requests.
    ///
    /// # Panics
    /// Panics if `meanwhile` or a client panics.
    pub fn run<T>(&self, registers: &Registers, meanwhile: impl FnOnce() -> T) -> (T, Times) {
        registers.is_over.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let end = SetOnDrop(&registers.is_over);
            let begin = |number| scope.spawn(move || Client::new(registers, *self, number).run());
            let clients: Vec<_> = (0..self.clients).map(begin).collect();
            let result = meanwhile();
            drop(end);
            let mut times = Times::default();
            clients.into_iter().for_each(|client| times.extend(client.join().expect("a client")));
            (result, times)
        })
    }
}

/// Reads every key at every node once, in strict mode: each must have its last acknowledged value.
/// Returns the number of keys that were found.
///
/// # Panics
/// Panics if there is a problem.
pub fn read_all(registers: &Registers, context: &str) -> u64 {
    let before = registers.counts.hits.load(Ordering::SeqCst);
    let mut client =
        Client::new(registers, Load { clients: 1, changes: 0, pause: Duration::ZERO, seed: 0 }, 0);
    for node in (0..registers.nodes()).filter(|node| registers.address(*node).is_some()) {
        for register in &registers.all {
            client.attempt(node, "mg", |client| client.meta_get(node, register));
        }
    }
    registers.assert_right(context);
    registers.counts.hits.load(Ordering::SeqCst) - before
}

/// Stores a value of every key, at the nodes in turn.
///
/// # Panics
/// Panics if there is a problem.
pub fn store_all(registers: &Registers, context: &str) {
    let mut client =
        Client::new(registers, Load { clients: 1, changes: 100, pause: Duration::ZERO, seed: 0 }, 0);
    let running: Vec<usize> =
        (0..registers.nodes()).filter(|node| registers.address(*node).is_some()).collect();
    for (number, register) in registers.all.iter().enumerate() {
        let node = running[number % running.len()];
        client.attempt(node, "ms", |client| client.meta_set(node, register));
    }
    registers.assert_right(context);
}

struct Client<'a> {
    registers: &'a Registers,
    load: Load,
    number: usize,
    random: SmallRng,
    /// A connection to each node for the text protocol, and after them those for the binary one, each
    /// with its address.
    conns: Vec<Option<(SocketAddr, BufReader<TcpStream>)>>,
}

/// The error of a reply that is not the expected one.
fn unexpected(reply: &[u8]) -> Error {
    Error::other(String::from_utf8_lossy(&reply[..reply.len().min(160)]).trim_end().to_owned())
}

/// Whether the connection can be used after an error.
fn is_reply(error: &Error) -> bool {
    error.kind() == ErrorKind::Other && error.to_string().contains("SERVER_ERROR")
}

impl<'a> Client<'a> {
    fn new(registers: &'a Registers, load: Load, number: usize) -> Self {
        let random = SmallRng::seed_from_u64(load.seed << 16 | number as u64);
        let conns = (0..2 * registers.nodes()).map(|_| None).collect();
        Self { registers, load, number, random, conns }
    }

    fn run(mut self) -> Times {
        let mut times = Times::default();
        while !self.registers.is_over.load(Ordering::SeqCst) {
            let begun = Instant::now();
            let is_answered = self.step();
            if is_answered {
                times.add(begun.elapsed());
            }
            std::thread::sleep(if is_answered { self.load.pause } else { PAUSE_AFTER_FAILURE });
        }
        times
    }

    /// Sends one request, to any node that runs. Returns whether it was answered.
    fn step(&mut self) -> bool {
        let registers = self.registers;
        let nodes = registers.nodes();
        let node = self.random.random_range(0..nodes);
        if registers.address(node).is_none() {
            return false;
        }
        let kind = self.random.random_range(0..100);
        if self.random.random_range(0..100) < self.load.changes {
            let own = registers.all.len().div_ceil(self.load.clients);
            let index = self.random.random_range(0..own) * self.load.clients + self.number;
            let register = registers.all.get(index).filter(|register| registers.may_change(register));
            let Some(register) = register else { return true };
            match kind {
                0..35 => self.attempt(node, "set", |client| client.set(node, register, false)),
                35..45 => self.attempt(node, "set noreply", |client| client.set(node, register, true)),
                45..65 => self.attempt(node, "ms", |client| client.meta_set(node, register)),
                65..75 => self.attempt(node, "cas", |client| client.cas(node, register)),
                75..85 => self
                    .attempt(node + nodes, "SET", |client| client.binary_set(node + nodes, register, "SET")),
                85..93 => self.attempt(node + nodes, "SETQ", |client| {
                    client.binary_set(node + nodes, register, "SETQ")
                }),
                _ => self.attempt(node, "delete", |client| client.delete(node, register)),
            }
        } else {
            let count = self.random.random_range(2..20);
            let several: Vec<&Register> = (0..count).map(|_| any(registers, &mut self.random)).collect();
            match kind {
                0..40 => self.attempt(node, "get", |client| client.get(node, &several[..1])),
                40..60 => self.attempt(node, "gets", |client| client.get(node, &several)),
                60..85 => self.attempt(node, "mg", |client| client.meta_get(node, several[0])),
                _ => self.attempt(node + nodes, "GETKQ", |client| client.binary_get(node + nodes, &several)),
            }
        }
    }

    /// Sends a request; opens the connection if there is none, and closes it after a failure.
    fn attempt(&mut self, node: usize, what: &str, request: impl FnOnce(&mut Self) -> Result<()>) -> bool {
        let number = node % self.registers.nodes();
        // The node may have been about to end when it was chosen.
        let Some(address) = self.registers.address(number) else { return false };
        let sent = self.connect(node, address).and_then(|()| request(self));
        let Err(error) = sent else { return true };
        if !is_reply(&error) {
            self.conns[node] = None;
        }
        let why = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                self.registers.problem(format!("{what} at node {number}: no reply within {REPLY:?}"));
                "no reply".to_owned()
            }
            ErrorKind::Other => error.to_string(),
            kind => format!("the connection: {kind:?}"),
        };
        self.registers.failed(&format!("{what} at node {number}"), &why);
        false
    }

    fn connect(&mut self, node: usize, address: SocketAddr) -> Result<()> {
        if self.conns[node].as_ref().is_some_and(|(known, _)| *known == address) {
            return Ok(());
        }
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY))?;
        stream.set_write_timeout(Some(REPLY))?;
        self.conns[node] = Some((address, BufReader::new(stream)));
        Ok(())
    }

    fn conn(&mut self, node: usize) -> &mut BufReader<TcpStream> {
        &mut self.conns[node].as_mut().expect("a connection").1
    }

    fn send(&mut self, node: usize, bytes: &[u8]) -> Result<()> {
        self.conn(node).get_mut().write_all(bytes)
    }

    fn line(&mut self, node: usize) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        self.conn(node).read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(text) => Ok(text.to_vec()),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn exact(&mut self, node: usize, count: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.conn(node).read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn value(&mut self, node: usize, bytes: usize) -> Result<Vec<u8>> {
        let mut value = self.exact(node, bytes + 2)?;
        value.truncate(bytes);
        Ok(value)
    }

    /// Sends a change whose reply must be this line.
    fn change(&mut self, node: usize, request: &[u8], right: &[u8]) -> Result<()> {
        self.send(node, request)?;
        let line = self.line(node)?;
        if line == right { Ok(()) } else { Err(unexpected(&line)) }
    }

    fn set(&mut self, node: usize, register: &Register, noreply: bool) -> Result<()> {
        let change = self.registers.begin(register);
        let (flags, ttl) = Register::attributes(change.number);
        let value = register.value(change.number);
        let quiet = if noreply { " noreply" } else { "" };
        let head = format!("set {} {flags} {ttl} {}{quiet}\r\n", register.key, value.len());
        let request = [head.as_bytes(), &value, b"\r\n"].concat();
        if !noreply {
            self.change(node, &request, b"STORED")?;
            self.registers.acknowledged(register, &change, true, 0);
            return Ok(());
        }
        // What follows on the connection must find the change, unless its owner is away.
        self.send(node, &request)?;
        self.send(node, format!("get {}\r\n", register.key).as_bytes())?;
        let mut found = self.found(node)?;
        let Some((_, found)) = found.pop() else {
            if self.registers.is_strict() && change.since == self.registers.flush_number(register) {
                return Err(Error::other(format!("{} is not found after set noreply", register.key)));
            }
            return Ok(());
        };
        if found.value == value {
            self.registers.acknowledged(register, &change, true, 0);
        } else if self.registers.is_strict() {
            return Err(Error::other(format!("{} has another value after set noreply", register.key)));
        }
        Ok(())
    }

    fn meta_set(&mut self, node: usize, register: &Register) -> Result<()> {
        let change = self.registers.begin(register);
        let (flags, ttl) = Register::attributes(change.number);
        let value = register.value(change.number);
        let head = format!("ms {} {} F{flags} T{ttl} c\r\n", register.key, value.len());
        self.send(node, &[head.as_bytes(), &value, b"\r\n"].concat())?;
        let line = self.line(node)?;
        let cas = String::from_utf8_lossy(&line).strip_prefix("HD c").and_then(|cas| cas.parse().ok());
        let cas = cas.ok_or_else(|| unexpected(&line))?;
        self.registers.acknowledged(register, &change, true, cas);
        Ok(())
    }

    /// Replaces a value whose CAS value is known.
    fn cas(&mut self, node: usize, register: &Register) -> Result<()> {
        let Some(cas) = self.registers.known_cas(register) else { return self.meta_set(node, register) };
        let change = self.registers.begin(register);
        let (flags, ttl) = Register::attributes(change.number);
        let value = register.value(change.number);
        let head = format!("cas {} {flags} {ttl} {} {cas}\r\n", register.key, value.len());
        self.send(node, &[head.as_bytes(), &value, b"\r\n"].concat())?;
        let line = self.line(node)?;
        match &line[..] {
            b"STORED" => self.registers.acknowledged(register, &change, true, 0),
            b"NOT_FOUND" if change.since != self.registers.flush_number(register) => {}
            _ => return Err(unexpected(&line)),
        }
        Ok(())
    }

    fn binary_set(&mut self, node: usize, register: &Register, name: &str) -> Result<()> {
        let change = self.registers.begin(register);
        let (flags, ttl) = Register::attributes(change.number);
        let value = register.value(change.number);
        let code = |name| op(name).expect("an operation");
        let mut request =
            Request { extras: [flags.to_be_bytes(), ttl.to_be_bytes()].concat(), ..Request::default() };
        (request.op, request.key, request.value) = (code(name), register.key.clone().into_bytes(), value);
        let mut bytes = request.bytes();
        if name == "SETQ" {
            bytes.extend(Request::new(code("NOOP")).bytes());
        }
        self.send(node, &bytes)?;
        let (head, body) = self.frame(node)?;
        let expected = if name == "SETQ" { "NOOP" } else { name };
        if head[1] != code(expected) || head[6..8] != [0, 0] {
            if name == "SETQ" && head[1] != code("NOOP") {
                // The reply of the no-op comes, too.
                self.frame(node)?;
            }
            return Err(unexpected(&[b"SERVER_ERROR (binary) ", &body[..]].concat()));
        }
        let cas = u64::from_be_bytes(head[16..24].try_into().expect("eight bytes"));
        self.registers.acknowledged(register, &change, true, if name == "SET" { cas } else { 0 });
        Ok(())
    }

    fn delete(&mut self, node: usize, register: &Register) -> Result<()> {
        let change = self.registers.begin(register);
        self.send(node, format!("delete {}\r\n", register.key).as_bytes())?;
        let line = self.line(node)?;
        if line != b"DELETED" && line != b"NOT_FOUND" {
            return Err(unexpected(&line));
        }
        self.registers.acknowledged(register, &change, false, 0);
        Ok(())
    }

    /// Reads the reply to `get` or `gets`.
    fn found(&mut self, node: usize) -> Result<Vec<(Vec<u8>, Found)>> {
        let mut all = Vec::new();
        loop {
            let line = self.line(node)?;
            if line == b"END" {
                return Ok(all);
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<&str> = text.split(' ').collect();
            let ["VALUE", key, flags, bytes, cas @ ..] = &words[..] else { return Err(unexpected(&line)) };
            let number = |word: &str| word.parse::<u64>().map_err(|_| unexpected(&line));
            let (flags, bytes) = (number(flags)? as u32, number(bytes)? as usize);
            let cas = cas.first().map(|cas| number(cas)).transpose()?;
            let value = self.value(node, bytes)?;
            all.push((key.as_bytes().to_vec(), Found { value, flags, cas, ttl: None }));
        }
    }

    fn get(&mut self, node: usize, several: &[&Register]) -> Result<()> {
        let keys: Vec<&str> = several.iter().map(|register| &*register.key).collect();
        let how = if several.len() > 1 { "gets" } else { "get" };
        let before = befores(several);
        self.send(node, format!("{how} {}\r\n", keys.join(" ")).as_bytes())?;
        let found = self.found(node)?;
        self.judge_all(several, before, found, &format!("{how} at node {node}"))
    }

    /// Judges the values of several keys, which must come in the order of the keys.
    fn judge_all(
        &self,
        several: &[&Register],
        before: Vec<Before>,
        found: Vec<(Vec<u8>, Found)>,
        how: &str,
    ) -> Result<()> {
        let mut found = found.into_iter().peekable();
        for (register, before) in several.iter().zip(before) {
            let next = found.next_if(|(key, _)| key == register.key.as_bytes());
            self.registers.judge(register, before, next.map(|(_, found)| found).as_ref(), how);
        }
        match found.next() {
            Some((key, _)) => {
                let key = String::from_utf8_lossy(&key).into_owned();
                self.registers.problem(format!("{how}: {key} is in a wrong place of the reply"));
                Err(Error::other("a reply in a wrong order"))
            }
            None => Ok(()),
        }
    }

    fn meta_get(&mut self, node: usize, register: &Register) -> Result<()> {
        let before = Registers::before(register);
        self.send(node, format!("mg {} v f t c\r\n", register.key).as_bytes())?;
        let line = self.line(node)?;
        let text = String::from_utf8_lossy(&line).into_owned();
        let how = format!("mg at node {node}");
        let mut words = text.split(' ');
        match words.next() {
            Some("EN") => self.registers.judge(register, before, None, &how),
            Some("VA") => {
                let bytes = words.next().and_then(|word| word.parse().ok());
                let bytes = bytes.ok_or_else(|| unexpected(&line))?;
                let value = self.value(node, bytes)?;
                let flag = |letter: char| text.split(' ').skip(2).find_map(|word| word.strip_prefix(letter));
                let found = Found {
                    value,
                    flags: flag('f').and_then(|flags| flags.parse().ok()).unwrap_or(0),
                    cas: flag('c').and_then(|cas| cas.parse().ok()),
                    ttl: flag('t').and_then(|ttl| ttl.parse().ok()),
                };
                self.registers.judge(register, before, Some(&found), &how);
            }
            _ => return Err(unexpected(&line)),
        }
        Ok(())
    }

    fn frame(&mut self, node: usize) -> Result<(Vec<u8>, Vec<u8>)> {
        let head = self.exact(node, 24)?;
        if head[0] != 0x81 {
            return Err(unexpected(&head));
        }
        let bytes = u32::from_be_bytes(head[8..12].try_into().expect("four bytes"));
        let body = self.exact(node, bytes as usize)?;
        Ok((head, body))
    }

    fn binary_get(&mut self, node: usize, several: &[&Register]) -> Result<()> {
        let code = |name| op(name).expect("an operation");
        let mut bytes = Vec::new();
        for register in several {
            bytes.extend(Request::new(code("GETKQ")).key(register.key.as_bytes()).bytes());
        }
        bytes.extend(Request::new(code("NOOP")).bytes());
        let before = befores(several);
        self.send(node, &bytes)?;
        let mut all = Vec::new();
        let mut failed = None;
        loop {
            let (head, body) = self.frame(node)?;
            if head[1] == code("NOOP") {
                break;
            }
            if head[6..8] != [0, 0] {
                failed = Some(unexpected(&[b"SERVER_ERROR (binary) ", &body[..]].concat()));
                continue;
            }
            let key = usize::from(u16::from_be_bytes([head[2], head[3]]));
            let flags = u32::from_be_bytes(body[..4].try_into().expect("four bytes"));
            let cas = Some(u64::from_be_bytes(head[16..24].try_into().expect("eight bytes")));
            let (key, value) = (body[4..4 + key].to_vec(), body[4 + key..].to_vec());
            all.push((key, Found { value, flags, cas, ttl: None }));
        }
        match failed {
            Some(error) => Err(error),
            None => self.judge_all(several, before, all, "GETKQ"),
        }
    }
}

fn befores(several: &[&Register]) -> Vec<Before> {
    several.iter().map(|register| Registers::before(register)).collect()
}
