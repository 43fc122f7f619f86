//! Records which versions of a key may be read: those that were sent, acknowledged, deleted,
//! flushed or seen to be absent.
//!
//! A key has one writer, which numbers its versions. A reader records the acknowledged version
//! before it sends a request, and the last sent version when the reply arrives: only versions in
//! between are admissible, whatever the order in which the server executes requests.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The record of one key.
#[derive(Debug, Default)]
pub struct Account {
    /// The newest version that has been sent.
    sent: AtomicU64,
    /// Twice the newest acknowledged version, plus one if this version has been removed
    /// permanently.
    floor: AtomicU64,
    /// A version that was never sent completely.
    void: AtomicU64,
    /// Versions up to this one may have been flushed.
    doubtful: AtomicU64,
}

/// The state of knowledge about a key before a request.
#[derive(Debug, Clone, Copy)]
pub struct Before {
    floor: u64,
}

impl Account {
    /// Assigns the next version, which is about to be sent.
    pub fn send(&self) -> u64 {
        self.sent.fetch_add(1, SeqCst) + 1
    }

    /// Returns the newest version that has been sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(SeqCst)
    }

    /// Records that a version has been acknowledged as stored: from now on, reads must not return
    /// earlier versions.
    pub fn stored(&self, version: u64) {
        self.floor.fetch_max(2 * version, SeqCst);
    }

    /// Records that a version and all earlier ones have been acknowledged as removed.
    pub fn gone(&self, version: u64) {
        self.floor.fetch_max(2 * version + 1, SeqCst);
    }

    /// Records that a version was never sent completely.
    pub fn never_complete(&self, version: u64) {
        self.void.store(version, SeqCst);
    }

    /// Records the end of a flush, which may have removed versions sent in the meantime.
    pub fn flushed(&self) {
        self.doubtful.store(self.sent(), SeqCst);
    }

    /// Returns the newest version that has been acknowledged, stored or removed.
    pub fn acknowledged(&self) -> u64 {
        self.floor.load(SeqCst) / 2
    }

    /// Returns whether the newest version acknowledged before the request has been removed.
    pub fn is_gone(before: Before) -> bool {
        !before.floor.is_multiple_of(2)
    }

    /// Returns the state of knowledge before a request is sent.
    pub fn before(&self) -> Before {
        Before { floor: self.floor.load(SeqCst) }
    }

    /// Checks a version that was read.
    ///
    /// # Errors
    /// Returns a description of the contradiction.
    pub fn judge_hit(&self, before: Before, version: u64) -> Result<(), String> {
        let (sent, void) = (self.sent(), self.void.load(SeqCst));
        let acknowledged = before.floor / 2;
        if version > sent {
            return Err(format!("version {version} of which {sent} have been sent"));
        }
        if version < acknowledged {
            return Err(format!("stale: version {version} after {acknowledged} was acknowledged"));
        }
        if 2 * version < before.floor {
            return Err(format!("resurrected: version {version}, which was gone"));
        }
        if version == void && version != 0 {
            return Err(format!("version {version} was never sent in full"));
        }
        // Later requests must not return an older version.
        self.stored(version);
        Ok(())
    }

    /// Checks a miss. It permanently removes the versions acknowledged before the request. With
    /// `lossless`, no value may vanish without a removal.
    ///
    /// # Errors
    /// Returns a lost version.
    pub fn judge_miss(&self, before: Before, lossless: bool) -> Result<(), String> {
        let certain = before.floor / 2 > self.doubtful.load(SeqCst);
        let there = before.floor.is_multiple_of(2) && certain;
        let undisturbed = self.floor.load(SeqCst) == before.floor && self.sent() == before.floor / 2;
        self.gone(before.floor / 2);
        if lossless && there && undisturbed {
            return Err(format!("lost: version {} was acknowledged and is not there", before.floor / 2));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_there_passes() {
        let account = Account::default();
        assert!(account.judge_miss(account.before(), true).is_ok(), "never stored");
        let first = account.send();
        assert!(account.judge_hit(account.before(), first).is_ok(), "sent, perhaps stored");
        account.stored(first);
        let before = account.before();
        let second = account.send();
        assert!(account.judge_hit(before, first).is_ok() && account.judge_hit(before, second).is_ok());
        assert!(account.judge_hit(account.before(), first).is_err(), "another has seen the second");
        account.stored(second);
        assert!(account.judge_hit(before, first).is_ok(), "asked for before the acknowledgement");
        assert!(account.judge_hit(account.before(), first).is_err(), "stale");
        assert!(account.judge_hit(account.before(), second + 1).is_err(), "never sent");
        account.gone(second);
        assert!(account.judge_hit(account.before(), second).is_err(), "resurrected");
        let third = account.send();
        account.stored(third);
        assert!(account.judge_miss(account.before(), true).is_err(), "lost");
        let fourth = account.send();
        account.stored(fourth);
        let before = account.before();
        assert!(account.judge_miss(before, false).is_ok());
        assert!(account.judge_hit(account.before(), fourth).is_err(), "it was gone");
        let fifth = account.send();
        account.never_complete(fifth);
        assert!(account.judge_hit(before, fifth).is_err());
    }
}
