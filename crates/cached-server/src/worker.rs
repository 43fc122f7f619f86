//! A worker: one thread, one runtime, its share of the connections.
//!
//! ```text
//!  acceptor ──mail──► worker's runtime ──spawns──► Visit { seat 0 } ─┐
//!                                                  Visit { seat 1 } ─┤ each wakes for its own socket
//!                                                  …                 ▼
//!                      thread-local Worker { seats, input buffer, output buffer }
//! ```
//! A task is only a seat number, so waking one costs little and nothing is shared between threads: the worker
//! itself lives in its thread. No task holds it across a wait.

use crate::conn::info::{ConnInfo, Ends};
use crate::conn::output::{FULL_BYTES, Output};
use crate::conn::transport::{Draining, Socket, Stream};
use crate::conn::{Connection, Desk, INPUT_BYTES, Turn};
use crate::shared::Shared;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::UnboundedReceiver;

/// How long clients have at shutdown to take the replies to what they had sent.
const DRAIN_TIME: Duration = Duration::from_secs(2);

thread_local! {
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// What a worker is told.
pub(crate) enum Mail {
    /// Serve this connection.
    Connection(Newcomer),
    /// Finish what has been received, then end.
    Shutdown,
}

/// A connection that has been accepted and entered in the table.
pub(crate) struct Newcomer {
    fd: OwnedFd,
    info: Arc<ConnInfo>,
}

impl Newcomer {
    pub(crate) fn enter(fd: OwnedFd, ends: Ends, shared: &Shared) -> Newcomer {
        let info = Arc::new(ConnInfo::new(fd.as_raw_fd(), ends, shared.clock.now_secs()));
        shared.connections.add(info.clone());
        Newcomer { fd, info }
    }

    /// Ties the socket to this thread's runtime.
    fn into_stream(self) -> io::Result<(Stream, Arc<ConnInfo>)> {
        let stream = match self.info.ends {
            Ends::Tcp { .. } => Stream::Tcp(TcpStream::from_std(self.fd.into())?),
            Ends::Unix { .. } => Stream::Unix(UnixStream::from_std(self.fd.into())?),
        };
        Ok((stream, self.info))
    }
}

/// A connection and its socket.
pub(crate) struct Seat {
    stream: Stream,
    connection: Connection,
}

/// What belongs to one thread.
struct Worker {
    index: usize,
    shared: Arc<Shared>,
    seats: Vec<Option<Box<Seat>>>,
    free: Vec<usize>,
    input: Box<[u8]>,
    output: Output,
}

impl Worker {
    fn new(index: usize, shared: Arc<Shared>) -> Worker {
        Worker {
            index,
            shared,
            seats: Vec::new(),
            free: Vec::new(),
            input: vec![0; INPUT_BYTES].into(),
            output: Output::with_capacity(2 * FULL_BYTES),
        }
    }

    fn seat(&mut self, seat: Seat) -> usize {
        match self.free.pop() {
            Some(number) => {
                self.seats[number] = Some(Box::new(seat));
                number
            }
            None => {
                self.seats.push(Some(Box::new(seat)));
                self.seats.len() - 1
            }
        }
    }

    /// Strikes the connection out and closes its socket.
    fn leave(&mut self, number: usize) {
        if let Some(seat) = self.seats.get_mut(number).and_then(Option::take) {
            self.shared.connections.remove(&seat.connection.info);
            tracing::debug!(fd = seat.connection.info.fd, "connection closed");
            self.free.push(number);
        }
    }

    /// Gives one connection its turn.
    #[inline]
    fn visit(&mut self, number: usize, context: &mut Context<'_>) -> Turn {
        let Some(seat) = self.seats.get_mut(number).and_then(Option::as_mut) else { return Turn::Close };
        let mut desk = Desk {
            shared: &self.shared,
            counters: self.shared.counters(self.index),
            input: &mut self.input,
            output: &mut self.output,
        };
        let mut socket = Socket { stream: &mut seat.stream, context };
        let turn = seat.connection.drive(&mut desk, &mut socket);
        match turn {
            Turn::Wait | Turn::Again => seat.connection.settle(&self.shared, context.waker()),
            Turn::Close => self.leave(number),
        }
        turn
    }

    /// At shutdown: reads what has arrived, answers, and closes whoever has taken the answers. True when
    /// nobody is left.
    fn drain(&mut self, context: &mut Context<'_>) -> bool {
        for number in 0..self.seats.len() {
            while let Some(seat) = self.seats[number].as_mut() {
                let mut desk = Desk {
                    shared: &self.shared,
                    counters: self.shared.counters(self.index),
                    input: &mut self.input,
                    output: &mut self.output,
                };
                let socket = Socket { stream: &mut seat.stream, context };
                match seat.connection.drive(&mut desk, &mut Draining(socket)) {
                    Turn::Again => {}
                    Turn::Wait => break,
                    Turn::Close => self.leave(number),
                }
            }
        }
        self.seats.iter().all(Option::is_none)
    }
}

/// The task of one connection.
struct Visit {
    seat: usize,
}

impl Future for Visit {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let turn = WORKER.with_borrow_mut(|worker| match worker {
            Some(worker) => worker.visit(self.seat, context),
            None => Turn::Close,
        });
        match turn {
            Turn::Wait => Poll::Pending,
            Turn::Again => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Turn::Close => Poll::Ready(()),
        }
    }
}

/// Serves what comes by mail, until told to end. Runs on a runtime of its own thread.
pub(crate) async fn run(index: usize, shared: Arc<Shared>, mut mail: UnboundedReceiver<Mail>) {
    WORKER.set(Some(Worker::new(index, shared)));
    while let Some(Mail::Connection(newcomer)) = mail.recv().await {
        welcome(newcomer, true);
    }
    // Those that were accepted before the end.
    while let Ok(Mail::Connection(newcomer)) = mail.try_recv() {
        welcome(newcomer, false);
    }
    let drained = poll_fn(|context| {
        let done =
            WORKER.with_borrow_mut(|worker| worker.as_mut().is_none_or(|worker| worker.drain(context)));
        if done { Poll::Ready(()) } else { Poll::Pending }
    });
    if tokio::time::timeout(DRAIN_TIME, drained).await.is_err() {
        tracing::info!("clients that do not read their replies are cut off");
    }
    WORKER.set(None);
}

fn welcome(newcomer: Newcomer, spawn: bool) {
    let info = newcomer.info.clone();
    let seated = WORKER.with_borrow_mut(|worker| {
        let worker = worker.as_mut()?;
        match newcomer.into_stream() {
            Ok((stream, info)) => {
                tracing::debug!(fd = info.fd, "new connection");
                Some(worker.seat(Seat { stream, connection: Connection::new(info) }))
            }
            Err(error) => {
                tracing::warn!(cause = %error, "cannot serve a connection");
                worker.shared.connections.remove(&info);
                None
            }
        }
    });
    if let Some(seat) = seated
        && spawn
    {
        tokio::spawn(Visit { seat });
    }
}
