//! Trace files, decoded by their extension: `.be32`, `.lis` or `.csv`, each plain or compressed
//! (`.zst`).
//!
//! - `.be32`: big-endian u32 keys, four bytes a request.
//! - `.lis`: lines `start count ignored request`, each of which is one request for each 512-byte
//!   block from start on.
//! - `.csv`: the format of CacheLib, with a header: `key` and `size`, or `block_id` and `io_size`;
//!   `op_count` requests a line.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use cached_benches::files::read_plain_or_zst;

/// A sequence of requests for objects that are numbered from 0 in the order of their first request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The file's name without its extensions.
    pub(crate) name: String,
    pub(crate) requests: Vec<u32>,
    /// If the file has sizes, the size of every object: the largest size of its requests, and at
    /// least 1.
    pub(crate) object_bytes: Option<Vec<u64>>,
    /// The number of distinct objects.
    pub(crate) objects: usize,
}

impl Trace {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Trace> {
        let (name, bytes) = read_plain_or_zst(path)?;
        Trace::decode(&name, &bytes)
    }

    /// Decodes a file's plain content.
    pub(crate) fn decode(file_name: &str, bytes: &[u8]) -> Result<Trace> {
        let (name, ending) = file_name.rsplit_once('.').unwrap_or((file_name, ""));
        let mut numbers = Numbers { name, ..Numbers::default() };
        match ending {
            "be32" => {
                let (keys, rest) = bytes.as_chunks::<4>();
                ensure!(rest.is_empty(), "{} bytes are left at the end", rest.len());
                keys.iter().for_each(|key| numbers.request(u64::from(u32::from_be_bytes(*key)), None));
            }
            "lis" => {
                for (line, text) in lines(bytes)? {
                    let mut words = text.split_ascii_whitespace().map(str::parse::<u64>);
                    let (Some(Ok(start)), Some(Ok(count))) = (words.next(), words.next()) else {
                        bail!("line {line}: `{text}` does not begin with two numbers");
                    };
                    let end = start.checked_add(count).context("a block number beyond 2^64")?;
                    (start..end).for_each(|block| numbers.request(block, None));
                }
            }
            "csv" => return decode_csv(name, bytes),
            _ => bail!("its name ends with none of .be32, .lis, .csv, with or without .zst"),
        }
        numbers.finish()
    }
}

fn decode_csv(name: &str, bytes: &[u8]) -> Result<Trace> {
    let mut lines = lines(bytes)?;
    let (_, header) = lines.next().context("it has no header")?;
    let columns: Vec<&str> = header.split(',').collect();
    let column = |names: &[&str]| columns.iter().position(|column| names.contains(column));
    let key = column(&["key", "block_id"]).context("the header has neither `key` nor `block_id`")?;
    let size = column(&["size", "io_size"]).context("the header has neither `size` nor `io_size`")?;
    let count = column(&["op_count"]);
    let mut numbers = Numbers { name, ..Numbers::default() };
    for (line, text) in lines {
        let fields: Vec<&str> = text.split(',').collect();
        let number = |at: usize| -> Result<u64> {
            let field = fields.get(at).with_context(|| format!("line {line} is too short"))?;
            field.trim().parse().with_context(|| format!("line {line}: `{field}` is not a number"))
        };
        let bytes = number(size)?;
        let key = *fields.get(key).with_context(|| format!("line {line} is too short"))?;
        for _ in 0..count.map_or(Ok(1), number)? {
            numbers.request(key, Some(bytes));
        }
    }
    numbers.finish()
}

/// Returns the non-empty lines, numbered from 1.
fn lines(bytes: &[u8]) -> Result<impl Iterator<Item = (usize, &str)>> {
    let text = std::str::from_utf8(bytes).context("it is not text")?;
    Ok(text.lines().enumerate().map(|(at, line)| (at + 1, line)).filter(|(_, line)| !line.trim().is_empty()))
}

/// Numbers keys in the order of their first appearance.
struct Numbers<'a, K> {
    name: &'a str,
    known: HashMap<K, u32>,
    requests: Vec<u32>,
    object_bytes: Vec<u64>,
    sized: bool,
}

impl<K> Default for Numbers<'_, K> {
    fn default() -> Self {
        Numbers {
            name: "",
            known: HashMap::new(),
            requests: Vec::new(),
            object_bytes: Vec::new(),
            sized: false,
        }
    }
}

impl<K: Hash + Eq> Numbers<'_, K> {
    fn request(&mut self, key: K, bytes: Option<u64>) {
        let next = self.known.len() as u32;
        let number = *self.known.entry(key).or_insert(next);
        if number == next {
            self.object_bytes.push(1);
        }
        if let Some(bytes) = bytes {
            self.sized = true;
            let known = &mut self.object_bytes[number as usize];
            *known = bytes.max(*known);
        }
        self.requests.push(number);
    }

    fn finish(self) -> Result<Trace> {
        ensure!(!self.requests.is_empty(), "it has no requests");
        ensure!(self.known.len() < u32::MAX as usize, "more than 2^32 objects");
        Ok(Trace {
            name: self.name.to_owned(),
            requests: self.requests,
            objects: self.known.len(),
            object_bytes: self.sized.then_some(self.object_bytes),
        })
    }
}

/// Returns sizes for a trace without sizes. A key has the same size in every run, between 64 B and
/// 64 KiB. Each octave has 0.6 times as many keys as the next smaller one, so the mean is about 1
/// KiB.
pub(crate) fn synthetic_bytes(objects: usize) -> Vec<u64> {
    (0..objects as u64)
        .map(|object| {
            let mut random = (object + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            random = (random ^ random >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
            random ^= random >> 32;
            let (octave, within) = (random & 0xffff, random >> 16 & 0xffff);
            let mut bytes = 64;
            // In each octave, 0.6 of the remaining values move to the next one.
            let mut bound = 39_321;
            while octave < bound && bytes < 1 << 15 {
                bytes *= 2;
                bound = bound * 3 / 5;
            }
            bytes + bytes * within / 0x1_0000
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbered_as_they_come() {
        let trace = Trace::decode("small.be32", &[0, 0, 0, 9, 1, 0, 0, 0, 0, 0, 0, 9]).unwrap();
        assert_eq!((trace.name.as_str(), trace.objects), ("small", 2));
        assert_eq!(trace.requests, [0, 1, 0]);
        assert_eq!(trace.object_bytes, None);
        assert!(Trace::decode("small.be32", &[0, 0, 0, 9, 1]).is_err());
        assert!(Trace::decode("small.be32", &[]).is_err());
        assert!(Trace::decode("small.txt", &[0; 4]).is_err());
    }

    #[test]
    fn a_line_of_blocks_is_a_request_for_each() {
        let trace = Trace::decode("disk.lis", b"7 3 0 0\n\n8 1 0 1\n").unwrap();
        assert_eq!(trace.requests, [0, 1, 2, 1]);
        assert!(Trace::decode("disk.lis", b"7\n").is_err());
        assert!(Trace::decode("disk.lis", b"18446744073709551615 2 0 0\n").is_err());
    }

    #[test]
    fn columns_are_found_by_name() {
        let trace =
            Trace::decode("kv.csv", b"op_time,key,op_count,size\n1,a,2,10\n1,b,1,0\n2,a,1,20\n").unwrap();
        assert_eq!(trace.requests, [0, 0, 1, 0]);
        assert_eq!(trace.object_bytes, Some(vec![20, 1]));
        assert!(Trace::decode("kv.csv", b"key,op_count\na,1\n").is_err());
    }

    #[test]
    fn a_compressed_file_is_the_same_trace() {
        let plain = [0u8, 0, 0, 1, 0, 0, 0, 2];
        let mut packed = Vec::new();
        ruzstd::encoding::compress(&plain[..], &mut packed, ruzstd::encoding::CompressionLevel::Fastest);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.be32.zst");
        std::fs::write(&path, packed).unwrap();
        assert_eq!(Trace::read(&path).unwrap(), Trace::decode("t.be32", &plain).unwrap());
    }

    #[test]
    fn synthetic_sizes_are_many_small_and_few_large() {
        let bytes = synthetic_bytes(100_000);
        assert_eq!(bytes[..100], synthetic_bytes(100)[..]);
        assert!(bytes.iter().all(|bytes| (64..65_536).contains(bytes)));
        let mean = bytes.iter().sum::<u64>() / 100_000;
        let large = bytes.iter().filter(|bytes| **bytes >= 8_192).count();
        assert!((200..2_000).contains(&mean), "a mean of {mean}");
        assert!((100..10_000).contains(&large), "{large} of 8 KiB and more");
    }
}
