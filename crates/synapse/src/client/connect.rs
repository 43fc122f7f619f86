//! Connecting, and the client's side of the handshake.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use blocker::{Error, Segments};

use super::config::ClientConfig;
use crate::auth::{Role, Transcript, random};
use crate::codec::{self, Challenge, Credits, Features, Flags, Head, Hello, Op, SessionId, Status, Welcome};
use crate::input::Input;
use crate::timer::Timer;
use connection::Output;
use connection::PayloadPool;
use connection::Stream;

/// A connection after its handshake.
pub(super) struct Connected {
    pub(super) stream: Stream,
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) welcome: Box<Welcome>,
}

/// Connects and performs the handshake, within `connect_timeout`.
///
/// # Errors
/// `Denied`: wrong secret. `Retryable`: everything else.
pub(super) async fn connect(
    config: &ClientConfig,
    session: SessionId,
    pool: &Arc<PayloadPool>,
) -> Result<Connected, Error> {
    let timer = Timer::after(Arc::clone(&config.clock), config.connect_timeout);
    let mut expired = pin!(timer.expired());
    let mut connecting = pin!(handshake(config, session, pool));
    poll_fn(|cx| {
        if let Poll::Ready(done) = connecting.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        ready!(expired.as_mut().poll(cx));
        let text = format!("{}: no handshake within {:?}", config.address, config.connect_timeout);
        Poll::Ready(Err(Error::Retryable(text.into())))
    })
    .await
}

async fn handshake(
    config: &ClientConfig,
    session: SessionId,
    pool: &Arc<PayloadPool>,
) -> Result<Connected, Error> {
    let address = &config.address;
    let stream = match &config.connector {
        Some(connector) => connector().await.map(Stream::Other),
        None => crate::address::connect(address).await,
    };
    let mut stream = stream.map_err(|error| Error::Retryable(format!("{address}: {error}").into()))?;
    let mut input = Input::new(Arc::clone(pool), config.clock.now());
    let mut output = Output::default();
    // In a handshake only errors have a payload.
    input.payload_bytes_max = codec::REASON_BYTES_MAX as u32;
    let mut features = Features(Features::RUNS | Features::CREDIT);
    features.0 |= Features::METRICS | Features::LOSSES | Features::NAMESPACES;
    features.0 |= if config.is_server { Features::RESERVED_NAMESPACES } else { 0 };
    features.0 |= if config.payload_crc { Features::PAYLOAD_CRC } else { 0 };
    features.0 |= if session.lane == 0 { Features::EVENTS | Features::WRITES_LOST } else { 0 };
    let credits = Credits { slots: config.slots, bytes: config.bytes };
    let mut hello = Hello::new(session, features, random(), credits);
    (hello.client_name, hello.key) = (config.name.clone(), config.key.clone().into_bytes());
    let mut transcript = Transcript::default();
    send(&mut output, &mut transcript, |out| hello.encode(out));
    let unproved = || {
        let text = format!("{address}: the server does not prove that it knows the secret");
        Error::Denied(text.into())
    };
    let mut challenge: Option<Challenge> = None;
    let welcome = loop {
        let reply = receive(&mut stream, &mut input, &mut output, &mut transcript).await;
        match reply.map_err(|error| with_address(config, error))? {
            HandshakeReply::Challenge(received) => {
                let (Some(secret), None) = (&config.secret, &challenge) else {
                    let text = format!("{address}: the server requires a secret, and none is configured");
                    return Err(Error::Denied(text.into()));
                };
                let proof = secret.proof(Role::Client, &transcript);
                send(&mut output, &mut transcript, |out| codec::encode_proof(out, &proof, false));
                challenge = Some(received);
            }
            HandshakeReply::Welcome(welcome) => break welcome,
            HandshakeReply::Proof(_) => return Err(unproved()),
        }
    };
    if let Some(secret) = &config.secret {
        if challenge.is_none_or(|challenge| challenge.instance != welcome.instance) {
            return Err(unproved());
        }
        let before = transcript.clone();
        match receive(&mut stream, &mut input, &mut output, &mut transcript).await {
            Ok(HandshakeReply::Proof(proof)) if secret.is_proof(&proof, Role::Server, &before) => {}
            Ok(_) => return Err(unproved()),
            Err(error) => return Err(with_address(config, error)),
        }
    }
    let capabilities = &welcome.capabilities;
    let list_bytes = u64::from(capabilities.list_entries_max) * codec::LIST_ENTRY_BYTES_MAX;
    let payload = capabilities.request_bytes_max.max(list_bytes).max(codec::CONTROL_BYTES_MAX);
    input.payload_bytes_max = u32::try_from(payload).unwrap_or(u32::MAX);
    Ok(Connected { stream, input, output, welcome })
}

enum HandshakeReply {
    Challenge(Challenge),
    Welcome(Box<Welcome>),
    Proof([u8; 32]),
}

/// Queues a frame of the handshake.
fn send(output: &mut Output, transcript: &mut Transcript, encode: impl FnOnce(&mut Vec<u8>)) {
    output.push(|out| {
        let start = out.len();
        encode(out);
        transcript.push(&out[start..]);
        Segments::new()
    });
}

/// Sends what is queued, then waits for one frame of the handshake.
async fn receive(
    stream: &mut Stream,
    input: &mut Input,
    output: &mut Output,
    transcript: &mut Transcript,
) -> Result<HandshakeReply, Error> {
    let broken = |error: &dyn std::fmt::Display| Error::Retryable(error.to_string().into());
    poll_fn(|cx| {
        ready!(output.poll_flush(cx, stream)).map_err(|error| broken(&error))?;
        loop {
            if let Some(frame) = input.next_frame(|_| None).map_err(|error| broken(&error))? {
                transcript.push(frame.head_bytes);
                let payload = frame.payload.into_segments().to_bytes();
                return Poll::Ready(decode(&frame.head, &payload));
            }
            if ready!(input.poll_fill(cx, stream)).map_err(|error| broken(&error))? == 0 {
                return Poll::Ready(Err(broken(&"the server has closed the connection")));
            }
        }
    })
    .await
}

fn decode(head: &Head<'_>, payload: &[u8]) -> Result<HandshakeReply, Error> {
    match (head.header.op, head.header.status) {
        (Op::Hello, Status::Challenge) => Challenge::decode(head).map(HandshakeReply::Challenge),
        (Op::Hello, Status::Ok) if head.header.flags.has(Flags::REPLY) => {
            Welcome::decode(head).map(|welcome| HandshakeReply::Welcome(Box::new(welcome)))
        }
        (Op::Prove, Status::Ok) if head.header.flags.has(Flags::REPLY) => {
            codec::decode_proof(head).map(HandshakeReply::Proof)
        }
        (Op::Goodbye, _) => Err(codec::decode_goodbye(&head.header, payload)),
        (op, _) => Err(Error::Invalid(format!("{op:?} in the handshake").into())),
    }
}

/// Names the server in an error. Every error but `Denied` is `Retryable`: a failed attempt.
fn with_address(config: &ClientConfig, error: Error) -> Error {
    match error {
        Error::Denied(text) => Error::Denied(format!("{}: {text}", config.address).into()),
        Error::Retryable(text) => Error::Retryable(format!("{}: {text}", config.address).into()),
        other => Error::Retryable(format!("{}: {other}", config.address).into()),
    }
}
