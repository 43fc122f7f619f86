//! A node of a ring, as a map has it: its name, its addresses, its weight, its lease and its warden, and
//! what a list of nodes must be like to form a ring.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use crate::map::MapError;

/// The maximum number of nodes in a map.
pub const NODES_MAX: usize = 1024;
/// The longest name of a ring or a node, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// The maximum weight of a node.
pub const WEIGHT_MAX: u32 = 10_000;
/// The longest lease of a node, in milliseconds.
pub const LEASE_MS_MAX: u32 = 120_000;
/// The longest host name, which is that of DNS names, and the longest [`Node::host`], in bytes.
const HOST_BYTES_MAX: usize = 253;

/// Checks the name of a ring or of a node: 1 to [`NAME_BYTES_MAX`] ASCII letters, digits and `-_.`.
///
/// # Errors
/// Returns [`MapError`] if the text is not a name.
pub fn check_name(text: &str) -> Result<(), MapError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_letter) {
        true => Ok(()),
        false => Err(MapError::new(format_args!(
            "{text:?} is not a name; expected 1 to {NAME_BYTES_MAX} letters, digits and -_."
        ))),
    }
}

/// Returns the host and the port of an address, `host:port` or `[v6]:port`; `None` if the text is not
/// an address. The host is a name or an IP address without brackets; the port is not 0.
#[must_use]
pub fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(ip) => ip.parse::<Ipv6Addr>().is_ok().then_some((ip, port)),
        None => {
            let is_host = (1..=HOST_BYTES_MAX).contains(&host.len()) && host.bytes().all(is_letter);
            is_host.then_some((host, port))
        }
    }
}

/// The position of a node within [`Map::nodes`](crate::Map::nodes). Another map may have another node there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub u16);

impl NodeIndex {
    /// Returns the position.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// One node of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name, unique within the ring: 1 to 64 bytes of `A-Z a-z 0-9 . _ -`.
    pub name: String,
    /// The address at which other nodes reach it, `host:port`.
    pub ring: String,
    /// The address at which clients reach it, `host:port`.
    pub address: String,
    /// The node's share of the slots relative to other nodes', at most [`WEIGHT_MAX`]. A node with
    /// weight 0 owns nothing, and passes all requests on.
    pub weight: u32,
    /// The version of the map in which the node joined, was last struck off, or was last started on another
    /// host; what it held before is void. It is 0 in a map file, which cannot strike off a node.
    pub term: u64,
    /// The length of the node's lease, in milliseconds, at most [`LEASE_MS_MAX`]; 0 if it needs none to
    /// answer, as in a map file.
    pub lease_ms: u32,
    /// The node that may strike this one off; `None` if none may.
    pub warden: Option<Wardship>,
    /// A text that names the host of the process that has joined or claimed the node last, and no other
    /// host. Empty if it is not known, and in a map file.
    pub host: String,
    /// What that process has said of itself.
    pub process: ProcessState,
}

/// What a process of a node has said of itself last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    /// It has joined.
    #[default]
    Runs,
    /// It has joined, and has ended in order.
    Ended,
    /// It has claimed the node, and joins when an earlier process on another host surely answers no more.
    Claims,
}

/// The right of a warden to strike a node off when the lease of that node is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wardship {
    /// The name of the warden, another node of the map.
    pub warden: String,
    /// The version of the map in which it became the warden.
    pub since: u64,
}

impl Node {
    /// Returns a node as a map file has it, with weight 1: its name, and the addresses for other nodes and for
    /// clients.
    #[must_use]
    pub fn new(name: impl Into<String>, ring: impl Into<String>, address: impl Into<String>) -> Node {
        Node {
            name: name.into(),
            ring: ring.into(),
            address: address.into(),
            weight: 1,
            term: 0,
            lease_ms: 0,
            warden: None,
            host: String::new(),
            process: ProcessState::Runs,
        }
    }

    /// Returns whether the process that has joined last is on another host than `host`, or was, as far as
    /// is known. That of a node that is claimed is elsewhere for every host: who claims it has not joined.
    #[must_use]
    pub fn is_elsewhere(&self, host: &str) -> bool {
        self.process == ProcessState::Claims || !self.host.is_empty() && self.host != host
    }

    /// Returns whether the process that has joined last is on this host, and has not ended in order. A host
    /// has only one process of the node that has joined.
    #[must_use]
    pub fn runs_on(&self, host: &str) -> bool {
        self.process == ProcessState::Runs && self.host == host
    }

    /// Checks the addresses.
    pub(crate) fn check_addresses(&self) -> Result<(), MapError> {
        for (key, text) in [("ring", &self.ring), ("address", &self.address)] {
            if host_and_port(text).is_none() {
                let expected = "expected HOST:PORT or [V6]:PORT";
                return Err(MapError::new(format_args!("{key}: is {text:?}; {expected}")));
            }
        }
        Ok(())
    }
}

/// Checks everything of a map but its owners.
pub(crate) fn check_nodes(ring: &str, nodes: &[Node]) -> Result<(), MapError> {
    check_name(ring)?;
    for node in nodes {
        let Node { name, weight, lease_ms, host, .. } = node;
        check_name(name)?;
        node.check_addresses().map_err(|error| MapError::new(format_args!("node {name}: {error}")))?;
        if *weight > WEIGHT_MAX {
            let limit = format_args!("it must be at most {WEIGHT_MAX}");
            return Err(MapError::new(format_args!("node {name}: weight: is {weight}; {limit}")));
        }
        if *lease_ms > LEASE_MS_MAX {
            let limit = format_args!("it must be at most {LEASE_MS_MAX}");
            return Err(MapError::new(format_args!("node {name}: lease_ms: is {lease_ms}; {limit}")));
        }
        if host.len() > HOST_BYTES_MAX || host.contains(char::is_control) {
            let limit =
                format_args!("it must have at most {HOST_BYTES_MAX} bytes, and no control characters");
            return Err(MapError::new(format_args!("node {name}: host: is {host:?}; {limit}")));
        }
    }
    if !(1..=NODES_MAX).contains(&nodes.len()) {
        let count = nodes.len();
        return Err(MapError::new(format_args!("the map has {count} nodes; it must have 1 to {NODES_MAX}")));
    }
    if let Some(pair) = nodes.windows(2).find(|pair| pair[0].name >= pair[1].name) {
        let name = &pair[1].name;
        return Err(MapError::new(format_args!("node {name} occurs twice or is not in order of names")));
    }
    let mut addresses: Vec<(&str, &Node)> =
        nodes.iter().flat_map(|node| [(&*node.ring, node), (&*node.address, node)]).collect();
    addresses.sort_by_key(|(address, _)| *address);
    if let Some(pair) = addresses.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let [(address, one), (_, other)] = [pair[0], pair[1]];
        return Err(MapError::new(match one.name == other.name {
            true => format!("node {}: ring and address are both {address}; they must differ", one.name),
            false => format!(
                "nodes {} and {} have the same address {address}; each address must occur once",
                one.name, other.name
            ),
        }));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a node as a map file has it, with addresses of its own.
    pub(crate) fn node(name: &str, weight: u32) -> Node {
        Node { weight, ..Node::new(name, format!("{name}:1"), format!("{name}:2")) }
    }

    #[test]
    fn names_and_addresses_are_checked() {
        for text in ["a", "node-1.example_x", &"n".repeat(64)] {
            assert_eq!(check_name(text), Ok(()));
        }
        for text in ["", "a b", "a/b", "a|b", "ü", &"n".repeat(65)] {
            assert!(check_name(text).is_err(), "{text}");
        }
        for (text, parts) in [
            ("h:1", ("h", 1)),
            ("10.0.0.1:65535", ("10.0.0.1", 65535)),
            ("[::1]:11311", ("::1", 11311)),
            ("cache_1.example:7", ("cache_1.example", 7)),
        ] {
            assert_eq!(host_and_port(text), Some(parts));
        }
        for text in ["", "h", "h:0", "h:65536", ":1", "::1:1", "[h]:1", "a b:1", "h|x:1", "[::1:1"] {
            assert_eq!(host_and_port(text), None, "{text}");
        }
    }
}
