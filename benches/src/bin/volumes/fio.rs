//! fio's NBD engine as the client.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cached_benches::server::bind_to_parent;
use serde_json::Value;

/// Runs fio on an export; returns the requests per second.
pub(crate) fn run(uri: &str, words: &[String]) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args(["--name=disk", "--ioengine=nbd", "--output-format=json", "--randseed=1"]);
    command.arg(format!("--uri={uri}")).args(words);
    bind_to_parent(&mut command, None);
    let output = command.stdin(Stdio::null()).output().context("fio cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "fio: {text}{}", String::from_utf8_lossy(&output.stderr));
    // Warnings may precede the document.
    let document = text.find('{').map_or("", |start| &text[start..]);
    let report: Value = serde_json::from_str(document).context("fio's report")?;
    let job = &report["jobs"][0];
    ensure!(job["error"] == 0, "fio: error {}", job["error"]);
    let rate = job["write"]["iops"].as_f64().context("fio's report has no rate")?;
    ensure!(rate > 0.0, "fio did nothing");
    Ok(rate)
}

/// Writes a disk from start to end.
pub(crate) fn fill(uri: &str, mebibytes: u64) -> Result<()> {
    let size = format!("--size={mebibytes}m");
    run(uri, &["--rw=write".into(), "--bs=1m".into(), "--iodepth=8".into(), size])?;
    Ok(())
}

/// Writes 4 KiB at random positions, sixteen at a time, for some seconds.
pub(crate) fn random_writes(uri: &str, mebibytes: u64, seconds: u64) -> Result<f64> {
    let (size, time) = (format!("--size={mebibytes}m"), format!("--runtime={seconds}"));
    let words = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--time_based=1", "--norandommap=1"];
    run(uri, &words.map(str::to_owned).into_iter().chain([size, time]).collect::<Vec<_>>())
}
