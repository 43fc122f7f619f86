//! `registry`: the documents that hosts share, through the admin listener of one of the hosts.

use std::fmt::Write as _;

use serde_json::Value;

use crate::command::Call;
use crate::output::Failure;

/// Lists the documents of the registry.
pub(crate) fn list(call: &Call<'_>) -> Result<(), Failure> {
    let listing = call.admin()?.get("/registry.json")?;
    let mut text = format!("revision {}", listing["revision"]);
    for document in listing["documents"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let [key, value] = ["key", "value"].map(|field| document[field].as_str().unwrap_or_default());
        let lease = match &document["lease"] {
            Value::String(lease) => format!(", lease {lease}"),
            _ => String::new(),
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{key} (revision {}{lease}): {value}", document["revision"]);
    }
    call.output.write(text, &listing)
}
