//! Committed figures with which later ones are compared.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use cached_benches::figure::Figure;
use serde::{Deserialize, Serialize};

/// Figures and the compiler they were made with: another compiler makes other instructions.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Baseline {
    rustc: String,
    /// Name and instructions of each figure.
    figures: Vec<(String, f64)>,
}

impl Baseline {
    pub(crate) fn of(figures: &[Figure]) -> Self {
        let figures = figures.iter().map(|figure| (figure.name.clone(), figure.value.round())).collect();
        Self { rustc: compiler(), figures }
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no baseline", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }

    /// Fails when a figure is more than `gate` percent above its baseline, or has none.
    pub(crate) fn check(&self, figures: &[Figure], gate: f64) -> Result<()> {
        let own = compiler();
        if own != self.rustc {
            eprintln!("note: the baseline was made with {}, this is {own}", self.rustc);
        }
        let mut above = Vec::new();
        for figure in figures {
            let known = self.figures.iter().find(|(name, _)| *name == figure.name);
            let Some((_, base)) = known else { bail!("the baseline has no `{}`", figure.name) };
            let percent = (figure.value / base - 1.0) * 100.0;
            println!("{:<52} {percent:>+14.1} % against the baseline of {base}", figure.name);
            if figure.value > base * (1.0 + gate / 100.0) {
                above.push(format!("{} by {percent:.1} %", figure.name));
            }
        }
        if !above.is_empty() {
            bail!("above the baseline by more than {gate} %: {}", above.join(", "));
        }
        Ok(())
    }
}

/// What `rustc` calls itself.
fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output();
    output.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64) -> [Figure; 1] {
        [Figure::new("one get", value, "instructions")]
    }

    #[test]
    fn the_gate_closes_above_its_percentage_only() {
        let baseline = Baseline::of(&figure(1_000.0));
        assert!(baseline.check(&figure(1_100.0), 10.0).is_ok());
        assert!(baseline.check(&figure(500.0), 10.0).is_ok());
        let error = baseline.check(&figure(1_101.0), 10.0).unwrap_err().to_string();
        assert!(error.contains("one get by 10.1 %"), "{error}");
        assert!(baseline.check(&[Figure::new("another", 1.0, "")], 10.0).is_err());
    }
}
