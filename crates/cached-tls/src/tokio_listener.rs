//! The use of a [`ServerTls`] by tokio listeners: handshakes with a time limit, and the replacement
//! of certificates and of files of keys.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// A connection with TLS.
pub use tokio_rustls::server::TlsStream;

use crate::ServerTls;

/// The time limit of a handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// The interval for checking files.
const INTERVAL: Duration = Duration::from_secs(60);

/// A TLS record with the alert `internal_error`, for a client above a listener's limit of
/// connections.
pub const BUSY: &[u8] = &[21, 3, 3, 0, 2, 2, 80];

/// Performs the handshake on a client's connection, with the settings' policy for client
/// certificates.
///
/// # Cancel safety
/// Dropping the future closes the connection.
///
/// # Errors
/// Returns a one-line message: the client's mistake, or that the handshake took more than ten
/// seconds.
pub async fn accept(tls: &ServerTls, socket: TcpStream) -> Result<TlsStream<TcpStream>, String> {
    let config = tls.config(tls.settings().client_certificates).ok_or("there is no certificate")?;
    match tokio::time::timeout(HANDSHAKE_TIME_MAX, TlsAcceptor::from(config).accept(socket)).await {
        Ok(accepted) => accepted.map_err(|error| error.to_string()),
        Err(_) => Err("the handshake took too long".into()),
    }
}

/// Replaces the certificates whenever their files change, until the future is dropped. `table` is
/// the name of the configuration table in log lines, for example `admin.tls`.
pub async fn renew(tls: Arc<ServerTls>, table: &'static str) {
    renew_files(table, move || tls.reload_if_changed()).await;
}

/// Puts the content of files in force whenever it changes, until the future is dropped.
/// `reload_if_changed` returns whether it has done so. `name` is the configuration key or table
/// that names the files.
pub async fn renew_files<E: Display + Send + 'static>(
    name: &'static str,
    reload_if_changed: impl Fn() -> Result<bool, E> + Clone + Send + 'static,
) {
    loop {
        // The task sleeps first, because the files have just been read.
        tokio::time::sleep(INTERVAL).await;
        // Reading files may block.
        match tokio::task::spawn_blocking(reload_if_changed.clone()).await {
            Ok(Ok(true)) => tracing::info!("the files of {name} have changed: their content is in force"),
            Ok(Ok(false)) => {}
            Ok(Err(cause)) => tracing::error!(
                %cause,
                "the files of {name} cannot be used: their previous content stays in force"
            ),
            Err(_) => tracing::error!("reading the files of {name} has panicked"),
        }
    }
}
