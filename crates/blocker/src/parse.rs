//! Parsing of durabilities, epochs and order domains: reads what their `Display` writes.

use std::str::FromStr;

use crate::error::{Error, Result};
use crate::order::{Durability, Epoch, OrderDomain};

/// Reads what `Display` writes.
///
/// ```
/// use blocker::Durability;
///
/// assert_eq!("replicated(2)".parse(), Ok(Durability::Replicated(2)));
/// ```
impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let nodes = || text.strip_prefix("replicated(")?.strip_suffix(')')?.parse().ok();
        match text {
            "cached" => Ok(Self::Cached),
            "journaled" => Ok(Self::Journaled),
            "stored" => Ok(Self::Stored),
            _ => nodes().map(Self::Replicated).ok_or_else(|| {
                let known = "cached, journaled, replicated(NODES) or stored";
                Error::Invalid(format!("{text:?} is no durability; there are {known}").into())
            }),
        }
    }
}

impl FromStr for Epoch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |_| Error::Invalid(format!("{text:?} is no epoch: a number").into());
        text.parse().map_err(wrong).map(Self)
    }
}

impl FromStr for OrderDomain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |_| Error::Invalid(format!("{text:?} is no order domain: a number").into());
        text.parse().map_err(wrong).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        use Durability::{Cached, Journaled, Replicated, Stored};
        for durability in [Cached, Journaled, Replicated(0), Replicated(255), Stored] {
            assert_eq!(durability.to_string().parse(), Ok(durability));
        }
        for wrong in ["", "Stored", "replicated", "replicated()", "replicated(256)", "replicated(1"] {
            assert!(wrong.parse::<Durability>().is_err(), "{wrong}");
        }
        assert_eq!(Epoch(7).to_string().parse(), Ok(Epoch(7)));
        assert!("-1".parse::<Epoch>().is_err());
        assert_eq!(OrderDomain(7).to_string().parse(), Ok(OrderDomain(7)));
    }
}
