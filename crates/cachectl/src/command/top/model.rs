//! What the answers mean: rates from differences, ratios over the history, and what is at risk.

use std::collections::VecDeque;

use super::format::{age, bytes, count, printable};
use super::status::{Objects, Status};

/// Live rates are differences over about this time.
const WINDOW_MS: u64 = 10_000;

/// The answers of the last seconds, of one process.
#[derive(Default)]
pub(super) struct Model {
    answers: VecDeque<Status>,
}

/// Something that an operator should look at.
#[derive(Debug, PartialEq)]
pub(super) struct Risk {
    pub(super) is_bad: bool,
    pub(super) text: String,
}

impl Model {
    /// Takes an answer. Returns whether it is the first one of another process than the one before.
    pub(super) fn take(&mut self, status: Status) -> bool {
        let restarted = self.answers.back().is_some_and(|before| before.instance != status.instance);
        if restarted {
            self.answers.clear();
        }
        let from = status.now_unix_ms.saturating_sub(WINDOW_MS);
        self.answers.push_back(status);
        while self.answers.len() > 2 && self.answers[1].now_unix_ms <= from {
            self.answers.pop_front();
        }
        restarted
    }

    /// Returns the last answer.
    pub(super) fn now(&self) -> Option<&Status> {
        self.answers.back()
    }

    /// Returns the increase of a counter per second: between the answers, or in the history's last step. `None` if
    /// neither is known.
    pub(super) fn rate(&self, pick: impl Fn(&Status) -> Option<f64>, column: &str) -> Option<f64> {
        self.rise(pick).or_else(|| {
            let step_secs = self.now()?.history.as_ref()?.step_secs;
            let last = self.column(column)?.last().copied()??;
            (step_secs > 0.0).then(|| last / step_secs)
        })
    }

    /// Returns the increase per second between the oldest and the newest answer.
    pub(super) fn rise(&self, pick: impl Fn(&Status) -> Option<f64>) -> Option<f64> {
        let (first, last) = (self.answers.front()?, self.answers.back()?);
        let secs = last.now_unix_ms.checked_sub(first.now_unix_ms)? as f64 / 1e3;
        let rise = pick(last)? - pick(first)?;
        (secs > 0.0 && rise >= 0.0).then(|| rise / secs)
    }

    fn rose(&self, pick: impl Fn(&Status) -> Option<f64>) -> bool {
        self.rise(pick).is_some_and(|rise| rise > 0.0)
    }

    /// Returns a column of the history.
    pub(super) fn column(&self, name: &str) -> Option<&[Option<f64>]> {
        Some(self.now()?.history.as_ref()?.columns.get(name)?)
    }

    /// Returns the last known value of a column.
    pub(super) fn last_of(&self, name: &str) -> Option<f64> {
        self.column(name)?.iter().rev().flatten().copied().next()
    }

    fn sum(&self, name: &str) -> Option<f64> {
        Some(self.column(name)?.iter().flatten().sum())
    }

    /// Returns the hit ratio over the history: of items, or of object reads without items.
    pub(super) fn hit_ratio_hour(&self) -> Option<f64> {
        if self.now()?.items.is_some() {
            return ratio(self.sum("get_hits")?, self.sum("gets")?);
        }
        let (hits, misses) = (self.sum("object_read_hits")?, self.sum("object_read_misses")?);
        ratio(hits, hits + misses)
    }

    /// Returns the hit ratio in each step of the history, with the number of steps that `hit_ratio_hour` covers.
    pub(super) fn hit_ratios(&self) -> Vec<Option<f64>> {
        let pair = |hits: &str, others: &str, others_are_all: bool| {
            let (hits, others) = (self.column(hits)?, self.column(others)?);
            let one = |(hits, others): (&Option<f64>, &Option<f64>)| {
                let (hits, others) = ((*hits)?, (*others)?);
                ratio(hits, if others_are_all { others } else { hits + others })
            };
            Some(hits.iter().zip(others).map(one).collect())
        };
        pair("get_hits", "gets", true)
            .or_else(|| pair("object_read_hits", "object_read_misses", false))
            .unwrap_or_default()
    }

    /// Returns what an operator should look at, the worst first.
    pub(super) fn risks(&self) -> Vec<Risk> {
        let Some(now) = self.now() else { return Vec::new() };
        let mut found = Vec::new();
        let mut add = |is_bad, text: String| found.push(Risk { is_bad, text });
        if let Some(objects) = now.objects.as_ref().filter(|of| of.lost_bytes > 0 || of.lost_objects > 0) {
            let (lost, of) = (bytes(objects.lost_bytes), count(objects.lost_objects));
            add(
                true,
                format!("acknowledged data are lost: {lost} of {of} objects; `cachectl lost` lists them"),
            );
        }
        if now.journal.as_ref().is_some_and(|journal| journal.failed) {
            add(true, "the journal has failed: changes are not journaled".into());
        }
        for reason in &now.health.reasons {
            add(true, format!("not ready: {}", printable(reason, 200)));
        }
        if let Some(store) =
            now.store.as_ref().filter(|of| of.state == "away" && now.health.reasons.is_empty())
        {
            add(true, format!("the store has not answered for {}", age(store.away_ms as f64 / 1e3)));
        }
        if now.connections.as_ref().is_some_and(|of| of.accepting == Some(false)) {
            add(true, "no connections are accepted: the limit is reached, or no descriptors are left".into());
        }
        match now.objects.as_ref().map(|of| of.attach_state.as_str()) {
            Some("detached") => add(
                false,
                "the object cache is detached: requests go to the store; `cachectl cache attach` puts it back"
                    .into(),
            ),
            Some("storing" | "transit") => add(false, "the object cache is being detached".into()),
            _ => {}
        }
        if now.state == "draining" {
            add(false, "the server is draining".into());
        }
        if now.objects.as_ref().is_some_and(is_nearly_full_of_dirty) {
            add(
                false,
                "dirty data are at nine tenths of their limit or above: writers wait at the limit".into(),
            );
        }
        type Pick = fn(&Status) -> Option<f64>;
        let rises: [(&str, Pick); 3] = [
            ("flushes fail; they are repeated", |at| Some(at.objects.as_ref()?.flush_failures as f64)),
            ("connections are refused", |at| Some(at.connections.as_ref()?.refused as f64)),
            ("items are refused: memory is full", |at| Some(at.items.as_ref()?.refused_no_memory as f64)),
        ];
        for (text, pick) in rises {
            if self.rose(pick) {
                add(false, text.into());
            }
        }
        found
    }
}

fn is_nearly_full_of_dirty(objects: &Objects) -> bool {
    objects.dirty_limit_bytes > 0 && objects.dirty_bytes >= objects.dirty_limit_bytes / 10 * 9
}

pub(super) fn ratio(part: f64, all: f64) -> Option<f64> {
    (all > 0.0).then(|| part / all)
}

/// Returns the number of requests that the server has executed.
pub(super) fn requests(status: &Status) -> Option<f64> {
    let items = status.items.as_ref();
    let items = items.map(|of| of.gets + of.sets + of.touches + of.deletes + of.incrs + of.decrs);
    let synapse = status.synapse.as_ref().map(|of| of.requests);
    items.or(synapse).map(|_| (items.unwrap_or(0) + synapse.unwrap_or(0)) as f64)
}
