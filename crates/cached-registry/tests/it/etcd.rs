//! The body in etcd.

use cached_registry::{Change, Error, Expect, Registry};

use crate::bodies::{run, table};
use crate::contract::{check, create, key, until};
use crate::etcd_server::{Etcd, free_port, is_installed};

fn open(keys: &str) -> Registry {
    Registry::open(&table(&format!("kind = \"etcd\"\n{keys}")), None).unwrap()
}

/// Makes etcd forget all changes but the last.
fn compact(etcd: &Etcd, token: Option<&str>) {
    let answer = etcd.post("kv/range", "{\"key\":\"AA==\"}", token);
    let revision = answer["header"]["revision"].as_str().unwrap();
    etcd.post("kv/compaction", &format!("{{\"revision\":\"{revision}\"}}"), token);
}

#[test]
fn etcd_keeps_the_contract() {
    if !is_installed("etcd_keeps_the_contract") {
        return;
    }
    let etcd = Etcd::start(false);
    // The first endpoint does not exist.
    let dead = free_port();
    let registry = open(&format!("endpoints = [\"http://127.0.0.1:{dead}\", \"{}\"]", etcd.url));
    let other = open(&format!("endpoints = [\"{}/\"]", etcd.url));
    run(check(&registry, &other, || async { tokio::task::block_in_place(|| compact(&etcd, None)) }));
    // Another prefix is another registry; what is no key is ignored.
    let separate = open(&format!("endpoints = [\"{}\"]\nprefix = \"separate/\"", etcd.url));
    etcd.post("kv/put", "{\"key\":\"c2VwYXJhdGUvYSBi\",\"value\":\"eA==\"}", None);
    run(async { assert_eq!(separate.list("").await.unwrap().documents, []) });
}

#[test]
fn etcd_with_passwords_and_tls_keeps_the_contract() {
    if !is_installed("etcd_with_passwords_and_tls_keeps_the_contract") {
        return;
    }
    let etcd = Etcd::start(true);
    for (method, request) in [
        ("auth/user/add", "{\"name\":\"root\",\"password\":\"secret\"}"),
        ("auth/role/add", "{\"name\":\"root\"}"),
        ("auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}"),
        ("auth/user/add", "{\"name\":\"guest\",\"password\":\"guest\"}"),
        ("auth/enable", "{}"),
    ] {
        etcd.post(method, request, None);
    }
    let token = etcd.post("auth/authenticate", "{\"name\":\"root\",\"password\":\"secret\"}", None);
    let token = token["token"].as_str().unwrap();
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
            "etcd refuses this: etcdserver: authentication failed, invalid user ID or password"
        );
        let guest = denied(&keys("guest", "guest")).await;
        assert_eq!(guest, "etcd refuses this: etcdserver: permission denied");
        let nobody =
            denied(&format!("endpoints = [\"{}\"]\nca_file = \"{}\"", etcd.url, etcd.ca_file())).await;
        assert_eq!(nobody, "etcd refuses this: etcdserver: user name is empty");
        let guest = open(&keys("guest", "guest"));
        let watch = guest.watch("", cached_registry::Revision(1)).next().await.unwrap_err();
        assert!(matches!(&watch, Error::Denied(why) if why.contains("permission denied")), "{watch}");
        // Without the authority nothing is sent.
        let untrusted = open(&format!(
            "endpoints = [\"{}\"]\nca_file = \"/etc/ssl/certs/ca-certificates.crt\"",
            etcd.url
        ));
        assert!(matches!(untrusted.get(&key("a")).await, Err(Error::Unavailable(_))));
    });
}

#[test]
fn a_watch_and_a_login_survive_a_restart_of_etcd() {
    if !is_installed("a_watch_and_a_login_survive_a_restart_of_etcd") {
        return;
    }
    let mut etcd = Etcd::start(false);
    let registry = open(&format!("endpoints = [\"{}\"]\ntimeout_ms = 2000", etcd.url));
    run(async {
        let revision = create(&registry, "a", "1").await;
        let mut watch = registry.watch("", revision);
        create(&registry, "b", "2").await;
        until(&mut watch, &key("b")).await;
        tokio::task::block_in_place(|| etcd.kill());
        let refused = registry.change_if(&[Change::put(key("c"), Expect::Absent, "3")]).await;
        assert!(matches!(refused, Err(Error::Unavailable(_) | Error::OutcomeUnknown(_))), "{refused:?}");
        assert!(matches!(registry.get(&key("a")).await, Err(Error::Unavailable(_))));
        assert!(matches!(watch.next().await, Err(Error::Unavailable(_))));
        tokio::task::block_in_place(|| etcd.restart());
        // The registry has the documents again as soon as etcd has a leader.
        while let Err(error) = registry.get(&key("a")).await {
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
        }
        create(&registry, "d", "4").await;
        until(&mut watch, &key("d")).await;
    });
}
