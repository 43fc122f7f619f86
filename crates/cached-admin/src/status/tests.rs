//! Tests of the document and its history.

use std::sync::atomic::{AtomicU64, Ordering};

use cached_metrics::Latency;

use super::document::{CommandLatency, Distribution, Items};
use super::*;

/// A source whose numbers a test sets.
#[derive(Default)]
struct Numbers {
    gets: AtomicU64,
    bytes: AtomicU64,
    latency: Latency,
    is_absent: std::sync::atomic::AtomicBool,
}

impl Source for Arc<Numbers> {
    fn fill(&self, document: &mut Document) {
        if self.is_absent.load(Ordering::Relaxed) {
            return;
        }
        let (gets, bytes) = (self.gets.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let mut items = Items { requests: [("gets", gets)].into(), ..Items::default() };
        items.store.item_bytes = bytes;
        document.items = Some(items);
        let distribution = Distribution(self.latency.snapshot());
        document.latency.push(CommandLatency { command: "get", distribution });
    }
}

fn status() -> (Status, Arc<Numbers>) {
    let (status, numbers) = (Status::new("test", "1.2.3", Health::new()), Arc::new(Numbers::default()));
    status.add(Arc::clone(&numbers));
    (status, numbers)
}

#[test]
fn the_document_has_the_parts_that_there_are() {
    let (status, numbers) = status();
    numbers.gets.store(7, Ordering::Relaxed);
    numbers.latency.observe(Duration::from_micros(3));
    let json = serde_json::to_value(status.document()).expect("the document can be written");
    assert_eq!((&json["schema"], &json["program"]), (&1.into(), &"test".into()));
    assert_eq!((&json["state"], &json["health"]["ready"]), (&"starting".into(), &false.into()));
    assert_eq!(json["items"]["gets"], 7);
    let latency = &json["latency"][0];
    assert_eq!((&latency["command"], &latency["count"]), (&"get".into(), &1.into()));
    assert_eq!(latency["buckets"], serde_json::json!([[4, 1]]));
    assert!(latency["p99_us"].as_f64().is_some_and(|p99| (2.0..=4.0).contains(&p99)), "{latency}");
    for absent in ["objects", "store", "synapse", "connections", "workers"] {
        assert!(json.get(absent).is_none(), "{absent}");
    }
    assert_eq!(json["history"]["step_secs"], 10);
}

#[test]
fn a_part_that_is_gone_is_forgotten() {
    struct Gone;
    impl Source for Gone {
        fn fill(&self, _: &mut Document) {}
        fn is_gone(&self) -> bool {
            true
        }
    }
    let (status, _numbers) = status();
    for _ in 0..3 {
        status.add(Gone);
    }
    assert_eq!(status.inner.sources.lock().len(), 2);
}

#[test]
fn a_step_has_what_was_counted_in_it_and_what_was_there_at_its_end() {
    let (status, numbers) = status();
    let mut history = History::new();
    numbers.is_absent.store(true, Ordering::Relaxed);
    let first = status.present();
    let second = status.present();
    history.add(step(&first, &second), second.now_unix_ms);
    assert!(!history.columns.contains_key("gets"));
    numbers.is_absent.store(false, Ordering::Relaxed);
    let mut before = status.present();
    for (gets, bytes) in [(5, 100), (12, 50)] {
        numbers.gets.store(gets, Ordering::Relaxed);
        numbers.bytes.store(bytes, Ordering::Relaxed);
        if gets == 12 {
            numbers.latency.observe(Duration::from_micros(8));
        }
        let now = status.present();
        history.add(step(&before, &now), now.now_unix_ms);
        before = now;
    }
    let column = |name: &str| Vec::from(history.columns[name].clone());
    assert_eq!(column("gets"), [Cell::Nothing, Cell::Whole(5), Cell::Whole(7)]);
    assert_eq!(column("item_bytes"), [Cell::Nothing, Cell::Whole(100), Cell::Whole(50)]);
    assert_eq!(column("get_p50_us")[..2], [Cell::Nothing, Cell::Nothing]);
    assert!(matches!(column("get_p50_us")[2], Cell::Fraction(p50) if (7.0..=8.0).contains(&p50)));
    assert_eq!(history.len, 3);
}

#[test]
fn a_history_is_bounded_and_its_columns_have_the_same_length() {
    let (status, numbers) = status();
    let mut history = History::new();
    let mut before = status.present();
    for round in 1..=STEPS_MAX as u64 + 10 {
        numbers.gets.store(round * round, Ordering::Relaxed);
        let now = status.present();
        history.add(step(&before, &now), now.now_unix_ms);
        before = now;
    }
    assert_eq!(history.len, STEPS_MAX);
    let gets = &history.columns["gets"];
    assert_eq!(gets.len(), STEPS_MAX);
    let last = STEPS_MAX as u64 + 10;
    assert_eq!(gets.back(), Some(&Cell::Whole(last * last - (last - 1) * (last - 1))));
    assert_eq!(history.columns["cpu_ms"].len(), STEPS_MAX);
}
