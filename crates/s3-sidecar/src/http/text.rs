//! Text divided at an ASCII character, as by the methods of `str` with these names. Those call two
//! functions for each character that they find, which is most of their time in a short header.

use std::iter::from_fn;

use memchr::{memchr, memrchr};

fn halves(text: &str, at: usize) -> (&str, &str) {
    (&text[..at], &text[at + 1..])
}

/// Returns the texts before and after the first `byte`.
pub(crate) fn split_once(text: &str, byte: u8) -> Option<(&str, &str)> {
    debug_assert!(byte.is_ascii());
    memchr(byte, text.as_bytes()).map(|at| halves(text, at))
}

/// Returns the texts before and after the last `byte`.
pub(crate) fn rsplit_once(text: &str, byte: u8) -> Option<(&str, &str)> {
    debug_assert!(byte.is_ascii());
    memrchr(byte, text.as_bytes()).map(|at| halves(text, at))
}

/// Returns the texts between each `byte`.
pub(crate) fn split(text: &str, byte: u8) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    from_fn(move || {
        let text = rest?;
        let (first, more) = split_once(text, byte).map_or((text, None), |(first, more)| (first, Some(more)));
        rest = more;
        Some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_divided_as_by_the_standard_library() {
        for text in ["", ";", "a", "a;", ";a", "a;;b", ";ä;b;", "é"] {
            assert!(split(text, b';').eq(text.split(';')), "{text}");
            assert_eq!(split_once(text, b';'), text.split_once(';'), "{text}");
            assert_eq!(rsplit_once(text, b';'), text.rsplit_once(';'), "{text}");
        }
    }
}
