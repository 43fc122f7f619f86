//! memcaslap's own load in addition to ours, as a second opinion from an independent generator.
//!
//! Its default mix is 90 % gets and 10 % sets of 64-byte keys and 1 KiB values. Only its operation
//! count is used; CPU time is read from the server's clock over the whole run, because memcaslap
//! does not report when its measurement starts and ends.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cached_benches::process::CpuClock;
use cached_benches::server::{Server, bind_to_parent};

use crate::measure::{Bench, Comparison, Pair, in_turn};

/// Connections; memcaslap fills a window of keys for each before it starts.
const CONNECTIONS: usize = 48;

pub(crate) fn compare(bench: &Bench, program: &Path) -> Result<Comparison> {
    let (cached, memcached) = (bench.cached.start()?, bench.memcached.start()?);
    let pairs = (0..bench.pairs)
        .map(|pair| {
            let (of_cached, of_memcached) =
                in_turn(pair, || run(bench, program, &cached), || run(bench, program, &memcached))?;
            Ok(Pair { cached: None, memcached: None, canned: None, figures: (of_cached, of_memcached, None) })
        })
        .collect::<Result<Vec<_>>>()?;
    Comparison::of("memcaslap 90/10", "ns", pairs)
}

/// Runs the program against the server, and returns the server's CPU time per operation, in
/// nanoseconds.
fn run(bench: &Bench, program: &Path, server: &Server) -> Result<f64> {
    let seconds = bench.measured.as_secs_f64().ceil() as u64;
    let mut command = Command::new(program);
    command
        .args(["-s", &server.address().to_string(), "-T", "1", "-c", &CONNECTIONS.to_string()])
        .args(["-t", &format!("{seconds}s")])
        .stdin(Stdio::null());
    bind_to_parent(&mut command, Some(bench.client_cpu));
    let clock = CpuClock::of(server.pid())?;
    let before_ns = clock.now_ns()?;
    let output = command.output().with_context(|| format!("starting {}", program.display()))?;
    let cpu_ns = clock.now_ns()? - before_ns;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "memcaslap on {} failed: {text}", server.name());
    let operations = operation_count(&text).with_context(|| format!("memcaslap gave no count: {text}"))?;
    ensure!(operations > 0, "memcaslap did nothing on {}", server.name());
    Ok(cpu_ns as f64 / operations as f64)
}

/// Returns the number after the last `Ops:`.
fn operation_count(text: &str) -> Option<u64> {
    text.rsplit_once("Ops:")?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::operation_count;

    #[test]
    fn the_count_is_found() {
        let line = "Run time: 2.0s Ops: 172044 TPS: 85996 Net_rate: 89.9M/s";
        assert_eq!(operation_count(line), Some(172_044));
        assert_eq!(operation_count("nothing"), None);
    }
}
