//! The bodies in a store and on a disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, ClaimRequest, Epoch, FileStore, Memory, Scope, WriterId};
use cached_registry::{Change, Error, Expect, Registry, RegistryTable};

use crate::contract::{check, create, key};

/// Runs `test` with timers and two threads, so that blocking work of one host delays no other.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap().block_on(test)
}

pub(crate) fn table(text: &str) -> RegistryTable {
    toml::from_str(text).unwrap()
}

/// The time limit of a request is the longest: a write may wait for a slow disk.
pub(crate) fn in_store(store: &Arc<dyn Blocker>) -> Registry {
    let text = "kind = \"store\"\npoll_ms = 20\ntimeout_ms = 60000";
    Registry::open(&table(text), Some(Arc::clone(store))).unwrap()
}

pub(crate) fn on_disk(path: &Path, node: usize) -> Registry {
    let path = path.display();
    let text =
        format!("kind = \"disk\"\npath = \"{path}\"\nnodes = 3\nnode = {node}\ncreate = true\npoll_ms = 20");
    Registry::open(&table(&text), None).unwrap()
}

/// Makes as many changes as a table remembers.
async fn fill(registry: &Registry) {
    for round in 0..2 {
        let put = |index: usize| Change::put(key(&format!("fill/{round}/{index}")), Expect::Absent, "");
        registry.change_if(&(0..cached_registry::CHANGES_MAX).map(put).collect::<Vec<_>>()).await.unwrap();
    }
}

#[test]
fn a_store_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    FileStore::create(dir.path()).unwrap();
    let stores: [Arc<dyn Blocker>; 2] =
        [Arc::new(Memory::default()), Arc::new(FileStore::open(dir.path()).unwrap())];
    for store in stores {
        let (a, b) = (in_store(&store), in_store(&store));
        run(check(&a, &b, || fill(&a)));
    }
}

#[test]
fn a_disk_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let (a, b) = (on_disk(&path, 0), on_disk(&path, 2));
    run(check(&a, &b, || fill(&a)));
    // A process that returns receives all documents.
    drop(a);
    let returned = on_disk(&path, 0);
    run(async {
        assert_eq!(returned.list("").await, b.list("").await);
        create(&returned, "returned", "x").await;
        assert!(b.get(&key("returned")).await.unwrap().is_some());
    });
}

#[test]
fn a_registry_survives_claims_of_the_whole_store() {
    let store: Arc<dyn Blocker> = Arc::new(Memory::default());
    let (a, b) = (in_store(&store), in_store(&store));
    run(async {
        create(&a, "before", "x").await;
        for epoch in [3, 7] {
            block_on(store.claim(ClaimRequest::new(Scope::All, Epoch(epoch), WriterId::random()))).unwrap();
            for (host, name) in [(&a, "a"), (&b, "b"), (&a, "c")] {
                create(host, &format!("{name}/{epoch}"), "x").await;
            }
        }
        assert_eq!(in_store(&store).list("").await.unwrap().documents.len(), 7);
    });
}

#[test]
fn a_damaged_table_is_reported() {
    let store: Arc<dyn Blocker> = Arc::new(Memory::default());
    let registry = in_store(&store);
    run(async {
        create(&registry, "a", "x").await;
        store.put(&"registry/table".parse().unwrap(), b"{}").await.unwrap();
        let error = registry.get(&key("a")).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
        assert!(registry.change_if(&[Change::put(key("b"), Expect::Absent, "x")]).await.is_err());
    });
}

#[test]
fn a_registry_in_a_file_refuses_changes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a = \"1\"").unwrap();
    let text = format!("kind = \"file\"\npath = \"{}\"", file.path().display());
    let registry = Registry::open(&table(&text), None).unwrap();
    run(async {
        assert_eq!(registry.get(&key("a")).await.unwrap().unwrap().value, "1");
        let refused = registry.change_if(&[Change::put(key("b"), Expect::Absent, "x")]).await.unwrap_err();
        assert!(refused.to_string().ends_with("is read-only: change the file, and reload it"), "{refused}");
        assert_eq!(registry.grant(Duration::from_secs(9)).await, Err(refused));
        std::fs::write(file.path(), "a = \"2\"").unwrap();
        registry.reload().unwrap();
        assert_eq!(registry.get(&key("a")).await.unwrap().unwrap().value, "2");
    });
}

#[test]
fn what_cannot_be_opened_is_one_line() {
    for (text, why) in [
        ("kind = \"store\"", "registry.kind: is \"store\", but there is no store"),
        ("kind = \"file\"\npath = \"/no/file\"", "/no/file: No such file or directory"),
        (
            "kind = \"etcd\"\nendpoints = [\"http://h:1\"]\nuser = \"u\"\npassword_file = \"/no/file\"",
            "registry.password_file: cannot read /no/file: No such file or directory",
        ),
        (
            "kind = \"etcd\"\nendpoints = [\"https://h:1\"]\nca_file = \"/no/file\"",
            "registry.ca_file: /no/file: No such file or directory",
        ),
        (
            "kind = \"disk\"\npath = \"/dev/null\"\nnodes = 2",
            "/dev/null cannot be used as a registry: it is neither a file nor a block device",
        ),
    ] {
        assert_eq!(Registry::open(&table(text), None).unwrap_err().to_string(), why);
    }
}
