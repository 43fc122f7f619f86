//! What a client is told at its start.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Clock, SystemClock};

use crate::auth::Secret;
use crate::codec::{HANDSHAKE_NAME_BYTES_MAX, KEY_BYTES_MAX};
use crate::stream::{Address, Connector};

/// The settings of a [`super::SynapseBlocker`].
#[derive(Clone)]
#[non_exhaustive]
pub struct ClientConfig {
    /// Where the server is.
    pub address: Address,
    /// How to get there, if not by the address, which is then only a name.
    pub connector: Option<Connector>,
    /// What server and client both know. With it, a server that cannot prove that it knows it is refused.
    pub secret: Option<Secret>,
    /// How many connections to keep. 2.
    pub connections: u16,
    /// How many requests may be under way per connection, if the server grants so many. 64.
    pub slots: u32,
    /// How many bytes of requests and answers may be under way per connection, if the server grants so
    /// many. 32 MiB.
    pub bytes: u64,
    /// How many calls may wait for a slot, per connection; one more is `Retryable`. 65 536.
    pub waiting_max: usize,
    /// Protect payloads by a CRC-32, both ways.
    pub payload_crc: bool,
    /// How long connecting and greeting may take. 5 s.
    pub connect_timeout: Duration,
    /// After so long a silence the server is asked whether it is alive. 5 s.
    pub keep_alive: Duration,
    /// A server that has been silent for so long is dead: connect again. 15 s.
    pub peer_timeout: Duration,
    /// The first pause between two attempts to connect; each is twice the one before. 10 ms.
    pub backoff_min: Duration,
    /// The longest pause between two attempts to connect. 2 s.
    pub backoff_max: Duration,
    /// How long requests wait for a connection before they fail. 30 s.
    pub reconnect_timeout: Duration,
    /// How long a call may take that has no deadline of its own. `None`: as long as it takes.
    pub call_timeout: Option<Duration>,
    /// What this client is called, for the server's log.
    pub name: String,
    /// Which of the server's secrets `secret` is; empty: the only one.
    pub key: String,
    /// How many bytes of buffers for large payloads are kept to be used again. 32 MiB.
    pub payload_pool_bytes_max: usize,
    /// The clock that deadlines are given by; timeouts are taken from it as well.
    pub clock: Arc<dyn Clock>,
    /// Where the client's name and the spread of its pauses come from, so that a run can be repeated. `None`:
    /// from the operating system. Two clients with one seed take each other's sessions.
    #[doc(hidden)]
    pub seed: Option<u64>,
    /// Sends changes again even if the server has forgotten whether they were done.
    #[cfg(feature = "sabotage")]
    pub guesses_outcomes: bool,
}

impl ClientConfig {
    /// The defaults, for the server at `address`.
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self {
            address,
            connector: None,
            secret: None,
            connections: 2,
            slots: 64,
            bytes: 32 << 20,
            waiting_max: 65_536,
            payload_crc: false,
            connect_timeout: Duration::from_secs(5),
            keep_alive: Duration::from_secs(5),
            peer_timeout: Duration::from_secs(15),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(2),
            reconnect_timeout: Duration::from_secs(30),
            call_timeout: None,
            name: String::new(),
            key: String::new(),
            payload_pool_bytes_max: 32 << 20,
            clock: Arc::new(SystemClock),
            seed: None,
            #[cfg(feature = "sabotage")]
            guesses_outcomes: false,
        }
    }

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// One line that says what to mend.
    pub fn check(&self) -> Result<(), String> {
        let wrong = |is_wrong: bool, text: &str| if is_wrong { Err(text.to_owned()) } else { Ok(()) };
        wrong(!(1..=64).contains(&self.connections), "connections must be 1 to 64")?;
        wrong(!(1..=65_536).contains(&self.slots), "slots must be 1 to 65536")?;
        wrong(self.keep_alive.is_zero(), "keep_alive must be above 0")?;
        wrong(self.peer_timeout <= self.keep_alive, "peer_timeout must be above keep_alive")?;
        wrong(self.backoff_min.is_zero(), "backoff_min must be above 0")?;
        wrong(self.backoff_max < self.backoff_min, "backoff_max must be at least backoff_min")?;
        wrong(self.key.len() > KEY_BYTES_MAX, "key must be at most 64 bytes long")?;
        wrong(self.name.len() > HANDSHAKE_NAME_BYTES_MAX, "name must be at most 255 bytes long")?;
        wrong(self.call_timeout.is_some_and(|timeout| timeout.is_zero()), "call_timeout must be above 0")?;
        wrong(self.connect_timeout.is_zero(), "connect_timeout must be above 0")
    }

    pub(super) fn guesses(&self) -> bool {
        #[cfg(feature = "sabotage")]
        return self.guesses_outcomes;
        #[cfg(not(feature = "sabotage"))]
        false
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("address", &self.address)
            .field("secret", &self.secret)
            .field("connections", &self.connections)
            .field("slots", &self.slots)
            .field("bytes", &self.bytes)
            .field("payload_crc", &self.payload_crc)
            .finish_non_exhaustive()
    }
}
