//! What is enabled in a run.

use cached_journal::disk::simulated::Faults;

/// See the module.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: &'static str,
    /// The number of objects, from and to.
    pub objects: (u64, u64),
    pub namespaces: usize,
    pub domains: bool,
    /// Whether the second namespace is written through, and journaled all the same.
    pub has_through: bool,
    /// How often write modes change, beside 900 other operations.
    pub mode_changes: u64,
    /// How often the cache is taken out of the path of requests, or put back, beside 900 other operations.
    pub switches: u64,
    /// The journal's segments.
    pub segments: u64,
    /// How the journal's disk fails.
    pub faults: Faults,
    /// Whether the power goes, or the process alone is killed.
    pub is_power_lost: bool,
    /// Whether what survives is a prefix of what was acknowledged, over all objects. Not where changes go to the
    /// store alone, which may lose what was acknowledged as *cached*.
    pub is_prefix: bool,
    /// The number of processes, each with fewer operations than this.
    pub lives: u64,
    pub operations: u64,
}

impl Profile {
    pub fn has_faults(&self) -> bool {
        self.faults.write + self.faults.sync + self.faults.full > 0
    }
}

fn base() -> Profile {
    Profile {
        name: "back",
        objects: (2, 4),
        namespaces: 1,
        domains: false,
        has_through: false,
        mode_changes: 0,
        switches: 0,
        segments: 8,
        faults: Faults::default(),
        is_power_lost: true,
        is_prefix: true,
        lives: 4,
        operations: 60,
    }
}

/// Returns all profiles, the narrow ones first.
pub fn profiles() -> Vec<Profile> {
    vec![
        Profile { name: "one", objects: (1, 1), ..base() },
        base(),
        Profile { name: "killed", is_power_lost: false, ..base() },
        Profile { name: "spaces", objects: (3, 5), namespaces: 2, domains: true, ..base() },
        Profile {
            name: "through",
            objects: (2, 4),
            namespaces: 2,
            has_through: true,
            is_prefix: false,
            ..base()
        },
        Profile {
            name: "switched",
            objects: (2, 4),
            namespaces: 2,
            mode_changes: 60,
            is_prefix: false,
            ..base()
        },
        Profile {
            name: "detached",
            objects: (2, 4),
            namespaces: 2,
            mode_changes: 20,
            switches: 80,
            is_prefix: false,
            ..base()
        },
        // Segments are used again and again, and objects are logged again.
        Profile { name: "small", segments: 6, operations: 200, lives: 3, ..base() },
        // Most cuts fall into a recovery.
        Profile { name: "crashing", lives: 10, operations: 20, ..base() },
        Profile {
            name: "failing",
            faults: Faults { write: 20, sync: 30, full: 50 },
            is_prefix: false,
            operations: 120,
            ..base()
        },
    ]
}
