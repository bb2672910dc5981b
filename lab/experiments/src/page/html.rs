//! Renders a page as one HTML file, with style sheet and plots inside, and no script.
//!
//! A content security policy in its head forbids loading anything. `assets/page.css` has the layout
//! for 400 to 1,280 pixels and paper. Called by `Page::html`. Invariant: every text of the page
//! goes through `escape`, and every id through `anchor`.

use super::escape::{anchor, escape};
use super::plot;
use super::scale::{percent_off, short};
use super::{
    AblationResult, Check, CheckKind, CheckVerdict, DataTable, Figure, MachineTable, Page, Panel,
    SeriesKind, Unit,
};

const STYLE: &str = include_str!("../../assets/page.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

pub(super) fn page(page: &Page) -> String {
    let title = escape(&page.title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n\
         <h1>{title}</h1>\n"
    );
    for paragraph in &page.intro {
        html += &format!("<p class=\"intro\">{}</p>\n", escape(paragraph));
    }
    for remark in &page.remarks {
        html += &format!("<p class=\"remark\">{}</p>\n", escape(remark));
    }
    html += &facts(&page.facts);
    html += &contents(page);
    html += "</header>\n<main>\n";
    if !page.checks.is_empty() {
        html += &checks(page);
    }
    page.figures.iter().for_each(|item| html += &figure(item));
    page.tables.iter().for_each(|item| html += &data_table(item));
    if !page.machines.is_empty() {
        html += "<section id=\"machines\">\n<h2>Machines</h2>\n<p class=\"caption\">All that was \
                 given to the model, and where it comes from.</p>\n";
        page.machines.iter().for_each(|item| html += &machine(item));
        html += "</section>\n";
    }
    html += "</main>\n</body>\n</html>\n";
    html
}

fn facts(facts: &[(String, String)]) -> String {
    if facts.is_empty() {
        return String::new();
    }
    let item = |(name, value): &(String, String)| {
        format!("<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value))
    };
    format!("<dl class=\"facts\">{}</dl>\n", facts.iter().map(item).collect::<String>())
}

fn contents(page: &Page) -> String {
    let mut links = Vec::new();
    let mut link = |id: &str, text: &str| {
        links.push(format!("<a href=\"#{}\">{}</a>", anchor(id), escape(text)));
    };
    if !page.checks.is_empty() {
        link("checks", "Checks");
    }
    page.figures.iter().for_each(|figure| link(&figure.id, &figure.title));
    page.tables.iter().for_each(|table| link(&table.id, &table.title));
    if !page.machines.is_empty() {
        link("machines", "Machines");
    }
    if links.len() < 2 { String::new() } else { format!("<nav>{}</nav>\n", links.join("\n")) }
}

fn checks(page: &Page) -> String {
    let tally = page.tally();
    let tile = |class: &str, count: usize, [one, several]: [&str; 2]| match count {
        0 => String::new(),
        1 => format!("<li class=\"{class}\"><b>1</b> {one}</li>"),
        count => format!("<li class=\"{class}\"><b>{count}</b> {several}</li>"),
    };
    let mut html = String::from("<section id=\"checks\">\n<h2>Checks</h2>\n<ul class=\"tally\">");
    html += &tile("yes", tally.hold, ["holds", "hold"]);
    html += &tile("no", tally.fail, ["does not hold", "do not hold"]);
    html += &tile("missing", tally.missing, ["not there yet"; 2]);
    html += &tile("input", tally.inputs, ["input", "inputs"]);
    html += "</ul>\n<table class=\"checks\">\n<thead><tr><th>check</th><th>kind</th>";
    let heads = page.against.heads();
    html += &format!("<th>{}</th><th>{}</th>", heads[0], heads[1]);
    html += "<th class=\"number\">deviation</th><th>verdict</th></tr></thead>\n<tbody>\n";
    page.checks.iter().for_each(|item| html += &check(item, heads));
    html += "</tbody>\n</table>\n</section>\n";
    html
}

fn check(check: &Check, [theirs, ours]: [&str; 2]) -> String {
    let (id, note) = (escape(&check.id), escape(&check.note));
    let class = match (check.kind, check.holds) {
        (CheckKind::Input, CheckVerdict::Yes) => "input",
        (_, CheckVerdict::Yes) => "yes",
        (_, CheckVerdict::No) => "no",
        (_, CheckVerdict::NotYet) => "missing",
    };
    let off = check.deviation.map_or_else(String::new, percent_off);
    let cell = |label: &str, class: &str, text: &str| match text {
        "" => format!("<td class=\"{class} empty\" data-label=\"{label}\"></td>"),
        text => format!("<td class=\"{class}\" data-label=\"{label}\">{}</td>", escape(text)),
    };
    let mut html = format!("<tr id=\"{}\"><th scope=\"row\">{id}</th>", anchor(&check.id));
    html += &cell("kind", "kind", check.kind.name());
    html += &cell(theirs, "", &check.paper.text);
    html += &cell(ours, "", &check.ours.text);
    html += &cell("deviation", "number", &off);
    html += &format!(
        "<td class=\"verdict\" data-label=\"verdict\"><span class=\"badge {class}\">{}</span></td>\
         </tr>\n",
        check.holds.name()
    );
    html += &check.without.as_ref().map_or_else(String::new, |without| second_run(without, ours));
    if !note.is_empty() {
        html += &format!("<tr class=\"note\"><td colspan=\"6\">{note}</td></tr>\n");
    }
    html
}

/// Renders a check's result in a second run, with some mechanisms of the simulated machine or
/// kernel switched off. The result is a row below the check's row in the HTML table.
fn second_run(without: &AblationResult, ours: &str) -> String {
    let class = match without.holds {
        CheckVerdict::Yes => "yes",
        CheckVerdict::No => "no",
        CheckVerdict::NotYet => return String::new(),
    };
    let change = without.change.map_or_else(String::new, |change| {
        format!(" <span class=\"change\">{} against the above</span>", percent_off(change))
    });
    let off = without.deviation.map_or_else(String::new, percent_off);
    format!(
        "<tr class=\"second\"><th scope=\"row\">without</th><td colspan=\"2\" \
         data-label=\"without\">{}</td><td data-label=\"{ours}\">{}{change}</td><td class=\"number\" \
         data-label=\"deviation\">{off}</td><td class=\"verdict\" data-label=\"verdict\"><span \
         class=\"badge {class}\">{}</span></td></tr>\n",
        escape(&without.mechanisms.replace(',', ", ")),
        escape(&without.ours.text),
        without.holds.name()
    )
}

fn figure(figure: &Figure) -> String {
    let names = plot::names(figure.panels.iter());
    let series = || figure.panels.iter().flat_map(|panel| &panel.series);
    let predicts = series().any(|series| series.kind == SeriesKind::Prediction);
    let tag = if predicts { " <span class=\"badge predicted\">prediction</span>" } else { "" };
    let mut html = format!(
        "<section id=\"{}\" class=\"figure\">\n<h2>{}{tag}</h2>\n<p class=\"caption\">{}</p>\n",
        anchor(&figure.id),
        escape(&figure.title),
        escape(&figure.caption)
    );
    let has_lines = figure.panels.iter().all(|panel| panel.heat.is_none());
    if has_lines {
        html += &plot::legend(&figure.panels, &names);
        html.push('\n');
    }
    let count = if figure.panels.len() == 1 { " alone" } else { "" };
    html += &format!("<div class=\"panels{count}\">\n");
    for panel in &figure.panels {
        let svg = plot::panel(panel, &names);
        html += &format!("<figure>\n<figcaption>{}</figcaption>\n{svg}\n", escape(&panel.title));
        if let Some(heat) = &panel.heat {
            html += &format!("<p class=\"heat-key\">at most {} in a cell</p>\n", heat.most());
        }
        html += "</figure>\n";
    }
    html += "</div>\n";
    if !has_lines {
        return html + "</section>\n";
    }
    html += "<details>\n<summary>Numbers</summary>\n<div class=\"numbers\">\n";
    figure.panels.iter().for_each(|panel| html += &numbers(panel));
    html += "</div>\n</details>\n</section>\n";
    html
}

fn numbers(panel: &Panel) -> String {
    let caption = format!("{} ({})", panel.title, exact_label(panel));
    let mut html = format!(
        "<div class=\"scroll\"><table class=\"data\"><caption>{}</caption>",
        escape(&caption)
    );
    html += &format!("<thead><tr><th>{}</th>", escape(&panel.x_label));
    for series in &panel.series {
        html += &format!("<th>{}</th>", escape(&series.label()));
    }
    html += "</tr></thead><tbody>";
    for (x, row) in rows(panel) {
        html += &format!("<tr><th scope=\"row\">{}</th>", short(x, Unit::Plain));
        for y in row {
            html += &format!("<td>{}</td>", y.map_or_else(String::new, exact));
        }
        html += "</tr>";
    }
    html += "</tbody></table></div>\n";
    html
}

fn exact_label(panel: &Panel) -> String {
    match panel.y_unit {
        Unit::Nanoseconds => format!("{}, ns", panel.y_label),
        Unit::Percent => format!("{}, as a fraction", panel.y_label),
        Unit::Plain | Unit::Count => panel.y_label.clone(),
    }
}

/// Formats a number without a unit prefix, with a relative error of at most 1/10,000.
fn exact(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Returns one row for each x of a panel, in order, with the y of each series at this x.
pub(super) fn rows(panel: &Panel) -> Vec<(f64, Vec<Option<f64>>)> {
    let all = panel.series.iter().flat_map(|series| &series.points);
    let mut xs: Vec<f64> = all.map(|(x, _)| *x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let found = |points: &[(f64, f64)], x: f64| {
        points.iter().find(|point| point.0 == x).map(|point| point.1)
    };
    let row = |x| (x, panel.series.iter().map(|series| found(&series.points, x)).collect());
    xs.into_iter().map(row).collect()
}

fn data_table(table: &DataTable) -> String {
    let mut html = format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"caption\">{}</p>\n<div class=\"scroll\">\
         <table class=\"data\"><thead><tr>",
        anchor(&table.id),
        escape(&table.title),
        escape(&table.caption)
    );
    table.head.iter().for_each(|head| html += &format!("<th>{}</th>", escape(head)));
    html += "</tr></thead><tbody>";
    for row in &table.rows {
        html += "<tr>";
        for (number, text) in row.iter().enumerate() {
            let text = escape(text);
            html += &match number {
                0 => format!("<th scope=\"row\">{text}</th>"),
                _ => format!("<td>{text}</td>"),
            };
        }
        html += "</tr>";
    }
    html += "</tbody></table></div>\n</section>\n";
    html
}

fn machine(machine: &MachineTable) -> String {
    let mut html = format!(
        "<details>\n<summary>{} <span>{}</span></summary>\n<div class=\"scroll\"><table \
         class=\"constants\"><thead><tr><th>constant</th><th>value</th><th>origin</th></tr></thead>\
         <tbody>",
        escape(&machine.name),
        escape(&machine.about)
    );
    for constant in &machine.constants {
        html += &format!(
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td>{}</td></tr>",
            escape(&constant.name),
            escape(&constant.value),
            escape(&constant.origin)
        );
    }
    html += "</tbody></table></div>\n</details>\n";
    html
}
