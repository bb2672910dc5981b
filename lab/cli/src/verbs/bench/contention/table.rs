//! The table of `bench --client`: a row for each client, 80 columns wide, or with all columns.
//!
//! Pure text from a result. Settings that all clients share are in a line above the table.

use millrace_console::words::{MIB, size_text};
use millrace_console::{Form, Side, WIDTH, wrapped};
use millrace_experiments::load::contention::{ClientRow, ContentionReport};

use crate::verbs::bench::table::{self, TimeUnit, columns_grid};

/// A column of the table: its name, its alignment, and its text for a client.
type Column = table::Column<ClientRow>;

/// Renders a result as text, without a line feed at the end.
pub fn table(contest: &ContentionReport, form: Form) -> String {
    let rows = &contest.clients;
    let alone = rows.iter().all(|row| row.group == row.name);
    let settings = settings().into_iter().filter(|(name, ..)| !(alone && name == "group"));
    let varies = |(_, _, value): &Column| rows.iter().any(|row| value(row) != value(&rows[0]));
    let (inside, above): (Vec<Column>, Vec<Column>) =
        settings.partition(|column| form == Form::Whole || varies(column));
    let said = [
        ("machine", &contest.machine),
        ("drives", &contest.drives),
        ("scheduler", &contest.scheduler),
    ];
    let shared = above.iter().map(|(name, _, value)| format!("{name}={}", value(&rows[0])));
    let words = said.iter().map(|(name, value)| format!("{name}={value}")).chain(shared);
    let client: Column =
        ("client".to_owned(), Side::Left, Box::new(|row: &ClientRow| row.name.clone()));
    let mut columns: Vec<Column> = vec![client];
    columns.extend(inside);
    columns.extend(figures(rows, form));
    let grid = columns_grid(columns, rows, (form, &["p50", "MiB/s", "p99.9"]));
    format!(
        "{}\n{}\nall: {:.0} IOPS, {:.1} MiB/s; Jain's index of cost by weight: {:.4}",
        wrapped(words, WIDTH),
        grid.text(),
        contest.iops,
        contest.bw_bytes_per_s / MIB,
        contest.jain
    )
}

/// Returns the columns of a client's settings.
fn settings() -> Vec<Column> {
    let column = |name: &str, side, value: fn(&ClientRow) -> String| -> Column {
        (name.to_owned(), side, Box::new(value))
    };
    vec![
        column("group", Side::Left, |row| row.group.clone()),
        column("weight", Side::Right, |row| row.weight.to_string()),
        column("rw", Side::Left, |row| row.rw.clone()),
        column("bs", Side::Right, |row| size_text(row.bs.into())),
        column("iodepth", Side::Right, |row| row.iodepth.to_string()),
    ]
}

/// Returns the columns of measured figures.
fn figures(rows: &[ClientRow], form: Form) -> Vec<Column> {
    let most = rows.iter().map(|row| row.lat_ns.p99).max().unwrap_or(0);
    let unit = TimeUnit::between(rows.iter().map(|row| row.lat_ns.p50).min().unwrap_or(0), most);
    let column = |name: &str, value: Box<dyn Fn(&ClientRow) -> String>| -> Column {
        (name.to_owned(), Side::Right, value)
    };
    let time = |name: &str, of: fn(&ClientRow) -> u64| {
        let value = move |row: &ClientRow| unit.text(of(row));
        column(&format!("{name} {}", unit.name()), Box::new(value))
    };
    let mut figures = vec![
        column("IOPS", Box::new(|row| format!("{:.0}", row.iops))),
        column("MiB/s", Box::new(|row| format!("{:.1}", row.bw_bytes_per_s / MIB))),
    ];
    if form == Form::Whole {
        figures.push(time("mean", |row| row.lat_ns.mean));
    }
    figures.push(time("p50", |row| row.lat_ns.p50));
    figures.push(time("p99", |row| row.lat_ns.p99));
    figures.push(time("p99.9", |row| row.lat_ns.p999));
    if form == Form::Whole {
        figures.push(time("max", |row| row.lat_ns.max));
    }
    figures.push(column("cost %", Box::new(|row| format!("{:.1}", row.share * 100.0))));
    figures.push(column("of weight", Box::new(|row| format!("{:.1}", row.weight_share * 100.0))));
    figures
}
