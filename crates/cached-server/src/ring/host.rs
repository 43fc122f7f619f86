//! The text by which a node's document names the host of its process.

use sha2::{Digest, Sha256};
use std::fs;

/// The files with a number of the host: that of its boot, and that of its system, because the service
/// manager may hide the first.
const IDS: [&str; 2] = ["/proc/sys/kernel/random/boot_id", "/etc/machine-id"];

/// The link that names the network of this process: containers of a host may share its numbers, and have
/// networks of their own.
const NETWORK: &str = "/proc/self/ns/net";

/// The text before the number of the host in what is hashed. It never changes, because the names of all hosts
/// would change with it.
const KEY: &str = "host of a node in a ring: ";

/// Returns a text that names the host of this process, and no other one that runs; empty if it is not known.
/// Of two processes with the same text only one can listen at an address.
pub(super) fn host() -> String {
    let mut ids = IDS.iter().filter_map(|file| fs::read_to_string(file).ok());
    let id = ids.find(|id| !["", "uninitialized"].contains(&id.trim()));
    let network = fs::read_link(NETWORK).ok();
    id.zip(network).map_or_else(String::new, |(id, network)| format!("{} {}", hashed(&id), network.display()))
}

/// Returns what stands for a number of the host in the registry: a machine ID should not leave its host
/// (`machine-id(5)`).
fn hashed(id: &str) -> String {
    let hash = Sha256::digest(format!("{KEY}{}", id.trim()));
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_by_the_hash_of_a_number_that_stays_the_same() {
        // If a new build hashed in another way, an upgraded node would seem to be on another host.
        assert_eq!(hashed("0123456789abcdef0123456789abcdef\n"), "3a83e674d4ff738e9d795ce5de5a15a6");
        let is_of = |file: &str| fs::read_to_string(file).is_ok_and(|id| host().starts_with(&hashed(&id)));
        assert!(IDS.into_iter().any(is_of), "{}", host());
    }
}
