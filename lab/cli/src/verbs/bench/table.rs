//! The result table of `bench`: 80 columns wide, or with all columns.
//!
//! Formats rows as text. In the short form a setting that all rows share is in a line above the
//! table. If the table is still too wide, rows are grouped under headings by the settings that
//! change least often. All times of a table have the same unit. Called by the verb.

use millrace_console::words::{MIB, size_text};
use millrace_console::{Form, Side, TextGrid, WIDTH, wrapped};
use millrace_experiments::{LatencyNs, Linux24Row, MachineRow, Row};

/// A setting of a row. Fields: the setting's name, a function that returns the value in a row, and
/// the default value. Tables do not show a setting if all rows have the default value.
type Setting = (&'static str, fn(&Row) -> String, &'static str);

/// Settings, beginning with those that change least often from row to row.
const SETTINGS: [Setting; 24] = [
    ("machine", |row| of_machine(row, |row| row.machine.clone()), ""),
    ("cpus", |row| row.queues.cpus.to_string(), ""),
    ("numjobs", |row| row.jobs.to_string(), ""),
    ("rw", |row| kind(row.rw.name(), row.rw.read_percent()), ""),
    ("bs", |row| size_text(row.bs.into()), ""),
    ("iodepth", |row| row.iodepth.to_string(), ""),
    ("stamp", |row| row.stamp.clone(), ""),
    ("sw-queues", |row| row.queues.software_queues.clone(), ""),
    ("hw-queues", |row| row.queues.hardware_queues.clone(), ""),
    ("stack", |row| row.queues.stack.clone(), ""),
    ("scheduler", |row| row.queues.scheduler.clone(), ""),
    ("serving", |row| row.queues.serving.clone(), ""),
    ("interface", |row| of_machine(row, |row| row.interface.clone()), ""),
    ("irq", |row| of_machine(row, |row| row.irq.clone()), ""),
    (
        "batch",
        |row| of_machine(row, |row| row.batch.map_or_else(String::new, |n| n.to_string())),
        "",
    ),
    ("inside", |row| history(row, |row| row.inside.clone()), "one"),
    ("unit", |row| history(row, |row| row.unit.clone()), "none"),
    ("iovecs", |row| history(row, |row| row.iovecs.to_string()), "1"),
    ("readv", |row| history(row, |row| row.readv.clone()), "whole"),
    ("bounce", |row| history(row, |row| row.bounce.clone()), "never"),
    ("request-lock", |row| history(row, |row| row.request_lock.clone()), "queue"),
    ("queue-plug", |row| history(row, |row| row.queue_plug.clone()), "task"),
    ("descriptor", |row| history(row, |row| row.descriptor.to_string()), "0"),
    ("kernel", |row| history(row, |row| row.kernel.clone()), "own"),
];

/// Returns a value that only rows measured with `--machine` or `--locks` have; empty for other
/// rows.
fn of_machine(row: &Row, value: impl Fn(&MachineRow) -> String) -> String {
    row.machine.as_ref().map_or_else(String::new, value)
}

fn history(row: &Row, value: fn(&Linux24Row) -> String) -> String {
    of_machine(row, |row| value(&row.history))
}

type Figure = (String, Box<dyn Fn(&Row) -> String>);

pub fn table(rows: &[Row], form: Form) -> String {
    let varies = |(_, value, _): &&Setting| rows.iter().any(|row| value(row) != value(&rows[0]));
    let said = |(_, value, unsaid): &&Setting| {
        let is_said = |value: String| !value.is_empty() && value != *unsaid;
        rows.iter().any(|row| is_said(value(row)))
    };
    let mut figures = figures(rows, form);
    if form == Form::Whole {
        let settings: Vec<Setting> = SETTINGS.iter().filter(said).copied().collect();
        return grid(&settings, &figures, rows).text();
    }
    let jobs_are_cpus = rows.iter().all(|row| row.jobs == row.queues.cpus);
    let shown = |(name, ..): &&Setting| !(jobs_are_cpus && *name == "cpus");
    let (mut inside, above): (Vec<Setting>, Vec<Setting>) =
        SETTINGS.iter().filter(said).filter(shown).partition(|setting| varies(setting));
    let mut groups = Vec::new();
    while grid(&inside, &figures, rows).width() > WIDTH && !inside.is_empty() {
        groups.push(inside.remove(0));
    }
    // If the table is still too wide, the least informative columns are left out.
    for least in ["mean", "p50", "MiB/s"] {
        if grid(&inside, &figures, rows).width() > WIDTH {
            figures.retain(|(name, _)| !name.starts_with(least));
        }
    }
    let mut blocks = Vec::new();
    if let Some(row) = rows.first() {
        blocks.push(line(&above, row));
    }
    let same = |a: &Row, b: &Row| groups.iter().all(|(_, value, _)| value(a) == value(b));
    for rows in rows.chunk_by(same) {
        if !groups.is_empty() {
            blocks.push(format!("\n{}", line(&groups, &rows[0])));
        }
        blocks.push(grid(&inside, &figures, rows).text());
    }
    blocks.join("\n")
}

fn line(settings: &[Setting], row: &Row) -> String {
    let word = |(name, value, _): &Setting| Some(format!("{name}={}", value(row)));
    let words = settings.iter().filter(|(_, value, _)| !value(row).is_empty()).filter_map(word);
    wrapped(words, WIDTH)
}

fn grid(settings: &[Setting], figures: &[Figure], rows: &[Row]) -> TextGrid {
    let side = |name: &str| match name {
        "cpus" | "numjobs" | "bs" | "iodepth" | "batch" | "iovecs" | "descriptor" => Side::Right,
        _ => Side::Left,
    };
    let settings_heads = settings.iter().map(|(name, ..)| ((*name).to_owned(), side(name)));
    let heads = figures.iter().map(|(name, _)| (name.clone(), Side::Right));
    let mut grid = TextGrid::new(settings_heads.chain(heads));
    for row in rows {
        let settings = settings.iter().map(|(_, value, _)| value(row));
        grid.row(settings.chain(figures.iter().map(|(_, value)| value(row))));
    }
    grid
}

/// Returns the columns of measured values. Each column has one unit for all table rows.
fn figures(rows: &[Row], form: Form) -> Vec<Figure> {
    let whole = form == Form::Whole;
    let decimals = usize::from(rows.iter().all(|row| row.bw_bytes_per_s < 100.0 * MIB));
    let mut figures: Vec<Figure> = vec![
        ("IOPS".to_owned(), Box::new(|row| format!("{:.0}", row.iops))),
        (
            "MiB/s".to_owned(),
            Box::new(move |row| format!("{:.decimals$}", row.bw_bytes_per_s / MIB)),
        ),
    ];
    let plain = |(name, value): (&str, Value)| -> Figure { (name.to_owned(), Box::new(value)) };
    figures.extend(COSTS.into_iter().filter(|_| whole).map(plain));
    let unit = TimeUnit::of(rows);
    for (name, _, of) in TIMES.into_iter().filter(|(_, short, _)| *short || whole) {
        let head = format!("{name} {}", unit.name());
        figures.push((head, Box::new(move |row| unit.text(of(&row.lat_ns)))));
    }
    let any = |has: fn(&Row) -> bool| rows.iter().any(has);
    let seldom = SELDOM.into_iter().filter(|(has, ..)| any(*has));
    figures.extend(seldom.map(|(_, name, value)| plain((name, value))));
    figures
}

type Value = fn(&Row) -> String;
type Time = fn(&LatencyNs) -> u64;
type Has = fn(&Row) -> bool;

const COSTS: [(&str, Value); 3] = [
    ("ns/IO", |row| format!("{:.1}", f64::from(row.jobs) * 1e9 / row.iops.max(1e-9))),
    ("CPU ns/IO", |row| format!("{:.1}", row.cost.cpu_ns_per_io)),
    ("syscalls/IO", |row| format!("{:.3}", row.cost.syscalls_per_io)),
];

/// Latency columns. Fields: the column's name, true if the short form of the table has the column,
/// and a function that returns the value.
const TIMES: [(&str, bool, Time); 7] = [
    ("mean", true, |lat| lat.mean),
    ("p50", true, |lat| lat.p50),
    ("p90", false, |lat| lat.p90),
    ("p99", true, |lat| lat.p99),
    ("p99.9", false, |lat| lat.p999),
    ("p99.99", false, |lat| lat.p9999),
    ("max", false, |lat| lat.max),
];

/// Columns that the table has only if some row has a value. Fields: a function that returns true if
/// a row has a value, the column's name, and the text of a cell.
const SELDOM: [(Has, &str, Value); 4] = [
    (
        |row| row.cost.notifications.is_some(),
        "kicks/IO",
        |row| format!("{:.3}", row.cost.notifications.unwrap_or_default().kicks_per_io),
    ),
    (
        |row| row.cost.notifications.is_some(),
        "intr/IO",
        |row| format!("{:.3}", row.cost.notifications.unwrap_or_default().interrupts_per_io),
    ),
    (|row| row.outcome.verified > 0, "verified", |row| row.outcome.verified.to_string()),
    (|row| row.outcome.errors > 0, "errors", |row| row.outcome.errors.to_string()),
];

/// A column of a table with lines of type `T`: its name, its alignment, and its value for a line.
pub type Column<T> = (String, Side, Box<dyn Fn(&T) -> String>);

pub fn column<T>(name: &str, side: Side, value: impl Fn(&T) -> String + 'static) -> Column<T> {
    (name.to_owned(), side, Box::new(value))
}

/// Formats `lines` as a table. The short form leaves out the columns in `least`, in this order,
/// until the table fits 80 characters.
pub fn columns_grid<T>(
    mut columns: Vec<Column<T>>,
    lines: &[T],
    (form, least): (Form, &[&str]),
) -> TextGrid {
    let grid = |columns: &[Column<T>]| {
        let mut grid = TextGrid::new(columns.iter().map(|(name, side, _)| (name.clone(), *side)));
        for line in lines {
            grid.row(columns.iter().map(|(_, _, value)| value(line)));
        }
        grid
    };
    for least in least {
        if form == Form::Short && grid(&columns).width() > WIDTH {
            columns.retain(|(name, ..)| name.split(' ').next() != Some(least));
        }
    }
    grid(&columns)
}

/// Unit of all times of a table, and the number of digits after the decimal point.
#[derive(Debug, Clone, Copy)]
pub struct TimeUnit {
    name: &'static str,
    ns: f64,
    decimals: usize,
}

impl TimeUnit {
    fn of(rows: &[Row]) -> TimeUnit {
        let times = |of: fn(&LatencyNs) -> u64| rows.iter().map(move |row| of(&row.lat_ns));
        let most = times(|lat| lat.p99).max().unwrap_or(0);
        TimeUnit::between(times(|lat| lat.p50).min().unwrap_or(0), most)
    }

    pub fn between(least_ns: u64, most_ns: u64) -> TimeUnit {
        let (name, ns, decimals) = match (least_ns, most_ns) {
            (_, ..100_000) => ("us", 1e3, 2),
            (_, ..10_000_000) => ("us", 1e3, 1),
            (..1_000_000, _) => ("us", 1e3, 0),
            _ => ("ms", 1e6, 1),
        };
        TimeUnit { name, ns, decimals }
    }

    pub fn name(self) -> &'static str {
        self.name
    }

    pub fn text(self, ns: u64) -> String {
        format!("{:.*}", self.decimals, ns as f64 / self.ns)
    }
}

/// Returns the name of a kind of I/O. A percentage of reads is appended if it is not 50:
/// `randrw:70`.
pub fn kind(rw: &str, read_percent: Option<u8>) -> String {
    match read_percent {
        Some(percent) if percent != 50 => format!("{rw}:{percent}"),
        _ => rw.to_owned(),
    }
}

/// Describes a measured configuration by the settings that differ from their defaults.
pub fn settings(row: &Row) -> String {
    let words = SETTINGS.iter().filter_map(|(name, value, unsaid)| {
        let value = value(row);
        (!value.is_empty() && value != *unsaid).then(|| format!("{name}={value}"))
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_experiments::{Cost, Notifications, Outcome, Queues, Rw};

    fn row(stack: &str, iodepth: u32) -> Row {
        let queues = Queues { stack: stack.to_owned(), cpus: 1, ..Queues::default() };
        let lat_ns = LatencyNs { mean: 84_120, p50: 80_000, p99: 120_000, ..LatencyNs::default() };
        let (rw, stamp) = (Rw::RandRead, "batch".to_owned());
        Row {
            queues,
            iodepth,
            jobs: 1,
            bs: 4096,
            iops: 84_120.4,
            rw,
            stamp,
            lat_ns,
            ..Row::default()
        }
    }

    /// A row in which every setting and figure is as long as it may be.
    fn wide(number: u32) -> Row {
        let text = |word: &str| format!("{word}{}", number % 2);
        let ns = 123_456_789_012 + u64::from(number);
        let queues = Queues {
            stack: text("virtqueue-ra"),
            scheduler: text("deadlin"),
            software_queues: text("nod"),
            hardware_queues: text("nod"),
            cpus: 4000 + number,
            serving: text("per-volum"),
        };
        let machine = MachineRow {
            machine: text("e5-2620-nvm"),
            interface: text("libaio-fixe"),
            irq: text("submitte"),
            ..MachineRow::default()
        };
        let notifications = Notifications { kicks_per_io: 1.0, interrupts_per_io: 1.0 };
        Row {
            queues,
            jobs: 4096 - number,
            iodepth: 65_536 - number,
            bs: (1 << 30) - 512 * number,
            rw: [Rw::RandWrite, Rw::RandRw { read_percent: 100 }][number as usize % 2],
            stamp: text("batc"),
            iops: 123_456_789.0,
            bw_bytes_per_s: 1e12,
            cost: Cost { notifications: Some(notifications), ..Cost::default() },
            lat_ns: LatencyNs { mean: ns, p50: 900_000, p99: ns, max: ns, ..LatencyNs::default() },
            outcome: Outcome { errors: 1 << 40, verified: 1 << 40, ..Outcome::default() },
            machine: Some(machine),
            ..Row::default()
        }
    }

    #[test]
    fn what_all_rows_share_stands_above_them() {
        let text = table(&[row("mq", 1), row("raw", 32)], Form::Short);
        let expected = "numjobs=1 rw=randread bs=4k stamp=batch\n\
                        iodepth  stack   IOPS  MiB/s  mean us  p50 us  p99 us\n\
                        \u{20}     1  mq     84120    0.0     84.1    80.0   120.0\n\
                        \u{20}    32  raw    84120    0.0     84.1    80.0   120.0";
        assert_eq!(text, expected);
    }

    #[test]
    fn unusual_settings_of_history_alone_are_mentioned() {
        let with = |unit: &str, bounce: &str| {
            let (unit, bounce) = (unit.to_owned(), bounce.to_owned());
            let history = Linux24Row { unit, bounce, iovecs: 1, ..Linux24Row::default() };
            let machine = MachineRow { history, ..MachineRow::default() };
            Row { machine: Some(machine), ..row("sq", 1) }
        };
        for form in [Form::Short, Form::Whole] {
            let text = table(&[with("none", "never"), with("none", "never")], form);
            for name in ["unit", "bounce", "iovecs", "inside"] {
                assert!(!text.contains(name), "{name}: {text}");
            }
            let text = table(&[with("512", "never"), with("page", "never")], form);
            assert!(text.contains("unit") && text.contains("page"), "{text}");
            assert!(!text.contains("bounce"), "{text}");
            let text = table(&[with("512", "always"), with("page", "never")], form);
            assert!(text.contains("bounce") && text.contains("never"), "{text}");
        }
        let text = table(&[with("512", "always")], Form::Short);
        assert!(text.contains("unit=512") && text.contains("bounce=always"), "{text}");
    }

    #[test]
    fn no_row_makes_the_short_table_wider_than_80() {
        let rows: Vec<Row> = (0..4).map(wide).collect();
        for count in 1..=4 {
            let text = table(&rows[..count], Form::Short);
            for line in text.lines() {
                assert!(line.chars().count() <= WIDTH, "{text}");
            }
            for word in ["virtqueue-ra0", "libaio-fixe0", "123456789 ", "1099511627776"] {
                assert!(text.contains(word), "{word} is missing:\n{text}");
            }
        }
    }

    #[test]
    fn the_whole_table_has_everything() {
        let text = table(&[wide(0), wide(1)], Form::Whole);
        for head in ["machine", "irq", "ns/IO", "p99.99 us", "max us", "kicks/IO", "errors"] {
            assert!(text.lines().next().unwrap().contains(head), "{text}");
        }
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn a_table_has_one_unit_of_time() {
        for (least, most, value, text) in [
            (300, 9_000, 300, "0.30 us"),
            (300, 2_000_000, 300, "0.3 us"),
            (80_000, 20_000_000, 84_120, "84 us"),
            (2_000_000, 900_000_000, 12_000_000, "12.0 ms"),
        ] {
            let unit = TimeUnit::between(least, most);
            assert_eq!(format!("{} {}", unit.text(value), unit.name()), text);
        }
    }

    #[test]
    fn kicks_are_shown_of_virtqueues_only_and_errors_if_any() {
        let plain = table(&[row("mq", 1)], Form::Short);
        assert!(!plain.contains("kicks") && !plain.contains("errors"), "{plain}");
        let outcome = Outcome { errors: 3, ..Outcome::default() };
        assert!(table(&[Row { outcome, ..row("mq", 1) }], Form::Short).contains("errors"));
    }
}
