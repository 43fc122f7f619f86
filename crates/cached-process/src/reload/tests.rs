//! A program with three keys, and its reactions to new configurations.

use super::*;

/// `limits.a` and `limits.b` are live, `size` is not; `limits.a` must not be above `size`.
#[derive(Clone)]
struct Fake {
    text: Arc<Mutex<Result<&'static str, &'static str>>>,
    applied: Arc<Mutex<Vec<Table>>>,
}

const DEFAULTS: &str = "size = 10\n[limits]\na = 1\nb = 1\n";

fn over(defaults: &str, file: &str) -> Source {
    let file: Table = file.parse().expect("TOML");
    let without_flags = {
        let mut table: Table = defaults.parse().expect("TOML");
        keys(&file).keys().for_each(|key| report::copy(&file, &mut table, key));
        table
    };
    Source { effective: without_flags.clone(), without_flags, file }
}

impl Program for Fake {
    fn read(&self) -> Result<Source, String> {
        (*self.text.lock()).map(|text| over(DEFAULTS, text)).map_err(Into::into)
    }

    fn is_live(&self, key: &str) -> bool {
        ["limits.a", "limits.b", "limits.key"].contains(&key)
    }

    fn apply(&self, table: &Table) -> Result<Vec<String>, String> {
        if table["limits"]["a"].as_integer() > table["size"].as_integer() {
            return Err("limits.a: must not be above size".into());
        }
        self.applied.lock().push(table.clone());
        Ok(Vec::new())
    }
}

fn started(file: &str) -> (Fake, Reloader) {
    let fake = Fake { text: Arc::new(Mutex::new(Err("not set"))), applied: Arc::default() };
    let reloader = Reloader::new(fake.clone(), over(DEFAULTS, file));
    (fake, reloader)
}

fn named(changes: &[Change]) -> Vec<&str> {
    changes.iter().map(|change| change.key.as_str()).collect()
}

#[test]
fn live_keys_change_and_others_are_named() {
    let (fake, reloader) = started("size = 20");
    *fake.text.lock() = Ok("size = 30\n[limits]\na = 5\n[more]\nx = 1\n");
    for round in 0..2 {
        let report = reloader.reload();
        assert_eq!(report.refused, None);
        assert_eq!(named(&report.changed), if round == 0 { vec!["limits.a"] } else { vec![] });
        assert_eq!(named(&report.restart), ["more", "size"], "until it has been restarted");
    }
    let applied = fake.applied.lock().clone();
    assert_eq!(applied[0], "size = 20\n[limits]\na = 5\nb = 1\n".parse().unwrap());
    assert_eq!(applied[1], applied[0]);
    assert_eq!(
        reloader.effective().to_string(),
        "limits.a = 5  # file, live\nlimits.b = 1  # default, live\nsize = 20  # file, restart\n"
    );
    // A key that is removed from the file returns to its default.
    *fake.text.lock() = Ok("size = 20");
    assert_eq!(named(&reloader.reload().changed), ["limits.a"]);
    assert!(reloader.effective().to_string().starts_with("limits.a = 1  # default, live\n"));
}

#[test]
fn a_wrong_configuration_changes_nothing() {
    let (fake, reloader) = started("");
    let before = reloader.effective();
    *fake.text.lock() = Err("f.toml:3: limits.a: wrong");
    let report = reloader.reload();
    assert_eq!(report.refused.as_deref(), Some("f.toml:3: limits.a: wrong"));
    assert_eq!(report.to_string(), "refused, nothing has changed: f.toml:3: limits.a: wrong\n");
    // The new configuration is consistent, but `size` stays 10 until the restart.
    *fake.text.lock() = Ok("size = 99\n[limits]\na = 50\nb = 7\n");
    let report = reloader.reload();
    assert_eq!(report.refused.as_deref(), Some("limits.a: must not be above size"));
    assert_eq!(reloader.effective(), before);
    assert!(fake.applied.lock().is_empty());
}

#[test]
fn secrets_are_not_shown() {
    let (fake, reloader) = started("[limits]\nkey = \"AQBsecret\"\n");
    assert!(reloader.effective().to_string().contains("limits.key = \"(not shown)\"  # file, live\n"));
    *fake.text.lock() = Ok("[limits]\nkey = \"AQBother\"\n");
    let report = reloader.reload();
    assert_eq!(named(&report.changed), ["limits.key"]);
    let shown = format!("{report} {report:?} {}", reloader.effective());
    assert!(!shown.contains("AQB"), "{shown}");
}

#[test]
fn no_configuration_shows_a_secret() {
    let text = r#"
        backend = "rados:vm,id=u,librados.key=hidden,hidden==,x=hidden"
        spaced = "rados:vm,librados.key =hidden"
        other = "rados:vm,librados.my option=hidden"
        path = "/run/secrets/env=prod/tls.pem"
        store = "s3:b,endpoint=https://hidden:hidden@h:9000,credentials_file=/aws,profile=p"
        listen = ["127.0.0.1:1", "http://hidden@h:2/x,https://hidden:hid://@den@h:3"]
        [objects.backend]
        kind = "rados"
        keyring = "/ring"
        conf = "/conf"
        librados = { key = "hidden", keyring = "hidden", rados_x = "hidden", number = 5551 }
        [s3]
        upstream = "http://user:hidden@h:4/x"
        upstream_access_key = "hidden"
        upstream_secret_file = "/secret"
        upstream_session_token = ""
        headers_max = 7
        PassWord = 5551
        [[s3.buckets]]
        name = "b"
        secret = "hidden"
        [memcached.tls]
        key_file = "/key"
        key_format = "pem"
        [admin]
        tokens = ["hidden", "hidden"]
        token_file = "/token"
        [tracing]
        otlp_endpoint = "http://h:5/v1?a=b&api-key=hidden&c=hidden"
        otlp_headers = "authorization=Bearer hidden,x=hidden"
        headers = { Authorization = "hidden", x = "hidden" }
        attributes = "a=b;Authorization=Bearer hidden"
        [synapse]
        secret_file = "/synapse"
        secret_file_previous = "/previous"
    "#;
    let (fake, reloader) = started(text);
    let effective = reloader.effective().to_string();
    *fake.text.lock() = Ok("size = 10\n");
    let report = reloader.reload();
    for shown in [&effective, &report.to_string(), &format!("{report:?}")] {
        assert!(!shown.contains("hidden") && !shown.contains("5551") && !shown.contains("hid@"), "{shown}");
        assert!(shown.contains("rados:vm,id=u,librados.key=(not shown)"), "{shown}");
    }
    let value = |key: &str| {
        let line = effective.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        line.unwrap_or_else(|| panic!("{key} is missing")).trim_end_matches("  # file, restart").to_owned()
    };
    for (key, right) in [
        ("backend", "rados:vm,id=u,librados.key=(not shown)"),
        ("store", "s3:b,endpoint=https://(not shown)@h:9000,credentials_file=/aws,profile=p"),
        ("path", "/run/secrets/env=prod/tls.pem"),
        ("objects.backend.keyring", "/ring"),
        ("s3.upstream", "http://(not shown)@h:4/x"),
        ("s3.upstream_secret_file", "/secret"),
        ("s3.upstream_session_token", ""),
        ("memcached.tls.key_file", "/key"),
        ("memcached.tls.key_format", "pem"),
        ("admin.token_file", "/token"),
        ("tracing.otlp_endpoint", "http://h:5/v1?a=b&api-key=(not shown)"),
        ("tracing.otlp_headers", "(not shown)"),
        ("synapse.secret_file", "/synapse"),
        ("synapse.secret_file_previous", "/previous"),
    ] {
        assert_eq!(value(key), format!("\"{right}\""), "{key}");
    }
    assert_eq!(value("listen"), "[\"127.0.0.1:1\", \"http://(not shown)@h:3\"]");
    assert_eq!(value("s3.headers_max"), "7");
    assert_eq!(value("s3.buckets"), "[{ name = \"b\", secret = \"(not shown)\" }]");
}

#[test]
fn flags_are_known_by_what_they_change() {
    let (fake, _) = started("");
    let mut source = over(DEFAULTS, "size = 20");
    report::copy(&"size = 5".parse().unwrap(), &mut source.effective, "size");
    let reloader = Reloader::new(fake, source);
    assert!(reloader.effective().to_string().ends_with("size = 5  # flag, restart\n"));
}
