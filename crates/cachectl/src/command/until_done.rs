//! Asking a server's admin listener for what takes long, until it is done.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::exit::Failure;

/// Asks until the answer is that it is done, or `timeout` has nearly passed.
///
/// # Errors
/// Why it is not done yet; those of [`Admin::post`].
pub(super) fn until_done(
    admin: &Admin,
    path: &str,
    body: &Value,
    timeout: Option<Duration>,
) -> Result<Value, Failure> {
    let began = Instant::now();
    loop {
        let mut body = body.clone();
        let left = timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        if let Some(left) = left {
            // The rest is for the answer.
            body["wait_ms"] = json!(u64::try_from(left.as_millis()).unwrap_or(u64::MAX) / 2);
        }
        let answer = admin.post(path, &body)?;
        if answer["done"] == Value::Bool(true) {
            return Ok(answer);
        }
        if left.is_some_and(|left| left < Duration::from_millis(500)) {
            let text = answer["why"].as_str().unwrap_or("it is not done yet").to_owned();
            return Err(Failure::Admin { what: format!("{}{path}", admin.url()), status: None, text });
        }
    }
}
