//! The words of a line, for commands that compare them by prefix.

use std::fmt;

use crate::limits::TOKENS_MAX;
use crate::scan;

/// The words of a line: at most 23, separated by spaces, none empty.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tokens<'a> {
    text: &'a [u8],
    count: usize,
}

impl<'a> Tokens<'a> {
    /// Splits a line without its end.
    pub(crate) fn split(text: &'a [u8]) -> Tokens<'a> {
        let count = Tokens { text, count: TOKENS_MAX }.iter().count();
        Tokens { text, count }
    }

    /// Returns the number of words, with the verb.
    #[expect(clippy::len_without_is_empty, reason = "the verb is always there")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the word at `index`; 0 is the verb.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.iter().nth(index)
    }

    /// Returns the words in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (text, mut at) = (self.text, 0);
        std::iter::from_fn(move || {
            let (start, end) = scan::next_word(text, at)?;
            at = end;
            Some(&text[start..end])
        })
        .take(self.count)
    }

    /// Returns whether there is a word at `index` and `name` begins with it. memcached compares sub-commands
    /// this way.
    pub fn is_prefix_of(&self, index: usize, name: &str) -> bool {
        self.get(index).is_some_and(|token| name.as_bytes().starts_with(token))
    }
}

impl fmt::Debug for Tokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|token| token.escape_ascii().to_string())).finish()
    }
}
