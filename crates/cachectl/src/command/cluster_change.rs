//! `cluster weight`, `move`, `drain`, `remove`, `fail`, `pause` and `resume`: changes of a ring whose map is in
//! the registry, through the admin listener of one of its nodes.

use std::time::{Duration, Instant};

use cached_ring::SlotSet;
use clap::Subcommand;
use serde_json::{Value, json};

use crate::admin::{Admin, list};
use crate::command::Call;
use crate::output::{Failure, Progress};

/// The interval at which the progress of a drain is asked for.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
pub(crate) enum Change {
    /// Set a node's share of the slots, relative to other nodes': slots then move, with their items.
    Weight {
        /// The name of the node.
        node: String,
        /// The weight, 0 to 10000.
        weight: u32,
    },
    /// Wish for slots at a node, for example hot ones: it takes them first, and gives others away instead.
    ///
    /// A wish holds until it is cancelled, or another one names the same slots. `cluster map` shows which
    /// slots are wished for a node.
    Move {
        /// The slots, as runs: 0-99,200.
        #[arg(required_unless_present = "cancel")]
        slots: Option<SlotSet>,
        /// The name of the node.
        #[arg(required_unless_present = "cancel", conflicts_with = "cancel")]
        node: Option<String>,
        /// Cancel the wishes for these slots, or all of them. The slots stay until the weights move them.
        #[arg(long)]
        cancel: bool,
    },
    /// Set a node's weight to 0, and wait until all of its slots have moved to other nodes.
    ///
    /// Clients notice nothing. If --timeout passes first, the exit code is not 0, and slots go on
    /// moving.
    Drain {
        /// The name of the node.
        node: String,
        /// Return at once.
        #[arg(long)]
        no_wait: bool,
    },
    /// Remove a node that owns no slots, after a drain. Its process then ends.
    Remove {
        /// The name of the node.
        node: String,
    },
    /// Give the slots of a lost node to the other nodes. ITS ITEMS ARE LOST.
    ///
    /// This is for a node that no other one replaces, because the node that does so is lost as well. It
    /// is refused while the node's lease holds. Stop the node's process first, if it may still run. If
    /// the node starts again, it keeps nothing, and owns nothing until it has a weight.
    Fail {
        /// The name of the node.
        node: String,
        /// Confirm that the process is stopped, and that its items are given up.
        #[arg(long)]
        yes: bool,
    },
    /// Let no further move of slots begin; moves that have begun go on.
    Pause,
    /// Let moves of slots begin again.
    Resume,
}

impl Change {
    pub(crate) fn run(&self, call: &Call<'_>) -> Result<(), Failure> {
        let admin = call.admin()?;
        let named = |node: &str| json!({ "node": node });
        let (path, body, done) = match self {
            Self::Weight { node, weight } => (
                "weight",
                json!({ "node": node, "weight": weight }),
                format!("node {node} has weight {weight}"),
            ),
            Self::Move { slots, node, .. } => {
                let slots = slots.as_ref().map(SlotSet::to_string);
                match (node, slots) {
                    (Some(node), slots) => {
                        let done =
                            format!("node {node} is to have slots {}", slots.as_deref().unwrap_or_default());
                        ("move", json!({ "node": node, "slots": slots }), done)
                    }
                    (None, Some(slots)) => {
                        ("cancel", json!({ "slots": slots }), format!("slots {slots} are wished for no node"))
                    }
                    (None, None) => ("cancel", json!({}), "no slots are wished for a node".into()),
                }
            }
            Self::Drain { node, .. } => {
                ("weight", json!({ "node": node, "weight": 0 }), format!("node {node} has weight 0"))
            }
            Self::Remove { node } => {
                ("remove", named(node), format!("node {node} is removed; its process ends"))
            }
            Self::Fail { node, yes } => {
                let ring = admin.get("/ring.json")?;
                let slots = slots_of(&ring, node)?;
                if !yes {
                    return Err(Failure::usage(format!(
                        "the items of {slots} slots of node {node} would be lost; stop its process, then repeat the \
                         command with --yes"
                    )));
                }
                (
                    "fail",
                    named(node),
                    format!("node {node} is struck off: the items of {slots} slots are lost"),
                )
            }
            Self::Pause => ("pause", json!({}), "no further move begins".into()),
            Self::Resume => ("resume", json!({}), "moves begin again".into()),
        };
        let answer = admin.post(&format!("/ring/{path}"), &body).map_err(|failure| match failure.status {
            Some(404) => {
                let line = "the server belongs to no ring whose map is in a registry; `cluster plan` changes a map file";
                Failure::admin(admin.url(), Some(404), line)
            }
            _ => failure,
        })?;
        match self {
            Self::Drain { node, no_wait: false } => {
                wait(&admin, node, call.timeout)?;
                call.output.write(format!("node {node} owns no slots"), &answer)
            }
            _ => call.output.write(format!("{done} (map {})", answer["map_version"]), &answer),
        }
    }
}

fn find<'a>(ring: &'a Value, node: &str) -> Option<&'a Value> {
    list(ring, "nodes").iter().find(|found| found["node"] == node)
}

/// Returns the number of slots of a node.
///
/// # Errors
/// Fails if there is no such node: nothing of it could be lost.
fn slots_of(ring: &Value, node: &str) -> Result<u64, Failure> {
    let found = find(ring, node).ok_or_else(|| {
        let names: Vec<&str> = list(ring, "nodes").iter().filter_map(|node| node["node"].as_str()).collect();
        Failure::usage(format!("there is no node {node:?}; the nodes are {}", names.join(", ")))
    })?;
    Ok(found["slots"].as_u64().unwrap_or(0))
}

/// Waits until a node owns no slots.
fn wait(admin: &Admin, node: &str, timeout: Option<Duration>) -> Result<(), Failure> {
    let (began, mut progress, mut first) = (Instant::now(), Progress::of_steps(), None);
    loop {
        let ring = admin.get("/ring.json")?;
        let Some(found) = find(&ring, node) else { return Ok(()) };
        let left = found["slots"].as_u64().unwrap_or(0);
        if left == 0 {
            return Ok(());
        }
        let total = *first.get_or_insert(left);
        progress.reach(total.saturating_sub(left), total);
        let is_paused = ring["paused"] == true && list(&ring, "moves").is_empty();
        if is_paused || timeout.is_some_and(|timeout| began.elapsed() + LOOK >= timeout) {
            let rest = if is_paused { "which move once the ring is resumed" } else { "which go on moving" };
            let line = format!("node {node} still owns {left} slots, {rest}");
            return Err(Failure::admin(admin.url(), None, line));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_exist_loses_nothing() {
        let ring = json!({ "nodes": [{ "node": "a", "slots": 9 }, { "node": "b", "slots": 7 }] });
        let told = |node: &str| slots_of(&ring, node).map_err(|failure| failure.to_string());
        assert_eq!(told("b"), Ok(7));
        assert_eq!(told("c").unwrap_err(), "there is no node \"c\"; the nodes are a, b");
    }
}
