//! Plays the cases of a wire script in several ways of sending.

use crate::conn::Conn;
use crate::differences;
use crate::frame::{Request, Response, op};
use crate::password;
use crate::pattern::{Captures, Pattern};
use crate::program::{Flavour, Program};
use crate::ring::Entry;
use crate::script::{Case, Step};
use crate::server::{Server, Start};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The way in which a case is sent. The shapes also differ in transport and log level, so that
/// every case covers the unix socket and the logging paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Each request is one write, after the reply to the previous request; over TCP.
    Whole,
    /// Each request is sent byte by byte; over TCP, to a server with `-vv`.
    Fragmented,
    /// All requests that do not depend on replies are one write; over a unix socket.
    Pipelined,
}

impl Shape {
    /// Returns the shape with this name.
    ///
    /// # Errors
    /// Returns a message that names the unknown shape.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "whole" => Ok(Self::Whole),
            "fragmented" => Ok(Self::Fragmented),
            "pipelined" => Ok(Self::Pipelined),
            other => Err(format!("no shape called {other}")),
        }
    }
}

/// The transport between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// TCP, and a unix socket for pipelined requests.
    Plain,
    /// TLS.
    Tls,
    /// Datagrams. Each has whole requests: all those that belong to one reply.
    Udp,
    /// Like [`Wire::Plain`], with a password before the first request of each connection.
    Password,
    /// TCP, to a node of a ring that owns nothing: another node executes each request.
    Ring,
}

impl Wire {
    /// Returns the wire with this name.
    ///
    /// # Errors
    /// Returns a message that names the unknown wire.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "tls" => Ok(Self::Tls),
            "udp" => Ok(Self::Udp),
            "password" => Ok(Self::Password),
            "ring" => Ok(Self::Ring),
            other => Err(format!("no wire called {other}")),
        }
    }

    /// Returns whether a case can be played through this transport.
    fn carries(self, case: &Case) -> bool {
        // Datagrams have no connection.
        let connected = case.steps.iter().any(|step| matches!(step, Step::Closed | Step::Connect));
        let at_ring = Program::under_test().is_entry() && case.not.contains(&Wire::Ring);
        !(case.not.contains(&self) || self == Wire::Udp && connected || at_ring)
    }
}

/// Plays all cases in all their shapes and panics with the names of those that failed.
///
/// `CACHED_WIRE_ONLY` selects the cases whose name contains its value.
pub fn play_all(cases: &[Case], wire: Wire) {
    // Checked once for all cases: without a server no case can be played.
    let _ = Program::under_test();
    let only = std::env::var("CACHED_WIRE_ONLY").unwrap_or_default();
    let mut failed = Vec::new();
    let mut shared = Shared::default();
    let (mut played, mut waiting) = (0, 0);
    for case in cases.iter().filter(|case| case.name.contains(&only)) {
        if case.later.as_ref().is_some_and(|part| waits_for(part)) {
            waiting += 1;
            continue;
        }
        if !wire.carries(case) || wire == Wire::Ring && Program::under_test().flavour == Flavour::Memcached {
            continue;
        }
        if let Some(name) = &case.differs {
            differences::known(name);
        }
        for &shape in case.shapes.iter().filter(|shape| wire != Wire::Udp || **shape == Shape::Whole) {
            played += 1;
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| play(case, shape, wire, &mut shared))) {
                let message = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_default();
                failed.push(format!(
                    "{} ({shape:?}, {wire:?})\n  {}",
                    case.name,
                    message.replace('\n', "\n  ")
                ));
            }
        }
    }
    // A script may test connections, or what a node says of itself, only.
    let may_be_none = matches!(wire, Wire::Udp | Wire::Ring) || Program::under_test().is_entry();
    assert!(played + waiting > 0 || !only.is_empty() || may_be_none, "no case was played");
    println!("{played} plays of {} cases, {waiting} wait for later parts", cases.len());
    assert!(failed.is_empty(), "{} of {played} failed:\n\n{}", failed.len(), failed.join("\n\n"));
}

/// Returns whether a test waits for a part of `cached` that is not implemented. It never waits if
/// memcached is the server, or if `CACHED_TEST_LATER` names the part, which is useful during the
/// part's implementation.
pub fn waits_for(part: &str) -> bool {
    let is_tried =
        std::env::var("CACHED_TEST_LATER").is_ok_and(|parts| parts.split(',').any(|tried| tried == part));
    Program::under_test().flavour == Flavour::Cached && !is_tried
}

/// What a case is played at.
enum Subject {
    Server(Server),
    Ring(Entry),
}

impl Subject {
    fn server(&self) -> &Server {
        match self {
            Self::Server(server) => server,
            Self::Ring(entry) => &entry.server,
        }
    }
}

/// What the cases of a script share, by the arguments of the servers.
type Shared = HashMap<(Shape, String), Subject>;

fn play(case: &Case, shape: Shape, wire: Wire, shared: &mut Shared) {
    let flavour = Program::under_test().flavour;
    let mut start = Start::new().args(&case.args);
    if shape == Shape::Fragmented {
        start = start.args("-vv");
    }
    // In the other two shapes `cached` sends its small replies through io_uring, where the system allows it. Over the
    // other wires every shape is played with the default.
    if wire == Wire::Plain && shape != Shape::Whole && flavour == Flavour::Cached {
        start = start.args("-o io_uring_sockets_min=1");
    }
    let start = match wire {
        Wire::Tls => start.tls(),
        Wire::Udp => start.args("-U -1"),
        Wire::Password => password::require(start, flavour, case.is_binary()),
        Wire::Plain | Wire::Ring => start,
    };
    let owner = start.clone();
    let is_tcp = matches!(wire, Wire::Tls | Wire::Ring);
    let start = if shape == Shape::Pipelined && !is_tcp { start.unix() } else { start };
    // Over the plain wire each case has a fresh server. The others are about the way to it, which each case begins
    // anew; only a case about the state of a node needs a fresh one there.
    let is_alone = wire == Wire::Plain || flavour == Flavour::Memcached || case.not.contains(&Wire::Ring);
    if is_alone {
        return Player::new(&start.start(), shape, wire).play(case);
    }
    let key = (shape, case.args.clone());
    // After a failure, the next case must not meet what the failed one has left.
    let subject = shared.remove(&key).unwrap_or_else(|| match wire {
        Wire::Ring => Subject::Ring(Entry::start(start, owner)),
        _ => Subject::Server(start.start()),
    });
    let server = subject.server();
    if !case.args.split(' ').any(|arg| arg == "-F") {
        let mut conn = server.connect();
        if wire == Wire::Password {
            let (request, reply) = password::login(false);
            conn.ask(&request, &reply);
        }
        conn.ask(b"flush_all\r\n", b"OK\r\n");
    }
    Player::new(server, shape, wire).play(case);
    shared.insert(key, subject);
}

/// The state of one play: the connection, and the bytes that are not yet sent or checked.
struct Player<'a> {
    server: &'a Server,
    shape: Shape,
    wire: Wire,
    conn: Conn,
    captures: Captures,
    to_send: Vec<u8>,
    to_expect: Vec<(Step, usize)>,
    /// The expected reply to a password that was sent or will be sent.
    login: Option<Vec<u8>>,
    is_binary: Option<bool>,
    steps_done: usize,
}

impl<'a> Player<'a> {
    fn new(server: &'a Server, shape: Shape, wire: Wire) -> Self {
        Self {
            server,
            shape,
            wire,
            conn: connect(server, wire),
            captures: Captures::default(),
            to_send: Vec::new(),
            to_expect: Vec::new(),
            login: None,
            is_binary: None,
            steps_done: 0,
        }
    }

    fn play(&mut self, case: &Case) {
        let mut closed = false;
        for step in &case.steps {
            self.steps_done += 1;
            closed = matches!(step, Step::Closed);
            self.step(step);
        }
        if closed || !case.fence {
            self.flush();
        } else {
            self.fence();
        }
        // The server still works, whatever the case did to the connection.
        self.conn = connect(self.server, self.wire);
        if self.wire == Wire::Password {
            let (request, reply) = password::login(case.is_binary());
            self.conn.ask(&request, &reply);
        }
        let (request, reply) = match self.wire {
            Wire::Password if case.is_binary() => fence(true),
            _ => fence(false),
        };
        self.conn.send(&request);
        self.conn.expect_pattern(&reply, &mut self.captures, "a fresh connection after the case");
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Send(template) => {
                if !template.is_ready(&self.captures) {
                    self.flush();
                }
                let bytes = template.bytes(&self.captures);
                self.send(&bytes);
            }
            Step::SendFrame(fields) => {
                if !fields.is_ready(&self.captures) {
                    self.flush();
                }
                let bytes = fields.request(&self.captures);
                self.send(&bytes);
            }
            Step::Expect(..) | Step::ExpectFrame(_) => {
                self.to_expect.push((step.clone(), self.steps_done));
                if self.shape != Shape::Pipelined {
                    self.flush();
                }
            }
            Step::Closed => {
                self.flush();
                self.conn.expect_closed("expected the server to close");
            }
            Step::Connect => {
                self.flush();
                self.conn = connect(self.server, self.wire);
                self.is_binary = None;
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        if let (Some(&first), None) = (bytes.first(), self.is_binary) {
            self.is_binary = Some(first == 0x80);
            self.log_in();
        }
        match self.shape {
            // All requests up to a reply go into one datagram.
            _ if self.wire == Wire::Udp => self.to_send.extend_from_slice(bytes),
            Shape::Whole => self.conn.send(bytes),
            Shape::Fragmented => self.conn.send_fragments(bytes, fragment_sizes(bytes.len())),
            Shape::Pipelined => self.to_send.extend_from_slice(bytes),
        }
    }

    /// Sends the password, if there is one, before the first request.
    fn log_in(&mut self) {
        if self.wire != Wire::Password {
            return;
        }
        let (request, reply) = password::login(self.is_binary == Some(true));
        self.login = Some(reply);
        self.send(&request);
        if self.shape != Shape::Pipelined {
            self.flush();
        }
    }

    /// Sends the collected bytes and checks the replies to them.
    fn flush(&mut self) {
        if !self.to_send.is_empty() {
            self.conn.send(&std::mem::take(&mut self.to_send));
        }
        if let Some(reply) = self.login.take() {
            self.conn.expect(&reply, "the reply to the password");
        }
        for (step, number) in std::mem::take(&mut self.to_expect) {
            let about = format!("step {number}");
            let pattern = match &step {
                Step::Expect(_, Some(flavour)) if *flavour != self.server.flavour => continue,
                Step::Expect(template, _) => template.pattern(&self.captures),
                Step::ExpectFrame(fields) => fields.response(&self.captures),
                _ => continue,
            };
            self.conn.expect_pattern(&pattern, &mut self.captures, &about);
        }
    }

    /// Sends a request with a known reply. If this reply comes next, the server has sent nothing
    /// before it.
    fn fence(&mut self) {
        if self.is_binary.is_none() {
            self.is_binary = Some(false);
            self.log_in();
        }
        let (request, reply) = fence(self.is_binary == Some(true));
        self.to_send.extend_from_slice(&request);
        self.flush();
        self.conn.expect_pattern(&reply, &mut self.captures, "in step at the end of the case");
    }
}

fn connect(server: &Server, wire: Wire) -> Conn {
    match wire {
        Wire::Udp => Conn::datagrams(server.udp_address()).expect("a socket"),
        _ => server.connect(),
    }
}

/// Returns a request and its reply.
fn fence(is_binary: bool) -> (Vec<u8>, Pattern) {
    const FENCE_OPAQUE: u32 = 0x0fe1_ce00;
    if !is_binary {
        return (b"mn\r\n".to_vec(), Pattern::literal(b"MN\r\n"));
    }
    let noop = op("NOOP").expect("the operation NOOP");
    let request = Request { opaque: Some(FENCE_OPAQUE), ..Request::new(noop) };
    (request.bytes(), Response { opaque: FENCE_OPAQUE, ..Response::new(noop) }.pattern())
}

/// Returns the sizes of fragments: single bytes for short requests; for long requests, single bytes
/// at both ends and larger pieces in between.
fn fragment_sizes(len: usize) -> Vec<usize> {
    const SINGLE_MAX: usize = 1024;
    const PIECE: usize = 1009;
    if len <= 2 * SINGLE_MAX {
        return vec![1; len];
    }
    let mut sizes = vec![1; SINGLE_MAX];
    let middle = len - 2 * SINGLE_MAX;
    sizes.extend(std::iter::repeat_n(PIECE, middle / PIECE));
    sizes.push(middle % PIECE);
    sizes.retain(|&size| size > 0);
    sizes.extend(std::iter::repeat_n(1, SINGLE_MAX));
    sizes
}
