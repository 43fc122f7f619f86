//! The costs of a TLS connection apart from requests: its handshake, and its memory while idle.

use anyhow::{Context, Result};
use cached_benches::process::{CpuClock, Resident};
use cached_benches::server::{Server, ServerSpec};
use cached_benches::tls;

use crate::measure::{Bench, Comparison, Pair, in_turn};

/// Connections of one run.
const HANDSHAKES: usize = 300;
/// Idle connections whose memory is measured.
const IDLE_CONNECTIONS: usize = 1_000;
/// The maximum acceptable ratios.
const HANDSHAKE_BAR: f64 = 0.8;
const IDLE_BAR: f64 = 0.7;

fn start(spec: &ServerSpec) -> Result<Server> {
    spec.with_tls()?.start()
}

/// Compares the CPU time of a connection with a full handshake and one request.
pub(crate) fn compare_handshakes(bench: &Bench) -> Result<Comparison> {
    let (cached, memcached) = (start(&bench.cached)?, start(&bench.memcached)?);
    let cost = |server: &Server| -> Result<f64> {
        let clock = CpuClock::of(server.pid())?;
        let before = clock.now_ns()?;
        drop(tls::connect_many(&server.address(), HANDSHAKES).with_context(|| server.name().to_owned())?);
        Ok((clock.now_ns()? - before) as f64 / HANDSHAKES as f64)
    };
    // A server's first connections touch its memory for the first time.
    cost(&cached)?;
    cost(&memcached)?;
    let mut pairs = Vec::new();
    for pair in 0..bench.pairs {
        let (of_cached, of_memcached) = in_turn(pair, || cost(&cached), || cost(&memcached))?;
        pairs.push(Pair {
            cached: None,
            memcached: None,
            canned: None,
            figures: (of_cached, of_memcached, None),
        });
    }
    let comparison = Comparison::of("TLS: full handshake", "ns", pairs)?;
    Ok(Comparison { bar: Some(HANDSHAKE_BAR), ..comparison })
}

/// Compares the resident memory of an idle connection, after a handshake and one request.
pub(crate) fn compare_idle(bench: &Bench) -> Result<Comparison> {
    let mut pairs = Vec::new();
    for pair in 0..bench.pairs.min(3) {
        let cost = |spec: &ServerSpec| -> Result<f64> {
            let server = start(spec)?;
            // The threads' buffers are created with the first connections.
            let first = tls::connect_many(&server.address(), 10)?;
            let before = Resident::of(server.pid())?.bytes;
            let idle = tls::connect_many(&server.address(), IDLE_CONNECTIONS)?;
            let after = Resident::of(server.pid())?.bytes;
            drop((first, idle));
            Ok(after.saturating_sub(before) as f64 / IDLE_CONNECTIONS as f64)
        };
        let figures = in_turn(pair, || cost(&bench.cached), || cost(&bench.memcached))?;
        pairs.push(Pair {
            cached: None,
            memcached: None,
            canned: None,
            figures: (figures.0, figures.1, None),
        });
    }
    let comparison = Comparison::of("TLS: idle connection", "B", pairs)?;
    Ok(Comparison { bar: Some(IDLE_BAR), ..comparison })
}
