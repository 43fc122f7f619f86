//! The old process: starts the new one, stops, hands over its state, and continues if the hand-over
//! fails.

use super::message::{BATCH_BYTES, DESCRIPTORS_MAX, MemoryState, Message, Offer, VERSION, VERSION_ALONE};
use super::{Channel, ChannelError};
use super::{Program, VARIABLE};
use crate::connections::{Command, Pause, Paused};
use crate::listen::{HandedSocket, Listener, Listeners, SocketKind};
use crate::objects::ObjectHandOver;
use crate::shared::Shared;
use blocker::executor::block_on_for;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, thread};
use tokio::sync::oneshot;

/// The maximum time for completing requests in flight, during which no other requests are served.
const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// The additional time that workers may take to stop.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// The time in which a process that has closed the channel may end by itself.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

/// The new process. If this is dropped before the process serves, the process is killed.
#[derive(Debug)]
pub(crate) struct Successor {
    child: Child,
    channel: Channel,
    is_serving: bool,
}

impl Successor {
    /// Starts the program and waits up to `limit` until the process is prepared.
    ///
    /// # Errors
    /// Returns the reason why the process is not prepared, as a part of a line.
    pub(crate) fn start(
        program: &Program,
        sockets: &[HandedSocket],
        memory_file: Option<(u64, u64)>,
        limit: Duration,
    ) -> Result<Successor, String> {
        let deadline = Instant::now() + limit;
        let (channel, other) = Channel::pair().map_err(|error| error.to_string())?;
        let mut command = program.command();
        command.stdin(Stdio::from(other)).env(VARIABLE, "1");
        let child = command.spawn();
        let child = child.map_err(|error| format!("{}: {error}", program.path.display()))?;
        // Dropping the command closes its copy of the other end.
        drop(command);
        let mut successor = Successor { child, channel, is_serving: false };
        successor.offer(sockets, memory_file, deadline).map_err(|error| successor.reason(&error))?;
        Ok(successor)
    }

    fn offer(
        &self,
        sockets: &[HandedSocket],
        memory_file: Option<(u64, u64)>,
        deadline: Instant,
    ) -> Result<(), ChannelError> {
        let is_of_ring = sockets.iter().any(|socket| socket.kind == SocketKind::Ring);
        let offer = Offer {
            version: if is_of_ring { VERSION } else { VERSION_ALONE },
            program: env!("CARGO_PKG_VERSION").into(),
            sockets: u16::try_from(sockets.len()).map_err(|_| ChannelError::Unexpected)?,
            memory_file,
        };
        self.channel.send(&Message::Offer(offer), &[], deadline)?;
        for HandedSocket { kind, name, socket } in sockets {
            let message = Message::Socket { kind: *kind, name: name.clone() };
            self.channel.send(&message, &[socket.as_fd()], deadline)?;
        }
        self.channel.expect(&Message::Prepared, deadline)
    }

    /// Lets the process open its object store, and waits up to `limit` until the store is open.
    ///
    /// # Errors
    /// Returns the reason why the store is not open, as a part of a line.
    pub(crate) fn open_store(&mut self, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        let opened = self
            .channel
            .send(&Message::StoreFree, &[], deadline)
            .and_then(|()| self.channel.expect(&Message::StoreOpen, deadline));
        opened.map_err(|error| self.reason(&error))
    }

    /// Returns the ID of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the reason why the process does not take over. A process that has closed the channel
    /// gets a moment to end by itself, because its last output states the reason.
    fn reason(&mut self, error: &ChannelError) -> String {
        let deadline = Instant::now() + LAST_WORDS_WITHIN;
        let has_closed = matches!(error, ChannelError::Ended);
        while has_closed && Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        format!("process {}: {error}", self.pid())
    }

    /// Kills the process, and waits until it has ended.
    fn end(&mut self) {
        // This fails if the process has already ended.
        let _ = self.child.kill();
        // This fails only if the process has already been waited for.
        let _ = self.child.wait();
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.is_serving {
            self.end();
        }
    }
}

/// The reason why the new process does not serve.
#[derive(Debug)]
pub(crate) enum NotGiven {
    /// The old process continues to serve.
    Resumed(String),
    /// The new process has had access to the memory, so the old one cannot continue.
    Lost(String),
}

/// Returns the device and inode of the memory file.
pub(crate) fn memory_file(shared: &Shared) -> Option<(u64, u64)> {
    let metadata = shared.kv.memory_file()?.metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Stops this process between two requests, and hands over memory and connections. Blocks the
/// acceptor's thread, so that in the meantime no connection is accepted and the clock stands still.
/// The new process must be ready within `limit`.
///
/// # Errors
/// Returns [`NotGiven`].
pub(crate) fn give(shared: &Shared, successor: &mut Successor, limit: Duration) -> Result<(), NotGiven> {
    shared.acceptor_heartbeat.set_idle();
    let begun = Instant::now();
    // While this lock is held, only the workers change anything.
    let mut is_handed_over = shared.is_handed_over.lock();
    let workers = match StoppedWorkers::stop(shared) {
        Ok(workers) => workers,
        Err(line) => {
            successor.end();
            return Err(NotGiven::Resumed(line));
        }
    };
    shared.clock.tick();
    let memory = shared.kv.hand_over();
    let deadline = Instant::now() + limit;
    let file = memory.as_ref().map(|memory| memory.file().as_fd());
    let passed = pass(shared, successor, &workers, file, deadline)
        .and_then(|ready| successor.channel.send(&Message::Go, &[], deadline).map(|()| ready));
    let (items, connections) = match passed {
        Ok(ready) => ready,
        Err(error) => {
            let line = successor.reason(&error);
            // The process must have ended before its changes are undone.
            successor.end();
            if let Some(memory) = memory {
                memory.resume();
            }
            shared.clock.tick();
            drop(workers);
            return Err(NotGiven::Resumed(line));
        }
    };
    *is_handed_over = true;
    drop(is_handed_over);
    if let Some(memory) = memory {
        memory.forget();
    }
    let serves = successor.channel.expect(&Message::Serving, Instant::now() + limit);
    if let Err(error) = serves {
        // The workers must not continue: the new process may be using the memory, and this process
        // no longer knows its state.
        workers.end();
        return Err(NotGiven::Lost(successor.reason(&error)));
    }
    successor.is_serving = true;
    let pause_ms = begun.elapsed().as_millis();
    tracing::info!(
        pid = successor.pid(),
        items,
        connections,
        pause_ms,
        "the new process serves; this one ends"
    );
    workers.end();
    Ok(())
}

/// Hands over memory and connections. Returns the numbers of items and connections that the new
/// process has.
fn pass(
    shared: &Shared,
    successor: &Successor,
    workers: &StoppedWorkers,
    file: Option<BorrowedFd<'_>>,
    deadline: Instant,
) -> Result<(u64, u32), ChannelError> {
    let (clock_secs, clock_nanos) = shared.clock.position();
    let state = MemoryState {
        clock_secs,
        clock_nanos,
        monotonic_nanos: crate::shared::clock::monotonic_nanos(),
        verbosity: shared.logging.verbosity(),
        incarnation: shared.ring.as_ref().map_or(0, |ring| ring.incarnation),
        connections: workers.stopped.iter().map(|worker| worker.connections.len() as u32).sum(),
    };
    let channel = &successor.channel;
    channel.send(&Message::Memory(state), file.as_slice(), deadline)?;
    let mut batch = Vec::new();
    let mut sockets = Vec::new();
    let mut bytes = 0;
    for paused in workers.stopped.iter().flat_map(|worker| &worker.connections) {
        bytes += paused.connection.input.len() + 32;
        batch.push(paused.connection.clone());
        // SAFETY: the worker keeps the socket open until it has a verdict, which comes after this.
        sockets.push(unsafe { BorrowedFd::borrow_raw(paused.fd) });
        if batch.len() == DESCRIPTORS_MAX || bytes >= BATCH_BYTES {
            channel.send(&Message::Connections(std::mem::take(&mut batch)), &sockets, deadline)?;
            sockets.clear();
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        channel.send(&Message::Connections(batch), &sockets, deadline)?;
    }
    match channel.receive(deadline)? {
        (Message::Ready { items, connections }, _) => Ok((items, connections)),
        _ => Err(ChannelError::Unexpected),
    }
}

/// The stopped workers, which resume when this is dropped, unless they were told to end.
struct StoppedWorkers {
    stopped: Vec<Paused>,
    ends: Vec<oneshot::Sender<()>>,
}

impl StoppedWorkers {
    /// Stops all workers.
    fn stop(shared: &Shared) -> Result<StoppedWorkers, String> {
        let (mut reports, mut ends) = (Vec::new(), Vec::new());
        for queue in shared.connections.queues().iter() {
            let ((report, paused), (sender, end)) = (oneshot::channel(), oneshot::channel());
            reports.push(paused);
            ends.push(sender);
            queue.send(Command::Pause(Pause { finish_within: FINISH_WITHIN, report, end }));
        }
        let deadline = Instant::now() + FINISH_WITHIN + STOP_MARGIN;
        let mut stopped = Vec::new();
        for (worker, report) in reports.into_iter().enumerate() {
            match block_on_for(report, deadline.saturating_duration_since(Instant::now())) {
                Some(Ok(paused)) => stopped.push(paused),
                Some(Err(_)) | None => return Err(format!("worker {worker} does not stop")),
            }
        }
        let others: usize = stopped.iter().map(|worker| worker.others).sum();
        if others > 0 {
            tracing::info!(
                connections = others,
                "connections with TLS, and watchers, are closed after the hand-over"
            );
        }
        Ok(StoppedWorkers { stopped, ends })
    }

    /// Lets the workers end, because another process has their connections.
    fn end(self) {
        for worker in self.ends {
            // This fails for a worker that has panicked.
            let _ = worker.send(());
        }
    }
}

/// The parameters with which this server can hand over to a new process.
#[derive(Debug)]
pub(crate) struct Upgradable {
    program: Program,
    sockets: Arc<[HandedSocket]>,
    objects: Option<Arc<dyn ObjectHandOver>>,
    limit: Duration,
}

/// The new process once it is prepared, or the reason why it is not.
pub(crate) type Prepared = Result<Successor, String>;

impl Upgradable {
    /// Duplicates the sockets that a new process gets. `admin` are the sockets of the admin
    /// listener, each with its configured address.
    pub(crate) fn new(
        program: Program,
        listeners: &Listeners,
        shared: &Shared,
        admin: Vec<(String, OwnedFd)>,
        objects: Option<Arc<dyn ObjectHandOver>>,
    ) -> io::Result<Upgradable> {
        // The name of a socket is a string in the messages.
        let unix_path = listeners.unix_path().filter(|_| listeners.unix_file.is_some());
        if unix_path.is_some_and(|path| path.to_str().is_none()) {
            let wrong = "the path of the unix socket is not UTF-8";
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
        let mut sockets = Vec::new();
        let udp = shared.udp.get().into_iter().flat_map(|sockets| sockets.iter());
        let udp = udp.map(|udp| udp.socket.try_clone());
        let clone = |listener: &Listener| listener.socket.try_clone().map(OwnedFd::from);
        let all = listeners.sockets.iter().map(clone).chain(udp).chain(listeners.ring.iter().map(clone));
        for ((kind, name), socket) in listeners.names.iter().zip(all) {
            sockets.push(HandedSocket { kind: *kind, name: name.clone(), socket: socket? });
        }
        let objects_sockets = objects.as_ref().map_or_else(|| Ok(Vec::new()), |objects| objects.sockets())?;
        for (kind, list) in [(SocketKind::Admin, admin), (SocketKind::Objects, objects_sockets)] {
            sockets.extend(list.into_iter().map(|(name, socket)| HandedSocket { kind, name, socket }));
        }
        let limit = Duration::from_secs(shared.settings.upgrade_timeout_secs);
        Ok(Upgradable { program, sockets: sockets.into(), objects, limit })
    }

    /// Starts the new process on a separate thread, and lets it open the object store. In the
    /// meantime, this process serves items. The outcome is sent on the channel.
    pub(crate) fn start(&self, shared: &Shared) -> oneshot::Receiver<Prepared> {
        tracing::info!(program = %self.program.path.display(), "starting a new process that takes over");
        let (sender, prepared) = oneshot::channel();
        let (program, sockets, limit) = (self.program.clone(), self.sockets.clone(), self.limit);
        let (memory_file, objects) = (memory_file(shared), self.objects.clone());
        let prepare = move || -> Prepared {
            let mut successor = Successor::start(&program, &sockets, memory_file, limit)?;
            objects.as_ref().map_or(Ok(()), |objects| objects.release())?;
            successor.open_store(limit)?;
            Ok(successor)
        };
        let body = move || {
            // A process that is no longer wanted is killed when it is dropped.
            let _ = sender.send(prepare());
        };
        // If no thread can be created, the channel closes.
        drop(thread::Builder::new().name("cached-upgrade".into()).spawn(body));
        prepared
    }

    /// Lets the new process take over, and returns whether it did. If it did not, this process
    /// continues, or must end because of a defect.
    pub(crate) fn finish(&self, shared: &Shared, prepared: Prepared) -> bool {
        let given = prepared.map_err(NotGiven::Resumed).and_then(|mut successor| {
            if shared.kv.memory_file().is_none() {
                tracing::warn!("there is no memory file: the new process starts empty");
            }
            give(shared, &mut successor, self.limit).map(|()| successor.pid())
        });
        match given {
            Ok(pid) => {
                self.objects.iter().for_each(|objects| objects.hand_over());
                shared.upgrade.set_done(pid);
                cached_config::notify(&format!("MAINPID={pid}\nREADY=1\nSTATUS=Serving, after an upgrade"));
                true
            }
            Err(NotGiven::Resumed(cause)) => {
                // The new process has ended, and has thereby released the store.
                self.objects.iter().for_each(|objects| objects.serve());
                cached_config::notify(&format!("STATUS=Serving; an upgrade has failed: {cause}"));
                tracing::error!(cause, "the upgrade has failed; this process continues");
                false
            }
            Err(NotGiven::Lost(cause)) => {
                shared.fail(format!("the new process owns the memory, but does not serve: {cause}"));
                false
            }
        }
    }
}
