//! Connecting and greeting.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use blocker::{Error, Segments};

use super::config::ClientConfig;
use crate::alarm::Alarm;
use crate::auth::random;
use crate::codec::{self, Challenge, Credits, Features, Flags, Head, Hello, Op, SessionId, Status, Welcome};
use crate::input::Input;
use crate::landing::PayloadPool;
use crate::output::Output;
use crate::stream::Stream;

/// A connection that has been greeted.
pub(super) struct Connected {
    pub(super) stream: Stream,
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) welcome: Welcome,
}

/// Connects and greets, within the time allowed.
///
/// # Errors
/// `Denied`: wrong secret. `Retryable`: everything else.
pub(super) async fn connect(
    config: &ClientConfig,
    session: SessionId,
    pool: &Arc<PayloadPool>,
) -> Result<Connected, Error> {
    let alarm = Alarm::after(Arc::clone(&config.clock), config.connect_timeout);
    let mut ring = pin!(alarm.ring());
    let mut connecting = pin!(greet(config, session, pool));
    poll_fn(|cx| {
        if let Poll::Ready(done) = connecting.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        ready!(ring.as_mut().poll(cx));
        let text = format!("{}: no greeting within {:?}", config.address, config.connect_timeout);
        Poll::Ready(Err(Error::Retryable(text.into())))
    })
    .await
}

async fn greet(
    config: &ClientConfig,
    session: SessionId,
    pool: &Arc<PayloadPool>,
) -> Result<Connected, Error> {
    let address = &config.address;
    let stream = match &config.connector {
        Some(connector) => connector().await.map(Stream::Other),
        None => Stream::connect(address).await,
    };
    let mut stream = stream.map_err(|error| Error::Retryable(format!("{address}: {error}").into()))?;
    let mut input = Input::new(Arc::clone(pool), config.clock.now());
    let mut output = Output::default();
    // Only errors have a payload in the greeting.
    input.payload_bytes_max = codec::REASON_BYTES_MAX as u32;
    let mut features = Features(Features::RUNS);
    features.0 |= if config.payload_crc { Features::PAYLOAD_CRC } else { 0 };
    features.0 |= if session.lane == 0 { Features::EVENTS } else { 0 };
    let credits = Credits { slots: config.slots, bytes: config.bytes };
    let hello = Hello { session, features, nonce: random(), credits };
    output.push(|out| {
        hello.encode(out);
        Segments::new()
    });
    let mut challenge = None;
    let welcome = loop {
        let heard = answer(&mut stream, &mut input, &mut output).await;
        match heard.map_err(|error| about(config, error))? {
            Heard::Challenge(heard) => {
                let (Some(secret), None) = (&config.secret, &challenge) else {
                    let text = format!("{address}: the server wants a secret, and none is configured");
                    return Err(Error::Denied(text.into()));
                };
                output.push(|out| {
                    codec::encode_proof(out, &secret.client_proof(&hello, &heard));
                    Segments::new()
                });
                challenge = Some(heard);
            }
            Heard::Welcome(welcome) => break welcome,
        }
    };
    if let Some(secret) = &config.secret {
        let is_proved = challenge.is_some_and(|challenge| {
            challenge.instance == welcome.instance
                && secret.is_server_proof(&welcome.proof, &hello, &challenge)
        });
        if !is_proved {
            let text = format!("{address}: the server does not prove that it knows the secret");
            return Err(Error::Denied(text.into()));
        }
    }
    let capabilities = &welcome.capabilities;
    let payload = capabilities.request_bytes_max.max(welcome.credits.bytes);
    input.payload_bytes_max = u32::try_from(payload).unwrap_or(u32::MAX);
    Ok(Connected { stream, input, output, welcome })
}

enum Heard {
    Challenge(Challenge),
    Welcome(Welcome),
}

async fn answer(stream: &mut Stream, input: &mut Input, output: &mut Output) -> Result<Heard, Error> {
    let broken = |error: &dyn std::fmt::Display| Error::Retryable(error.to_string().into());
    poll_fn(|cx| {
        ready!(output.poll_flush(cx, stream)).map_err(|error| broken(&error))?;
        loop {
            if let Some(frame) = input.next_frame(|_| None).map_err(|error| broken(&error))? {
                let payload = frame.payload.into_segments().to_bytes();
                return Poll::Ready(heard(&frame.head, &payload));
            }
            if ready!(input.poll_fill(cx, stream)).map_err(|error| broken(&error))? == 0 {
                return Poll::Ready(Err(broken(&"the server has closed the connection")));
            }
        }
    })
    .await
}

fn heard(head: &Head<'_>, payload: &[u8]) -> Result<Heard, Error> {
    match (head.header.op, head.header.status) {
        (Op::Hello, Status::Challenge) => Challenge::decode(head).map(Heard::Challenge),
        (Op::Hello, Status::Ok) if head.header.flags.has(Flags::REPLY) => {
            Welcome::decode(head).map(Heard::Welcome)
        }
        (Op::Goodbye, _) => Err(codec::decode_goodbye(&head.header, payload)),
        (op, _) => Err(Error::Invalid(format!("{op:?} in the greeting").into())),
    }
}

/// Says of which server an error is. Only `Denied` is more than a failed attempt.
fn about(config: &ClientConfig, error: Error) -> Error {
    match error {
        Error::Denied(text) => Error::Denied(format!("{}: {text}", config.address).into()),
        Error::Retryable(text) => Error::Retryable(format!("{}: {text}", config.address).into()),
        other => Error::Retryable(format!("{}: {other}", config.address).into()),
    }
}
