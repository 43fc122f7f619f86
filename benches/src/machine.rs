//! The place and time of a measurement, printed with every table and included in every JSON file.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The properties of the machine that matter to a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Day of the measurement (UTC), in the form 2026-01-31.
    pub date: String,
    /// Model name of the processor.
    pub cpu: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
}

impl Machine {
    /// Reads `/proc`. Missing values become `unknown` or 0.
    pub fn read() -> Self {
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kibibytes: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
        let (year, month, day) = civil_date(days);
        Self {
            date: format!("{year}-{month:02}-{day:02}"),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: crate::cpu::usable_cpus().map_or(0, |cpus| cpus.len()),
            memory_bytes: kibibytes * 1024,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { date, cpu, cores, memory_bytes, kernel } = self;
        write!(out, "{date} · {cpu}, {cores} cores, {} MiB · Linux {kernel}", memory_bytes >> 20)
    }
}

/// Returns year, month and day of a day counted from 1970-01-01 (Hinnant's algorithm).
pub fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil_date(0), (1970, 1, 1));
        assert_eq!(civil_date(19_782), (2024, 2, 29));
        assert_eq!(civil_date(20_818), (2026, 12, 31));
    }
}
