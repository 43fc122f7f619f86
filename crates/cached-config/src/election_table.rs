//! `[objects.election]`: the election of the one host that writes to the store, and the settings that
//! cannot be used with it. The table has an effect only with `writer = "elected"`.

use std::ops::RangeInclusive;
use std::time::Duration;

use cached_core::object::Writer;
use serde::{Deserialize, Serialize};

use crate::backend::BackendTable;
use crate::config_file::{ConfigError, require, within};
use crate::journal_table::DurabilityName;
use crate::objects::ObjectsTable;
use crate::with_defaults;

with_defaults! {
    /// The table `[objects.election]`. An empty string means the default.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields, expecting = "a table")]
    pub struct ElectionTable {
        /// The name of this host among the candidates; if empty, the host's name.
        pub node: String = String::new(),
        /// The address at which other hosts and clients reach this host, `HOST:PORT`. If empty, it
        /// is the first address of the synapse listener, which then must not be the address of all
        /// interfaces.
        pub address: String = String::new(),
        /// The time without a renewal after which another host takes over. It must be the same on
        /// all hosts.
        pub lease_secs: u64 = 10,
    }
}

const LEASE_SECS: RangeInclusive<u64> = 1..=600;

/// Why nothing is acknowledged as *journaled* with an elected writer.
const NOT_JOURNALED: &str = "with writer = \"elected\" the host that takes over does not have the journal, so flushes \
                             promise *stored*";

impl ElectionTable {
    /// Returns the lease.
    #[must_use]
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_secs)
    }

    /// Returns the name of this host among the candidates.
    #[must_use]
    pub fn node(&self) -> String {
        if self.node.is_empty() { synapse::host_name() } else { self.node.clone() }
    }
}

/// Checks the requirements of an elected writer on `[objects]`. Without an elected writer, checks
/// that the table does not exist.
pub(crate) fn check_election(objects: &ObjectsTable) -> Result<(), ConfigError> {
    let election = objects.election.as_ref();
    if objects.writer != Writer::Elected {
        return require(election.is_none(), "objects.election", || {
            "has no effect without writer = \"elected\"; set that, or remove the table".into()
        });
    }
    let stored = |is_journaled: bool, key: &str| {
        require(!is_journaled, key, || format!("is \"journaled\"; it must be \"cached\": {NOT_JOURNALED}"))
    };
    stored(objects.durability == DurabilityName::Journaled, "objects.durability")?;
    for (index, table) in objects.namespaces.iter().enumerate() {
        let key = format!("objects.namespaces[{index}].durability");
        stored(table.durability == Some(DurabilityName::Journaled), &key)?;
    }
    let own = match &objects.backend {
        Some(BackendTable::Memory(_)) => "\"memory\", which other hosts cannot open",
        Some(BackendTable::File(_)) => {
            "\"file\", which only one process can open; run synapsed over the directory"
        }
        _ => "",
    };
    require(own.is_empty(), "objects.backend.kind", || {
        format!(
            "is {own}; with writer = \"elected\" it must be a store that all hosts share: rados, s3 or synapse"
        )
    })?;
    election
        .map_or(Ok(()), |table| within("objects.election.lease_secs", table.lease_secs, LEASE_SECS).map(drop))
}
