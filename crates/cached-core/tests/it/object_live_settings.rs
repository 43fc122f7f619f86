//! Changes of the configuration of a running cache.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::*;
use cached_core::object::{NamespaceConfig, ObjectCache, ObjectCacheConfig, SettingSource};
use test_kit::rng::Rng;

fn object(namespace: &'static str, name: &'static str) -> ObjectId {
    ObjectId::new(Namespace::new(namespace).unwrap(), Name::new(name).unwrap())
}

struct Running {
    cache: ObjectCache,
    config: ObjectCacheConfig,
    background: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn new(config: ObjectCacheConfig) -> Self {
        let store = Arc::new(Memory::default());
        let (cache, background) = ObjectCache::new(store, config.clone(), Arc::new(SystemClock)).unwrap();
        let background = Some(std::thread::spawn(|| block_on(background)));
        Self { cache, config, background }
    }

    fn change(&mut self, after: ObjectCacheConfig) {
        self.cache.live_settings().change(&after).unwrap();
        self.config = after;
    }

    fn mode(&self, namespace: &'static str) -> WriteMode {
        block_on(self.cache.control().policy(Namespace::new(namespace).unwrap())).unwrap().write
    }

    fn write(&self, name: &'static str, bytes: usize) {
        block_on(self.cache.write(WriteRequest::new(object("n", name), 0, vec![7; bytes]))).unwrap();
    }

    fn end(mut self) {
        let background = self.background.take().unwrap();
        drop(self.cache);
        background.join().unwrap();
    }
}

fn config() -> ObjectCacheConfig {
    ObjectCacheConfig {
        memory_bytes_max: 8 << 20,
        dirty_bytes_max: 4 << 20,
        dirty_age_max: Duration::from_secs(86_400),
        objects_count_max: 100,
        ..ObjectCacheConfig::default()
    }
}

fn own(namespace: &'static str, write: WriteMode) -> NamespaceConfig {
    NamespaceConfig::new(Namespace::new(namespace).unwrap(), write)
}

#[test]
fn only_the_write_modes_that_differ_change() {
    let mut running = Running::new(ObjectCacheConfig {
        namespaces: vec![own("a", WriteMode::Back), own("b", WriteMode::Back), own("c", WriteMode::Back)],
        ..config()
    });
    // The mode is set while the cache runs; the configuration does not change it.
    let mut policy = Policy::default();
    policy.write = WriteMode::Around;
    block_on(running.cache.control().set_policy(Namespace::new("a").unwrap(), policy)).unwrap();
    running.change(ObjectCacheConfig {
        write: WriteMode::Around,
        namespaces: vec![own("a", WriteMode::Back), own("b", WriteMode::Through), own("d", WriteMode::Back)],
        ..config()
    });
    let modes = ["a", "b", "c", "d", "e"].map(|namespace| running.mode(namespace));
    use WriteMode::{Around, Back, Through};
    assert_eq!(modes, [Around, Through, Around, Back, Around]);
    running.change(config());
    assert_eq!(running.mode("b"), Through);
    running.change(ObjectCacheConfig { write: Back, ..config() });
    assert_eq!(["a", "b", "d"].map(|namespace| running.mode(namespace)), [Back; 3]);
    running.end();
}

#[test]
fn what_is_dirty_obeys_a_new_age_and_a_new_limit() {
    let back = ObjectCacheConfig { write: WriteMode::Back, ..config() };
    let mut running = Running::new(back.clone());
    let dirty = |running: &Running| running.cache.counters().dirty_bytes;
    let wait_until_clean = |running: &Running| {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while dirty(running) > 0 {
            assert!(std::time::Instant::now() < deadline, "{} bytes are dirty", dirty(running));
            std::thread::yield_now();
        }
    };
    running.write("old", 8192);
    assert!(dirty(&running) > 0);
    running.change(ObjectCacheConfig { dirty_age_max: Duration::ZERO, ..back.clone() });
    wait_until_clean(&running);
    // Above half of the limit, flushing begins regardless of age.
    running.change(back.clone());
    running.write("new", 64 << 10);
    assert!(dirty(&running) >= 64 << 10);
    running.change(ObjectCacheConfig { dirty_bytes_max: 16 << 10, ..back.clone() });
    running.write("more", 4096);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while dirty(&running) > 16 << 10 {
        assert!(std::time::Instant::now() < deadline, "{} bytes are dirty", dirty(&running));
        std::thread::yield_now();
    }
    running.end();
}

#[test]
fn the_maximum_age_of_dirty_data_is_the_one_in_force() {
    let back = ObjectCacheConfig { write: WriteMode::Back, ..config() };
    let mut running = Running::new(back.clone());
    running.write("a", 4096);
    let (hour, hours) = (Duration::from_secs(3600), Duration::from_secs(7200));
    let slow = own("slow", WriteMode::Back).with(NamespaceKey::DirtyAgeMsMax, 7_200_000);
    running.change(ObjectCacheConfig { dirty_age_max: hour, namespaces: vec![slow], ..back });
    block_on(running.cache.write(WriteRequest::new(object("slow", "b"), 0, vec![7; 4096]))).unwrap();
    assert_eq!(running.cache.dirty_age_max(), hour);
    let mut limits: Vec<_> = running.cache.dirty_ages().into_iter().map(|(_, max)| max).collect();
    limits.sort_unstable();
    assert_eq!(limits, [hour, hours]);
    let dirty = running.cache.namespaces().into_iter().filter(|of| of.dirty_bytes > 0);
    let mut limits: Vec<_> = dirty.map(|of| of.dirty_age_max).collect();
    limits.sort_unstable();
    assert_eq!(limits, [hour, hours]);
    running.end();
}

#[test]
fn what_cannot_work_changes_nothing() {
    let running = Running::new(config());
    let journaled = NamespaceConfig { durability: Durability::Journaled, ..own("n", WriteMode::Back) };
    for (wrong, key) in [
        (ObjectCacheConfig { dirty_bytes_max: 7 << 20, ..config() }, "dirty_bytes_max"),
        // Only a restart would provide the memory for this limit.
        (
            ObjectCacheConfig { dirty_bytes_max: 7 << 20, memory_bytes_max: 64 << 20, ..config() },
            "dirty_bytes_max",
        ),
        (ObjectCacheConfig { flush_requests_max: 0, ..config() }, "flush_requests_max"),
        (ObjectCacheConfig { retry_delay_min: Duration::from_secs(60), ..config() }, "retry_delay_min"),
        (ObjectCacheConfig { namespaces: vec![journaled], ..config() }, "namespaces"),
    ] {
        let wrong = ObjectCacheConfig { write: WriteMode::Back, ..wrong };
        let error = running.cache.live_settings().change(&wrong).unwrap_err();
        assert_eq!(error.key, key, "{error}");
        assert_eq!(running.mode("n"), WriteMode::Through, "after {error}");
    }
    let settings = running.cache.live_settings();
    running.end();
    settings.change(&config()).expect("nothing to change once it is gone");
}

/// The namespaces of the model, of which the first is never configured.
const NAMES: [&str; 3] = ["unnamed", "one", "two"];
const KEYS: [NamespaceKey; 5] = [
    NamespaceKey::QuotaBytesMax,
    NamespaceKey::DirtyAgeMsMax,
    NamespaceKey::StoreRequestsPerSecondMax,
    NamespaceKey::StoreRequestsPerSecondMin,
    NamespaceKey::StoreWeight,
];
const MODES: [WriteMode; 4] = [WriteMode::Back, WriteMode::Through, WriteMode::Around, WriteMode::ReadOnly];

/// The settings of one source: the write mode and the values of `KEYS`.
type Table = (Option<WriteMode>, BTreeMap<NamespaceKey, Option<u64>>);

/// The settings of every source, as lists of pairs.
#[derive(Clone, Default)]
struct Model {
    default: WriteMode,
    file: BTreeMap<&'static str, Table>,
    /// The volume's settings, with the number of the attachment while the volume is attached.
    volume: BTreeMap<&'static str, (Option<u64>, Table)>,
    command: BTreeMap<&'static str, Table>,
}

impl Model {
    /// Returns the tables of a namespace, by descending precedence.
    fn tables(&self, name: &str) -> Vec<(SettingSource, &Table)> {
        let volume = self.volume.get(name).map(|(_, table)| (SettingSource::Volume, table));
        let command = self.command.get(name).map(|table| (SettingSource::Command, table));
        let file = self.file.get(name).map(|table| (SettingSource::File, table));
        command.into_iter().chain(volume).chain(file).collect()
    }

    fn write(&self, name: &str) -> (WriteMode, SettingSource) {
        let found = self.tables(name).into_iter().find_map(|(source, table)| Some((table.0?, source)));
        found.unwrap_or((self.default, SettingSource::Default))
    }

    fn value(&self, name: &str, key: NamespaceKey) -> (Option<u64>, SettingSource) {
        let mut tables = self.tables(name).into_iter();
        let found = tables.find_map(|(source, table)| Some((*table.1.get(&key)?, source)));
        found.unwrap_or((None, SettingSource::Default))
    }

    /// The settings of one source: the write mode, and the values of `KEYS`.
    fn fits(&self) -> bool {
        NAMES.into_iter().all(|name| {
            let of = |key| self.value(name, key).0;
            let limit = of(NamespaceKey::StoreRequestsPerSecondMax).unwrap_or(u64::MAX);
            of(NamespaceKey::StoreRequestsPerSecondMin).is_none_or(|reserved| reserved <= limit)
        })
    }

    fn config(&self) -> ObjectCacheConfig {
        let named = |(name, table): (&&'static str, &Table)| {
            NamespaceConfig::new(Namespace::new(*name).unwrap(), settings(table))
        };
        let namespaces = self.file.iter().map(named).collect();
        ObjectCacheConfig { write: self.default, namespaces, ..config() }
    }
}

fn settings(table: &Table) -> NamespaceSettings {
    let mut settings = NamespaceSettings::default();
    settings.write = table.0;
    table.1.iter().for_each(|(key, value)| settings.set(*key, *value));
    settings
}

/// Draws the settings of a source; a file or a volume never sets `none`.
fn draw(rng: &mut Rng, has_none: bool) -> Table {
    let mut table = Table::default();
    if rng.permille(500) {
        table.0 = Some(*rng.pick(&MODES));
    }
    for key in KEYS {
        if rng.permille(300) {
            let is_none = has_none && rng.permille(200);
            let value = match key {
                NamespaceKey::StoreRequestsPerSecondMin => *rng.pick(&[5, 200]),
                NamespaceKey::StoreRequestsPerSecondMax => *rng.pick(&[100, 5000]),
                _ => rng.within(1, 5),
            };
            table.1.insert(key, (!is_none).then_some(value));
        }
    }
    table
}

/// Each source sets and resets values at random, with reloads, removals and restarts in between.
/// After every step each value comes from the strongest source that has one, and the effective
/// settings agree.
#[test]
fn every_value_is_that_of_its_strongest_source_whatever_others_do() {
    let seed = std::env::var("CACHED_SETTINGS_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in seed.map_or(0..60, |seed: u64| seed..seed + 1) {
        settings_by_source(seed);
    }
}

fn settings_by_source(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut model = Model { default: *rng.pick(&MODES[..3]), ..Model::default() };
    let mut running = Running::new(model.config());
    let mut attachments = 0;
    for step in 0..60 {
        let name = *rng.pick(&NAMES);
        let namespace = Namespace::new(name).unwrap();
        let cache = running.cache.clone();
        let control = cache.control();
        let mut next = model.clone();
        let what = format!("seed {seed}, step {step}, {name}");
        match rng.weighted(&[6, 5, 4, 4, 3, 1]) {
            0 => {
                let table = draw(&mut rng, true);
                let entry = next.command.entry(name).or_default();
                entry.0 = table.0.or(entry.0);
                entry.1.extend(table.1.clone());
                let answer = block_on(control.change_namespace(namespace, settings(&table)));
                match (settings(&table).is_empty() || !next.fits(), answer) {
                    (false, Ok(())) => model = next,
                    (true, Err(Error::Invalid(_))) => {}
                    other => panic!("{what}: a command is answered {other:?}"),
                }
            }
            1 => {
                next.file.remove(name);
                if name != NAMES[0] && rng.permille(800) {
                    next.file.insert(name, draw(&mut rng, false));
                }
                if rng.permille(200) {
                    next.default = *rng.pick(&MODES[..3]);
                }
                let none = Table::default();
                let (before, after) = (model.file.get(name), next.file.get(name));
                let (before, after) = (before.unwrap_or(&none).clone(), after.unwrap_or(&none).clone());
                if let Some(command) = next.command.get_mut(name) {
                    command.0 = command.0.filter(|_| before.0 == after.0);
                    command.1.retain(|key, _| before.1.get(key) == after.1.get(key));
                }
                match (next.fits(), running.cache.live_settings().change(&next.config())) {
                    (true, Ok(())) => model = next,
                    (false, Err(_)) => {}
                    other => panic!("{what}: a reload is answered {other:?}"),
                }
            }
            2 => {
                let is_known = cache.namespaces().iter().any(|of| of.namespace.as_ref() == Some(&namespace));
                let is_attached = model.volume.get(name).is_some_and(|(attachment, _)| attachment.is_some());
                next.command.remove(name);
                next.volume.remove(name);
                match block_on(control.remove_namespace(namespace, DirtyData::Refuse)) {
                    Ok(_) if is_known && !is_attached && next.fits() => model = next,
                    Err(Error::Missing) if !is_known => {}
                    Err(Error::Denied(_)) if is_attached || !next.fits() => {}
                    other => panic!("{what}: a removal is answered {other:?}"),
                }
            }
            3 => {
                attachments += 1;
                let table = draw(&mut rng, false);
                next.volume.insert(name, (Some(attachments), table.clone()));
                let set = control.set_volume(namespace, attachments, Some(settings(&table)));
                match (next.fits(), block_on(set)) {
                    (true, Ok(())) => model = next,
                    (false, Err(Error::Invalid(_))) => {}
                    other => panic!("{what}: an attachment is answered {other:?}"),
                }
            }
            4 => {
                // Sometimes the attachment is one that a later one has replaced.
                let attached = model.volume.get(name).and_then(|(attachment, _)| *attachment);
                let attachment = attached.unwrap_or(0).saturating_sub(rng.below(2));
                block_on(control.set_volume(namespace, attachment, None)).unwrap();
                if let Some((number, _)) = model.volume.get_mut(name).filter(|_| attached == Some(attachment))
                {
                    *number = None;
                }
            }
            _ => {
                drop(cache);
                running.end();
                (model.volume, model.command) = Default::default();
                running = Running::new(model.config());
            }
        }
        agrees(&running.cache, &model, &what);
    }
    running.end();
}

fn agrees(cache: &ObjectCache, model: &Model, what: &str) {
    cache.validate().unwrap_or_else(|why| panic!("{what}: {why}"));
    let all = cache.namespaces();
    for name in NAMES {
        let namespace = Namespace::new(name).unwrap();
        let in_force = cache.namespace_settings(&namespace);
        assert_eq!(in_force.write, model.write(name), "{what}: write of {name}");
        for (key, found) in in_force.values {
            let expected =
                if KEYS.contains(&key) { model.value(name, key) } else { (None, SettingSource::Default) };
            assert_eq!(found, expected, "{what}: {key} of {name}");
        }
        assert_eq!(block_on(cache.control().policy(namespace.clone())).unwrap().write, model.write(name).0);
        if let Some(of) = all.iter().find(|of| of.namespace.as_ref() == Some(&namespace)) {
            assert_eq!(of.write_mode, model.write(name).0, "{what}: {name}");
            assert_eq!(of.is_configured, model.file.contains_key(name), "{what}: {name}");
            let quota = model.value(name, NamespaceKey::QuotaBytesMax).0;
            assert_eq!(of.quota.map(|quota| quota.bytes_max), quota, "{what}: {name}");
        }
    }
}

/// A refused removal drops nothing.
#[test]
fn a_namespace_with_an_attached_volume_keeps_what_is_dirty() {
    let running = Running::new(ObjectCacheConfig { write: WriteMode::Back, ..config() });
    let (control, namespace) = (running.cache.control(), object("n", "a").namespace);
    block_on(control.set_volume(namespace.clone(), 1, Some(NamespaceSettings::default()))).unwrap();
    running.write("a", 4096);
    let dirty_bytes = running.cache.counters().dirty_bytes;
    assert!(dirty_bytes > 0);
    for dirty_data in [DirtyData::Refuse, DirtyData::Store, DirtyData::Discard] {
        let removed = block_on(control.remove_namespace(namespace.clone(), dirty_data));
        assert!(matches!(removed, Err(Error::Denied(_))), "{dirty_data:?}: {removed:?}");
        assert_eq!(running.cache.counters().dirty_bytes, dirty_bytes, "{dirty_data:?}");
    }
    running.end();
}

#[test]
fn a_namespace_with_another_mode_than_the_others_is_not_changing_from_the_start_on() {
    let namespaces = vec![own("n", WriteMode::Through), own("o", WriteMode::ReadOnly)];
    let mut running = Running::new(ObjectCacheConfig { write: WriteMode::Back, namespaces, ..config() });
    running.write("o", 100);
    assert!(running.cache.namespaces().iter().all(|of| !of.is_mode_changing));
    let remove = |running: &Running| {
        let namespace = Namespace::new("n").unwrap();
        block_on(running.cache.remove_namespace(namespace, DirtyData::Refuse, None)).unwrap();
    };
    remove(&running);
    // This namespace is created while the mode is in force.
    let mut after = running.config.clone();
    after.namespaces.push(own("new", WriteMode::Around));
    running.change(after);
    assert!(running.cache.namespaces().iter().all(|of| !of.is_mode_changing));
    assert_eq!(running.mode("n"), WriteMode::Through, "as it is configured");
    running.end();
}
