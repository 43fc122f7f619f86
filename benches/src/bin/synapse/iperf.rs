//! `iperf3`, if it is installed, as a common measure of the loopback's bandwidth.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

/// Returns the bytes per second of one stream with writes of `bytes`; `None` without `iperf3`.
///
/// # Errors
/// Fails if `iperf3` is installed but prints no figure.
pub(crate) fn bandwidth(
    bytes: usize,
    duration: Duration,
    cpus: Option<(usize, usize)>,
) -> Result<Option<f64>> {
    if Command::new("iperf3").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Ok(None);
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let affinity =
        |cpu: Option<usize>| cpu.map(|cpu| ["-A".to_owned(), cpu.to_string()]).into_iter().flatten();
    let mut server = Command::new("iperf3")
        .args(["-s", "-1", "-B", "127.0.0.1", "-p", &port])
        .args(affinity(cpus.map(|(server, _)| server)))
        .stdout(Stdio::null())
        .spawn()?;
    let figure = client(&port, bytes, duration, affinity(cpus.map(|(_, client)| client)));
    // The server exits after one client. If the client fails, the server waits forever, so it is
    // killed.
    let _ = server.kill();
    let _ = server.wait();
    figure.map(Some)
}

fn client(
    port: &str,
    bytes: usize,
    duration: Duration,
    affinity: impl Iterator<Item = String>,
) -> Result<f64> {
    let seconds = duration.as_secs().max(1).to_string();
    let mut command = Command::new("iperf3");
    command
        .args(["-c", "127.0.0.1", "-p", port, "-J", "-t", &seconds, "-l", &bytes.to_string()])
        .args(affinity);
    // The server needs a moment until it listens.
    for _ in 0..50 {
        let output = command.output()?;
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).context("iperf3's report")?;
        if let Some(bits) = report["end"]["sum_received"]["bits_per_second"].as_f64() {
            return Ok(bits / 8.0);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    anyhow::bail!("iperf3 printed no figure")
}
