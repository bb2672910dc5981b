//! Formats rows of `stat` as a table with the columns of iostat -mx.
//!
//! The short form has the columns that fit 80 characters. In the short form, large numbers have
//! fewer decimals, and the middle of a long name is cut out. The full form has all columns and p99,
//! and all numbers have two decimals, as in iostat. Names of drives, queues and clients are
//! indented below their volume's name.

use millrace_console::{Form, counted, fitted, shortened};

use super::columns::StatRow;

const NAME_WIDTH: usize = 13;

/// Column: heading, its width in the short form if it is shown there, and the function that returns
/// the value.
type Column = (&'static str, Option<usize>, fn(&StatRow) -> f64);

const COLUMNS: [Column; 24] = [
    ("r/s", Some(8), |row| row.read.per_second),
    ("rMiB/s", Some(9), |row| row.read.kib_per_second / 1024.0),
    ("rrqm/s", None, |row| row.read.merged_per_second),
    ("%rrqm", None, |row| row.read.merged_percent),
    ("r_await", Some(7), |row| row.read.await_ms),
    ("rareq-sz", None, |row| row.read.request_kib),
    ("w/s", Some(8), |row| row.write.per_second),
    ("wMiB/s", Some(9), |row| row.write.kib_per_second / 1024.0),
    ("wrqm/s", None, |row| row.write.merged_per_second),
    ("%wrqm", None, |row| row.write.merged_percent),
    ("w_await", Some(7), |row| row.write.await_ms),
    ("wareq-sz", None, |row| row.write.request_kib),
    ("d/s", None, |row| row.discard.per_second),
    ("dMiB/s", None, |row| row.discard.kib_per_second / 1024.0),
    ("drqm/s", None, |row| row.discard.merged_per_second),
    ("%drqm", None, |row| row.discard.merged_percent),
    ("d_await", None, |row| row.discard.await_ms),
    ("dareq-sz", None, |row| row.discard.request_kib),
    ("f/s", None, |row| row.flush.per_second),
    ("f_await", None, |row| row.flush.await_ms),
    ("aqu-sz", Some(6), |row| row.aqu_sz),
    ("%util", Some(5), |row| row.util),
    ("r_p99", None, |row| row.read.p99_ms),
    ("w_p99", None, |row| row.write.p99_ms),
];

/// Returns the table of volumes and drives. Lines below it list failed I/Os and the number of
/// `idle` volumes, which have no row.
pub fn table(rows: &[StatRow], idle: usize, form: Form) -> String {
    let name_width = match form {
        Form::Short => NAME_WIDTH,
        Form::Whole => rows.iter().map(|row| label(row).chars().count()).max().unwrap_or(0).max(6),
    };
    let shown: Vec<&Column> =
        COLUMNS.iter().filter(|(_, width, _)| width.is_some() || form == Form::Whole).collect();
    let width = |(name, short, _): &Column| match form {
        Form::Short => short.unwrap_or(0),
        Form::Whole => cell_width(name),
    };
    let mut text = format!("{:<name_width$}", "Device");
    shown.iter().for_each(|column| text += &format!(" {:>1$}", column.0, width(column)));
    text.push('\n');
    for row in rows {
        text += &format!("{:<name_width$}", shortened(&label(row), name_width));
        for column in &shown {
            let value = (column.2)(row);
            let cell = match form {
                Form::Short => fitted(value, width(column)),
                Form::Whole => format!("{value:.2}"),
            };
            text += &format!(" {cell:>0$}", width(column));
        }
        text.push('\n');
    }
    rows.iter().filter_map(failures).for_each(|line| text += &line);
    if idle > 0 {
        text += &format!("{} idle and not shown; --all shows them\n", counted(idle, "volume"));
    }
    text.push('\n');
    text
}

fn failures(row: &StatRow) -> Option<String> {
    let ops = [("read", &row.read), ("write", &row.write), ("discard", &row.discard)];
    let ops = ops.into_iter().chain([("flush", &row.flush)]);
    let failed: Vec<String> = ops
        .filter(|(_, columns)| columns.errors > 0)
        .map(|(op, columns)| format!("{} of {} {op} I/Os", columns.errors, columns.ios))
        .collect();
    let (kind, name) = (row.kind, row.name.escape_debug());
    let is_shown = !failed.is_empty() && matches!(kind, "volume" | "drive");
    is_shown.then(|| format!("{kind} {name}: {} failed\n", failed.join(", ")))
}

fn label(row: &StatRow) -> String {
    let indent = match row.kind {
        "volume" => "",
        "queue" => "    ",
        _ => "  ",
    };
    format!("{indent}{}", row.name.escape_debug())
}

fn cell_width(name: &str) -> usize {
    let usual = match name {
        "rMiB/s" | "wMiB/s" | "dMiB/s" => 10,
        "r/s" | "w/s" | "d/s" | "f/s" | "rrqm/s" | "wrqm/s" | "drqm/s" => 9,
        "%util" | "%rrqm" | "%wrqm" | "%drqm" => 6,
        _ => 7,
    };
    usual.max(name.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::columns::Columns;
    use super::*;
    use millrace_console::WIDTH;

    fn row(kind: &'static str, name: &str, read: Columns) -> StatRow {
        StatRow {
            name: name.to_owned(),
            kind,
            volume: "v".to_owned(),
            seconds: 1.0,
            write: read.clone(),
            read,
            discard: Columns::default(),
            flush: Columns { per_second: 3.0, await_ms: 1.0, ..Columns::default() },
            driver: BTreeMap::new(),
            aqu_sz: 0.5,
            util: 99.999,
            in_flight: 7,
            tags_in_use: 7,
            failed: 0,
        }
    }

    fn at<'a>(text: &'a str, line: usize, name: &str) -> &'a str {
        let lines: Vec<&str> = text.lines().collect();
        let place = lines[0].split_whitespace().position(|one| one == name).unwrap();
        lines[line].split_whitespace().nth(place).unwrap()
    }

    #[test]
    fn the_whole_form_has_all_of_iostats_columns_under_their_names() {
        let read = Columns { per_second: 1234.5, p99_ms: 0.25, ..Columns::default() };
        let rows = [row("volume", "v", read.clone()), row("drive", "a-long-name-of-a-drive", read)];
        let text = table(&rows, 0, Form::Whole);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().take(3).all(|line| line.len() == lines[0].len()), "{text}");
        let head: Vec<&str> = lines[0].split_whitespace().collect();
        assert_eq!((head[0], head[1..].to_vec()), ("Device", COLUMNS.map(|one| one.0).to_vec()));
        let cells = ["Device", "r/s", "f/s", "f_await", "aqu-sz", "%util", "r_p99"];
        let expected =
            ["a-long-name-of-a-drive", "1234.50", "3.00", "1.00", "0.50", "100.00", "0.25"];
        assert_eq!(cells.map(|name| at(&text, 2, name)), expected);
    }

    #[test]
    fn volumes_and_drives_that_failed_ios_are_named_below_the_table() {
        let failed = |ios, errors| Columns { ios, errors, ..Columns::default() };
        let mut rows = [
            row("volume", "v", failed(0, 0)),
            row("drive", "d0", failed(32, 5)),
            row("queue", "d0:0", failed(32, 5)),
        ];
        rows[1].write.errors = 0;
        rows[1].flush.errors = 3;
        rows[1].flush.ios = 4;
        for form in [Form::Short, Form::Whole] {
            let text = table(&rows, 0, form);
            let below: Vec<&str> = text.lines().skip(4).collect();
            assert_eq!(below, ["drive d0: 5 of 32 read I/Os, 3 of 4 flush I/Os failed", ""]);
        }
    }

    #[test]
    fn short_form_fits_80_columns_with_large_numbers_and_long_names() {
        let read = Columns {
            per_second: 99_999_999.0,
            kib_per_second: 999_999_999.0 * 1024.0,
            await_ms: 999_999.0,
            ..Columns::default()
        };
        let rows = [row("volume", "v", Columns::default()), row("queue", &"n".repeat(99), read)];
        let text = table(&rows, 3, Form::Short);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let cells = ["r/s", "rMiB/s", "r_await", "w/s", "aqu-sz", "%util"];
        let expected = ["99999999", "999999999", "999999", "99999999", "0.50", "100.0"];
        assert_eq!(cells.map(|name| at(&text, 2, name)), expected);
        assert!(text.ends_with("\n3 volumes idle and not shown; --all shows them\n\n"), "{text}");
        assert!(text.lines().nth(2).unwrap().starts_with("    nn\u{2026}nnnnnn "), "{text}");
    }
}
