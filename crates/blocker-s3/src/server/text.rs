//! Errors as text for logs.

/// The longest text.
const CHARS_MAX: usize = 300;
/// The longest word in it, and what is left of a longer one at its begin and its end. A key may have a thousand bytes.
const WORD_CHARS_MAX: usize = 120;
const BEGIN_CHARS: usize = 80;
const END_CHARS: usize = 30;

/// An error with its causes as one line of limited length, without characters that control a terminal.
pub(crate) fn one_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string().split_whitespace().map(shortened).collect::<Vec<_>>().join(" ");
    text.chars().filter(|char| !char.is_control()).take(CHARS_MAX).collect()
}

/// A word, without its middle where it is long, so that what follows it is not cut off.
fn shortened(word: &str) -> String {
    let chars = word.chars().count();
    if chars <= WORD_CHARS_MAX {
        return word.to_owned();
    }
    let (begin, end) = (word.chars().take(BEGIN_CHARS), word.chars().skip(chars - END_CHARS));
    begin.chain(['…']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_long_key_stays() {
        let key = format!("http://host/bucket/{}/end", "ä".repeat(900));
        let line =
            one_line(&format!("Error performing PUT {key}\nin 3ms \u{7}- 507 Insufficient Storage: full"));
        assert!(line.starts_with("Error performing PUT http://host/bucket/ä"), "{line}");
        assert!(line.ends_with("ää/end in 3ms - 507 Insufficient Storage: full"), "{line}");
        assert!(one_line(&"word ".repeat(100)).chars().count() <= CHARS_MAX);
    }
}
