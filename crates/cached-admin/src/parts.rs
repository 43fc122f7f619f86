//! Routes that are not there: because the start is not complete, or because the configuration has no table for the part
//! of the program that would add them.

use crate::routes::Response;

/// How paths of parts begin, each with the table without which there is no such part; empty for what every program has
/// once it serves.
const PARTS: [(&str, &str); 12] = [
    ("/cache", "[objects]"),
    ("/config.json", ""),
    ("/drain", ""),
    ("/flush-prefix", ""),
    ("/hot.json", ""),
    ("/log.json", ""),
    ("/mrc.json", ""),
    ("/namespaces", "[objects]"),
    ("/reload", ""),
    ("/s3/", "[s3]"),
    ("/slow.json", ""),
    ("/volumes", "[volumes]"),
];

/// Returns the answer for a path without a route. `starting` is what the start waits for, until it is complete.
pub(crate) fn absent(path: &str, starting: Option<String>) -> Response {
    let part = PARTS.iter().find(|(begin, _)| path.starts_with(begin));
    match (part, starting) {
        (Some(_), Some(why)) => Response::failure(503, format_args!("the start is not complete: {why}")),
        (Some((_, table)), None) if !table.is_empty() => {
            Response::failure(404, format_args!("the configuration of this program has no {table}"))
        }
        _ => Response::failure(404, "there is nothing here; /, /metrics, /readyz and /status.json are"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_is_missing_says_why() {
        let answer = |path: &str, starting: Option<&str>| {
            let response = absent(path, starting.map(Into::into));
            (response.status.as_u16(), String::from_utf8_lossy(&response.body).into_owned())
        };
        for path in
            ["/volumes", "/volumes/show", "/cache.json", "/namespaces/set", "/reload", "/s3/invalidate"]
        {
            let (status, line) = answer(path, Some("waiting for the store"));
            assert_eq!((status, line.as_str()), (503, "the start is not complete: waiting for the store\n"));
        }
        for (path, words) in [
            ("/volumes/show", "has no [volumes]"),
            ("/cache/attach", "has no [objects]"),
            ("/s3/events", "has no [s3]"),
            ("/reload", "nothing here"),
            ("/nonsense", "nothing here"),
        ] {
            let (status, line) = answer(path, None);
            assert!(status == 404 && line.contains(words), "{path}: {status} {line}");
        }
        assert_eq!(answer("/nonsense", Some("waiting for the store")).0, 404);
    }
}
