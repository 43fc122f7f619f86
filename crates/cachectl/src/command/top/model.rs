//! Figures derived from the responses: rates from differences, ratios over the history, and risks.

use std::collections::VecDeque;

use serde_json::Value;

use crate::command::top::view::{age, bytes, count, printable};

/// The approximate period over which live rates are computed.
const WINDOW_MS: u64 = 10_000;

/// The responses of the last seconds, all from one process.
#[derive(Default)]
pub(super) struct Model {
    answers: VecDeque<Value>,
}

/// A condition that needs an operator's attention.
#[derive(Debug, PartialEq)]
pub(super) struct Risk {
    pub(super) is_bad: bool,
    pub(super) text: String,
}

impl Model {
    /// Adds a response. Returns whether it is the first from a process other than the previous one.
    pub(super) fn take(&mut self, status: Value) -> bool {
        let restarted = self.answers.back().is_some_and(|before| before["instance"] != status["instance"]);
        if restarted {
            self.answers.clear();
        }
        let time = |of: &Value| Part(of).u64("now_unix_ms");
        let from = time(&status).saturating_sub(WINDOW_MS);
        self.answers.push_back(status);
        while self.answers.len() > 2 && time(&self.answers[1]) <= from {
            self.answers.pop_front();
        }
        restarted
    }

    /// Returns the last response.
    pub(super) fn now(&self) -> Option<Part<'_>> {
        self.answers.back().map(Part)
    }

    /// Returns the length of the history's steps.
    pub(super) fn step_secs(&self) -> Option<f64> {
        self.now()?.at("/history/step_secs")
    }

    /// Returns the increase of a counter per second: between the responses, or in the history's
    /// last step. `None` if neither is known.
    pub(super) fn rate(&self, pick: impl Fn(Part<'_>) -> Option<f64>, column: &str) -> Option<f64> {
        self.rise(pick).or_else(|| {
            let step_secs = self.step_secs()?;
            let last = *self.column(column)?.last()?;
            let last = last?;
            (step_secs > 0.0).then(|| last / step_secs)
        })
    }

    /// Returns the increase per second between the oldest and the newest response.
    pub(super) fn rise(&self, pick: impl Fn(Part<'_>) -> Option<f64>) -> Option<f64> {
        let (first, last) = (Part(self.answers.front()?), self.now()?);
        let secs = last.u64("now_unix_ms").checked_sub(first.u64("now_unix_ms"))? as f64 / 1e3;
        let rise = pick(last)? - pick(first)?;
        (secs > 0.0 && rise >= 0.0).then(|| rise / secs)
    }

    /// Returns a column of the history, oldest first: increases within each step, or values at the
    /// end of each step.
    pub(super) fn column(&self, name: &str) -> Option<Vec<Option<f64>>> {
        let column = self.now()?.part("history")?.part("columns")?.part(name)?.0.as_array()?;
        Some(column.iter().map(Value::as_f64).collect())
    }

    /// Returns the last known value of a column.
    pub(super) fn last_of(&self, name: &str) -> Option<f64> {
        self.column(name)?.into_iter().rev().flatten().next()
    }

    /// Returns the sum of a column.
    pub(super) fn sum(&self, name: &str) -> Option<f64> {
        Some(self.column(name)?.into_iter().flatten().sum())
    }

    /// Returns the hit ratio over the history: of items or, without items, of object reads.
    pub(super) fn hit_ratio_hour(&self) -> Option<f64> {
        if self.now()?.part("items").is_some() {
            return ratio(self.sum("get_hits")?, self.sum("gets")?);
        }
        let (hits, misses) = (self.sum("object_read_hits")?, self.sum("object_read_misses")?);
        ratio(hits, hits + misses)
    }

    /// Returns the hit ratio in each step of the history, with the number of steps that
    /// `hit_ratio_hour` covers.
    pub(super) fn hit_ratios(&self) -> Vec<Option<f64>> {
        let pair = |hits: &str, others: &str, others_are_all: bool| {
            let (hits, others) = (self.column(hits)?, self.column(others)?);
            let one = |(hits, others): (Option<f64>, Option<f64>)| {
                let (hits, others) = (hits?, others?);
                ratio(hits, if others_are_all { others } else { hits + others })
            };
            Some(hits.into_iter().zip(others).map(one).collect())
        };
        pair("get_hits", "gets", true)
            .or_else(|| pair("object_read_hits", "object_read_misses", false))
            .unwrap_or_default()
    }

    /// Returns the conditions that need an operator's attention, the worst first.
    pub(super) fn risks(&self) -> Vec<Risk> {
        let Some(now) = self.now() else { return Vec::new() };
        let mut found = Vec::new();
        let mut add = |is_bad, text: String| found.push(Risk { is_bad, text });
        let objects = now.part("objects");
        let has_lost = |of: &Part<'_>| of.u64("lost_bytes") > 0 || of.u64("lost_objects") > 0;
        if let Some(objects) = objects.filter(has_lost) {
            let (lost, of) = (bytes(objects.u64("lost_bytes")), count(objects.u64("lost_objects")));
            add(
                true,
                format!("acknowledged data are lost: {lost} of {of} objects; `cachectl lost` lists them"),
            );
        }
        if now.0["journal"]["failed"] == true {
            add(true, "the journal has failed: changes are not journaled".into());
        }
        let mut reasons = now.part("health").into_iter().flat_map(|health| health.rows("reasons")).peekable();
        let is_ready = reasons.peek().is_none();
        for reason in reasons {
            add(true, format!("not ready: {}", printable(reason.0.as_str().unwrap_or_default(), 200)));
        }
        if let Some(store) = now.part("store").filter(|of| of.text("state") == "away" && is_ready) {
            add(true, format!("the store has not answered for {}", age(store.u64("away_ms") as f64 / 1e3)));
        }
        match now.part("s3").map(|of| (of.text("state"), of.u64("away_ms"))) {
            Some(("away", ms)) => {
                let time = age(ms as f64 / 1e3);
                add(true, format!("the S3 endpoint has not been reachable for {time}"));
            }
            Some(("slow", _)) => add(
                false,
                "the S3 endpoint does not respond in time; objects in memory are served without it".into(),
            ),
            _ => {}
        }
        if now.0["connections"]["accepting"] == false {
            add(true, "no connections are accepted: the limit is reached, or no descriptors are left".into());
        }
        match objects.map(|of| of.text("attach_state")) {
            Some("detached") => add(
                false,
                "the object cache is detached: requests go to the store; `cachectl cache attach` puts it back"
                    .into(),
            ),
            Some("storing" | "transit") => add(false, "the object cache is being detached".into()),
            _ => {}
        }
        if now.text("state") == "draining" {
            add(false, "the server is draining".into());
        }
        if objects.is_some_and(is_nearly_full_of_dirty) {
            add(
                false,
                "dirty data are at nine tenths of their limit or above: writers wait at the limit".into(),
            );
        }
        for (text, path) in [
            ("flushes fail and are retried", "/objects/flush_failures"),
            ("connections are refused", "/connections/refused"),
            ("items are refused: memory is full", "/items/refused_no_memory"),
        ] {
            if self.rise(|now| now.at(path)).is_some_and(|rise| rise > 0.0) {
                add(false, text.into());
            }
        }
        found
    }
}

fn is_nearly_full_of_dirty(objects: Part<'_>) -> bool {
    let limit = objects.u64("dirty_limit_bytes");
    limit > 0 && objects.u64("dirty_bytes") >= limit / 10 * 9
}

pub(super) fn ratio(part: f64, all: f64) -> Option<f64> {
    (all > 0.0).then(|| part / all)
}

/// Returns the number of requests that the server has executed.
pub(super) fn requests(status: Part<'_>) -> Option<f64> {
    let commands = ["gets", "sets", "touches", "deletes", "incrs", "decrs"];
    let items = status.part("items").map(|of| commands.iter().map(|name| of.u64(name)).sum::<u64>() as f64);
    let synapse = status.at("/synapse/requests");
    let s3 = s3_hits(status).map(|(_, reads)| {
        let others = ["passed", "refused", "failed"].map(|name| status.0["s3"][name].as_u64().unwrap_or(0));
        reads + others.iter().sum::<u64>() as f64
    });
    items.into_iter().chain(synapse).chain(s3).reduce(|all, one| all + one)
}

/// Returns the S3 requests that were answered from memory, and these and the misses.
pub(super) fn s3_hits(status: Part<'_>) -> Option<(f64, f64)> {
    let s3 = status.part("s3")?;
    let hits = ["hits", "revalidated", "stale", "absent"].map(|name| s3.u64(name)).iter().sum::<u64>();
    Some((hits as f64, (hits + s3.u64("misses")) as f64))
}

/// A response, or a part of one. A missing value reads as 0, as an empty text, or as no rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a>(pub(super) &'a Value);

impl<'a> Part<'a> {
    pub(super) fn part(self, key: &str) -> Option<Part<'a>> {
        self.0.get(key).filter(|part| !part.is_null()).map(Part)
    }

    pub(super) fn rows(self, key: &str) -> impl Iterator<Item = Part<'a>> {
        self.0[key].as_array().into_iter().flatten().map(Part)
    }

    /// Returns the row in which `key` has this value.
    pub(super) fn row(self, rows: &str, key: &str, value: &str) -> Option<Part<'a>> {
        self.rows(rows).find(|row| row.text(key) == value)
    }

    pub(super) fn text(self, key: &str) -> &'a str {
        self.0[key].as_str().unwrap_or_default()
    }

    pub(super) fn u64(self, key: &str) -> u64 {
        self.0[key].as_u64().unwrap_or_default()
    }

    pub(super) fn f64(self, key: &str) -> Option<f64> {
        self.0[key].as_f64()
    }

    /// Returns the number at a path, for example `/items/gets`.
    pub(super) fn at(self, path: &str) -> Option<f64> {
        self.0.pointer(path)?.as_f64()
    }
}
