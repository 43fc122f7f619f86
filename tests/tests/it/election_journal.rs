//! Hosts with a journal and an elected writer: the change from `writer = "cache"`, the recovery of
//! a killed host from its journal, and the journal that is set aside because another host has led.

use blocker::executor::block_on;
use blocker::{BlockerExt, Durability, WriteRequest};
use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::pair::{self, Client, NODES, Pair};
use cached_tests::server::free_port;
use std::net::SocketAddr;

/// Long enough that no host loses its lease because the machine or its disk is busy. A standby looks
/// after a tenth of this time, before a host reports a journal that was set aside.
const LEASE_SECS: u64 = 40;
/// The lease of a host that waits for its end.
const ENDING_SECS: u64 = 6;

/// Starts a host that has a journal, and is not in an election yet. Nothing is stored because of its
/// age.
fn start_as_cache(store: &Daemon, address: SocketAddr) -> Daemon {
    Daemon::start("cached", |place| configuration(store, address, place))
}

fn configuration(store: &Daemon, address: SocketAddr, place: &str) -> String {
    let backend = pair::backend(store);
    format!(
        "[objects]\nwriter = \"cache\"\nwrite = \"back\"\ndirty_age_ms_max = 86400000\n\
         memory_bytes_max = \"16 MiB\"\ndirty_bytes_max = \"4 MiB\"\nobject_bytes_max = \"256 KiB\"\n\
         [objects.journal]\ndirectory = \"{place}/journal\"\ncreate = true\nsegment_bytes = \"1 MiB\"\n\
         limit_bytes = \"16 MiB\"\ndirect = false\ncommit_timeout_secs = 600\n[objects.backend]\n{backend}\
         [synapse]\nlisten = [\"{address}\"]\nthreads = 1\n"
    )
}

/// Returns the configuration of the same host in an election.
fn elected(configuration: &str, host: usize) -> String {
    let election = format!("[objects.election]\nnode = \"{}\"\nlease_secs = {LEASE_SECS}\n", NODES[host]);
    let registry = "[registry]\nkind = \"store\"\npoll_ms = 100\ntimeout_ms = 60000\n";
    let text = configuration.replace("writer = \"cache\"", "writer = \"elected\"");
    text.replace("[synapse]", &format!("{election}{registry}[synapse]"))
}

fn start_elected(store: &Daemon, address: SocketAddr, host: usize) -> Daemon {
    Daemon::start("cached", |place| elected(&configuration(store, address, place), host))
}

fn write(client: &Client, object: &str, bytes: &[u8], durability: Durability) -> Durability {
    let request = WriteRequest::new(object.parse().expect("an object"), 0, bytes.to_vec());
    block_on(client.0.write(request.durability(durability))).expect("it is written").durability
}

/// Waits until the journal's disk has everything that was logged so far.
fn wait_until_logged(host: &Daemon) {
    wait_for("the journal's disk", || {
        let has_records = host.metric("cached_journal_records_total") > Some(0.0);
        (has_records && host.metric("cached_journal_unsynced_bytes") == Some(0.0)).then_some(())
    });
}

#[test]
fn a_killed_host_that_joins_an_election_or_leads_again_loses_nothing() {
    let store = pair::store();
    let addresses = [free_port(), free_port()];
    let mut pair = Pair::of([Some(start_as_cache(&store, addresses[0])), None], addresses);
    let client = pair.client(0);
    assert_eq!(write(&client, "ns/before", b"before", Durability::Journaled), Durability::Journaled);
    pair.host(0).configure(|text| elected(&text, 0));
    pair.restart(0, libc::SIGKILL);
    pair.wait_for_leader(0);
    let client = pair.client(0);
    assert_eq!(client.read("ns/before"), Ok(Some(b"before".to_vec())));

    // A leader with a journal does not acknowledge *journaled* either.
    assert_eq!(write(&client, "ns/before", b"stored", Durability::Journaled), Durability::Stored);
    assert_eq!(write(&client, "ns/cached", b"cached", Durability::Cached), Durability::Cached);
    wait_until_logged(pair.host(0));
    let epoch = pair.report(0)["epoch"].as_u64();
    // No other host runs, so this one leads again once its lease has ended.
    let (lasting, ending) = (format!("lease_secs = {LEASE_SECS}"), format!("lease_secs = {ENDING_SECS}"));
    pair.host(0).configure(|text| text.replace(&lasting, &ending));
    pair.restart(0, libc::SIGKILL);
    pair.wait_for_leader(0);
    wait_for("a later epoch", || (pair.report(0)["epoch"].as_u64() > epoch).then_some(()));
    let client = pair.client(0);
    assert_eq!(client.read_from_leader("ns/before"), Some(b"stored".to_vec()));
    assert_eq!(client.read_from_leader("ns/cached"), Some(b"cached".to_vec()));
    assert_eq!(pair.report(0)["overtaken_journals"], serde_json::json!([]));

    // The changes of the journal are stored, so another host can read them.
    wait_for("the step-down of a leader", || {
        pair.wait_for_leader(0);
        let (code, text) = pair.command(0, &["step-down"]);
        assert!(code == 0 || text.contains("does not lead"), "{code}: {text}");
        (code == 0).then_some(())
    });
    // It would lead again if the other one were late.
    pair.kill(0);
    pair.add(1, start_elected(&store, addresses[1], 1));
    pair.wait_for_leader(1);
    assert_eq!(pair.client(1).read("ns/cached"), Ok(Some(b"cached".to_vec())));
}

#[test]
fn a_host_with_writer_cache_is_refused_once_another_one_is_elected_and_its_journal_is_set_aside() {
    let store = pair::store();
    let addresses = [free_port(), free_port()];
    let mut pair = Pair::of([Some(start_as_cache(&store, addresses[0])), None], addresses);
    let old = pair.client(0);
    old.write("ns/stored", b"old").and_then(|()| old.flush()).expect("it is stored");
    old.write("ns/kept", b"kept").and_then(|()| old.flush()).expect("it is stored");
    assert_eq!(write(&old, "ns/stored", b"journaled", Durability::Journaled), Durability::Journaled);

    // The old host still runs.
    pair.add(1, start_elected(&store, addresses[1], 1));
    pair.wait_for_leader(1);
    let new = pair.client(1);
    assert_eq!(new.read("ns/stored"), Ok(Some(b"old".to_vec())));
    let (written, flushed) = (old.write("ns/kept", b"refused"), old.flush());
    assert!(flushed.is_err(), "another host leads: {written:?}, {flushed:?}");
    new.write("ns/stored", b"new").and_then(|()| new.flush()).expect("it is stored");

    // The old host joins the election, and does not touch its journal as a standby.
    pair.host(0).configure(|text| elected(&text, 0));
    pair.restart(0, libc::SIGKILL);
    wait_for("it is a standby", || (pair.report(0)["leader"]["node"] == NODES[1]).then_some(()));
    let journal = pair.host(0).path("journal");
    let kept = journal.join("overtaken-1");
    assert!(!kept.exists());
    pair.wait_for_candidate(0);

    let (code, text) = pair.command(1, &["prefer", NODES[0]]);
    assert_eq!(code, 0, "{text}");
    pair.wait_for_leader(0);
    let client = pair.client(0);
    assert_eq!(client.read("ns/stored"), Ok(Some(b"new".to_vec())));
    assert_eq!(client.read("ns/kept"), Ok(Some(b"kept".to_vec())));
    wait_for("the report", || {
        (pair.report(0)["overtaken_journals"] == serde_json::json!([kept])).then_some(())
    });
    assert_eq!(pair.host(0).metric("cached_leader_overtaken_journals"), Some(1.0));
    let (_, status) = pair.host(0).cachectl(&["leader", "status"]);
    assert!(status.contains(&format!("`cachectl journal export {}", kept.display())), "{status}");
    let log = pair.host(0).log();
    assert_eq!(log.matches("overtaken-1 of its directory").count(), 1, "{log}");

    // The changes of the journal can be exported, and were not applied.
    let (code, text) = pair.host(0).cachectl(&["journal", "inspect", kept.to_str().expect("a path")]);
    assert!(code == 0 && text.contains("ns: "), "{code}: {text}");
    let saved = pair.host(0).path("saved");
    let (kept, to) = (kept.to_str().expect("a path"), saved.to_str().expect("a path"));
    let (code, text) = pair.host(0).cachectl(&["journal", "export", kept, to]);
    assert_eq!(code, 0, "{text}");
    let object = pair.host(0).path("object");
    let (backend, object) = (format!("file:{to}"), object.to_str().expect("a path"));
    let (code, text) =
        pair.host(0).cachectl(&["--backend", &backend, "--namespace", "ns", "get", "stored", object]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(std::fs::read(object).expect("the object"), b"journaled");
    client.write("ns/stored", b"last").and_then(|()| client.flush()).expect("it leads with its journal");
}
