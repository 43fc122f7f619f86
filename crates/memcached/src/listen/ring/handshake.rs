//! One side of a handshake on a fresh connection: TLS if the ring has it, then frames.

use crate::settings::RingSettings;
use crate::stream::{Link, LinkIo, NOT_TLS, TlsStream, Transport};
use cached_ring::hello::{Frame, Refused, RefusedCode};
use cached_ring::host_and_port;
use cached_tls::ClientCertificates;
use connection::Transcript;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use rustls::pki_types::ServerName;
use std::io;
use std::task::Poll;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time in which a peer may take the reason for which it is refused.
const LINGER_MAX: Duration = Duration::from_millis(50);

/// The reason why a handshake has failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The peer refuses this node.
    #[error("it refuses this node: {0}")]
    ByPeer(Refused),
    /// This node refuses the peer, and has said so.
    #[error("{0}")]
    ByUs(Refused),
    /// The connection cannot be opened.
    #[error("{0}")]
    Unreachable(io::Error),
    /// The connection has failed within the handshake.
    #[error("the handshake has failed: {0}")]
    Broken(#[from] io::Error),
    /// Only one of the two nodes has TLS, or one does not accept the other's certificate.
    #[error("{0}")]
    Tls(String),
    /// Nothing has answered in time, although something accepts connections.
    #[error("it does not answer")]
    Late,
}

impl Failure {
    /// Returns whether another secret may be the right one.
    pub(super) fn is_about_the_secret(&self) -> bool {
        matches!(self, Failure::ByPeer(refused) | Failure::ByUs(refused) if refused.code == RefusedCode::Secret)
    }

    /// Returns the failure for a reason of TLS.
    fn of_tls(why: &str) -> Failure {
        Failure::Tls(match why {
            NOT_TLS => "it does not speak TLS, as this node does ([ring.tls])".into(),
            why => format!("the TLS handshake has failed: {why}"),
        })
    }
}

/// One side of a handshake.
pub(super) struct Handshake {
    link: Link<TcpStream>,
    /// The frames so far, as they were sent: the proofs are computed over them.
    pub(super) transcript: Transcript,
}

impl Handshake {
    /// Begins the handshake on a connection that was accepted.
    pub(super) fn accept(stream: TcpStream, settings: &RingSettings) -> Result<Handshake, Failure> {
        let config = match &settings.tls {
            None => None,
            Some(tls) => Some(tls.config(ClientCertificates::Require).ok_or_else(no_certificate)?),
        };
        Handshake::over(stream, config.map(TlsStream::accepted))
    }

    /// Begins the handshake on a connection to `address`, whose host the peer's certificate must name.
    pub(super) async fn dial(
        stream: TcpStream,
        address: &str,
        settings: &RingSettings,
    ) -> Result<Handshake, Failure> {
        let Some(tls) = &settings.tls else { return Handshake::over(stream, None) };
        let config = tls.client_config().ok_or_else(no_certificate)?;
        let host = host_and_port(address).map_or(address, |(host, _)| host);
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| Failure::Tls(format!("no certificate can have the name {host:?}")))?;
        let dialled = TlsStream::dialled(config, name).map_err(|why| Failure::of_tls(&why))?;
        let mut handshake = Handshake::over(stream, Some(dialled))?;
        handshake.step(|io| io.establish()).await?;
        Ok(handshake)
    }

    fn over(stream: TcpStream, tls: Option<Box<TlsStream>>) -> Result<Handshake, Failure> {
        stream.set_nodelay(true)?;
        Ok(Handshake { link: Link::new(stream, tls), transcript: Transcript::default() })
    }

    /// Returns the connection, whose handshake is complete.
    pub(super) fn into_link(self) -> io::Result<Link> {
        let (stream, tls) = self.link.into_parts();
        Ok(Link::new(stream.into_std()?.into(), tls))
    }

    pub(super) async fn send(&mut self, frame: &Frame) -> Result<(), Failure> {
        let bytes = frame.encode();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let count = self.step(|io| io.write(rest)).await?;
            rest = &rest[count..];
        }
        self.transcript.push(&bytes);
        Ok(())
    }

    /// Receives a frame, and no byte after it.
    pub(super) async fn receive(&mut self) -> Result<Frame, Failure> {
        let mut first = [0; 2];
        self.read(&mut first).await?;
        if Frame::is_tls(first) {
            self.refuse(Refused::protocol("this node does not speak TLS")).await;
            return Err(Failure::Tls("it speaks TLS, and this node does not: [ring.tls] is missing".into()));
        }
        let bytes = match Frame::len(first) {
            Ok(bytes) => bytes,
            Err(refused) => return Err(self.refuse(refused).await),
        };
        let mut frame = vec![0; bytes];
        self.read(&mut frame).await?;
        self.transcript.push(&first);
        self.transcript.push(&frame);
        match Frame::decode(&frame) {
            Ok(Frame::Refused(refused)) => Err(Failure::ByPeer(refused)),
            Ok(frame) => Ok(frame),
            Err(refused) => Err(self.refuse(refused).await),
        }
    }

    /// Tells the peer why this node refuses it.
    pub(super) async fn refuse(&mut self, refused: Refused) -> Failure {
        // The peer may have gone; then the reason is only logged here.
        if self.send(&Frame::Refused(refused.clone())).await.is_ok() {
            self.linger().await;
        }
        Failure::ByUs(refused)
    }

    /// Refuses a peer that has sent another frame than the handshake has at this point.
    pub(super) async fn refuse_frame(&mut self, wanted: &str) -> Failure {
        let refused = Refused::protocol(&format!("the peer has sent another frame than {wanted}"));
        self.refuse(refused).await
    }

    async fn read(&mut self, into: &mut [u8]) -> Result<(), Failure> {
        let mut filled = 0;
        while filled < into.len() {
            match self.step(|io| io.read(&mut into[filled..])).await? {
                0 => return Err(Failure::Broken(io::ErrorKind::UnexpectedEof.into())),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Waits until `act` has done something.
    async fn step<T>(
        &mut self,
        mut act: impl FnMut(&mut LinkIo<'_>) -> Poll<io::Result<T>>,
    ) -> Result<T, Failure> {
        loop {
            let polled = {
                // Not kept: many handshakes wait for their peers at the same time.
                let mut buffers = None;
                act(&mut self.link.io(&mut buffers))
            };
            match polled {
                Poll::Ready(Ok(done)) => return Ok(done),
                Poll::Ready(Err(error)) => {
                    let Some(why) = self.link.tls_failure() else { return Err(error.into()) };
                    let failure = Failure::of_tls(why);
                    self.linger().await;
                    return Err(failure);
                }
                Poll::Pending => self.wait().await?,
            }
        }
    }

    /// Waits for the socket.
    async fn wait(&mut self) -> io::Result<()> {
        let (reads, writes) = self.link.awaits();
        let interest = match (reads, writes) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => {
                tokio::task::yield_now().await;
                return Ok(());
            }
        };
        self.link.socket().ready(interest).await?;
        // The link knows when it changes.
        self.forget_readiness(interest);
        self.link.ready.read |= reads;
        self.link.ready.write |= writes;
        Ok(())
    }

    /// Lets the next wait be one for further events.
    fn forget_readiness(&self, interest: Interest) {
        let _ = self.link.socket().try_io(interest, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }

    /// Lets the peer take the last words of this node: the close of a socket with unread bytes would
    /// overtake them.
    async fn linger(&self) {
        let socket = self.link.socket();
        let _ = rustix::net::shutdown(socket, Shutdown::Write);
        let until_closed = async {
            let mut bytes = [0; 1024];
            loop {
                match rustix::net::recv(socket, &mut bytes[..], RecvFlags::empty()) {
                    Ok((_, 1..)) => {}
                    Err(Errno::AGAIN) => {
                        self.forget_readiness(Interest::READABLE);
                        if socket.readable().await.is_err() {
                            return;
                        }
                    }
                    Ok(_) | Err(_) => return,
                }
            }
        };
        // The peer may keep it open.
        let _ = timeout(LINGER_MAX, until_closed).await;
    }
}

fn no_certificate() -> Failure {
    Failure::Tls("there is no certificate of this node".into())
}
