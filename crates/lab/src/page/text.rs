//! A page as text for a terminal: x down, series across, then the checks.
//!
//! Called by `Page::text`. No line is longer than `WIDTH`: figures with many series are several
//! tables, sentences wrap. Lines have no blanks at the end. All numbers of a panel have one unit,
//! which stands above them.

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
        let rows = grid(heads, &table.rows, 1, Fit::Within);
        blocks.push(format!("{}\n{rows}", wrapped(&table.title, 0)));
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
        let unit = PanelUnit::of(panel);
        let title = wrapped(&format!("{title} ({}{})", panel.y_label, unit.said), 0);
        blocks.push(format!("{title}\n{}", numbers(panel, &unit)));
    }
}

/// The one unit of a panel's numbers.
struct PanelUnit {
    /// Behind the label, such as `, in us`.
    said: String,
    /// What is one in it.
    one: f64,
}

impl PanelUnit {
    /// By the largest number.
    fn of(panel: &Panel) -> PanelUnit {
        let ys = panel.series.iter().flat_map(|series| &series.points).map(|(_, y)| y.abs());
        let most = ys.filter(|y| y.is_finite()).fold(0.0, f64::max);
        let units: &[(f64, &str)] = match panel.y_unit {
            Unit::Plain => &[],
            Unit::Percent => &[(0.01, ", in %")],
            Unit::Count => &[(1e9, ", in G"), (1e6, ", in M"), (1e3, ", in K")],
            Unit::Nanoseconds => {
                &[(1e9, ", in s"), (1e6, ", in ms"), (1e3, ", in us"), (1.0, ", in ns")]
            }
        };
        let fits = units.iter().find(|(one, _)| most >= *one || panel.y_unit == Unit::Percent);
        let (one, said) = fits.copied().unwrap_or((1.0, ""));
        PanelUnit { said: said.to_owned(), one }
    }

    fn text(&self, y: f64) -> String {
        let text = format!("{:.3}", y / self.one);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        if text == "-0" { "0".to_owned() } else { text.to_owned() }
    }
}

/// A panel's numbers: a table, or several where its series do not fit side by side.
fn numbers(panel: &Panel, unit: &PanelUnit) -> String {
    let labels: Vec<String> = panel.series.iter().map(|series| series.label()).collect();
    let all = rows(panel);
    let cells = |x: f64, values: &[Option<f64>]| -> Vec<String> {
        let value = |y: &Option<f64>| y.map_or_else(|| "-".to_owned(), |y| unit.text(y));
        std::iter::once(short(x, Unit::Plain)).chain(values.iter().map(value)).collect()
    };
    let table = |from: usize, to: usize, fit: Fit| {
        let heads = std::iter::once(panel.x_label.as_str());
        let heads = heads.chain(labels[from..to].iter().map(String::as_str)).collect();
        let rows: Vec<Vec<String>> =
            all.iter().map(|(x, values)| cells(*x, &values[from..to])).collect();
        grid(heads, &rows, 0, fit)
    };
    let (mut tables, mut from) = (Vec::new(), 0);
    while from < labels.len() {
        let fits = |to: &usize| longest(&table(from, *to, Fit::AsItIs)) <= WIDTH.into();
        let to = (from + 1..=labels.len()).rev().find(fits).unwrap_or(from + 1);
        tables.push(table(from, to, Fit::Within));
        from = to;
    }
    tables.join("\n\n")
}

/// Characters of the longest line.
fn longest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

fn checks(page: &Page) -> String {
    let [theirs, ours] = page.against.heads();
    let heads = vec!["check", "kind", theirs, ours, "deviation", "verdict"];
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
    let mut text = format!("checks\n{}", grid(heads, &rows, 6, Fit::Within));
    for check in page.checks.iter().filter(|check| !check.note.is_empty()) {
        text += &format!("\n{}", wrapped(&format!("{}: {}", check.id, check.note), 2));
    }
    let tally = page.tally();
    text += &format!(
        "\n\n{} hold, {} do not hold, {} not there yet; {} inputs, not counted",
        tally.hold, tally.fail, tally.missing, tally.inputs
    );
    text
}

/// Columns of the terminal that a page is written for.
const WIDTH: u16 = 100;

/// Words in lines of at most `WIDTH` characters, those after the first indented.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH.into() => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("{:indent$}{word}", "")),
            None => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// What becomes of a table that is wider than `WIDTH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The column stays as wide as its longest cell.
    AsItIs,
    /// The column's cells break into lines.
    Within,
}

/// A table; columns from `numbers_from` on are right-aligned.
fn grid(heads: Vec<&str>, rows: &[Vec<String>], numbers_from: usize, fit: Fit) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if fit == Fit::Within {
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
