//! The list of mutations follows the code: each of them still applies. (`--bin mutations` applies them.)

use std::fs;

use cached_tests::mutations::{read_all, repository};

#[test]
fn every_mutation_applies_exactly_once() {
    let repository = repository();
    let all = read_all(&repository).unwrap();
    assert!(all.len() >= 60, "{} mutations are too few", all.len());
    let problems: Vec<_> = all
        .iter()
        .filter_map(|mutation| {
            let text = fs::read_to_string(repository.join(&mutation.file));
            let applied = text.map_err(|error| format!("{}: {error}", mutation.file.display()));
            let problem = applied.and_then(|text| mutation.apply(&text)).err();
            problem.or_else(|| mutation.tests.is_empty().then(|| format!("{}: no test", mutation.name)))
        })
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
