//! Logs: lines on standard error, as service managers expect them.

use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;

/// Returns the level with this name.
///
/// # Errors
/// One line with the names that there are.
pub(crate) fn level(name: &str) -> Result<LevelFilter, String> {
    match name {
        "error" => Ok(LevelFilter::ERROR),
        "warn" => Ok(LevelFilter::WARN),
        "info" => Ok(LevelFilter::INFO),
        "debug" => Ok(LevelFilter::DEBUG),
        "trace" => Ok(LevelFilter::TRACE),
        _ => Err(format!("log_level: {name:?} is none of error, warn, info, debug, trace")),
    }
}

/// Writes the process's logs to standard error. Called at most once.
pub(crate) fn install(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
