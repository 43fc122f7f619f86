//! The addresses of the servers that a client may use.

use std::fmt;
use std::str::FromStr;

use crate::Address;
use connection::AddressError;

/// The maximum number of addresses of a client.
const ADDRESSES_MAX: usize = 16;

/// The addresses of the servers of one store, only one of which serves at a time: of a single
/// server, or of the hosts of an election, whose leader serves. As text, the addresses are
/// separated by commas.
///
/// ```
/// use synapse::Addresses;
///
/// let pair: Addresses = "node-1,[::1]:7000".parse()?;
/// assert_eq!(pair.to_string(), "node-1:11311,[::1]:7000");
/// # Ok::<_, synapse::AddressesError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses(Vec<Address>);

/// The error for a string that does not list [`Addresses`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressesError {
    /// One of the addresses is invalid.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An address occurs twice.
    #[error("{0} is listed twice; list each server once")]
    Twice(String),
    /// There are too many addresses.
    #[error("{0} addresses are too many; list at most {ADDRESSES_MAX}")]
    TooMany(usize),
}

impl Addresses {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the address of the server with a number below [`count`](Self::count).
    pub(super) fn of(&self, server: usize) -> &Address {
        &self.0[server]
    }
}

impl From<Address> for Addresses {
    fn from(address: Address) -> Self {
        Self(vec![address])
    }
}

impl FromStr for Addresses {
    type Err = AddressesError;

    fn from_str(text: &str) -> Result<Self, AddressesError> {
        let mut all: Vec<Address> = Vec::new();
        let count = text.split(',').count();
        if count > ADDRESSES_MAX {
            return Err(AddressesError::TooMany(count));
        }
        for text in text.split(',') {
            let address = text.trim().parse()?;
            if all.contains(&address) {
                return Err(AddressesError::Twice(address.to_string()));
            }
            all.push(address);
        }
        Ok(Self(all))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, address) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "," };
            write!(f, "{separator}{address}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_listed_with_commas() {
        let parse = |text: &str| text.parse::<Addresses>();
        for (text, shown) in [
            ("a", "a:11311"),
            ("a:1, b", "a:1,b:11311"),
            ("::1,unix:/run/s,c:3", "[::1]:11311,unix:/run/s,c:3"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), shown, "{text}");
        }
        for (wrong, why) in [
            ("", "\"\" is not an address"),
            ("a,", "\"\" is not an address"),
            (",a", "\"\" is not an address"),
            ("a:1,b:x", "\"b:x\" is not an address"),
            ("a,a:11311", "a:11311 is listed twice"),
            (&"a,".repeat(16), "17 addresses are too many; list at most 16"),
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
