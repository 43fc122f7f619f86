//! The pace of a move beside the requests of clients.

use std::time::Duration;

/// The number of changed keys from which on they are sent before further items.
pub const CHANGES_MANY: usize = 256;

/// The longest pause: a session looks this often whether it must end.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Returns the pause after a step of a move that took `worked`, while `changes` keys wait.
///
/// A move is not urgent, and works with the processors that clients need: so it pauses for as long as it
/// works, and takes twice as long at most. It does not pause while many changes wait, because it could
/// otherwise fall behind them for ever.
#[must_use]
pub fn pause_after(worked: Duration, changes: usize) -> Duration {
    if changes < CHANGES_MANY { worked.min(PAUSE_MAX) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_works_half_of_the_time_unless_changes_outrun_it() {
        let ms = Duration::from_millis;
        assert_eq!(pause_after(ms(3), 0), ms(3));
        assert_eq!(pause_after(ms(3), CHANGES_MANY - 1), ms(3));
        assert_eq!(pause_after(ms(3), CHANGES_MANY), Duration::ZERO);
        assert_eq!(pause_after(ms(3000), 0), ms(20), "a session that pauses looks around");
    }
}
