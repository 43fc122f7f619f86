//! Managing namespaces by a server's admin listener.

use std::time::Duration;

use blocker::{DirtyData, NamespaceSettings};
use serde_json::{Value, json};

use super::super::until_done::until_done;
use super::Manager;
use crate::admin::Admin;
use crate::exit::Failure;

/// One request waits for 20 seconds at most; `timeout` is for all of them together.
pub(super) struct ByAdmin {
    pub(super) admin: Admin,
    pub(super) timeout: Option<Duration>,
}

impl Manager for ByAdmin {
    fn list(&self) -> Result<Value, Failure> {
        self.admin.get("/namespaces.json")
    }

    fn show(&self, name: &str) -> Result<Option<Value>, Failure> {
        match self.admin.get(&format!("/namespaces.json?name={}", encoded(name))) {
            // A server without an object cache does not have the route.
            Err(Failure::Admin { status: Some(404), text, .. }) if text.contains("no namespace") => Ok(None),
            shown => shown.map(Some),
        }
    }

    fn set(&self, name: &str, settings: &NamespaceSettings) -> Result<Value, Failure> {
        let mut values = settings.clone();
        let body = json!({ "namespace": name, "write": values.write.take(), "settings": values });
        until_done(&self.admin, "/namespaces/set", &body, self.timeout)
    }

    fn remove(&self, name: &str, dirty_data: DirtyData) -> Result<Value, Failure> {
        let (flush, discard) = (dirty_data == DirtyData::Store, dirty_data == DirtyData::Discard);
        let body = json!({ "namespace": name, "flush": flush, "discard_dirty": discard });
        until_done(&self.admin, "/namespaces/remove", &body, self.timeout)
    }
}

/// Returns a name as a part of a query.
fn encoded(name: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02x}"),
    };
    name.bytes().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded() {
        assert_eq!(encoded("a/b c-1"), "a%2fb%20c-1");
    }
}
