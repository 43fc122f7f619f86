//! The journal on the operating system's disk, buffered and with `O_DIRECT`.

use std::sync::Arc;

use cached_journal::{AppendError, Head, Journal, JournalConfig, Kind, Object, OpenError, Record};

fn config(directory: &std::path::Path, direct: bool) -> JournalConfig {
    JournalConfig { segment_bytes: 1 << 20, limit_bytes: 4 << 20, direct, ..JournalConfig::new(directory) }
}

/// Appends and waits.
fn write(journal: &Journal, number: u64, bytes: usize) -> cached_journal::Hold {
    let payload = vec![number as u8; bytes];
    let head = Head { sequence: number, ..Head::new(Kind(1), Object::Number(number)) };
    let appended = loop {
        match journal.append(&Record { head: head.clone(), payload: &[&payload] }) {
            Ok(appended) => break appended,
            // The preparing thread has not created the segment yet.
            Err(AppendError::Full) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    journal.wait_blocking(appended.position).unwrap();
    appended.hold
}

fn round_trip(direct: bool) {
    // In the build's directory, which is on a disk: tmpfs may not support O_DIRECT.
    let parent = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = parent.path().join("journal");
    let config = config(&directory, direct);
    let (journal, replay) = Journal::open(&config, Arc::new(|_| {})).unwrap();
    assert!(replay.is_empty());
    let holds: Vec<_> = (0..100).map(|number| write(&journal, number, number as usize * 100)).collect();
    journal.close().unwrap();
    drop((replay, holds));
    let (journal, replay) = Journal::open(&config, Arc::new(|_| {})).unwrap();
    for (number, record) in replay.records().enumerate() {
        let record = record.unwrap();
        assert_eq!(record.payload().unwrap(), vec![number as u8; number * 100]);
    }
    assert_eq!(replay.len(), 100);
    drop(journal);
}

#[test]
fn a_buffered_journal_returns_what_was_appended() {
    round_trip(false);
}

#[test]
fn a_journal_past_the_page_cache_returns_what_was_appended() {
    round_trip(true);
}

#[test]
fn a_directory_is_open_once() {
    let parent = tempfile::tempdir().unwrap();
    let config = config(&parent.path().join("journal"), false);
    let (journal, _replay) = Journal::open(&config, Arc::new(|_| {})).unwrap();
    assert!(matches!(Journal::open(&config, Arc::new(|_| {})), Err(OpenError::Locked)));
    journal.close().unwrap();
    Journal::open(&config, Arc::new(|_| {})).unwrap();
}

#[test]
fn a_configuration_out_of_range_is_refused_with_what_would_be_right() {
    let small = JournalConfig { segment_bytes: 4096, ..config("/nowhere".as_ref(), false) };
    let Err(error) = Journal::open(&small, Arc::new(|_| {})) else { panic!("opened") };
    assert!(error.to_string().contains("a multiple of 4096 from 1048576"), "{error}");
    let narrow = JournalConfig { limit_bytes: 2 << 20, ..config("/nowhere".as_ref(), false) };
    let Err(error) = Journal::open(&narrow, Arc::new(|_| {})) else { panic!("opened") };
    assert!(error.to_string().contains("at least three segments"), "{error}");
}
