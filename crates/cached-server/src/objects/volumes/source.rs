//! What is shown of volumes: metrics, and the part of `/status.json`.

use super::Managed;
use super::counts::{COMMANDS, Command, Sums};
use cached_admin::status::Document;
use cached_admin::status::document::{ListenerPart, VolumePart, VolumesPart};
use cached_metrics::{Collect, Families, Label, Number, Value};
use nbd::Server;
use std::cmp::Reverse;
use std::sync::Arc;

/// The volumes that the document shows.
const SHOWN_MAX: usize = 50;

/// Volumes, and what serves them, as the admin listener shows them.
pub(super) struct VolumesSource {
    pub(super) managed: Arc<Managed>,
    pub(super) server: Option<Arc<Server>>,
    pub(super) addresses: Vec<String>,
}

impl VolumesSource {
    fn sums(&self) -> Vec<(String, Sums)> {
        self.managed.served.counts.sums()
    }
}

impl Collect for VolumesSource {
    fn collect(&self, into: &mut Families) {
        self.server.iter().for_each(|server| server.collect(into));
        let sums = self.sums();
        let connected = sums.iter().filter(|(_, sums)| sums.connections > 0).count();
        into.gauge("volumes_connected", "Volumes that NBD clients have selected.", connected as u64);
        let help = "Requests of the admin listener for volumes that are under way.";
        into.gauge("volumes_jobs", help, self.managed.jobs.running() as u64);
        for (name, sums) in &sums {
            let labels = || -> Vec<Label> { vec![("volume", name.clone()).into()] };
            let help = "NBD connections that have a volume.";
            into.sample("volume_connections", help, labels(), Value::Gauge(sums.connections as f64));
            let help = "Bytes that NBD clients have asked to read of a volume.";
            into.sample("volume_read_bytes_total", help, labels(), Value::Counter(sums.read_bytes));
            let help = "Bytes that NBD clients have sent to a volume.";
            into.sample("volume_written_bytes_total", help, labels(), Value::Counter(sums.written_bytes));
            for (command, count) in COMMANDS.into_iter().zip(sums.requests) {
                let mut labels = labels();
                labels.push(("command", command).into());
                let help = "Requests of NBD clients for a volume, by command.";
                into.sample("volume_requests_total", help, labels, Value::Counter(count));
            }
        }
    }
}

impl cached_admin::status::Source for VolumesSource {
    fn fill(&self, document: &mut Document) {
        if let Some(server) = &self.server {
            let families = server.families();
            let number = |name: &str| families.number(name).map_or(0, Number::to_u64);
            document.listeners.push(ListenerPart {
                listener: self.addresses.join(", "),
                protocol: "nbd",
                connections: number("nbd_connections_open"),
                accepted: number("nbd_connections_total"),
                refused: number("nbd_connections_refused_total"),
            });
        }
        let mut sums = self.sums();
        sums.sort_by_key(|(_, sums)| Reverse((sums.connections, sums.written_bytes + sums.read_bytes)));
        let part = |(name, sums): &(String, Sums)| VolumePart {
            volume: name.clone(),
            connections: sums.connections,
            reads: sums.of(Command::Read),
            writes: sums.of(Command::Write),
            flushes: sums.of(Command::Flush),
            read_bytes: sums.read_bytes,
            written_bytes: sums.written_bytes,
        };
        document.volumes = Some(VolumesPart {
            connected: sums.iter().filter(|(_, sums)| sums.connections > 0).count() as u64,
            jobs: self.managed.jobs.running() as u64,
            volumes: sums.iter().take(SHOWN_MAX).map(part).collect(),
            volumes_other: sums.len().saturating_sub(SHOWN_MAX) as u64,
        });
    }
}
