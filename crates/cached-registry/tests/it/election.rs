//! The election in real time: on a disk, and with registries that cannot elect.

use std::time::Duration;

use blocker::{Epoch, WriterId};
use cached_registry::election::{Candidate, Cause, Claimed, Elector, Leadership, Part, Release, elect};
use cached_registry::{Registry, Result};
use test_kit::memory_directory;
use test_kit::outside::are_installed;

use crate::bodies::{on_disk, run, table};
use crate::contract::create;
use crate::etcd_server::Etcd;

/// The lease on a disk, where a host looks for changes several times during each lease.
const LEASE: Duration = Duration::from_secs(9);

/// The lease where the registry reports changes, so that nothing waits for a part of the lease.
const LONG_LEASE: Duration = Duration::from_secs(60);

fn candidate(node: &str) -> Candidate {
    Candidate { node: node.into(), address: format!("{node}:1"), writer: WriterId::random() }
}

/// Starts a host that takes part in the election, and whose store grants every claim.
fn host(registry: &Registry, node: &str, lease: Duration) -> (Elector, tokio::task::JoinHandle<Result<()>>) {
    let granted = |_: Epoch| -> cached_registry::election::Claiming { Box::pin(async { Claimed::Granted }) };
    let (elector, running) = elect(registry, candidate(node), lease, granted).unwrap();
    (elector, tokio::spawn(running))
}

async fn until(elector: &Elector, wanted: impl Fn(&Part) -> bool) -> Leadership {
    let mut watch = elector.watch();
    watch.wait_for(|leadership| wanted(&leadership.part)).await.unwrap().clone()
}

fn follows(node: &str) -> impl Fn(&Part) -> bool {
    move |part| matches!(part, Part::Standby { leader: Some(leader) } if leader.node == node)
}

#[test]
fn a_disk_elects_a_leader_beside_its_documents() {
    let dir = memory_directory();
    let path = dir.path().join("disk");
    run(a_leader_steps_down_for_its_successor([0, 1].map(|node| on_disk(&path, node)), LEASE));
}

#[test]
fn etcd_elects_a_leader() {
    if !are_installed("etcd_elects_a_leader", &["etcd"]) {
        return;
    }
    let etcd = Etcd::start(false);
    let text = format!("kind = \"etcd\"\ntimeout_ms = 60000\nendpoints = [\"{}\"]", etcd.url);
    let open = || Registry::open(&table(&text), None).unwrap();
    run(a_leader_steps_down_for_its_successor([open(), open()], LONG_LEASE));
}

async fn a_leader_steps_down_for_its_successor(registries: [Registry; 2], duration: Duration) {
    let (a, _a_running) = host(&registries[0], "a", duration);
    let first = until(&a, Part::is_leading).await;
    assert_eq!(first.cause, Cause::Granted);
    let lease = a.lease().unwrap();
    let (b, b_running) = host(&registries[1], "b", duration);
    let Part::Standby { leader: Some(leader) } = until(&b, follows("a")).await.part else { panic!() };
    assert_eq!(leader.address, "a:1");
    create(&registries[1], "documents", "are independent").await;
    assert!(lease.holds());
    while registries[0].list("candidates/").await.unwrap().documents.len() < 2 {
        tokio::task::yield_now().await;
    }
    let nobody = a.step_down(Release::To("c".into())).await.unwrap_err();
    assert_eq!(nobody.to_string(), "c is not a candidate; the candidates are a, b");
    a.step_down(Release::To("b".into())).await.unwrap();
    assert!(!lease.holds());
    let second = until(&b, Part::is_leading).await;
    until(&a, follows("b")).await;
    let (Part::Leading { epoch: first, .. }, Part::Leading { epoch: second, .. }) = (first.part, second.part)
    else {
        panic!()
    };
    assert!(first < second);
    let refused = a.step_down(Release::Anyone).await.unwrap_err();
    assert_eq!(refused.to_string(), "this host does not lead, but b does");
    // A process whose handles are dropped leaves the election.
    drop(b);
    b_running.await.unwrap().unwrap();
}

#[test]
fn a_second_process_with_a_number_ends_the_part_of_the_first() {
    let dir = memory_directory();
    let path = dir.path().join("disk");
    let registries = [0, 0].map(|node| on_disk(&path, node));
    run(async {
        let (first, running) = host(&registries[0], "a", LEASE);
        until(&first, Part::is_leading).await;
        let lease = first.lease().unwrap();
        first.step_down(Release::To("a".into())).await.unwrap();
        let (second, _running) = host(&registries[1], "a", LEASE);
        until(&second, Part::is_leading).await;
        let ended = running.await.unwrap().unwrap_err().to_string();
        assert!(ended.contains("another process writes the block of node 0"), "{ended}");
        assert!(!lease.holds() && first.lease().is_none());
    });
}

#[test]
fn an_election_that_is_not_possible_is_refused() {
    let granted = |_: Epoch| -> cached_registry::election::Claiming { Box::pin(async { Claimed::Granted }) };
    let refusal = |registry: &Registry, node: &str, lease| {
        let refused = elect(registry, candidate(node), lease, granted).map(drop);
        refused.unwrap_err().to_string()
    };
    let dir = tempfile::tempdir().unwrap();
    let disk = on_disk(&dir.path().join("disk"), 0);
    assert_eq!(
        refusal(&disk, "a/b", LEASE),
        "the node's name \"a/b\" has other characters than letters, digits and -_.:, or too many"
    );
    assert_eq!(refusal(&disk, "a", LEASE / 18), "a lease of 500ms; it must last 1s or longer");
    let path = dir.path().join("documents");
    std::fs::write(&path, "a = \"1\"").unwrap();
    let file = Registry::open(&table(&format!("kind = \"file\"\npath = \"{}\"", path.display())), None);
    assert_eq!(refusal(&file.unwrap(), "a", LEASE), "the registry is a file, which cannot elect a leader");
}
