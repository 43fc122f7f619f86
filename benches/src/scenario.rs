//! The scenarios of the comparison, and the required values.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::keyspace::{KeySpace, ValueBytes, Verify};
use crate::load::{Arrival, ArrivalKind, KeyChoice, Limit, LoadSpec, Target};
use crate::protocol::Protocol;

/// The length of every key, in bytes.
pub const KEY_BYTES: usize = 20;

/// The quantity that a scenario compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// CPU time of the server per key, in a closed loop.
    CpuPerKey,
    /// 99th percentile of the latency, in an open loop at half of the maximum rate of the slower
    /// server.
    TailLatency,
}

/// A load that both servers get.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Scenario {
    /// The name in all outputs.
    pub name: &'static str,
    /// The compared quantity.
    pub measure: Measure,
    /// The protocol.
    pub protocol: Protocol,
    /// Connections.
    pub connections: usize,
    /// Requests sent together.
    pub pipeline: usize,
    /// The number of keys in each get.
    pub keys_per_get: usize,
    /// The share of requests that are sets.
    pub set_share: f64,
    /// Value size.
    pub value_bytes: usize,
    /// The number of keys, all of which are preloaded.
    pub keys: u64,
    /// The Zipf exponent of the key frequencies; without it, all keys are equally frequent.
    pub zipf: Option<f64>,
    /// The maximum acceptable ratio of cached to memcached.
    pub bar: Option<f64>,
    /// The required ratio after the canned server's figure has been subtracted from both figures.
    pub bar_over_floor: Option<f64>,
    /// Through TLS.
    pub is_tls: bool,
    /// Whether the scenario runs only if all scenarios are requested.
    pub is_extra: bool,
}

const BASE: Scenario = Scenario::BASE;

/// Like [`BASE`], with TLS.
const TLS: Scenario = Scenario { is_tls: true, bar: Some(0.8), ..BASE };

/// Like [`BASE`], without a required value, and run only if all scenarios are requested.
const EXTRA: Scenario = Scenario { is_extra: true, ..BASE };

/// All scenarios. Those with a required value come first.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "one get", bar: Some(0.92), bar_over_floor: Some(0.65), ..BASE },
    Scenario { name: "one set", set_share: 1.0, bar: Some(0.92), bar_over_floor: Some(0.65), ..BASE },
    Scenario { name: "16 gets pipelined", pipeline: 16, bar: Some(0.70), ..BASE },
    Scenario { name: "multiget of 16", keys_per_get: 16, bar: Some(0.65), ..BASE },
    Scenario { name: "multiget of 100", keys_per_get: 100, bar: Some(0.35), ..BASE },
    Scenario { name: "16 pipelined 90/10", pipeline: 16, set_share: 0.1, bar: Some(0.70), ..BASE },
    Scenario { name: "1000 connections", connections: 1_000, bar: Some(0.80), ..BASE },
    Scenario { name: "4 KiB values", value_bytes: 4 << 10, keys: 20_000, bar: Some(0.85), ..BASE },
    Scenario { name: "64 KiB values", value_bytes: 64 << 10, keys: 2_000, bar: Some(1.0), ..BASE },
    Scenario { name: "p99 open loop", measure: Measure::TailLatency, bar: Some(1.1), ..BASE },
    Scenario { name: "TLS: one get", ..TLS },
    Scenario { name: "TLS: 16 pipelined", pipeline: 16, ..TLS },
    Scenario { name: "TLS: 4 KiB", value_bytes: 4 << 10, keys: 20_000, ..TLS },
    Scenario { name: "TLS: 16 x 4 KiB", value_bytes: 4 << 10, keys: 20_000, pipeline: 16, ..TLS },
    Scenario { name: "TLS: 64 KiB", value_bytes: 64 << 10, keys: 2_000, ..TLS },
    Scenario { name: "TLS: 16 x 64 KiB", value_bytes: 64 << 10, keys: 2_000, pipeline: 16, ..TLS },
    Scenario { name: "one get, Zipf 1.0", zipf: Some(1.0), ..EXTRA },
    Scenario { name: "90/10, one at a time", set_share: 0.1, ..EXTRA },
    Scenario { name: "one meta get", protocol: Protocol::Meta, ..EXTRA },
    Scenario { name: "16 meta gets pipelined", protocol: Protocol::Meta, pipeline: 16, ..EXTRA },
    Scenario { name: "one binary get", protocol: Protocol::Binary, ..EXTRA },
    Scenario { name: "binary multiget of 16", protocol: Protocol::Binary, keys_per_get: 16, ..EXTRA },
    Scenario { name: "10 B values", value_bytes: 10, ..EXTRA },
    Scenario { name: "4 KiB sets", value_bytes: 4 << 10, keys: 20_000, set_share: 1.0, ..EXTRA },
    Scenario { name: "64 KiB sets", value_bytes: 64 << 10, keys: 2_000, set_share: 1.0, ..EXTRA },
    // Just below 1 MiB: memcached counts the item's header against its limit of 1 MiB.
    Scenario { name: "1 MiB values", value_bytes: 1_048_000, keys: 200, ..EXTRA },
];

impl Scenario {
    /// Single gets of 100-byte values over 50 connections, with 100 000 keys.
    pub const BASE: Self = Self {
        name: "",
        measure: Measure::CpuPerKey,
        protocol: Protocol::Text,
        connections: 50,
        pipeline: 1,
        keys_per_get: 1,
        set_share: 0.0,
        value_bytes: 100,
        keys: 100_000,
        zipf: None,
        bar: None,
        bar_over_floor: None,
        is_tls: false,
        is_extra: false,
    };

    /// Returns the load on `target`, in a closed loop.
    ///
    /// # Errors
    /// Fails if keys and sizes are inconsistent.
    pub fn load(
        &self,
        target: Target,
        cpu: usize,
        server_pids: &[u32],
        limit: Limit,
        seed: u64,
    ) -> Result<LoadSpec> {
        let keys = KeySpace::new(0, self.keys, KEY_BYTES, ValueBytes::fixed(self.value_bytes), 0)?;
        Ok(LoadSpec {
            protocol: self.protocol,
            key_choice: self.zipf.map_or(KeyChoice::Uniform, KeyChoice::Zipf),
            set_share: self.set_share,
            keys_per_get: self.keys_per_get,
            pipeline: self.pipeline,
            connections: self.connections,
            cpus: vec![cpu],
            limit,
            verify: Verify::Ends,
            seed,
            server_pids: server_pids.to_vec(),
            stall_limit: Duration::from_secs(10),
            ..LoadSpec::new(target, keys)
        })
    }

    /// Returns whether the canned server can answer the scenario's requests.
    pub fn has_floor(&self) -> bool {
        !self.is_tls && self.protocol == Protocol::Text && self.measure == Measure::CpuPerKey
    }
}

/// Returns an open loop at `requests_per_s`, with arrivals like those of many independent users.
pub fn open_loop(requests_per_s: f64) -> Arrival {
    Arrival::Open { requests_per_s, kind: ArrivalKind::Poisson }
}
