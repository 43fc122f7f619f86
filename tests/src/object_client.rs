//! How the tests' clients of objects are configured: a server that is slow, because the machine is, is waited for.

use crate::conn::DEADLINE;
use synapse::{Address, ClientConfig};

/// Returns the settings of a client of the server at `address`.
#[must_use]
pub fn config(address: Address) -> ClientConfig {
    let mut config = ClientConfig::new(address);
    // Not the seconds of the defaults, after which a server counts as away.
    (config.connect_timeout, config.peer_timeout) = (DEADLINE, DEADLINE);
    config
}
