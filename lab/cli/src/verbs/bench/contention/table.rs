//! The table of `bench --client`, with a row for each client.
//!
//! Formats a result as text. The short form of the table is at most 80 characters wide, and may
//! leave out columns. The other form has all columns. In the short form, settings that all clients
//! share are in a line above the table.

use millrace_console::words::{MIB, size_text};
use millrace_console::{Form, Side, WIDTH, wrapped};
use millrace_experiments::load::contention::{ClientRow, ContentionReport};

use crate::verbs::bench::table::{self, TimeUnit, column, columns_grid};

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
    let mut columns: Vec<Column> =
        vec![column("client", Side::Left, |row: &ClientRow| row.name.clone())];
    columns.extend(inside);
    columns.extend(figures(rows, form));
    let grid = columns_grid(columns, rows, (form, &["p50", "MiB/s", "p99.9"]));
    format!(
        "{}\n{}\nall: {:.0} IOPS, {:.1} MiB/s; Jain's fairness index (cost by weight, 1 is fair): \
         {:.4}",
        wrapped(words, WIDTH),
        grid.text(),
        contest.iops,
        contest.bw_bytes_per_s / MIB,
        contest.jain
    )
}

fn settings() -> Vec<Column> {
    vec![
        column("group", Side::Left, |row: &ClientRow| row.group.clone()),
        column("weight", Side::Right, |row: &ClientRow| row.weight.to_string()),
        column("rw", Side::Left, |row: &ClientRow| row.rw.clone()),
        column("bs", Side::Right, |row: &ClientRow| size_text(row.bs.into())),
        column("iodepth", Side::Right, |row: &ClientRow| row.iodepth.to_string()),
    ]
}

fn figures(rows: &[ClientRow], form: Form) -> Vec<Column> {
    let most = rows.iter().map(|row| row.lat_ns.p99).max().unwrap_or(0);
    let unit = TimeUnit::between(rows.iter().map(|row| row.lat_ns.p50).min().unwrap_or(0), most);
    let figure = |name, of: fn(&ClientRow) -> String| column(name, Side::Right, of);
    let time = |name, of: fn(&ClientRow) -> u64| {
        column(&format!("{name} {}", unit.name()), Side::Right, move |row| unit.text(of(row)))
    };
    let mut figures = vec![
        figure("IOPS", |row| format!("{:.0}", row.iops)),
        figure("MiB/s", |row| format!("{:.1}", row.bw_bytes_per_s / MIB)),
        time("mean", |row| row.lat_ns.mean),
        time("p50", |row| row.lat_ns.p50),
        time("p99", |row| row.lat_ns.p99),
        time("p99.9", |row| row.lat_ns.p999),
        time("max", |row| row.lat_ns.max),
        figure("cost %", |row| format!("{:.1}", row.share * 100.0)),
        figure("of weight", |row| format!("{:.1}", row.weight_share * 100.0)),
    ];
    let is_long = |(name, ..): &Column| name.starts_with("mean") || name.starts_with("max");
    figures.retain(|figure| form == Form::Whole || !is_long(figure));
    figures
}
