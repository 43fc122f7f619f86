//! The console: a web page over the other routes, at `/`.
//!
//! Its files are part of the program and refer to nothing else. They hold no data, so they need no token; the page asks
//! for `/status.json` and the other documents as any client does.
//!
//! | file | content |
//! |---|---|
//! | `main.js` | the loop: ask, take, draw |
//! | `feed.js` | one request, with the token and a limit of time |
//! | `model.js` | rates, ratios, what is at risk |
//! | `panels.js` | the parts of the page |
//! | `chart.js` | charts as inline SVG |
//! | `dom.js` | the smallest change that makes the page show them; text stays text |
//! | `format.js` | numbers, times, foreign text |

use crate::routes::{Access, Response, Routes};

/// What the page may do: load its own files and ask its own origin. No script from a string, no HTML from a string.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// The path, the media type and the content of each file.
const FILES: [(&str, &str, &str); 10] = [
    ("/", HTML, include_str!("console/index.html")),
    ("/console/console.css", CSS, include_str!("console/console.css")),
    ("/console/icon.svg", IMAGE, include_str!("console/icon.svg")),
    ("/console/main.js", SCRIPT, include_str!("console/main.js")),
    ("/console/feed.js", SCRIPT, include_str!("console/feed.js")),
    ("/console/model.js", SCRIPT, include_str!("console/model.js")),
    ("/console/panels.js", SCRIPT, include_str!("console/panels.js")),
    ("/console/chart.js", SCRIPT, include_str!("console/chart.js")),
    ("/console/dom.js", SCRIPT, include_str!("console/dom.js")),
    ("/console/format.js", SCRIPT, include_str!("console/format.js")),
];

/// Adds the page and its files.
pub(crate) fn add_routes(routes: &Routes) {
    for (path, kind, content) in FILES {
        routes.get(path, Access::Public, move |_| async move { response(kind, content) });
    }
}

fn response(kind: &'static str, content: &'static str) -> Response {
    Response::new(200, kind, content)
        .header("content-security-policy", POLICY)
        .header("x-content-type-options", "nosniff")
        .header("x-frame-options", "DENY")
        .header("referrer-policy", "no-referrer")
        .header("cross-origin-opener-policy", "same-origin")
        // After an upgrade the files of two versions must not meet.
        .header("cache-control", "no-store")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_refers_to_its_own_files_only() {
        let bytes: usize = FILES.iter().map(|(_, _, content)| content.len()).sum();
        assert!(bytes <= 60 << 10, "{bytes} bytes");
        for (path, _, content) in FILES {
            let foreign = content.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains("://") && !foreign.contains("url("), "{path} refers to something else");
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                " style=",
                "new Function",
            ] {
                assert!(!content.contains(word), "{path} has {word}");
            }
            for quote in ["from \"./", "src=\"", "href=\"console/"] {
                for (at, _) in content.match_indices(quote) {
                    let name = content[at + quote.len()..].split('"').next().unwrap_or_default();
                    let name = name.trim_start_matches("console/");
                    let is_known = FILES.iter().any(|(path, _, _)| path.ends_with(&format!("/{name}")));
                    assert!(is_known, "{path} refers to {name}");
                }
            }
        }
    }

    #[test]
    fn every_file_forbids_foreign_content() {
        let response = response(SCRIPT, "");
        let policy = response.headers.get("content-security-policy").and_then(|value| value.to_str().ok());
        assert!(
            policy
                .is_some_and(|policy| policy.starts_with("default-src 'self'") && !policy.contains("unsafe"))
        );
        assert_eq!(
            response.headers.get("x-content-type-options").map(|value| value.as_bytes()),
            Some(&b"nosniff"[..])
        );
    }
}
