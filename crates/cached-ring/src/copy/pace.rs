//! The pace of a move beside the requests of clients.

use std::time::Duration;

/// The number of changed keys from which on they are sent before further items.
pub const CHANGES_MANY: usize = 256;

/// The shortest pause: a thread that is woken waits for its turn, which many short pauses would multiply.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The longest pause, after which a session looks again whether it must end.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The pauses of one end of a move.
///
/// A move is not urgent, and works with the processors that clients need: so it pauses for as long as it
/// works, and takes about twice as long.
#[derive(Debug, Default)]
pub struct Pace {
    owed: Duration,
}

impl Pace {
    /// Returns the pause that is due after a step of a move that took `worked`, while `changes` keys wait.
    ///
    /// None is due while many changes wait, because the move could otherwise fall behind them for ever.
    pub fn pause_after(&mut self, worked: Duration, changes: usize) -> Option<Duration> {
        if changes >= CHANGES_MANY {
            self.owed = Duration::ZERO;
            return None;
        }
        self.owed += worked;
        (self.owed >= PAUSE_MIN).then(|| std::mem::take(&mut self.owed).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_works_half_of_the_time_unless_changes_outrun_it() {
        let ms = Duration::from_millis;
        let mut pace = Pace::default();
        assert_eq!(pace.pause_after(ms(7), 0), Some(ms(7)));
        // Short steps add up.
        assert_eq!(pace.pause_after(ms(3), CHANGES_MANY - 1), None);
        assert_eq!(pace.pause_after(ms(3), 0), Some(ms(6)));
        assert_eq!(pace.pause_after(ms(3), 0), None);
        // Many waiting changes cancel the pause that would have been due.
        assert_eq!(pace.pause_after(ms(30), CHANGES_MANY), None);
        assert_eq!(pace.pause_after(ms(3), 0), None);
        assert_eq!(pace.pause_after(ms(3000), 0), Some(ms(20)), "a session that pauses looks around");
    }
}
