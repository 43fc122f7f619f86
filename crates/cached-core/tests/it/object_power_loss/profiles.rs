//! The features that are enabled in a run.

use cached_journal::disk::simulated::Faults;

/// The enabled features.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: &'static str,
    /// The minimum and maximum number of objects.
    pub objects: (u64, u64),
    pub namespaces: usize,
    pub domains: bool,
    /// Whether the second namespace is in write-through mode, but journaled.
    pub has_through: bool,
    /// The number of changes of write modes per 900 other operations.
    pub mode_changes: u64,
    /// The number of detach and attach commands per 900 other operations.
    pub switches: u64,
    /// The number of the journal's segments.
    pub segments: u64,
    /// The failures of the journal's disk.
    pub faults: Faults,
    /// Whether the power fails; otherwise only the process is killed.
    pub is_power_lost: bool,
    /// Whether the surviving changes are a prefix of the acknowledged ones, over all objects. This
    /// does not hold if changes go only to the store, which may lose changes acknowledged as
    /// *cached*.
    pub is_prefix: bool,
    /// The number of processes, and the limit of operations in each.
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
        // Segments are reused often, and objects are logged again.
        Profile { name: "small", segments: 6, operations: 200, lives: 3, ..base() },
        // Most power losses happen during a recovery.
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
