//! Reads the fields of an option's data.

use super::wire::TEXT_BYTES_MAX;

/// What is left of an option's data. Each method takes from its beginning, and returns `None` where there is
/// too little.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

/// Why the data of an option cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bad {
    /// They are not in the form that the option demands.
    Form,
    /// A text in them is too long.
    TooBig,
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        let (first, rest) = self.0.split_at_checked(count).ok_or(Bad::Form)?;
        self.0 = rest;
        Ok(first)
    }

    pub(super) fn half(&mut self) -> Result<u16, Bad> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn word(&mut self) -> Result<u32, Bad> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Takes a text that follows its length.
    pub(super) fn text(&mut self) -> Result<&'a str, Bad> {
        let length = self.word()? as usize;
        text(self.take(length)?)
    }

    /// Checks that nothing is left.
    pub(super) fn end(&self) -> Result<(), Bad> {
        if self.0.is_empty() { Ok(()) } else { Err(Bad::Form) }
    }
}

/// Returns bytes as a text: UTF-8 without NUL, of a length that the protocol allows.
pub(super) fn text(bytes: &[u8]) -> Result<&str, Bad> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(Bad::TooBig);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Bad::Form)?;
    if text.contains('\0') { Err(Bad::Form) } else { Ok(text) }
}
