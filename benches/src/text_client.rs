//! A small blocking client for a bench's other requests: version, statistics, commands of one line.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::load::{Stream, Target};

/// The maximum wait for a reply; a server under valgrind is slow.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// The maximum number of lines in a statistics reply.
const STATS_LINES_MAX: usize = 10_000;
/// The maximum length of a string in a reply of Valkey.
const BULK_BYTES_MAX: usize = 1 << 20;

/// A connection that sends one command at a time and reads the lines of the reply.
#[derive(Debug)]
pub struct TextClient {
    reader: BufReader<Stream>,
}

impl TextClient {
    /// Connects.
    ///
    /// # Errors
    /// Fails if no server listens at the address.
    pub fn connect(target: &Target) -> Result<Self> {
        let stream = Stream::connect(target)?;
        stream.set_wait_limit(REPLY_LIMIT)?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// Returns the text after `VERSION`.
    ///
    /// # Errors
    /// Fails if the reply is different or missing.
    pub fn version(&mut self) -> Result<String> {
        let line = self.ask("version")?;
        line.strip_prefix("VERSION ")
            .map(str::to_owned)
            .with_context(|| format!("`version` answered `{line}`"))
    }

    /// Returns the name and value of every line of `stats`.
    ///
    /// # Errors
    /// Fails if the reply is different or missing.
    pub fn stats(&mut self) -> Result<BTreeMap<String, String>> {
        self.stats_of("")
    }

    /// Returns the name and value of every line of `stats GROUP`.
    ///
    /// # Errors
    /// Fails if the reply is different or missing.
    pub fn stats_of(&mut self, group: &str) -> Result<BTreeMap<String, String>> {
        let mut stats = BTreeMap::new();
        let mut line = self.ask(format!("stats {group}").trim_end())?;
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

    /// Returns a number in `stats`.
    ///
    /// # Errors
    /// Fails if the statistic does not exist, or its value is not a number.
    pub fn stat(&mut self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        let value = stats.get(name).with_context(|| format!("`stats` has no `{name}`"))?;
        value.parse().with_context(|| format!("`stats` reports {name} as `{value}`"))
    }

    /// Sends a command of Valkey's protocol, and returns the string of the reply.
    ///
    /// # Errors
    /// Fails if the reply is different, missing, or not text.
    pub fn bulk(&mut self, command: &str) -> Result<String> {
        let line = self.ask(command)?;
        let bytes = line.strip_prefix('$').and_then(|length| length.parse().ok());
        let bytes: usize = bytes
            .filter(|bytes| *bytes <= BULK_BYTES_MAX)
            .with_context(|| format!("`{command}` answered `{line}`"))?;
        let mut text = vec![0; bytes + 2];
        self.reader.read_exact(&mut text)?;
        text.truncate(bytes);
        Ok(String::from_utf8(text)?)
    }

    /// Sends a command of Valkey's protocol, and returns the number of the reply.
    ///
    /// # Errors
    /// Fails if the reply is different or missing.
    pub fn number(&mut self, command: &str) -> Result<u64> {
        let line = self.ask(command)?;
        let number = line.strip_prefix(':').and_then(|number| number.parse().ok());
        number.with_context(|| format!("`{command}` answered `{line}`"))
    }

    /// Sends a line, and returns the first line of the reply.
    ///
    /// # Errors
    /// Fails if there is no reply.
    pub fn ask(&mut self, command: &str) -> Result<String> {
        self.reader.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        self.line()
    }

    /// Returns the next line of the reply.
    ///
    /// # Errors
    /// Fails if there is none.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.reader.read_line(&mut line)? > 0, "the server closed the connection");
        Ok(line.trim_end().to_owned())
    }
}
