//! Suggestions for mistyped names: of keys, settings and metrics.

use strsim::osa_distance;

/// The maximum length of a name for which a suggestion is sought, in bytes.
const NAME_BYTES_MAX: usize = 100;

/// The separators of the parts of a name.
const SEPARATORS: [char; 2] = ['_', '.'];

/// Returns the known name that is nearest to `given`: the whole name, or as many parts of it as
/// `given` has (`memory` for `memory_bytes_max`), differs in at most one of three letters. Returns
/// `None` if all known names differ more.
fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > NAME_BYTES_MAX {
        return None;
    }
    let (count, joined) = (given.split(SEPARATORS).count(), given.replace('.', "_"));
    let distance = |known: &str| {
        let parts: Vec<&str> = known.split(SEPARATORS).collect();
        let of_parts = parts.windows(count).map(|parts| osa_distance(&joined, &parts.join("_"))).min();
        let whole = osa_distance(given, known);
        // Of two names with the same part, the shorter one is nearer.
        (of_parts.map_or(whole, |of_parts| of_parts.min(whole)), whole)
    };
    let all = known.into_iter().map(|known| (distance(known), known));
    let ((distance, _), found) = all.min_by_key(|(distance, _)| *distance)?;
    (distance <= given.chars().count() / 3).then_some(found)
}

/// Returns `; did you mean NAME?` for the known name that is nearest to `given`; an empty string if
/// no name is near.
#[must_use]
pub fn suggestion<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(given, known).map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// Adds the nearest name to serde's message about an unknown field or variant. The message quotes
/// the given name and then the expected names.
pub(crate) fn with_suggestion(why: &str) -> String {
    let begins = ["unknown field `", "unknown variant `"].iter().filter_map(|begin| why.find(begin)).min();
    let named = begins.and_then(|begin| why[begin..].split_once("`, expected "));
    let Some((given, expected)) = named else { return why.to_owned() };
    let given = given.split_once('`').map_or(given, |(_, given)| given);
    match nearest(given, expected.split('`').skip(1).step_by(2)) {
        Some(name) => why.replacen("`, expected ", &format!("` (did you mean `{name}`?), expected "), 1),
        None => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let known =
            ["threads", "memory_bytes_max", "memory_file", "idle_timeout_secs", "item_bytes_max", "cas"];
        for (given, right) in [
            ("threadz", Some("threads")),
            ("thraeds", Some("threads")),
            ("memory", Some("memory_file")),
            ("memory_bytes", Some("memory_bytes_max")),
            ("timeout", Some("idle_timeout_secs")),
            ("idle_timout", Some("idle_timeout_secs")),
            ("colour", None),
            ("c", None),
            ("", None),
        ] {
            assert_eq!(nearest(given, known), right, "{given}");
        }
        assert_eq!(
            nearest("memcached.threadz", ["memcached.threads", "nbd.threads"]),
            Some("memcached.threads")
        );
        assert_eq!(nearest(&"a".repeat(1 << 20), ["a"]), None);
        assert_eq!(nearest("a", []), None);
    }

    #[test]
    fn the_message_about_an_unknown_field_gets_a_suggestion() {
        for (why, right) in [
            (
                "unknown field `threadz`, expected one of `listen`, `threads`",
                "unknown field `threadz` (did you mean `threads`?), expected one of `listen`, `threads`",
            ),
            (
                "pool: unknown field `paht`, expected `path` or `create`",
                "pool: unknown field `paht` (did you mean `path`?), expected `path` or `create`",
            ),
            ("unknown field `colour`, expected `path`", "unknown field `colour`, expected `path`"),
            ("unknown field `a`, there are no fields", "unknown field `a`, there are no fields"),
            ("invalid type: string \"`\", expected u64", "invalid type: string \"`\", expected u64"),
        ] {
            assert_eq!(with_suggestion(why), right);
        }
    }
}
