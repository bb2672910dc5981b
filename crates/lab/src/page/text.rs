//! A page as text for a terminal: x down, series across, then the checks.
//!
//! Called by `Page::text`. The checks are 120 columns wide at most, figures as wide as their series
//! ask for. Lines have no blanks at the end; numbers are short, those of a column
//! with their units.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::html::rows;
use super::scale::{percent_off, short};
use super::{Check, Figure, Page, Panel, Unit};

/// The whole page.
pub(super) fn page(page: &Page) -> String {
    let mut blocks = Vec::new();
    page.figures.iter().for_each(|item| figure(&mut blocks, item));
    for table in &page.tables {
        let heads = table.head.iter().map(String::as_str).collect();
        blocks.push(format!("{}\n{}", table.title, grid(heads, &table.rows, 1)));
    }
    if !page.checks.is_empty() {
        blocks.push(checks(page));
    }
    let mut text = blocks.join("\n\n");
    text.push('\n');
    text
}

fn figure(blocks: &mut Vec<String>, figure: &Figure) {
    for panel in &figure.panels {
        let mut title = format!("{}: {}", figure.id, figure.title);
        if !panel.title.is_empty() {
            title += &format!(" - {}", panel.title);
        }
        blocks.push(format!("{title} ({})\n{}", panel.y_label, numbers(panel)));
    }
}

fn numbers(panel: &Panel) -> String {
    let labels: Vec<String> = panel.series.iter().map(|series| series.label()).collect();
    let heads = std::iter::once(panel.x_label.as_str()).chain(labels.iter().map(String::as_str));
    let row = |(x, values): (f64, Vec<Option<f64>>)| {
        let value = |y: Option<f64>| y.map_or_else(|| "-".to_owned(), |y| short(y, panel.y_unit));
        std::iter::once(short(x, Unit::Plain)).chain(values.into_iter().map(value)).collect()
    };
    let rows: Vec<Vec<String>> = rows(panel).into_iter().map(row).collect();
    grid(heads.collect(), &rows, 0)
}

fn checks(page: &Page) -> String {
    let heads = vec!["check", "kind", "paper", "ours", "deviation", "verdict"];
    let row = |check: &Check| {
        vec![
            check.id.clone(),
            check.kind.name().to_owned(),
            check.paper.text.clone(),
            check.ours.text.clone(),
            check.deviation.map_or_else(String::new, percent_off),
            check.holds.name().to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = page.checks.iter().map(row).collect();
    let mut text = format!("checks\n{}", grid(heads, &rows, 6));
    for check in page.checks.iter().filter(|check| !check.note.is_empty()) {
        text += &format!("\n{}: {}", check.id, check.note);
    }
    let tally = page.tally();
    text += &format!(
        "\n\n{} hold, {} do not hold, {} not there yet; {} inputs, not counted",
        tally.hold, tally.fail, tally.missing, tally.inputs
    );
    text
}

/// Columns of a table of sentences, which break where they are longer.
const WIDTH: u16 = 120;

/// A table; columns from `numbers_from` on are right-aligned. One without such has a width.
fn grid(heads: Vec<&str>, rows: &[Vec<String>], numbers_from: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if numbers_from >= heads.len() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    }
    table.set_header(heads);
    rows.iter().for_each(|row| {
        table.add_row(row);
    });
    for column in table.column_iter_mut().skip(numbers_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}
