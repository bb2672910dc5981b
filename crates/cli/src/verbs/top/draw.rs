//! Draws `top`: a head, the volumes, the selected lower table, and the keys.
//!
//! 80 columns are enough for everything; a wider screen has longer graphs and names. A narrower one
//! drops columns, the least important first, and needs more lines for head and keys.

use std::cmp::Reverse;

use millrace_console::{shortened, wrapped};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, Wrap};

use super::model::{ListedRow, LowerTable, SortOrder, TopModel};
use super::{COLUMNS as COLUMNS_HELP, KEYS as KEYS_HELP};
use crate::verbs::stat::caches::CacheRow;
use crate::verbs::stat::columns::StatRow;
use crate::verbs::stat::groups::{self, GroupRow, short};
use crate::views::report::Report;

/// Column: heading, width, rank (the highest rank is dropped first on a narrow screen, rank 0
/// never), and the function that formats a cell.
type Column<T> = (&'static str, u16, u8, fn(&T) -> String);

const COLUMNS: [Column<StatRow>; 14] = [
    ("r/s", 6, 0, |row| short(row.read.per_second)),
    ("w/s", 6, 0, |row| short(row.write.per_second)),
    ("rMiB", 6, 4, |row| short(row.read.kib_per_second / 1024.0)),
    ("wMiB", 6, 4, |row| short(row.write.kib_per_second / 1024.0)),
    ("r_p99", 6, 1, |row| time(row.read.p99_ms)),
    ("w_p99", 6, 1, |row| time(row.write.p99_ms)),
    ("aqu-sz", 7, 5, |row| short(row.aqu_sz)),
    ("%util", 5, 3, |row| figure(is_disk(row).then(|| format!("{:.0}", row.util)))),
    (ERRORS, 5, 2, |row| counted_errors(row.failed)),
    ("flight", 6, EXTRA, |row| figure(is_disk(row).then(|| row.in_flight.to_string()))),
    ("r_avg", 6, EXTRA + 1, |row| time(row.read.await_ms)),
    ("w_avg", 6, EXTRA + 1, |row| time(row.write.await_ms)),
    ("f/s", 6, EXTRA + 2, |row| short(row.flush.per_second)),
    ("d/s", 6, EXTRA + 2, |row| short(row.discard.per_second)),
];
/// Lowest rank of the columns for wide screens. Such a column is shown only if a graph beside the
/// table fits the screen, too.
const EXTRA: u8 = 10;
const GRAPH_ROOM: u16 = 24;
const GROUP_COLUMNS: [Column<GroupRow>; 8] = [
    ("r/s", 6, 0, |row| short(row.reads)),
    ("w/s", 6, 0, |row| short(row.writes)),
    ("MiB/s", 6, 3, |row| short((row.read_kib + row.write_kib) / 1024.0)),
    ("p99", 6, 1, |row| time(row.p99_ms)),
    ("%want", 5, 4, |row| share(row, row.wanted_percent)),
    ("%got", 5, 4, |row| share(row, row.got_percent)),
    ("held", 6, 2, |row| short(row.held())),
    ("by", 10, 2, |row| shortened(row.by().unwrap_or("-"), 10)),
];
const CACHE_COLUMNS: [Column<CacheRow>; 8] = [
    ("hit/s", 6, 1, |row| short(row.per_second(row.cache.stats.read_hits))),
    ("%hit", 4, 0, CacheRow::hit_percent),
    ("wr/s", 6, 0, |row| short(row.per_second(row.cache.stats.written))),
    ("wb/s", 6, 2, |row| short(row.per_second(row.cache.stats.written_back))),
    ("KiB/wb", 6, 4, CacheRow::request_kib),
    ("dirty", 6, 0, CacheRow::dirty_mib),
    ("%max", 4, 3, CacheRow::dirty_percent),
    (ERRORS, 5, 2, |row| counted_errors(row.cache.stats.write_errors)),
];
const ERRORS: &str = "err";
const FAILING_MAX: usize = 3;
const NAME_WIDTH: u16 = 12;
const GRAPH_WIDTH: u16 = 76;
const VOLUMES_MAX: usize = 5;
const KEYS: [&str; 7] =
    ["? help", "q quit", "tab other tables", "s sort", "r reverse", "space hold", "+/- interval"];

fn figure(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Returns true for a row of a drive or volume. Other rows have no utilization and no I/Os in
/// flight.
fn is_disk(row: &StatRow) -> bool {
    matches!(row.kind, "volume" | "drive")
}

fn share(group: &GroupRow, percent: f64) -> String {
    let is_active = group.ios > 0.0 || group.held() > 0.0;
    figure(is_active.then(|| format!("{percent:.0}")))
}

pub fn draw(frame: &mut Frame<'_>, model: &TopModel) {
    if model.explained {
        let text = format!("Keys:\n{KEYS_HELP}\n\nColumns:\n{COLUMNS_HELP}\n\nAny key goes back.");
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), frame.area());
    }
    let width = frame.area().width;
    let volumes = model.rows("volume");
    let shown = volumes.len().min(VOLUMES_MAX);
    let (summary, keys) = (summary(model, width.into()), lines(&KEYS, width.into()));
    let areas = Layout::vertical([
        Constraint::Length(summary.len() as u16),
        Constraint::Length(shown as u16 + 2),
        Constraint::Min(2),
        Constraint::Length(keys.len() as u16),
    ]);
    let [head, above, below, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(summary), head);
    let title = match volumes.len() > shown {
        true => format!("Volume 1-{shown}/{}", volumes.len()),
        false => "Volume".to_owned(),
    };
    let volumes = ShownRows { title, rows: &volumes[..shown] };
    frame.render_widget(table(model, width, &COLUMNS, &volumes), above);
    let lower = match model.below {
        LowerTable::Groups => lower(model, below, &GROUP_COLUMNS, &model.groups()),
        LowerTable::Caches => lower(model, below, &CACHE_COLUMNS, &model.caches()),
        kind => lower(model, below, &COLUMNS, &model.rows(kind.kind())),
    };
    frame.render_widget(lower, below);
    let keys: Vec<Line<'_>> = keys.into_iter().map(Line::raw).collect();
    frame.render_widget(Paragraph::new(keys).style(Style::new().fg(Color::DarkGray)), foot);
}

/// Title of a table, and the rows that fit the screen.
struct ShownRows<'a, T> {
    title: String,
    rows: &'a [&'a T],
}

fn lower<T: ListedRow>(
    model: &TopModel,
    area: Rect,
    columns: &[Column<T>],
    rows: &[&T],
) -> Table<'static> {
    let name = model.below.title();
    let room = usize::from(area.height.saturating_sub(1));
    let first = model.first(room);
    let last = rows.len().min(first + room);
    let title = match (rows.len() > room, area.width >= GRAPH_WIDTH) {
        (true, true) => format!("{name} {}-{last}/{}", first + 1, rows.len()),
        (true, false) => format!("{name} {last}/{}", rows.len()),
        (false, _) => name.to_owned(),
    };
    table(model, area.width, columns, &ShownRows { title, rows: &rows[first..last] })
}

/// Joins texts to lines of at most `width` characters, with two spaces between texts. A text is
/// never split across lines.
fn lines(pieces: &[impl AsRef<str>], width: usize) -> Vec<String> {
    // `wrapped` joins the texts with one space. The U+001F at the end of each text is replaced by a
    // second space below.
    let words = pieces.iter().map(|piece| format!("{}\u{1f}", piece.as_ref()));
    let text = wrapped(words, width + 1);
    text.lines().map(|line| line.replace('\u{1f}', " ").trim_end().to_owned()).collect()
}

fn summary(model: &TopModel, width: usize) -> Vec<Line<'static>> {
    let (report, server) = (&model.report, &model.report.server);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let (sort, reversed) = (model.sort, model.reversed);
    let order = match (sort, reversed) {
        (SortOrder::Given, false) => "as configured".to_owned(),
        (_, false) => format!("sorted by {}", sort.name()),
        (_, true) => format!("sorted by {}, reversed", sort.name()),
    };
    let failed: u64 = report.exports.iter().map(|export| export.errors).sum();
    let failing = failing_drives(report);
    let up = format!("up {}", clock(report.uptime_ns / 1_000_000_000));
    let every = format!("every {:.1} s", model.interval.as_secs_f64());
    let host = Some(&report.daemon.host).filter(|host| !host.is_empty());
    let host = host.map(|host| format!("on {}", host.escape_debug()));
    let since = model.is_since_start().then(|| "all since the start".to_owned());
    let mut first = vec!["millrace".to_owned()];
    first.extend(host.into_iter().chain([up, every, order]).chain(since));
    if report.idle.volumes > 0 {
        first.push(format!("idle volumes {}", report.idle.volumes));
    }
    if model.held {
        first.push("HELD".to_owned());
    }
    let counted = &server.stats;
    let dropped = counted.protocol_errors + counted.handshake_timeouts + counted.stalled;
    let second = [
        format!("clients {}", counted.connections),
        format!("accepted {}", counted.connections_accepted),
        format!("refused {}", counted.connections_refused),
        format!("dropped {dropped}"),
        format!("buffers {} MiB", counted.buffer_bytes >> 20),
    ];
    let mut third = vec![
        format!("requests/s {}", short(model.server_rate(|server| server.stats.requests))),
        format!("in flight {}", model.in_flight()),
        format!("errors/s {}", short(model.server_rate(|server| server.stats.errors))),
        format!("failed by drives {failed}{failing}"),
    ];
    if !report.caches.is_empty() {
        let dirty: u64 = report.caches.iter().map(|cache| cache.stats.dirty_bytes).sum();
        third.push(format!("dirty {} MiB", short(dirty as f64 / f64::from(1 << 20))));
    }
    let is_alarm = failed > 0 || !failing.is_empty();
    let alarm = if is_alarm { Style::new().fg(Color::Red) } else { Style::new() };
    let name = |line: String| {
        let (name, rest) = line.split_at(if line.starts_with("millrace") { 8 } else { 0 });
        let (rest, held) = rest.split_at(rest.strip_suffix("HELD").unwrap_or(rest).len());
        Line::from(vec![
            Span::styled(name.to_owned(), bold),
            Span::raw(rest.to_owned()),
            Span::styled(held.to_owned(), bold.fg(Color::Yellow)),
        ])
    };
    let mut all: Vec<Line<'static>> = lines(&first, width).into_iter().map(name).collect();
    all.extend(lines(&second, width).into_iter().map(Line::raw));
    all.extend(lines(&third, width).into_iter().map(|line| Line::styled(line, alarm)));
    all
}

fn failing_drives(report: &Report) -> String {
    let mut failing: Vec<(u64, &str)> =
        report.drives.iter().map(|drive| (drive.failed(), &*drive.name)).collect();
    failing.retain(|(failed, _)| *failed > 0);
    failing.sort_by_key(|(failed, _)| Reverse(*failed));
    let named = failing.iter().take(FAILING_MAX);
    let named = named.map(|(failed, name)| format!("{} {failed}", name.escape_debug()));
    let more = (failing.len() > FAILING_MAX).then(|| "...".to_owned());
    let named: Vec<String> = named.chain(more).collect();
    if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) }
}

fn counted_errors(count: u64) -> String {
    if count < 100_000 { count.to_string() } else { short(count as f64) }
}

fn columns<T>(all: &[Column<T>], width: u16) -> Vec<&Column<T>> {
    let mut columns: Vec<&Column<T>> = all.iter().collect();
    let wide = |columns: &[&Column<T>]| columns.iter().map(|column| column.1 + 1).sum::<u16>();
    let extra = |columns: &[&Column<T>]| columns.iter().any(|column| column.2 >= EXTRA);
    let graph = |columns: &[&Column<T>]| if extra(columns) { GRAPH_ROOM } else { 0 };
    while NAME_WIDTH + wide(&columns) + graph(&columns) > width {
        let Some(first) = columns.iter().map(|column| column.2).filter(|order| *order > 0).max()
        else {
            break;
        };
        columns.retain(|column| column.2 != first);
    }
    columns
}

fn table<T: ListedRow>(
    model: &TopModel,
    width: u16,
    columns_all: &[Column<T>],
    ShownRows { title, rows }: &ShownRows<'_, T>,
) -> Table<'static> {
    let columns = columns(columns_all, width);
    let numbers: u16 = columns.iter().map(|column| column.1 + 1).sum();
    let (graph, name) = match width >= GRAPH_WIDTH {
        true => {
            let room = width.saturating_sub(numbers + 1 + GRAPH_ROOM);
            let name = NAME_WIDTH
                .max((model.longest_name() as u16).min(room))
                .max(title.len().min(24) as u16);
            (usize::from(width.saturating_sub(name + numbers + 1)), name)
        }
        false => (0, width.saturating_sub(numbers)),
    };
    let right = |text: String, width: u16| Cell::from(format!("{text:>0$}", usize::from(width)));
    let cut = |text: &str| shortened(text, usize::from(name));
    let mut head = vec![Cell::from(cut(title))];
    let (sort, reversed) = (model.sort, model.reversed);
    let marked = |name: &str| match (sorted_by(name) == Some(sort), reversed) {
        (false, _) => name.to_owned(),
        (true, false) => format!("{name}\u{25bc}"),
        (true, true) => format!("{name}\u{25b2}"),
    };
    head.extend(columns.iter().map(|column| right(marked(column.0), column.1)));
    let lines = rows.iter().map(|row| {
        let mut cells = vec![Cell::from(cut(&row.name().escape_debug().to_string()))];
        cells.extend(columns.iter().map(|column| {
            let text = (column.3)(row);
            let is_alarm = column.0 == ERRORS && text != "0";
            let style = if is_alarm { Style::new().fg(Color::Red) } else { Style::new() };
            right(text, column.1).style(style)
        }));
        if graph > 0 {
            let graph = Cell::from(model.graph(*row, graph)).style(Style::new().fg(Color::Cyan));
            cells.push(graph);
        }
        TableRow::new(cells)
    });
    let mut widths = vec![Constraint::Length(name)];
    widths.extend(columns.iter().map(|column| Constraint::Length(column.1)));
    if graph > 0 {
        head.push(Cell::from("I/Os"));
        widths.push(Constraint::Fill(1));
    }
    let head = TableRow::new(head).style(Style::new().add_modifier(Modifier::REVERSED));
    Table::new(lines, widths).header(head)
}

/// Returns the sort order for a column. Columns of reads and of writes have a common order, such as
/// `Ios` for `r/s` and `w/s`.
fn sorted_by(column: &str) -> Option<SortOrder> {
    let sort = match column {
        "r/s" | "w/s" | "hit/s" | "wr/s" => SortOrder::Ios,
        "rMiB" | "wMiB" | "MiB/s" => SortOrder::Bytes,
        "r_p99" | "w_p99" | "p99" => SortOrder::P99,
        "aqu-sz" | "held" | "dirty" => SortOrder::Queue,
        _ => return None,
    };
    Some(sort)
}

fn time(ms: f64) -> String {
    groups::time(ms).replace(' ', "")
}

fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours / 24 {
        0 => format!("{hours}:{minutes:02}:{seconds:02}"),
        days => format!("{days} d {}:{minutes:02}:{seconds:02}", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::tests::report;
    use super::*;
    use crate::views::caches::{CacheCounts, CacheNumbers};
    use crate::views::report::Export;

    /// The screen as lines of text.
    fn screen(model: &TopModel, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let lines = buffer.content().chunks(usize::from(width));
        lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>()).collect()
    }

    fn words_of(line: &str) -> Vec<&str> {
        line.split_whitespace().collect()
    }

    fn model(drives: u64) -> TopModel {
        let mut model = TopModel::new(Duration::from_secs(1));
        model.update(report(3600, drives, 0));
        model.update(report(3602, drives, 2000));
        model
    }

    #[test]
    fn eighty_by_twenty_four_hold_volumes_drives_clients_and_keys() {
        let lines = screen(&model(4), 80, 24);
        let text = lines.join("\n");
        assert!(
            lines[0].starts_with("millrace  up 1:00:02  every 1.0 s  sorted by I/Os"),
            "{text}"
        );
        assert!(lines[1].starts_with("clients 3  accepted 5  refused 0"), "{text}");
        assert!(lines[2].starts_with("requests/s 10.0k  in flight 0"), "{text}");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        let head = "Volume r/s\u{25bc} w/s\u{25bc} rMiB wMiB r_p99 w_p99 aqu-sz %util err I/Os";
        assert_eq!(words(3), head.split(' ').collect::<Vec<_>>(), "{text}");
        assert_eq!(words(4)[..4], ["v", "6000", "0", "23.4"], "{text}");
        assert_eq!(words(6)[0], "Drive", "{text}");
        assert_eq!(
            words(7),
            ["d3", "3000", "0", "11.7", "0", "1.1ms", "-", "3.15", "0", "0", "\u{2581}\u{2588}"]
        );
        assert_eq!(words(10)[0], "d0", "{text}");
        assert!(lines[23].starts_with("? help  q quit"), "{text}");
    }

    #[test]
    fn what_caches_have_in_memory_only_stands_in_the_head() {
        let mut model = TopModel::new(Duration::from_secs(1));
        let stats = CacheNumbers { dirty_bytes: 3 << 19, ..CacheNumbers::default() };
        let cache = CacheCounts { stats, ..CacheCounts::default() };
        model.update(Report { caches: vec![cache; 2], ..report(3600, 1, 0) });
        let lines = screen(&model, 80, 24);
        assert!(lines[2].contains("dirty 3.00 MiB"), "{lines:?}");
        assert!(!screen(&self::model(1), 80, 24)[2].contains("dirty"));
    }

    #[test]
    fn a_wide_screen_has_more_columns_and_still_a_graph() {
        let head = |width: u16| {
            let lines = screen(&model(4), width, 24);
            let line = lines.iter().find(|line| line.starts_with("Volume")).unwrap();
            (words_of(line).len(), lines[7].trim_end().chars().count() <= usize::from(width))
        };
        assert_eq!([80, 104, 105, 140, 250].map(head), [11, 11, 12, 16, 16].map(|n| (n, true)));
    }

    #[test]
    fn columns_that_rows_are_sorted_by_have_an_arrow() {
        let mut model = model(4);
        let marked = |model: &TopModel| {
            let line = screen(model, 80, 24).remove(3);
            let words =
                line.split_whitespace().filter(|word| word.ends_with(['\u{25bc}', '\u{25b2}']));
            words.collect::<Vec<_>>().join(" ")
        };
        let orders = [(); 5].map(|()| {
            let words = marked(&model);
            model.sort_by_next();
            words
        });
        assert_eq!(
            orders,
            [
                "r/s\u{25bc} w/s\u{25bc}",
                "rMiB\u{25bc} wMiB\u{25bc}",
                "r_p99\u{25bc} w_p99\u{25bc}",
                "aqu-sz\u{25bc}",
                ""
            ]
        );
        model.reversed = !model.reversed;
        assert_eq!(marked(&model), "r/s\u{25b2} w/s\u{25b2}");
    }

    #[test]
    fn a_question_mark_explains_keys_and_columns() {
        let mut model = model(4);
        model.explained = !model.explained;
        let text = screen(&model, 100, 40).join("\n");
        for part in
            ["Keys:", "ends", "Columns:", "aqu-sz        I/Os waiting", "Any key goes back."]
        {
            assert!(text.contains(part), "no {part} in {text}");
        }
        model.explained = !model.explained;
        assert!(screen(&model, 80, 24)[0].starts_with("millrace  up"));
    }

    #[test]
    fn failing_drive_is_named_by_the_total_and_counted_in_a_column() {
        let failing = |drive: u64, failed: u64| {
            let mut report = report(3600, 6, 100);
            report.exports = vec![Export { errors: failed, ..Export::default() }];
            report.drives[drive as usize].ops[0].errors = failed;
            report
        };
        let mut model = TopModel::new(Duration::from_secs(1));
        model.update(failing(1, 25));
        let text = screen(&model, 100, 24).join("\n");
        assert!(text.contains("failed by drives 25 (d1 25)"), "{text}");
        let row = text.lines().find(|line| line.starts_with("d1 ")).unwrap();
        assert_eq!(words_of(row)[9], "25", "{text}");
        let mut report = failing(2, 1_234_567);
        (3..6).for_each(|drive: u64| report.drives[drive as usize].ops[0].errors = drive);
        let names = failing_drives(&report);
        assert_eq!(names, " (d2 1234567, d5 5, d4 4, ...)");
        assert_eq!(
            (counted_errors(99_999), counted_errors(1_234_567)),
            ("99999".into(), "1.2M".into())
        );
    }

    #[test]
    fn caches_follow_the_groups_where_there_are_some() {
        let mut model = TopModel::new(Duration::from_secs(1));
        let stats = CacheNumbers {
            page_bytes: 4096,
            dirty_bytes: 3 << 19,
            dirty_max_bytes: 3 << 20,
            ..CacheNumbers::default()
        };
        let cache = CacheCounts { volume: "v".to_owned(), stats, ..CacheCounts::default() };
        model.update(Report { caches: vec![cache.clone()], ..report(3600, 1, 0) });
        let mut later = cache;
        (later.stats.read_hits, later.stats.read_misses, later.stats.written) = (600, 200, 400);
        (later.stats.written_back, later.stats.write_requests) = (320, 10);
        model.update(Report { caches: vec![later], ..report(3602, 1, 0) });
        (0..4).for_each(|_| model.next_below());
        let lines = screen(&model, 80, 24);
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        let head = "Cache hit/s\u{25bc} %hit wr/s\u{25bc} wb/s KiB/wb dirty %max err I/Os";
        assert_eq!(words(6), head.split(' ').collect::<Vec<_>>(), "{lines:?}");
        let row = ["v", "300", "75", "200", "160", "128", "1.50", "50", "0"];
        assert_eq!(words(7)[..9], row, "{lines:?}");
        model.next_below();
        assert_eq!(words_of(&screen(&model, 80, 24)[6])[0], "Drive");
        // Without a cache there is no such table.
        let mut plain = self::model(1);
        (0..4).for_each(|_| plain.next_below());
        assert_eq!(words_of(&screen(&plain, 80, 24)[6])[0], "Drive");
    }

    #[test]
    fn groups_have_their_shares_and_what_holds_them() {
        let mut model = model(4);
        (0..3).for_each(|_| model.next_below());
        let lines = screen(&model, 80, 24);
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        let head = "Group r/s\u{25bc} w/s\u{25bc} MiB/s p99 %want %got held by I/Os";
        assert_eq!(words(6), head.split(' ').collect::<Vec<_>>(), "{lines:?}");
        assert_eq!(words(7)[..7], ["gold", "2000", "0", "7.81", "1.1ms", "80", "67"], "{lines:?}");
        assert_eq!(words(8)[7..9], ["1049", "limit"], "{lines:?}");
        for width in [1, 30, 40, 60, 200] {
            screen(&model, width, 24);
        }
    }

    #[test]
    fn more_drives_than_lines_are_numbered_and_scrolled() {
        let mut model = model(40);
        assert!(screen(&model, 80, 24)[6].starts_with("Drive 1-16/40 "), "16 of 40 fit");
        model.scroll(10);
        assert!(screen(&model, 80, 24)[7].starts_with("d29 "));
        model.scroll(100);
        assert!(screen(&model, 80, 24)[22].starts_with("d0 "));
    }

    #[test]
    fn forty_columns_hold_whole_words_and_whole_numbers() {
        let lines = screen(&model(40), 40, 24);
        let text = lines.join("\n");
        assert_eq!(lines[0].trim_end(), "millrace  up 1:00:02  every 1.0 s", "{text}");
        assert_eq!(lines[1].trim_end(), "sorted by I/Os", "{text}");
        assert_eq!(lines[2].trim_end(), "clients 3  accepted 5  refused 0", "{text}");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        let volume = lines.iter().position(|line| line.starts_with("Volume")).unwrap();
        assert_eq!(
            words(volume),
            ["Volume", "r/s\u{25bc}", "w/s\u{25bc}", "r_p99", "w_p99"],
            "{text}"
        );
        assert_eq!(words(volume + 1), ["v", "780.0k", "0", "1.1ms", "-"], "{text}");
        let drive = lines.iter().position(|line| line.starts_with("Drive ")).unwrap();
        assert!(
            lines[drive].contains("/40 ") && lines[drive].trim_end().ends_with("w_p99"),
            "{text}"
        );
        assert_eq!(words(drive + 1)[0], "d39", "{text}");
        let keys = lines[22..].join(" ");
        for key in KEYS {
            assert!(text.contains(key), "{key}: {keys}");
        }
    }

    #[test]
    fn a_held_display_says_so_at_any_width() {
        let mut model = model(4);
        model.held = !model.held;
        for width in [20, 40, 60, 80, 200] {
            let text = screen(&model, width, 24).join("\n");
            assert!(text.contains("HELD") && text.starts_with("millrace"), "{width}: {text}");
        }
    }

    #[test]
    fn a_screen_of_any_size_is_drawn() {
        for (width, height) in [(1, 1), (10, 3), (40, 12), (79, 7), (300, 100)] {
            screen(&model(20), width, height);
        }
    }

    #[test]
    fn numbers_fit_their_columns() {
        for value in [0.0, 0.01, 9.999, 99.99, 9999.9, 99_999.0, 999_499.0, 12_345_678.0, 9e10] {
            assert!(short(value).len() <= 6, "{value}: {}", short(value));
            assert!(time(value.min(1e6)).len() <= 7, "{value}: {}", time(value));
        }
        assert_eq!((short(12_345.0), time(0.05), time(12.34)), {
            ("12.3k".into(), "50us".into(), "12.3ms".into())
        });
        assert_eq!(clock(90_061), "1 d 1:01:01");
    }
}
