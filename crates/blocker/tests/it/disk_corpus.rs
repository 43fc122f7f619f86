//! Replays the fuzz corpus of a file store's files.

#[test]
fn the_corpus_is_opened_or_refused() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/disk");
    let programs: Vec<_> = std::fs::read_dir(corpus).expect("the corpus is part of the repository").collect();
    assert!(programs.len() >= 8, "only {} programs in the corpus", programs.len());
    for program in programs {
        let path = program.expect("readable").path();
        println!("{}", path.display());
        let dir = tempfile::tempdir().expect("a temporary directory");
        crate::disk_bytes::run(dir.path(), &std::fs::read(path).expect("readable"));
    }
}
