//! Draws the comparison as an SVG: one row per scenario, with the ratio as a bar, its range as a
//! whisker, and the required value as a mark.

use std::fmt::Write;

use crate::statistics::Spread;

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    /// The label at the left.
    pub name: String,
    /// The ratio to memcached; a value below 1 is better.
    pub ratio: Spread,
    /// The highest acceptable ratio.
    pub bar: Option<f64>,
}

const WIDTH: f64 = 860.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 62.0;
const ROW: f64 = 30.0;
const BOTTOM: f64 = 58.0;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2933}.title{font-size:16px;font-weight:600}\
.small{font-size:11px;fill:#616e7c}.grid{stroke:#e4e7eb}.one{stroke:#7b8794;stroke-width:1.5}\
.met{fill:#3e8e6f}.missed{fill:#d9822b}.plain{fill:#5a83b5}.whisker{stroke:#1f2933}\
.bar{stroke:#c0392b;stroke-width:2.5}.end{text-anchor:end}.middle{text-anchor:middle}";

/// Returns the picture. `caption` names the machine and the time.
pub fn draw(title: &str, caption: &str, rows: &[Row]) -> String {
    let highest = rows.iter().flat_map(|row| [row.ratio.max, row.bar.unwrap_or(0.0)]).fold(1.1, f64::max);
    let scale_end = (highest.min(3.0) * 5.0).ceil() / 5.0;
    let x = |ratio: f64| LEFT + (WIDTH - LEFT - RIGHT) * ratio.min(scale_end) / scale_end;
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let rows_end = height - BOTTOM;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text class=\"title\" x=\"16\" y=\"26\">{}</text>\n",
        escape(title)
    );
    let tick_step = if scale_end > 2.0 { 0.5 } else { 0.2 };
    for tick in 0..=(scale_end / tick_step + 1e-9) as usize {
        let ratio = tick as f64 * tick_step;
        let class = if (ratio - 1.0).abs() < 1e-9 { "one" } else { "grid" };
        line(&mut out, class, (x(ratio), TOP - 8.0), (x(ratio), rows_end));
        text(&mut out, "small middle", (x(ratio), TOP - 13.0), &format!("{ratio:.1}"));
    }
    for (place, row) in rows.iter().enumerate() {
        let top = TOP + ROW * place as f64;
        let middle = top + ROW / 2.0 - 2.0;
        let class = match row.bar {
            Some(bar) if row.ratio.median <= bar => "met",
            Some(_) => "missed",
            None => "plain",
        };
        text(&mut out, "end", (LEFT - 10.0, middle + 4.0), &row.name);
        let width = x(row.ratio.median) - LEFT;
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\"/>",
            middle - 8.0
        );
        line(&mut out, "whisker", (x(row.ratio.min), middle), (x(row.ratio.max), middle));
        if let Some(bar) = row.bar {
            line(&mut out, "bar", (x(bar), middle - 11.0), (x(bar), middle + 11.0));
        }
        let value = format!("{:.2}", row.ratio.median);
        text(&mut out, "", (WIDTH - RIGHT + 14.0, middle + 4.0), &value);
    }
    let legend =
        "ratio to memcached, below 1 is better; line: range of the pairs; red mark: the bar; green: met";
    text(&mut out, "small", (16.0, height - 32.0), legend);
    text(&mut out, "small", (16.0, height - 14.0), caption);
    out.push_str("</svg>\n");
    out
}

fn line(out: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn text(out: &mut String, class: &str, (x, y): (f64, f64), words: &str) {
    let _ = writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(words));
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_marks_and_colours() {
        let row = |median, bar| Row {
            name: "a <b>".to_owned(),
            ratio: Spread { median, min: median - 0.1, max: median + 0.1 },
            bar,
        };
        let svg = draw("title", "caption", &[row(0.5, Some(0.7)), row(0.9, Some(0.7)), row(1.0, None)]);
        for class in ["met", "missed", "plain"] {
            assert_eq!(svg.matches(&format!("<rect class=\"{class}\"")).count(), 1, "{class}");
        }
        assert_eq!(svg.matches("class=\"bar\"").count(), 2);
        assert!(svg.contains("a &lt;b&gt;") && svg.ends_with("</svg>\n"));
    }
}
