//! The use of a [`ServerTls`] by tokio listeners: handshakes with a time limit, and the replacement
//! of certificates.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// A connection with TLS.
pub use tokio_rustls::server::TlsStream;

use crate::ServerTls;

/// The time limit of a handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// The interval for checking the certificates' files.
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
/// A one-line message: the client's mistake, or that the handshake took more than ten seconds.
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
    loop {
        // Sleeps first, because the files have just been read.
        tokio::time::sleep(INTERVAL).await;
        let tls = Arc::clone(&tls);
        // Reading files may block.
        match tokio::task::spawn_blocking(move || tls.reload_if_changed()).await {
            Ok(Ok(true)) => tracing::info!("the files of {table} have changed: the new ones are in use"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::error!(cause = %error, "{table} cannot be replaced: the old certificates stay in use");
            }
            Err(_) => tracing::error!("reading the certificates of {table} has panicked"),
        }
    }
}
