//! The servers against which the two checkers run: how each is started, and the load that
//! accompanies the checks.

/// A server and the load on it.
#[derive(Debug, Clone, Copy)]
pub struct Configuration {
    /// The name.
    pub name: &'static str,
    /// The arguments of a server whose values are checked.
    pub args: &'static str,
    /// The arguments of two servers whose replies are compared.
    pub compared_args: &'static str,
    /// The number of connections that announce values and do not send them completely.
    pub half_sent: usize,
    /// The number of connections that store without waiting for replies.
    pub floods: usize,
    /// Whether all items are removed from time to time, immediately and with a delay.
    pub flushes: bool,
    /// Whether memory is ample, or nothing is evicted, so that an acknowledged value stays until it
    /// is changed, expires or is flushed.
    pub lossless: bool,
    /// The maximum size of a value.
    pub value_bytes_max: usize,
}

impl Configuration {
    /// Returns whether all clients are checked or compared.
    pub fn is_alone(&self) -> bool {
        self.lossless && !self.flushes && self.half_sent == 0 && self.floods == 0
    }
}

const USUAL: Configuration = Configuration {
    name: "usual",
    args: "-m 256 -t 4",
    compared_args: "-m 64 -t 4",
    half_sent: 0,
    floods: 0,
    flushes: false,
    lossless: true,
    value_bytes_max: 100_000,
};

/// All configurations.
pub const ALL: &[Configuration] = &[
    USUAL,
    // This server evicts continually.
    Configuration { name: "small", args: "-m 2 -t 2", compared_args: "-m 8 -t 2", lossless: false, ..USUAL },
    // A refused set gets an error reply, so acknowledged values stay.
    Configuration {
        name: "full",
        args: "-m 2 -M -t 2",
        compared_args: "-m 64 -M -t 2",
        half_sent: 4,
        value_bytes_max: 20_000,
        ..USUAL
    },
    Configuration {
        name: "threads",
        args: "-m 256 -t 16",
        compared_args: "-m 64 -t 16",
        floods: 2,
        lossless: false,
        ..USUAL
    },
    Configuration {
        name: "flushes",
        args: "-m 256 -t 4 --debug-clock",
        flushes: true,
        half_sent: 4,
        ..USUAL
    },
    Configuration {
        name: "half-sent",
        args: "-m 24 -t 3 -I 2m",
        compared_args: "-m 64 -t 3 -I 2m",
        half_sent: 60,
        lossless: false,
        value_bytes_max: 1_000_000,
        ..USUAL
    },
    Configuration {
        name: "floods",
        args: "-m 32 -t 2 -R 5 -o eviction_policy=lru --debug-clock",
        compared_args: "-m 64 -t 2 -R 5",
        floods: 4,
        half_sent: 10,
        flushes: true,
        lossless: false,
        ..USUAL
    },
];

/// Returns the configuration with this name.
pub fn named(name: &str) -> Option<&'static Configuration> {
    ALL.iter().find(|configuration| configuration.name == name)
}
