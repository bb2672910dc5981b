//! Creates the result page that compares two runs of a paper: with all mechanisms of the simulated
//! machine or kernel, and without some of them.
//!
//! Merges the pages of both runs, which show the same figures, tables and checks. A check also gets
//! the result of the second run. A plot also gets the lines that differ in the second run, and a
//! table that differs is shown twice.

use super::mechanism::{Mechanism, words};
use crate::page::{
    AblationResult, Check, DataTable, Figure, Page, Panel, Series, SeriesKind, deviation,
};

pub(super) fn merged(page: Page, other: Page, without: &[Mechanism]) -> Page {
    let left_out = words(without);
    let checks = page.checks.into_iter().zip(other.checks).map(|(check, other)| {
        let change = deviation(&check.ours.numbers, &other.ours.numbers);
        let Check { ours, deviation, holds, .. } = other;
        let without =
            AblationResult { mechanisms: left_out.clone(), ours, change, deviation, holds };
        Check { without: Some(without), ..check }
    });
    let figures = page.figures.into_iter().zip(other.figures);
    let tables = page.tables.into_iter().zip(other.tables);
    Page {
        checks: checks.collect(),
        figures: figures.map(|(figure, other)| with_lines(figure, other, &left_out)).collect(),
        tables: tables.flat_map(|(table, other)| both(table, other, &left_out)).collect(),
        ..page
    }
}

fn with_lines(figure: Figure, other: Figure, left_out: &str) -> Figure {
    let panels = figure.panels.into_iter().zip(other.panels);
    let panels: Vec<Panel> = panels.map(|(panel, other)| add_lines(panel, other)).collect();
    let differs = panels.iter().flat_map(|panel| &panel.series);
    let said = match differs.into_iter().any(|series| series.kind == SeriesKind::Without) {
        true => format!(" Thin dashed lines: the result without {left_out}, where it differs."),
        false => format!(" The result without {left_out} is the same."),
    };
    Figure { caption: figure.caption + &said, panels, ..figure }
}

fn add_lines(panel: Panel, other: Panel) -> Panel {
    let known = &panel.series;
    let differs = |series: &Series| series.kind != SeriesKind::Paper && !known.contains(series);
    let others = other.series.into_iter().filter(differs);
    let others: Vec<Series> =
        others.map(|series| Series { kind: SeriesKind::Without, ..series }).collect();
    Panel { series: [panel.series, others].concat(), ..panel }
}

fn both(table: DataTable, other: DataTable, left_out: &str) -> Vec<DataTable> {
    if table.rows == other.rows {
        let caption = format!("{} The result without {left_out} is the same.", table.caption);
        return vec![DataTable { caption, ..table }];
    }
    let other = DataTable {
        id: format!("{}-without", other.id),
        title: format!("{}, without {left_out}", other.title),
        caption: format!("The same table, for the run without {left_out}."),
        ..other
    };
    vec![table, other]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{CheckKind, CheckVerdict, Quantity, Unit};

    /// A page whose line, table and check have this number.
    fn page(number: f64) -> Page {
        let lines = vec![
            Series::ours("MQ", vec![(1.0, number)]),
            Series::ours("by weight", vec![(1.0, 1.0)]),
            Series::theirs("MQ", [(1.0, 5.0)]),
        ];
        let panel = Panel::new("p", "cores", ("IOPS", Unit::Count), lines);
        let table = |id: &str, cell: f64| {
            DataTable::new((id, id), "c", ["head"], vec![vec![cell.to_string()]])
        };
        let quantity = |number: f64| Quantity::new(number.to_string(), [number]);
        let quantities = (quantity(5.0), quantity(number));
        Page {
            checks: vec![Check::new("c", CheckKind::Quantitative, quantities, number > 3.0)],
            figures: vec![Figure::new("f", "f", "Caption.", [panel])],
            tables: vec![table("changes", number), table("stays", 0.0)],
            ..Page::default()
        }
    }

    #[test]
    fn differences_stand_beside_the_whole_run_and_equals_are_told() {
        let without = [Mechanism::Lines, Mechanism::Links];
        let both = merged(page(4.0), page(2.0), &without);
        let check = &both.checks[0];
        let second = check.without.as_ref().expect("the check must have a second run");
        assert_eq!((check.holds, second.holds), (CheckVerdict::Yes, CheckVerdict::No));
        assert_eq!((second.change, second.deviation), (Some(-0.5), Some(-0.6)));
        assert_eq!(second.mechanisms, "lines,links");
        let figure = &both.figures[0];
        let labels: Vec<String> = figure.panels[0].series.iter().map(Series::label).collect();
        assert_eq!(labels, ["MQ", "by weight", "MQ, paper", "MQ, without"]);
        assert!(figure.caption.ends_with("without lines,links, where it differs."));
        let ids: Vec<&str> = both.tables.iter().map(|table| table.id.as_str()).collect();
        assert_eq!(ids, ["changes", "changes-without", "stays"]);
        assert!(both.tables[2].caption.ends_with("is the same."));
        let same = merged(page(4.0), page(4.0), &without);
        assert!(same.figures[0].caption.ends_with("The result without lines,links is the same."));
        assert_eq!(same.figures[0].panels[0].series.len(), 3);
    }
}
