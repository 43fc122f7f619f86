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
    // Consistent in itself, but `size` stays 10 until the restart.
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
fn flags_are_known_by_what_they_change() {
    let (fake, _) = started("");
    let mut source = over(DEFAULTS, "size = 20");
    report::copy(&"size = 5".parse().unwrap(), &mut source.effective, "size");
    let reloader = Reloader::new(fake, source);
    assert!(reloader.effective().to_string().ends_with("size = 5  # flag, restart\n"));
}
