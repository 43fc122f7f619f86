//! Errors as text for logs.

/// An error with its causes as one line of limited length, without characters that control a terminal.
pub(crate) fn one_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().filter(|char| !char.is_control()).take(300).collect()
}
