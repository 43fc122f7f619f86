//! A TCP relay whose two directions can be cut or delayed, in front of a store or a registry.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The maximum number of bytes forwarded in one step, which have a common delay.
const CHUNK_BYTES: usize = 64 << 10;
/// The time after which a direction without data looks at the relay's state.
const LOOK: Duration = Duration::from_millis(50);

/// A relay to one address.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Whether bytes from clients are dropped, and whether bytes from the server are.
    is_cut: [AtomicBool; 2],
    /// The delay of each chunk, in milliseconds.
    delay_ms: AtomicU64,
    /// The number of repairs: connections that have dropped bytes end with the next one.
    repairs: AtomicU64,
    has_ended: AtomicBool,
}

impl Relay {
    /// Starts a relay to `server`.
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let (address, state) = (listener.local_addr().expect("its address"), Arc::new(State::default()));
        let of_thread = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if of_thread.has_ended.load(Ordering::SeqCst) {
                    return;
                }
                // This loop also ends if a connection is refused.
                let Ok(client) = client else { continue };
                if let Ok(server) = TcpStream::connect(server) {
                    connect(&of_thread, client, server);
                }
            }
        });
        Self { address, state }
    }

    /// Drops the bytes from clients, those from the server, or both. Connections stay open.
    pub(crate) fn cut(&self, from_clients: bool, from_server: bool) {
        self.state.is_cut[0].store(from_clients, Ordering::SeqCst);
        self.state.is_cut[1].store(from_server, Ordering::SeqCst);
    }

    /// Delays each chunk.
    pub(crate) fn delay(&self, time: Duration) {
        self.state.delay_ms.store(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// Forwards all bytes again. Connections that have dropped bytes end.
    pub(crate) fn repair(&self) {
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
    let others = [server.try_clone(), client.try_clone()].map(|stream| stream.expect("a descriptor"));
    for (direction, (source, sink)) in [client, server].into_iter().zip(others).enumerate() {
        let state = Arc::clone(state);
        std::thread::spawn(move || {
            pump(&state, direction, &source, &sink);
            // Either socket may have been closed already.
            let _ = source.shutdown(Shutdown::Both);
            let _ = sink.shutdown(Shutdown::Both);
        });
    }
}

/// Forwards one direction until it ends.
fn pump(state: &State, direction: usize, mut source: &TcpStream, mut sink: &TcpStream) {
    let mut chunk = vec![0; CHUNK_BYTES];
    // This is the number of repairs at the time when the first byte was dropped.
    let mut dropped_at = None;
    loop {
        let repairs = state.repairs.load(Ordering::SeqCst);
        if state.has_ended.load(Ordering::SeqCst) || dropped_at.is_some_and(|at| at != repairs) {
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
        if sink.write_all(&chunk[..len]).is_err() {
            return;
        }
    }
}
