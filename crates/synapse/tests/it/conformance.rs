//! The conformance suite over a connection.

use std::sync::Arc;
use std::time::Duration;

use crate::support::host::{Host, Kind};
use blocker::conformance::{Options, Plain, run};
use blocker::faulty::FaultPlan;
use blocker::{Blocker, Faulty, FileStore, Memory, SystemClock};
use synapse::ServerConfig;

#[track_caller]
fn passes(host: &Host, backend: Arc<dyn Blocker>) {
    let mut options = Options::default();
    options.seed = 9;
    let report = run(&Plain::new(backend), &options);
    report.cases.iter().for_each(|case| println!("{case}"));
    report.assert_passed();
    assert_eq!(host.server.metric("synapse_connections_broken_total"), 0);
}

fn memory() -> Arc<dyn Blocker> {
    Arc::new(Memory::default())
}

#[test]
fn memory_over_tcp() {
    let host = Host::new(Kind::Tcp, memory(), ServerConfig::default());
    passes(&host, Arc::new(host.client()));
}

#[test]
fn memory_over_a_unix_socket_with_payload_checksums() {
    let host = Host::new(Kind::Unix, memory(), ServerConfig::default());
    let mut config = host.client_config();
    config.payload_crc = true;
    passes(&host, Arc::new(host.client_with(config)));
}

#[test]
fn memory_over_one_connection_with_one_slot() {
    let host = Host::new(Kind::Tcp, memory(), ServerConfig::default());
    let mut config = host.client_config();
    (config.connections, config.slots) = (1, 1);
    passes(&host, Arc::new(host.client_with(config)));
}

#[test]
fn files_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open_or_create(dir.path()).unwrap();
    let host = Host::new(Kind::Tcp, Arc::new(store), ServerConfig::default());
    passes(&host, Arc::new(host.client()));
}

#[test]
fn files_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open_or_create(dir.path()).unwrap();
    let host = Host::new(Kind::Unix, Arc::new(store), ServerConfig::default());
    passes(&host, Arc::new(host.client()));
}

#[test]
fn a_backend_that_delays_and_fails_now_and_then() {
    let mut plan = FaultPlan::benign(5);
    (plan.delay_permille, plan.delay) = (300, Duration::ZERO..Duration::from_millis(2));
    plan.error_permille = 30;
    let faulty = Faulty::new(memory(), plan, Arc::new(SystemClock));
    let host = Host::new(Kind::Tcp, Arc::new(faulty), ServerConfig::default());
    passes(&host, Arc::new(host.client()));
}

#[test]
fn a_server_of_a_client_of_a_server() {
    let far = Host::new(Kind::Tcp, memory(), ServerConfig::default());
    let near = Host::new(Kind::Unix, Arc::new(far.client()), ServerConfig::default());
    passes(&near, Arc::new(near.client()));
}

#[test]
fn a_client_on_a_thread_of_its_own() {
    let host = Host::new(Kind::Tcp, memory(), ServerConfig::default());
    let client = synapse::SynapseBlocker::connect_on_thread(host.client_config()).unwrap();
    passes(&host, Arc::new(client));
}
