//! A small blocking client for what a bench asks a server besides load: version, statistics, flush.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::load::{Stream, Target};

/// Longest wait for one reply; a server under valgrind is slow.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// Most lines of one statistics reply.
const STATS_LINES_MAX: usize = 10_000;

/// A connection that sends one command and reads its lines.
#[derive(Debug)]
pub struct TextClient {
    reader: BufReader<Stream>,
}

impl TextClient {
    /// Connects.
    ///
    /// # Errors
    /// When no server listens there.
    pub fn connect(target: &Target) -> Result<Self> {
        let stream = Stream::connect(target)?;
        stream.set_wait_limit(REPLY_LIMIT)?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// What follows `VERSION`.
    ///
    /// # Errors
    /// When the reply is another one, or none.
    pub fn version(&mut self) -> Result<String> {
        let line = self.ask("version")?;
        line.strip_prefix("VERSION ")
            .map(str::to_owned)
            .with_context(|| format!("`version` answered `{line}`"))
    }

    /// Name and value of every line of `stats`.
    ///
    /// # Errors
    /// When the reply is another one, or none.
    pub fn stats(&mut self) -> Result<BTreeMap<String, String>> {
        let mut stats = BTreeMap::new();
        let mut line = self.ask("stats")?;
        while line != "END" {
            let Some((name, value)) = line.strip_prefix("STAT ").and_then(|rest| rest.split_once(' ')) else {
                bail!("`stats` answered `{line}`");
            };
            stats.insert(name.to_owned(), value.to_owned());
            ensure!(stats.len() < STATS_LINES_MAX, "`stats` does not end");
            line = self.line()?;
        }
        Ok(stats)
    }

    /// One number of `stats`.
    ///
    /// # Errors
    /// When there is no such line or it is no number.
    pub fn stat(&mut self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        let value = stats.get(name).with_context(|| format!("`stats` has no `{name}`"))?;
        value.parse().with_context(|| format!("`stats` reports {name} as `{value}`"))
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        self.reader.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        self.line()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.reader.read_line(&mut line)? > 0, "the server closed the connection");
        Ok(line.trim_end().to_owned())
    }
}
