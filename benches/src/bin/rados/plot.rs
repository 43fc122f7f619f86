//! The plot: operations per second of RADOS alone and of `cached` over it, on a logarithmic scale.

use std::fmt::Write;

/// A pair of bars in the plot.
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) alone_ops: f64,
    pub(crate) cached_ops: f64,
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 70.0;
const ROW: f64 = 38.0;

pub(crate) fn draw(title: &str, caption: &str, pairs: &[Pair]) -> String {
    let highest = pairs.iter().map(|pair| pair.cached_ops.max(pair.alone_ops)).fold(1.0, f64::max);
    let decades = highest.log10().ceil().max(3.0);
    // The scale starts at 100 operations per second.
    let x = |ops: f64| LEFT + (WIDTH - LEFT - RIGHT) * ((ops.max(100.0).log10() - 2.0) / (decades - 2.0));
    let height = TOP + ROW * pairs.len() as f64 + 50.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<style>text{{font:13px \
         system-ui,sans-serif;fill:#1f2933}}.title{{font-size:16px;font-weight:600}}.small{{font-size:11px;fill:#616e7c}}\
         .grid{{stroke:#e4e7eb}}.alone{{fill:#9aa5b1}}.cached{{fill:#3e8e6f}}.end{{text-anchor:end}}\
         .middle{{text-anchor:middle}}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text class=\"title\" x=\"16\" y=\"26\">{title}</text>\n"
    );
    // Writing into a String cannot fail.
    for decade in 2..=decades as u32 {
        let at = x(10_f64.powi(decade as i32));
        let bottom = height - 50.0;
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{bottom}\"/>",
            TOP - 8.0
        );
        let label =
            ["100", "1 k", "10 k", "100 k", "1 M", "10 M"].get(decade as usize - 2).copied().unwrap_or("");
        let _ =
            writeln!(out, "<text class=\"small middle\" x=\"{at:.1}\" y=\"{}\">{label}</text>", TOP - 13.0);
    }
    for (place, Pair { name, alone_ops, cached_ops }) in pairs.iter().enumerate() {
        let top = TOP + ROW * place as f64;
        let _ = writeln!(out, "<text class=\"end\" x=\"{}\" y=\"{}\">{name}</text>", LEFT - 10.0, top + 19.0);
        for (class, ops, y) in [("alone", *alone_ops, top), ("cached", *cached_ops, top + 15.0)] {
            let width = (x(ops) - LEFT).max(1.0);
            let _ = writeln!(
                out,
                "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"13\"/>"
            );
        }
        let ratio = cached_ops / alone_ops;
        let _ =
            writeln!(out, "<text x=\"{:.1}\" y=\"{}\">{ratio:.1} ×</text>", x(*cached_ops) + 8.0, top + 26.0);
    }
    let _ = writeln!(
        out,
        "<text class=\"small\" x=\"16\" y=\"{}\">operations per second, logarithmic; grey: RADOS alone, green: cached over \
         it</text>\n<text class=\"small\" x=\"16\" y=\"{}\">{caption}</text>\n</svg>",
        height - 30.0,
        height - 12.0
    );
    out
}
