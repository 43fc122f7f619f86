//! A new process of the program takes over from the running one: sockets, memory file, connections.
//!
//! ```text
//!  old process                                     new process: a child of the old one
//!  SIGUSR2: starts the program at its own path ──► reads its configuration
//!  offers its sockets ───────────────────────────► opens those that are missing
//!                     ◄─────────────────────────── Prepared
//!  stores dirty data, releases the store
//!  StoreFree ────────────────────────────────────► opens journal and store, begins their recovery
//!                     ◄─────────────────────────── StoreOpen
//!  stops between two requests
//!  clock, memory file, connections ──────────────► rebuilds the index, starts its threads
//!                     ◄─────────────────────────── Ready
//!  Go ───────────────────────────────────────────► has the memory, and serves, objects too
//!                     ◄─────────────────────────── Serving
//!  ends                                            writes the pid file; is the main process of the unit
//! ```
//! Before `Go`, the old process can continue at any time with unchanged memory. It does so if the
//! new process ends, sends an unexpected message, or is late; the old process first kills the new
//! one and waits until it has ended. From `Go` on, the new process owns the memory. If the new
//! process ends before it serves, the old one ends with an error, and the next start finds the
//! items in the memory file.
//!
//! An object store, its claims and its journal can be open in only one process at a time. The old
//! process therefore releases them before the new one opens them
//! ([`ObjectHandOver`](crate::ObjectHandOver)), and reopens them if the new one fails: before `Go`
//! the new process serves no object, so no acknowledged data can be lost with it. Whatever can be
//! checked without the store is checked before `Prepared`. Requests for items are served all the
//! time. Requests for objects wait from the moment at which the old process's listener ends: the
//! sockets stay open, and clients wait in their queues.
//!
//! | module | content |
//! |---|---|
//! | `message` | the messages between the processes; the socket that carries them is here |
//! | `give`, `take` | the old process; the new one |

pub(crate) mod give;
pub(crate) mod message;
mod take;

pub use take::{TakeOver, TakeOverError};
pub(crate) use take::{Taken, Taking};

use message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The environment variable that tells a new process that its standard input is the socket.
pub(crate) const VARIABLE: &str = "CACHED_HAND_OVER";

/// The program and the arguments of this process.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Returns the program that the first of `arguments` names, resolved as a shell would resolve
    /// it. Must be called before the working directory changes.
    #[must_use]
    pub fn of_this_process(arguments: &[OsString]) -> Program {
        let name = arguments.first().map_or(OsStr::new(""), |name| name);
        // The path is the given one, not the target of its links, because an upgrade may change a
        // link.
        let path = found(name).or_else(|| env::current_exe().ok()).unwrap_or_else(|| name.into());
        Program { path, arguments: arguments.to_vec() }
    }

    /// Returns a command that starts the program with the same arguments.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some((name, rest)) = self.arguments.split_first() {
            command.arg0(name).args(rest);
        }
        command
    }
}

/// Returns the absolute path that a command name resolves to.
fn found(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return std::path::absolute(name).ok();
    }
    let is_program = |path: &PathBuf| !name.is_empty() && path.is_file();
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(is_program)
}

/// The reason why communication with the other process failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    /// The other process has ended.
    #[error("it has ended")]
    Ended,
    /// The other process has not replied in time.
    #[error("it has not replied in time")]
    Late,
    /// The other process has sent another message than the expected one.
    #[error("it has sent an unexpected message")]
    Unexpected,
    /// The system's reason.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// One end of the channel between the processes. No call blocks for longer than its deadline.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Returns one end of a new channel, and the other end for another process.
    ///
    /// # Errors
    /// Fails if the system has no descriptor.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Channel::over(own)?, other))
    }

    /// Takes over an end that another process has created.
    ///
    /// # Errors
    /// Fails if the descriptor is not such a socket.
    pub(crate) fn over(socket: OwnedFd) -> io::Result<Channel> {
        if rustix::net::sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket of packets"));
        }
        // A packet may have to wait for buffer space. The system may grant less space than
        // requested here.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, 2 * MESSAGE_BYTES_MAX);
        Ok(Channel { socket })
    }

    /// Returns the credentials of the process at the other end, as of the creation of the socket.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub(crate) fn peer(&self) -> io::Result<rustix::net::UCred> {
        Ok(rustix::net::sockopt::socket_peercred(&self.socket)?)
    }

    /// Sends a message with descriptors, which are duplicated for the receiver.
    ///
    /// # Errors
    /// Returns [`ChannelError`] if the message cannot be sent before `deadline`.
    pub(crate) fn send(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), ChannelError> {
        let packet = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        loop {
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(ChannelError::Unexpected);
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &[IoSlice::new(&packet)], &mut beside, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // The system also returns this error while too many descriptors are in flight.
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(Errno::TOOMANYREFS | Errno::NOBUFS) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Ended),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Receives a message and the descriptors that accompany it.
    ///
    /// # Errors
    /// Returns [`ChannelError`] if no message arrives before `deadline`.
    pub(crate) fn receive(&self, deadline: Instant) -> Result<(Message, Vec<OwnedFd>), ChannelError> {
        let mut packet = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let (bytes, flags, descriptors) = loop {
            let mut beside = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut packet)], &mut beside, flags) {
                Ok(received) => {
                    let mut descriptors = Vec::new();
                    for message in beside.drain() {
                        if let RecvAncillaryMessage::ScmRights(more) = message {
                            descriptors.extend(more);
                        }
                    }
                    break (received.bytes, received.flags, descriptors);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline)?,
                Err(Errno::CONNRESET) => return Err(ChannelError::Ended),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        };
        if bytes == 0 {
            return Err(ChannelError::Ended);
        }
        if flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(ChannelError::Unexpected);
        }
        let message = Message::decode(&packet[..bytes]).map_err(|_| ChannelError::Unexpected)?;
        Ok((message, descriptors))
    }

    /// Receives a message without descriptors, which must equal `message`.
    ///
    /// # Errors
    /// Returns the errors of [`receive`](Self::receive), and [`ChannelError::Unexpected`] for any
    /// other message.
    pub(crate) fn expect(&self, message: &Message, deadline: Instant) -> Result<(), ChannelError> {
        match self.receive(deadline)? {
            (received, descriptors) if received == *message && descriptors.is_empty() => Ok(()),
            _ => Err(ChannelError::Unexpected),
        }
    }

    fn wait(&self, flags: PollFlags, deadline: Instant) -> Result<(), ChannelError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::Late);
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(self.socket.as_fd(), flags)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_program_is_found_as_a_shell_finds_it() {
        let path = |name: &str| Program::of_this_process(&[name.into(), "-v".into()]).path;
        assert_eq!(path("/no/such/cached"), Path::new("/no/such/cached"), "as it was given");
        assert_eq!(path("bin/cached"), env::current_dir().expect("a directory").join("bin/cached"));
        assert!(path("sh").is_absolute() && path("sh").ends_with("sh"));
        assert_eq!(path("no-such-program-anywhere"), env::current_exe().expect("a path"));
    }
}

#[cfg(test)]
mod channel_tests {
    use super::*;
    use crate::listen::SocketKind;
    use std::fs::File;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn messages_and_descriptors_arrive_together_and_in_order() {
        let (own, other) = Channel::pair().expect("a socket");
        let other = Channel::over(other).expect("a socket");
        let files: Vec<File> =
            (0..DESCRIPTORS_MAX).map(|_| File::open("/dev/null").expect("a file")).collect();
        let all: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let socket = Message::Socket { kind: SocketKind::Tcp, name: "*:11211".into() };
        own.send(&socket, &all, soon()).expect("sent");
        own.send(&Message::Go, &[], soon()).expect("sent");
        let (message, descriptors) = other.receive(soon()).expect("a message");
        assert_eq!((message, descriptors.len()), (socket, DESCRIPTORS_MAX));
        other.expect(&Message::Go, soon()).expect("the second");
        assert_eq!(own.peer().expect("the peer").pid.as_raw_nonzero().get() as u32, std::process::id());
        drop(other);
        assert!(matches!(own.receive(soon()), Err(ChannelError::Ended)));
        assert!(matches!(own.send(&Message::Go, &[], soon()), Err(ChannelError::Ended)));
    }

    #[test]
    fn what_is_late_or_wrong_is_an_error() {
        let (own, other) = Channel::pair().expect("a socket");
        assert!(matches!(own.receive(Instant::now()), Err(ChannelError::Late)));
        rustix::net::send(&other, b"\xff nonsense", SendFlags::empty()).expect("sent");
        assert!(matches!(own.receive(soon()), Err(ChannelError::Unexpected)));
        rustix::net::send(&other, &[8], SendFlags::empty()).expect("sent");
        assert!(matches!(own.expect(&Message::Go, soon()), Err(ChannelError::Unexpected)));
        // The receiver does not read, so the socket fills up; the sender must not wait forever.
        let large = Message::Socket { kind: SocketKind::Tcp, name: "x".repeat(4096) };
        let full = (0..100_000).find_map(|_| own.send(&large, &[], Instant::now()).err());
        assert!(matches!(full, Some(ChannelError::Late)));
        assert!(Channel::over(File::open("/dev/null").expect("a file").into()).is_err());
    }
}
