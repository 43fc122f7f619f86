//! The gate: the phase of a connection before its client is authenticated.
//!
//! A gate is a phase like any other, so it costs the requests of an authenticated connection
//! nothing. Each SASL frame leads through the gate again: as in memcached, a failed authentication
//! revokes an earlier successful one.

use super::{Connection, Gate, Phase, StopReason};
use crate::connections::WrongPassword;
use crate::exec::Executor;
use crate::settings::MEMCACHED_VERSION;
use cached_proto::binary::sasl::{self, SaslCommand};
use cached_proto::binary::{Head, Status, encode_error, encode_response, encode_version};
use cached_proto::text::auth::{self, Password};
use cached_proto::{Decoded, Protocol, reply};

/// After this many wrong passwords, the connection is closed.
const FAILURES_MAX: u8 = 10;

/// The outcome of one request at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passage {
    /// The client is authenticated.
    Open,
    /// The client is not authenticated, and may try again.
    Shut,
    /// The connection is closed.
    Close,
}

impl Connection {
    /// Requires the client to authenticate before any other request.
    pub(crate) fn require_authentication(&mut self) {
        self.phase = Phase::Gate(Gate::default());
    }

    /// Executes the request at the front of the input for a client that is not authenticated.
    /// Returns the number of bytes consumed, or the reason why execution stopped.
    #[cold]
    pub(super) fn pass_gate(
        &mut self,
        executor: &mut Executor<'_>,
        input: &[u8],
    ) -> Result<usize, StopReason> {
        let Phase::Gate(mut gate) = self.phase else { return Ok(0) };
        let Some(&first) = input.first() else { return Ok(0) };
        let skipped = input.len().min(gate.swallow);
        if skipped > 0 {
            gate.swallow -= skipped;
            self.phase = Phase::Gate(gate);
            return Ok(skipped);
        }
        let (used, passage) = match *self.protocol.get_or_insert_with(|| Protocol::detect(first)) {
            Protocol::Text => self.text_gate(&mut gate, executor, input),
            Protocol::Binary => self.sasl_gate(&mut gate, executor, input),
        }?;
        self.phase = match passage {
            Passage::Open => self.idle_phase(executor.shared),
            Passage::Shut => Phase::Gate(gate),
            Passage::Close => {
                self.info.set_broken();
                return Err(StopReason::Close);
            }
        };
        Ok(used)
    }

    fn text_gate(
        &self,
        gate: &mut Gate,
        executor: &mut Executor<'_>,
        input: &[u8],
    ) -> Result<(usize, Passage), StopReason> {
        let Some(credentials) = &executor.shared.settings.auth.text else { return Err(StopReason::Close) };
        match auth::decode(input) {
            Decoded::Request { request: Password { user, password }, consumed } => {
                executor.counters.auth_cmds.bump();
                if credentials.accept(user, password) {
                    executor.out.bytes.extend_from_slice(reply::STORED);
                    return Ok((consumed, Passage::Open));
                }
                executor.out.bytes.extend_from_slice(reply::AUTH_FAILURE);
                Ok((consumed, self.fail(gate, executor)))
            }
            Decoded::Refused(refused) => {
                executor.out.bytes.extend_from_slice(refused.reply);
                Ok((refused.consumed, Passage::Shut))
            }
            Decoded::Incomplete => Err(StopReason::Input),
            Decoded::Close => Err(StopReason::Close),
        }
    }

    fn sasl_gate(
        &self,
        gate: &mut Gate,
        executor: &mut Executor<'_>,
        input: &[u8],
    ) -> Result<(usize, Passage), StopReason> {
        if executor.shared.settings.auth.sasl.is_none() {
            return Err(StopReason::Close);
        }
        match sasl::decode(input) {
            Decoded::Request { request, consumed } => {
                Ok((consumed, self.sasl_request(gate, executor, &request.head, &request.command)))
            }
            Decoded::Refused(refused) => {
                refused.reply.encode(&mut executor.out.bytes);
                gate.swallow = refused.swallow;
                Ok((refused.consumed, if refused.close { Passage::Close } else { Passage::Shut }))
            }
            Decoded::Incomplete => Err(StopReason::Input),
            Decoded::Close => Err(StopReason::Close),
        }
    }

    fn sasl_request(
        &self,
        gate: &mut Gate,
        executor: &mut Executor<'_>,
        head: &Head,
        command: &SaslCommand<'_>,
    ) -> Passage {
        let out = &mut executor.out.bytes;
        let respond = |out: &mut Vec<u8>, status, text: &[u8]| {
            encode_response(out, head, status, 0, b"", b"", text.len());
            out.extend_from_slice(text);
        };
        let was_started = std::mem::take(&mut gate.started);
        let data = match command {
            SaslCommand::Version => {
                encode_version(out, head, MEMCACHED_VERSION);
                gate.started = was_started;
                return Passage::Shut;
            }
            SaslCommand::Mechanisms => {
                respond(out, Status::Ok, sasl::MECHANISMS);
                gate.started = was_started;
                return Passage::Shut;
            }
            SaslCommand::Start { mechanism, data } => {
                let is_plain = mechanism.eq_ignore_ascii_case(sasl::MECHANISMS);
                if is_plain && data.is_empty() {
                    respond(out, Status::AuthContinue, b"");
                    gate.started = true;
                    return Passage::Shut;
                }
                is_plain.then_some(*data)
            }
            SaslCommand::Step { data } => was_started.then_some(*data),
        };
        executor.counters.auth_cmds.bump();
        let sent = data.and_then(sasl::plain);
        let credentials = executor.shared.settings.auth.sasl.as_ref();
        if let (Some((user, password)), Some(credentials)) = (sent, credentials)
            && credentials.accept(user, password)
        {
            respond(out, Status::Ok, b"Authenticated");
            return Passage::Open;
        }
        encode_error(out, head, Status::AuthError);
        self.fail(gate, executor)
    }

    /// Counts and logs a wrong password. The connection is closed once it, or the address of its
    /// client, has sent too many.
    fn fail(&self, gate: &mut Gate, executor: &Executor<'_>) -> Passage {
        executor.counters.auth_errors.bump();
        gate.failures += 1;
        let (shared, peer) = (executor.shared, self.info.client());
        match shared.attempts.count(self.info.network(), shared.clock.now_secs()) {
            WrongPassword::Usual => {
                tracing::warn!(peer, failures = gate.failures, "wrong user or password");
                if gate.failures < FAILURES_MAX { Passage::Shut } else { Passage::Close }
            }
            WrongPassword::TooMany => {
                tracing::warn!(
                    peer,
                    "too many wrong passwords come from this address: each ends its connection"
                );
                Passage::Close
            }
        }
    }
}
