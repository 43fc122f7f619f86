//! A component with metrics, and everything that a program can do with them. Run it with `cargo run
//! -p cached-metrics --example exporter`.

use std::sync::Arc;
use std::time::Instant;

use cached_metrics::{Collect, Counter, Families, Histogram, Registry, render};

struct Copier {
    copies: Counter,
    durations: Histogram,
}

impl Copier {
    fn copy(&self, from: &[u8], to: &mut [u8]) {
        let start = Instant::now();
        to.copy_from_slice(from);
        self.copies.increment();
        self.durations.observe(start.elapsed().as_secs_f64());
    }
}

impl Collect for Copier {
    fn collect(&self, into: &mut Families) {
        into.counter("copier_copies_total", "Copies made.", self.copies.get());
        let help = "How long a copy took.";
        into.sample("copier_duration_seconds", help, Vec::new(), self.durations.value());
    }
}

fn main() {
    let durations = Histogram::new([1e-6, 1e-5, 1e-4, 1e-3]);
    let copier = Arc::new(Copier { copies: Counter::new(), durations });
    let registry = Registry::new();
    let registration = registry.register(Arc::clone(&copier) as _, [("device", "ram")]);

    let (from, mut to) = (vec![1; 1 << 20], vec![0; 1 << 20]);
    (0..100).for_each(|_| copier.copy(&from, &mut to));

    let gathered = registry.gather();
    gathered.errors.iter().for_each(|error| eprintln!("left out: {error}"));
    print!("{}", render::prometheus(&gathered.families));
    drop(registration);
}
