//! What came of a soak, as a page that needs nothing else.

use std::fmt::Write as _;

use super::Failure;
use super::plots;
use super::report::Report;
use super::timeline::clock;

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1160px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: .15em 1.2em .15em 0; text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
th { border-bottom: 1px solid #bbb; font-weight: 600; }
svg { width: 100%; height: auto; } pre { overflow-x: auto; background: #fdeaea; padding: 1em; }
";

pub fn html(report: &Report) -> Result<String, Failure> {
    let headline = escaped(&report.headline());
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Soak: {headline}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{headline}</h1>\n"
    );
    let more = [
        ("replicas", report.replicas.to_string()),
        ("seed", report.seed.to_string()),
        ("began", report.began.clone()),
    ];
    table(&mut page, &report.totals());
    page.push_str("<h2>Where</h2>\n");
    table(&mut page, &[&report.facts[..], &more].concat());
    if let Some(left_out) = report.left_out() {
        let _ = writeln!(page, "<p>{}</p>", escaped(left_out));
    }
    if let Some(why) = &report.ended_early {
        let _ = writeln!(page, "<h2>Ended early</h2>\n<pre>{}</pre>", escaped(why));
    }
    if !report.violations.is_empty() {
        page.push_str("<h2>Violations</h2>\n");
    }
    for broken in &report.violations {
        let _ = writeln!(page, "<pre>{}</pre>", escaped(broken));
    }
    page.push_str("<h2>Over time</h2>\n<p>Shaded: while a fault was active.</p>\n");
    page.push_str(&plots::svg(report)?);
    page.push_str(
        "\n<h2>Faults</h2>\n<table>\n<tr><th>fault</th><th class=\"n\">times</th>\
         <th class=\"n\">longest</th><th class=\"n\">longest wait of anybody meanwhile</th></tr>\n",
    );
    for of_kind in report.kinds() {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1} s</td><td class=\"n\">{:.1} s</td></tr>",
            escaped(of_kind.kind.words()),
            of_kind.count,
            of_kind.lasted.as_secs_f64(),
            of_kind.waited.as_secs_f64()
        );
    }
    page.push_str("</table>\n<details>\n<summary>Each of them</summary>\n<table>\n");
    page.push_str(
        "<tr><th class=\"n\">from</th><th class=\"n\">for</th><th>fault</th><th>on</th></tr>\n",
    );
    for span in &report.faults {
        let _ = writeln!(
            page,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{:.1} s</td><td>{}</td><td>{}</td></tr>",
            clock(span.from),
            span.to.saturating_sub(span.from).as_secs_f64(),
            escaped(span.kind.words()),
            escaped(&span.on)
        );
    }
    page.push_str("</table>\n</details>\n");
    page.push_str(
        "<h2>When no turn came for longest</h2>\n<table>\n\
         <tr><th class=\"n\">from</th><th class=\"n\">for</th><th>active</th></tr>\n",
    );
    for standstill in report.standstills() {
        let _ = writeln!(
            page,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{:.1} s</td><td>{}</td></tr>",
            clock(standstill.from),
            standstill.lasted.as_secs_f64(),
            escaped(&standstill.faults.join("; "))
        );
    }
    page.push_str("</table>\n");
    for line in report.lines() {
        let _ = writeln!(page, "<p>{}</p>", escaped(&line));
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

/// Names and what they are.
fn table(page: &mut String, rows: &[(&str, String)]) {
    page.push_str("<table>\n");
    for (name, value) in rows {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td></tr>",
            escaped(name),
            escaped(value)
        );
    }
    page.push_str("</table>\n");
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}
