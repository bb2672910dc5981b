//! Rows of `stat` as text: iostat -x's columns in its order, then p99 of reads and writes.
//!
//! Pure text. Numbers have two digits after the point, as iostat's; the first column is as wide as
//! the longest name. Names of drives, queues and
//! clients stand below their volume's, indented.

use std::fmt::Write;

use super::columns::{Columns, Row};

const HEAD: [&str; 24] = [
    "r/s", "rkB/s", "rrqm/s", "%rrqm", "r_await", "rareq-sz", "w/s", "wkB/s", "wrqm/s", "%wrqm",
    "w_await", "wareq-sz", "d/s", "dkB/s", "drqm/s", "%drqm", "d_await", "dareq-sz", "f/s",
    "f_await", "aqu-sz", "%util", "r_p99", "w_p99",
];

/// The rows under a line of names, with an empty line after them.
pub fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| label(row).chars().count()).max().unwrap_or(0).max(6);
    let mut text = format!("{:<width$}", "Device");
    for name in HEAD {
        let _ = write!(text, " {name:>0$}", cell_width(name));
    }
    text.push('\n');
    for row in rows {
        let _ = write!(text, "{:<width$}", label(row));
        for (name, cell) in HEAD.iter().zip(cells(row)) {
            let _ = write!(text, " {cell:>0$}", cell_width(name));
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

fn label(row: &Row) -> String {
    let indent = match row.kind {
        "volume" => "",
        "queue" => "    ",
        _ => "  ",
    };
    format!("{indent}{}", row.name.escape_debug())
}

/// Room for what usually stands there.
fn cell_width(name: &str) -> usize {
    let usual = match name {
        "rkB/s" | "wkB/s" | "dkB/s" => 10,
        "r/s" | "w/s" | "d/s" | "f/s" | "rrqm/s" | "wrqm/s" | "drqm/s" => 9,
        "%util" | "%rrqm" | "%wrqm" | "%drqm" => 6,
        _ => 7,
    };
    usual.max(name.len())
}

fn cells(row: &Row) -> [String; 24] {
    let number = |value: f64| format!("{value:.2}");
    let six = |columns: &Columns| {
        [
            columns.per_second,
            columns.kib_per_second,
            columns.merged_per_second,
            columns.merged_percent,
            columns.await_ms,
            columns.request_kib,
        ]
        .map(number)
    };
    let [r0, r1, r2, r3, r4, r5] = six(&row.read);
    let [w0, w1, w2, w3, w4, w5] = six(&row.write);
    let [d0, d1, d2, d3, d4, d5] = six(&row.discard);
    let [f0, _, _, _, f4, _] = six(&row.flush);
    let (aqu, util) = (number(row.aqu_sz), number(row.util));
    let (read_p99, write_p99) = (number(row.read.p99_ms), number(row.write.p99_ms));
    [
        r0, r1, r2, r3, r4, r5, w0, w1, w2, w3, w4, w5, d0, d1, d2, d3, d4, d5, f0, f4, aqu, util,
        read_p99, write_p99,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_names() {
        let row = |kind, name: &str| Row {
            name: name.to_owned(),
            kind,
            volume: "v".to_owned(),
            seconds: 1.0,
            read: Columns { per_second: 1234.5, p99_ms: 0.25, ..Columns::default() },
            write: Columns::default(),
            discard: Columns::default(),
            flush: Columns { per_second: 3.0, await_ms: 1.0, ..Columns::default() },
            aqu_sz: 0.5,
            util: 99.999,
            in_flight: 7,
            tags_in_use: 7,
        };
        let text = table(&[row("volume", "v"), row("drive", "a-long-name")]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().take(3).all(|line| line.len() == lines[0].len()), "{text}");
        let head: Vec<&str> = lines[0].split_whitespace().collect();
        assert_eq!((head[0], &head[1..]), ("Device", &HEAD[..]));
        let at = |name: &str| {
            let place = head.iter().position(|one| *one == name).unwrap();
            lines[2].split_whitespace().nth(place).unwrap()
        };
        assert_eq!((at("Device"), at("r/s"), at("f/s"), at("f_await")), {
            ("a-long-name", "1234.50", "3.00", "1.00")
        });
        assert_eq!((at("aqu-sz"), at("%util"), at("r_p99")), ("0.50", "100.00", "0.25"));
    }
}
