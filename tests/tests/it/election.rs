//! Two hosts with an elected writer over one store: who leads, what a takeover keeps, and that a
//! host that no longer leads serves nothing.

use blocker::Error;
use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::ending::SetOnDrop;
use cached_tests::http;
use cached_tests::outside::text;
use cached_tests::pair::{self, Client, Host, NODES, Pair, is_listening};
use cached_tests::program::workspace_programs;
use cached_tests::reference;
use cached_tests::server::free_port;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use test_kit::memory_directory;

/// The lease, in seconds, for tests in which it ends, or in which a host rests for its duration. A host serves
/// for two thirds of it, and renews it after a fifth, on a disk after a third: so it does not end earlier if the
/// machine stands still for four seconds.
const ENDING_SECS: u64 = 12;
/// The lease, in seconds, for tests in which it does not end.
const LASTING_SECS: u64 = 30;
const REGISTRY: &str = "kind = \"store\"\npoll_ms = 100\ntimeout_ms = 60000\n";
/// Settings with which nothing is stored because of its age.
const BACK: &str = "write = \"back\"\ndirty_age_ms_max = 86400000\n";

/// Writes the number of each round to an object, and flushes it, until `ends` is set or the store
/// refuses. Records the last flushed number.
fn load(client: &Client, flushed: &AtomicU64, ends: &AtomicBool) -> Option<Error> {
    for round in flushed.load(Ordering::SeqCst) + 1.. {
        if ends.load(Ordering::SeqCst) {
            return None;
        }
        let written = client.write("ns/load", &round.to_le_bytes()).and_then(|()| client.flush());
        if let Err(error) = written {
            return Some(error);
        }
        flushed.store(round, Ordering::SeqCst);
    }
    None
}

fn number(client: &Client) -> u64 {
    let bytes = client.read("ns/load").expect("it is read").expect("it exists");
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

#[test]
fn one_host_serves_and_the_other_refuses_clients_and_reports_who_leads() {
    let store = pair::store();
    let pair = Pair::start(LASTING_SECS, &pair::backend(&store), REGISTRY, BACK);
    let leader = pair.leader();
    let standby = 1 - leader;

    // The standby refuses clients, and reports who leads.
    assert!(!is_listening(pair.addresses[standby]));
    wait_for("the standby knows the leader", || {
        (pair.report(standby)["leader"]["node"] == NODES[leader]).then_some(())
    });
    let (status, body) = http::get(&pair.host(standby).admin, "/readyz");
    let line = format!("standby: {} at {} leads", NODES[leader], pair.addresses[leader]);
    assert_eq!(status, 503, "{body}");
    assert!(body.contains(&line), "{body}");
    assert_eq!(http::get(&pair.host(standby).admin, "/livez").0, 200);
    let (_, metrics) = http::get(&pair.host(leader).admin, "/metrics");
    reference::compare(&metrics, |name| name.starts_with("cached_leader"), |_| false);
    assert_eq!(pair.host(leader).metric("cached_leader"), Some(1.0));
    assert_eq!(pair.host(standby).metric("cached_leader"), Some(0.0));
    assert_eq!(pair.host(leader).metric("cached_leader_changes_total{reason=\"granted\"}"), Some(1.0));
    assert!(pair.host(leader).metric("cached_leader_lease_remaining_seconds") > Some(0.0));
    let epoch = pair.report(leader)["epoch"].as_u64().expect("an epoch");
    assert_eq!(pair.report(standby)["leader"]["epoch"], epoch);

    // Clients cannot change the registry of the election.
    let client = pair.client(leader);
    let refused = client.write("registry/leader", b"x");
    assert!(matches!(&refused, Err(Error::Denied(_))), "{refused:?}");
}

#[test]
fn a_host_takes_over_from_a_killed_one_with_all_that_is_stored() {
    let store = pair::store();
    let mut pair = Pair::start(ENDING_SECS, &pair::backend(&store), REGISTRY, BACK);
    let leader = pair.leader();
    let standby = 1 - leader;
    let client = pair.client(leader);
    client.write("ns/stored", b"stored").expect("it is written");
    client.flush().expect("it is stored");
    client.write("ns/cached", b"cached").expect("it is written");
    assert_eq!(client.read("ns/cached"), Ok(Some(b"cached".to_vec())));
    let epoch = pair.report(leader)["epoch"].as_u64().expect("an epoch");

    pair.kill(leader);
    let killed = Instant::now();
    pair.wait_for_leader(standby);
    let took = killed.elapsed();
    let client = pair.client(standby);
    assert_eq!(client.read_from_leader("ns/stored"), Some(b"stored".to_vec()));
    assert_eq!(client.read_from_leader("ns/cached"), None, "it was acknowledged as cached only");
    wait_for("the next leader writes and stores", || {
        client.write("ns/stored", b"again").and_then(|()| client.flush()).ok()
    });
    wait_for("a later epoch", || (pair.report(standby)["epoch"].as_u64() > Some(epoch)).then_some(()));
    // The duration is not asserted, because the machine may be busy.
    println!("a takeover after a kill took {took:?}, with a lease of {ENDING_SECS} s");
}

#[test]
fn hosts_elect_by_a_disk_that_they_share() {
    // In memory, because on a slow disk a third of the lease would not be enough.
    let (store, dir) = (pair::store(), memory_directory());
    let path = dir.path().join("registry");
    let host = |host: usize| Host {
        backend: pair::backend(&store),
        registry: format!(
            "kind = \"disk\"\npath = \"{}\"\nnodes = 2\nnode = {host}\ncreate = true\n",
            path.display()
        ),
        ..Host::default()
    };
    let mut pair = Pair::start_each("cached", ENDING_SECS, host, BACK);
    let leader = pair.leader();
    let standby = 1 - leader;
    let client = pair.client(leader);
    client.write("ns/a", b"stored").expect("it is written");
    client.flush().expect("it is stored");
    wait_for("the standby knows the leader by its name", || {
        (pair.report(standby)["leader"]["node"] == NODES[leader]).then_some(())
    });
    assert!(!is_listening(pair.addresses[standby]));

    pair.wait_for_candidate(standby);
    let (code, text) = pair.command(leader, &["prefer", NODES[standby]]);
    assert_eq!(code, 0, "{text}");
    pair.wait_for_leader(standby);
    assert_eq!(pair.client(standby).read("ns/a"), Ok(Some(b"stored".to_vec())));
    pair.kill(standby);
    pair.wait_for_leader(leader);
    assert_eq!(pair.client(leader).read_from_leader("ns/a"), Some(b"stored".to_vec()));
}

#[test]
fn a_host_that_was_stopped_beyond_its_lease_answers_nothing_and_becomes_a_standby() {
    let store = pair::store();
    let pair = Pair::start(ENDING_SECS, &pair::backend(&store), REGISTRY, BACK);
    let stopped = pair.leader();
    let next = 1 - stopped;
    let client = pair.client(stopped);
    client.write("ns/a", b"old").expect("it is written");
    client.flush().expect("it is stored");
    client.write("ns/unstored", b"unstored").expect("it is written");

    pair.host(stopped).signal(libc::SIGSTOP);
    pair.wait_for_leader(next);
    let second = pair.client(next);
    wait_for("the next leader writes and stores", || {
        second.write("ns/a", b"new").and_then(|()| second.flush()).ok()
    });

    // The socket of the stopped host contains this request when the host continues.
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.read("ns/a"));
        // The delay is usually long enough for the request to be sent. Whether or not it has been
        // sent, it must not be answered.
        std::thread::sleep(Duration::from_millis(100));
        pair.host(stopped).signal(libc::SIGCONT);
        asked.join().expect("the reader")
    });
    assert_ne!(asked, Ok(Some(b"old".to_vec())), "an answer from a host that no longer leads");
    wait_for("it is a standby", || {
        let report = pair.report(stopped);
        (report["role"] == "standby" && report["leader"]["node"] == NODES[next]).then_some(())
    });
    wait_for("it refuses clients", || (!is_listening(pair.addresses[stopped])).then_some(()));
    assert_eq!(second.read("ns/a"), Ok(Some(b"new".to_vec())));
    assert_eq!(second.read("ns/unstored"), Ok(None));
    wait_for("the loss is counted", || {
        (pair.host(stopped).metric("cached_leader_lost_bytes_total") > Some(0.0)).then_some(())
    });
    wait_for("the loss is logged", || {
        pair.host(stopped).log().contains("acknowledged writes that are not stored").then_some(())
    });
}

#[test]
fn a_leader_steps_down_and_reloads_without_a_loss() {
    let store = pair::store();
    let pair = Pair::start(ENDING_SECS, &pair::backend(&store), REGISTRY, BACK);
    let first = pair.leader();
    let second = 1 - first;

    // The leader steps down under load: no flushed data are missing, and no late change appears.
    let (flushed, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let client = pair.client(first);
    let under_load = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&client, &flushed, &ends));
        wait_for("some rounds", || (flushed.load(Ordering::SeqCst) >= 5).then_some(()));
        // The load ends even if a later step fails.
        let over = SetOnDrop(&ends);
        let (code, text) = pair.command(first, &["step-down"]);
        assert_eq!(code, 0, "{text}\n{}", pair.host(first).log());
        // It would lead again if the other one were late.
        pair.host(first).signal(libc::SIGSTOP);
        pair.wait_for_leader(second);
        pair.host(first).signal(libc::SIGCONT);
        // The host that stepped down refuses the load.
        let refused = load.join().expect("the load");
        drop(over);
        assert!(refused.is_some());
        refused
    });
    let last = flushed.load(Ordering::SeqCst);
    let client = pair.client(second);
    let found = number(&client);
    assert!((last..=last + 1).contains(&found), "{found} after {last}, {under_load:?}");

    // A standby cannot step down, and a leader steps down only if there is a successor.
    wait_for("it knows the leader", || (pair.report(first)["leader"]["node"] == NODES[second]).then_some(()));
    let (code, text) = pair.command(first, &["step-down"]);
    assert!(code != 0 && text.contains(&format!("{} at", NODES[second])), "{code}: {text}");
    let (code, text) = pair.command(second, &["prefer", "three"]);
    assert!(code != 0 && text.contains("three is not a candidate"), "{code}: {text}");
    assert!(pair.serves(second), "it leads as before");
    client.write("ns/after", b"refused").expect("it serves as before");

    // A standby applies a reloaded configuration to the next cache that it opens.
    pair.host(first).configure(|text| text.replace("86400000", "86300000"));
    let (code, text) = pair.host(first).cachectl(&["reload"]);
    assert_eq!(code, 0, "{text}");

    pair.wait_for_candidate(first);
    let (code, text) = pair.command(second, &["prefer", NODES[first]]);
    assert_eq!(code, 0, "{text}");
    pair.wait_for_leader(first);
    assert_eq!(pair.client(first).read("ns/after"), Ok(Some(b"refused".to_vec())));
    let (code, text) = pair.command(first, &["status"]);
    assert!(code == 0 && text.contains("leader"), "{code}: {text}");
}

/// In a planned restart, the next process of the same host leads.
#[test]
fn a_restart_in_order_keeps_the_lead_at_its_host_and_loses_nothing() {
    for program in ["cached", "synapsed"] {
        let store = pair::store();
        let host = |_| Host { backend: pair::backend(&store), registry: REGISTRY.into(), ..Host::default() };
        let mut pair = Pair::start_each(program, LASTING_SECS, host, BACK);
        let leader = pair.leader();
        let other = 1 - leader;
        pair.client(leader).write("ns/restart", b"kept").expect("it is written");
        let changes = pair.report(other)["changes"]["granted"].as_u64();
        pair.restart(leader, libc::SIGTERM);
        pair.wait_for_leader(leader);
        assert_eq!(pair.client(leader).read("ns/restart"), Ok(Some(b"kept".to_vec())), "{program}");
        let now = pair.report(other)["changes"]["granted"].as_u64();
        assert_eq!(now, changes, "{program}: the other host did not lead");
    }
}

#[test]
fn a_live_upgrade_of_the_leader_keeps_the_lead_at_its_host() {
    let store = pair::store();
    let host = |_| Host {
        backend: pair::backend(&store),
        registry: REGISTRY.into(),
        more: "[process]\nupgrade_timeout_secs = 300\n".into(),
        ..Host::default()
    };
    let pair = Pair::start_each("cached", LASTING_SECS, host, BACK);
    let leader = pair.leader();
    let client = pair.client(leader);
    client.write("ns/a", b"before").expect("it is written");
    let pid = pair.host(leader).pid();
    let epoch = pair.report(leader)["epoch"].as_u64();
    pair.host(leader).signal(libc::SIGUSR2);
    wait_for("the next process leads", || {
        let (status, body) = http::get(&pair.host(leader).admin, "/status.json");
        (status == 200).then_some(())?;
        let status: serde_json::Value = serde_json::from_str(&body).ok()?;
        let leads = status["election"]["role"] == "leader" && status["pid"].as_i64() != Some(i64::from(pid));
        (leads && is_listening(pair.addresses[leader])).then_some(())
    });
    assert!(pair.report(leader)["epoch"].as_u64() > epoch);
    assert_eq!(pair.client(leader).read("ns/a"), Ok(Some(b"before".to_vec())));
    assert!(!is_listening(pair.addresses[1 - leader]), "the other host has not led");

    // The harness itself ends only a host's first process.
    let (code, text) = pair.host(leader).cachectl(&["drain"]);
    assert_eq!(code, 0, "{text}");
    let admin = pair.host(leader).admin.parse().expect("an address");
    wait_for("the next process ends", || (!is_listening(admin)).then_some(()));
}

/// A host that could not rejoin the election after a failed upgrade has nothing to hand over to the
/// next one.
#[test]
fn an_upgrade_of_a_standby_does_not_wait_for_a_store_that_is_away() {
    let store = pair::store();
    let address = free_port();
    let host = Daemon::start("cached", |_| {
        format!(
            "[process]\nupgrade_timeout_secs = 2\n[objects]\nwriter = \"elected\"\nmemory_bytes_max = \"16 MiB\"\n\
             shutdown_flush_secs = 1\n[objects.election]\nlease_secs = 1\n[objects.backend]\n{}[registry]\n\
             kind = \"store\"\npoll_ms = 100\n[synapse]\nlisten = [\"{address}\"]\nthreads = 1\n",
            pair::backend(&store)
        )
    });
    wait_for("it leads", || (http::get(&host.admin, "/readyz").0 == 200).then_some(()));
    drop(store);
    let mut asked = 0;
    wait_for("two upgrades for which the host leaves the election", || {
        let log = host.log();
        // The new process waits for the store, until the old process continues. An upgrade can also
        // fail because the lease has not ended yet.
        if log.matches("the upgrade has failed").count() == asked {
            host.signal(libc::SIGUSR2);
            asked += 1;
        }
        (log.matches("has left the election").count() == 2).then_some(())
    });
    // Otherwise the new process would outlive the old one, which is killed at the end of the test.
    wait_for("the last upgrade fails", || {
        (host.log().matches("the upgrade has failed").count() == asked).then_some(())
    });
}

#[test]
fn a_pair_of_synapsed_steps_down_and_takes_over_like_one_of_cached() {
    let store = pair::store();
    let http = [free_port(), free_port()];
    let host = |host: usize| Host {
        backend: pair::backend(&store),
        registry: REGISTRY.into(),
        more: format!("[objects.http]\nlisten = [\"{}\"]\nthreads = 1\n", http[host]),
        ..Host::default()
    };
    let mut pair = Pair::start_each("synapsed", ENDING_SECS, host, BACK);
    let first = pair.leader();
    let second = 1 - first;
    assert!(is_listening(http[first]), "the leader serves HTTP");
    assert!(!is_listening(pair.addresses[second]) && !is_listening(http[second]), "the standby refuses");
    wait_for("the standby knows the leader", || {
        let (status, body) = http::get(&pair.host(second).admin, "/readyz");
        let line = format!("standby: {} at {} leads", NODES[first], pair.addresses[first]);
        (status == 503 && body.contains(&line)).then_some(())
    });
    assert_eq!(pair.host(first).metric("cached_leader"), Some(1.0));
    assert_eq!(pair.host(second).metric("cached_leader"), Some(0.0));

    // A step-down stores what is only cached.
    pair.client(first).write("ns/a", b"cached").expect("it is written");
    let (code, text) = pair.command(first, &["step-down"]);
    assert_eq!(code, 0, "{text}\n{}", pair.host(first).log());
    // It would lead again if the other one were late.
    pair.host(first).signal(libc::SIGSTOP);
    pair.wait_for_leader(second);
    pair.host(first).signal(libc::SIGCONT);
    assert_eq!(pair.client(second).read("ns/a"), Ok(Some(b"cached".to_vec())));
    wait_for("HTTP follows the lead", || {
        (is_listening(http[second]) && !is_listening(http[first])).then_some(())
    });
    (0..2).for_each(|host| pair.wait_for_candidate(host));
    let (code, text) = pair.host(first).cachectl(&["registry"]);
    assert!(code == 0 && NODES.iter().all(|node| text.contains(&format!("candidates/{node}"))), "{text}");
    let curves = pair.host(second).json("/mrc.json")["curves"].clone();
    assert!(curves.as_array().is_some_and(|curves| !curves.is_empty()), "{curves}");

    // A reload takes effect at the leader at once, and at the standby with its next cache.
    for host in [second, first] {
        pair.host(host).configure(|text| text.replace("86400000", "86300000"));
        let (code, text) = pair.host(host).cachectl(&["reload"]);
        assert!(code == 0 && text.contains("objects.dirty_age_ms_max"), "{text}");
    }

    pair.client(second).write("ns/lost", b"lost").expect("it is written");
    pair.kill(second);
    pair.wait_for_leader(first);
    let client = pair.client(first);
    assert_eq!(client.read_from_leader("ns/a"), Some(b"cached".to_vec()));
    assert_eq!(client.read_from_leader("ns/lost"), None, "it was acknowledged as cached only");
}

#[test]
fn configurations_that_cannot_keep_their_promises_are_refused_with_the_reason() {
    let base = "[objects]\nwriter = \"elected\"\n[objects.backend]\nkind = \"synapse\"\naddress = \"h:1\"\n\
                [registry]\nkind = \"store\"\n[synapse]\nlisten = [\"127.0.0.1:7\"]\n";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("c.toml");
    let check = |program: &str, configuration: &str| {
        std::fs::write(&path, configuration).expect("a file");
        let mut command = Command::new(workspace_programs().join(program));
        let output = command.arg("--config").arg(&path).arg("--check-config").output().expect("it runs");
        (output.status.success(), text(&output))
    };
    let (is_right, said) = check("cached", base);
    assert!(is_right, "{said}");
    let (is_right, said) =
        check("cached", &format!("{base}[objects.journal]\ndirectory = \"/j\"\n[volumes]\n"));
    assert!(is_right, "{said}");
    let replaced = |from: &str, to: &str| {
        assert!(base.contains(from), "{from}");
        base.replace(from, to)
    };
    for (configuration, why) in [
        (
            replaced("[registry]\nkind = \"store\"\n", ""),
            "objects.writer: is \"elected\", which needs a [registry]",
        ),
        (
            replaced("kind = \"store\"", "kind = \"file\"\npath = \"/r\""),
            "registry.kind: is \"file\", which cannot elect a writer",
        ),
        (
            replaced("\"elected\"\n", "\"elected\"\ndurability = \"journaled\"\n"),
            "objects.durability: is \"journaled\"; it must be \"cached\"",
        ),
        (
            format!("{base}[[objects.namespaces]]\nname = \"n\"\ndurability = \"journaled\"\n"),
            "objects.namespaces[0].durability: is \"journaled\"",
        ),
        (
            format!("{base}[volumes]\nfua = \"journaled\"\n"),
            "volumes.fua: is \"journaled\"; with writer = \"elected\"",
        ),
        (
            replaced("kind = \"synapse\"\naddress = \"h:1\"", "kind = \"memory\""),
            "objects.backend.kind: is \"memory\", which other hosts cannot open",
        ),
        (
            replaced("kind = \"synapse\"\naddress = \"h:1\"", "kind = \"file\"\npath = \"/s\""),
            "objects.backend.kind: is \"file\", which only one process can open; run synapsed over the directory",
        ),
        (
            replaced("\"127.0.0.1:7\"]", "\"0.0.0.0:7\"]\nallow_exposed = true"),
            "objects.election.address: is \"0.0.0.0:7\", which other hosts cannot",
        ),
        (replaced("[synapse]\nlisten = [\"127.0.0.1:7\"]\n", ""), "objects.election.address: is missing"),
        (
            format!("{base}[objects.election]\nnode = \"a b\"\n"),
            "objects.election.node: is \"a b\"; it must consist of",
        ),
        (format!("{base}[objects.election]\nlease_secs = 0\n"), "objects.election.lease_secs: is 0"),
        (
            format!("{}[objects.election]\n", replaced("\"elected\"", "\"cache\"")),
            "objects.election: has no effect without writer = \"elected\"",
        ),
        (format!("{base}[shared_memory]\n"), "shared_memory: cannot be used with writer = \"elected\""),
    ] {
        let (is_right, said) = check("cached", &configuration);
        assert!(!is_right && said.contains(why), "{configuration}\n{said}\nexpected {why}");
    }
    // The same tables in synapsed, which names the store at the top.
    let base = base.replace("[objects.backend]", "[backend]");
    let (is_right, said) = check("synapsed", &base);
    assert!(is_right, "{said}");
    for (from, to, why) in [
        ("[registry]\nkind = \"store\"\n", "", "objects.writer: is \"elected\", which needs a [registry]"),
        ("kind = \"store\"\n", "kind = \"store\"\npoll_ms = 0\n", "registry.poll_ms: is 0"),
        (
            "kind = \"synapse\"\naddress = \"h:1\"",
            "kind = \"file\"\npath = \"/s\"",
            "backend.kind: is \"file\", which only one process can open; run synapsed over the directory",
        ),
        (
            "\"127.0.0.1:7\"]",
            "\"0.0.0.0:7\"]\nallow_exposed = true",
            "objects.election.address: is \"0.0.0.0:7\", which other hosts cannot",
        ),
        (
            "writer = \"elected\"\n",
            "writer = \"elected\"\ndurability = \"journaled\"\n",
            "objects.durability: is \"journaled\"; it must be \"cached\"",
        ),
    ] {
        assert!(base.contains(from), "{from}");
        let configuration = base.replace(from, to);
        let (is_right, said) = check("synapsed", &configuration);
        assert!(!is_right && said.contains(why), "{configuration}\n{said}\nexpected {why}");
    }
}
