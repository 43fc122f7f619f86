//! A TCP relay whose two directions can be cut or delayed, in front of a store, a registry or a node.
//! A test can also choose the byte at which the next connection ends or stands still.

use crate::daemon::wait_for;
use crate::server::free_port;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The maximum number of bytes forwarded in one step, which have a common delay.
const CHUNK_BYTES: usize = 64 << 10;
/// The time after which a direction without data looks at the relay's state.
const LOOK: Duration = Duration::from_millis(50);

/// A relay to one address. Dropping this value ends its connections.
#[derive(Debug)]
pub struct Relay {
    /// The address of the relay.
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether bytes from clients are dropped, and whether bytes from the server are.
    is_cut: [AtomicBool; 2],
    /// The delay of each chunk, in milliseconds.
    delay_ms: AtomicU64,
    /// The number of repairs: connections that have dropped bytes end with the next one.
    repairs: AtomicU64,
    has_ended: AtomicBool,
    /// Whether the address refuses connections.
    is_closed: AtomicBool,
    /// What happens to the next connection.
    next: Mutex<Option<Arc<Point>>>,
    /// The numbers of bytes that each connection has forwarded.
    passed: Mutex<Vec<Arc<[AtomicU64; 2]>>>,
}

/// What happens to a connection at a [`Point`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The connection ends, in both directions.
    End,
    /// The direction stands still until the point is [released](Point::release).
    Hold,
    /// All further bytes of the direction are replaced by others.
    Garble,
}

/// A number of bytes in one direction of a connection, after which something happens to a direction.
#[derive(Debug)]
pub struct Point {
    /// The direction to which something happens.
    direction: usize,
    /// The direction whose bytes are counted.
    counted: usize,
    after: u64,
    then: Then,
    is_reached: AtomicBool,
    is_released: AtomicBool,
}

impl Point {
    /// Returns whether as many bytes have been forwarded, and more have come.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.is_reached.load(Ordering::SeqCst)
    }

    /// Waits until the point is reached.
    ///
    /// # Panics
    /// Panics if it is not reached in time.
    pub fn wait(&self) {
        wait_for("a number of bytes", || self.is_reached().then_some(()));
    }

    /// Lets a direction go on that stands still.
    pub fn release(&self) {
        self.is_released.store(true, Ordering::SeqCst);
    }

    /// Applies the point to a chunk of its direction; `passed` bytes have been forwarded. Returns the
    /// number of the bytes that may be forwarded now.
    fn apply(&self, passed: &[AtomicU64; 2], chunk: &mut [u8]) -> usize {
        let left = self.after.saturating_sub(passed[self.counted].load(Ordering::SeqCst));
        let until = match self.counted == self.direction {
            true => left.min(chunk.len() as u64) as usize,
            false if left == 0 => 0,
            false => chunk.len(),
        };
        if until == chunk.len() {
            return until;
        }
        self.is_reached.store(true, Ordering::SeqCst);
        match self.then {
            Then::End => until,
            Then::Hold if self.is_released.load(Ordering::SeqCst) => chunk.len(),
            Then::Hold => until,
            Then::Garble => {
                chunk[until..].iter_mut().for_each(|byte| *byte ^= 0x5a);
                chunk.len()
            }
        }
    }
}

impl Relay {
    /// Starts a relay to `server`.
    ///
    /// # Panics
    /// Panics if there is no port.
    pub fn to(server: SocketAddr) -> Self {
        // An outgoing connection could take a port of the system's choice while the relay is closed.
        let listener = (0..10).find_map(|_| TcpListener::bind(free_port()).ok()).expect("a listener");
        let (address, state) = (listener.local_addr().expect("its address"), Arc::new(State::default()));
        let of_thread = Arc::clone(&state);
        std::thread::spawn(move || {
            let mut listener = Some(listener);
            while !of_thread.has_ended.load(Ordering::SeqCst) {
                if of_thread.is_closed.load(Ordering::SeqCst) {
                    listener = None;
                    std::thread::sleep(LOOK);
                    continue;
                }
                if listener.is_none() {
                    listener = TcpListener::bind(address).ok();
                }
                let Some(listening) = &listener else {
                    // Another test looks whether the port is free.
                    std::thread::sleep(LOOK);
                    continue;
                };
                // This loop also ends if a connection is refused.
                let Ok((client, _)) = listening.accept() else { continue };
                let is_closed = of_thread.is_closed.load(Ordering::SeqCst);
                if let Ok(server) = TcpStream::connect(server)
                    && !is_closed
                {
                    connect(&of_thread, client, server);
                }
            }
        });
        Self { address, state }
    }

    /// Drops the bytes from clients, those from the server, or both. Connections stay open.
    pub fn cut(&self, from_clients: bool, from_server: bool) {
        self.state.is_cut[0].store(from_clients, Ordering::SeqCst);
        self.state.is_cut[1].store(from_server, Ordering::SeqCst);
    }

    /// Delays each chunk.
    pub fn delay(&self, time: Duration) {
        self.state.delay_ms.store(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Refuses connections, as an address does whose server has ended; or accepts them again. Returns
    /// when this holds.
    ///
    /// # Panics
    /// Panics if this takes too long.
    pub fn close(&self, is_closed: bool) {
        self.state.is_closed.store(is_closed, Ordering::SeqCst);
        wait_for("the relay", || (TcpStream::connect(self.address).is_err() == is_closed).then_some(()));
    }

    /// Lets something happen to the next connection: to what comes from its client (`direction` 0) or
    /// from the server (1), after this number of bytes in the direction `counted`.
    pub fn at(&self, direction: usize, counted: usize, after: u64, then: Then) -> Arc<Point> {
        let (is_reached, is_released) = (AtomicBool::new(false), AtomicBool::new(false));
        let point = Arc::new(Point { direction, counted, after, then, is_reached, is_released });
        *self.state.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&point));
        point
    }

    /// Lets nothing happen to the next connection.
    pub fn disarm(&self) {
        *self.state.next.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the numbers of bytes that each connection has forwarded from its client and from the
    /// server, in the order of the connections.
    #[must_use]
    pub fn passed(&self) -> Vec<[u64; 2]> {
        let all = self.state.passed.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|of| [0, 1].map(|direction: usize| of[direction].load(Ordering::SeqCst))).collect()
    }

    /// Forwards all bytes again. Connections that have dropped bytes end.
    pub fn repair(&self) {
        self.cut(false, false);
        self.delay(Duration::ZERO);
        self.state.repairs.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.has_ended.store(true, Ordering::SeqCst);
        // The connection wakes the thread, which waits for one.
        drop(TcpStream::connect(self.address));
    }
}

fn connect(state: &Arc<State>, client: TcpStream, server: TcpStream) {
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(LOOK)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
    }
    let point = state.next.lock().unwrap_or_else(PoisonError::into_inner).take();
    let passed = Arc::<[AtomicU64; 2]>::default();
    state.passed.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&passed));
    let others = [server.try_clone(), client.try_clone()].map(|stream| stream.expect("a descriptor"));
    for (direction, (source, sink)) in [client, server].into_iter().zip(others).enumerate() {
        let (state, passed) = (Arc::clone(state), Arc::clone(&passed));
        let point = point.clone().filter(|point| point.direction == direction);
        std::thread::spawn(move || {
            pump(&state, direction, point.as_deref(), &passed, &source, &sink);
            // Either socket may have been closed already.
            let _ = source.shutdown(Shutdown::Both);
            let _ = sink.shutdown(Shutdown::Both);
        });
    }
}

/// Forwards one direction until it ends, or until its point ends it.
fn pump(
    state: &State,
    direction: usize,
    point: Option<&Point>,
    passed: &[AtomicU64; 2],
    mut source: &TcpStream,
    mut sink: &TcpStream,
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    // This is the number of repairs at the time when the first byte was dropped.
    let mut dropped_at = None;
    loop {
        let repairs = state.repairs.load(Ordering::SeqCst);
        let has_ended = || state.has_ended.load(Ordering::SeqCst);
        if has_ended() || dropped_at.is_some_and(|at| at != repairs) {
            return;
        }
        let len = match source.read(&mut chunk) {
            Ok(0) => return,
            Ok(len) => len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => return,
        };
        if state.is_cut[direction].load(Ordering::SeqCst) || dropped_at.is_some() {
            dropped_at = dropped_at.or(Some(repairs));
            continue;
        }
        std::thread::sleep(Duration::from_millis(state.delay_ms.load(Ordering::SeqCst)));
        let mut rest = &mut chunk[..len];
        while !rest.is_empty() {
            let now = point.map_or(rest.len(), |point| point.apply(passed, rest));
            // Before the bytes can have been answered.
            passed[direction].fetch_add(now as u64, Ordering::SeqCst);
            if sink.write_all(&rest[..now]).is_err() {
                return;
            }
            rest = &mut rest[now..];
            if !rest.is_empty() {
                if has_ended() || point.is_some_and(|point| point.then == Then::End) {
                    return;
                }
                // Nobody is woken when a point is released.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}
