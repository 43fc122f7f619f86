//! The limits of a server that can change while it serves.

use std::time::Duration;

use super::Server;
use super::config::ServerConfig;
use connection::{Limits, SettingError};

/// The limits of a [`Server`] that can change while it serves. [`ServerConfig`] explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are those of `ServerConfig`")]
pub struct ServerLimits {
    pub connections_max: u32,
    pub peer_connections_max: Option<u32>,
    pub sessions_max: u32,
    pub session_slots_max: u32,
    pub session_bytes_max: u64,
    pub bytes_max: u64,
    pub peer_timeout: Duration,
    pub handshake_timeout: Duration,
    pub session_linger: Duration,
}

impl ServerConfig {
    /// Returns the limits that can change while a server with these settings serves.
    #[must_use]
    pub fn limits(&self) -> ServerLimits {
        ServerLimits {
            connections_max: self.connections_max,
            peer_connections_max: self.peer_connections_max,
            sessions_max: self.sessions_max,
            session_slots_max: self.session_slots_max,
            session_bytes_max: self.session_bytes_max,
            bytes_max: self.bytes_max,
            peer_timeout: self.peer_timeout,
            handshake_timeout: self.handshake_timeout,
            session_linger: self.session_linger,
        }
    }

    fn with_limits(&self, limits: &ServerLimits) -> ServerConfig {
        let ServerLimits {
            connections_max,
            peer_connections_max,
            sessions_max,
            session_slots_max,
            session_bytes_max,
            bytes_max,
            peer_timeout,
            handshake_timeout,
            session_linger,
        } = *limits;
        ServerConfig {
            connections_max,
            peer_connections_max,
            sessions_max,
            session_slots_max,
            session_bytes_max,
            bytes_max,
            peer_timeout,
            handshake_timeout,
            session_linger,
            ..self.clone()
        }
    }
}

impl ServerLimits {
    pub(super) fn connections(&self) -> Limits {
        let peer_connections_max = self.peer_connections_max.unwrap_or(self.connections_max.div_ceil(2));
        Limits { connections_max: self.connections_max, peer_connections_max }
    }
}

impl Server {
    /// Returns the limits that are in force.
    #[must_use]
    pub fn limits(&self) -> ServerLimits {
        *self.shared.limits.read()
    }

    /// Changes the limits. No client is disconnected: what is above a limit that has become lower ends or is
    /// returned by itself. Timeouts hold for connections that begin from now on, `session_slots_max` for sessions
    /// that do; the bytes are distributed anew at once, and count until clients have accepted their smaller grants.
    ///
    /// # Errors
    /// The limit that cannot work with the other settings, and what would be right; then nothing has changed.
    pub fn set_limits(&self, limits: ServerLimits) -> Result<(), SettingError> {
        let shared = &*self.shared;
        shared.config.with_limits(&limits).check()?;
        shared.check_session_bytes(limits.session_bytes_max)?;
        let mut in_force = shared.limits.write();
        let before = *in_force;
        // First, so that no more connections than these are accepted meanwhile.
        in_force.connections_max = limits.connections_max;
        let connections = limits.connections_max.max(shared.connections.count());
        if let Err(needed) = shared.budget.change(limits.bytes_max, limits.session_bytes_max, connections) {
            *in_force = before;
            return Err(too_few_bytes(needed, connections));
        }
        *in_force = limits;
        drop(in_force);
        shared.sessions.set_limits(limits.sessions_max, limits.session_linger);
        Ok(())
    }
}

/// Returns the error of a budget of which `needed` bytes would be the least.
pub(super) fn too_few_bytes(needed: u64, connections: u32) -> SettingError {
    let problem = format!(
        "must be at least {needed}: two of the largest requests, and a share for each of {connections} connections"
    );
    SettingError::new("bytes_max", problem)
}
