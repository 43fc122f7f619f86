//! Replays the fuzz corpus of the store, and programs drawn at random.

use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};

#[test]
fn the_corpus_runs_clean() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/store");
    let programs: Vec<_> = std::fs::read_dir(corpus).expect("the corpus is part of the repository").collect();
    assert!(programs.len() >= 8, "only {} programs in the corpus", programs.len());
    for program in programs {
        let path = program.expect("readable").path();
        println!("{}", path.display());
        crate::store_ops::run(&std::fs::read(path).expect("readable"));
    }
}

#[test]
fn random_programs_run_clean() {
    let seed =
        std::env::var("CACHED_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("CACHED_TEST_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..60 {
        let mut program = vec![0; rng.random_range(0..3_000)];
        rng.fill_bytes(&mut program);
        crate::store_ops::run(&program);
    }
}
