//! The calls to rustls.

use super::{BATCH_BYTES, RECORD_BYTES, TlsBuffers};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus,
    WriteTraffic,
};
use rustls::{CommonState, Error, InvalidMessage};
use std::io::IoSlice;

/// The reason for which a handshake fails with a peer that sends something else than TLS.
pub(crate) const NOT_TLS: &str = "the peer does not speak TLS";

/// The connection of either side: rustls has no trait for what both have.
pub(super) trait Side {
    type Data;
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&self) -> &CommonState;
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    #[inline]
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    #[inline]
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

/// Returns the reason for a failure, in one line.
fn reason(error: &Error, is_handshaking: bool) -> String {
    match error {
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) if is_handshaking => NOT_TLS.into(),
        error => error.to_string(),
    }
}

/// The result of processing one read.
pub(super) struct Processed<'a> {
    into: &'a mut [u8],
    /// Receives the plaintext for which `into` has no space.
    overflow: &'a mut Vec<u8>,
    /// The number of plaintext bytes in `into`.
    pub(super) plain_bytes: usize,
    /// The number of input bytes that have been processed.
    pub(super) used: usize,
    /// Whether the peer has sent a close_notify.
    pub(super) is_ended: bool,
}

impl<'a> Processed<'a> {
    pub(super) fn new(into: &'a mut [u8], overflow: &'a mut Vec<u8>) -> Processed<'a> {
        Processed { into, overflow, plain_bytes: 0, used: 0, is_ended: false }
    }

    /// Processes all complete records of `input`. Data that TLS itself must send, including the
    /// alert after an error, is appended to `outgoing`.
    pub(super) fn take_in(
        &mut self,
        connection: &mut impl Side,
        input: &mut [u8],
        outgoing: &mut Vec<u8>,
        outgoing_used: &mut usize,
    ) -> Result<(), String> {
        loop {
            let UnbufferedStatus { mut discard, state } = connection.process(&mut input[self.used..]);
            let mut goes_on = true;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        match record {
                            Ok(record) => {
                                discard += record.discard;
                                self.take_plaintext(record.payload);
                            }
                            Err(error) => return Err(error.to_string()),
                        }
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, outgoing, outgoing_used)?,
                // Everything in `outgoing` is either sent or kept until it can be sent.
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.is_ended = true,
                Ok(ConnectionState::Closed) => (self.is_ended, goes_on) = (true, false),
                Ok(ConnectionState::WriteTraffic(_) | ConnectionState::BlockedHandshake) => goes_on = false,
                Ok(_) => return Err("unexpected TLS state".into()),
                Err(error) => {
                    self.used += discard;
                    let why = reason(&error, connection.common().is_handshaking());
                    collect_alert(connection, outgoing, outgoing_used);
                    return Err(why);
                }
            }
            self.used += discard;
            if !goes_on {
                return Ok(());
            }
        }
    }

    fn take_plaintext(&mut self, plaintext: &[u8]) {
        let space = &mut self.into[self.plain_bytes..];
        let count = space.len().min(plaintext.len());
        space[..count].copy_from_slice(&plaintext[..count]);
        self.plain_bytes += count;
        self.overflow.extend_from_slice(&plaintext[count..]);
    }
}

/// Appends the alert that reports a failure to the peer. A connection that has failed accepts no
/// more input.
fn collect_alert(connection: &mut impl Side, outgoing: &mut Vec<u8>, used: &mut usize) {
    while connection.common().wants_write() {
        let Ok(ConnectionState::EncodeTlsData(mut data)) = connection.process(&mut []).state else { return };
        // The buffer grows as needed.
        let _ = encode(&mut data, outgoing, used);
    }
}

/// Appends the messages that TLS itself must send.
fn encode<Data>(
    data: &mut EncodeTlsData<'_, Data>,
    outgoing: &mut Vec<u8>,
    used: &mut usize,
) -> Result<(), String> {
    loop {
        match data.encode(&mut outgoing[*used..]) {
            Ok(count) => {
                *used += count;
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
                outgoing.resize(*used + required_size, 0);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Encrypts pieces into the worker's `outgoing`, in full records as far as possible. Returns the
/// number of plaintext bytes encrypted. `partial` holds the records that have not arrived
/// completely.
pub(super) fn encrypt(
    connection: &mut impl Side,
    partial: &mut Vec<u8>,
    pieces: &[IoSlice<'_>],
    buffers: &mut TlsBuffers,
) -> Result<usize, String> {
    let TlsBuffers { outgoing, outgoing_used, joined, .. } = buffers;
    *outgoing_used = 0;
    if let [piece] = pieces {
        let batch = &piece[..piece.len().min(BATCH_BYTES)];
        with_traffic(connection, partial, outgoing, outgoing_used, |traffic, outgoing, used| {
            encrypt_into(traffic, batch, outgoing, used)
        })?;
        return Ok(batch.len());
    }
    let mut plain = 0;
    with_traffic(connection, partial, outgoing, outgoing_used, |traffic, outgoing, used| {
        joined.clear();
        for piece in pieces {
            let mut rest = &piece[..piece.len().min(BATCH_BYTES - plain)];
            plain += rest.len();
            // The remainder of the previous piece is completed to a full record.
            if !joined.is_empty() || rest.len() < RECORD_BYTES {
                let (head, tail) = rest.split_at(rest.len().min(RECORD_BYTES - joined.len()));
                joined.extend_from_slice(head);
                rest = tail;
                if joined.len() == RECORD_BYTES {
                    encrypt_into(traffic, joined, outgoing, used)?;
                    joined.clear();
                }
            }
            let (whole, tail) = rest.split_at(rest.len() - rest.len() % RECORD_BYTES);
            if !whole.is_empty() {
                encrypt_into(traffic, whole, outgoing, used)?;
            }
            joined.extend_from_slice(tail);
            if plain == BATCH_BYTES {
                break;
            }
        }
        if joined.is_empty() { Ok(()) } else { encrypt_into(traffic, joined, outgoing, used) }
    })?;
    Ok(plain)
}

/// Appends a close_notify to the worker's `outgoing`, unless the connection has failed.
pub(super) fn close_notify(
    connection: &mut UnbufferedServerConnection,
    partial: &mut Vec<u8>,
    buffers: &mut TlsBuffers,
) {
    let TlsBuffers { outgoing, outgoing_used, .. } = buffers;
    // After a failure, no orderly close is possible.
    let _ = with_traffic(connection, partial, outgoing, outgoing_used, |traffic, outgoing, used| {
        let count = traffic.queue_close_notify(&mut outgoing[*used..]).map_err(|error| error.to_string())?;
        *used += count;
        Ok(())
    });
}

/// Calls `act` with the connection in its encrypting state, after the messages that TLS itself must
/// send.
fn with_traffic<S: Side>(
    connection: &mut S,
    partial: &mut Vec<u8>,
    outgoing: &mut Vec<u8>,
    used: &mut usize,
    act: impl FnOnce(&mut WriteTraffic<'_, S::Data>, &mut Vec<u8>, &mut usize) -> Result<(), String>,
) -> Result<(), String> {
    loop {
        // rustls expects the unprocessed part of the input to be present at every call.
        let UnbufferedStatus { discard, state } = connection.process(partial);
        match state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                let result = act(&mut traffic, outgoing, used);
                partial.drain(..discard);
                return result;
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, outgoing, used)?,
            Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
            Ok(ConnectionState::PeerClosed) => {}
            Ok(other) => return Err(format!("nothing can be sent: TLS is in {other:?}")),
            Err(error) => return Err(error.to_string()),
        }
        partial.drain(..discard);
    }
}

/// Appends the records of `plaintext`.
fn encrypt_into<Data>(
    traffic: &mut WriteTraffic<'_, Data>,
    plaintext: &[u8],
    outgoing: &mut Vec<u8>,
    used: &mut usize,
) -> Result<(), String> {
    loop {
        match traffic.encrypt(plaintext, &mut outgoing[*used..]) {
            Ok(count) => {
                *used += count;
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => {
                outgoing.resize(*used + required_size, 0);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
