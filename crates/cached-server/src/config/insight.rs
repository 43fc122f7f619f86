//! `[insight]`: the shared table, and the settings that it stands for.

use super::error::ConfigError;
use crate::config::settings::Settings;
use cached_config::InsightTable;

pub(super) fn table(settings: &Settings) -> InsightTable {
    InsightTable {
        enabled: settings.insight,
        sampled_share: settings.insight_share,
        slow_request_ms: settings.slow_request_ms,
    }
}

pub(super) fn apply(table: &InsightTable, settings: &mut Settings) -> Result<(), ConfigError> {
    table.check()?;
    settings.insight = table.enabled;
    settings.insight_share = table.sampled_share;
    settings.slow_request_ms = table.slow_request_ms;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_have_the_same_defaults() {
        assert_eq!(table(&Settings::default()), InsightTable::default());
    }
}
