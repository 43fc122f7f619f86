//! A blocking text client for batches: one multiget, then sets of the missed keys.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::load::Load;

/// Keys read together.
pub(crate) const BATCH: usize = 64;
/// The longest wait for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(30);
/// The largest value a reply may announce.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// One connection.
pub(crate) struct Client {
    replies: BufReader<TcpStream>,
    out: Vec<u8>,
    value: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        Ok(Client {
            replies: BufReader::with_capacity(256 << 10, stream),
            out: Vec::new(),
            value: Vec::new(),
        })
    }

    fn send(&mut self) -> Result<()> {
        self.replies.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Reads keys; returns the positions of the missed ones.
    pub(crate) fn get(&mut self, keys: &[u64]) -> Result<Vec<usize>> {
        self.out.extend_from_slice(b"get");
        for key in keys {
            write!(self.out, " {}", Load::name(*key))?;
        }
        self.out.extend_from_slice(b"\r\n");
        self.send()?;
        // Replies arrive in the order of the keys; misses have none. A key may occur twice in a
        // batch.
        let mut missed = Vec::new();
        let mut place = 0;
        let mut line = String::new();
        loop {
            line.clear();
            self.replies.read_line(&mut line)?;
            if line == "END\r\n" {
                missed.extend(place..keys.len());
                return Ok(missed);
            }
            let mut words = line.split_ascii_whitespace();
            let (Some("VALUE"), Some(name), Some(_), Some(bytes)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                bail!("a get was answered `{}`", line.trim_end());
            };
            while keys.get(place).is_some_and(|key| Load::name(*key) != name) {
                missed.push(place);
                place += 1;
            }
            ensure!(place < keys.len(), "`{name}` was not asked for");
            place += 1;
            let bytes: usize = bytes.parse().context("a value's length")?;
            ensure!(bytes <= VALUE_BYTES_MAX, "a value of {bytes} bytes");
            self.value.resize(bytes + 2, 0);
            self.replies.read_exact(&mut self.value)?;
            ensure!(self.value.ends_with(b"\r\n"), "a value does not end where it should");
        }
    }

    /// Sets the missed keys, and waits for each reply.
    pub(crate) fn set(&mut self, load: &Load, keys: &[u64], missed: &[usize]) -> Result<()> {
        let filler = [b'm'; 4096];
        for &place in missed {
            let (bytes, expiry_secs) = load.value_of(keys[place]);
            write!(self.out, "set {} 0 {expiry_secs} {bytes}\r\n", Load::name(keys[place]))?;
            let mut left = bytes;
            while left > 0 {
                let part = left.min(filler.len());
                self.out.extend_from_slice(&filler[..part]);
                left -= part;
            }
            self.out.extend_from_slice(b"\r\n");
        }
        self.send()?;
        let mut line = String::new();
        for _ in missed {
            line.clear();
            self.replies.read_line(&mut line)?;
            // memcached may have no slab page for a new size. This is not an error here; it causes
            // a miss later.
            ensure!(
                line == "STORED\r\n" || line == "SERVER_ERROR out of memory storing object\r\n",
                "a set was answered `{}`",
                line.trim_end()
            );
        }
        Ok(())
    }
}
