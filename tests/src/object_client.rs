//! The configuration of the tests' object clients, which wait for a server that is slow because the
//! machine is busy.

use crate::conn::DEADLINE;
use synapse::{Address, ClientConfig};

/// Returns the settings of a client of the server at `address`.
#[must_use]
pub fn config(address: Address) -> ClientConfig {
    let mut config = ClientConfig::new(address);
    // The time limits exceed the default, after which a server counts as unavailable.
    (config.connect_timeout, config.peer_timeout) = (DEADLINE, DEADLINE);
    config
}
