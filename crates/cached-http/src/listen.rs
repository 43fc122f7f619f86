//! The sockets of a server, and the loop that accepts their connections.

use std::future::Future;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The pause in accepting when the system has no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Opens the sockets of an address, which may be a name with several addresses. The sockets do not
/// block, as [`TcpListener::from_std`] requires.
///
/// # Errors
/// Returns the system's error; `NotFound` if the name has no address.
pub fn bind(address: impl ToSocketAddrs) -> io::Result<Vec<StdListener>> {
    let mut sockets = Vec::new();
    for candidate in address.to_socket_addrs()? {
        let socket = StdListener::bind(candidate)?;
        socket.set_nonblocking(true)?;
        sockets.push(socket);
    }
    match sockets.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        false => Ok(sockets),
    }
}

/// A server whose connections [`accept`] accepts. Clones are handles of the same server.
pub trait Server: Clone {
    /// The server in log lines, for example `the admin listener`.
    const NAME: &'static str;

    /// Returns the permits for further connections; each connection holds one until it ends.
    fn permits(&self) -> &Arc<Semaphore>;

    /// Counts a connection for which there is no permit. Returns the response with which it is
    /// refused, which must be short enough for a socket's buffer.
    fn refuse(&self) -> &'static [u8];

    /// Counts a connection, and serves it until its end. The error is the reason for an abnormal
    /// end, as one line; it is logged.
    fn serve(
        self,
        socket: TcpStream,
        peer: SocketAddr,
    ) -> impl Future<Output = Result<(), String>> + Send + 'static;
}

/// Accepts connections until `end` completes, and serves each of them in a task of the current
/// runtime. Returns the tasks that are still running.
///
/// # Cancel safety
/// Dropping the future, or the returned set, aborts the connections.
///
/// # Panics
/// Panics if it is called outside of a tokio runtime.
pub async fn accept<S: Server>(
    server: S,
    listener: TcpListener,
    end: impl Future<Output = ()>,
) -> JoinSet<()> {
    let mut connections = JoinSet::new();
    let mut end = pin!(end);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = end.as_mut() => return connections,
            Some(_) = connections.join_next() => continue,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(cause = %error, "{} cannot accept", S::NAME);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match Arc::clone(server.permits()).try_acquire_owned() {
            Ok(permit) => {
                let serving = server.clone().serve(socket, peer);
                let serving = async move {
                    if let Err(error) = serving.await {
                        tracing::debug!(%peer, cause = error, "a connection of {} has ended", S::NAME);
                    }
                    drop(permit);
                };
                start(&mut connections, Box::pin(serving));
            }
            Err(_) => {
                // tokio does not know yet whether the socket can be written to, so the system is
                // asked. The response fits into the socket's buffer; if the client has already gone,
                // the failure does not matter.
                let response = server.refuse();
                let _ = socket.into_std().and_then(|mut socket| socket.write(response));
            }
        }
    }
}

/// Starts a task. tokio's code is compiled for each type of future that it runs as a task; all connections
/// are of one type.
fn start(connections: &mut JoinSet<()>, serving: Pin<Box<dyn Future<Output = ()> + Send>>) {
    connections.spawn(serving);
}
