//! The socket between the two processes: packets, with descriptors beside them.

use super::message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Why the other process cannot be understood or reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    /// It has ended.
    #[error("it has ended")]
    Ended,
    /// It has not answered.
    #[error("it has not answered in time")]
    Late,
    /// It has sent an unexpected message.
    #[error("it has sent what was not expected")]
    Unexpected,
    /// The system's reason.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// One end of the socket. No call blocks for longer than its deadline.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Returns one end, and the other for another process.
    ///
    /// # Errors
    /// When the system has no descriptor.
    pub(crate) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (own, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Channel::over(own)?, other))
    }

    /// Takes an end that another process has made.
    ///
    /// # Errors
    /// When it is no such socket.
    pub(crate) fn over(socket: OwnedFd) -> io::Result<Channel> {
        if rustix::net::sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a socket of packets"));
        }
        // A packet may have to wait for buffer space; the system may grant less than this.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, 2 * MESSAGE_BYTES_MAX);
        Ok(Channel { socket })
    }

    /// Returns the process at the other end, as it was when the socket was made.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn peer(&self) -> io::Result<rustix::net::UCred> {
        Ok(rustix::net::sockopt::socket_peercred(&self.socket)?)
    }

    /// Sends a message with descriptors, of which the receiver gets copies.
    ///
    /// # Errors
    /// [`ChannelError`] if it cannot be sent before `deadline`.
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
                // Also while too many descriptors are on their way.
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(Errno::TOOMANYREFS | Errno::NOBUFS) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Ended),
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Receives a message and the descriptors beside it.
    ///
    /// # Errors
    /// [`ChannelError`] if none comes before `deadline`.
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

    /// Receives a message that has no descriptors and must be this one.
    ///
    /// # Errors
    /// As [`receive`](Self::receive), and [`ChannelError::Unexpected`] for another message.
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
    use super::super::message::SocketKind;
    use super::*;
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
        // The receiver does not read: the socket fills, and the sender does not wait for ever.
        let large = Message::Socket { kind: SocketKind::Tcp, name: "x".repeat(4096) };
        let full = (0..100_000).find_map(|_| own.send(&large, &[], Instant::now()).err());
        assert!(matches!(full, Some(ChannelError::Late)));
        assert!(Channel::over(File::open("/dev/null").expect("a file").into()).is_err());
    }
}
