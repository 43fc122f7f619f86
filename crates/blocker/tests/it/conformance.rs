//! The conformance suite on the backends, and on stacks of them.

use std::sync::Arc;

use blocker::conformance::{Harness, Options, Plain, run};
use blocker::file::{Access, FileConfig};
use blocker::{Blocker, FileStore, Memory, PassThrough, SystemClock};

fn options(seed: u64) -> Options {
    let mut options = Options::default();
    options.seed = seed;
    options.exclusive = false;
    options
}

#[track_caller]
fn passes(backend: Arc<dyn Blocker>) {
    let report = run(&Plain::new(backend), &options(1));
    report.cases.iter().for_each(|case| println!("{case}"));
    report.assert_passed();
}

fn file(dir: &tempfile::TempDir, config: FileConfig) -> Arc<FileStore> {
    let config = FileConfig { access: Access::Create, ..config };
    Arc::new(FileStore::open_with(dir.path(), config, Arc::new(SystemClock)).unwrap())
}

#[test]
fn memory() {
    passes(Arc::new(Memory::default()));
}

/// A new backend for each case, so that cases may claim scopes that span everything.
struct Fresh;

impl Harness for Fresh {
    fn backend(&self) -> Arc<dyn Blocker> {
        Arc::new(Memory::default())
    }
}

#[test]
fn memory_to_itself() {
    let mut options = options(2);
    options.exclusive = true;
    run(&Fresh, &options).assert_passed();
}

#[test]
fn file_with_threads() {
    let dir = tempfile::tempdir().unwrap();
    passes(file(&dir, FileConfig::default()));
}

#[test]
fn file_without_inline_writes_and_with_few_open_files() {
    let dir = tempfile::tempdir().unwrap();
    passes(file(&dir, FileConfig { inline_write_bytes_max: 0, open_files_max: 16, ..FileConfig::default() }));
}

#[test]
fn file_on_the_callers_thread() {
    let dir = tempfile::tempdir().unwrap();
    passes(file(&dir, FileConfig { threads: 0, ..FileConfig::default() }));
}

#[test]
fn file_past_the_page_cache() {
    // A temporary directory in memory may not support O_DIRECT; the build's directory is on a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    passes(file(&dir, FileConfig { direct: true, ..FileConfig::default() }));
}

#[test]
fn layers_over_layers() {
    let memory = Arc::new(PassThrough::new(Arc::new(PassThrough::new(Arc::new(Memory::default())))));
    passes(Arc::new(PassThrough::<dyn Blocker>::new(memory)));
    let dir = tempfile::tempdir().unwrap();
    let boxed: Box<dyn Blocker> = Box::new(PassThrough::new(file(&dir, FileConfig::default())));
    passes(Arc::new(boxed));
}
