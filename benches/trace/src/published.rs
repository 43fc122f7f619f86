//! The published miss ratios of `miss-ratios.csv`, printed for comparison with the measured ones.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Published miss ratios, by trace, capacity in objects and policy.
#[derive(Debug, Default)]
pub(crate) struct Published(HashMap<(String, u64, String), f64>);

impl Published {
    /// Reads `trace,requests,ws,frac,cache_size,policy,req_miss_ratio`, with a header.
    pub(crate) fn read(path: &Path) -> Result<Published> {
        Published::decode(&fs::read_to_string(path)?)
    }

    fn decode(text: &str) -> Result<Published> {
        let mut figures = HashMap::new();
        for (at, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.is_empty()) {
            let fields: Vec<&str> = line.split(',').collect();
            let [trace, _, _, _, capacity, policy, ratio] = fields[..] else {
                anyhow::bail!("line {} has not seven fields", at + 1);
            };
            let context = || format!("line {}", at + 1);
            let capacity = capacity.parse().with_context(context)?;
            let ratio = ratio.trim().parse().with_context(context)?;
            figures.insert((trace.to_owned(), capacity, policy.to_owned()), ratio);
        }
        Ok(Published(figures))
    }

    pub(crate) fn find(&self, trace: &str, capacity: u64, policy: &str) -> Option<f64> {
        self.0.get(&(trace.to_owned(), capacity, policy.to_owned())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found() {
        let head = "trace,requests,ws,frac,cache_size,policy,req_miss_ratio\n";
        let published = Published::decode(&format!("{head}web12,95607,13756,0.01,137,LRU,0.6030\n")).unwrap();
        assert_eq!(published.find("web12", 137, "LRU"), Some(0.6030));
        assert_eq!(published.find("web12", 138, "LRU"), None);
        assert!(Published::decode(&format!("{head}web12,1\n")).is_err());
    }
}
