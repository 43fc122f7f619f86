//! The body in etcd.

use std::time::Duration;

use cached_registry::{Change, Error, Expect, Registry};
use test_kit::outside::are_installed;

use crate::bodies::{run, table};
use crate::contract::{check, create, key, until};
use crate::etcd_server::{Etcd, free_port};

/// The time limit of a request is the longest: etcd may wait for a slow disk.
fn open(keys: &str) -> Registry {
    open_within(60_000, keys)
}

fn open_within(timeout_ms: u64, keys: &str) -> Registry {
    let text = format!("kind = \"etcd\"\ntimeout_ms = {timeout_ms}\n{keys}");
    Registry::open(&table(&text), None).unwrap()
}

/// Makes etcd forget all changes but the last.
fn compact(etcd: &Etcd, token: Option<&str>) {
    let answer = etcd.post("kv/range", "{\"key\":\"AA==\"}", token);
    let revision = answer["header"]["revision"].as_str().unwrap();
    etcd.post("kv/compaction", &format!("{{\"revision\":\"{revision}\"}}"), token);
}

/// Makes etcd require passwords. Returns a token of the user `root`.
fn enable_passwords(etcd: &Etcd) -> String {
    for (method, request) in [
        ("auth/user/add", "{\"name\":\"root\",\"password\":\"secret\"}"),
        ("auth/role/add", "{\"name\":\"root\"}"),
        ("auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}"),
        ("auth/user/add", "{\"name\":\"guest\",\"password\":\"guest\"}"),
        ("auth/enable", "{}"),
    ] {
        etcd.post(method, request, None);
    }
    let answer = etcd.post("auth/authenticate", "{\"name\":\"root\",\"password\":\"secret\"}", None);
    answer["token"].as_str().unwrap().to_owned()
}

#[test]
fn etcd_keeps_the_contract() {
    if !are_installed("etcd_keeps_the_contract", &["etcd"]) {
        return;
    }
    let mut etcd = Etcd::start(false);
    // Nothing listens at the first endpoint.
    let dead = free_port();
    let registry = open(&format!("endpoints = [\"http://127.0.0.1:{dead}\", \"{}\"]", etcd.url));
    let other = open(&format!("endpoints = [\"{}/\"]", etcd.url));
    run(check(&registry, &other, || async { tokio::task::block_in_place(|| compact(&etcd, None)) }));
    // Another prefix is another registry. An etcd key that is not a valid document key is ignored.
    let separate = open(&format!("endpoints = [\"{}\"]\nprefix = \"separate/\"", etcd.url));
    etcd.post("kv/put", "{\"key\":\"c2VwYXJhdGUvYSBi\",\"value\":\"eA==\"}", None);
    run(async { assert_eq!(separate.list("").await.unwrap().documents, []) });
    run(quiet_documents_are_watched_across_a_compaction(&separate, &registry, &mut etcd));
}

/// A watch continues if the compaction has forgotten only changes of other documents. A forgotten
/// removal is reported.
async fn quiet_documents_are_watched_across_a_compaction(quiet: &Registry, busy: &Registry, etcd: &mut Etcd) {
    let revision = create(quiet, "q/a", "1").await;
    for removes in [false, true] {
        let mut watch = quiet.watch("q/", quiet.list("q/").await.unwrap().revision);
        while !format!("{watch:?}").contains("is_open: true") {
            let waiting = tokio::time::timeout(Duration::from_secs(1), watch.next()).await;
            assert!(matches!(waiting, Err(_) | Ok(Err(Error::Unavailable(_)))), "{waiting:?}");
        }
        tokio::task::block_in_place(|| {
            etcd.kill();
            etcd.restart();
        });
        if removes {
            quiet.change_if(&[Change::remove(key("q/a"), revision)]).await.unwrap();
        }
        let last = create(busy, if removes { "other/1" } else { "other/0" }, "x").await;
        tokio::task::block_in_place(|| compact(etcd, None));
        create(quiet, if removes { "q/c" } else { "q/b" }, "2").await;
        let changes = loop {
            match watch.next().await {
                Err(Error::Unavailable(_)) => {}
                changes => break changes,
            }
        };
        match changes {
            Ok(changes) => {
                assert!(!removes && changes.events[0].key() == &key("q/b") && changes.revision > last);
            }
            Err(error) => assert!(removes && matches!(error, Error::Compacted { .. }), "{error}"),
        }
    }
}

#[test]
fn etcd_with_passwords_and_tls_keeps_the_contract() {
    if !are_installed("etcd_with_passwords_and_tls_keeps_the_contract", &["etcd"]) {
        return;
    }
    let etcd = Etcd::start(true);
    let token = &enable_passwords(&etcd);
    let dir = tempfile::tempdir().unwrap();
    let keys = |user: &str, password: &str| {
        let file = dir.path().join(user);
        std::fs::write(&file, format!("{password}\n")).unwrap();
        format!(
            "endpoints = [\"{}\"]\nca_file = \"{}\"\nuser = \"{user}\"\npassword_file = \"{}\"",
            etcd.url,
            etcd.ca_file(),
            file.display()
        )
    };
    let registry = open(&keys("root", "secret"));
    run(check(&registry, &registry, || async {
        tokio::task::block_in_place(|| compact(&etcd, Some(token)));
    }));
    run(async {
        let denied = async |keys: &str| match open(keys).get(&key("a")).await {
            Err(Error::Denied(why)) => why.into_owned(),
            other => panic!("{other:?}"),
        };
        let wrong = denied(&keys("root", "wrong")).await;
        assert_eq!(
            wrong,
            "etcd refuses the request: etcdserver: authentication failed, invalid user ID or password"
        );
        // The file is read for each login.
        let corrected = open(&keys("root", "wrong"));
        assert!(corrected.get(&key("a")).await.is_err());
        keys("root", "secret");
        assert_eq!(corrected.get(&key("a")).await, Ok(None));
        let guest = denied(&keys("guest", "guest")).await;
        assert_eq!(guest, "etcd refuses the request: etcdserver: permission denied");
        let nobody =
            denied(&format!("endpoints = [\"{}\"]\nca_file = \"{}\"", etcd.url, etcd.ca_file())).await;
        assert_eq!(nobody, "etcd refuses the request: etcdserver: user name is empty");
        let guest = open(&keys("guest", "guest"));
        let watch = guest.watch("", cached_registry::Revision(1)).next().await.unwrap_err();
        assert!(matches!(&watch, Error::Denied(why) if why.contains("permission denied")), "{watch}");
        // Without the authority's certificate, the client sends nothing.
        let untrusted = open(&format!(
            "endpoints = [\"{}\"]\nca_file = \"/etc/ssl/certs/ca-certificates.crt\"",
            etcd.url
        ));
        assert!(matches!(untrusted.get(&key("a")).await, Err(Error::Unavailable(_))));
    });
}

/// Creates a document although etcd is electing a leader, or no longer knows a login.
async fn create_soon(registry: &Registry, text: &'static str) {
    let change = Change::put(key(text), Expect::Absent, "x");
    loop {
        match registry.change_if(std::slice::from_ref(&change)).await {
            Ok(_) | Err(Error::Conflict { found: Some(_), .. }) => return,
            Err(Error::Unavailable(_) | Error::OutcomeUnknown(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn watches_and_logins_survive_members_and_a_majority_that_go_away() {
    if !are_installed("watches_and_logins_survive_members_and_a_majority_that_go_away", &["etcd"]) {
        return;
    }
    let mut members = Etcd::cluster(3, false);
    enable_passwords(&members[0]);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "secret").unwrap();
    let urls: Vec<&str> = members.iter().map(|member| &*member.url).collect();
    let keys =
        format!("endpoints = {urls:?}\nuser = \"root\"\npassword_file = \"{}\"", file.path().display());
    // Some requests wait for a majority that is gone, until their time limit.
    let (registry, patient) = (open_within(500, &keys), open(&keys));
    run(async {
        create_soon(&registry, "a").await;
        let revision = patient.list("").await.unwrap().revision;
        let mut watch = registry.watch("", revision);
        create_soon(&registry, "b").await;
        until(&mut watch, &key("b")).await;
        // This is the member that has answered all requests so far.
        tokio::task::block_in_place(|| members[0].kill());
        create_soon(&registry, "c").await;
        until(&mut watch, &key("c")).await;
        // The majority.
        tokio::task::block_in_place(|| members[1].kill());
        let refused = registry.change_if(&[Change::put(key("d"), Expect::Absent, "x")]).await;
        assert!(matches!(refused, Err(Error::Unavailable(_) | Error::OutcomeUnknown(_))), "{refused:?}");
        assert!(matches!(registry.get(&key("a")).await, Err(Error::Unavailable(_))));
        tokio::task::block_in_place(|| members[..2].iter_mut().for_each(Etcd::restart));
        create_soon(&registry, "e").await;
        until(&mut watch, &key("e")).await;
        assert_eq!(patient.get(&key("a")).await.unwrap().unwrap().value, "x");
    });
}
