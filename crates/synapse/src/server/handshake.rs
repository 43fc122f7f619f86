//! The handshake of a connection, and the secrets that clients must know.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, ready};

use blocker::Error;
use connection::{Secret, SettingError, Transcript};
use parking_lot::RwLock;
use tokio::sync::mpsc;

use super::config::ServerConfig;
use super::connection::{Connection, End, Established};
use super::slots::Slots;
use super::{Server, Shared};
use crate::auth::{Role, random, send};
use crate::codec::{self, Challenge, Credits, Features, Flags, Hello, Op, Welcome};
use crate::input::Timer;

impl Connection {
    /// Performs the handshake, within `handshake_timeout`.
    pub(super) async fn handshake(&mut self) -> Result<Established, End> {
        let shared = Arc::clone(&self.shared);
        let timeout = shared.limits.read().handshake_timeout;
        let timer = Timer::after(Arc::clone(&shared.config.clock), timeout);
        timer.limit(self.exchange()).await.unwrap_or(Err(End::Silent))
    }

    async fn exchange(&mut self) -> Result<Established, End> {
        let shared = Arc::clone(&self.shared);
        let config = &shared.config;
        let (slots_max, peer_timeout) = {
            let limits = shared.limits.read();
            (limits.session_slots_max, limits.peer_timeout)
        };
        let mut transcript = Transcript::default();
        let hello = self.expect(Op::Hello, &mut transcript, Hello::decode).await?;
        if !hello.versions.has(codec::VERSION) {
            let codec::Versions { lowest, highest } = hello.versions;
            let own = codec::VERSION;
            let text = format!(
                "the client has versions {lowest} to {highest} of the protocol, but this server has version {own}"
            );
            return Err(End::Refused(Error::Unsupported(text.into())));
        }
        let secrets = shared.secrets.of(&hello.key);
        // This is the secret that the client knows, and whose knowledge this side proves in return.
        let mut secret = None;
        if !secrets.is_empty() {
            let challenge = Challenge { nonce: random(), instance: shared.instance };
            send(&mut transcript, &mut self.output, |out| challenge.encode(out));
            let before = transcript.clone();
            let proof = self.expect(Op::Prove, &mut transcript, codec::decode_proof).await?;
            secret = secrets.iter().find(|secret| Role::Client.has_proven(secret, &proof, &before));
            if secret.is_none() {
                return Err(End::Refused(Error::Denied("the secret differs from the server's".into())));
            }
        }
        if shared.sessions.is_ending() {
            return Err(End::Ending);
        }
        let features = Features(hello.features.0 & Features::ALL);
        let grant = shared.budget.join(hello.credits.bytes, !features.has(Features::CREDIT));
        let mut grant = grant.map_err(End::Refused)?;
        poll_fn(|cx| grant.poll_ready(cx)).await;
        let slots = hello.credits.slots.min(slots_max);
        let new = || Slots::new(slots, config.remembers_outcomes());
        let attached = shared.sessions.attach(hello.session, config.clock.now(), new).await;
        let (owned, is_resumed) = attached.map_err(End::Refused)?;
        let mut capabilities = shared.capabilities;
        if !features.has(Features::RUNS) {
            capabilities.runs_max = 0;
        }
        let credits = Credits { slots: owned.slots.count(), bytes: grant.bytes() };
        let mut welcome = Welcome::new(shared.instance, owned.generation(), credits, capabilities);
        (welcome.is_resumed, welcome.features) = (is_resumed, features);
        welcome.peer_timeout_ms = u32::try_from(peer_timeout.as_millis()).unwrap_or(u32::MAX);
        (welcome.store, welcome.server_name) = (config.store, config.name.clone());
        welcome.closed.clone_from(&config.closed);
        // The subscription begins before the welcome is sent, so that no event after the welcome is
        // missed.
        let events = features.has(Features::EVENTS).then(|| shared.backend.subscribe());
        send(&mut transcript, &mut self.output, |out| welcome.encode(out));
        if let Some(secret) = secret {
            let proof = Role::Server.proof(secret, &transcript);
            send(&mut transcript, &mut self.output, |out| codec::encode_proof(out, &proof, true));
        }
        self.input.payload_bytes_max = shared.payload_bytes_max;
        let timer = Timer::after(Arc::clone(&config.clock), peer_timeout);
        let look = Timer::after(Arc::clone(&config.clock), peer_timeout);
        let (executing, executed) = mpsc::channel(1);
        let wrote_at = config.clock.now();
        let has_crc = features.has(Features::PAYLOAD_CRC);
        Ok(Established {
            owned,
            features,
            has_crc,
            events,
            grant,
            executing,
            executed,
            look,
            announced_at: wrote_at,
            unreceived_bytes: 0,
            peer_timeout,
            timer,
            wrote_at,
        })
    }

    /// Sends queued frames, then waits for one frame of the handshake.
    async fn expect<T>(
        &mut self,
        op: Op,
        transcript: &mut Transcript,
        decode: impl Fn(&codec::Head<'_>) -> Result<T, Error>,
    ) -> Result<T, End> {
        poll_fn(|cx| {
            ready!(self.output.poll_flush(cx, &mut self.stream))?;
            loop {
                if let Some(frame) = self.input.next_frame(|_| None)? {
                    if frame.head.header.op != op || frame.head.header.flags.has(Flags::REPLY) {
                        let text = format!("{:?} instead of {op:?} in the handshake", frame.head.header.op);
                        return Poll::Ready(Err(End::Broken(text)));
                    }
                    transcript.push(frame.head_bytes);
                    return Poll::Ready(decode(&frame.head).map_err(End::Refused));
                }
                if ready!(self.input.poll_fill(cx, &mut self.stream))? == 0 {
                    return Poll::Ready(Err(End::Closed));
                }
            }
        })
        .await
    }
}

// ---- A server's secrets, which can change while it serves: during a change, clients may use
// either of two.

/// The secrets that are in force.
pub(super) struct Secrets {
    /// The secrets for clients that name no key: the current one, and the previous one.
    unnamed: RwLock<Vec<Secret>>,
    named: Vec<(String, Secret)>,
}

impl Secrets {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let unnamed = config.secret.iter().chain(&config.secret_previous).cloned().collect();
        Self { unnamed: RwLock::new(unnamed), named: config.keys.clone() }
    }

    /// Returns the secrets of which a client that names `key` must prove one. If there are none,
    /// every client is accepted.
    pub(super) fn of(&self, key: &[u8]) -> Vec<Secret> {
        let named = self.named.iter().find(|(name, _)| !key.is_empty() && name.as_bytes() == key);
        match named {
            Some((_, secret)) => vec![secret.clone()],
            None => self.unnamed.read().clone(),
        }
    }

    /// Returns whether clients that name no key need a secret.
    pub(super) fn are_required(&self) -> bool {
        !self.unnamed.read().is_empty()
    }
}

impl Server {
    /// Replaces [`ServerConfig::secret`] and [`ServerConfig::secret_previous`] for new handshakes.
    /// Open connections stay open.
    ///
    /// # Errors
    /// Fails if there would be only a previous secret; or no secret at all, although other machines
    /// can reach one of the server's addresses and [`ServerConfig::allow_exposed`] is not set.
    pub fn set_secrets(&self, secret: Option<Secret>, previous: Option<Secret>) -> Result<(), SettingError> {
        let Shared { config, secrets, is_exposed, .. } = &*self.shared;
        let check = SettingError::check;
        let is_exposed = is_exposed.load(Ordering::SeqCst) && !config.allow_exposed;
        check(is_exposed && secret.is_none(), "secret", "is needed: other machines can reach the server")?;
        check(secret.is_none() && previous.is_some(), "secret_previous", "needs a secret beside it")?;
        *secrets.unnamed.write() = secret.into_iter().chain(previous).collect();
        Ok(())
    }
}
