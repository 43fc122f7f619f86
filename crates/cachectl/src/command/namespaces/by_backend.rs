//! Managing namespaces by the control plane of a backend: a server that is reached over synapse.

use blocker::executor::block_on;
use blocker::{Control, DirtyData, Error, Namespace, NamespaceSettings, NamespaceState};
use serde_json::{Value, json};

use super::Manager;
use crate::exit::{About, Failure};

pub(super) struct ByBackend<'a>(pub(super) &'a dyn Control);

impl Manager for ByBackend<'_> {
    fn list(&self) -> Result<Value, Failure> {
        let mut all: Vec<NamespaceState> = Vec::new();
        loop {
            let after = all.last().map(|last| last.namespace.clone());
            let page = block_on(self.0.namespace_states(after))?;
            let is_last = !page.has_more || page.states.is_empty();
            all.extend(page.states);
            if is_last {
                break;
            }
        }
        let mut values: Vec<Value> = all.iter().map(value).collect();
        let amount = |of: &Value, key: &str| of[key].as_u64().unwrap_or(0);
        values.sort_by_key(|of| std::cmp::Reverse((amount(of, "dirty_bytes"), amount(of, "cached_bytes"))));
        Ok(json!({ "namespaces": values }))
    }

    fn show(&self, name: &str) -> Result<Option<Value>, Failure> {
        match block_on(self.0.namespace_state(namespace(name)?)) {
            Err(Error::Missing) => Ok(None),
            state => Ok(Some(value(&state.about(name)?))),
        }
    }

    fn set(&self, name: &str, settings: &NamespaceSettings) -> Result<Value, Failure> {
        block_on(self.0.change_namespace(namespace(name)?, settings.clone())).about(name)?;
        Ok(json!({ "done": true }))
    }

    fn remove(&self, name: &str, dirty_data: DirtyData) -> Result<Value, Failure> {
        let removed = block_on(self.0.remove_namespace(namespace(name)?, dirty_data)).about(name)?;
        Ok(json!({
            "done": true,
            "dropped_bytes": removed.dropped_bytes,
            "discarded_bytes": removed.discarded_bytes,
        }))
    }
}

fn namespace(name: &str) -> Result<Namespace, Failure> {
    Ok(Namespace::copy_from(name.as_bytes())?)
}

/// Returns a state as the admin listener shows it.
fn value(of: &NamespaceState) -> Value {
    let mut value = json!({
        "namespace": of.namespace.to_string(),
        "write": of.write.to_string(),
        "changing": of.is_changing,
        "configured": of.is_configured,
    });
    for (name, count) in &of.counts {
        value[name.as_str()] = json!(count);
    }
    value["settings"] = json!(of.settings);
    value
}
