//! The start of a connection: options until the client has selected an export, including TLS.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use connection::{Duplex, Output, Stream};
use rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use super::End;
use super::Shared;
use super::input::Input;
use crate::export::Export;
use crate::protocol::{Action, Answered, Description, Negotiation, NoExport, Session};

/// With this many bytes of replies queued, the client has to receive them before its next option is
/// processed: options are short, but their replies may be long.
const REPLIES_BYTES: usize = 64 * 1024;

/// A connection during its negotiation.
pub(super) struct Negotiating<'a> {
    pub(super) shared: &'a Shared,
    pub(super) input: &'a mut Input,
    pub(super) output: &'a mut Output,
}

impl Negotiating<'_> {
    /// Negotiates, and returns the stream (under TLS if the client asked for it), the export, and
    /// the session. The output contains the reply that starts the transmission.
    pub(super) async fn run(mut self, mut stream: Stream) -> Result<(Stream, Arc<dyn Export>, Session), End> {
        let mut out = Vec::new();
        let mut state = Negotiation::new(self.shared.config.tls_mode(), &mut out);
        loop {
            if out.len() >= REPLIES_BYTES {
                self.send(&mut stream, &mut out).await?;
            }
            let (taken, action) = state.receive(self.input.arrived(), &mut out)?;
            self.input.take(taken);
            match action {
                Action::Continue => {}
                Action::Receive => {
                    self.send(&mut stream, &mut out).await?;
                    if poll_fn(|cx| self.input.poll_fill(cx, &mut stream)).await? == 0 {
                        return Err(End::Closed);
                    }
                }
                Action::List => {
                    let names = self.shared.exports.list().await;
                    state.answer_list(names.as_deref(), &mut out);
                }
                Action::Describe(name) => {
                    let export = self.shared.exports.describe(&name).await.and_then(checked);
                    // This answer cannot select the export: only an opened one starts a
                    // transmission.
                    let _ = state.answer_export(export.as_ref(), &mut out);
                }
                Action::Open(name) => {
                    let export = self.shared.exports.open(&name).await;
                    let export = export.and_then(|export| {
                        checked(export.description().clone()).map(|description| (export, description))
                    });
                    let description = export.as_ref().map(|(_, description)| description);
                    let answered = state.answer_export(description, &mut out);
                    match (answered, export) {
                        (Answered::Transmission(session), Ok((export, _))) => {
                            self.output.push_head(|small| small.append(&mut out));
                            return Ok((stream, export, session));
                        }
                        (Answered::End, Err(error)) => return Err(End::NoExport(name, error)),
                        _ => {}
                    }
                }
                Action::StartTls => {
                    self.send(&mut stream, &mut out).await?;
                    let tls = self.shared.config.tls.as_ref();
                    let config = tls.and_then(|tls| tls.config(tls.settings().client_certificates));
                    let config = config.ok_or_else(|| io::Error::other("TLS has no configuration"))?;
                    stream = accept_tls(stream, config).await.map_err(End::Tls)?;
                    state.begin_tls();
                }
                Action::End => {
                    self.send(&mut stream, &mut out).await?;
                    return Err(End::Ended);
                }
            }
        }
    }

    async fn send(&mut self, stream: &mut Stream, out: &mut Vec<u8>) -> io::Result<()> {
        self.output.push_head(|small| small.append(out));
        poll_fn(|cx| self.output.poll_flush(cx, stream)).await
    }
}

/// Performs the server's side of the TLS handshake.
async fn accept_tls(stream: Stream, config: Arc<ServerConfig>) -> io::Result<Stream> {
    let acceptor = TlsAcceptor::from(config);
    let encrypted: Box<dyn Duplex> = match stream {
        Stream::Tcp(stream) => Box::new(acceptor.accept(stream).await?),
        Stream::Unix(stream) => Box::new(acceptor.accept(stream).await?),
        Stream::Other(_) => return Err(io::Error::other("TLS is already in use")),
    };
    Ok(Stream::Other(encrypted))
}

/// Refuses an export whose description contradicts itself.
fn checked(export: Description) -> Result<Description, NoExport> {
    let (least, preferred) = (export.block_bytes_min, export.block_bytes_preferred);
    let is_right = least.is_power_of_two()
        && least <= 64 * 1024
        && preferred.is_power_of_two()
        && preferred >= least
        && export.size_bytes <= i64::MAX as u64;
    if is_right {
        return Ok(export);
    }
    let why = format!(
        "the export has {} bytes and blocks of {least} and {preferred}: these must be powers of two, the first at \
         most 65536 and the second at least the first, and the size below 2^63",
        export.size_bytes
    );
    Err(NoExport::Refused(why))
}
