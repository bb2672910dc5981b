//! Renders a page as text for a terminal: a table for each panel, with a row for each x and a
//! column for each series, and then the checks.
//!
//! Called by `Page::text`. No line is longer than `WIDTH`: figures with many series and tables with
//! many columns are split into several tables. Lines break only between words. Lines have no
//! trailing blanks. All numbers of a panel have one unit, which is shown above them.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};

use super::html::rows;
use super::scale::{distance, short};
use super::{Check, CheckVerdict, DataTable, Figure, Page, Panel, Unit};

pub(super) fn page(page: &Page) -> String {
    let mut blocks: Vec<String> = page.remarks.iter().map(|remark| wrapped(remark, 0)).collect();
    page.figures.iter().for_each(|item| figure(&mut blocks, item));
    for table in &page.tables {
        let caption = if table.caption.is_empty() { "" } else { ": " }.to_owned() + &table.caption;
        let head = wrapped(&format!("{}{caption}", table.title), 0);
        blocks.push(format!("{head}\n{}", data_table(table)));
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

struct PanelUnit {
    /// Text after an axis label, such as `, in us`.
    said: String,
    /// Number by which values are divided, such as 1,000 if they are shown in thousands.
    one: f64,
}

impl PanelUnit {
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

/// Renders the numbers of a plot as one table, or as several tables if one would be too wide.
fn numbers(panel: &Panel, unit: &PanelUnit) -> String {
    let labels: Vec<String> = panel.series.iter().map(|series| series.label()).collect();
    let all = rows(panel);
    let cells = |x: f64, values: &[Option<f64>]| -> Vec<String> {
        let value = |y: &Option<f64>| y.map_or_else(|| "-".to_owned(), |y| unit.text(y));
        std::iter::once(short(x, Unit::Plain)).chain(values.iter().map(value)).collect()
    };
    let table = |from: usize, to: usize, fit: ColumnFit| {
        let heads = std::iter::once(panel.x_label.as_str());
        let heads = heads.chain(labels[from..to].iter().map(String::as_str)).collect();
        let rows: Vec<Vec<String>> =
            all.iter().map(|(x, values)| cells(*x, &values[from..to])).collect();
        grid(heads, &rows, 0, fit)
    };
    let (mut tables, mut from) = (Vec::new(), 0);
    while from < labels.len() {
        let fits = |to: &usize| longest(&table(from, *to, ColumnFit::AsItIs)) <= WIDTH.into();
        let to = (from + 1..=labels.len()).rev().find(fits).unwrap_or(from + 1);
        tables.push(table(from, to, ColumnFit::Within));
        from = to;
    }
    tables.join("\n\n")
}

/// Renders a table, in which cells break only at blanks. If the columns do not fit side by side,
/// renders several tables, each with the first column.
fn data_table(table: &DataTable) -> String {
    let columns = table.head.len();
    let least: Vec<usize> = (0..columns).map(|column| least_width(table, column)).collect();
    let (mut tables, mut from) = (Vec::new(), 1);
    loop {
        let fits = |to: &usize| least[0] + least[from..*to].iter().sum::<usize>() <= WIDTH.into();
        let to = (from + 1..=columns).rev().find(fits).unwrap_or(columns.min(from + 1));
        let of = |cells: &[String]| -> Vec<String> {
            let rest = cells.get(from..to.min(cells.len())).unwrap_or_default();
            cells.iter().take(1).chain(rest).cloned().collect()
        };
        let (heads, rows) = (of(&table.head), table.rows.iter().map(|row| of(row)));
        let heads = heads.iter().map(String::as_str).collect();
        tables.push(grid(heads, &rows.collect::<Vec<_>>(), 1, ColumnFit::Within));
        from = to;
        if from >= columns {
            return tables.join("\n\n");
        }
    }
}

const FIRST_MOST: usize = 42;

/// Returns the smallest width of a column, in characters, with blanks at both sides: the width of
/// its longest word. The first column is as wide as its longest cell, up to `FIRST_MOST`.
fn least_width(table: &DataTable, column: usize) -> usize {
    let cells = table.rows.iter().filter_map(|row| row.get(column));
    let texts = cells.chain([&table.head[column]]);
    let length = |text: &str| text.chars().count();
    let word = |text: &String| text.split(' ').map(length).max().unwrap_or(0);
    let longest = texts.clone().map(word).max().unwrap_or(0);
    let whole = texts.map(|text| length(text)).max().unwrap_or(0);
    2 + if column == 0 { longest.max(whole.min(FIRST_MOST)) } else { longest }
}

fn longest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Renders the checks, each with its verdict, the paper's statement, our result, the result of a
/// second run, and the note. Checks that were not made are grouped by reason.
fn checks(page: &Page) -> String {
    let there = |check: &&Check| check.holds != CheckVerdict::NotYet;
    let heads = page.against.heads();
    let blocks: Vec<String> =
        page.checks.iter().filter(there).map(|one| check(one, heads)).collect();
    let mut text = blocks.join("\n");
    text = format!("checks\n{text}");
    let mut missing: Vec<(&str, Vec<&str>)> = Vec::new();
    for check in page.checks.iter().filter(|check| check.holds == CheckVerdict::NotYet) {
        match missing.iter_mut().find(|(note, _)| *note == check.note) {
            Some((_, ids)) => ids.push(&check.id),
            None => missing.push((&check.note, vec![&check.id])),
        }
    }
    for (note, ids) in missing {
        let why = if note.is_empty() { String::new() } else { format!(" ({note})") };
        let words = format!("{}{why}: {}", CheckVerdict::NotYet.name(), ids.join(", "));
        text += &format!("\n{}", wrapped(&words, 2));
    }
    let tally = page.tally();
    text += &format!(
        "\n\nchecks: {} hold, {} do not hold, {} not run (\"not there yet\"); {} inputs of the \
         model, not counted",
        tally.hold, tally.fail, tally.missing, tally.inputs
    );
    text
}

fn check(check: &Check, [theirs, ours]: [&str; 2]) -> String {
    let whose = if theirs == "paper" { "paper's" } else { theirs };
    let bound = match &check.paper.text {
        text if text.contains("at least") => "lower bound",
        text if text.contains("at most") => "upper bound",
        _ => "value",
    };
    let off = |off: Option<f64>| {
        off.map_or_else(String::new, |off| format!(", {} the {whose} {bound}", distance(off)))
    };
    let head = format!(
        " {:<23}{}{} ({})",
        check.id,
        check.holds.name(),
        off(check.deviation),
        check.kind.name()
    );
    let mut lines = vec![head];
    let mut say = |label: &str, text: &str| {
        if !text.is_empty() {
            lines.push(wrapped_under(&format!("   {label:<9}"), text));
        }
    };
    say(theirs, &check.paper.text);
    say(ours, &check.ours.text);
    if let Some(without) = check.without.as_ref().filter(|one| one.holds != CheckVerdict::NotYet) {
        let change = without
            .change
            .map_or_else(String::new, |change| format!(" ({} {ours})", distance(change)));
        let (text, verdict) = (&without.ours.text, without.holds.name());
        let words = format!(
            "{}: {text}{change}; {verdict}{}",
            without.mechanisms.replace(',', ", "),
            off(without.deviation)
        );
        say("without", &words);
    }
    say("note", &check.note);
    lines.join("\n")
}

/// Wraps words after a label into lines of at most `WIDTH` characters. Further lines are indented
/// to the first word.
fn wrapped_under(label: &str, text: &str) -> String {
    let indent = label.chars().count();
    let width = usize::from(WIDTH) - indent;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    format!("{label}{}", lines.join(&format!("\n{:indent$}", "")))
}

const WIDTH: u16 = 100;

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnFit {
    /// Columns are as wide as their longest cells.
    AsItIs,
    /// Cells are wrapped so that the table is at most `WIDTH` characters wide.
    Within,
}

/// Renders a table. The columns from number `numbers_from` on are right-aligned.
fn grid(heads: Vec<&str>, rows: &[Vec<String>], numbers_from: usize, fit: ColumnFit) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if fit == ColumnFit::Within {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    }
    table.set_header(heads.clone());
    rows.iter().for_each(|row| {
        table.add_row(row);
    });
    if fit == ColumnFit::Within {
        for (number, column) in table.column_iter_mut().enumerate() {
            let cells = || rows.iter().filter_map(|row| row.get(number)).map(String::as_str);
            let words = cells().chain([heads[number]]).flat_map(str::split_whitespace);
            let longest = words.map(|word| word.chars().count()).max().unwrap_or(0);
            // The width of a column includes a blank on each side of the text.
            let least = u16::try_from(longest + 2).unwrap_or(WIDTH).min(WIDTH / 2);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    for column in table.column_iter_mut().skip(numbers_from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}
