//! What an elected writer requires of the other tables: a registry that can elect, and an address
//! at which other hosts and clients reach this one.

use cached_config::{ConfigError, ElectionTable, ObjectsTable, SynapseTable, invalid, require};
use cached_core::object::Writer;
use cached_registry::RegistryTable;
use cached_registry::election::candidate_key;
use std::net::IpAddr;
use synapse::Address;

/// Returns whether this process takes part in an election.
#[must_use]
pub fn is_elected(objects: &ObjectsTable) -> bool {
    objects.writer == Writer::Elected
}

/// Checks the registry and, of a process that takes part in an election, the other tables that it
/// depends on.
///
/// # Errors
/// The first key with an invalid value.
pub fn check_election(
    objects: Option<&ObjectsTable>,
    registry: Option<&RegistryTable>,
    synapse: Option<&SynapseTable>,
) -> Result<(), ConfigError> {
    registry.map_or(Ok(()), RegistryTable::check)?;
    let Some(objects) = objects.filter(|objects| is_elected(objects)) else { return Ok(()) };
    match registry {
        None => {
            let why = "is \"elected\", which needs a [registry] that all hosts share; add it, for example kind = \"store\"";
            return invalid("objects.writer", why);
        }
        Some(RegistryTable::File(_)) => {
            let why = "is \"file\", which cannot elect a writer; with writer = \"elected\" it must be store, etcd or disk";
            return invalid("registry.kind", why);
        }
        Some(_) => {}
    }
    let node = objects.election.clone().unwrap_or_default().node();
    require(candidate_key(&node).is_ok(), "objects.election.node", || {
        format!("is {node:?}; it must consist of letters, digits and -_.:, and not be too long")
    })?;
    election_address(objects, synapse).map(drop)
}

/// Returns the address at which other hosts and clients reach this host.
///
/// # Errors
/// The key to set, if the address cannot be derived.
pub(crate) fn election_address(
    objects: &ObjectsTable,
    synapse: Option<&SynapseTable>,
) -> Result<String, ConfigError> {
    const KEY: &str = "objects.election.address";
    let default = ElectionTable::default();
    let election = objects.election.as_ref().unwrap_or(&default);
    let told = if election.address.is_empty() {
        let listening = synapse.and_then(|synapse| synapse.listen.first());
        let Some(listening) = listening else {
            return invalid(
                KEY,
                "is missing; without [synapse] it must be set: HOST:PORT, as other hosts reach this one",
            );
        };
        listening
    } else {
        &election.address
    };
    let parsed: Result<Address, _> = told.parse();
    let Ok(Address::Tcp(address)) = parsed else {
        return invalid(KEY, format!("is {told:?}; it must be HOST:PORT, as other hosts reach this one"));
    };
    let (host, port) = address.rsplit_once(':').unwrap_or((&address, ""));
    let host: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
    let is_told = port != "0" && !host.is_ok_and(|host| host.is_unspecified());
    require(is_told, KEY, || {
        format!(
            "is {told:?}, which other hosts cannot connect to; it must be HOST:PORT, as they reach this one"
        )
    })?;
    Ok(address)
}
