//! `stats cluster`: plain `stats` of all nodes of a ring as those of one server.
//!
//! Each node reports its own statistics to the node that was asked, which adds them up.

use super::{Sink, Work};
use cached_proto::binary::Head;

/// The statistics of the nodes that have reported so far.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// The names and values in the order of the first node's report.
    values: Vec<(String, Value)>,
    nodes: u64,
    nodes_away: u64,
}

/// A value of one statistic.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Count(u64),
    /// A time with a fraction.
    Secs(f64),
    Text(String),
}

impl Value {
    fn parse(text: &str) -> Value {
        // A version may have a point as well.
        let is_time = text.split_once('.').is_some_and(|(_, fraction)| fraction.len() == 6);
        let secs = || text.parse().ok().filter(|_| is_time).map(Value::Secs);
        let value = text.parse().ok().map(Value::Count).or_else(secs);
        value.unwrap_or_else(|| Value::Text(text.to_owned()))
    }

    /// Makes one value of that of earlier nodes and of the next one.
    fn join(&mut self, name: &str, next: &Value) {
        match (&mut *self, next, name) {
            // A sum would say nothing, and neither would a maximum.
            (_, _, "pid" | "pointer_size" | "version") => {}
            (Value::Count(all), Value::Count(next), "accepting_conns") => *all = (*all).min(*next),
            (
                Value::Count(all),
                Value::Count(next),
                "uptime" | "time" | "hash_power_level" | "time_since_server_cert_refresh",
            ) => *all = (*all).max(*next),
            (Value::Count(all), Value::Count(next), _) => *all = all.saturating_add(*next),
            (Value::Secs(all), Value::Secs(next), _) => *all += next,
            _ => {}
        }
    }
}

impl Sums {
    /// Adds the report of a node, in the text protocol. Names that the first node does not report are
    /// left out, so a node cannot add to their number.
    pub(crate) fn add(&mut self, report: &[u8]) {
        self.nodes += 1;
        let report = String::from_utf8_lossy(report);
        let lines = report.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        if self.nodes == 1 {
            self.values = lines.map(|(name, value)| (name.to_owned(), Value::parse(value))).collect();
            return;
        }
        // All nodes report in the same order, except for names that some of them do not have.
        let mut expected = 0;
        for (name, value) in lines {
            let mut positions = (expected..self.values.len()).chain(0..expected);
            if let Some(at) = positions.find(|at| self.values[*at].0 == name) {
                self.values[at].1.join(name, &Value::parse(value));
                expected = at + 1;
            }
        }
    }

    /// Counts a node that does not report.
    pub(crate) fn add_away(&mut self) {
        self.nodes += 1;
        self.nodes_away += 1;
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.values.iter().map(|(name, _)| size_of::<(String, Value)>() + name.len()).sum()
    }

    /// Returns the reply; `head` is that of the request if it is a binary one.
    pub(crate) fn reply(&self, head: Option<&Head>) -> Vec<u8> {
        let (mut reply, mut work) = (Vec::new(), Work::new());
        let mut sink = Sink::new(&mut reply, head, &mut work);
        sink.put("nodes", self.nodes);
        sink.put("nodes_away", self.nodes_away);
        for (name, value) in &self.values {
            match value {
                Value::Count(count) => sink.put(name, count),
                Value::Secs(secs) => sink.put(name, format_args!("{secs:.6}")),
                Value::Text(text) => sink.put(name, text),
            }
        }
        sink.end();
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_nodes_become_one() {
        let mut sums = Sums::default();
        sums.add(b"STAT pid 7\r\nSTAT uptime 90\r\nSTAT version 1.6\r\nSTAT rusage_user 1.500000\r\n\
            STAT accepting_conns 1\r\nSTAT cmd_get 3\r\nSTAT idle_kicks 1\r\nSTAT bytes 18446744073709551615\r\nEND\r\n");
        sums.add(
            b"STAT pid 8\r\nSTAT uptime 20\r\nSTAT version 1.7\r\nSTAT rusage_user 0.250000\r\n\
            STAT accepting_conns 0\r\nSTAT cmd_get 4\r\nSTAT other 1\r\nSTAT bytes 5\r\nEND\r\n",
        );
        // What no node sends.
        sums.add(b"STAT cmd_get many\r\nSTAT\r\n\xff\nSTAT bytes -1\r\nSTAT accepting_conns");
        sums.add_away();
        let reply = String::from_utf8(sums.reply(None)).unwrap();
        assert_eq!(
            reply,
            "STAT nodes 4\r\nSTAT nodes_away 1\r\nSTAT pid 7\r\nSTAT uptime 90\r\nSTAT version 1.6\r\n\
             STAT rusage_user 1.750000\r\nSTAT accepting_conns 0\r\nSTAT cmd_get 7\r\nSTAT idle_kicks 1\r\n\
             STAT bytes 18446744073709551615\r\nEND\r\n"
        );
    }
}
