//! The power is cut at every step that changes the disk, in thousands of histories, also during
//! recoveries.

use std::time::Duration;

use super::kit::{Kit, Model};
use crate::disk::simulated::Faults;
use crate::{AppendError, Journal};
use blocker::rng::Rng;

/// Makes one step of a history.
fn step(journal: &Journal, model: &mut Model, random: &mut Rng) {
    match random.below(10) {
        0..5 => match model.append(journal, random) {
            Ok(()) | Err(AppendError::Failed | AppendError::Busy) => {}
            // The oldest are stored first.
            Err(AppendError::Full) => (0..4).for_each(|_| model.release_one(random)),
            Err(error) => panic!("{error}"),
        },
        5..8 => {
            journal.step_commit();
            model.acknowledge(journal);
        }
        8 => model.release_one(random),
        _ => {
            journal.step_prepare();
        }
    }
}

/// Mostly the power is cut. Sometimes only the process ends: its unsynced writes stay, and may be
/// lost with the next crash.
fn crash(kit: &Kit, random: &mut Rng) {
    if random.permille(300) {
        kit.disk.kill_process();
    } else {
        kit.disk.power_cycle(random.next_u64());
    }
}

/// Runs a history with several power cuts. Returns the disk's number of steps, and an error if a
/// recovery returned anything wrong.
fn run(seed: u64, faults: Faults, cut: impl Fn(&mut Rng) -> Option<u64>) -> Result<u64, String> {
    let mut random = Rng::new(seed);
    let kit = Kit::new(3 + random.below(2));
    let mut model = Model::default();
    for life in 0..5 {
        kit.disk.set_faults(random.next_u64(), Faults::default());
        kit.disk.cut_power_in(cut(&mut random));
        let opened = kit.open();
        let (journal, replay) = match opened {
            Ok(opened) => opened,
            Err(_) if kit.disk.is_off() => {
                // The power was cut during the recovery: once more.
                crash(&kit, &mut random);
                continue;
            }
            Err(error) => return Err(format!("life {life}: {error}")),
        };
        match model.check(&journal, replay) {
            Ok(()) => {}
            Err(_) if kit.disk.is_off() => {}
            Err(error) => return Err(format!("life {life}: {error}")),
        }
        kit.disk.set_faults(random.next_u64(), faults);
        for _ in 0..random.below(160) {
            step(&journal, &mut model, &mut random);
            if random.permille(30) {
                kit.clock.advance(Duration::from_secs(3));
            }
            if kit.disk.is_off() {
                break;
            }
        }
        crash(&kit, &mut random);
    }
    kit.disk.set_faults(0, Faults::default());
    let (journal, replay) = kit.open().map_err(|error| format!("at last: {error}"))?;
    model.check(&journal, replay).map_err(|error| format!("at last: {error}"))?;
    Ok(kit.disk.steps())
}

fn seeds() -> std::ops::Range<u64> {
    0..600 * super::kit::times()
}

fn run_all(faults: Faults, cut: impl Fn(&mut Rng) -> Option<u64> + Copy) {
    for seed in seeds() {
        if let Err(error) = run(seed, faults, cut) {
            panic!("seed {seed}: {error}");
        }
    }
}

#[test]
fn a_power_cut_loses_nothing_that_was_acknowledged_and_leaves_a_prefix() {
    run_all(Faults::default(), |random| Some(1 + random.below(120)));
}

#[test]
fn a_power_cut_at_every_step_of_a_history_leaves_a_prefix() {
    for seed in 0..3 * super::kit::times() {
        let steps = run(seed, Faults::default(), |_| None).unwrap();
        for at in 1..steps.min(400) {
            if let Err(error) = run(seed, Faults::default(), |_| Some(at)) {
                panic!("seed {seed}, power cut at step {at}: {error}");
            }
        }
    }
}

#[test]
fn a_recovery_that_is_cut_off_can_be_repeated() {
    // Most cuts fall into the few steps of the recovery.
    run_all(Faults::default(), |random| {
        let end = if random.permille(600) { 8 } else { 150 };
        Some(1 + random.below(end))
    });
}

#[test]
fn failing_writes_and_syncs_lose_nothing_that_was_acknowledged() {
    let faults = Faults { write: 30, sync: 60, full: 100 };
    run_all(faults, |random| random.permille(500).then(|| 1 + random.below(200)));
}

#[test]
fn failing_disks_without_power_cuts_lose_nothing_that_was_acknowledged() {
    run_all(Faults { write: 60, sync: 100, full: 300 }, |_| None);
}
