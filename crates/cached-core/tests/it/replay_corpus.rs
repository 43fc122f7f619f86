//! Replays the fuzz corpus of journals, and random damage.

use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};

#[test]
fn the_corpus_runs_clean() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/replay");
    let inputs: Vec<_> = std::fs::read_dir(corpus).expect("the corpus is part of the repository").collect();
    assert!(inputs.len() >= 3, "only {} inputs in the corpus", inputs.len());
    for input in inputs {
        let path = input.expect("readable").path();
        println!("{}", path.display());
        crate::replay_bytes::run(&std::fs::read(path).expect("readable"));
    }
}

#[test]
fn random_damage_runs_clean() {
    let seed =
        std::env::var("CACHED_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("CACHED_TEST_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    for number in 0..200_u8 {
        let mut input = vec![0; rng.random_range(1..300)];
        rng.fill_bytes(&mut input);
        // The numbers distribute the inputs over all kinds; a third of the inputs is short, with
        // only a few edits.
        input[0] = number;
        if number % 3 == 0 {
            input.truncate(12);
        }
        crate::replay_bytes::run(&input);
    }
}
