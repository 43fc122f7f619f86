//! Certificates that are replaced while the server runs: on request, and when their files change.

use crate::shared::Shared;
use cached_tls::TlsError;
use std::sync::Arc;
use std::time::Duration;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(60);

/// Reads the certificates again, and logs the outcome. After an error the old ones stay.
///
/// # Errors
/// What is wrong with them. `None` without TLS.
pub(crate) fn refresh(shared: &Shared) -> Option<Result<(), TlsError>> {
    let result = shared.tls.as_ref()?.reload();
    match &result {
        Ok(()) => tracing::info!("the certificates have been read again"),
        Err(error) => kept(error),
    }
    Some(result)
}

/// Reads the certificates again, runs `others`, and puts the certificates in force if that succeeds. Returns the
/// outcome of `others`, and whether there are certificates.
///
/// # Errors
/// One line: what is wrong with the certificates, or the error of `others`.
pub(crate) fn refresh_with<T>(
    shared: &Shared,
    others: impl FnOnce() -> Result<T, String>,
) -> Result<(T, bool), String> {
    let Some(tls) = &shared.tls else { return Ok((others()?, false)) };
    let outcome = tls.reload_with(others);
    let outcome = outcome.map_err(|error| format!("{error}; the old certificates stay in use"))?;
    Ok((outcome?, true))
}

fn kept(error: &TlsError) {
    tracing::error!(cause = %error, "the certificates cannot be replaced: the old ones stay in use");
}

/// Replaces the certificates whenever their files change, until it is dropped.
pub(crate) async fn renew(shared: Arc<Shared>) {
    let mut times = tokio::time::interval(INTERVAL);
    // At once: they have just been read.
    times.tick().await;
    loop {
        times.tick().await;
        let shared = shared.clone();
        // Reading files may block.
        let checked =
            tokio::task::spawn_blocking(move || shared.tls.as_ref().map(|tls| tls.reload_if_changed()));
        match checked.await {
            Ok(Some(Ok(true))) => {
                tracing::info!("the files of the certificates have changed: they are in use");
            }
            Ok(Some(Err(error))) => kept(&error),
            Ok(Some(Ok(false)) | None) => {}
            Err(_) => tracing::error!("reading the certificates has panicked"),
        }
    }
}
